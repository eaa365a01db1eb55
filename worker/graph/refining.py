"""A selection refined by relevance tiers: what the rules may know of it, and the order that follows.

A tier adds its bonus after the linear score, so far apart that no score crosses a tier; within one the order
stays what it was. What was not looked at counts as peripheral.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from schemas.codes import TaskType
from worker.graph.adjacency import kind
from worker.graph.expansion import expand
from worker.graph.model import NodeRef
from worker.graph.relevance import TIER_BONUS, Refinement, RelevanceFacts
from worker.graph.selection import Selection
from worker.graph.snapshot import Snapshot

MAX_REFINED: Final = 200
"""Candidates that the rules look at, the best first; a pack holds fewer."""

_WORD_ROOTS: Final = 5
"""Of a request that names nothing, how many of the nodes that its words find are taken for its roots."""

_FAR: Final = 9
"""The distance of what no edge leads to from a root."""


def relevance_facts(
    selection: Selection, snapshot: Snapshot, *, task_type: TaskType, failing: Collection[NodeRef] = ()
) -> RelevanceFacts:
    """What is known of the best `MAX_REFINED` nodes of the selection. `failing` are failing tests.

    A test that fails speaks for what it exercises, too. O(half-edges of the candidates).
    """
    edges, nodes = snapshot.edges, snapshot.nodes
    numbers = [number for number, _ in selection.ranked[:MAX_REFINED]]
    known = set(numbers)
    roots = {ref for link in selection.entities for ref in link.nodes} or {
        link.node for link in selection.lexical[:_WORD_ROOTS]
    }
    root_numbers = {n for ref in roots if (n := snapshot.find(ref)) is not None}
    reached = expand(
        snapshot,
        root_numbers,
        selection.template.edge_weights(),
        max_hops=selection.template.max_hops,
    ).by_node()

    def pairs(*kinds: int) -> list[tuple[NodeRef, NodeRef]]:
        return [
            (nodes[number].ref, nodes[target].ref)
            for number in numbers
            for target in edges.of(number, kinds)
            if target in known
        ]

    # Who owns what, and what that depends on, counts in reviews only, and is most of what would be sent.
    is_review = task_type == "REVIEW"
    broken = {snapshot.find(ref) for ref in failing}
    tests = {number: edges.of(number, (kind("TESTED_BY"),)) for number in numbers}
    return RelevanceFacts(
        task_type=task_type,
        hops={nodes[number].ref: reached.get(number, _FAR) for number in numbers},
        roots=roots,
        traces=[
            (nodes[number].ref, nodes[item].id)
            for number in numbers
            for item in edges.of(number, (kind("TRACES_TO"),))
        ]
        + [(nodes[n].ref, nodes[n].id) for n in numbers if nodes[n].label == "RequirementItem"],
        tested=[nodes[number].ref for number, found in tests.items() if found],
        failing=[
            nodes[number].ref for number, found in tests.items() if number in broken or broken & set(found)
        ],
        defines=pairs(kind("DEFINES")),
        ambiguous=[
            ref
            for link in selection.entities
            if link.is_ambiguous
            for ref in link.nodes
            if not any(ref in other.nodes for other in selection.entities if not other.is_ambiguous)
        ],
        owners=_owners(snapshot, numbers) if is_review else (),
        depends=pairs(kind("CALLS"), kind("IMPORTS")) if is_review else (),
    )


def refine_order(
    selection: Selection,
    snapshot: Snapshot,
    refinement: Refinement,
    *,
    hops: Mapping[NodeRef, int] = MappingProxyType({}),
) -> Selection:
    """The selection in the order that the tiers give it; ties by node id, as before. O(n log n).

    `hops` are those of the facts that were refined: what is out of reach gets none.
    """
    nodes = snapshot.nodes
    numbers = {nodes[number].ref: number for number, _ in selection.ranked[:MAX_REFINED]}
    rescored = [
        (number, round(score + TIER_BONUS[refinement.tiers.get(nodes[number].ref, "peripheral")], 6))
        for number, score in selection.ranked
    ]
    rescored.sort(key=lambda item: (-item[1], nodes[item[0]].id, item[0]))
    return replace(
        selection,
        ranked=tuple(rescored),
        relevance="prolog",
        hops={numbers[ref]: hop for ref, hop in hops.items() if hop < _FAR and ref in numbers},
        tiers={numbers[ref]: tier for ref, tier in refinement.tiers.items() if ref in numbers},
    )


def _owners(snapshot: Snapshot, numbers: Collection[int]) -> list[tuple[str, NodeRef]]:
    """Owner and node, for each node in a file that somebody owns."""
    owns = (kind("OWNS", backward=True),)
    by_path: dict[str, list[str]] = {}
    found: list[tuple[str, NodeRef]] = []
    for number in numbers:
        node = snapshot.nodes[number]
        if node.path not in by_path:
            file = snapshot.find(NodeRef("File", node.path))
            by_path[node.path] = (
                [] if file is None else [snapshot.nodes[o].id for o in snapshot.edges.of(file, owns)]
            )
        found += [(owner, node.ref) for owner in by_path[node.path]]
    return found
