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


# --- Contents ----------------------------------------------------------------------------------------


def made(event_id: str, artifact: str, text: str, *, at: float) -> StateRecord:
    body = {"id": artifact, "stage": "s", "type": "t", "content": f"{text} " * 2_000}
    return record(event_id, "artifact", body, at=at)


def digest_of(told: StateRecord) -> str:
    (digest,) = told.contents
    return digest


async def is_known(store: SqliteStateStore, project_id: str, told: StateRecord) -> bool:
    return await store.content(project_id, digest_of(told)) is not None


@pytest.mark.parametrize("limits", [{"_FORGET_ROWS": 2}, {"_FORGET_CHARACTERS": 5_000}])
async def test_others_have_their_turn_while_contents_are_forgotten(
    store: SqliteStateStore, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(sqlite_state, name, value)
    versions = [made(f"e{n}", "a", f"{n}", at=n) for n in range(41)]
    await store.apply("p", versions)
    compacting = asyncio.create_task(store.compact("p", before_us=versions[-1].at_us))
    answers = 0
    while not compacting.done():
        assert (await store.heads("p", ["t1"])).versions
        answers += 1
    assert await compacting == 40
    assert answers > 20
    assert [one.event_id for one in versions if await is_known(store, "p", one)] == ["e39", "e40"]


async def test_more_contents_and_names_than_are_listed_at_once_are_told_apart(
    store: SqliteStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_state, "_LISTED_ROWS", 2)
    told = [made(f"{name}{at}", name, f"{name} {at}", at=at) for name in "abcde" for at in range(4)]
    await store.apply("p", told)
    assert await store.compact("p", before_us=told[2].at_us) == 10
    kept = [one.event_id for one in told if await is_known(store, "p", one)]
    # The base names the second, an event the third, and the thing itself the last.
    assert kept == [f"{name}{at}" for name in "abcde" for at in (1, 2, 3)]


async def test_a_content_that_is_told_again_while_others_are_forgotten_stays(
    store: SqliteStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_state, "_LISTED_ROWS", 1)
    monkeypatch.setattr(sqlite_state, "_FORGET_ROWS", 1)
    versions = [made(f"e{n}", "a", f"{n}", at=n) for n in range(4)]
    # An earlier one, so that it changes nothing: only its event names the content.
    again = made("again", "b", "0", at=10)
    last = made("last", "b", "3", at=20)
    for turns in range(30):
        project_id = f"p{turns}"
        await store.apply(project_id, [*versions, last])
        compacting = asyncio.create_task(store.compact(project_id, before_us=versions[-1].at_us))
        for _ in range(turns):
            await store.heads(project_id, ["t1"])
        await store.apply(project_id, [again])
        await compacting
        assert await is_known(store, project_id, again), turns
