"""A way to Neo4j that can be frozen, or cut at the commit: before the server hears of it, or after."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal, Self
from urllib.parse import urlsplit

# COMMIT as the protocol frames it: two bytes of length, the message, the end.
COMMIT = b"\x00\x02\xb0\x12\x00\x00"


class BoltProxy:
    """Forwards to the server at `url`, until told otherwise."""

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url)
        self._listener: asyncio.Server | None = None
        self._is_thawed = asyncio.Event()
        self._is_thawed.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.cut_at_commit: Literal["before", "after"] | None = None
        self.commits_before_cut = 0
        self.is_refusing_after_cut = False
        self.was_cut = asyncio.Event()
        self._is_refusing = False

    @property
    def url(self) -> str:
        assert self._listener is not None
        return f"bolt://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def freeze(self) -> None:
        """Nothing passes any more, in neither direction."""
        self._is_thawed.clear()

    def thaw(self) -> None:
        self._is_thawed.set()

    def accept_again(self) -> None:
        self._is_refusing = False

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        self._close_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_refusing:
            writer.close()
            return
        there, back = await asyncio.open_connection(self._server.hostname, self._server.port)
        self._writers |= {writer, back}
        for coroutine in (self._forward(reader, back, is_client=True), self._forward(there, writer)):
            task = asyncio.create_task(coroutine)
            self._tasks.add(task)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_client: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._is_thawed.wait()
                if is_client and self.cut_at_commit and COMMIT in data:
                    if not self.commits_before_cut:
                        await self._cut(writer, data)
                        return
                    self.commits_before_cut -= 1
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _cut(self, server: asyncio.StreamWriter, data: bytes) -> None:
        how, self.cut_at_commit = self.cut_at_commit, None
        self._is_refusing = self.is_refusing_after_cut
        for writer in self._writers - {server}:
            writer.close()
        if how == "after":
            server.write(data)
            await server.drain()
        server.close()
        self._writers.clear()
        self.was_cut.set()

    def _close_all(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()
