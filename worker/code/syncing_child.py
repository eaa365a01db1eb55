"""Syncs in a process of their own, which can be ended; the parent's side.

To link a large tree takes seconds of one interpreter's lock, and the collector of cycles looks through all
that an index makes: in the worker's own process the event loop stood still for half a second. The process is
started by the first sync and stays, with what it keeps of the last index. It reads and changes the graph
itself, so nothing large passes between the two. It ends with this process, however that ends.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import structlog

from schemas.bundle import to_wire
from schemas.sync import SyncRequest
from worker.children import finding_this_package
from worker.code.indexing import IndexReport
from worker.code.syncing import IsSettled
from worker.code.syncing_answers import decode_answer
from worker.code.syncing_process import IS_SETTLED, OPEN, SETTLED
from worker.errors import StoreUnavailable, WorkerDied

log = structlog.get_logger()

START_SECONDS: Final = 60.0
_WHAT: Final = "the process that carries out syncs"
_LENGTH_BYTES: Final = 8
_WANTING: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""Why no process can be made now, though one can be later: processes, memory or descriptors are short."""


class SyncingChild:
    """One process that carries out one sync after the other. For one event loop."""

    def __init__(
        self, command: Sequence[str], *, setup: bytes, start_timeout_seconds: float = START_SECONDS
    ) -> None:
        """Start nothing yet.

        `command` serves as `worker.code.syncing_process` says, and `setup` is the first frame that it reads.
        """
        self._command = tuple(command)
        self._setup = setup
        self._start_timeout_seconds = start_timeout_seconds
        self._process: Process | None = None
        self._turn = asyncio.Lock()

    @property
    def process_id(self) -> int | None:
        """Of the process, while it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    async def sync(self, request: SyncRequest, *, is_settled: IsSettled) -> IndexReport:
        """What `ProjectSyncer.sync` gives and raises; the graph is as it was where this raises.

        Raises StoreUnavailable, too, where the process cannot be started now: the machine is short of
        something, or it is not ready in time. Raises RuntimeError where it ends at its start or says what it
        should not, and WorkerDied where it ends over the sync. A sync that is cancelled, or of which
        `is_settled` raises, ends the process; the next one starts another.
        """
        async with self._turn:
            process = await self._running()
            try:
                answer = await _converse(process, request, is_settled)
            except (OSError, EOFError) as error:
                await self._end()
                log.warning("sync.process_ended", sync_id=request.sync_id, status=process.returncode)
                message = f"{_WHAT} ended with {_said(process.returncode)}"
                raise WorkerDied(message, attempts=1) from error
            except BaseException:
                # Whatever it is about to do, nobody will hear of it.
                await self._end()
                raise
            if isinstance(answer, Exception):
                raise answer
            return answer

    async def close(self) -> None:
        """End the process; idempotent."""
        await self._end()

    async def _running(self) -> Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        self._process = process = await self._spawn()
        try:
            async with asyncio.timeout(self._start_timeout_seconds):
                await _greet(process, self._setup)
        except TimeoutError as error:
            # It is slow, not wrong: on a crowded machine the next attempt finds it started sooner.
            await self._end()
            raise StoreUnavailable(_WHAT, "it is not ready in time") from error
        except (OSError, EOFError) as error:
            await self._end()
            raise RuntimeError(f"{_WHAT} does not start") from error
        except BaseException:
            await self._end()
            raise
        return process

    async def _spawn(self) -> Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=PIPE,
                # With the settings: it stores what it has indexed.
                env=finding_this_package(os.environ),
                # What a terminal sends to the worker is the worker's to answer.
                process_group=0,
            )
        except OSError as error:
            if error.errno in _WANTING:
                raise StoreUnavailable(_WHAT, str(error)) from error
            raise

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # Those that it has read files for it, too.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _greet(process: Process, setup: bytes) -> None:
    """Wait until the process is ready. Raises OSError where it says something else."""
    await _write(process, setup)
    if await _read(process):
        raise OSError("it speaks out of turn")


async def _converse(process: Process, request: SyncRequest, is_settled: IsSettled) -> IndexReport | Exception:
    """The report, or what the sync raised; either way the process is free for the next one."""
    await _write(process, await asyncio.to_thread(to_wire, request))
    while (frame := await _read(process)) == IS_SETTLED:
        await _write(process, SETTLED if await is_settled() else OPEN)
    return await asyncio.to_thread(decode_answer, frame)


async def _write(process: Process, frame: bytes) -> None:
    stdin = process.stdin
    assert stdin is not None  # noqa: S101 - it is a pipe
    stdin.write(len(frame).to_bytes(_LENGTH_BYTES, "big"))
    stdin.write(frame)
    await stdin.drain()


async def _read(process: Process) -> bytes:
    """Raises EOFError where the process ended."""
    stdout = process.stdout
    assert stdout is not None  # noqa: S101 - it is a pipe
    length = int.from_bytes(await stdout.readexactly(_LENGTH_BYTES), "big")
    return await stdout.readexactly(length)


def _said(status: int | None) -> str:
    return f"signal {-status}" if status is not None and status < 0 else f"status {status}"
