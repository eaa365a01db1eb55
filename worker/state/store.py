"""The seam to where state is kept: the cold store, which is the truth, and a hot cache in front of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from worker.state.records import Group, StateRecord


class Place(NamedTuple):
    """One group of one thread; the thread is empty for what belongs to the project as a whole."""

    thread_id: str
    group: Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """How far the state is."""

    versions: Mapping[Place, int]
    """A version per place that holds anything; it moves whenever the place reads differently."""
    missing: frozenset[str]
    """Of the events that were asked for, those that have not been applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """What one place holds at one version: `worker.state.view.decode_group` reads it."""

    version: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What became of a batch of events."""

    new: int = 0
    repeated: int = 0
    conflicting: int = 0
    """Came with an id that another body has."""
    late: int = 0
    """Happened before what has been compacted, and so change nothing."""
    touched: frozenset[Place] = field(default_factory=frozenset[Place])


class StateStore(Protocol):
    """Keeps events and what they come to. Every operation is by project, and none sees another's.

    Raises StoreUnavailable, never a driver's own error.
    """

    async def apply(self, project_id: str, records: Sequence[StateRecord]) -> Applied:
        """Take the events in, all of them or none; durable when this returns. Idempotent.

        What is read afterwards depends on the set of all events that were ever applied, not on batches,
        order or repeats.
        """
        ...

    async def heads(
        self, project_id: str, thread_ids: Sequence[str], *, event_ids: Sequence[str] = ()
    ) -> Heads:
        """The versions of these threads' groups, and which of the events are missing. One round trip."""
        ...

    async def groups(self, project_id: str, versions: Mapping[Place, int]) -> Mapping[Place, StoredGroup]:
        """What the places hold at these versions, or later ones; a place that was purged is absent.

        One round trip. The bytes are the same whatever the store, sorted by kind and id.
        """
        ...

    async def content(self, project_id: str, sha256: str) -> str | None:
        """A long content that an event carried, by its digest."""
        ...

    async def compact(self, project_id: str, *, before_us: int) -> int:
        """Forget single events from before that instant, keeping what they came to; returns how many.

        The last one about each thing stays, so that whoever waits for the last that he knows of does not wait
        in vain. An event from before that instant that arrives afterwards is `late`. Long contents that
        nothing in their thread names any more are forgotten too.
        """
        ...

    async def projects(self) -> Sequence[str]:
        """All projects that have state, sorted."""
        ...

    async def purge(self, project_id: str, *, thread_id: str | None = None) -> int:
        """Erase the project, or one thread of it; returns how many events that were."""
        ...

    async def check(self) -> None:
        """Return when the store can read and write now."""
        ...

    async def close(self) -> None:
        """Release connections; idempotent."""
        ...
