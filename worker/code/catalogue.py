"""What an index keeps to know, without its graph, what there is: each file in a line, and the totals.

An index of an unchanged tree needs nothing else. One that finds changes learns here under which keys lies
what it needs: so it reads in proportion to what changed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import cramjam

from schemas.graph import NodeLabel, Relation
from worker.code.scan import FileStamp
from worker.graph.model import Edge, FileStatus, GraphContents, NodeRef

K = TypeVar("K")

KEY: Final = "catalogue"
"""Of the one fact that it is kept as."""

FORMAT: Final = 1
SPOILT: Final = (cramjam.DecompressionError, ValueError, TypeError, KeyError, IndexError, AttributeError)
"""What reading kept bytes raises where they are not what was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file of the graph."""

    sha256: str
    size_bytes: int
    language: str
    status: FileStatus
    reason: str
    unresolved_calls: int | None
    """None where it has no calls to be linked."""
    exact_calls: int
    guessed_calls: int
    links_key: str
    """Under which its links are kept; empty where it has none."""
    documents: tuple[str, ...]
    """The kinds of what it holds for steps over all files, sorted."""
    stamp: FileStamp | None = None
    """None where its content has to be looked at again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """How many nodes and edges a graph has, of each kind that there is."""

    nodes: Mapping[NodeLabel, int] = field(default_factory=dict[NodeLabel, int])
    edges: Mapping[Relation, int] = field(default_factory=dict[Relation, int])
    guessed_edges: Mapping[Relation, int] = field(default_factory=dict[Relation, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """What there is."""

    rules: str
    snapshot_id: str
    """Of the graph that this speaks of."""
    files: Mapping[str, Entry]
    totals: Totals
    traces: Mapping[str, tuple[Edge, ...]]
    """By path, of the files that give any."""
    shelves: Mapping[str, str]
    """Digests of the shelves of outlines, by key."""
    additions_key: str
    """Under which is kept what steps added."""
    history_key: str
    history_head: str
    history_reason: str


def totals_of(contents: GraphContents) -> Totals:
    """The totals of a graph, or of a part of one."""
    return Totals(
        nodes=Counter([node.label for node in contents.nodes]),
        edges=Counter([edge.relation for edge in contents.edges]),
        guessed_edges=Counter([edge.relation for edge in contents.edges if edge.resolution == "guess"]),
    )


def moved(totals: Totals, *, old: Totals, new: Totals) -> Totals:
    """The totals of a graph in which a part has been replaced."""
    return Totals(
        nodes=_moved(totals.nodes, old.nodes, new.nodes),
        edges=_moved(totals.edges, old.edges, new.edges),
        guessed_edges=_moved(totals.guessed_edges, old.guessed_edges, new.guessed_edges),
    )


def _moved(counts: Mapping[K, int], old: Mapping[K, int], new: Mapping[K, int]) -> dict[K, int]:
    keys = dict.fromkeys([*counts, *new])
    moved_counts = {key: counts.get(key, 0) - old.get(key, 0) + new.get(key, 0) for key in keys}
    return {key: count for key, count in moved_counts.items() if count}


def pack(row: object) -> bytes:
    """A row of plain values as bytes; equal rows give equal bytes."""
    return bytes(cramjam.zstd.compress(json.dumps(row, separators=(",", ":")).encode("ascii"), 1))


def unpack(value: bytes) -> Any:
    """The row. Raises what `SPOILT` lists."""
    return json.loads(bytes(cramjam.zstd.decompress(value)))


def edge_row(edge: Edge) -> list[Any]:
    """An edge as a row of plain values."""
    return [*edge.source, edge.relation, *edge.target, edge.resolution, edge.candidates]


def read_edge(row: list[Any]) -> Edge:
    """The edge of a row."""
    a, b, relation, c, d, resolution, candidates = row
    return Edge(NodeRef(a, b), relation, NodeRef(c, d), resolution, candidates)


def encode_catalogue(catalogue: Catalogue) -> bytes:
    """The catalogue as bytes. O(files); equal catalogues give equal bytes."""
    totals = catalogue.totals
    return pack(
        [
            FORMAT,
            catalogue.rules,
            catalogue.snapshot_id,
            [[path, *_entry_row(catalogue.files[path])] for path in sorted(catalogue.files)],
            [sorted(counts.items()) for counts in (totals.nodes, totals.edges, totals.guessed_edges)],
            [[path, [edge_row(edge) for edge in edges]] for path, edges in sorted(catalogue.traces.items())],
            sorted(catalogue.shelves.items()),
            [
                catalogue.additions_key,
                catalogue.history_key,
                catalogue.history_head,
                catalogue.history_reason,
            ],
        ]
    )


def decode_catalogue(value: bytes) -> Catalogue | None:
    """The catalogue; None where the bytes are none of this format."""
    try:
        number, rules, snapshot_id, files, (nodes, edges, guessed), traces, shelves, keys = unpack(value)
        if number != FORMAT:
            return None
        additions_key, history_key, history_head, history_reason = keys
        return Catalogue(
            rules=rules,
            snapshot_id=snapshot_id,
            files={path: _read_entry(row) for path, *row in files},
            totals=Totals(nodes=dict(nodes), edges=dict(edges), guessed_edges=dict(guessed)),
            traces={path: tuple([read_edge(row) for row in rows]) for path, rows in traces},
            shelves=dict(shelves),
            additions_key=additions_key,
            history_key=history_key,
            history_head=history_head,
            history_reason=history_reason,
        )
    except SPOILT:
        return None


def in_order(facts: Mapping[str, bytes]) -> tuple[tuple[str, bytes], ...]:
    """Facts in the order in which they are to be stored: once the catalogue is there, so is all it names."""
    return tuple(sorted(facts.items(), key=lambda fact: (fact[0] == KEY, fact[0])))


def _entry_row(entry: Entry) -> list[Any]:
    stamp = entry.stamp
    return [
        entry.sha256,
        entry.size_bytes,
        entry.language,
        entry.status,
        entry.reason,
        entry.unresolved_calls,
        entry.exact_calls,
        entry.guessed_calls,
        entry.links_key,
        entry.documents,
        None if stamp is None else [stamp.size_bytes, stamp.modified_ns, stamp.changed_ns, stamp.inode],
    ]


def _read_entry(row: list[Any]) -> Entry:
    sha256, size_bytes, language, status, reason, unresolved, exact, guessed, links_key, documents, stamp = (
        row
    )
    return Entry(
        sha256=sha256,
        size_bytes=size_bytes,
        language=language,
        status=status,
        reason=reason,
        unresolved_calls=unresolved,
        exact_calls=exact,
        guessed_calls=guessed,
        links_key=links_key,
        documents=tuple(documents),
        stamp=None if stamp is None else _read_stamp(*stamp),
    )


def _read_stamp(size_bytes: int, modified_ns: int, changed_ns: int, inode: int) -> FileStamp:
    return FileStamp(size_bytes=size_bytes, modified_ns=modified_ns, changed_ns=changed_ns, inode=inode)
