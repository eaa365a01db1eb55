"""The most relevant first, whichever layer they are of."""

from __future__ import annotations

import math
from collections.abc import Sequence

from schemas.codes import PARTS
from worker.fusion.protocols import BackendSet, PlanContext, StrategyCapabilities
from worker.ports import Fragment, RequestFrame


class RelevanceStrategy:
    """One ranking of all fragments by their relevance: layers with weak ones lend to layers with strong."""

    name = "relevance"
    capabilities = StrategyCapabilities(uses_text=True, uses_graph=True, order="score")

    def can_handle(self, request: RequestFrame, backends: BackendSet) -> float:
        """Not where several fragments are there and all have one relevance: that would be no ranking."""
        del request
        fragments = backends.fragments()
        return 1.0 if len(fragments) < 2 or len({relevance_of(f) for f in fragments}) > 1 else 0.0  # noqa: PLR2004 - one needs no ranking

    def assemble(
        self, request: RequestFrame, backends: BackendSet, budget: int, plan_context: PlanContext
    ) -> Sequence[Fragment]:
        """All candidates by descending relevance; ties as `standing` orders them. O(n log n)."""
        del request, budget, plan_context
        return sorted(backends.fragments(), key=standing)

    def explain(self) -> str:
        """One sentence for a person who asks why."""
        return "The most relevant fragments of all layers come first, until the budget is spent."


def relevance_of(fragment: Fragment) -> float:
    """Rounded as scores are compared; a relevance that is no number counts as 0."""
    return 0.0 if math.isnan(fragment.relevance) else round(min(1.0, max(0.0, fragment.relevance)), 6)


_LAYER_NUMBER = {layer: number for number, layer in enumerate(PARTS)}


def standing(fragment: Fragment) -> tuple[bool, float, int, int, str, int]:
    """By which fragments of all layers are compared: pins, relevance, the source's rank, layer, node."""
    return (
        not fragment.is_pinned,
        -relevance_of(fragment),
        fragment.rank,
        _LAYER_NUMBER[fragment.layer],
        fragment.node,
        fragment.position,
    )
