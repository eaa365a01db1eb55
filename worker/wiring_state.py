"""Composition by hand, the state's part: where it is kept, how events get there, and who reads it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from worker.budget.tokens import counter_for
from worker.errors import StoreUnavailable
from worker.fusion.tiers import ContextTierService, TierRetention
from worker.ports import Scope
from worker.providers.session_document import render_session
from worker.providers.states import ThreadStates
from worker.providers.threads import SourceThreads
from worker.settings import Settings, read_secret
from worker.state.records import WHOLE_PROJECT
from worker.state.store import Applied, Place, StateStore
from worker.state.writing import StateWriter
from worker.stores.sqlite_state import SqliteStateStore
from worker.telemetry import Telemetry
from worker.wiring_graph_store import NO_PROJECT, build_neo4j_link

if TYPE_CHECKING:
    from worker.stores.redis_state import HotResult


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSource:
    """All that keeps, takes in and reads state. Opened when it is needed; close it at the end."""

    store: StateStore
    states: ThreadStates
    writer: StateWriter

    async def warm(self) -> None:
        """Ask what every request asks, once: the first one is not to pay for connections and plans."""
        with suppress(StoreUnavailable):
            await self.store.heads(NO_PROJECT, [WHOLE_PROJECT])
            await self.store.groups(NO_PROJECT, {Place(WHOLE_PROJECT, "session"): 1})

    async def aclose(self) -> None:
        """Stop what is under way and release connections; idempotent."""
        await self.states.close()
        await self.store.close()


def build_state(settings: Settings, telemetry: Telemetry) -> StateSource:
    """The state's part of one worker. Raises ValueError for a secret file that cannot be read."""
    store = build_state_store(settings, partial(_on_hot_result, telemetry))
    content = settings.content
    retention = TierRetention(hot=timedelta(hours=content.hot_hours), warm=timedelta(days=content.warm_days))
    states = ThreadStates(
        store,
        SourceThreads(),
        max_bytes=settings.state.max_bytes,
        tiers=ContextTierService(retention),
    )
    writer = StateWriter(store, on_applied=partial(_on_applied, states, telemetry))
    return StateSource(store=store, states=states, writer=writer)


def build_state_store(
    settings: Settings, on_hot_result: Callable[[HotResult, int], None] | None = None
) -> StateStore:
    """The store that the settings name, with Redis in front of it where they name one.

    `on_hot_result` is told what became of the questions to Redis, if anybody counts them. Raises ValueError
    for a secret file that cannot be read.
    """
    cold, outcomes = _build_cold_store(settings), settings.outcomes
    if outcomes.redis_address is None:
        return cold
    from worker.stores.redis_state import HotStateStore  # noqa: PLC0415 - only where the settings name one

    return HotStateStore(
        cold,
        outcomes.redis_address,
        password=read_secret(outcomes.redis_password, outcomes.redis_password_file),
        keep_seconds=settings.state.hot_keep_seconds,
        key_prefix=outcomes.key_prefix,
        on_result=on_hot_result or _ignore,
    )


def _build_cold_store(settings: Settings) -> StateStore:
    if settings.graph.neo4j_url is None:
        return SqliteStateStore(settings.state.sqlite_path)
    # The driver takes a third of a second to import.
    from worker.stores.neo4j_state import Neo4jStateStore  # noqa: PLC0415 - as said above

    return Neo4jStateStore(build_neo4j_link(settings))


def _ignore(result: HotResult, count: int) -> None:
    """Nobody looks at the counts of a command that ends at once."""


def _on_hot_result(telemetry: Telemetry, result: HotResult, count: int) -> None:
    telemetry.state_cache.labels(result).inc(count)


async def session_document(
    settings: Settings,
    project_id: str,
    thread_id: str | None,
    *,
    template: str | None,
    as_of: datetime | None,
) -> str | None:
    """What is known of a thread as a document for people; None where that is nothing.

    Raises StateUnavailable.
    """
    async with aclosing(build_state(settings, Telemetry())) as state:
        scope = Scope(project_id=project_id, thread_id=thread_id)
        reading = await state.states.read(scope)
        if not reading.is_anything_known:
            return None
        row = settings.content.models[settings.content.default_model]
        return render_session(
            reading,
            scope,
            as_of=as_of or datetime.now(UTC),
            counter=counter_for(row.encoding, safety_factor=str(row.safety_factor)),
            template=template,
        )


def _on_applied(states: ThreadStates, telemetry: Telemetry, project_id: str, applied: Applied) -> None:
    for outcome in ("new", "repeated", "conflicting", "late"):
        telemetry.state_events.labels(outcome, "").inc(getattr(applied, outcome))
    states.changed(project_id)
