"""One version of a project's graph in memory, in the shape that selection works on. Immutable.

Nodes are numbered in order of label and id, documents (what words can find) in order of path and line, so the
documents of a file stand side by side. A snapshot is a pure function of its head and contents: which store
they came from, and in which order, makes no difference.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker.graph.adjacency import Adjacency, build_adjacency, kind
from worker.graph.documents import ALONE, FIELDS, fields_of, is_searched, naming_of, text_without_docstring
from worker.graph.history import History, build_history
from worker.graph.lexical import LexicalIndex, build_index
from worker.graph.model import GraphContents, GraphHead, Node, NodeRef
from worker.graph.paths import is_test_code

LINKED_LABELS: Final = frozenset(
    {"Module", "Class", "Function", "Spec", "Requirement", "RequirementItem", "Decision", "Volk"}
)
"""What a name in a request may mean."""

_FOLDED_AWAY: Final = re.compile(r"[\W_]+")
_CHARS_A_TOKEN: Final = 3.6
_HEADER_TOKENS: Final = 12.0
# Measured with tracemalloc on CPython 3.11, rounded up.
_NODE_BYTES: Final = 690


@dataclass(frozen=True, slots=True)
class NameIndex:
    """Nodes by name, as written and folded; ids of requirements and decisions are names too.

    Sorted arrays, looked up by bisection: a few bytes a name, and about 20 µs a lookup.
    """

    nodes: tuple[Node, ...]
    sorted_names: tuple[str, ...]
    """The names in the order of `by_name`: of all lookups, most are of exact names."""
    by_name: NDArray[np.int32]
    sorted_folded: tuple[str, ...]
    """The folded names in the order of `by_folded`; many are the names themselves."""
    by_folded: NDArray[np.int32]
    by_literal_id: NDArray[np.int32]

    def exact(self, name: str) -> list[int]:
        """Nodes of that name or literal id, by number."""
        named = self.by_name[_run(self.sorted_names, name)].tolist()
        return sorted({*named, *self.literal(name)})

    def literal(self, node_id: str) -> list[int]:
        """Requirements, decisions and the like with that id, by number."""
        nodes = self.nodes
        return _equal_run(self.by_literal_id, node_id, lambda number: nodes[number].id)

    def folded(self, name: str) -> list[int]:
        """Nodes whose name reads the same when folded, by number; none where nothing is left of it."""
        key = fold_name(name)
        return self.by_folded[_run(self.sorted_folded, key)].tolist() if key else []


def _run(keys: Sequence[str], key: str) -> slice:
    """Where the key stands among sorted ones."""
    first = bisect_left(keys, key)
    # Most words of a request name nothing, and cost one search.
    is_there = first < len(keys) and keys[first] == key
    return slice(first, bisect_right(keys, key, lo=first) if is_there else first)


def _equal_run(order: NDArray[np.int32], key: str, key_of: Callable[[int], str]) -> list[int]:
    """The numbers whose key is the given one, in an array that is ordered by key, then number."""
    first = bisect_left(order, key, key=key_of)
    last = bisect_right(order, key, lo=first, key=key_of)
    return order[first:last].tolist()


@dataclass(frozen=True, slots=True)
class Documents:
    """What words find: `(n_documents,)` each, in order of path, line and id."""

    nodes: NDArray[np.int32]
    """Node numbers."""
    files: NDArray[np.int32]
    """File numbers, ascending."""
    file_starts: NDArray[np.int32]
    """First document of each file: `(n_files + 1,)`."""
    tie_ranks: NDArray[np.int32]
    """Place in the order of node ids, by which equal scores are ordered."""
    log_sizes: NDArray[np.float64]
    """ln of about the tokens that each takes, the same whatever the encoding."""
    docstring_shares: NDArray[np.float64]
    log_words: NDArray[np.float64]
    namings: NDArray[np.int8]
    """As `naming_of` has it."""
    is_tested: NDArray[np.bool_]
    """Whether some test is known to exercise it."""
    trace_degrees: NDArray[np.int32]
    """Links between it and requirement items."""
    serves_tests: NDArray[np.bool_]
    """Whether it stands in a file that serves tests."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Snapshot:
    """A graph to select from. Equal to itself alone, so that what is worked out of it can go with it."""

    head: GraphHead
    nodes: tuple[Node, ...]
    edges: Adjacency
    calls: Adjacency
    """The CALLS edges alone."""
    names: NameIndex
    paths: tuple[str, ...]
    """Of the files by number, sorted; the first is the empty one, of what stands in no file."""
    documents: Documents
    document_of_node: NDArray[np.int32]
    """-1 where a node is no document."""
    words: LexicalIndex
    history: History
    size_bytes: int
    """About what it takes in memory, the nodes' texts included."""
    is_part: bool = False
    """Whether it holds only what lies around some roots, so that another part numbers other nodes."""

    def find(self, ref: NodeRef) -> int | None:
        """The number of a node, or None. O(log n)."""
        place = bisect_left(self.nodes, ref, key=lambda node: node.ref)
        return place if place < len(self.nodes) and self.nodes[place].ref == ref else None

    def file_number(self, path: str) -> int | None:
        """The number of a file that holds documents, or None."""
        place = bisect_left(self.paths, path)
        return place if path and place < len(self.paths) and self.paths[place] == path else None


def build_snapshot(head: GraphHead, contents: GraphContents) -> Snapshot:
    """The snapshot of a graph. O(n log n); some 40 µs a node, most of it in indexing words.

    Nodes and edges may come in any order.
    """
    nodes = tuple(sorted(contents.nodes, key=lambda node: node.ref))
    numbers = {node.ref: number for number, node in enumerate(nodes)}
    edges = build_adjacency(contents.edges, numbers)
    searched = sorted(
        (number for number, node in enumerate(nodes) if is_searched(node)),
        key=lambda n: (nodes[n].path, nodes[n].start_line, n),
    )
    paths = tuple(sorted({"", *(nodes[n].path for n in searched)}))
    words = build_index([fields_of(nodes[n]) for n in searched], fields=FIELDS, alone=ALONE)
    documents = _documents(nodes, searched, paths, words, edges)
    document_of_node = np.full(len(nodes), -1, dtype=np.int32)
    document_of_node[documents.nodes] = np.arange(len(searched), dtype=np.int32)
    file_of = {path: n for n, path in enumerate(paths)}
    history = build_history(
        nodes,
        [n for n, node in enumerate(nodes) if node.label == "Commit"],
        {n: file_of[node.id] for n, node in enumerate(nodes) if node.label == "File" and node.id in file_of},
        edges,
        file_count=len(paths),
    )
    calls = edges.only((kind("CALLS"), kind("CALLS", backward=True)))
    names = _names(nodes)
    texts = sum(_text_bytes(node) for node in nodes)
    arrays = edges.size_bytes + calls.size_bytes + words.size_bytes + history.size_bytes + 60 * len(searched)
    return Snapshot(
        head=head,
        nodes=nodes,
        edges=edges,
        calls=calls,
        names=names,
        paths=paths,
        documents=documents,
        document_of_node=document_of_node,
        words=words,
        history=history,
        size_bytes=texts + arrays,
    )


def fold_name(name: str) -> str:
    """The name in lower case, without underscores, dashes and whatever else is no letter or digit."""
    return _FOLDED_AWAY.sub("", name.casefold())


def _documents(
    nodes: Sequence[Node],
    searched: Sequence[int],
    paths: Sequence[str],
    words: LexicalIndex,
    edges: Adjacency,
) -> Documents:
    file_of = {path: number for number, path in enumerate(paths)}
    files = np.array([file_of[nodes[n].path] for n in searched], dtype=np.int32)
    by_id = sorted(range(len(searched)), key=lambda d: (nodes[searched[d]].id, searched[d]))
    tie_ranks = np.zeros(len(searched), dtype=np.int32)
    tie_ranks[by_id] = np.arange(len(searched), dtype=np.int32)
    sizes = [math.log(_HEADER_TOKENS + _size(nodes[n])) for n in searched]
    total = np.maximum(1, sum(words.lengths.values(), np.zeros(len(searched), dtype=np.int32)))
    counts = np.bincount(files, minlength=len(paths))
    numbers = np.array(searched, dtype=np.int64)
    return Documents(
        nodes=np.array(searched, dtype=np.int32),
        files=files,
        file_starts=np.concatenate([np.zeros(1, dtype=np.int32), np.cumsum(counts, dtype=np.int32)]),
        tie_ranks=tie_ranks,
        log_sizes=np.array(sizes, dtype=np.float64),
        docstring_shares=words.lengths["docstring"] / total,
        log_words=np.log1p(total),
        namings=np.array([naming_of(nodes[n]) for n in searched], dtype=np.int8),
        is_tested=edges.degrees(numbers, (kind("TESTED_BY"),)) > 0,
        trace_degrees=edges.degrees(numbers, (kind("TRACES_TO"), kind("TRACES_TO", backward=True))),
        serves_tests=np.array([is_test_code(path) for path in paths], dtype=np.bool_)[files],
    )


def _size(node: Node) -> float:
    return len(text_without_docstring(node)) / _CHARS_A_TOKEN


def _names(nodes: tuple[Node, ...]) -> NameIndex:
    linked = [number for number, node in enumerate(nodes) if node.label in LINKED_LABELS]
    literal = [n for n in linked if nodes[n].label not in {"Module", "Class", "Function"}]
    names = [nodes[n].name for n in linked]
    folded = [_or_same(fold_name(name), name) for name in names]
    return NameIndex(
        nodes=nodes,
        sorted_names=tuple(sorted(names)),
        by_name=_sorted(linked, names),
        sorted_folded=tuple(sorted(folded)),
        by_folded=_sorted(linked, folded),
        by_literal_id=_sorted(literal, [nodes[n].id for n in literal]),
    )


def _or_same(folded: str, name: str) -> str:
    """The folded name, as the very name where they are equal: that takes no room."""
    return name if folded == name else folded


def _sorted(numbers: Sequence[int], keys: Sequence[str]) -> NDArray[np.int32]:
    return np.array([number for _, number in sorted(zip(keys, numbers, strict=True))], dtype=np.int32)


def _text_bytes(node: Node) -> int:
    strings = (node.id, node.name, node.path, node.signature, node.text)
    # CPython keeps one, two or four bytes a character; ASCII is by far the most frequent.
    return _NODE_BYTES + sum(len(s) if s.isascii() else 2 * len(s) for s in strings)
