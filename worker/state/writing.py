"""Taking events in: what comes at the same time for one project goes into one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from worker.errors import StoreUnavailable
from worker.state.records import StateRecord
from worker.state.store import Applied, StateStore

_MAX_BATCH: Final = 500


@dataclass(slots=True)
class _Waiting:
    record: StateRecord
    future: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class StateWriter:
    """Applies events in groups; one per worker. A project's groups follow one another, in order of arrival.

    While one is being written, the next one gathers: the busier the worker, the larger the groups.
    """

    def __init__(self, store: StateStore, *, on_applied: Callable[[str, Applied], None]) -> None:
        """Write to `store`; `on_applied` is told the project and what became of each group."""
        self._store = store
        self._on_applied = on_applied
        self._waiting: dict[str, list[_Waiting]] = {}
        self._writing: dict[str, asyncio.Task[None]] = {}

    async def apply(self, project_id: str, record: StateRecord) -> None:
        """Return when the event is durable. Raises StoreUnavailable.

        Who is cancelled meanwhile does not know whether it is: to apply it again changes nothing.
        """
        one = _Waiting(record)
        self._waiting.setdefault(project_id, []).append(one)
        if project_id not in self._writing:
            self._writing[project_id] = asyncio.create_task(self._write(project_id))
        await one.future

    async def _write(self, project_id: str) -> None:
        batch: list[_Waiting] = []
        try:
            while waiting := self._waiting.pop(project_id, []):
                batch, rest = waiting[:_MAX_BATCH], waiting[_MAX_BATCH:]
                if rest:
                    self._waiting[project_id] = rest
                await self._write_batch(project_id, batch)
        except BaseException:
            # Whatever ends this task: nobody is to wait for it for ever.
            for one in (*batch, *self._waiting.pop(project_id, [])):
                one.future.cancel()
            raise
        finally:
            del self._writing[project_id]

    async def _write_batch(self, project_id: str, batch: list[_Waiting]) -> None:
        try:
            applied = await self._store.apply(project_id, [one.record for one in batch])
        except Exception as error:  # noqa: BLE001  not swallowed: it is raised where the caller waits
            await self._fail(project_id, batch, error)
            return
        self._on_applied(project_id, applied)
        for one in batch:
            if not one.future.done():
                one.future.set_result(None)

    async def _fail(self, project_id: str, batch: list[_Waiting], error: Exception) -> None:
        if len(batch) > 1 and not isinstance(error, StoreUnavailable):
            # A defect that one event meets must not be its neighbours'.
            for one in batch:
                await self._write_batch(project_id, [one])
            return
        for one in batch:
            if not one.future.done():
                one.future.set_exception(error)
