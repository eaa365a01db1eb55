"""What an index leaves in the store for the next one, beside the graph: readings, links, stamps and history.

All of it can be lost: the next index then reads everything again. Each value's key begins with its kind and
ends with a digest, so a value that changed has another key, and what no index asks for any more is removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, Final

import cramjam

from worker.code.facts_codec import FORMAT as READING_FORMAT
from worker.code.facts_codec import decode_reading
from worker.code.history import Commit, History
from worker.code.linking import FileLinks
from worker.code.reading import FileReading
from worker.code.scan import FileStamp
from worker.graph.model import Edge, NodeRef

_READING: Final = "reading:"
_LINKS: Final = "links:"
_STAMPS: Final = "stamps:"
_HISTORY: Final = "history:"
_FORMAT: Final = 1
FORMATS: Final = (_FORMAT, READING_FORMAT)
"""Of everything that is kept."""


@dataclass(frozen=True, slots=True)
class Stamped:
    """A file's stamp, and what its content was."""

    stamp: FileStamp
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What an earlier index left."""

    readings: Mapping[str, tuple[FileReading, bytes]] = field(
        default_factory=dict[str, tuple[FileReading, bytes]]
    )
    """By key, as `reading_key` makes it."""
    links: Mapping[str, tuple[FileLinks, str]] = field(default_factory=dict[str, tuple[FileLinks, str]])
    """By path, each with its key."""
    stamps: Mapping[str, Stamped] = field(default_factory=dict[str, Stamped])
    history: History = field(default_factory=History)
    keys: frozenset[str] = frozenset()
    """Of everything that the store holds, readable or not."""


def reading_key(path: str, sha256: str, *, rules: str) -> str:
    """The key of what some rules read from a content at a path: ids hold the path, so it is part of it."""
    return _READING + hashlib.sha256(f"{rules}\0{sha256}\0{path}".encode()).hexdigest()


def read_kept(facts: Mapping[str, bytes]) -> Kept:
    """What the store holds; what cannot be read counts as lost. O(n)."""
    readings: dict[str, tuple[FileReading, bytes]] = {}
    links: dict[str, tuple[FileLinks, str]] = {}
    stamps: dict[str, Stamped] = {}
    history = History()
    for key, value in facts.items():
        try:
            if key.startswith(_READING):
                reading = decode_reading(value)
                if reading is not None:
                    readings[key] = reading, value
            elif key.startswith(_LINKS):
                path, found = _read_links(_unpacked(value))
                links[path] = found, key
            elif key.startswith(_STAMPS):
                stamps = {path: _read_stamp(row) for path, row in _unpacked(value)[1].items()}
            elif key.startswith(_HISTORY):
                history = _read_history(_unpacked(value))
        except (cramjam.DecompressionError, ValueError, TypeError, KeyError, IndexError):
            continue
    return Kept(readings=readings, links=links, stamps=stamps, history=history, keys=frozenset(facts))


def links_fact(path: str, links: FileLinks) -> tuple[str, bytes]:
    """One file's links, and their key."""
    edges = [[*e.source, e.relation, *e.target, e.resolution, e.candidates] for e in links.edges]
    counts = [links.exact_calls, links.guessed_calls, links.unresolved_calls]
    return _fact(_LINKS, [_FORMAT, path, counts, edges])


def stamps_fact(stamps: Mapping[str, Stamped]) -> tuple[str, bytes]:
    """The stamps of all files, and their key."""
    rows = {path: [*astuple(found.stamp), found.sha256] for path, found in sorted(stamps.items())}
    return _fact(_STAMPS, [_FORMAT, rows])


def history_fact(history: History) -> tuple[str, bytes]:
    """The history, and its key."""
    rows = [[c.hash, c.committed_at, c.message, c.paths] for c in history.commits]
    return _fact(_HISTORY, [_FORMAT, history.head, history.reason, rows])


def _fact(kind: str, row: list[Any]) -> tuple[str, bytes]:
    value = json.dumps(row, separators=(",", ":")).encode("ascii")
    return kind + hashlib.sha256(value).hexdigest(), bytes(cramjam.zstd.compress(value, 1))


def _unpacked(value: bytes) -> Any:
    row = json.loads(bytes(cramjam.zstd.decompress(value)))
    if row[0] != _FORMAT:
        raise ValueError("another format")
    return row


def _read_links(row: Any) -> tuple[str, FileLinks]:
    _, path, (exact, guessed, unresolved), edges = row
    return path, FileLinks(
        edges=tuple(
            [
                Edge(NodeRef(a, b), relation, NodeRef(c, d), resolution, candidates)
                for a, b, relation, c, d, resolution, candidates in edges
            ]
        ),
        exact_calls=exact,
        guessed_calls=guessed,
        unresolved_calls=unresolved,
    )


def _read_stamp(row: Any) -> Stamped:
    size_bytes, modified_ns, changed_ns, inode, sha256 = row
    stamp = FileStamp(size_bytes=size_bytes, modified_ns=modified_ns, changed_ns=changed_ns, inode=inode)
    return Stamped(stamp, sha256)


def _read_history(row: Any) -> History:
    _, head, reason, rows = row
    commits = [
        Commit(hash=commit, committed_at=time, message=message, paths=tuple(paths))
        for commit, time, message, paths in rows
    ]
    return History(head=head, reason=reason, commits=tuple(commits))
