"""Looking at other processes: whether one is at work, and that it ends."""

from __future__ import annotations

import os
import select
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def children(process_id: int) -> Iterator[int]:
    """The processes that one has started and that have not ended."""
    for thread in Path(f"/proc/{process_id}/task").iterdir():
        with suppress(OSError):
            yield from map(int, (thread / "children").read_text().split())


@contextmanager
def gone(process_id: int) -> Generator[None]:
    """The process has ended soon after this context."""
    descriptor = os.pidfd_open(process_id)
    yield
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(10_000)
    os.close(descriptor)


def wait_until_extracting(process_id: int) -> None:
    """Return when the extracting process is at a job: it has asked the kernel to end it with its parent."""
    info = Path(f"/proc/{process_id}/fdinfo/0")
    while not int(info.read_text().split("flags:")[1].split()[0], 8) & os.O_ASYNC:
        os.sched_yield()
