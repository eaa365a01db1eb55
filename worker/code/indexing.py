"""A source tree to a graph in a store: scan, read, link, assemble, and apply what differs as one change.

What an earlier index left is used where it still holds: a file whose stamp is the same is not read, one whose
content is the same is not parsed, one in which no name has another meaning is not linked. The result is the
same as without. The change is applied as a whole, so an index that dies leaves the graph that was there.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from schemas.graph import NodeLabel, Relation
from worker.code import kept as keeping
from worker.code.affected import affected_paths
from worker.code.assembling import RULES, IndexedFile, ProjectStep, assemble, digest_inputs
from worker.code.facts_codec import encode_reading
from worker.code.history import History, read_head, read_history
from worker.code.kept import Kept, Stamped, read_kept, reading_key
from worker.code.languages import is_source, language_of
from worker.code.linking import FileLinks, Linker
from worker.code.readers import READERS, STEPS
from worker.code.reading import FileReaders, FileReading
from worker.code.reading_pool import read_files
from worker.code.scan import MAX_FILE_BYTES, FileStamp, scan_tree
from worker.code.skipping import SkipRule, is_usable_name, skip_content, skip_name, skip_size
from worker.errors import GraphConflict, WorkerError
from worker.graph.diff import diff_contents
from worker.graph.model import FileStatus, GraphContents, GraphHead, Node
from worker.graph.store import GraphStore

VERSION: Final = 1
"""Raise it with any change to what an index gives for the same files."""

MAX_ATTEMPTS: Final = 5
_EMPTY: Final = GraphContents(nodes=(), edges=())
_SYMBOLS: Final[tuple[NodeLabel, ...]] = ("Module", "Class", "Function")
Phase = Literal["load", "scan", "read", "link", "store"]


class NothingIndexed(WorkerError):
    """No file gave a symbol: the graph stays as it was, since an empty one would look like a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions:
    """What an index does. `processes` is how many read files, 0 one a core; it changes no result."""

    readers: FileReaders = READERS
    steps: tuple[ProjectStep, ...] = STEPS
    max_file_bytes: int = MAX_FILE_BYTES
    with_history: bool = True
    processes: int = 0
    unsettled_seconds: float = 2.0
    """A file that was written so shortly before a scan may be written again under the same stamp, and is read
    again by the next one."""

    @property
    def rules(self) -> str:
        """A digest of all that decides what becomes of a file."""
        parts = [*self.readers.first, None, *self.readers.also, None, *(step.add for step in self.steps)]
        names = ["" if part is None else f"{part.__module__}:{part.__qualname__}" for part in parts]
        text = "\n".join([str(VERSION), str(keeping.FORMATS), *names])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """How far an index is: of some phases the total is not known beforehand, and is 0."""

    phase: Phase
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport:
    """What an index gave. Counts are of the whole graph, not of what this index did, unless they say so."""

    project_id: str
    graph_version: int
    snapshot_id: str
    is_changed: bool
    """Whether the graph differs from the one that was there."""
    files: Mapping[FileStatus, int]
    nodes: Mapping[NodeLabel, int]
    edges: Mapping[Relation, int]
    guessed_edges: Mapping[Relation, int]
    exact_calls: int
    guessed_calls: int
    unresolved_calls: int
    """Calls in the source that lead to no edge: most are of other packages."""
    skipped: Mapping[SkipRule, int]
    not_whole: tuple[tuple[str, FileStatus, str], ...]
    """Path, status and reason of each file that was not wholly parsed, in order of path."""
    files_read: int
    """By this index: those whose content was new."""
    files_linked: int
    """By this index: those in which a name may have got another meaning."""
    history_reason: str
    seconds: Mapping[Phase, float]

    @property
    def symbols(self) -> int:
        """Modules, classes and functions."""
        return sum(self.nodes.get(label, 0) for label in _SYMBOLS)


OnProgress = Callable[[IndexProgress], object]
"""Called from another thread than the event loop's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """The graph that is there, and what earlier indexes kept."""

    head: GraphHead | None = None
    contents: GraphContents = _EMPTY
    kept: Kept = field(default_factory=Kept)
    rules: str = ""

    @property
    def version(self) -> int:
        return self.head.graph_version if self.head else 0


class IndexCache:
    """Graphs as the last indexes left them, so that the next need not load them. For one event loop."""

    def __init__(self, *, max_projects: int = 1) -> None:
        """Keep the most recent ones."""
        self._max_projects = max_projects
        self._bases: OrderedDict[str, _Base] = OrderedDict()

    def get(self, project_id: str, head: GraphHead | None) -> _Base | None:
        """What is kept, if it still is what the store holds."""
        base = self._bases.get(project_id)
        return base if base is not None and base.head == head else None

    def put(self, project_id: str, base: _Base) -> None:
        """Keep it in place of what was there."""
        self._bases[project_id] = base
        self._bases.move_to_end(project_id)
        while len(self._bases) > self._max_projects:
            self._bases.popitem(last=False)


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
    run = _Run(store, project_id, options or IndexOptions(), on_progress, cache)

    def collect(base: _Base) -> _Sources:
        sources = run.scan(root, base)
        if not sources.files:
            raise NothingIndexed(f"no file to index below {root}")
        return sources

    return await run.index(collect)


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
    run = _Run(store, project_id, options or IndexOptions(), on_progress, cache)

    def collect(base: _Base) -> _Sources:
        return run.take(files, base)

    return await run.index(collect)


def is_clean(path: str) -> bool:
    """Whether a path is one that a scan gives: relative, spelled in one way, valid Unicode on one line."""
    names = path.split("/")
    return all(names) and not {".", ".."} & set(names) and all(map(is_usable_name, names))


@dataclass(frozen=True, slots=True)
class _Source:
    """One file of the graph to be. Without content, what was kept of it is meant."""

    sha256: str
    size_bytes: int
    content: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    """All files of the graph to be."""

    files: Mapping[str, _Source]
    stamps: Mapping[str, Stamped]
    skipped: Mapping[SkipRule, int]
    history: History


@dataclass(frozen=True, slots=True, kw_only=True)
class _Computed:
    """The graph to be, and what is kept with it."""

    contents: GraphContents
    snapshot_id: str
    kept: Kept
    added_facts: tuple[tuple[str, bytes], ...]
    removed_facts: tuple[str, ...]
    links: Mapping[str, FileLinks]
    files_read: int = 0
    files_linked: int = 0


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
        self._on_progress = on_progress
        self._cache = cache
        self._seconds: defaultdict[Phase, float] = defaultdict(float)

    async def index(self, collect: Callable[[_Base], _Sources]) -> IndexReport:
        """Compute the change and apply it; again from what is there now, where another writer was faster."""
        for attempt in range(MAX_ATTEMPTS):
            base = await self._load()
            sources, computed = await asyncio.to_thread(self._compute, base, collect)
            try:
                return await self._apply(base, sources, computed)
            except GraphConflict:
                if attempt == MAX_ATTEMPTS - 1:
                    raise
        raise AssertionError

    async def _load(self) -> _Base:
        with self._phase("load"), _collector_paused():
            head = await self._store.head(self._project_id)
            base = self._cache.get(self._project_id, head) if self._cache else None
            if base is None:
                loaded = await self._store.load(self._project_id)
                facts = await self._store.load_facts(self._project_id)
                base = await asyncio.to_thread(self._base, loaded, facts)
        return base

    def _base(self, loaded: tuple[GraphHead, GraphContents] | None, facts: Mapping[str, bytes]) -> _Base:
        head, contents = loaded or (None, _EMPTY)
        project = next((node for node in contents.nodes if node.label == "Project"), None)
        rules = project.property(RULES) if project else ""
        kept = read_kept(facts)
        if rules != self._options.rules:
            # Stamps and links speak of readings that other rules gave.
            kept = Kept(keys=kept.keys, history=kept.history)
        return _Base(head=head, contents=contents, kept=kept, rules=rules)

    def scan(self, root: Path, base: _Base) -> _Sources:
        """The files below `root`, and the history."""
        kept, rules = base.kept, self._options.rules

        def known(path: str, stamp: FileStamp) -> str | None:
            found = kept.stamps.get(path)
            if found is None or found.stamp != stamp:
                return None
            reading = kept.readings.get(reading_key(path, found.sha256, rules=rules))
            return found.sha256 if reading is not None and reading[0].status != "stale" else None

        with self._phase("scan"):
            settled_ns = time.time_ns() - int(self._options.unsettled_seconds * 1e9)
            scan = scan_tree(root, max_file_bytes=self._options.max_file_bytes, known=known)
            history = History()
            if self._options.with_history:
                head = read_head(root)
                is_known = bool(head) and head == kept.history.head
                history = kept.history if is_known else read_history(root, head=head)
        return _Sources(
            files={file.path: _Source(file.sha256, file.size_bytes, file.content) for file in scan.files},
            stamps={
                file.path: Stamped(file.stamp, file.sha256)
                for file in scan.files
                if file.stamp is not None and file.stamp.written_ns < settled_ns
            },
            skipped=scan.skipped,
            history=history,
        )

    def take(self, files: Mapping[str, bytes | None], base: _Base) -> _Sources:
        """The files of the graph that is there, with those that are given in place of theirs."""
        sources = {
            node.id: _Source(node.property("sha256"), int(node.property("size_bytes") or 0), None)
            for node in base.contents.nodes
            if node.label == "File" and node.id not in files
        }
        skipped = Counter[SkipRule]()
        for path, content in files.items():
            if content is None:
                continue
            name = path.rsplit("/", 1)[-1]
            size_bytes = len(content)
            rule = (
                skip_name(name)
                or skip_size(path, size_bytes=size_bytes, max_file_bytes=self._options.max_file_bytes)
                or skip_content(path, content)
            )
            if rule is None:
                sources[path] = _Source(hashlib.sha256(content).hexdigest(), size_bytes, content)
            else:
                skipped[rule] += 1
        stamps = {path: found for path, found in base.kept.stamps.items() if path not in files}
        return _Sources(
            files=sources,
            stamps=stamps,
            skipped={rule: skipped[rule] for rule in sorted(skipped)},
            history=base.kept.history,
        )

    def _compute(self, base: _Base, collect: Callable[[_Base], _Sources]) -> tuple[_Sources, _Computed]:
        sources = collect(base)
        with _collector_paused():
            files, files_read = self._read(base, sources)
            with self._phase("link"):
                links, files_linked = self._link(base, files)
                computed = self._assemble(base, sources, files, links)
        return sources, replace(computed, files_read=files_read, files_linked=files_linked)

    def _read(self, base: _Base, sources: _Sources) -> tuple[dict[str, IndexedFile], int]:
        """The readings of all files, kept ones where there are."""
        rules, kept = self._options.rules, base.kept.readings
        keys = {path: reading_key(path, source.sha256, rules=rules) for path, source in sources.files.items()}
        jobs = [
            (path, source.content)
            for path, source in sources.files.items()
            if source.content is not None and _is_to_be_read(kept.get(keys[path]))
        ]
        with self._phase("read"):
            fresh = read_files(
                jobs,
                self._options.readers,
                processes=self._options.processes,
                on_read=lambda done: self._on_progress(IndexProgress("read", done, len(jobs))),
            )
        files: dict[str, IndexedFile] = {}
        for path in sorted(sources.files):
            source = sources.files[path]
            found = fresh.get(path) or kept.get(keys[path])
            if found is None:
                stale = _stale(path, base.contents)
                found = stale, encode_reading(stale)
            files[path] = IndexedFile(
                reading=found[0], sha256=source.sha256, size_bytes=source.size_bytes, kept=found[1]
            )
        return files, len(jobs)

    def _link(
        self, base: _Base, files: Mapping[str, IndexedFile]
    ) -> tuple[dict[str, tuple[FileLinks, str]], int]:
        """The links of all files, each with the key under which they are kept, if they are."""
        readings = {path: file.reading for path, file in files.items()}
        again = self._to_link(base, readings, files)
        links = {path: found for path, found in base.kept.links.items() if path in readings}
        wanted = [path for path in readings if path in again or path not in links]
        linkable = [path for path in wanted if readings[path].facts is not None]
        for path in wanted:
            links.pop(path, None)
        if linkable:
            linker = Linker(readings)
            for done, path in enumerate(linkable, start=1):
                found = linker.link(path)
                known = base.kept.links.get(path)
                links[path] = known if known is not None and known[0] == found else (found, "")
                self._on_progress(IndexProgress("link", done, len(linkable)))
        return links, len(linkable)

    def _to_link(
        self, base: _Base, readings: Mapping[str, FileReading], files: Mapping[str, IndexedFile]
    ) -> frozenset[str]:
        """The files whose kept links may not hold any more."""
        old: dict[str, FileReading] = {}
        changed: set[str] = set()
        known = {node.id: node.property("sha256") for node in base.contents.nodes if node.label == "File"}
        for path, sha256 in known.items():
            found = base.kept.readings.get(reading_key(path, sha256, rules=self._options.rules))
            if found is None:
                return frozenset(readings)
            old[path] = found[0]
        for path in known.keys() | readings.keys():
            is_same = path in files and known.get(path) == files[path].sha256
            if not is_same or old[path].status != readings[path].status:
                changed.add(path)
        if not changed:
            return frozenset()
        affected = affected_paths(old, readings, changed=changed)
        return frozenset(readings) if affected is None else affected

    def _assemble(
        self,
        base: _Base,
        sources: _Sources,
        files: Mapping[str, IndexedFile],
        links: Mapping[str, tuple[FileLinks, str]],
    ) -> _Computed:
        rules = self._options.rules
        plain = {path: found for path, (found, _) in links.items()}
        contents = assemble(
            self._project_id,
            files,
            plain,
            history=sources.history,
            rules=rules,
            steps=self._options.steps,
        )
        _require_symbols(contents, files)
        readings: dict[str, tuple[FileReading, bytes]] = {}
        facts: dict[str, bytes | None] = {}
        for path, file in files.items():
            key = reading_key(path, file.sha256, rules=rules)
            readings[key] = file.reading, file.kept
            facts[key] = file.kept
        keyed: dict[str, tuple[FileLinks, str]] = {}
        for path, (found, key) in links.items():
            if key:
                keyed[path], facts[key] = (found, key), None
            else:
                key, value = keeping.links_fact(path, found)  # noqa: PLW2901 - it is made here
                keyed[path], facts[key] = (found, key), value
        facts |= dict((keeping.stamps_fact(sources.stamps), keeping.history_fact(sources.history)))
        keys = base.kept.keys
        return _Computed(
            contents=contents,
            snapshot_id=digest_inputs(files, sources.history, rules=rules),
            kept=Kept(
                readings=readings,
                links=keyed,
                stamps=sources.stamps,
                history=sources.history,
                keys=frozenset(facts),
            ),
            added_facts=tuple(
                (key, value) for key, value in sorted(facts.items()) if value is not None and key not in keys
            ),
            removed_facts=tuple(sorted(keys - facts.keys())),
            links=plain,
        )

    async def _apply(self, base: _Base, sources: _Sources, computed: _Computed) -> IndexReport:
        with self._phase("store"):
            change = await asyncio.to_thread(diff_contents, base.contents, computed.contents)
            head = base.head
            is_changed = head is None or not change.is_empty or head.snapshot_id != computed.snapshot_id
            if is_changed:
                head = await self._store.apply(
                    self._project_id,
                    replace(change, added_facts=computed.added_facts, removed_facts=computed.removed_facts),
                    snapshot_id=computed.snapshot_id,
                    expected_version=base.version,
                )
                kept = computed.kept
            else:
                # Nothing but stamps can differ, for which a new version would drop every cache.
                kept = replace(computed.kept, keys=base.kept.keys)
        assert head is not None  # noqa: S101 - it is changed where there was none
        if self._cache is not None:
            rules = self._options.rules
            fresh = _Base(head=head, contents=computed.contents, kept=kept, rules=rules)
            self._cache.put(self._project_id, fresh)
        return self._report(head, sources, computed, is_changed=is_changed)

    def _report(
        self, head: GraphHead, sources: _Sources, computed: _Computed, *, is_changed: bool
    ) -> IndexReport:
        contents = computed.contents
        files = [node for node in contents.nodes if node.label == "File"]
        links = computed.links.values()
        return IndexReport(
            project_id=self._project_id,
            graph_version=head.graph_version,
            snapshot_id=head.snapshot_id,
            is_changed=is_changed,
            files=Counter(_status(node) for node in files),
            nodes=Counter(node.label for node in contents.nodes),
            edges=Counter(edge.relation for edge in contents.edges),
            guessed_edges=Counter(edge.relation for edge in contents.edges if edge.resolution == "guess"),
            exact_calls=sum(found.exact_calls for found in links),
            guessed_calls=sum(found.guessed_calls for found in links),
            unresolved_calls=sum(found.unresolved_calls for found in links),
            skipped=sources.skipped,
            not_whole=tuple(
                (node.id, _status(node), node.property("reason"))
                for node in files
                if node.property("status") != "parsed"
            ),
            files_read=computed.files_read,
            files_linked=computed.files_linked,
            history_reason=sources.history.reason,
            seconds=dict(self._seconds),
        )

    @contextlib.contextmanager
    def _phase(self, phase: Phase) -> Generator[None]:
        self._on_progress(IndexProgress(phase, 0, 0))
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] += time.perf_counter() - started


def _require_symbols(contents: GraphContents, files: Mapping[str, IndexedFile]) -> None:
    """Raises NothingIndexed where source files gave no symbol at all."""
    sources = [path for path, file in files.items() if is_source(file.reading.language or language_of(path))]
    has_symbols = any(node.label in _SYMBOLS and not node.property("parse_error") for node in contents.nodes)
    if sources and not has_symbols:
        reasons = sorted({files[path].reading.reason or "no reader for it" for path in sources})
        raise NothingIndexed(
            f"none of {len(sources)} source files gave a symbol; the first is {min(sources)}"
            f" ({'; '.join(reasons[:3])})"
        )


def _is_to_be_read(found: tuple[FileReading, bytes] | None) -> bool:
    return found is None or found[0].status == "stale"


def _stale(path: str, contents: GraphContents) -> FileReading:
    """What the graph holds of a file that would have to be read again, and whose content is not at hand."""
    nodes = tuple(node for node in contents.nodes if node.path == path and node.label != "File")
    refs = {node.ref for node in nodes}
    file = next((node for node in contents.nodes if node.label == "File" and node.id == path), None)
    edges = tuple(
        edge
        for edge in contents.edges
        if edge.relation == "DEFINES"
        and edge.target in refs
        and (edge.source in refs or (edge.source.label == "File" and edge.source.id == path))
    )
    return FileReading(
        path=path,
        language=file.language if file else "",
        status="stale",
        reason="read by other rules; its content was not sent again",
        nodes=nodes,
        edges=edges,
    )


def _status(node: Node) -> FileStatus:
    status: FileStatus = node.property("status")  # pyright: ignore[reportAssignmentType] - as assembled
    return status


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
