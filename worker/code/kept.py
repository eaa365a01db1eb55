"""What an index leaves in the store for the next one, beside the graph: readings, links, history, additions.

All of it can be lost: the next index then reads everything again. Each value's key begins with its kind and
ends with a digest, so a value that changed has another key, and what no index asks for any more is removed.
The catalogue and the shelves of outlines, of which there is one each, have keys of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from worker.code.catalogue import FORMAT as CATALOGUE_FORMAT
from worker.code.catalogue import SPOILT, edge_row, pack, read_edge, unpack
from worker.code.facts_codec import FORMAT as READING_FORMAT
from worker.code.facts_codec import decode_reading, node_row, read_node
from worker.code.history import Commit, History
from worker.code.linking import FileLinks
from worker.code.outlines import FORMAT as OUTLINE_FORMAT
from worker.code.reading import FileReading
from worker.code.steps import Additions

_READING: Final = "reading:"
_LINKS: Final = "links:"
_HISTORY: Final = "history:"
_ADDITIONS: Final = "additions:"
_FORMAT: Final = 2
FORMATS: Final = (_FORMAT, READING_FORMAT, CATALOGUE_FORMAT, OUTLINE_FORMAT)
"""Of everything that is kept."""


class Lost(Exception):
    """Something that was kept is not there, or cannot be read any more."""


def reading_key(path: str, sha256: str, *, rules: str) -> str:
    """The key of what some rules read from a content at a path: ids hold the path, so it is part of it."""
    return _READING + hashlib.sha256(f"{rules}\0{sha256}\0{path}".encode()).hexdigest()


def find_reading(facts: Mapping[str, bytes], key: str) -> FileReading:
    """The reading under the key. Raises Lost."""
    reading = decode_reading(facts.get(key, b""))
    if reading is None:
        raise Lost(key)
    return reading


def links_fact(path: str, links: FileLinks) -> tuple[str, bytes]:
    """One file's links, and their key."""
    counts = [links.exact_calls, links.guessed_calls, links.unresolved_calls]
    return _fact(_LINKS, [_FORMAT, path, counts, [edge_row(edge) for edge in links.edges]])


def find_links(facts: Mapping[str, bytes], key: str) -> FileLinks:
    """The links under the key. Raises Lost."""
    try:
        _, _, (exact, guessed, unresolved), rows = _unpacked(facts, key)
        edges = tuple([read_edge(row) for row in rows])
    except SPOILT as error:
        raise Lost(key) from error
    return FileLinks(edges=edges, exact_calls=exact, guessed_calls=guessed, unresolved_calls=unresolved)


def history_fact(history: History) -> tuple[str, bytes]:
    """The history, and its key."""
    rows = [[c.hash, c.committed_at, c.message, c.paths] for c in history.commits]
    return _fact(_HISTORY, [_FORMAT, history.head, history.reason, rows])


def history_keys(facts: Mapping[str, bytes]) -> list[str]:
    """The keys under which a history is kept, sorted; more than one only where a catalogue was lost."""
    return sorted(key for key in facts if key.startswith(_HISTORY))


def find_history(facts: Mapping[str, bytes], key: str) -> History:
    """The history under the key. Raises Lost."""
    try:
        _, head, reason, rows = _unpacked(facts, key)
        commits = [
            Commit(hash=commit, committed_at=time, message=message, paths=tuple(paths))
            for commit, time, message, paths in rows
        ]
    except SPOILT as error:
        raise Lost(key) from error
    return History(head=head, reason=reason, commits=tuple(commits))


def additions_fact(additions: Sequence[Additions]) -> tuple[str, bytes]:
    """What steps added, and its key."""
    rows = [
        [
            [node_row(node) for node in one.nodes],
            [edge_row(edge) for edge in one.edges],
            [edge_row(edge) for edge in one.replaced],
        ]
        for one in additions
    ]
    return _fact(_ADDITIONS, [_FORMAT, rows])


def find_additions(facts: Mapping[str, bytes], key: str) -> tuple[Additions, ...]:
    """What steps added. Raises Lost."""
    try:
        _, rows = _unpacked(facts, key)
        return tuple(
            [
                Additions(
                    [read_node(row) for row in nodes],
                    [read_edge(row) for row in edges],
                    [read_edge(row) for row in replaced],
                )
                for nodes, edges, replaced in rows
            ]
        )
    except SPOILT as error:
        raise Lost(key) from error


def _fact(kind: str, row: list[Any]) -> tuple[str, bytes]:
    value = pack(row)
    return kind + hashlib.sha256(value).hexdigest(), value


def _unpacked(facts: Mapping[str, bytes], key: str) -> Any:
    row = unpack(facts[key])
    if row[0] != _FORMAT:
        raise ValueError("another format")
    return row
