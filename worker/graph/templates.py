"""One template a task type, as data: which edges selection follows from what a request names, and how far.

A template says what the work needs to see beside the code itself. Words and graph evidence rank the code
in every template alike; the edges decide how evidence spreads, `companions` what comes along with the best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from schemas.codes import TaskType
from schemas.graph import Relation
from worker.graph.adjacency import kind

Direction = Literal["out", "in", "both"]
Companion = Literal["requirements", "decisions", "tests", "changes", "patterns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRule:
    """A relation that is followed, which way, and how strongly beside the others."""

    relation: Relation
    direction: Direction
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """How to expand for one task type."""

    name: TaskType
    edges: tuple[EdgeRule, ...]
    max_hops: int = 2
    """How far `hop` and the relevance rules reach, in edges. The default ranking spreads evidence along the
    same edges by weight, which fades with each step; no distance bounds it."""
    companions: frozenset[Companion] = frozenset({"requirements", "decisions"})
    keeps_docstrings: bool = False
    test_penalty: float = 2.5
    """Taken off the evidence for code that serves tests, unless the request names it: tests repeat the words
    of what they test, and would fill the pack before it. About what one good match of words counts."""

    def edge_weights(self) -> dict[int, float]:
        """Weights by kind of half-edge."""
        weights: dict[int, float] = {}
        for rule in self.edges:
            if rule.direction in {"out", "both"}:
                weights[kind(rule.relation)] = rule.weight
            if rule.direction in {"in", "both"}:
                weights[kind(rule.relation, backward=True)] = rule.weight
        return weights


def _both(relation: Relation, weight: float) -> EdgeRule:
    return EdgeRule(relation=relation, direction="both", weight=weight)


_CODE: Final = (
    _both("CALLS", 1.0),
    _both("INHERITS_FROM", 0.6),
    _both("DEFINES", 0.4),
    _both("IMPORTS", 0.1),
)
_TRACES: Final = _both("TRACES_TO", 0.5)
_DECISIONS: Final = EdgeRule(relation="APPLIES_TO", direction="in", weight=0.3)
_TESTS: Final = _both("TESTED_BY", 0.3)

TEMPLATES: Final[Mapping[TaskType, Template]] = {
    template.name: template
    for template in (
        Template(
            name="BUILD",
            edges=(*_CODE, _TRACES, _DECISIONS),
            companions=frozenset({"requirements", "decisions", "patterns"}),
        ),
        Template(
            name="REFACTOR",
            edges=(*_CODE, _TESTS, _TRACES, _DECISIONS),
            companions=frozenset({"requirements", "decisions", "patterns"}),
        ),
        Template(
            name="DEBUG",
            edges=(*_CODE, _TESTS),
            companions=frozenset({"requirements", "decisions", "changes"}),
        ),
        Template(
            name="DOCUMENT",
            edges=(*_CODE, _TRACES, _DECISIONS),
            keeps_docstrings=True,
        ),
        Template(
            name="TEST",
            edges=(*_CODE, _both("TESTED_BY", 1.0), _TRACES),
            companions=frozenset({"requirements", "decisions", "tests"}),
            test_penalty=0.0,
        ),
        Template(
            name="REVIEW",
            edges=(*_CODE, _TESTS, _both("TRACES_TO", 1.0), _DECISIONS),
            max_hops=3,
            companions=frozenset({"requirements", "decisions", "changes"}),
        ),
    )
}


_WIDER: Final[tuple[Relation, ...]] = ("TRACES_TO", "TESTED_BY")


def widened(template: Template, hops: int) -> Template:
    """The template with so many more hops, following what traces to what and what tests it as well.

    For work that turned out to lack context; 0 hops leave it as it is.
    """
    if not hops:
        return template
    others = tuple(rule for rule in template.edges if rule.relation not in _WIDER)
    return replace(
        template,
        edges=(*others, *(_both(relation, 1.0) for relation in _WIDER)),
        max_hops=template.max_hops + hops,
        companions=template.companions | {"requirements", "tests"},
    )
