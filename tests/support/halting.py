"""Programs that a worker starts, halted as they come: they take what they are sent and never answer."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.support.processes import children

_LOOK_SECONDS = 0.02
_STOP_SECONDS = 30.0


def stop(process_id: int) -> None:
    """SIGSTOP, and wait until all threads of the process stand: until then it may still answer.

    Raises TimeoutError.
    """
    os.kill(process_id, signal.SIGSTOP)
    deadline = time.monotonic() + _STOP_SECONDS
    while any(map(_is_running, Path(f"/proc/{process_id}/task").iterdir())):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{process_id} does not stop")
        time.sleep(0.001)


def _is_running(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] not in {"T", "Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return False  # the thread has ended


@asynccontextmanager
async def halting(process_id: int, word: str) -> AsyncGenerator[set[int]]:
    """Within this context every child of the process with the word in its command line is stopped.

    Gives the ids of those that were, and lets those go on that are still there at the end.
    """
    halted: set[int] = set()

    async def look() -> None:
        while True:
            for child in children(process_id):
                if child not in halted and word in _command(child):
                    os.kill(child, signal.SIGSTOP)
                    halted.add(child)
            await asyncio.sleep(_LOOK_SECONDS)

    looking = asyncio.create_task(look())
    try:
        yield halted
    finally:
        looking.cancel()
        await asyncio.wait({looking})
        for child in halted & set(children(process_id)):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)


def _command(process_id: int) -> str:
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
