"""All readings and links of a project to its graph, and the digest of what it was made from.

A pure function: the same files, history and rules give the same graph, whatever was kept from earlier.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from schemas.graph import RELATION_RULE_OF
from worker.code.history import MAX_FILES_A_COMMIT, History, updates
from worker.code.linking import FileLinks
from worker.code.reading import FileReading
from worker.graph.model import Edge, GraphContents, Node, NodeRef

DANGLING: Final = "dangling"
"""The status of a requirement that code names and no document defines."""

RULES: Final = "index_rules"
"""The property of the project's node that says by which rules the graph was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedFile:
    """A file as it enters the graph. `kept` is its reading encoded."""

    reading: FileReading
    sha256: str
    size_bytes: int
    kept: bytes


@dataclass(frozen=True, slots=True)
class Additions:
    """What a step adds to the graph of the code, and the edges that it replaces by what it adds."""

    nodes: Sequence[Node] = ()
    edges: Sequence[Edge] = ()
    replaced: Sequence[Edge] = ()


@dataclass(frozen=True, slots=True)
class ProjectStep:
    """Adds what only all files together give.

    `add` is handed what readings left under the step's kind in `documents`, by path, and the graph of the
    code, in which tags may still name requirements that no node is. It is a module-level function, by whose
    name the rules of an index are told apart.
    """

    kind: str
    add: Callable[[Mapping[str, str], GraphContents], Additions]


def assemble(
    project_id: str,
    files: Mapping[str, IndexedFile],
    links: Mapping[str, FileLinks],
    *,
    history: History,
    rules: str,
    steps: Sequence[ProjectStep] = (),
) -> GraphContents:
    """The graph of a project. O(nodes + edges), sorted."""
    graph = _Graph()
    project = Node(label="Project", id=project_id, name=project_id, properties=((RULES, rules),))
    graph.add_nodes([project])
    touched = updates(history)
    for path in sorted(files):
        file = files[path]
        node = _file_node(path, file, links.get(path), touched.get(path))
        graph.add_nodes([node, *file.reading.nodes])
        graph.add_edges([Edge(project.ref, "DEFINES", node.ref), *file.reading.edges])
        if path in links:
            graph.add_edges(links[path].edges)
    _add_history(graph, history, files)
    code = graph.contents(with_open_traces=True) if steps else None
    for step in steps:
        documents = {
            path: text
            for path in sorted(files)
            for kind, text in files[path].reading.documents
            if kind == step.kind
        }
        if documents and code is not None:
            graph.apply(step.add(documents, code))
    graph.add_dangling_requirements()
    return graph.contents()


def digest_inputs(files: Mapping[str, IndexedFile], history: History, *, rules: str) -> str:
    """The snapshot's id: a digest of the files, of the history as far as it is used, and of the rules."""
    row = [
        rules,
        [[path, files[path].sha256, files[path].reading.status] for path in sorted(files)],
        [[commit.hash, commit.paths] for commit in history.commits],
    ]
    return hashlib.sha256(json.dumps(row, separators=(",", ":")).encode()).hexdigest()


class _Graph:
    """Nodes and edges while they are gathered: of nodes with one name the first counts."""

    def __init__(self) -> None:
        self._nodes: dict[NodeRef, Node] = {}
        self._edges: dict[tuple[NodeRef, str, NodeRef], Edge] = {}

    def add_nodes(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self._nodes.setdefault(node.ref, node)

    def add_edges(self, edges: Iterable[Edge]) -> None:
        """Of edges that differ in their certainty alone, the more certain counts."""
        known = self._edges
        for edge in edges:
            key = edge[:3]
            other = known.get(key)
            if other is None or edge[3:] < other[3:]:
                known[key] = edge

    def apply(self, additions: Additions) -> None:
        for edge in additions.replaced:
            self._edges.pop(edge[:3], None)
        self.add_nodes(additions.nodes)
        self.add_edges(additions.edges)

    def add_dangling_requirements(self) -> None:
        for edge in self._edges.values():
            for end in (edge.source, edge.target):
                if end.label == "RequirementItem" and end not in self._nodes:
                    self._nodes[end] = Node(
                        label=end.label, id=end.id, name=end.id, properties=(("status", DANGLING),)
                    )

    def contents(self, *, with_open_traces: bool = False) -> GraphContents:
        """Sorted; an edge that lacks one of its ends, or that the canon does not know, is left out.

        With open traces, those stay that lead to a requirement item which is no node yet.
        """
        nodes = self._nodes
        return GraphContents(
            nodes=tuple(nodes[ref] for ref in sorted(nodes)),
            edges=tuple(
                sorted(
                    edge
                    for edge in self._edges.values()
                    if edge.source in nodes
                    and (
                        edge.target in nodes or (with_open_traces and edge.target.label == "RequirementItem")
                    )
                    and (edge.source.label, edge.target.label) in RELATION_RULE_OF[edge.relation].joins
                )
            ),
        )


def _file_node(
    path: str, file: IndexedFile, links: FileLinks | None, touched: tuple[str, int] | None
) -> Node:
    reading = file.reading
    properties = {
        "sha256": file.sha256,
        "size_bytes": str(file.size_bytes),
        "status": reading.status,
    }
    if reading.reason:
        properties["reason"] = reading.reason
    if links is not None and reading.facts is not None:
        properties["unresolved_calls"] = str(links.unresolved_calls)
    if touched is not None:
        properties["updated_at"], properties["churn"] = touched[0], str(touched[1])
    return Node(
        label="File",
        id=path,
        name=path.rsplit("/", 1)[-1],
        path=path,
        language=reading.language,
        properties=tuple(sorted(properties.items())),
    )


def _add_history(graph: _Graph, history: History, files: Mapping[str, IndexedFile]) -> None:
    for commit in history.commits:
        paths = [path for path in commit.paths if path in files]
        if not paths or len(commit.paths) > MAX_FILES_A_COMMIT:
            continue
        node = Node(
            label="Commit",
            id=commit.hash,
            name=commit.message.split("\n", 1)[0],
            text=commit.message,
            properties=(("committed_at", commit.committed_at),),
        )
        graph.add_nodes([node])
        graph.add_edges(Edge(node.ref, "TOUCHES", NodeRef("File", path)) for path in paths)
