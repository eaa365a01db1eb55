"""Looking at other processes: whether one is at work, and that it ends."""

from __future__ import annotations

import os
import select
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


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
