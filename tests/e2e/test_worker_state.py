"""Events in, bundles out: real workers on both brokers, killed between an event's store and its offset."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from schemas.bundle import ContextBundle
from schemas.codes import CONTENT_LAYERS
from schemas.request import AssemblyRequest
from schemas.state import StateEvent
from tests.support.cluster import Mode, Topics, covers, request, workers
from worker.client import ContextClient
from worker.demo_stages import BEFORE, STAGES, STAGES_PROJECT, events_of, request_of

pytestmark = [pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="session")]

LAYERS = ("mission", "plan", "memory", "artifacts", "task")


def event(number: int, kind: str, body: dict[str, Any], *, thread: str = "t-1") -> dict[str, Any]:
    """Of a project that `told_by` names."""
    return {
        "event_id": f"e{number}",
        "thread_id": thread,
        "event": kind,
        "occurred_at": f"2026-01-02T03:{number // 60:02}:{number % 60:02}Z",
        "body": body,
    }


STORY = [
    event(1, "goal_set", {"id": "g", "statement": "Calls end in time"}),
    event(
        2, "plan_set", {"plan_id": "plan", "steps": [{"id": "1", "title": "A"}, {"id": "2", "title": "B"}]}
    ),
    event(3, "step_advanced", {"plan_id": "plan", "step_id": "1"}),
    event(4, "memory", {"id": "m", "text": "Retries are capped."}),
    event(5, "message", {"role": "user", "content": "We decided to keep the first error."}),
    event(6, "artifact", {"id": "a", "stage": "design", "type": "doc", "content": "A note."}),
    event(7, "test_result", {"test_id": "t", "status": "failed", "message": "boom"}),
    event(8, "decision", {"id": "d", "title": "Deadlines are absolute"}),
]
ALL = [one["event_id"] for one in STORY]


@pytest.fixture
def project(namespace: str) -> str:
    """A project of this test alone: a Neo4j outlives it."""
    return f"p-{namespace}"


def told_by(project: str) -> list[dict[str, Any]]:
    return [{**one, "project_id": project} for one in STORY]


def ask(number: int, event_ids: list[str], *, project: str) -> dict[str, Any]:
    return request(
        number,
        project=project,
        user_message="Do it.",
        thread_id="t-1",
        # Without ids to cite things by, which differ by project: two projects' prompts are compared.
        include=["messages", "layers"],
        after={"event_ids": event_ids},
        as_of="2026-01-02T04:00:00Z",
        deadline_ms=60_000,
        layer_timeouts_ms=dict.fromkeys(CONTENT_LAYERS, 50_000),
    )


async def answer(topics: Topics, number: int) -> dict[str, Any]:
    published = await topics.read_until("bundles", covers({f"r{number}"}))
    return next(
        body
        for body in map(json.loads, (r.value for r in published.records))
        if body["request_id"] == f"r{number}"
    )


def told(bundle: dict[str, Any]) -> str:
    reports = {layer: bundle["layers"][layer] for layer in LAYERS}
    assert {layer: report["status"] for layer, report in reports.items()} == dict.fromkeys(LAYERS, "ok"), (
        reports
    )
    return bundle["messages"][-1]["content"]


async def test_what_was_published_is_known_to_the_next_request(
    mode: Mode, topics: Topics, project: str, tmp_path: Path
) -> None:
    async with workers(mode, tmp_path) as start:
        await start()
        # The request is published first: it waits for the events that it names.
        await topics.send(ask(1, ALL, project=project))
        for one in reversed(told_by(project)):
            await topics.send(one, topic="state")
        text = told(await answer(topics, 1))
    for line in (
        "Calls end in time",
        "2 B (pending)",
        "Retries are capped.",
        "first error",
        "A note.",
        "boom",
    ):
        assert line in text
    assert "D" in text
    assert (await topics.read_all("dead-letters")).records == []


@pytest.mark.parametrize("point", ["state.before_store", "state.after_store"])
async def test_a_worker_killed_around_the_store_of_an_event_changes_nothing(
    mode: Mode, topics: Topics, project: str, tmp_path: Path, point: str
) -> None:
    for one in told_by(project):
        await topics.send(one, topic="state")
    async with workers(mode, tmp_path) as start:
        doomed = await start(WORKER_FAILPOINTS=f"{point}=kill@e4")
        assert await doomed.ended() == -9
        await start()
        await topics.send(ask(1, ALL, project=project))
        killed = told(await answer(topics, 1))
        # The same events, told by nobody who died, of another project.
        for one in STORY:
            other = {**one, "project_id": f"q{project}", "event_id": f"q-{one['event_id']}"}
            await topics.send(other, topic="state", key="q")
        await topics.send(ask(2, [f"q-{one}" for one in ALL], project=f"q{project}"), key="q")
        untouched = told(await answer(topics, 2))
    assert _without_fence(killed) == _without_fence(untouched)
    assert (await topics.read_all("dead-letters")).records == []


def _without_fence(text: str) -> list[str]:
    """The lines; the fence differs by project."""
    return [line for line in text.splitlines() if "[[" not in line and "reference data" not in line]


async def test_the_run_in_four_stages_hands_everything_on(mode: Mode, topics: Topics, tmp_path: Path) -> None:
    async with (
        workers(mode, tmp_path) as start,
        ContextClient([mode.bootstrap], topic_prefix=mode.prefix) as client,
    ):
        await start()
        published: list[str] = []
        texts: list[str] = []
        tells, prefix = BEFORE, "start"
        for minute, stage in enumerate(STAGES, start=1):
            events = events_of(tells, prefix=prefix, minute=minute)
            project = f"{STAGES_PROJECT}-{mode.group}"
            for one in events:
                own = one.root.model_copy(update={"project_id": project})
                await client.publish_event(StateEvent(own))
            published += [one.root.event_id for one in events]
            wanted = {**request_of(stage, published), "project_id": project, "deadline_ms": 60_000}
            wanted["layer_timeouts_ms"] = dict.fromkeys(CONTENT_LAYERS, 50_000)
            bundle = await client.assemble(AssemblyRequest.model_validate(wanted), timeout_seconds=100)
            assert isinstance(bundle, ContextBundle)
            assert bundle.status == "complete"
            assert bundle.messages is not None
            texts.append(bundle.messages[-1].content)
            tells, prefix = stage.tells, stage.name
    assert "Deadlines are absolute" not in texts[0]
    assert "1 Deadline object (pending)" in texts[1]
    assert "2 Retry loop ends at the deadline (pending)" in texts[2]
    assert "Attempts end at the deadline, not at three." in texts[2]
    assert "assert 1.2 <= 1.0" in texts[3]
    assert "D-2: An attempt needs its own minimum" in texts[3]


async def test_two_workers_and_every_event_thrice_end_in_one_state(
    mode: Mode, topics: Topics, project: str, tmp_path: Path
) -> None:
    async with workers(mode, tmp_path) as start:
        await asyncio.gather(start(), start())
        story = told_by(project)
        for one in [*story, *reversed(story), *story]:
            # Partitions of their own, so that both workers apply events of one thread.
            await topics.send(one, topic="state", key=f"p#{one['event_id']}")
        await topics.send(ask(1, ALL, project=project))
        text = told(await answer(topics, 1))
    assert text.count("Retries are capped.") == 1
    assert text.count("- t: boom") == 1
