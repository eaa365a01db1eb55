"""The child's side of syncs in a process of its own: syncs come in on standard input, reports go out.

The first frame says what to build, an empty one answers that the process is ready. Then each sync is a frame;
while it is worked on, the child may ask, once for each change that it is about to make, whether the sync has
an outcome by now. End of input ends the process wherever it is: what is not committed then never is.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from schemas.sync import SyncRequest
from worker.code.frames import read_frame, write_frame
from worker.code.syncing import ProjectSyncer
from worker.code.syncing_answers import encode_error, encode_report

IS_SETTLED: Final = b"?"
"""The child asks; the answer is one of the next two."""
SETTLED: Final = b"1"
OPEN: Final = b"0"


def serve(stdin: IO[bytes], stdout: IO[bytes], build: Callable[[bytes], ProjectSyncer]) -> None:
    """Carry out syncs until the input ends, with what `build` makes of the first frame."""
    setup = read_frame(stdin)
    if setup is not None:
        asyncio.run(_Server(stdin, stdout).run(build(setup)))


def serve_standard(build: Callable[[bytes], ProjectSyncer]) -> None:
    """Serve on this process's own standard input and output."""
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    # Whatever prints must not get into the answers.
    sys.stdout = sys.stderr
    with suppress(OSError):
        # Where memory runs out, this process goes first, not the worker.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with suppress(BrokenPipeError):
        serve(stdin, stdout, build)


class _Server:
    """One conversation."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()

    async def run(self, syncer: ProjectSyncer) -> None:
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, args=(loop,), name="sync-frames", daemon=True).start()
        self._say(b"")
        while True:
            body = await self._frames.get()
            self._say(await self._answer(syncer, body))

    async def _answer(self, syncer: ProjectSyncer, body: bytes) -> bytes:
        try:
            request = SyncRequest.model_validate_json(body)
            return encode_report(await syncer.sync(request, is_settled=self._is_settled))
        except Exception as error:  # noqa: BLE001 - the parent raises it again
            return encode_error(error, traceback.format_exc())

    async def _is_settled(self) -> bool:
        self._say(IS_SETTLED)
        return await self._frames.get() == SETTLED

    def _say(self, frame: bytes) -> None:
        write_frame(self._stdout, frame)
        self._stdout.flush()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        while (frame := read_frame(self._stdin)) is not None:
            loop.call_soon_threadsafe(self._frames.put_nowait, frame)
        os._exit(0)
