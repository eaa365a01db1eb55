"""Agents answer through the real worker, on both brokers: two learn, one never does, and workers die."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from schemas.answers import AgentAnswer, Escalation, Verdict
from schemas.bundle import ContextBundle
from schemas.citations import TEMPLATE_SECTIONS
from schemas.request import AssemblyRequest
from schemas.sync import SyncFile, SyncRequest, SyncResult
from schemas.tools import ToolRequest, ToolResult
from tests.support.cluster import Mode, Topics, longer_than, workers
from worker.client import ContextClient

pytestmark = [pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="session")]

SECTIONS = "\n".join(f"## {name}\nnone" for name in TEMPLATE_SECTIONS)
INVENTED = f"As [d:000001] says.\n{SECTIONS}"
IGNORED = f"Done.\n{SECTIONS}"


WIDE: dict[str, Any] = {
    "user_message": "Make charge_order in src/shop.py refuse a second charge.",
    "budget": {"total": 1_500, "layers": {"output": 20}},
    "required_tools": ["get_tests"],
    "deadline_ms": 60_000,
    "layer_timeouts_ms": {"graph": 50_000, "semantic": 50_000},
}
AGAIN = "".join(
    f"""

def charge_order_again_{number}(order):
    \"\"\"Refuse a second charge of the order, case {number}.\"\"\"
    return charge_order(order) or {number}
"""
    for number in range(40)
)
FILES = {
    "src/shop.py": f"def charge_order(order):\n    return order\n{AGAIN}",
    "src/vault.py": "def unlock_at_night(code):\n    return code\n",
}
"""What is asked for fills the window, and the vault is no part of it."""
LACKED = "src/vault.py::unlock_at_night"


def request_of(project: str, own: str, **more: Any) -> AssemblyRequest:
    decisions = [{"id": "D-7", "title": "Retries end at the deadline"}]
    return AssemblyRequest.model_validate(
        {
            "request_id": own,
            "project_id": project,
            "thread_id": own,
            "volk": "smith",
            "subject": "implement",
            "user_message": "Make the retry loop respect its deadline.",
            "session": {"handoff": {"decisions": decisions}},
            "deadline_ms": 20_000,
            **more,
        }
    )


def ids_of(bundle: ContextBundle) -> set[str]:
    """What it shows, by own ids."""
    assert bundle.citations is not None
    return {item.id for item in bundle.citations.items}


def answer_to(bundle: ContextBundle, content: str) -> AgentAnswer:
    return AgentAnswer(
        answer_id=f"answer-to-{bundle.request_id}",
        request_id=bundle.request_id,
        project_id=bundle.project_id,
        thread_id=bundle.thread_id,
        content=content,
    )


async def test_agents_that_learn_are_accepted_and_one_is_escalated_once_whatever_dies(
    mode: Mode, topics: Topics, namespace: str, tmp_path: Path
) -> None:
    project = f"p-{namespace}"
    client = ContextClient([mode.bootstrap], topic_prefix=mode.prefix)
    async with workers(mode, tmp_path) as start, client:
        # The first dies between the next bundle and the answer, the second between verdict and escalation.
        worker = await start(WORKER_FAILPOINTS="answer.after_retry_store=kill@answer-to-deaf")

        async def ask(own: str, **more: Any) -> ContextBundle:
            bundle = await client.assemble(request_of(project, own, **more), timeout_seconds=100)
            assert isinstance(bundle, ContextBundle), bundle
            return bundle

        async def say(bundle: ContextBundle, content: str) -> Verdict:
            verdict = await client.answer(answer_to(bundle, content), timeout_seconds=150)
            assert isinstance(verdict, Verdict), verdict
            return verdict

        async def next_of(bundle: ContextBundle, content: str) -> ContextBundle:
            verdict = await say(bundle, content)
            assert isinstance(verdict.bundle, ContextBundle), verdict
            assert verdict.bundle.parent_request_id == bundle.request_id
            return verdict.bundle

        second = await next_of(await ask("quick"), INVENTED)
        third = await next_of(second, IGNORED)
        assert third.citations is not None
        (must,) = third.citations.must_cite
        learned = await say(third, f"As [{must}] says.\n{SECTIONS}")
        assert (learned.verdict, learned.code, learned.attempt) == ("accepted", "complied", 3)

        files = tuple(SyncFile(path=path, content=text) for path, text in FILES.items())
        synced = await client.sync(
            SyncRequest(sync_id="s", project_id=project, files=files), timeout_seconds=100
        )
        assert isinstance(synced, SyncResult), synced
        tight = await ask("wide", after={"graph_version": synced.graph_version}, **WIDE)
        assert "src/shop.py::charge_order" in ids_of(tight), tight.layers
        assert LACKED not in ids_of(tight)
        lacking = await say(tight, f"{LACKED} is in the way.\n{SECTIONS}")
        assert (lacking.code, lacking.step, lacking.not_injected) == ("not_injected", "expand", (LACKED,))
        assert lacking.uncalled == ("get_tests",)
        assert isinstance(lacking.bundle, ContextBundle)
        assert LACKED in ids_of(lacking.bundle), (lacking.bundle.layers or {})["graph"]
        # It names no request, as an agent that speaks MCP does not: it counts for what was asked before.
        called = ToolRequest(
            call_id="c",
            project_id=project,
            thread_id="wide",
            tool="get_tests",
            arguments={"entity_id": LACKED},
        )
        assert isinstance(await client.call_tool(called, timeout_seconds=100), ToolResult)
        assert lacking.bundle.citations is not None
        cited = " ".join(f"[{short}]" for short in lacking.bundle.citations.must_cite)
        found = await say(lacking.bundle, f"{LACKED}, {cited}\n{SECTIONS}")
        assert (found.verdict, found.code, found.attempt) == ("accepted", "complied", 2)

        first = await ask("deaf")
        waiting = asyncio.create_task(next_of(first, IGNORED))
        assert await worker.ended() == -9
        worker = await start(WORKER_FAILPOINTS="answer.before_escalation=kill@answer-to-deaf~r2")
        last = await next_of(await waiting, IGNORED)
        escalated = await say(last, IGNORED)
        assert (escalated.verdict, escalated.why) == ("escalated", "attempts_used_up")
        assert await worker.ended() == -9
        await start()
        await topics.read_until("escalations", longer_than(0))
        # All of it once more: whoever asks again is told the same.
        for bundle in (first, last):
            again = await say(bundle, IGNORED)
            assert again.answer_id == f"answer-to-{bundle.request_id}"
        assert (await say(first, INVENTED)).code == "answer_id_reused"

    def bodies(published: Any) -> list[bytes]:
        return [record.value for record in published.records]

    published = bodies(await topics.read_all("escalations"))
    (escalation,) = set(published)
    read = Escalation.model_validate_json(escalation)
    assert {json.loads(value)["escalation_id"] for value in published} == {read.escalation_id}
    assert [one.step for one in read.attempts] == ["warn", "shrink", "escalate"]
    assert read.first_request_id == "deaf"
    judged = {
        value
        for value in bodies(await topics.read_all("verdicts"))
        if json.loads(value)["verdict"] != "refused"
    }
    assert sorted(json.loads(value)["request_id"] for value in judged) == [
        *("deaf", "deaf~r1", "deaf~r2"),
        *("quick", "quick~r1", "quick~r2"),
        *("wide", "wide~r1"),
    ]
    usages = set(bodies(await topics.read_all("usage")))
    assert sorted(json.loads(value)["request_id"] for value in usages) == [
        *("deaf", "deaf~r1", "deaf~r2"),
        *("quick", "quick~r1", "quick~r2"),
        *("wide", "wide~r1"),
    ]
    assert (await topics.read_all("dead-letters")).records == []
