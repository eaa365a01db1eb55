"""The graphs of projects, kept in memory while they are asked for.

A snapshot is loaded once a version, whoever asks, and loading goes on when those who waited have given up.
While a newer version is being written or loaded, those who did not ask for it get the one before after a
moment: late is worse than a version old, and which one it was stands in the result.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import structlog

from worker.errors import Unavailable
from worker.graph.model import GraphContents, GraphHead, NodeRef
from worker.graph.snapshot import Snapshot, build_snapshot
from worker.graph.store import GraphChanging, GraphStore
from worker.providers.threads import SourceThreads

log = structlog.get_logger()

FRESHNESS_SECONDS: Final = 0.1
"""How long a newer version is waited for while an older one is at hand."""

MAX_PRELOADED: Final = 16
"""Projects that a start loads unasked: each takes a second or two, in which the worker answers nobody."""

POLL_SECONDS: Final = 0.02
"""How often a version that was asked for is looked for: stores tell nobody of changes."""

MAX_HOPS: Final = 2
MAX_NODES: Final = 4_000
"""Of the part of a graph that is read where the whole is too large."""


class Snapshots:
    """Loads, keeps and gives out snapshots; one per worker."""

    def __init__(self, store: GraphStore, threads: SourceThreads, *, max_bytes: int) -> None:
        """Keep at most `max_bytes` of snapshots, the one used last always."""
        self._store = store
        self._threads = threads
        self._max_bytes = max_bytes
        self._held: OrderedDict[str, Snapshot] = OrderedDict()
        self._loading: dict[tuple[str, GraphHead], asyncio.Task[Snapshot | None]] = {}
        self._asking: dict[str, asyncio.Task[GraphHead | None]] = {}

    async def latest(
        self,
        project_id: str,
        *,
        roots: Sequence[NodeRef],
        names: Sequence[str] = (),
        at_least_version: int = 0,
    ) -> Snapshot | None:
        """The project's graph, or what lies around `roots` and `names` where the whole is too large to hold.

        None where the project was never indexed. Waits until the store has `at_least_version`, and for the
        first load, for as long as the caller does. Raises StoreUnavailable, also where a graph is being
        changed and the one before is not at hand.
        """
        try:
            return await self._latest(project_id, roots, names, at_least_version)
        except GraphChanging:
            held = self._held_since(project_id, at_least_version)
            if held is None:
                raise
            self._held.move_to_end(project_id)
            return held

    def _held_since(self, project_id: str, version: int) -> Snapshot | None:
        """What is held, unless it is older than that."""
        held = self._held.get(project_id)
        return held if held is not None and held.head.graph_version >= version else None

    async def _latest(
        self, project_id: str, roots: Sequence[NodeRef], names: Sequence[str], at_least_version: int
    ) -> Snapshot | None:
        head = await self._head(project_id, at_least_version)
        if head is None:
            self.forget(project_id)  # it was purged, maybe by another process
            return None
        held = self._held.get(project_id)
        if held is not None and held.head == head:
            self._held.move_to_end(project_id)
            return held
        if held is not None and not _is_later(head, than=held.head):
            # Versions begin anew after a purge: what is held is of a graph that is no more.
            self.forget(project_id)
            held = None
        if await self._store.size_bytes(project_id) > self._max_bytes:
            return await self._part(project_id, roots, names)
        loaded = self._held.get(project_id)
        if loaded is not None and loaded.head == head:
            return loaded  # somebody else's loading ended while the size was asked for
        loading = self._load(project_id, head)
        if held is not None and held.head.graph_version >= at_least_version:
            await asyncio.wait({loading}, timeout=FRESHNESS_SECONDS)
            if not loading.done():
                return held
        return await asyncio.shield(loading)

    async def preload(self, project_ids: Sequence[str]) -> None:
        """Load these projects, one after the other; what cannot be loaded is left for the first request."""
        for project_id in project_ids:
            try:
                await self.latest(project_id, roots=())
            except Unavailable as error:
                log.warning("graph.not_preloaded", project_id=project_id, cause=str(error))

    async def preload_stored(self) -> None:
        """Load what else the store holds, up to `MAX_PRELOADED` projects, as far as there is room for it.

        Graphs that other processes fill are named in no setting. What is held already stays.
        """
        try:
            stored = await self._store.projects(max_projects=MAX_PRELOADED)
            for project_id in stored:
                left = self._max_bytes - sum(snapshot.size_bytes for snapshot in self._held.values())
                # A snapshot takes more than the texts in it, which are all that the store measures.
                if project_id not in self._held and 3 * await self._store.size_bytes(project_id) <= left:
                    await self.latest(project_id, roots=())
        except Unavailable as error:
            log.warning("graph.not_preloaded", cause=str(error))

    def forget(self, project_id: str) -> None:
        """Let the project's snapshot go."""
        self._held.pop(project_id, None)

    async def close(self) -> None:
        """Stop loading."""
        tasks = [*self._loading.values(), *self._asking.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _head(self, project_id: str, at_least_version: int) -> GraphHead | None:
        while True:
            try:
                head = await self._ask_head(project_id)
            except GraphChanging:
                # The change under way may be the one that is waited for.
                if not at_least_version or self._held_since(project_id, at_least_version):
                    raise
            else:
                if at_least_version <= (head.graph_version if head else 0):
                    return head
            await asyncio.sleep(POLL_SECONDS)

    async def _ask_head(self, project_id: str) -> GraphHead | None:
        """What the store says now; callers that ask at the same moment share one question."""
        task = self._asking.get(project_id)
        if task is None:
            task = self._asking[project_id] = asyncio.create_task(self._store.head(project_id))
            task.add_done_callback(lambda done: self._on_head(project_id, done))
        return await asyncio.shield(task)

    def _on_head(self, project_id: str, task: asyncio.Task[GraphHead | None]) -> None:
        del self._asking[project_id]
        if not task.cancelled():
            task.exception()  # whoever waited has raised it; nobody may have

    def _load(self, project_id: str, head: GraphHead) -> asyncio.Task[Snapshot | None]:
        key = (project_id, head)
        task = self._loading.get(key)
        if task is None:
            task = asyncio.create_task(self._load_whole(project_id), name=f"load {project_id}")
            self._loading[key] = task
            task.add_done_callback(lambda done: self._on_loaded(key, done))
        return task

    def _on_loaded(self, key: tuple[str, GraphHead], task: asyncio.Task[Snapshot | None]) -> None:
        del self._loading[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("graph.not_loaded", project_id=key[0], cause=str(error))

    async def _load_whole(self, project_id: str) -> Snapshot | None:
        loaded = await self._store.load(project_id)
        if loaded is None:
            return None
        snapshot = await self._build(loaded)
        held = self._held.get(project_id)
        if held is None or _is_later(snapshot.head, than=held.head):
            self._hold(project_id, snapshot)
        return snapshot

    async def _part(self, project_id: str, roots: Sequence[NodeRef], names: Sequence[str]) -> Snapshot | None:
        loaded = await self._store.neighbourhood(
            project_id, roots, names=names, max_hops=MAX_HOPS, max_nodes=MAX_NODES
        )
        return None if loaded is None else replace(await self._build(loaded), is_part=True)

    async def _build(self, loaded: tuple[GraphHead, GraphContents]) -> Snapshot:
        return await self._threads.run(lambda: build_snapshot(*loaded))

    def _hold(self, project_id: str, snapshot: Snapshot) -> None:
        self._held[project_id] = snapshot
        self._held.move_to_end(project_id)
        while len(self._held) > 1 and sum(s.size_bytes for s in self._held.values()) > self._max_bytes:
            evicted, _ = self._held.popitem(last=False)
            log.info("graph.evicted", project_id=evicted)


def _is_later(head: GraphHead, *, than: GraphHead) -> bool:
    return head.graph_version > than.graph_version
