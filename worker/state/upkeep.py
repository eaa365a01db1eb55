"""Forgetting single events that have told what they had to tell, so that a store grows with what is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import structlog

from worker.errors import StoreUnavailable
from worker.state.records import microseconds
from worker.state.store import StateStore

log = structlog.get_logger(__name__)

EVERY: Final = timedelta(hours=1)


async def keep_compact(
    store: StateStore, *, keep: timedelta, now: Callable[[], datetime], every: timedelta = EVERY
) -> None:
    """Compact every project, now and then every so often, until cancelled.

    Workers that do it at the same time take turns in the store. One that finds it away tries again later.
    """
    while True:
        try:
            await compact_all(store, before=now() - keep)
        except StoreUnavailable as error:
            log.warning("state.not_compacted", cause=str(error))
        await asyncio.sleep(every.total_seconds())


async def compact_all(store: StateStore, *, before: datetime) -> int:
    """Compact every project, one after the other; how many events were forgotten."""
    forgotten = 0
    for project_id in await store.projects():
        count = await store.compact(project_id, before_us=microseconds(before))
        if count:
            log.info("state.compacted", project_id=project_id, events=count)
        forgotten += count
    return forgotten
