"""The most relevant first, whichever layer they are of."""

from __future__ import annotations

from collections.abc import Sequence

from worker.fusion.protocols import BackendSet, PlanContext, StrategyCapabilities
from worker.fusion.strategies.standing import relevance_of, standing
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
