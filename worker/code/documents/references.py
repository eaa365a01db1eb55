"""What decisions apply to, and which files requirements name, looked up among the nodes of the graph."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from worker.code.documents.project import Documents
from worker.code.documents.results import DocumentReference
from worker.graph.model import Edge, Node, NodeRef


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A reference that no node answers to, or too many do."""

    reference: DocumentReference
    candidates: int
    """0, or how many symbols have the name."""


@dataclass(frozen=True, slots=True)
class ResolvedReferences:
    """The edges, sorted, each once; and what stayed unresolved, in the order of the documents."""

    edges: tuple[Edge, ...]
    unresolved: tuple[Unresolved, ...]


def resolve_references(documents: Documents, nodes: Iterable[Node | NodeRef]) -> ResolvedReferences:
    """Look the references up among `nodes`, which are all nodes of the graph or those of code alone.

    A path means the file of that path from the project's root: exact; else from the nearest folder around
    the document in which it is one: a guess. A symbol means the one function or class of that name, a guess,
    or with a path before it (`a.py::run`) that node, exact. An id means the requirement or item; of several,
    each is a guess. O(nodes + references).
    """
    finder = _Finder(documents, nodes)
    edges: dict[tuple[NodeRef, str, NodeRef], Edge] = {}
    unresolved: list[Unresolved] = []
    for one in documents.references:
        found, candidates = finder.find(one)
        for edge in found:
            key = (edge.source, edge.relation, edge.target)
            # Said twice, once beyond doubt: beyond doubt. "exact" sorts first.
            edges[key] = min(edge, edges.get(key, edge))
        if not found:
            unresolved.append(Unresolved(one, candidates))
    return ResolvedReferences(tuple(sorted(edges.values())), tuple(unresolved))


class _Finder:
    def __init__(self, documents: Documents, nodes: Iterable[Node | NodeRef]) -> None:
        self._documents = documents
        self._files: set[str] = set()
        self._symbols: defaultdict[str, list[NodeRef]] = defaultdict(list)
        self._ids: dict[str, NodeRef] = {}
        for node in nodes:
            if node.label == "File":
                self._files.add(node.id)
            elif node.label in {"Function", "Class"}:
                self._ids[node.id] = ref = NodeRef(node.label, node.id)
                for name in _suffixes(node.id.rpartition("::")[2]):
                    self._symbols[name].append(ref)

    def find(self, one: DocumentReference) -> tuple[list[Edge], int]:
        """The edges, and where there are none, how many nodes would answer."""
        match one.reference.kind:
            case "path":
                return self._path(one), 0
            case "symbol":
                return self._symbol(one)
            case "requirement":
                refs = self._documents.requirements_for(one.reference.value, within=one.path)
                if len(refs) == 1:
                    return [Edge(one.source, one.relation, refs[0])], 1
                return [Edge(one.source, one.relation, ref, "guess", len(refs)) for ref in refs], len(refs)

    def _path(self, one: DocumentReference) -> list[Edge]:
        for path, is_exact in _places(one.reference.value, one.path):
            if path in self._files:
                file = NodeRef("File", path)
                ends = (file, one.source) if one.relation == "TRACES_TO" else (one.source, file)
                return [Edge(ends[0], one.relation, ends[1], "exact" if is_exact else "guess")]
        return []

    def _symbol(self, one: DocumentReference) -> tuple[list[Edge], int]:
        path, _, name = one.reference.value.rpartition("::")
        if path:
            places = (f"{place}::{name}" for place, _ in _places(path, one.path))
            target = next((self._ids[place] for place in places if place in self._ids), None)
            return ([Edge(one.source, one.relation, target)], 1) if target else ([], 0)
        found = self._symbols.get(name, [])
        if len(found) != 1:
            return [], len(found)
        return [Edge(one.source, one.relation, found[0], "guess")], 1


def _places(path: str, source: str) -> Iterator[tuple[str, bool]]:
    """The path itself, then in each folder around the document, the nearest first."""
    yield path, True
    folder = posixpath.dirname(source)
    while folder:
        yield posixpath.normpath(f"{folder}/{path}"), False
        folder = posixpath.dirname(folder)


def _suffixes(qualname: str) -> Iterator[str]:
    """`a.b.c` by each name that it may be called: `c`, `b.c`, `a.b.c`; without `<locals>`."""
    parts = [part for part in qualname.split("#", 1)[0].split(".") if part != "<locals>"]
    for start in range(len(parts)):
        yield ".".join(parts[start:])
