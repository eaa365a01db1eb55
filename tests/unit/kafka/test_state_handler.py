from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.handling import LIMITS, NOW_MS, ROUTES, Bench, broken, open_store
from tests.support.handling import record as request_record
from tests.support.state_events import BODIES, held
from worker.errors import StoreUnavailable
from worker.kafka.plain_handler import Door
from worker.kafka.records import Handled, InboundRecord
from worker.kafka.replies import Replies
from worker.kafka.state_handler import StateHandler
from worker.state.records import StateRecord
from worker.state.store import Applied, Place
from worker.state.writing import StateWriter
from worker.stores.sqlite_state import SqliteStateStore

FIELDS: dict[str, Any] = {
    "event_id": "e-1",
    "project_id": "shop",
    "thread_id": "t-1",
    "event": "goal_set",
    "occurred_at": "2026-03-01T11:59:00Z",
    "body": {"id": "g", "statement": "Requests end in time"},
}
GOALS = Place("t-1", "session")
DEAD, BUNDLES = ROUTES.dead_letters, ROUTES.bundles


class Store(SqliteStateStore):
    """The embedded store; `batches` is what was applied together, `error` what it raises next."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.batches: list[list[str]] = []
        self.error: Exception | None = None
        self.poison: str | None = None

    async def apply(self, project_id: str, records: Sequence[StateRecord]) -> Applied:
        self.batches.append([record.event_id for record in records])
        if self.error is not None:
            raise self.error
        if self.poison in {record.event_id for record in records}:
            raise ZeroDivisionError("SECRET")
        return await super().apply(project_id, records)


class StateBench:
    def __init__(self, stores: Bench, store: Store) -> None:
        self.stores = stores
        self.store = store
        self.told: list[tuple[str, Applied]] = []
        telemetry = stores.telemetry
        door = Door(
            replies=Replies(
                stores,
                ROUTES,
                telemetry=telemetry,
                failpoints=stores.failpoints,
                ended=telemetry.state_events,
            ),
            reply_topics=ROUTES.allowed_reply_topics,
            limits=LIMITS.body,
            telemetry=telemetry,
            failpoints=stores.failpoints,
        )
        self.handler = StateHandler(
            door,
            writer=StateWriter(
                store, on_applied=lambda project, applied: self.told.append((project, applied))
            ),
        )

    async def session(self) -> bytes:
        return (await held(self.store, "shop", "t-1")).get(GOALS, b"")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[StateBench]:
    store, states = open_store(tmp_path / "outcomes.db"), Store(tmp_path / "state.db")
    yield StateBench(Bench(store=store), states)
    await store.close()
    await states.close()


def record(body: object = None, **changes: Any) -> InboundRecord:
    topic = changes.pop("topic", "context.state")
    return request_record(FIELDS if body is None else body, topic=topic, key=b"shop", **changes)


def fields(**changes: Any) -> dict[str, Any]:
    return {**FIELDS, **changes}


async def test_an_event_is_durable_when_it_is_handled_and_nobody_is_answered(bench: StateBench) -> None:
    assert await bench.handler.handle(record()) == Handled()
    assert b"Requests end in time" in await bench.session()
    assert bench.stores.published == []
    ((project, applied),) = bench.told
    assert (project, applied.new, applied.touched) == ("shop", 1, {GOALS})


async def test_a_redelivery_changes_nothing(bench: StateBench) -> None:
    await bench.handler.handle(record())
    before = await bench.session()
    assert await bench.handler.handle(record(offset=99, timestamp_ms=NOW_MS)) == Handled()
    assert await bench.session() == before
    assert bench.told[1][1] == Applied(repeated=1)


async def test_events_that_come_together_are_written_together_each_project_for_itself(
    bench: StateBench,
) -> None:
    events = [
        record(fields(event_id=f"e-{n}", project_id=f"p{n % 2}", body={"id": f"g{n}", "statement": "s"}))
        for n in range(40)
    ]
    assert await asyncio.gather(*map(bench.handler.handle, events)) == [Handled()] * 40
    assert len(bench.store.batches) <= 4
    written = [event_id for batch in bench.store.batches for event_id in batch]
    assert sorted(written) == sorted(f"e-{n}" for n in range(40))


async def test_a_store_that_is_away_is_the_dispatchers_to_wait_for(bench: StateBench) -> None:
    bench.store.error = StoreUnavailable("state")
    results = await asyncio.gather(
        *(bench.handler.handle(record(fields(event_id=f"e-{n}"))) for n in range(3)), return_exceptions=True
    )
    assert [type(result) for result in results] == [StoreUnavailable] * 3
    assert bench.stores.published == []
    bench.store.error = None
    assert await bench.handler.handle(record()) == Handled()


async def test_a_defect_that_one_event_meets_is_its_own(bench: StateBench) -> None:
    bench.store.poison = "e-1"
    events = [record(fields(event_id=f"e-{n}", body={"id": f"g{n}", "statement": "s"})) for n in range(4)]
    results = await asyncio.gather(*map(bench.handler.handle, events))
    assert [result.code for result in results] == [None, "internal_error", None, None]
    (letter,) = bench.stores.on(DEAD)
    assert letter.value == events[1].value
    assert b"ZeroDivisionError" in dict(letter.headers)["context-dead-traceback"]
    (reply,) = bench.stores.values(BUNDLES)
    assert (reply["code"], reply["request_id"], reply["project_id"]) == ("internal_error", "e-1", "shop")
    assert "SECRET" not in json.dumps(reply)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"\xff", "invalid_encoding"),
        (b'{"event_id": "e-1", "project_id": "shop", "x": "\\u0000"}', "invalid_encoding"),
        (b"[" * 500, "too_large"),
        (b'{"a": "' + b"x" * 200_000 + b'"}', "too_large"),
        (fields(schema_version="2.0"), "unsupported_version"),
        (fields(event="unheard_of"), "invalid_request"),
        (fields(kind="request"), "invalid_request"),
        (fields(project_id="no spaces"), "invalid_request"),
        (fields(event_id=""), "invalid_request"),
        (fields(event_id="a\x01b"), "invalid_request"),
        (fields(occurred_at=1_700_000_000), "invalid_request"),
        (fields(occurred_at="yesterday"), "invalid_request"),
        (fields(body={"id": "g"}), "invalid_request"),
        (fields(body=None), "invalid_request"),
        ({key: value for key, value in FIELDS.items() if key != "body"}, "invalid_request"),
        (fields(event="step_advanced", body={"plan_id": "p"}), "invalid_request"),
        (fields(event="test_result", body={"test_id": "t", "status": "maybe"}), "invalid_request"),
        (fields(event="tool_call", body={"tool": "t", "files": ["f"] * 101}), "invalid_request"),
    ],
)
async def test_what_is_no_event_is_kept_and_answered_and_the_next_one_is_taken(
    bench: StateBench, body: object, code: str
) -> None:
    bad = record(body)
    assert (await bench.handler.handle(bad)).code == code
    (letter,) = bench.stores.on(DEAD)
    assert (letter.value, dict(letter.headers)["context-dead-code"]) == (bad.value, code.encode())
    assert bench.stores.values(BUNDLES)[0]["code"] == code
    assert bench.store.batches == []
    assert await bench.handler.handle(record()) == Handled()
    labels = {"outcome": "rejected", "code": code}
    assert bench.stores.telemetry.registry.get_sample_value("context_state_events_total", labels) == 1


async def test_a_reply_topic_that_is_not_allowed_is_refused_and_the_event_is_not_taken(
    bench: StateBench,
) -> None:
    handled = await bench.handler.handle(record(headers=(("reply_to", b"elsewhere"),)))
    assert handled.code == "reply_to_not_allowed"
    assert bench.store.batches == []
    allowed = record(b"{", headers=(("reply_to", b"team.replies"),))
    await bench.handler.handle(allowed)
    assert [item.topic for item in bench.stores.published] == [BUNDLES, DEAD, "team.replies"]


async def test_naive_and_unknown_are_forgiven_and_counted(bench: StateBench) -> None:
    odd = fields(occurred_at="2026-03-01T11:59:00", colour="red")
    assert await bench.handler.handle(record(odd)) == Handled()
    registry = bench.stores.telemetry.registry
    assert registry.get_sample_value("context_unknown_fields_total") == 1
    assert registry.get_sample_value("context_naive_times_total") == 1


async def test_a_buried_event_is_a_dead_letter_with_its_id(bench: StateBench) -> None:
    assert await bench.handler.bury(record(), attempts=3) == Handled(code="worker_died")
    (letter,) = bench.stores.on(DEAD)
    assert dict(letter.headers)["context-dead-attempts"] == b"3"
    assert bench.stores.values(BUNDLES)[0]["request_id"] == "e-1"
    cause = ZeroDivisionError("SECRET")
    assert await bench.handler.bury(record(), attempts=2, cause=cause) == Handled(code="internal_error")


async def test_a_defect_of_the_burial_itself_leaves_dead_letter_and_reply(
    bench: StateBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.kafka.received.read_ids", broken)
    assert await bench.handler.bury(record(), attempts=3) == Handled(code="worker_died")
    (letter,) = bench.stores.on(DEAD)
    assert letter.value == record().value
    assert b"ZeroDivisionError" in dict(letter.headers)["context-dead-traceback"]
    assert bench.stores.values(BUNDLES)[0]["code"] == "worker_died"


async def test_a_large_artifact_is_taken_without_holding_the_event_loop(bench: StateBench) -> None:
    content = "All work and no play. " * 4_000
    body = {"id": "a", "stage": "s", "type": "t", "content": content}
    with blockbuster_ctx():
        handled = await bench.handler.handle(record(fields(event="artifact", body=body)))
    assert handled == Handled()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(sorted(BODIES)))
async def test_every_kind_of_event_is_taken(bench: StateBench, data: st.DataObject, kind: str) -> None:
    body = data.draw(BODIES[kind])
    event = fields(event_id=f"{kind}-{json.dumps(body)}"[:256], event=kind, body=body)
    assert await bench.handler.handle(record(event)) == Handled()
