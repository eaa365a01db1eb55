from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas.tools import ToolError
from tests.support.handling import LIMITS, NOW, ROUTES, Bench, open_store
from tests.support.handling import record as request_record
from worker.errors import StoreUnavailable
from worker.failpoints import FailpointError, Failpoints
from worker.kafka.plain_handler import Door
from worker.kafka.records import Handled, InboundRecord
from worker.kafka.replies import Replies
from worker.kafka.tool_handler import ToolHandler
from worker.ports import Scope
from worker.retrieval.recording import CallsFor, notes_of
from worker.retrieval.toolbox import ToolAnswer
from worker.state.writing import StateWriter
from worker.stores.sqlite_state import SqliteStateStore

FIELDS: dict[str, Any] = {
    "call_id": "c-1",
    "project_id": "shop",
    "thread_id": "t-1",
    "request_id": "r-1",
    "tool": "get_code",
    "arguments": {"entity_id": "a.py::f"},
    "budget_tokens": 500,
}
RESULTS, DEAD = ROUTES.bundles, ROUTES.dead_letters


class ToolBench:
    """A handler over a toolbox that gives what `answer` says, or raises it."""

    def __init__(self, stores: Bench, state: SqliteStateStore) -> None:
        self.stores = stores
        self.state = state
        self.answer: ToolAnswer | BaseException = ToolAnswer(content="def f(): ...", tokens=5)
        self.calls: list[tuple[Scope, str, Mapping[str, Any], int | None, str | None]] = []
        self.writer = StateWriter(state, on_applied=lambda _project, _applied: None)

    async def call(
        self,
        scope: Scope,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        budget_tokens: int | None = None,
        request_id: str | None = None,
    ) -> ToolAnswer:
        self.calls.append((scope, tool, arguments, budget_tokens, request_id))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    async def handle(self, record: InboundRecord) -> Handled:
        return await self.handler().handle(record)

    def handler(self, failpoints: Failpoints | None = None) -> ToolHandler:
        telemetry = self.stores.telemetry
        points = failpoints or self.stores.failpoints
        door = Door(
            replies=Replies(
                self.stores, ROUTES, telemetry=telemetry, failpoints=points, ended=telemetry.tool_calls
            ),
            reply_topics=ROUTES.allowed_reply_topics,
            limits=LIMITS.body,
            telemetry=telemetry,
            failpoints=points,
        )
        return ToolHandler(door, tools=self, writer=self.writer)

    async def is_noted(self, request_id: str | None = "r-1", project: str = "shop") -> bool:
        """Of that request; None: of none, at the time of the record or after."""
        scope = Scope(project_id=project, thread_id="t-1")
        since = NOW - timedelta(seconds=1) if request_id is None else NOW + timedelta(days=1)
        calls = CallsFor(request_ids=(request_id,) if request_id else (), since=since, until=since)
        notes = [*notes_of(scope, subject="get_code", calls=calls)]
        return len((await self.state.heads(project, ["t-1"], event_ids=notes)).missing) < len(notes)

    def counted(self, outcome: str, code: str = "") -> float:
        labels = {"outcome": outcome, "code": code}
        return self.stores.telemetry.registry.get_sample_value("context_tool_calls_total", labels) or 0.0


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[ToolBench]:
    store, state = open_store(tmp_path / "outcomes.db"), SqliteStateStore(tmp_path / "state.db")
    yield ToolBench(Bench(store=store), state)
    await store.close()
    await state.close()


def record(body: object = None, **changes: Any) -> InboundRecord:
    return request_record(FIELDS if body is None else body, topic="context.tools", key=b"shop", **changes)


def fields(**changes: Any) -> dict[str, Any]:
    return {**FIELDS, **changes}


async def test_a_call_is_answered_within_its_scope_and_noted_before_its_reply(bench: ToolBench) -> None:
    assert await bench.handle(record(headers=(("correlation_id", b"x"),))) == Handled()
    assert bench.calls == [
        (Scope(project_id="shop", thread_id="t-1"), "get_code", {"entity_id": "a.py::f"}, 500, "r-1")
    ]
    (reply,) = bench.stores.published
    assert (reply.topic, reply.key) == (RESULTS, b"shop")
    assert dict(reply.headers)["correlation_id"] == b"x"
    assert dict(reply.headers)["context-kind"] == b"tool_result"
    assert json.loads(reply.value or b"") == {
        "schema_version": "1.0",
        "kind": "tool_result",
        "call_id": "c-1",
        "project_id": "shop",
        "tool": "get_code",
        "ok": True,
        "content": "def f(): ...",
        "tokens": 5,
        "truncated": False,
    }
    assert await bench.is_noted()
    assert not await bench.is_noted(project="bank")
    assert bench.counted("answered") == 1


async def test_calls_of_one_tool_for_one_request_are_one_note_however_often_they_come(
    bench: ToolBench,
) -> None:
    for number in range(4):
        await bench.handle(record(fields(call_id=f"c-{number}", arguments={"entity_id": f"{number}"})))
    assert [await bench.is_noted(request_id) for request_id in ("r-1", None, "r-2")] == [True, False, False]
    assert await bench.state.purge("shop") == 1


async def test_calls_for_no_request_are_three_notes_however_many_a_second_brings(bench: ToolBench) -> None:
    body = {name: value for name, value in FIELDS.items() if name != "request_id"}
    for number in range(4):
        await bench.handle(record({**body, "call_id": f"c-{number}"}))
    assert [await bench.is_noted(request_id) for request_id in ("r-1", None)] == [False, True]
    assert await bench.state.purge("shop") == 3


async def test_a_failed_call_is_answered_and_not_noted(bench: ToolBench) -> None:
    error = ToolError(code="not_found", message="nothing", near=("a.py::g",))
    bench.answer = ToolAnswer(error=error)
    assert await bench.handle(record()) == Handled()
    (value,) = bench.stores.values(RESULTS)
    assert value["ok"] is False
    assert value["error"] == {"code": "not_found", "message": "nothing", "near": ["a.py::g"]}
    assert not await bench.is_noted()
    assert bench.counted("failed", "not_found") == 1
    assert bench.stores.values(DEAD) == []


async def test_a_call_without_thread_and_request_is_answered_and_leaves_no_trace(bench: ToolBench) -> None:
    body = {name: value for name, value in FIELDS.items() if name not in {"thread_id", "request_id"}}
    await bench.handle(record(body))
    assert len(bench.stores.published) == 1
    assert await bench.state.projects() == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"\xff", "invalid_encoding"),
        (b"[1]", "invalid_json"),
        (fields(project_id="a/b"), "invalid_request"),
        (fields(arguments="entity_id=f"), "invalid_request"),
        (fields(budget_tokens=0), "invalid_request"),
        (fields(kind="request"), "invalid_request"),
        (fields(schema_version="2.0"), "unsupported_version"),
    ],
)
async def test_poison_is_a_dead_letter_and_a_rejection_with_the_id_of_the_call(
    bench: ToolBench, body: object, code: str
) -> None:
    handled = await bench.handle(record(body))
    assert handled.code == code
    (rejection,) = bench.stores.values(RESULTS)
    assert rejection["code"] == code
    assert rejection["request_id"] == ("c-1" if isinstance(body, dict) else None)
    assert [published.topic for published in bench.stores.published] == [DEAD, RESULTS]
    assert bench.calls == []
    assert bench.counted("rejected", code) == 1


async def test_a_defect_of_a_tool_is_a_dead_letter_that_quotes_nothing(bench: ToolBench) -> None:
    bench.answer = ZeroDivisionError("SECRET")
    handled = await bench.handle(record())
    assert handled.code == "internal_error"
    (rejection,) = bench.stores.values(RESULTS)
    assert "SECRET" not in json.dumps(rejection)
    assert [published.topic for published in bench.stores.published] == [DEAD, RESULTS]


async def test_a_state_store_that_is_away_is_the_dispatchers_to_wait_for(
    bench: ToolBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailable("state")

    monkeypatch.setattr(bench.state, "apply", away)
    with pytest.raises(StoreUnavailable):
        await bench.handle(record())
    assert bench.stores.published == []
    monkeypatch.undo()
    assert await bench.handle(record()) == Handled()
    assert await bench.is_noted()


async def test_a_call_that_dies_between_note_and_reply_is_answered_the_next_time(bench: ToolBench) -> None:
    armed = Failpoints("tool.before_reply=raise@c-1")
    handled = await bench.handler(armed).handle(record())
    assert handled.code == "internal_error"
    assert await bench.is_noted()
    assert await bench.handle(record()) == Handled()
    assert [value["kind"] for value in bench.stores.values(RESULTS)] == ["rejection", "tool_result"]


async def test_a_record_that_kills_workers_is_buried_without_being_decoded(bench: ToolBench) -> None:
    handled = await bench.handler().bury(record(), attempts=3)
    assert handled.code == "worker_died"
    (rejection,) = bench.stores.values(RESULTS)
    assert (rejection["code"], rejection["request_id"]) == ("worker_died", "c-1")
    met = await bench.handler().bury(record(), attempts=1, cause=FailpointError("x"))
    assert met.code == "internal_error"
    assert bench.calls == []


async def test_calls_are_answered_side_by_side(bench: ToolBench) -> None:
    calls = [record(fields(call_id=f"c-{number}")) for number in range(20)]
    assert await asyncio.gather(*map(bench.handle, calls)) == [Handled()] * 20
    assert {value["call_id"] for value in bench.stores.values(RESULTS)} == {f"c-{n}" for n in range(20)}
