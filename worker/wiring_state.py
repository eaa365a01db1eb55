"""Composition by hand, the state's part: where it is kept, how events get there, and who reads it."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from worker.budget.tokens import counter_for
from worker.ports import Scope
from worker.providers.session_document import render_session
from worker.providers.states import ThreadStates
from worker.providers.threads import SourceThreads
from worker.settings import Settings
from worker.state.store import Applied, StateStore
from worker.state.writing import StateWriter
from worker.stores.sqlite_state import SqliteStateStore
from worker.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSource:
    """All that keeps, takes in and reads state. Opened when it is needed; close it at the end."""

    store: StateStore
    states: ThreadStates
    writer: StateWriter

    async def aclose(self) -> None:
        """Stop what is under way and release connections; idempotent."""
        await self.states.close()
        await self.store.close()


def build_state(settings: Settings, telemetry: Telemetry) -> StateSource:
    """The state's part of one worker. Raises ValueError for a secret file that cannot be read."""
    store = build_state_store(settings)
    states = ThreadStates(store, SourceThreads(), max_bytes=settings.state.max_bytes)
    writer = StateWriter(store, on_applied=partial(_on_applied, states, telemetry))
    return StateSource(store=store, states=states, writer=writer)


def build_state_store(settings: Settings) -> StateStore:
    """The store that the settings name."""
    return SqliteStateStore(settings.state.sqlite_path)


async def session_document(
    settings: Settings,
    project_id: str,
    thread_id: str | None,
    *,
    template: str | None,
    as_of: datetime | None,
) -> str:
    """What is known of a thread as a document for people. Raises StateUnavailable."""
    async with aclosing(build_state(settings, Telemetry())) as state:
        scope = Scope(project_id=project_id, thread_id=thread_id)
        reading = await state.states.read(scope)
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
