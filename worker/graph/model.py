"""What a graph holds, as plain values: nodes, edges, and the version that they are of.

The same values are written by the indexer, kept by every store, and read into the snapshot that selection
works on; a store may order and encode them as it likes, but gives back equal ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from schemas.graph import NodeLabel, Relation

FileStatus = Literal["parsed", "partly_parsed", "failed", "stale"]
"""How far a file could be read: whole; by the tolerant parser; not at all; not since it last changed."""

Resolution = Literal["exact", "guess"]
"""Whether an edge is what the source says beyond doubt, or one of several readings."""

NO_SPAN: Final = (0, 0)


class NodeRef(NamedTuple):
    """What names a node within its project. Sorts by label, then id."""

    label: NodeLabel
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. Fields that a label has no use for keep their defaults.

    `text` is what the node itself says, as in the file: of a function all its lines, of a class or module the
    lines outside the definitions in it, of a requirement or decision its wording, of a commit its message.
    """

    label: NodeLabel
    id: str
    name: str = ""
    path: str = ""
    """Of the file that it stands in, relative to the project's root; empty for what stands in none."""
    start_line: int = 0
    end_line: int = 0
    signature: str = ""
    text: str = ""
    docstring_span: tuple[int, int] = NO_SPAN
    """Where in `text` the docstring's own lines begin and end, in characters; empty where it has none."""
    language: str = ""
    """As a Markdown fence names it."""
    properties: tuple[tuple[str, str], ...] = ()
    """What only some labels have, sorted by name: `class_id`, `status`, `sha256`, `complexity`, …"""

    @property
    def ref(self) -> NodeRef:
        """What names it."""
        return NodeRef(self.label, self.id)

    def property(self, name: str) -> str:
        """One of `properties`, or the empty string."""
        return next((value for key, value in self.properties if key == name), "")


class Edge(NamedTuple):
    """One directed edge. Sorts by source, relation, target. Between two nodes each relation occurs once.

    A guess says among how many `candidates` it is one; an exact edge is the only one.
    """

    source: NodeRef
    relation: Relation
    target: NodeRef
    resolution: Resolution = "exact"
    candidates: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphContents:
    """A whole graph, or a part of one: nodes sorted by label and id, edges sorted, each once.

    Every edge joins two of the nodes.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphHead:
    """Which graph a store holds for a project.

    `graph_version` grows by one with every change that was committed, so it tells fresh from stale; it never
    enters a bundle. `snapshot_id` is a digest of what the graph was made from, the same in every store.
    """

    graph_version: int
    snapshot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphChange:
    """What makes one graph of another; applied as a whole or not at all.

    An edge falls with either of its nodes even where it is not listed. `facts` keeps, under the digest of a
    file's content, what was extracted from it, so that the next index need not read it again.
    """

    upserted: tuple[Node, ...] = ()
    removed: tuple[NodeRef, ...] = ()
    added_edges: tuple[Edge, ...] = ()
    removed_edges: tuple[Edge, ...] = ()
    added_facts: tuple[tuple[str, bytes], ...] = ()
    removed_facts: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the graph stays what it is; facts are no part of it."""
        return not (self.upserted or self.removed or self.added_edges or self.removed_edges)
