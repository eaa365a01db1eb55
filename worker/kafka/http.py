"""The worker's HTTP side: health, metrics, and the bundles that are too large for a record.

Served by uvicorn inside the worker's own event loop. It installs no signal handlers: the worker decides when
to stop.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import socket
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from worker.errors import OutcomeDamaged, StoreUnavailable
from worker.kafka.health import MEANINGS
from worker.telemetry import Telemetry

_PROJECT_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BACKLOG: Final = 128
_CLOSE_SECONDS: Final = 5


class Healthy(Protocol):
    """Who knows how the worker fares; reading it costs no input or output."""

    @property
    def is_live(self) -> bool:
        """Whether waiting is still better than a restart."""
        ...

    @property
    def not_live(self) -> Sequence[str]:
        """Why not."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether records are taken and answered now."""
        ...

    @property
    def not_ready(self) -> Sequence[str]:
        """Why not."""
        ...


class BundleSource(Protocol):
    """What is used of the outcome store."""

    async def get_bundle(self, *, project_id: str, digest: str) -> bytes | None:
        """The bundle of that project with that SHA-256. Raises StoreUnavailable and OutcomeDamaged."""
        ...


def build_app(*, health: Healthy, store: BundleSource, telemetry: Telemetry, token: str | None) -> Starlette:
    """`/livez`, `/readyz`, `/metrics`, and `/projects/{project_id}/bundles/{digest}`.

    The last one asks for the bearer token where there is one; the others hold nothing of any project.
    """

    async def livez(_: Request) -> Response:
        return _state(is_good=health.is_live, reasons=health.not_live)

    async def readyz(_: Request) -> Response:
        return _state(is_good=health.is_ready, reasons=health.not_ready)

    async def metrics(_: Request) -> Response:
        return Response(telemetry.exposition(), media_type=_METRICS_TYPE)

    async def bundle(request: Request) -> Response:
        if token is not None and not bears_token(request, token):
            return JSONResponse({"error": "unauthorized"}, 401, {"WWW-Authenticate": "Bearer"})
        project_id, digest = request.path_params["project_id"], request.path_params["digest"]
        if not (_PROJECT_ID.fullmatch(project_id) and _DIGEST.fullmatch(digest)):
            return _not_found()
        try:
            body = await store.get_bundle(project_id=project_id, digest=digest)
        except StoreUnavailable:
            return JSONResponse({"error": "outcome_store_away"}, 503, {"Retry-After": "1"})
        except OutcomeDamaged:
            # No waiting brings it back, and a caller can do no more about it.
            return _not_found()
        return _not_found() if body is None else _immutable(request, body, digest)

    app = Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            Route("/projects/{project_id}/bundles/{digest}", bundle),
        ]
    )
    # A redirect names the host that the request claims to have meant; nothing here needs one.
    app.router.redirect_slashes = False
    return app


@asynccontextmanager
async def serve_http(
    app: Starlette, *, host: str, port: int, has_token: bool
) -> AsyncGenerator[tuple[str, int]]:
    """Serve `app` inside this event loop; gives the address that it listens on. Port 0 takes a free one.

    Connections are accepted from before this returns until the context ends. Raises ValueError where
    `host` is not loopback and there is no token, and OSError where the address cannot be had.
    """
    if not has_token and not is_loopback(host):
        msg = f"host {host!r} is not loopback, and without a token only loopback is served"
        raise ValueError(msg)
    listener = _listen(host, port)
    address: tuple[str, int] = listener.getsockname()[:2]
    server = _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=_CLOSE_SECONDS,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield address
    finally:
        server.should_exit = True
        await serving


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`, an address or `localhost`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the signals to the worker."""
        yield


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.settimeout(0.0)
    return listener


def _state(*, is_good: bool, reasons: Sequence[str]) -> Response:
    state: dict[str, object] = {"ok": is_good, "reasons": list(reasons)}
    if reasons:
        state["because"] = {reason: MEANINGS[reason] for reason in reasons}
    return JSONResponse(state, 200 if is_good else 503)


def bears_token(request: Request, token: str) -> bool:
    """Whether the request bears that token."""
    scheme, _, offered = request.headers.get("authorization", "").partition(" ")
    # Compared as bytes, in a time that does not depend on where they differ.
    is_same = hmac.compare_digest(offered.strip().encode("latin-1", "replace"), token.encode())
    return is_same and scheme.lower() == "bearer"


def _not_found() -> Response:
    return JSONResponse({"error": "not_found"}, 404)


def _immutable(request: Request, body: bytes, digest: str) -> Response:
    headers = {"ETag": f'"{digest}"', "Cache-Control": "private, max-age=31536000, immutable"}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if known & {headers["ETag"], "*"}:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)
