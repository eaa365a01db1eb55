"""A collector of OTLP over HTTP that takes what it is sent, or fails to in a way that collectors do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Literal

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Manner = Literal[
    "takes", "is busy", "refuses the data", "redirects", "has moved", "never answers", "dies while it answers"
]

_STATUS: dict[Manner, bytes] = {
    "takes": b"200 OK",
    "is busy": b"503 Service Unavailable",
    "refuses the data": b"400 Bad Request",
    # As a proxy in front of it does that wants a login, or another address.
    "redirects": b"302 Found\r\nLocation: /login",
    "has moved": b"308 Permanent Redirect",
}


class OtlpCollector:
    """Listens on loopback. `manner` may be changed while it runs."""

    def __init__(self, manner: Manner) -> None:
        self.manner: Manner = manner
        self._taken: list[tuple[bytes, bytes]] = []
        self.headers: list[dict[str, str]] = []
        self.posts = 0
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def traces(self) -> list[ExportTraceServiceRequest]:
        """Read when they are asked for, so that who measures the sender does not measure this."""
        return [
            ExportTraceServiceRequest.FromString(body) for path, body in self._taken if path == b"/v1/traces"
        ]

    @property
    def metrics(self) -> list[ExportMetricsServiceRequest]:
        return [
            ExportMetricsServiceRequest.FromString(body)
            for path, body in self._taken
            if path == b"/v1/metrics"
        ]

    @property
    def spans(self) -> list[Any]:
        """All that were taken, in their order."""
        return [
            span
            for request in self.traces
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]

    def wait_for(self, what: Callable[[], bool], *, seconds: float = 10) -> None:
        """Return once it is so; asked after each post."""
        with self._changed:
            assert self._changed.wait_for(what, seconds)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as lines:
                while first := lines.readline():
                    self._answer(connection, first.split()[1], lines)
        except OSError:
            return

    def _answer(self, connection: socket.socket, path: bytes, lines: Any) -> None:
        headers: dict[str, str] = {}
        while line := lines.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name.lower()] = value
        body = lines.read(int(headers["content-length"]))
        manner = self.manner
        with self._changed:
            self.posts += 1
            self.headers.append(headers)
            if manner == "takes":
                self._taken.append((path, body))
            self._changed.notify_all()
        if manner in _STATUS:
            connection.sendall(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % _STATUS[manner])
        elif manner == "dies while it answers":
            connection.sendall(b"HTTP/1.1 2")
            connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def collector(manner: Manner = "takes") -> Generator[OtlpCollector]:
    """One that is closed on the way out."""
    one = OtlpCollector(manner)
    try:
        yield one
    finally:
        one.close()


def attributes(of: Any) -> dict[str, Any]:
    """The attributes of a message as plain values."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in of.attributes}


@contextmanager
def no_collector() -> Generator[str]:
    """An address that refuses connections."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets it meanwhile
        yield f"http://127.0.0.1:{held.getsockname()[1]}"
