"""Composition by hand, the MCP server: the same stores, state and tools as a worker's, without a broker."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from importlib.metadata import version
from typing import Any

import structlog
from mcp.server import Server

from worker.fusion import secrets
from worker.mcp_server import Bounds, build_server, serve_stdio, serve_streamable_http
from worker.settings import Settings, read_secret
from worker.telemetry import Telemetry
from worker.wiring import load_counters, utc_now
from worker.wiring_graph import build_graph
from worker.wiring_kafka import build_store
from worker.wiring_state import build_state
from worker.wiring_tools import build_toolbox

log = structlog.get_logger()


@asynccontextmanager
async def open_mcp(settings: Settings, bounds: Bounds) -> AsyncGenerator[Server[dict[str, Any]]]:
    """A server of the tools, ready to be served; what it reads is closed with it."""
    # Half a second each, which the first call should not pay.
    await asyncio.to_thread(load_counters, settings)
    await asyncio.to_thread(secrets.prepare)
    telemetry = Telemetry()
    async with AsyncExitStack() as stack:
        state = await stack.enter_async_context(aclosing(build_state(settings, telemetry)))
        graph = await stack.enter_async_context(aclosing(build_graph(settings, telemetry, state.states)))
        store = build_store(settings)
        stack.push_async_callback(store.close)
        toolbox = build_toolbox(settings, graph=graph, state=state, bundles=store, telemetry=telemetry)
        if bounds.project_id is not None:
            loading = asyncio.create_task(graph.snapshots.preload([bounds.project_id]))
            stack.callback(loading.cancel)
        yield build_server(
            toolbox, writer=state.writer, bounds=bounds, version=version("context-worker"), now=utc_now
        )


async def run_mcp_stdio(settings: Settings, bounds: Bounds) -> int:
    """Serve the process's own input and output until the input ends; the exit code."""
    async with open_mcp(settings, bounds) as server:
        await serve_stdio(server)
    return 0


async def run_mcp_http(
    settings: Settings, bounds: Bounds, *, port: int | None, on_ready: Callable[[str], None]
) -> int:
    """Serve over HTTP until SIGTERM or SIGINT; the exit code. `on_ready` is told the address."""
    mcp = settings.mcp
    token = read_secret(mcp.token, mcp.token_file)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with open_mcp(settings, bounds) as server:
        own_port = mcp.port if port is None else port
        async with serve_streamable_http(server, host=mcp.host, port=own_port, token=token) as address:
            log.info("mcp.serving", address=address, has_token=token is not None)
            on_ready(address)
            await stopped.wait()
    return 0
