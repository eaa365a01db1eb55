"""What belongs to a project as a whole, as a request of one of its threads sees it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import permutations
from pathlib import Path

import pytest

from tests.support.state_events import record
from worker.budget.tokens import counter_for
from worker.ports import Scope
from worker.providers.states import StateReading, ThreadStates
from worker.providers.threads import SourceThreads
from worker.state.records import StateRecord
from worker.stores.sqlite_state import SqliteStateStore

COUNTER = counter_for("bytes")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SqliteStateStore]:
    opened = SqliteStateStore(tmp_path / "state.db")
    yield opened
    await opened.close()


@pytest.fixture
async def states(store: SqliteStateStore) -> AsyncGenerator[ThreadStates]:
    opened = ThreadStates(store, SourceThreads(), max_bytes=10_000_000)
    yield opened
    await opened.close()


def scope(thread_id: str | None, *, project: str = "p") -> Scope:
    return Scope(project_id=project, thread_id=thread_id)


def summary_of(reading: StateReading) -> list[str]:
    summary = reading.summary(max_tokens=1_000, counter=COUNTER)
    return [] if summary is None else summary.text.splitlines()


def said(event_id: str, content: str, *, at: float, thread: str | None) -> StateRecord:
    return record(event_id, "message", {"role": "user", "content": content}, at=at, thread=thread)


SET = (
    record("p", "plan_set", {"plan_id": "p", "steps": [{"id": "1", "title": "one"}]}, at=0, thread=None),
    record("g", "goal_set", {"id": "g", "statement": "Requests end in time"}, at=0, thread=None),
    record("w", "work_item", {"id": "w", "title": "Tidy up"}, at=0, thread=None),
)
ENDED = (
    record("s", "step_advanced", {"plan_id": "p", "step_id": "1"}, at=1),
    record("u", "goal_updated", {"id": "g", "status": "done"}, at=1),
    record("c", "work_item", {"id": "w", "title": "Tidy up", "state": "done"}, at=1),
)


@pytest.mark.parametrize("batches", list(permutations((SET, ENDED[:2], ENDED[2:]))))
async def test_what_a_thread_ends_of_its_projects_things_has_ended_for_it_alone(
    store: SqliteStateStore, states: ThreadStates, batches: tuple[tuple[StateRecord, ...], ...]
) -> None:
    for batch in batches:
        await store.apply("p", batch)
    seen, others = [await states.read(scope(thread)) for thread in ("t1", "t2")]
    assert seen.session is None
    assert others.session is not None
    assert others.session.goal is not None
    assert [item.id for item in others.session.work_items] == ["w"]
    plans = [reading.plan(None) for reading in (seen, others)]
    assert [(one.statuses, one.pointer) for one in plans if one is not None] == [
        ({"1": "done"}, "1"),
        ({}, None),
    ]


async def test_messages_of_the_project_stand_in_every_threads_summary_in_order_of_time(
    store: SqliteStateStore, states: ThreadStates
) -> None:
    await store.apply("p", [said("m1", "We decided on SQLite.", at=1, thread="t1")])
    assert summary_of(await states.read(scope("t1"))) == ["- user: We decided on SQLite."]
    await store.apply("p", [said("m2", "We agreed to keep Redis.", at=0, thread=None)])
    all_told = "- user: We agreed to keep Redis."
    assert summary_of(await states.read(scope("t1"))) == [all_told, "- user: We decided on SQLite."]
    for one in (scope("t2"), scope(None)):
        assert summary_of(await states.read(one)) == [all_told]
    assert summary_of(await states.read(scope("t1", project="other"))) == []
