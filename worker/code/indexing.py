"""A source tree to a graph in a store: scan, read, link, and apply what differs as one change.

What an earlier index left is used where it still holds. A tree that did not change costs a look at each file,
and one in which a few files did, those files and what speaks of them: neither loads the graph. The result is
the same as without. The change is applied as a whole, so an index that dies leaves the graph that was there.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import OrderedDict
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from worker.code.catalogue import KEY, decode_catalogue
from worker.code.collecting import Collect, Known, Sources, collect_files, collect_tree, is_same
from worker.code.index_values import (
    IndexOptions,
    IndexProgress,
    IndexReport,
    NothingIndexed,
    OnProgress,
    Phase,
    report_of,
)
from worker.code.kept import Lost
from worker.code.made import Made, Watch
from worker.code.patching import Before, patch
from worker.code.rebuilding import read_whole, rebuild
from worker.code.skipping import is_usable_name
from worker.errors import GraphConflict
from worker.graph.model import GraphContents, GraphHead
from worker.graph.store import GraphChanging, GraphStore

__all__ = [
    "MAX_ATTEMPTS",
    "IndexCache",
    "IndexOptions",
    "IndexProgress",
    "IndexReport",
    "NothingIndexed",
    "OnProgress",
    "Phase",
    "index_files",
    "index_project",
    "is_clean",
]

MAX_ATTEMPTS: Final = 5


class IndexCache:
    """What the last indexes left, so that the next need not read it again. For one event loop."""

    def __init__(self, *, max_projects: int = 1) -> None:
        """Keep the most recent ones."""
        self._max_projects = max_projects
        self._left: OrderedDict[str, tuple[GraphHead, Before]] = OrderedDict()

    def get(self, project_id: str, head: GraphHead | None) -> Before | None:
        """What is kept, if it still speaks of what the store holds."""
        left = self._left.get(project_id)
        return left[1] if left is not None and left[0] == head else None

    def put(self, project_id: str, head: GraphHead, left: Before) -> None:
        """Keep it in place of what was there."""
        self._left[project_id] = head, left
        self._left.move_to_end(project_id)
        while len(self._left) > self._max_projects:
            self._left.popitem(last=False)


async def index_project(
    store: GraphStore,
    project_id: str,
    root: Path,
    *,
    options: IndexOptions | None = None,
    on_progress: OnProgress = lambda _: None,
    cache: IndexCache | None = None,
) -> IndexReport:
    """Make the project's graph that of the tree below `root`.

    Raises NothingIndexed where no symbol was found, Unavailable where the root cannot be opened or the store
    cannot be reached, GraphConflict where others change the graph faster than it can be computed.
    """
    chosen = options or IndexOptions()

    def collect(known: Known) -> Sources:
        sources = collect_tree(root, known, chosen)
        if not sources.files:
            raise NothingIndexed(f"no file to index below {root}")
        return sources

    return await _Run(store, project_id, chosen, on_progress, cache).index(collect)


async def index_files(
    store: GraphStore,
    project_id: str,
    files: Mapping[str, bytes | None],
    *,
    options: IndexOptions | None = None,
    on_progress: OnProgress = lambda _: None,
    cache: IndexCache | None = None,
) -> IndexReport:
    """Make the given files of the project's graph what `files` says, by path; None means deleted.

    All other files, and the history, stay as they were. Declared rules skip files here, too, and what was
    indexed under the path of a skipped file goes. Raises as `index_project` does, and ValueError for a path
    that is not a clean relative one.
    """
    for path in files:
        if not is_clean(path):
            raise ValueError(f"not a relative path: {path!r}")
    chosen = options or IndexOptions()

    def collect(known: Known) -> Sources:
        return collect_files(files, known, chosen)

    return await _Run(store, project_id, chosen, on_progress, cache).index(collect)


def is_clean(path: str) -> bool:
    """Whether a path is one that a scan gives: relative, spelled in one way, valid Unicode on one line."""
    names = path.split("/")
    return all(names) and not {".", ".."} & set(names) and all(map(is_usable_name, names))


@dataclass(frozen=True, slots=True)
class _Result:
    """What one attempt came to, and what it started from."""

    head: GraphHead | None
    sources: Sources
    made: Made | None
    """None where the graph is the one that is there."""
    before: Before | None = None


class _Run:
    """One index, from what is there to what is stored."""

    def __init__(
        self,
        store: GraphStore,
        project_id: str,
        options: IndexOptions,
        on_progress: OnProgress,
        cache: IndexCache | None,
    ) -> None:
        self._store = store
        self._project_id = project_id
        self._options = options
        self._cache = cache
        self._watch = Watch(on_progress)

    async def index(self, collect: Collect) -> IndexReport:
        """Compute the change and apply it; again from what is there now, where another writer was faster."""
        for attempt in range(MAX_ATTEMPTS):
            with _collector_paused():
                result = await self._compute(collect)
                try:
                    return await self._apply(result)
                except GraphConflict:
                    if attempt == MAX_ATTEMPTS - 1:
                        raise
        raise AssertionError

    async def _compute(self, collect: Collect) -> _Result:
        with self._watch.phase("load"):
            head = await self._head()
            before = await self._before(head)
        if before is not None:
            known = Known(files=before.catalogue.files, history_head=before.catalogue.history_head)
            sources = await self._collect(collect, known)
            if is_same(before.catalogue, sources):
                return _Result(head, sources, None, before)
            with contextlib.suppress(Lost):
                made = await patch(
                    before, sources, self._project_id, self._options, self._watch, fetch=self._fetch
                )
                return _Result(head, sources, made, before)
        return await self._compute_whole(collect)

    async def _head(self) -> GraphHead | None:
        """None also of a graph that another writer is changing, or left half changed."""
        try:
            return await self._store.head(self._project_id)
        except GraphChanging:
            return None

    async def _load(self) -> tuple[GraphHead, GraphContents] | None:
        """As of `_head`."""
        try:
            return await self._store.load(self._project_id)
        except GraphChanging:
            return None

    async def _before(self, head: GraphHead | None) -> Before | None:
        """What a patch can start from; None where there is nothing that it could rely on."""
        if head is None:
            return None
        before = self._cache.get(self._project_id, head) if self._cache else None
        if before is None:
            facts = await self._store.load_facts(self._project_id, [KEY])
            catalogue = await asyncio.to_thread(decode_catalogue, facts.get(KEY, b""))
            if catalogue is None or catalogue.snapshot_id != head.snapshot_id:
                return None
            before = Before(catalogue=catalogue)
        # What is stale was not made of what is kept of it.
        is_stale = any(entry.status == "stale" for entry in before.catalogue.files.values())
        return None if is_stale or before.catalogue.rules != self._options.rules else before

    async def _compute_whole(self, collect: Collect) -> _Result:
        with self._watch.phase("load"):
            loaded = await self._load()
            facts = await self._store.load_facts(self._project_id)
            whole = await asyncio.to_thread(read_whole, loaded, facts, rules=self._options.rules)
        sources = await self._collect(collect, whole.known)
        made = await asyncio.to_thread(rebuild, whole, sources, self._project_id, self._options, self._watch)
        return _Result(whole.head, sources, made)

    async def _collect(self, collect: Collect, known: Known) -> Sources:
        with self._watch.phase("scan"):
            return await asyncio.to_thread(collect, known)

    async def _fetch(self, keys: Collection[str]) -> Mapping[str, bytes]:
        if not keys:
            return {}
        with self._watch.phase("load"):
            return await self._store.load_facts(self._project_id, keys)

    async def _apply(self, result: _Result) -> IndexReport:
        head, made = result.head, result.made
        is_changed = False
        if made is not None:
            with self._watch.phase("store"):
                is_changed = (
                    head is None or not made.change.is_empty or head.snapshot_id != made.catalogue.snapshot_id
                )
                # What was lost is kept again, though the graph is what it was.
                if is_changed or result.before is None:
                    head = await self._store.apply(
                        self._project_id,
                        made.change,
                        snapshot_id=made.catalogue.snapshot_id,
                        expected_version=result.head.graph_version if result.head else 0,
                    )
            left = Before(catalogue=made.catalogue, outlines=made.outlines, history=made.history)
        elif result.before is not None:
            left = result.before
        else:
            raise AssertionError
        if head is None:
            raise AssertionError
        if self._cache is not None:
            self._cache.put(self._project_id, head, left)
        return report_of(
            left.catalogue,
            project_id=self._project_id,
            head=head,
            is_changed=is_changed,
            skipped=result.sources.skipped,
            skipped_paths=result.sources.skipped_paths,
            files_read=made.files_read if made else 0,
            files_linked=made.files_linked if made else 0,
            seconds=self._watch.seconds,
        )


@contextlib.contextmanager
def _collector_paused() -> Generator[None]:
    """Hold back the collector of reference cycles for a while.

    Hundreds of thousands of values are made here that hold no cycles and all stay: it would walk them over
    and over, for half of the time that an index takes.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
