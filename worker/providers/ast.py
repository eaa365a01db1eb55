"""The AST layer: what the target files' own source says, without model.

Target files are those that the payload names, below the project directory; only Python files give signals.
They are read in a thread, and parsed there where they are short, else in a process of their own. Ids, lines
and texts are relative to the project directory, so the same files give the same bytes on every host. A worker
that does not see the files takes what an index of the project kept of them, and says so. Where the project
has a graph, it says who else calls what stands in them, and which requirements there are.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from schemas.codes import PartName, TaskType
from schemas.request import AssemblyRequest, layer_timeout_ms
from worker.code.cache import BoundedCache, FactsCache, memory_bytes
from worker.code.extracting_pool import ExtractingPool, Stop
from worker.code.extracting_process import extract_at_thread_start
from worker.code.facts import ModuleFacts
from worker.code.sources import (
    MAX_SOURCE_BYTES,
    Missing,
    Refused,
    SourceFile,
    SourceRoots,
    SourceTree,
    clean_path,
)
from worker.errors import Unavailable
from worker.graph.links import names_in
from worker.graph.model import NodeRef
from worker.graph.question import MAX_TEXT_CHARS
from worker.graph.snapshot import Snapshot
from worker.ports import LayerBudget, LayerContribution, RequestFrame, Scope
from worker.providers.ast_signals import NOTES_GROUP, write_notes, write_signals
from worker.providers.ast_view import Surroundings, TargetFiles
from worker.providers.contribution import ContributionBuilder, layer_text, no_content
from worker.providers.graph_reader import GraphReader
from worker.providers.indexed_modules import ModuleIndex
from worker.providers.threads import SourceThreads
from worker.targets import is_relative, payload_paths

HEADING: Final = "# AST CONTEXT"
INDEX_SOURCE: Final = "the project's index"
MAX_LINES: Final = 60
MAX_FILES: Final = 200
CACHE_BYTES: Final = 64_000_000
LAYER_CACHE_BYTES: Final = 8_000_000
TARGET_CACHE_BYTES: Final = 16_000_000
"""Of target files that were linked among each other: those of some forty requests, as a rule."""

_SUFFIXES: Final = (".py", ".pyi")
_WAIT_SHARE: Final = 0.6
"""Of the layer's timeout, what is spent on waiting for the graph; the files alone are worth showing."""

_Build = Callable[[Surroundings], LayerContribution]
_NOTHING_AROUND: Final = Surroundings()


class AstProvider:
    """Reads the target files below the project's roots. What was extracted once is kept, by content."""

    layer: PartName = "ast"

    def __init__(
        self,
        roots: SourceRoots,
        *,
        index: ModuleIndex | None = None,
        graph: GraphReader | None = None,
        max_source_bytes: int = MAX_SOURCE_BYTES,
        max_lines: int = MAX_LINES,
        cache_bytes: int = CACHE_BYTES,
        threads: SourceThreads | None = None,
        pool: ExtractingPool | None = None,
    ) -> None:
        """`max_lines` caps the whole block; `cache_bytes` what is kept of files between requests.

        `index` is asked where the project has no root here, or none that can be opened; `graph` for what the
        files cannot say. Threads and processes are its own where none are given.
        """
        self._roots = roots
        self._index = index
        self._graph = graph
        self._threads = threads or SourceThreads()
        self._max_source_bytes = max_source_bytes
        self._max_lines = max_lines
        self._facts = FactsCache(max_bytes=cache_bytes, pool=pool)
        self._targets = BoundedCache[tuple[object, ...], TargetFiles](max_bytes=TARGET_CACHE_BYTES)
        self._layers = BoundedCache[tuple[object, ...], LayerContribution](max_bytes=LAYER_CACHE_BYTES)

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        """The signals of the files in `payload.files_created`.

        `empty` without files or signals, `off` where the project has neither root nor index, `partial` with
        `refused_path` where a path was refused, else with `section_error` where a file could not be parsed
        whole, or where there is a graph that did not answer in time. A cancelled call ends at once, unless a
        file system holds it up. Raises Unavailable where a root cannot be opened and there is no index, or
        where that cannot be asked.
        """
        del budget  # the block's cap is in lines
        payload = frame.request.payload
        files = [path for path in payload.files_created if path.strip()]
        if not files:
            return no_content(self.layer, "no_data")
        asking = asyncio.ensure_future(self._snapshot(frame, scope))
        try:
            build = await self._reading(files, frame, scope)
            if isinstance(build, LayerContribution):
                return build
            return await self._built(build, frame, asking)
        finally:
            # Not waited for: what hangs in the graph must not hold up what the files say.
            asking.cancel()
            asking.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _snapshot(self, frame: RequestFrame, scope: Scope) -> Snapshot | None:
        """The project's graph; None without one, and for work that is to see nothing of it."""
        if self._graph is None or not frame.subject.inject:
            return None
        paths = [path for path in payload_paths(frame.request) if path.endswith(_SUFFIXES)][:MAX_FILES]
        roots = [
            ref for path in paths for ref in (NodeRef("File", path), NodeRef("Module", f"{path}::<module>"))
        ]
        return await self._graph.snapshot(frame, scope, roots=roots)

    async def _built(
        self, build: _Build, frame: RequestFrame, asking: asyncio.Future[Snapshot | None]
    ) -> LayerContribution:
        """The layer with what the graph says, `partial` without it where there should be one."""
        wait_seconds = _WAIT_SHARE * layer_timeout_ms(frame.request, "ast") / 1_000
        await asyncio.wait({asking}, timeout=wait_seconds)
        snapshot: Snapshot | None = None
        is_missing = not asking.done()
        if asking.done():
            try:
                snapshot = asking.result()
            except Unavailable:
                is_missing = True
        around = partial(_surroundings, frame.request, snapshot)
        layer = await self._threads.compute(lambda: build(around()))
        if is_missing and layer.status == "ok":
            return replace(layer, status="partial", reason="section_error")
        return layer

    async def _reading(
        self, files: Sequence[str], frame: RequestFrame, scope: Scope
    ) -> _Build | LayerContribution:
        """How to build the layer from what was read; the layer itself where there is nothing to build."""
        if not self._roots.is_configured(scope.project_id):
            build = await self._from_index(frame, scope)
            return build or LayerContribution(layer=self.layer, status="off", reason="not_configured")
        stop = Stop()
        read = partial(
            self._read, files, frame.request.payload.project_dir, scope.project_id, frame.task_type, stop
        )
        try:
            build = await self._threads.run(read, stop=stop)
        except Unavailable:
            # A root of another host, or one that is not mounted now.
            build = await self._from_index(frame, scope)
            if build is None:
                raise
        return build or await self._from_index(frame, scope) or no_content(self.layer, "no_data")

    async def _from_index(self, frame: RequestFrame, scope: Scope) -> _Build | None:
        """How to build the signals of what an index kept; None where there is no index."""
        if self._index is None:
            return None
        named = payload_paths(frame.request)
        paths = [path for path in named if path.endswith(_SUFFIXES)]
        found = await self._index.find(scope.project_id, paths[:MAX_FILES])
        if found is None:
            return None

        def build(around: Surroundings) -> LayerContribution:
            layer = build_signals(
                TargetFiles(found.modules, ()),
                project_id=scope.project_id,
                task_type=frame.task_type,
                max_lines=self._max_lines,
                source=INDEX_SOURCE,
                around=replace(around, folder=""),
            )
            if found.not_whole and layer.status == "ok":
                layer = replace(layer, status="partial", reason="section_error")
            return replace(layer, capped=layer.capped + len(paths[MAX_FILES:]))

        return build

    async def prepare(self) -> None:
        """Have a process ready for the first long file; without it that file waits for the start of one."""
        await self._threads.run(self._facts.prepare)

    def _read(
        self,
        files: Sequence[str],
        project_dir: str | None,
        project_id: str,
        task_type: TaskType,
        stop: Stop,
    ) -> _Build | None:
        """How to build the layer; None where the directory does not exist."""
        tree = self._roots.open(project_id, project_dir, max_bytes=self._max_source_bytes)
        if isinstance(tree, Missing):
            return None
        if isinstance(tree, Refused):
            # Named for what it is: the path itself is one of this host's.
            reading = Reading(TargetFiles((), (Refused("project_dir", tree.reason),)), (), 0)
            return partial(self._signals, reading, project_id, task_type)
        with tree:
            reading = read_targets(
                tree, files, facts_of=lambda file: self._facts.facts(project_id, file, stop=stop)
            )
        return partial(self._signals, self._known(project_id, reading), project_id, task_type)

    def _known(self, project_id: str, reading: Reading) -> Reading:
        """The reading, with what an equal one made of its files before."""
        key = (project_id, reading.key)
        targets = self._targets.get(key)
        if targets is None:
            size_bytes = sum(map(memory_bytes, reading.targets.modules))
            self._targets.put(key, reading.targets, size_bytes=size_bytes)
            return reading
        return replace(reading, targets=targets)

    def _signals(
        self, reading: Reading, project_id: str, task_type: TaskType, around: Surroundings
    ) -> LayerContribution:
        """The layer, kept by all that it is made of."""
        graph = around.snapshot
        seen = None if graph is None else (graph.head, around.folder)
        around = replace(around, named=around.named & reading.targets.names)
        key = (project_id, task_type, reading.key, reading.targets.refused, around.named, seen)
        # A part of a graph is another for another request, whatever its version.
        is_kept = graph is None or not graph.is_part
        layer = self._layers.get(key) if is_kept else None
        if layer is None:
            layer = build_signals(
                reading.targets,
                project_id=project_id,
                task_type=task_type,
                max_lines=self._max_lines,
                around=around,
            )
            if is_kept:
                self._layers.put(key, layer, size_bytes=_size_bytes(layer, reading))
        return replace(layer, capped=layer.capped + reading.left_out)


def _surroundings(request: AssemblyRequest, snapshot: Snapshot | None) -> Surroundings:
    """What is known beside the files: by which names the request may speak of what stands in them."""
    tests = request.working.failing_tests if request.working is not None else ()
    text = "\n".join((request.user_message, *(f"{test.id}\n{test.message or ''}" for test in tests)))
    folder = posixpath.normpath(request.payload.project_dir or "")
    return Surroundings(
        named=frozenset(names_in(text[:MAX_TEXT_CHARS])),
        snapshot=snapshot,
        folder=folder if is_relative(folder) else "",
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """The target files as they were found. Of equal projects, readings with equal keys are equal."""

    targets: TargetFiles
    key: tuple[tuple[str, bytes] | Refused, ...]
    left_out: int
    """Files beyond the first `MAX_FILES`, which were not looked at."""


def read_targets(
    tree: SourceTree,
    files: Iterable[str],
    *,
    facts_of: Callable[[SourceFile], ModuleFacts | None],
) -> Reading:
    """The facts of the Python files among `files`, each once, in their order; and what was refused.

    Other files are looked at only for where they lead. What is not there is passed over. Ends early, with
    what it has, once `facts_of` gives None. Blocks.
    """
    named = list(dict.fromkeys(clean_path(path) or path for path in files))
    modules: list[ModuleFacts] = []
    refused: list[Refused] = []
    key: list[tuple[str, bytes] | Refused] = []
    for path in named[:MAX_FILES]:
        found = tree.read(path) if path.endswith(_SUFFIXES) else tree.look(path)
        if isinstance(found, SourceFile):
            facts = facts_of(found)
            if facts is None:
                break
            modules.append(facts)
            key.append((found.path, found.sha256))
        elif isinstance(found, Refused):
            refused.append(found)
            key.append(found)
    return Reading(TargetFiles(tuple(modules), tuple(refused)), tuple(key), len(named[MAX_FILES:]))


def render_ast_context(
    target_files: Sequence[str],
    *,
    root: Path,
    project_id: str = "local",
    task_type: TaskType = "BUILD",
    max_lines: int = MAX_LINES,
) -> str:
    """The block as text, at most `max_lines` lines, of files named relative to `root`.

    Empty where no file is named, none can be read, or none gives a signal. Reads files: blocks.
    """
    try:
        tree = SourceRoots({project_id: (root,)}).open(project_id, None)
    except Unavailable:
        return ""
    if not isinstance(tree, SourceTree):
        return ""
    with tree:
        files = [path for path in target_files if path.strip()]
        reading = read_targets(tree, files, facts_of=_extract)
    layer = build_signals(reading.targets, project_id=project_id, task_type=task_type, max_lines=max_lines)
    has_signals = any(fragment.group != NOTES_GROUP for fragment in layer.fragments)
    return layer_text(layer) if has_signals else ""


def _extract(file: SourceFile) -> ModuleFacts:
    return extract_at_thread_start(file.path, file.content)


def build_signals(
    targets: TargetFiles,
    *,
    project_id: str,
    task_type: TaskType,
    max_lines: int = MAX_LINES,
    source: str = "",
    around: Surroundings = _NOTHING_AROUND,
) -> LayerContribution:
    """The layer from what was read, one line a fragment. A pure function of its arguments.

    `source` names where that was, if not in the files themselves; `around` is what is known beside them.
    """
    heading = f"{HEADING}\nproject_id: {project_id}" + (f"\nsource: {source}" if source else "")
    block = ContributionBuilder("ast", heading=heading, resource_type="code")
    write_signals(block, targets, task_type=task_type, around=around)
    write_notes(block, targets)
    # The builder counts one line for the heading, which here has more.
    layer = block.finish(max_lines=max_lines - heading.count("\n"))
    if targets.refused:
        return replace(layer, status="partial", reason="refused_path")
    if targets.unparsed:
        return replace(layer, status="partial", reason="section_error")
    return layer


def _size_bytes(layer: LayerContribution, reading: Reading) -> int:
    """About what a kept layer and its key take in memory."""
    texts = sum(len(r.text) for fragment in layer.fragments for r in fragment.renderings)
    return 2_000 + 1_500 * len(layer.fragments) + 4 * texts + 300 * len(reading.key)
