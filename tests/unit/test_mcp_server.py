"""The MCP server as the SDK's own client sees it: over a pipe to the real command, and over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent

from tests.support.tooling import Shop, fill, open_shop
from worker.mcp_server import Bounds, build_server, serve_streamable_http
from worker.retrieval.recording import CallsFor

TOKEN = "correct horse"  # noqa: S105  of this test alone
NOW = datetime(2026, 3, 1, tzinfo=UTC)
CHARGE = "src/shop.py::charge_order"
SHOP = Bounds(project_id="shop", thread_id="t1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shop")
    asyncio.run(fill(made))
    return made


@pytest.fixture
async def shop(folder: Path) -> AsyncGenerator[Shop]:
    async with open_shop(folder) as opened:
        yield opened


def server_of(shop: Shop, bounds: Bounds = SHOP) -> Any:
    return build_server(shop.toolbox, writer=shop.writer, bounds=bounds, version="1", now=lambda: NOW)


def text_of(result: Any) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def play(client: Client) -> None:
    """What an agent of thread t1 of the shop can rely on, whichever way it came."""
    offered = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert {"get_code", "get_context", "get_artifact", "search_code", "get_bundle"} <= offered.keys()
    assert offered["get_code"].input_schema["required"] == ["entity_id"]
    assert "project_id" not in offered["get_code"].input_schema["properties"]
    code = await client.call_tool("get_code", {"entity_id": CHARGE, "budget_tokens": 500})
    assert not code.is_error
    assert "retry_payment(order" in text_of(code)
    assert code.structured_content["receipt"]["nodes"] == [CHARGE]
    assert code.structured_content["tokens"] <= 500
    named = await client.call_tool("get_code", {"entity_id": CHARGE, "request_id": "r-9"})
    assert text_of(named) == text_of(code)
    found = await client.call_tool("search_code", {"query": "declined payment", "limit": 1})
    assert "## Function" in text_of(found)
    missed = await client.call_tool("get_code", {"entity_id": "chrage_order"})
    assert missed.is_error
    assert CHARGE in text_of(missed)
    foreign = await client.call_tool("get_code", {"entity_id": "src/vault.py::open_secret_vault"})
    assert foreign.is_error
    assert "vault.py::" not in text_of(foreign).partition("Near:")[2]
    for tool, arguments in (
        ("get_context", {"entity": CHARGE, "depth": 10**9}),
        ("get_code", {"entity_id": CHARGE, "project_id": "bank"}),
        ("get_code", {"entity_id": CHARGE, "budget_tokens": "many"}),
    ):
        wrong = await client.call_tool(tool, arguments)
        assert wrong.is_error, tool
        assert "invalid_arguments" in text_of(wrong), text_of(wrong)
    unknown = await client.call_tool("rm_rf", {})
    assert "unknown_tool" in text_of(unknown)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_over_http_with_the_token_every_tool_is_there(shop: Shop, mode: Any) -> None:
    async with serve_streamable_http(server_of(shop), host="127.0.0.1", port=0, token=TOKEN) as address:
        http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"})
        async with http, Client(streamable_http_client(address, http_client=http), mode=mode) as client:
            await play(client)
    for request_id, since, noted in (
        (None, NOW, ["get_code", "search_code"]),
        (None, NOW + timedelta(seconds=1), []),
        ("r-9", NOW + timedelta(seconds=1), ["get_code"]),
        ("r-8", NOW + timedelta(seconds=1), []),
    ):
        calls = CallsFor(request_ids=(request_id,) if request_id else (), since=since, until=since)
        assert sorted(await shop.called(calls)) == noted, (request_id, since)
        assert not await shop.called(calls, project="bank")


@pytest.mark.parametrize("header", [None, "Bearer wrong", f"Basic {TOKEN}", "Bearer"])
async def test_over_http_nothing_is_said_without_the_token(shop: Shop, header: str | None) -> None:
    async with (
        serve_streamable_http(server_of(shop), host="127.0.0.1", port=0, token=TOKEN) as address,
        httpx2.AsyncClient(headers={} if header is None else {"Authorization": header}) as http,
    ):
        answer = await http.post(address, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert (answer.status_code, answer.json()) == (401, {"error": "unauthorized"})


async def test_without_a_token_only_loopback_is_served(shop: Shop) -> None:
    with pytest.raises(ValueError, match="loopback"):
        async with serve_streamable_http(server_of(shop), host="0.0.0.0", port=0, token=None):  # noqa: S104  it is refused
            pass
    async with (
        serve_streamable_http(server_of(shop), host="127.0.0.1", port=0, token=None) as address,
        Client(address) as client,
    ):
        assert (await client.list_tools()).tools


async def test_a_page_of_another_site_cannot_ask_the_loopback_server(shop: Shop) -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    async with (
        serve_streamable_http(server_of(shop), host="127.0.0.1", port=0, token=None) as address,
        httpx2.AsyncClient(headers={"Accept": "application/json, text/event-stream"}) as http,
    ):
        # A name of theirs that leads here, and their page's own origin.
        for header in ({"Host": "elsewhere.example"}, {"Origin": "https://elsewhere.example"}):
            answer = await http.post(address, json=asked, headers=header)
            assert answer.status_code in {403, 421}, header
        assert (await http.post(address, json=asked)).status_code == 200


async def test_without_a_project_each_call_names_its_own_and_sees_no_other(shop: Shop) -> None:
    async with Client(server_of(shop, Bounds())) as client:
        (tool,) = [tool for tool in (await client.list_tools()).tools if tool.name == "get_code"]
        assert tool.input_schema["required"] == ["entity_id", "project_id"]
        vault = {"entity_id": "open_secret_vault"}
        assert not (await client.call_tool("get_code", {**vault, "project_id": "bank"})).is_error
        assert (await client.call_tool("get_code", {**vault, "project_id": "shop"})).is_error
        for project in (None, "a/b", 7):
            wrong = await client.call_tool("get_code", {**vault, "project_id": project})
            assert "invalid_arguments" in text_of(wrong)
        assert "invalid_arguments" in text_of(await client.call_tool("get_code", vault))


async def test_over_a_pipe_the_command_speaks_nothing_but_the_protocol(folder: Path, tmp_path: Path) -> None:
    environment = {
        "WORKER_GRAPH__SQLITE_PATH": str(folder / "graph.db"),
        "WORKER_STATE__SQLITE_PATH": str(folder / "state.db"),
        "WORKER_OUTCOMES__SQLITE_PATH": str(tmp_path / "outcomes.db"),
        "WORKER_LOG_LEVEL": "debug",
        "PATH": os.environ["PATH"],
    }
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "worker", "mcp", "--project", "shop", "--thread", "t1"],
        env=environment,
        cwd=str(Path(__file__).parents[2]),
    )
    said = tmp_path / "stderr.txt"
    with said.open("w") as errors:
        # A line that is no message of the protocol would reach this handler as an error.
        stray: list[object] = []

        async def on_message(message: object) -> None:
            stray.append(message)

        async with Client(stdio_client(command, errlog=errors), message_handler=on_message) as client:
            await play(client)
            artifact = await client.call_tool("get_artifact", {"artifact_id": "house-rules"})
            assert "Be kind." in text_of(artifact)
    assert not [message for message in stray if isinstance(message, Exception)]
    assert "Traceback" not in said.read_text()
