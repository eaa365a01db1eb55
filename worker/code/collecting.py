"""Which files a graph is to be made of: those below a folder, or those that were there with some replaced.

What is known of a file spares reading it: where its stamp is the known one, so is its content.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from worker.code.catalogue import Catalogue, Entry
from worker.code.history import History, read_head, read_history
from worker.code.index_values import IndexOptions
from worker.code.kept import history_fact
from worker.code.scan import FileStamp, scan_tree
from worker.code.skipping import Skipped, SkipRule, skip_content, skip_name, skip_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What an earlier index left: its files, whose content need not be read again, and the git commit."""

    files: Mapping[str, Entry] = field(default_factory=dict[str, Entry])
    history_head: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """One file of the graph to be. Without content, what was known of it is meant."""

    sha256: str
    size_bytes: int
    content: bytes | None
    stamp: FileStamp | None = None
    """None where the next index has to look at the content again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """All files of the graph to be."""

    files: Mapping[str, Source]
    skipped: Mapping[SkipRule, int]
    skipped_paths: tuple[tuple[str, SkipRule], ...]
    """Path and rule, in order of path; of very many not all."""
    history: History | None
    """None where it is the known one."""


Collect = Callable[[Known], Sources]


def collect_tree(root: Path, known: Known, options: IndexOptions) -> Sources:
    """The files below `root`, and the history. Raises Unavailable where the root cannot be opened."""

    def find(path: str, stamp: FileStamp) -> str | None:
        found = known.files.get(path)
        is_same = found is not None and found.stamp == stamp and found.status != "stale"
        return found.sha256 if found is not None and is_same else None

    settled_ns = time.time_ns() - int(options.unsettled_seconds * 1e9)
    scan = scan_tree(root, max_file_bytes=options.max_file_bytes, known=find)
    history: History | None = History()
    if options.with_history:
        head = read_head(root)
        is_known = bool(head) and head == known.history_head
        history = None if is_known else read_history(root, head=head)
    files: dict[str, Source] = {}
    for file in scan.files:
        is_settled = file.stamp is not None and file.stamp.written_ns < settled_ns
        files[file.path] = Source(
            file.sha256, file.size_bytes, file.content, file.stamp if is_settled else None
        )
    return Sources(files=files, skipped=scan.skipped, skipped_paths=scan.skipped_paths, history=history)


def collect_files(files: Mapping[str, bytes | None], known: Known, options: IndexOptions) -> Sources:
    """The known files, with those that are given in place of theirs; None means deleted."""
    sources = {
        path: Source(entry.sha256, entry.size_bytes, None, entry.stamp)
        for path, entry in known.files.items()
        if path not in files
    }
    skipped = Skipped()
    for path, content in files.items():
        if content is None:
            continue
        name, size_bytes = path.rsplit("/", 1)[-1], len(content)
        rule = (
            skip_name(name)
            or skip_size(path, size_bytes=size_bytes, max_file_bytes=options.max_file_bytes)
            or skip_content(path, content)
        )
        if rule is None:
            sources[path] = Source(hashlib.sha256(content).hexdigest(), size_bytes, content)
        else:
            skipped.add(path, rule)
    return Sources(files=sources, skipped=skipped.counts(), skipped_paths=skipped.paths(), history=None)


def changed_paths(catalogue: Catalogue, sources: Sources) -> list[str]:
    """The files that were added, removed or have another content, sorted. O(files)."""
    old, new = catalogue.files, sources.files
    return sorted(
        path
        for path in old.keys() | new.keys()
        if path not in old or path not in new or old[path].sha256 != new[path].sha256
    )


def is_same(catalogue: Catalogue, sources: Sources) -> bool:
    """Whether the sources are those of the catalogue's graph. O(files)."""
    history = sources.history
    is_same_history = history is None or history_fact(history)[0] == catalogue.history_key
    return is_same_history and not changed_paths(catalogue, sources)
