"""Whoever hands an event in learns what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.state_events import record
from worker.state.records import StateRecord
from worker.state.store import Applied
from worker.state.writing import StateWriter
from worker.stores.sqlite_state import SqliteStateStore


class Cancelling(SqliteStateStore):
    """A store whose driver cancels its own work once, after others have come to wait behind it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.are_waiting = asyncio.Event()
        self.is_broken = True

    async def apply(self, project_id: str, records: Sequence[StateRecord]) -> Applied:
        if self.is_broken:
            await self.are_waiting.wait()
            self.is_broken = False
            raise asyncio.CancelledError
        return await super().apply(project_id, records)


async def test_nobody_waits_for_a_store_that_has_cancelled_its_own_work(tmp_path: Path) -> None:
    store = Cancelling(tmp_path / "state.db")
    writer = StateWriter(store, on_applied=lambda _project, _applied: None)
    body = {"id": "g", "statement": "Requests end in time"}

    def handed_in(number: int) -> asyncio.Task[None]:
        return asyncio.create_task(writer.apply("shop", record(f"e-{number}", "goal_set", body)))

    first = handed_in(1)
    await asyncio.sleep(0)
    behind = handed_in(2)
    await asyncio.sleep(0)
    store.are_waiting.set()
    async with asyncio.timeout(10):
        for task in (first, behind):
            with pytest.raises(asyncio.CancelledError):
                await task
        # They come again, and with them all is as it should be.
        await handed_in(1)
    await store.close()
