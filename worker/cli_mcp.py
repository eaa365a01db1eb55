"""The command that serves the on-demand tools to agents over MCP."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from worker.terminal import check_project, fail, load_settings, talk


def mcp(
    project: Annotated[
        str | None,
        typer.Option(
            "--project", help="The only project that calls may read; each names its own where absent."
        ),
    ] = None,
    thread: Annotated[
        str | None,
        typer.Option(
            "--thread", help="The only thread whose artifacts calls may read, beside the project's."
        ),
    ] = None,
    http: Annotated[
        bool, typer.Option("--http", help="Serve over streamable HTTP instead of standard input and output.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(help="With --http; WORKER_MCP__PORT where absent.", min=0, max=65_535)
    ] = None,
) -> None:
    """Serve the tools that an agent calls on demand: get_code, get_tests, search_code and the others.

    Over standard input and output for an agent on this machine, which starts the command itself; with --http
    for several. Every HTTP request must bear the token of WORKER_MCP__TOKEN or WORKER_MCP__TOKEN_FILE;
    without one only this machine is served. Graphs, state and bundles are read where the settings say that a
    worker keeps them.

    Example: `context-worker mcp --project shop --thread t-1`
    """
    from worker.mcp_server import Bounds  # noqa: PLC0415  # the SDK loads only where it is used
    from worker.wiring_mcp import run_mcp_http, run_mcp_stdio  # noqa: PLC0415  # as above

    if project is not None:
        check_project(project)
    if port is not None and not http:
        fail("--port belongs to --http")
    if thread is not None and project is None:
        fail("--thread belongs to a --project")
    bounds = Bounds(project_id=project, thread_id=thread)
    settings = load_settings()
    if http:
        asyncio.run(run_mcp_http(settings, bounds, port=port, on_ready=_say))
    else:
        asyncio.run(run_mcp_stdio(settings, bounds))


def _say(address: str) -> None:
    talk.print(f"serving {address}", markup=False)
