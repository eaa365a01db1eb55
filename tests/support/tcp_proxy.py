"""A way to a server that can be frozen (it accepts and never answers), as a whole or in part, or be gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit

_PIECE_BYTES = 1 << 16


class TcpProxy:
    """Forwards to the server at `url`, until told otherwise. `url` is also how it is reached itself."""

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url)
        self._listener: asyncio.Server | None = None
        self._port = 0
        self._is_thawed = asyncio.Event()
        self._is_thawed.set()
        self._is_swallowed: Callable[[bytes], bool] = lambda _: False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.swallowed = 0
        """Connections on which something was said that `swallow` was to find."""

    @property
    def url(self) -> str:
        return self._server._replace(netloc=f"127.0.0.1:{self._port}").geturl()

    def freeze(self) -> None:
        """Nothing passes any more, in neither direction; new connections are accepted."""
        self._is_thawed.clear()

    def swallow(self, is_swallowed: Callable[[bytes], bool]) -> None:
        """From the first piece on that a client sends and this finds, nothing of that connection passes."""
        self._is_swallowed = is_swallowed

    def thaw(self) -> None:
        """All passes again; connections of which something was swallowed end."""
        self._is_swallowed = lambda _: False
        self._is_thawed.set()

    async def refuse(self) -> None:
        """As a server that was ended: connections break, and no new one is accepted."""
        assert self._listener is not None
        self._listener.close()
        self._listener = None
        self._close_all()

    async def listen(self) -> None:
        """As a server that was started, on the same port as before."""
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listener is not None:
            self._listener.close()
        self._close_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            there, back = await asyncio.open_connection(self._server.hostname, self._server.port)
        except OSError:
            writer.close()
            return
        self._writers.add(back)
        for coroutine in (self._forward(reader, back, is_client=True), self._forward(there, writer)):
            task = asyncio.create_task(coroutine)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_client: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE_BYTES):
                await self._is_thawed.wait()
                if is_client and await self._is_intercepted(data, writer):
                    await reader.read()
                    break
                writer.write(data)
                await writer.drain()
        writer.close()
        self._writers.discard(writer)

    async def _is_intercepted(self, data: bytes, server: asyncio.StreamWriter) -> bool:
        """Whether nothing that this client sends is to pass from now on."""
        del server
        is_swallowed = self._is_swallowed(data)
        self.swallowed += is_swallowed
        return is_swallowed

    def _close_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
