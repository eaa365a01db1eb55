"""Relevance tiers: what a symbolic refinement may know of a selection, and what it gives back.

The rules are Prolog (`relevance.pl`); which engine runs them is a store's business. Facts are ground and only
about the nodes already selected. Nodes, requirements and owners are numbered here, in sorted order, and only
their numbers are sent, so that nothing a source file says can become part of a program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from schemas.codes import TaskType
from schemas.fragments import RelevanceTier
from schemas.graph import NodeLabel
from worker.graph.model import NodeRef

K = TypeVar("K", bound=Hashable)
L = TypeVar("L", bound=Hashable)

TIER_BONUS: Final[Mapping[RelevanceTier, float]] = {"core": 2_000.0, "related": 1_000.0, "peripheral": 0.0}
"""Added after the linear score, so far apart that no score crosses a tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelevanceFacts:
    """What is known of one selection. Everything else that names a node names one of the candidates."""

    task_type: TaskType
    hops: Mapping[NodeRef, int]
    """The candidates, each with its distance from the nearest root in edges."""
    roots: Collection[NodeRef] = ()
    traces: Collection[tuple[NodeRef, str]] = ()
    """Node and requirement item."""
    tested: Collection[NodeRef] = ()
    failing: Collection[NodeRef] = ()
    defines: Collection[tuple[NodeRef, NodeRef]] = ()
    ambiguous: Collection[NodeRef] = ()
    owners: Collection[tuple[str, NodeRef]] = ()
    depends: Collection[tuple[NodeRef, NodeRef]] = ()
    truncated: int = 0
    """Edges and nodes that caps kept from being walked for `hops`; no rule sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """The tier of every candidate, and how many ownerships could not be decided within the bound.

    What is undecided counts as not owned, and whoever acts on ownership should ask a person.
    """

    tiers: Mapping[NodeRef, RelevanceTier]
    undecided_owners: int = 0

    def counts(self) -> dict[RelevanceTier, int]:
        """Candidates by tier."""
        found = list(self.tiers.values())
        return {tier: found.count(tier) for tier in TIER_BONUS}


class RelevanceEngine(Protocol):
    """Runs the rules. Same facts, same refinement."""

    async def refine(self, facts: RelevanceFacts) -> Refinement:
        """Raises RelevanceUnavailable where the engine is away, too slow, or over its bound."""
        ...

    async def check(self) -> None:
        """Return when the engine answers now."""
        ...

    async def close(self) -> None:
        """End the engine; idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class NumberedFacts:
    """The facts as one Prolog term, and which candidate each number stands for."""

    term: str
    """As `refine/4` takes it."""
    nodes: tuple[NodeRef, ...]

    def refinement(self, *, core: Iterable[int], related: Iterable[int], undecided: int) -> Refinement:
        """The refinement that these numbers stand for."""
        tiers: dict[NodeRef, RelevanceTier] = dict.fromkeys(self.nodes, "peripheral")
        tiers |= {self.nodes[number]: "related" for number in related}
        tiers |= {self.nodes[number]: "core" for number in core}
        return Refinement(tiers=tiers, undecided_owners=undecided)


def number_facts(facts: RelevanceFacts) -> NumberedFacts:
    """Equal facts give the equal term, whatever order they are listed in. O(n log n).

    A fact about a node that is no candidate is left out.
    """
    nodes = tuple(sorted(facts.hops))
    numbers = {node: number for number, node in enumerate(nodes)}
    groups: defaultdict[tuple[NodeLabel, int], list[int]] = defaultdict(list)
    for number, node in enumerate(nodes):
        groups[node.label, facts.hops[node]].append(number)
    candidates = ",".join(
        f"c({_atom(label)},{hop},{members})" for (label, hop), members in sorted(groups.items())
    )
    sets = (facts.roots, facts.tested, facts.failing, facts.ambiguous)
    arguments = [
        facts.task_type.lower(),
        f"[{candidates}]",
        *(str(sorted({numbers[node] for node in members if node in numbers})) for members in sets),
        _pairs(numbers, _numbered({item for _, item in facts.traces}), facts.traces),
        _pairs(numbers, numbers, facts.defines),
        _grouped(_numbered({owner for owner, _ in facts.owners}), numbers, facts.owners),
        _grouped(numbers, numbers, facts.depends),
    ]
    # A list of numbers as Python spells it is a list in Prolog, and spelled in a fraction of the time that
    # joining takes; nothing else in the term has a space.
    return NumberedFacts(f"facts({','.join(arguments)})".replace(" ", ""), nodes)


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(sorted(names))}


def _pairs(firsts: Mapping[K, int], seconds: Mapping[L, int], pairs: Iterable[tuple[K, L]]) -> str:
    """A flat list of pairs."""
    return str([number for pair in _known(firsts, seconds, pairs) for number in pair])


def _grouped(firsts: Mapping[K, int], seconds: Mapping[L, int], pairs: Iterable[tuple[K, L]]) -> str:
    """A flat list of firsts, each before the list of its seconds."""
    by_first: defaultdict[int, list[int]] = defaultdict(list)
    for first, second in _known(firsts, seconds, pairs):
        by_first[first].append(second)
    return str([part for group in by_first.items() for part in group])


def _known(
    firsts: Mapping[K, int], seconds: Mapping[L, int], pairs: Iterable[tuple[K, L]]
) -> Iterator[tuple[int, int]]:
    """The numbers of the pairs that have some, each pair once, sorted."""
    # One integer a pair: they sort in a quarter of the time.
    width = len(seconds)
    known = sorted({firsts[a] * width + seconds[b] for a, b in pairs if a in firsts and b in seconds})
    return (divmod(one, width) for one in known)


def _atom(label: NodeLabel) -> str:
    """The canon's own words: letters only, so the first one in lower case makes an atom."""
    return label[0].lower() + label[1:]
