"""Compaction in one file that all else has to go through as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

import pytest

from tests.support.state_events import expected, held, record
from worker.state.folding import EntityState, fold_anew
from worker.state.records import StateRecord
from worker.stores import sqlite_state
from worker.stores.sqlite_state import SqliteStateStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SqliteStateStore]:
    opened = SqliteStateStore(tmp_path / "state.db")
    yield opened
    await opened.close()


def messages(count: int) -> list[StateRecord]:
    return [
        record(f"m{n:04}", "message", {"role": "user", "content": f"We decided on {n}."}, at=n)
        for n in range(count)
    ]


async def test_what_is_not_forgotten_is_not_folded_again(
    store: SqliteStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded: list[str] = []

    def watched(base: EntityState | None, records: Iterable[StateRecord]) -> EntityState | None:
        told = list(records)
        folded.extend(one.event_id for one in told)
        return fold_anew(base, told)

    events = messages(300)
    await store.apply("p", events)
    monkeypatch.setattr(sqlite_state, "fold_anew", watched)
    assert await store.compact("p", before_us=events[10].at_us) == 10
    assert folded == [one.event_id for one in events[:10]]
    assert await held(store, "p", "t1") == expected(events)


async def test_others_have_their_turn_while_a_long_thread_is_compacted(
    store: SqliteStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_state, "_COMPACT_ROWS", 3)
    events = messages(100)
    await store.apply("p", events)
    compacting = asyncio.create_task(store.compact("p", before_us=events[-1].at_us))
    answers = 0
    while not compacting.done():
        assert (await store.heads("p", ["t1"])).versions
        answers += 1
    assert await compacting == 99
    assert answers > 10
    assert await held(store, "p", "t1") == expected(events)
    late = record("late", "message", {"role": "user", "content": "Too late."}, at=1)
    assert (await store.apply("p", [late])).late == 1
    assert await held(store, "p", "t1") == expected(events)
    assert await store.compact("p", before_us=events[-1].at_us) == 1


async def test_more_things_than_are_listed_at_once_are_all_compacted(
    store: SqliteStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_state, "_LISTED_ROWS", 2)
    events = [
        record(f"e{thread}{name}{at}", "memory", {"id": name, "text": f"{at}"}, at=at, thread=thread or None)
        for thread in ("", "t1", "t2")
        for name in ("a", "b", "c")
        for at in (0, 1)
    ]
    await store.apply("p", events)
    assert await store.compact("p", before_us=events[1].at_us) == 9
    assert await store.compact("p", before_us=events[1].at_us) == 0
    assert await held(store, "p", "", "t1", "t2") == expected(events)
