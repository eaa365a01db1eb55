"""A way to a server that counts round trips: each turn from an answer to the next question."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self
from urllib.parse import urlsplit


class TripCounter:
    """Forwards to the server at `url`. Whoever sends twice before the answer begins made one trip."""

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url)
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.trips = 0

    @property
    def url(self) -> str:
        assert self._listener is not None
        port = self._listener.sockets[0].getsockname()[1]
        return self._server._replace(netloc=f"127.0.0.1:{port}").geturl()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        for writer in self._writers:
            writer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._server.hostname, self._server.port)
        self._writers += [writer, back]
        is_asking = [False]
        for source, sink, from_client in ((reader, back, True), (there, writer, False)):
            self._tasks.add(asyncio.create_task(self._forward(source, sink, is_asking, from_client)))

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_asking: list[bool],
        from_client: bool,  # noqa: FBT001  which of the two directions it is
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if from_client and not is_asking[0]:
                    self.trips += 1
                is_asking[0] = from_client
                writer.write(data)
                await writer.drain()
        writer.close()
