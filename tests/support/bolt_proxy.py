"""A way to Neo4j that can be frozen, or cut at the commit: before the server hears of it, or after."""

from __future__ import annotations

import asyncio
from typing import Literal

from tests.support.tcp_proxy import TcpProxy

# COMMIT as the protocol frames it: two bytes of length, the message, the end.
COMMIT = b"\x00\x02\xb0\x12\x00\x00"


class BoltProxy(TcpProxy):
    """Forwards to the server at `url`, until told otherwise."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.cut_at_commit: Literal["before", "after"] | None = None
        self.commits_before_cut = 0
        self.is_refusing_after_cut = False
        self.was_cut = asyncio.Event()
        self._is_refusing = False

    def accept_again(self) -> None:
        self._is_refusing = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_refusing:
            writer.close()
            return
        await super()._accept(reader, writer)

    async def _is_intercepted(self, data: bytes, server: asyncio.StreamWriter) -> bool:
        if not self.cut_at_commit or COMMIT not in data:
            return await super()._is_intercepted(data, server)
        if self.commits_before_cut:
            self.commits_before_cut -= 1
            return False
        await self._cut(server, data)
        return True

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
