"""What an index comes to, whichever way it was come to, and what it is refused for."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass

from worker.code.assembling import digest_inputs
from worker.code.catalogue import Catalogue, Entry
from worker.code.history import History
from worker.code.index_values import IndexProgress, NothingIndexed, OnProgress, Phase
from worker.code.languages import is_source, language_of
from worker.code.linking import FileLinks, Linker
from worker.code.outlines import Outline
from worker.code.reading import FileReading
from worker.graph.model import GraphChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The change to a graph, and what is known of the graph that it leads to."""

    change: GraphChange
    catalogue: Catalogue
    outlines: Mapping[str, Outline]
    history: History
    files_read: int = 0
    files_linked: int = 0


class Watch:
    """Tells how far an index is, and measures its phases."""

    def __init__(self, on_progress: OnProgress) -> None:
        """Tell `on_progress`."""
        self._on_progress = on_progress
        self.seconds: defaultdict[Phase, float] = defaultdict(float)

    @contextlib.contextmanager
    def phase(self, phase: Phase) -> Generator[None]:
        """Count what is done in this context for the phase."""
        self.step(phase, 0, 0)
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - started

    def step(self, phase: Phase, done: int, total: int) -> None:
        """Tell of one step."""
        self._on_progress(IndexProgress(phase, done, total))


def link_files(
    readings: Mapping[str, FileReading], paths: Collection[str], watch: Watch
) -> dict[str, FileLinks]:
    """The links of those of the files that have names to link, found among all. O(definitions + calls)."""
    linkable = [path for path in sorted(paths) if readings[path].facts is not None]
    links: dict[str, FileLinks] = {}
    if linkable:
        linker = Linker(readings)
        for done, path in enumerate(linkable, start=1):
            links[path] = linker.link(path)
            watch.step("link", done, len(linkable))
    return links


def documents_of(readings: Iterable[FileReading]) -> dict[str, dict[str, str]]:
    """What files hold for steps over all files, by kind and path, in order of path."""
    documents: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for reading in sorted(readings, key=lambda reading: reading.path):
        for kind, text in reading.documents:
            documents[kind][reading.path] = text
    return documents


def snapshot_of(files: Mapping[str, Entry], history: History, *, rules: str) -> str:
    """The id of the snapshot that is made of these files."""
    read = {path: (entry.sha256, entry.status) for path, entry in files.items()}
    return digest_inputs(read, history, rules=rules)


def require_symbols(files: Mapping[str, Entry], outlines: Mapping[str, Outline]) -> None:
    """Raises NothingIndexed where source files gave no symbol at all."""
    if any(outline.has_symbols for outline in outlines.values()):
        return
    sources = [path for path, entry in files.items() if is_source(entry.language or language_of(path))]
    if sources:
        reasons = sorted({files[path].reason or "no reader for it" for path in sources})
        raise NothingIndexed(
            f"none of {len(sources)} source files gave a symbol; the first is {min(sources)}"
            f" ({'; '.join(reasons[:3])})"
        )
