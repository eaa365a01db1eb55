"""The on-demand tools as an MCP server: the same functions, arguments and results as over Kafka.

Over standard input and output it serves one agent, and nothing but the protocol is written there. Over
streamable HTTP it serves whoever bears the token, and without a token loopback alone.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.tools import ToolError, ToolRequest, ToolResult
from worker.errors import StoreUnavailable
from worker.kafka.http import bears_token, serve_http
from worker.retrieval.serving import serve_call
from worker.retrieval.toolbox import Toolbox, problems_of
from worker.state.writing import StateWriter

PATH: Final = "/mcp"

_BUDGET: Final = {"type": "integer", "minimum": 1, "description": "Most tokens that the answer may take."}
_PROJECT: Final = {"type": "string", "description": "The project to read."}
_THREAD: Final = {
    "type": "string",
    "description": "The thread whose artifacts are read beside the project's.",
}
_REQUEST: Final = {
    "type": "string",
    "description": "The request whose prompt shows the short ids, and which the call is noted for.",
}
_INSTRUCTIONS: Final = (
    "Reads the code graph, requirements, tests and artifacts of a project. Entities are named by id"
    " (`path::name`), path or unambiguous name; an unknown one is answered with ids that are near."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What every call of one server is held to; where a value is absent, each call names its own."""

    project_id: str | None = None
    thread_id: str | None = None


def build_server(
    toolbox: Toolbox, *, writer: StateWriter, bounds: Bounds, version: str, now: Callable[[], datetime]
) -> Server[dict[str, Any]]:
    """A server of all tools of the toolbox; nothing is served yet."""
    own = _own_properties(bounds)
    offered = [
        types.Tool(
            name=spec.name,
            description=spec.description,
            input_schema=_with_own(spec.schema, own, bounds),
            annotations=types.ToolAnnotations(
                read_only_hint=True, idempotent_hint=True, open_world_hint=False
            ),
        )
        for spec in toolbox.specs
    ]

    async def list_tools(
        context: ServerRequestContext[dict[str, Any]], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        del context, params
        return types.ListToolsResult(tools=offered)

    async def call_tool(
        context: ServerRequestContext[dict[str, Any]], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        del context
        try:
            request = _read_call(params, own, bounds)
            result = await serve_call(request, tools=toolbox, writer=writer, answered_at=now())
        except ValidationError as error:
            result = _failed(params.name, ToolError(code="invalid_arguments", message=problems_of(error)))
        except StoreUnavailable:
            note = "that the tool was called cannot be noted now; call again later"
            result = _failed(params.name, ToolError(code="unavailable", message=note))
        return _answer(result)

    return Server(
        "context-worker",
        version=version,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve_stdio(server: Server[dict[str, Any]]) -> None:
    """Serve the process's own input and output until the input ends."""
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


@asynccontextmanager
async def serve_streamable_http(
    server: Server[dict[str, Any]], *, host: str, port: int, token: str | None
) -> AsyncGenerator[str]:
    """Serve over HTTP while the context lasts; gives the address. Port 0 takes a free one.

    Raises ValueError where `host` is not loopback and there is no token, OSError where it cannot be had.
    """
    # Calls depend on nothing that went before, so there is no session to keep, and any process can answer.
    app = server.streamable_http_app(
        streamable_http_path=PATH, json_response=True, stateless_http=True, host=host
    )
    if token is not None:
        app.add_middleware(_BearersOnly, token=token)
    async with (
        # Its task group, inside, would wrap the errors of an address that cannot be had.
        serve_http(app, host=host, port=port, has_token=token is not None) as (address, bound),
        server.session_manager.run(),
    ):
        yield f"http://{f'[{address}]' if ':' in address else address}:{bound}{PATH}"


class _BearersOnly:
    """Lets through what bears the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not bears_token(Request(scope), self._token):
            refused = JSONResponse({"error": "unauthorized"}, 401, {"WWW-Authenticate": "Bearer"})
            await refused(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _own_properties(bounds: Bounds) -> dict[str, Mapping[str, Any]]:
    """What a call may name beside the tool's arguments."""
    own: dict[str, Mapping[str, Any]] = {}
    if bounds.project_id is None:
        own["project_id"] = _PROJECT
    if bounds.thread_id is None:
        own["thread_id"] = _THREAD
    return {**own, "request_id": _REQUEST, "budget_tokens": _BUDGET}


def _with_own(
    schema: Mapping[str, Any], own: Mapping[str, Mapping[str, Any]], bounds: Bounds
) -> dict[str, Any]:
    required = [*schema.get("required", ()), *(["project_id"] if bounds.project_id is None else [])]
    return {**schema, "properties": {**schema["properties"], **own}, "required": required}


def _read_call(params: types.CallToolRequestParams, own: Mapping[str, Any], bounds: Bounds) -> ToolRequest:
    """The call as over Kafka. Raises ValidationError."""
    arguments = dict(params.arguments or {})
    named = {name: arguments.pop(name) for name in own if name in arguments}
    fixed = {"project_id": bounds.project_id, "thread_id": bounds.thread_id}
    return ToolRequest.model_validate(
        {
            "call_id": uuid4().hex,
            "tool": params.name,
            "arguments": arguments,
            **{name: value for name, value in fixed.items() if value is not None},
            **named,
        }
    )


def _failed(tool: str, error: ToolError) -> ToolResult:
    # Nothing of it but the error is shown: what could not be read has no ids to give back.
    return ToolResult.model_construct(tool=tool, ok=False, error=error, tokens=0, truncated=False)


def _answer(result: ToolResult) -> types.CallToolResult:
    shown = {"ok", "error", "tokens", "truncated", "next_offset", "receipt"}
    structured = result.model_dump(mode="json", include=shown, exclude_none=True)
    return types.CallToolResult(
        content=[types.TextContent(text=_text_of(result))],
        structured_content=structured,
        is_error=not result.ok,
    )


def _text_of(result: ToolResult) -> str:
    """What a model reads: the content, or what to do better."""
    error = result.error
    if error is None:
        return result.content or ""
    near = f"\nNear: {', '.join(error.near)}" if error.near else ""
    return f"{error.code}: {error.message}{near}"
