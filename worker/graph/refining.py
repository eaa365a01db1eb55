"""A selection refined by relevance tiers: what the rules may know of it, and the order that follows.

A tier adds its bonus after the linear score, so far apart that no score crosses a tier; within one the order
stays what it was. What was not looked at counts as peripheral.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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
"""Candidates that the rules look at; a pack holds fewer."""

_WORD_ROOTS: Final = 5
"""Of a request that names nothing, how many of the nodes that its words find are taken for its roots."""

_FAR: Final = 9
"""The distance of what no edge leads to from a root."""


def relevance_facts(
    selection: Selection, snapshot: Snapshot, *, task_type: TaskType, failing: Collection[NodeRef] = ()
) -> RelevanceFacts:
    """What is known of the candidates: the ranked roots and the best of the others, `MAX_REFINED` in all.

    `failing` are failing tests; one that fails speaks for what it exercises, too. A requirement serves the
    items that it defines, and an item itself. O(half-edges of the candidates).
    """
    edges, nodes = snapshot.edges, snapshot.nodes
    roots = _roots_of(selection, snapshot)
    numbers = _candidates(selection, roots)
    known = set(numbers)
    reached = expand(
        snapshot,
        roots.certain | roots.doubtful,
        selection.template.edge_weights(),
        max_hops=selection.template.max_hops,
    )
    hops = reached.by_node()

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
        hops={nodes[number].ref: hops.get(number, _FAR) for number in numbers},
        roots=[nodes[number].ref for number in sorted(roots.certain | roots.doubtful)],
        traces=[(nodes[n].ref, nodes[item].id) for n in numbers for item in _items_of(snapshot, n)],
        tested=[nodes[number].ref for number, found in tests.items() if found],
        failing=[
            nodes[number].ref for number, found in tests.items() if number in broken or broken & set(found)
        ],
        defines=pairs(kind("DEFINES")),
        ambiguous=[nodes[number].ref for number in sorted(roots.doubtful)],
        owners=_owners(snapshot, numbers) if is_review else (),
        depends=pairs(kind("CALLS"), kind("IMPORTS")) if is_review else (),
        truncated=reached.truncated,
    )


def refine_order(
    selection: Selection,
    snapshot: Snapshot,
    refinement: Refinement,
    *,
    hops: Mapping[NodeRef, int] = MappingProxyType({}),
    truncated: int = 0,
) -> Selection:
    """The selection in the order that the tiers give it; ties by node id, as before. O(n log n).

    `hops` and `truncated` are those of the facts that were refined: what is out of reach gets no distance.
    """
    nodes = snapshot.nodes
    numbers = {nodes[n].ref: n for n in _candidates(selection, _roots_of(selection, snapshot))}
    rescored = [
        (number, round(score + TIER_BONUS[refinement.tiers.get(nodes[number].ref, "peripheral")], 6))
        for number, score in selection.ranked
    ]
    rescored.sort(key=lambda item: (-item[1], nodes[item[0]].id, item[0]))
    return replace(
        selection,
        ranked=tuple(rescored),
        relevance="prolog",
        # Under `hop` the same walk was taken before.
        truncated=max(selection.truncated, truncated),
        hops={numbers[ref]: hop for ref, hop in hops.items() if hop < _FAR and ref in numbers},
        tiers={numbers[ref]: tier for ref, tier in refinement.tiers.items() if ref in numbers},
    )


@dataclass(frozen=True, slots=True)
class _Roots:
    """What the request speaks of, as node numbers."""

    certain: frozenset[int]
    doubtful: frozenset[int]
    """Readings of ambiguous mentions that no other mention makes certain."""


def _roots_of(selection: Selection, snapshot: Snapshot) -> _Roots:
    """What the request names or, where it names nothing, what its words find best."""

    def numbers(refs: Iterable[NodeRef]) -> frozenset[int]:
        return frozenset(n for ref in set(refs) if (n := snapshot.find(ref)) is not None)

    entities = selection.entities
    certain = numbers(ref for link in entities if not link.is_ambiguous for ref in link.nodes)
    doubtful = numbers(ref for link in entities if link.is_ambiguous for ref in link.nodes) - certain
    if not entities:
        certain = numbers(link.node for link in selection.lexical[:_WORD_ROOTS])
    return _Roots(certain, doubtful)


def _candidates(selection: Selection, roots: _Roots) -> list[int]:
    """The nodes that the rules look at: ranked roots first, wherever they rank, then the best of the others.

    Readings of ambiguous names come after certain roots and fill no more than half of the room with them: a
    common word must not take the place of all that is near.
    """
    ranked = [number for number, _ in selection.ranked]
    certain = [number for number in ranked if number in roots.certain]
    doubtful = [number for number in ranked if number in roots.doubtful]
    first = certain + doubtful[: max(0, MAX_REFINED // 2 - len(certain))]
    return list(dict.fromkeys((*first, *ranked)))[:MAX_REFINED]


def _items_of(snapshot: Snapshot, number: int) -> Iterator[int]:
    """The requirement items that a node serves."""
    label = snapshot.nodes[number].label
    if label == "RequirementItem":
        yield number
    yield from snapshot.edges.of(number, (kind("TRACES_TO"),))
    if label == "Requirement":
        yield from snapshot.edges.of(number, (kind("DEFINES"),))


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
