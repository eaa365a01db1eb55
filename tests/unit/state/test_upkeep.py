from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.state_events import START, held, record
from worker.errors import StoreUnavailable
from worker.state.upkeep import compact_all, keep_compact
from worker.stores.sqlite_state import SqliteStateStore


class Store(SqliteStateStore):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.rounds = 0
        self.is_away = False
        self.was_asked = asyncio.Event()

    async def projects(self) -> list[str]:
        self.rounds += 1
        self.was_asked.set()
        if self.is_away:
            raise StoreUnavailable("state")
        return list(await super().projects())


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    opened = Store(tmp_path / "state.db")
    for project in ("p", "q"):
        events = [
            record(f"e{day}", "goal_set", {"id": "g", "statement": f"day {day}"}, at=day * 86_400)
            for day in range(20)
        ]
        await opened.apply(project, events)
    yield opened
    await opened.close()


async def test_old_events_of_every_project_are_forgotten_and_what_they_came_to_stays(store: Store) -> None:
    before = {project: await held(store, project, "t1") for project in ("p", "q")}
    assert await compact_all(store, before=START + timedelta(days=10)) == 20
    assert {project: await held(store, project, "t1") for project in ("p", "q")} == before
    assert (await store.heads("p", ["t1"], event_ids=["e9", "e10"])).missing == {"e9"}


async def test_it_goes_on_where_the_store_was_away(store: Store) -> None:
    store.is_away = True
    now = START + timedelta(days=30)
    upkeep = asyncio.create_task(
        keep_compact(store, keep=timedelta(days=14), now=lambda: now, every=timedelta(0))
    )
    await store.was_asked.wait()
    store.is_away = False
    while (await store.heads("q", ["t1"], event_ids=["e0"])).missing == frozenset():
        assert not upkeep.done()
    upkeep.cancel()
    assert store.rounds >= 2
