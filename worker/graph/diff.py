"""Changes as values: what makes one graph of another, what comes of a change, and which changes are refused.

The stores apply changes as `applied` does here; it is also what they are tested against.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from schemas.graph import LABEL_RULE_OF, RELATION_RULE_OF, NodeLabel, Relation
from worker.graph.model import GraphChange, GraphContents, NodeRef

EdgeRef = tuple[NodeRef, Relation, NodeRef]


def diff_contents(old: GraphContents, new: GraphContents) -> GraphChange:
    """The change that makes `new` of `old`; applied to `old` it gives `new`.

    Sorted as the contents are. An edge that falls with one of its nodes is not listed. Equal contents give
    an empty change. O(nodes + edges).
    """
    if not old.nodes:
        return GraphChange(upserted=new.nodes, added_edges=new.edges)
    old_nodes = {node.ref: node for node in old.nodes}
    new_refs = {node.ref for node in new.nodes}
    removed = {ref for ref in old_nodes if ref not in new_refs}
    old_edges, new_edges = set(old.edges), set(new.edges)
    # Filtering keeps the order that the contents have; sorting 200,000 edges again takes a second.
    added = tuple(edge for edge in new.edges if edge not in old_edges)
    replaced = {edge[:3] for edge in added}
    return GraphChange(
        upserted=tuple(node for node in new.nodes if old_nodes.get(node.ref) != node),
        removed=tuple(ref for ref in old_nodes if ref in removed),
        added_edges=added,
        removed_edges=tuple(
            edge
            for edge in old.edges
            if edge not in new_edges
            and edge.source not in removed
            and edge.target not in removed
            and edge[:3] not in replaced
        ),
    )


def applied(contents: GraphContents, change: GraphChange) -> GraphContents:
    """The contents after the change: nodes and edges go first, then come the new ones.

    What is removed may be absent; what is added replaces its like. Raises ValueError for a change that
    `check_change` refuses, or for an edge that would join a node that is not there.
    """
    check_change(change)
    removed = set(change.removed)
    nodes = {node.ref: node for node in contents.nodes if node.ref not in removed}
    nodes |= {node.ref: node for node in change.upserted}
    gone = {edge[:3] for edge in change.removed_edges}
    edges = {
        edge[:3]: edge
        for edge in contents.edges
        if edge[:3] not in gone and edge.source not in removed and edge.target not in removed
    }
    for edge in change.added_edges:
        for end in (edge.source, edge.target):
            if end not in nodes:
                raise ValueError(missing_end(end))
        edges[edge[:3]] = edge
    return GraphContents(
        nodes=tuple(sorted(nodes.values(), key=lambda node: node.ref)),
        edges=tuple(sorted(edges.values())),
    )


def check_change(change: GraphChange) -> None:
    """Refuse what no store may hold. O(nodes + edges).

    Raises ValueError for a label or relation off the canon, a relation between labels that it does not
    join, a node or edge that is written twice, and properties that are not sorted by name, each once.
    """
    refs = [node.ref for node in change.upserted]
    _check_once(refs)
    _check_once([edge[:3] for edge in change.added_edges])
    _check_labels({ref.label for ref in (*refs, *change.removed)})
    _check_relations({(edge.source.label, edge.relation, edge.target.label) for edge in change.added_edges})
    for node in change.upserted:
        names = [name for name, _ in node.properties]
        if names != sorted(set(names)):
            raise ValueError(f"the properties of {node.ref} are not sorted by name, each once")


def outside_ends(change: GraphChange) -> list[NodeRef]:
    """The nodes that an added edge joins and the change does not write, sorted: a store must hold them.

    Raises ValueError where the change itself removes one.
    """
    upserted = {node.ref for node in change.upserted}
    edges = change.added_edges
    ends = ({edge.source for edge in edges} | {edge.target for edge in edges}) - upserted
    if removed := ends.intersection(change.removed):
        raise ValueError(missing_end(min(removed)))
    return sorted(ends)


def missing_end(ref: NodeRef) -> str:
    """What to say of an edge whose end is not there."""
    return f"an edge would join {ref.label} {ref.id!r}, which the graph does not hold"


def _check_once(items: list[NodeRef] | list[EdgeRef]) -> None:
    if len(set(items)) < len(items):
        twice = min(item for item, count in Counter(items).items() if count > 1)
        raise ValueError(f"{twice} is written twice")


def _check_labels(labels: Iterable[NodeLabel]) -> None:
    if unknown := sorted(label for label in labels if label not in LABEL_RULE_OF):
        raise ValueError(f"no labels of the canon: {', '.join(unknown)}")


def _check_relations(triples: Iterable[tuple[NodeLabel, Relation, NodeLabel]]) -> None:
    for source, relation, target in sorted(triples):
        rule = RELATION_RULE_OF.get(relation)
        if rule is None or (source, target) not in rule.joins:
            raise ValueError(f"the canon has no {source} -{relation}-> {target}")
