"""What an index is told, what it says while it runs, and what it says at its end."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from schemas.graph import NodeLabel, Relation
from worker.code.catalogue import Catalogue
from worker.code.kept import FORMATS
from worker.code.readers import READERS, STEPS
from worker.code.reading import FileReaders
from worker.code.scan import MAX_FILE_BYTES
from worker.code.skipping import SkipRule
from worker.code.steps import ProjectStep
from worker.errors import WorkerError
from worker.graph.model import FileStatus, GraphHead

VERSION: Final = 4
"""Raise it with any change to what an index gives for the same files."""

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
        text = "\n".join([str(VERSION), str(FORMATS), *names])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """How far an index is: of some phases the total is not known beforehand, and is 0."""

    phase: Phase
    done: int
    total: int


OnProgress = Callable[[IndexProgress], object]
"""Called from another thread than the event loop's."""


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
    """Entries by the rule that left them out; a folder counts as one."""
    skipped_paths: tuple[tuple[str, SkipRule], ...]
    """Path and rule of each of them, in order of path; of very many not all."""
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


def report_of(
    catalogue: Catalogue,
    *,
    project_id: str,
    head: GraphHead,
    is_changed: bool,
    skipped: Mapping[SkipRule, int],
    skipped_paths: tuple[tuple[str, SkipRule], ...],
    files_read: int,
    files_linked: int,
    seconds: Mapping[Phase, float],
) -> IndexReport:
    """The report of an index that left the graph of this catalogue. O(files)."""
    files, totals = catalogue.files, catalogue.totals
    return IndexReport(
        project_id=project_id,
        graph_version=head.graph_version,
        snapshot_id=head.snapshot_id,
        is_changed=is_changed,
        files=Counter([entry.status for entry in files.values()]),
        nodes=totals.nodes,
        edges=totals.edges,
        guessed_edges=totals.guessed_edges,
        exact_calls=sum(entry.exact_calls for entry in files.values()),
        guessed_calls=sum(entry.guessed_calls for entry in files.values()),
        unresolved_calls=sum(entry.unresolved_calls or 0 for entry in files.values()),
        skipped=skipped,
        skipped_paths=skipped_paths,
        not_whole=tuple(
            [
                (path, entry.status, entry.reason)
                for path, entry in sorted(files.items())
                if entry.status != "parsed"
            ]
        ),
        files_read=files_read,
        files_linked=files_linked,
        history_reason=catalogue.history_reason,
        seconds=dict(seconds),
    )
