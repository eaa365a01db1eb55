"""Tools through the real worker, on both brokers and both graph stores: an agent asks, and is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.bundle import ContextBundle, Rejection
from schemas.request import AssemblyRequest
from schemas.state import StateEvent
from schemas.sync import SyncFile, SyncRequest, SyncResult
from schemas.tools import ToolRequest, ToolResult
from tests.support.cluster import Mode, Topics, workers
from tests.support.tooling import FILES, FOREIGN
from worker.client import ContextClient

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="session")]

CHARGE = "src/shop.py::charge_order"


async def test_every_tool_answers_and_no_project_learns_of_another(
    mode: Mode, topics: Topics, namespace: str, tmp_path: Path
) -> None:
    shop, bank = f"shop-{namespace}", f"bank-{namespace}"
    client = ContextClient([mode.bootstrap], topic_prefix=mode.prefix, bundles_over_kafka=True)
    async with workers(mode, tmp_path) as start, client:
        # A bundle of any size comes by reference, so that it can be asked for in pieces.
        await start(WORKER_LIMITS__MAX_RECORD_BYTES="1001")
        for project, files in ((shop, FILES), (bank, FOREIGN)):
            sent = tuple(SyncFile(path=path, content=text) for path, text in files.items())
            indexed = await client.sync(
                SyncRequest(sync_id="s", project_id=project, files=sent), timeout_seconds=60
            )
            assert isinstance(indexed, SyncResult), indexed
        await client.publish_event(artifact(shop, thread="t1"))

        async def call(tool: str, *, project: str = shop, **arguments: Any) -> ToolResult:
            request = ToolRequest(
                call_id=f"{tool}-{len(str(arguments))}",
                project_id=project,
                thread_id="t1",
                tool=tool,
                arguments=arguments,
            )
            answer = await client.call_tool(request, timeout_seconds=60)
            assert isinstance(answer, ToolResult), answer
            assert (answer.call_id, answer.project_id) == (request.call_id, project)
            return answer

        for tool, name, said in (
            ("get_code", "entity_id", "def charge_order(order)"),
            ("get_context", "entity", "called by Function src/shop.py::checkout"),
            ("get_tests", "entity_id", "test_charging_twice_is_refused"),
            ("get_requirements", "entity_id", "An order is charged once"),
        ):
            answer = await call(tool, **{name: CHARGE})
            assert said in (answer.content or ""), answer
            assert answer.receipt is not None
            assert CHARGE in answer.receipt.nodes or tool in {"get_tests", "get_requirements"}
            assert answer.receipt.graph_version == 1
        assert "retry_payment" in ((await call("search_code", query="declined payment")).content or "")

        bundle = await client.assemble(request_of(shop), timeout_seconds=60)
        assert isinstance(bundle, ContextBundle), bundle
        assert "Who calls charge_order?" in str(bundle.messages)
        # The bundle waited for the event, so the artifact is there.
        assert "Be kind." in ((await call("get_artifact", artifact_id="rules")).content or "")

        missed = await call("get_code", entity_id="src/shop.py::chrage_order")
        assert missed.error is not None
        assert (missed.ok, missed.error.code, missed.error.near[0]) == (False, "not_found", CHARGE)
        foreign = await call("get_code", entity_id="src/vault.py::open_secret_vault")
        assert foreign.error is not None
        assert foreign.error.code == "not_found"
        assert "vault" not in "".join(foreign.error.near)
        theirs = await call("get_artifact", project=bank, artifact_id="rules")
        assert theirs.error is not None
        assert (theirs.error.code, theirs.error.near) == ("not_found", ())

        broken = await client.exchange_raw(
            json.dumps({"call_id": "c", "project_id": shop, "tool": 7}).encode(),
            topic=f"{mode.prefix}tools",
        )
        rejection = Rejection.model_validate_json(broken)
        assert (rejection.code, rejection.request_id) == ("invalid_request", "c")
        (letter,) = (await topics.read_until("dead-letters", lambda p: bool(p.records))).records
        assert json.loads(letter.value)["call_id"] == "c"


def artifact(project: str, *, thread: str) -> StateEvent:
    return StateEvent.model_validate(
        {
            "event_id": "e-1",
            "project_id": project,
            "thread_id": thread,
            "event": "artifact",
            "body": {"id": "rules", "stage": "setup", "type": "note", "content": "Be kind."},
        }
    )


def request_of(project: str) -> AssemblyRequest:
    return AssemblyRequest.model_validate(
        {
            "request_id": "r-1",
            "project_id": project,
            "thread_id": "t1",
            "volk": "smith",
            "subject": "implement",
            "user_message": "Who calls charge_order?",
            "after": {"event_ids": ["e-1"]},
            "deadline_ms": 20_000,
            "layer_timeouts_ms": {"artifacts": 10_000, "graph": 10_000},
        }
    )
