"""Steps: what only all files of a project together give, added to the graph of its code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from schemas.graph import RELATION_RULE_OF
from worker.graph.model import Edge, Node, NodeRef


@dataclass(frozen=True, slots=True)
class CodeOutline:
    """The graph of the code as a step sees it: what there is, without what it says."""

    refs: Collection[NodeRef]
    """Every file and what is in it."""
    traces: Sequence[Edge] = ()
    """The edges that lead to requirement items, which may be no nodes yet."""


@dataclass(frozen=True, slots=True)
class Additions:
    """What a step adds to the graph of the code, and the traces that it replaces by what it adds.

    An edge that is added has a requirement item at one of its ends, or another node that is not the code's.
    """

    nodes: Sequence[Node] = ()
    edges: Sequence[Edge] = ()
    replaced: Sequence[Edge] = ()


@dataclass(frozen=True, slots=True)
class ProjectStep:
    """Adds what only all files together give.

    `add` is handed what readings left under the step's kind in `documents`, by path, and the outline of the
    code. It is a module-level function, by whose name the rules of an index are told apart.
    """

    kind: str
    add: Callable[[Mapping[str, str], CodeOutline], Additions]


def run_steps(
    steps: Sequence[ProjectStep], documents: Mapping[str, Mapping[str, str]], code: CodeOutline
) -> tuple[Additions, ...]:
    """What each step adds, in their order; nothing for one without documents of its kind.

    `documents` holds their texts by kind and path. Raises ValueError for a step that adds an edge between two
    nodes of the code: that one would depend on files that are not looked at again.
    """
    refs = frozenset(code.refs)
    added: list[Additions] = []
    for step in steps:
        if not documents.get(step.kind):
            continue
        found = step.add(documents[step.kind], code)
        for edge in found.edges:
            if edge.source in refs and edge.target in refs and not is_trace(edge):
                raise ValueError(f"the step {step.kind!r} adds {edge} between two nodes of the code")
        added.append(found)
    return tuple(added)


def open_traces(edges: Iterable[Edge], refs: Collection[NodeRef]) -> list[Edge]:
    """Those that lead from a node of the code to a requirement item, as a step sees them; sorted."""
    return sorted(
        edge
        for edge in edges
        if edge.source in refs and edge.target.label == "RequirementItem" and joins(edge)
    )


def is_trace(edge: Edge) -> bool:
    """Whether it joins a requirement item to something."""
    return edge.source.label == "RequirementItem" or edge.target.label == "RequirementItem"


def joins(edge: Edge) -> bool:
    """Whether the canon knows such an edge."""
    return (edge.source.label, edge.target.label) in RELATION_RULE_OF[edge.relation].joins
