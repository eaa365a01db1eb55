"""Readings and links to the nodes and edges of a project's graph, and the digest of what it was made from.

Pure functions: the same files, history and rules give the same graph, whatever was kept from earlier. A graph
is put together from parts that share no key: what each file gives, what the history gives, and what only all
files together tell of requirements, decisions and owners. So a part can be computed again without the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from worker.code.catalogue import Entry
from worker.code.history import MAX_FILES_A_COMMIT, History, updates
from worker.code.linking import FileLinks
from worker.code.reading import FileReading
from worker.code.steps import Additions, is_trace, joins
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


def assemble(
    project_id: str,
    files: Mapping[str, IndexedFile],
    links: Mapping[str, FileLinks],
    *,
    history: History,
    rules: str,
    additions: Sequence[Additions] = (),
) -> GraphContents:
    """The graph of a project. O(nodes + edges), sorted."""
    graph = GraphBuilder()
    project = project_node(project_id, rules)
    graph.add_nodes([project])
    touched = updates(history)
    refs = {project.ref}
    traces: list[Edge] = []
    for path in sorted(files):
        file, found = files[path], links.get(path)
        entry = entry_of(file, found)
        graph.add_nodes([file_node(path, entry, touched.get(path)), *file.reading.nodes])
        graph.add_edges([Edge(project.ref, "DEFINES", NodeRef("File", path))])
        graph.add_edges(file_edges(file.reading, found))
        refs.add(NodeRef("File", path))
        refs.update([node.ref for node in file.reading.nodes])
        traces += file_traces(file.reading, found)
    graph.add_history(history, files)
    graph.add_requirements(traces, additions, refs)
    return graph.contents()


def entry_of(file: IndexedFile, links: FileLinks | None, *, links_key: str = "") -> Entry:
    """What the catalogue says of a file."""
    reading = file.reading
    is_linked = links is not None and reading.facts is not None
    return Entry(
        sha256=file.sha256,
        size_bytes=file.size_bytes,
        language=reading.language,
        status=reading.status,
        reason=reading.reason,
        unresolved_calls=links.unresolved_calls if is_linked and links is not None else None,
        exact_calls=links.exact_calls if links else 0,
        guessed_calls=links.guessed_calls if links else 0,
        links_key=links_key,
        documents=tuple(sorted({kind for kind, _ in reading.documents})),
    )


def digest_inputs(files: Mapping[str, tuple[str, str]], history: History, *, rules: str) -> str:
    """The snapshot's id: a digest of the files, of the history as far as it is used, and of the rules.

    `files` holds, by path, the digest of the content and how far it could be read.
    """
    row = [
        rules,
        [[path, *files[path]] for path in sorted(files)],
        [[commit.hash, commit.paths] for commit in history.commits],
    ]
    return hashlib.sha256(json.dumps(row, separators=(",", ":")).encode()).hexdigest()


def file_edges(reading: FileReading, links: FileLinks | None) -> list[Edge]:
    """The edges that a file gives, traces apart."""
    edges = (*reading.edges, *links.edges) if links else reading.edges
    return [edge for edge in edges if not is_trace(edge)]


def file_traces(reading: FileReading, links: FileLinks | None) -> list[Edge]:
    """The traces that a file gives."""
    edges = (*reading.edges, *links.edges) if links else reading.edges
    return [edge for edge in edges if is_trace(edge)]


def project_node(project_id: str, rules: str) -> Node:
    """The node that all files hang from."""
    return Node(label="Project", id=project_id, name=project_id, properties=((RULES, rules),))


def file_node(path: str, entry: Entry, touched: tuple[str, int] | None) -> Node:
    """The node of a file. `touched` is when its last commit was made, and how many there are."""
    properties = {
        "sha256": entry.sha256,
        "size_bytes": str(entry.size_bytes),
        "status": entry.status,
    }
    if entry.reason:
        properties["reason"] = entry.reason
    if entry.unresolved_calls is not None:
        properties["unresolved_calls"] = str(entry.unresolved_calls)
    if touched is not None:
        properties["updated_at"], properties["churn"] = touched[0], str(touched[1])
    return Node(
        label="File",
        id=path,
        name=path.rsplit("/", 1)[-1],
        path=path,
        language=entry.language,
        properties=tuple(sorted(properties.items())),
    )


class GraphBuilder:
    """Nodes and edges while they are gathered: of nodes with one name the first counts."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._nodes: dict[NodeRef, Node] = {}
        self._edges: dict[tuple[NodeRef, str, NodeRef], Edge] = {}

    def add_nodes(self, nodes: Iterable[Node]) -> None:
        """Add those whose name is not taken."""
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

    def add_history(self, history: History, files: Collection[str]) -> None:
        """Add the commits that touch any of the files, and what they touch."""
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
            self.add_nodes([node])
            self.add_edges([Edge(node.ref, "TOUCHES", NodeRef("File", path)) for path in paths])

    def add_requirements(
        self, traces: Iterable[Edge], additions: Iterable[Additions], refs: Collection[NodeRef]
    ) -> None:
        """Add all traces of a project, what the steps make of them, and the items that only traces name.

        `refs` are the nodes of the code: no other takes their names.
        """
        part = GraphBuilder()
        part.add_edges(traces)
        for one in additions:
            for edge in one.replaced:
                part._edges.pop(edge[:3], None)
            part.add_nodes([node for node in one.nodes if node.ref not in refs])
            part.add_edges(one.edges)
        for edge in part._edges.values():
            for end in (edge.source, edge.target):
                if end.label == "RequirementItem" and end not in part._nodes and end not in refs:
                    properties = (("status", DANGLING),)
                    part._nodes[end] = Node(label=end.label, id=end.id, name=end.id, properties=properties)
        self.add_nodes(part._nodes.values())
        self.add_edges(part._edges.values())

    def contents(self, *, known: Collection[NodeRef] = ()) -> GraphContents:
        """Sorted; an edge that lacks one of its ends, or that the canon does not know, is left out.

        `known` are nodes that are there, and that edges may lead to, without being part of these contents.
        """
        nodes = self._nodes
        return GraphContents(
            nodes=tuple([nodes[ref] for ref in sorted(nodes)]),
            edges=tuple(
                sorted(
                    [
                        edge
                        for edge in self._edges.values()
                        if (edge.source in nodes or edge.source in known)
                        and (edge.target in nodes or edge.target in known)
                        and joins(edge)
                    ]
                )
            ),
        )
