"""Erasing a project, or one of its threads, wherever this worker and its stores keep something of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from worker.graph.store import GraphStore
from worker.outcomes import thread_of
from worker.ports import OutcomeStore, PackCache
from worker.providers.snapshots import Snapshots
from worker.state.store import StateStore
from worker.usage.purge import purge_usage_records


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """How much was erased, place by place."""

    graph_nodes: int
    events: int
    """Of the project's state."""
    packs: int
    outcomes: int
    """Bundles, rejections, sync results and judged answers, with their usage events and receipts, and what
    expiry left of them."""
    usage_lines: int

    @property
    def total(self) -> int:
        """Of everything; 0 where nothing was there."""
        return self.graph_nodes + self.events + self.packs + self.outcomes + self.usage_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Everything that holds something of a project; None for a store that was never made."""

    graph: GraphStore | None
    state: StateStore | None
    packs: PackCache
    outcomes: OutcomeStore | None
    snapshots: Snapshots | None = None
    """Of a worker in this process; other workers drop theirs when they are asked for the project next."""
    usage_log: Path | None = None
    """Where it is not at its usual place."""


async def purge(project_id: str, thread_id: str | None, places: Places) -> Purged:
    """Erase a project, or only what belongs to one of its threads, and say how much there was.

    Of a thread: its state, its outcomes and usage lines. The graph belongs to no thread; the packs, which do
    not say whose they were, go with all of the project and are computed again. What expired to a tombstone
    holds digests alone and cannot be told by thread; it stays until its time is over.

    The graph goes before the packs that are made of it, so that none is made again. Where a call failed half
    way, repeat it: it erases and counts what was left. Requests and syncs that are still in work, or come
    afterwards, make new traces: stop them first.

    What workers in other processes hold in memory (a snapshot, packs, the last index) is answered from no
    more, and goes when its place is needed or they end.

    Not erased, because nobody can: records on Kafka's topics (requests, bundles, usage, syncs, dead letters)
    stay until their retention ends, a day to thirty. Delete the topics, or let the retention pass. A request
    that is delivered again from there is answered anew. Crash counts hold no content.

    Raises StoreUnavailable, and OSError where the usage log cannot be rewritten.
    """
    events = graph_nodes = outcomes = 0
    if places.state is not None:
        events = await places.state.purge(project_id, thread_id=thread_id)
    if thread_id is None and places.graph is not None:
        graph_nodes = await places.graph.purge(project_id)
    if thread_id is None and places.snapshots is not None:
        places.snapshots.forget(project_id)
    if places.outcomes is not None:
        outcomes = await places.outcomes.purge(
            project_id, only=None if thread_id is None else lambda outcome: thread_of(outcome) == thread_id
        )
    packs = await places.packs.purge(project_id)
    usage_lines = await asyncio.to_thread(
        purge_usage_records, project_id, places.usage_log, thread_id=thread_id
    )
    return Purged(
        graph_nodes=graph_nodes, events=events, packs=packs, outcomes=outcomes, usage_lines=usage_lines
    )
