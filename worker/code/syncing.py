"""A sync of a project: which files are meant, whether they may be read, and what came of their index."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final
from weakref import WeakValueDictionary

from schemas.bundle import to_wire
from schemas.sync import MAX_FAILED_FILES, FailedFile, SyncRequest, SyncResult
from worker.code.indexing import (
    IndexCache,
    IndexOptions,
    IndexReport,
    NothingIndexed,
    OnProgress,
    index_files,
    index_project,
    is_clean,
)
from worker.code.sources import Missing, Refused, SourceRoots
from worker.errors import (
    GraphConflict,
    InvalidRequest,
    NotSupported,
    StoreUnavailable,
    Unavailable,
    WorkerError,
)
from worker.graph.model import GraphChange, GraphContents, GraphHead, NodeRef
from worker.graph.store import GraphStore

_MAX_REASON_CHARS: Final = 300
_MAX_FAILED_BYTES: Final = 262_144
_QUOTED_CHARS: Final = 200
_LOST_FILES: Final = frozenset({"failed", "stale"})


class Overtaken(WorkerError):
    """The graph was changed meanwhile, maybe by the same sync elsewhere: begin with the outcome again."""


IsSettled = Callable[[], Awaitable[bool]]
"""Whether the sync has an outcome by now. Raises StoreUnavailable."""


class ProjectSyncer:
    """Indexes what syncs name, one index of a project at a time. For one event loop.

    What costs time runs in threads and processes of its own. A sync that is cancelled changes nothing: its
    thread ends by itself, and what it computed is dropped.
    """

    def __init__(
        self,
        store: GraphStore,
        roots: SourceRoots,
        *,
        cache: IndexCache,
        options: IndexOptions | None = None,
        on_progress: OnProgress = lambda _: None,
    ) -> None:
        """Read below `roots` and nowhere else."""
        self._store = store
        self._roots = roots
        self._cache = cache
        self._options = options or IndexOptions()
        self._on_progress = on_progress
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def sync(self, request: SyncRequest, *, is_settled: IsSettled) -> IndexReport:
        """Index what the request names, unless somebody else has done so by the time of the change.

        Raises InvalidRequest and NotSupported where it cannot be done, Overtaken where others came first, and
        StoreUnavailable; the graph is as it was, each time.
        """
        store = _FencedStore(self._store, is_settled)
        lock = self._locks.get(request.project_id)
        if lock is None:
            lock = self._locks[request.project_id] = asyncio.Lock()
        async with lock:
            try:
                if request.files is not None:
                    return await self._sync_files(store, request, _contents(request))
                return await self._sync_root(store, request)
            except NothingIndexed as error:
                raise InvalidRequest(str(error)) from error

    async def _sync_files(
        self, store: GraphStore, request: SyncRequest, files: Mapping[str, bytes | None]
    ) -> IndexReport:
        return await index_files(
            store,
            request.project_id,
            files,
            options=self._options,
            on_progress=self._on_progress,
            cache=self._cache,
        )

    async def _sync_root(self, store: GraphStore, request: SyncRequest) -> IndexReport:
        project_id = request.project_id
        if not self._roots.is_configured(project_id):
            raise NotSupported("root", reason="the project has no root here; send `files`")
        try:
            root = await asyncio.to_thread(self._roots.locate, project_id, request.root)
            if isinstance(root, Refused):
                raise _invalid("root", f"is refused: {root.reason}")
            if isinstance(root, Missing):
                raise _invalid("root", "does not exist")
            return await index_project(
                store,
                project_id,
                root,
                options=self._options,
                on_progress=self._on_progress,
                cache=self._cache,
            )
        except StoreUnavailable:
            raise
        except Unavailable as error:
            # To wait would hold up the syncs of all other projects, for a folder that may never come.
            raise _invalid("root", "cannot be opened") from error


class _FencedStore:
    """A store that takes the change of one sync only while that sync is still to be done.

    A worker that was thought dead and wakes up may hold an old sync in its hands, when another worker has
    carried out that one and newer ones. It loaded the graph before them: then the versions differ. Or it
    loads it after them: then the old sync has an outcome, which was stored before the next one began. An
    index that computes its change again from what is there now would undo the newer ones.
    """

    def __init__(self, inner: GraphStore, is_settled: IsSettled) -> None:
        self._inner = inner
        self._is_settled = is_settled

    async def projects(self, *, max_projects: int) -> list[str]:
        return await self._inner.projects(max_projects=max_projects)

    async def head(self, project_id: str) -> GraphHead | None:
        return await self._inner.head(project_id)

    async def load(self, project_id: str) -> tuple[GraphHead, GraphContents] | None:
        return await self._inner.load(project_id)

    async def size_bytes(self, project_id: str) -> int:
        return await self._inner.size_bytes(project_id)

    async def neighbourhood(
        self,
        project_id: str,
        roots: Sequence[NodeRef],
        *,
        names: Sequence[str] = (),
        max_hops: int,
        max_nodes: int,
    ) -> tuple[GraphHead, GraphContents] | None:
        return await self._inner.neighbourhood(
            project_id, roots, names=names, max_hops=max_hops, max_nodes=max_nodes
        )

    async def load_facts(self, project_id: str, keys: Collection[str] | None = None) -> Mapping[str, bytes]:
        return await self._inner.load_facts(project_id, keys)

    async def apply(
        self, project_id: str, change: GraphChange, *, snapshot_id: str, expected_version: int
    ) -> GraphHead:
        if await self._is_settled():
            raise Overtaken("the sync was settled meanwhile")
        try:
            return await self._inner.apply(
                project_id, change, snapshot_id=snapshot_id, expected_version=expected_version
            )
        except GraphConflict as error:
            raise Overtaken(str(error)) from error

    async def purge(self, project_id: str) -> int:
        return await self._inner.purge(project_id)

    async def check(self) -> None:
        await self._inner.check()

    async def close(self) -> None:
        await self._inner.close()


def sync_result(request: SyncRequest, report: IndexReport) -> SyncResult:
    """What the report says, as the reply to the request; at most some 300 KB."""
    counts = {
        f"{group}.{name}": count
        for group, found in (
            ("files", report.files),
            ("nodes", report.nodes),
            ("edges", report.edges),
            ("skipped", report.skipped),
        )
        for name, count in sorted(found.items())
        if count
    }
    failed: list[FailedFile] = []
    size_bytes = 0
    for path, status, reason in report.not_whole:
        if status not in _LOST_FILES:
            continue
        failed.append(FailedFile(path=path, reason=_shortened(reason or status, _MAX_REASON_CHARS)))
        size_bytes += len(to_wire(failed[-1]))
        if size_bytes > _MAX_FAILED_BYTES or len(failed) > MAX_FAILED_FILES:
            failed.pop()
            break
    return SyncResult(
        sync_id=request.sync_id,
        project_id=request.project_id,
        graph_version=report.graph_version,
        snapshot_id=report.snapshot_id,
        counts=counts,
        failed=tuple(failed),
    )


def _contents(request: SyncRequest) -> dict[str, bytes | None]:
    """The files by path. Raises InvalidRequest for a path that is none, or stands there twice."""
    contents: dict[str, bytes | None] = {}
    for number, file in enumerate(request.files or ()):
        if not is_clean(file.path):
            raise _invalid(f"files.{number}.path", "is not a relative path in its plain spelling")
        if file.path in contents:
            raise _invalid(f"files.{number}.path", f"repeats {_shortened(file.path, _QUOTED_CHARS)!r}")
        contents[file.path] = None if file.content is None else file.content.encode()
    return contents


def _invalid(field: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {problem}", errors=[{"field": field, "message": problem}], error_count=1)


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
