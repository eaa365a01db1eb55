"""Strategies: who proposes candidates, and in which order they deserve the budget."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.codes import PARTS
from worker.fusion.protocols import BackendSet, PlanContext, StrategyCapabilities
from worker.ports import Fragment, RequestFrame


class LayeredStrategy:
    """Every source's fragments, layer by layer, in the order in which the source ranked them."""

    name = "layered"
    capabilities = StrategyCapabilities(
        uses_text=True, uses_graph=True, uses_temporal=True, quality_score=0.6
    )

    def can_handle(self, request: RequestFrame, backends: BackendSet) -> float:
        """It can always; fully sure where the request asks for it or names nothing."""
        return 1.0 if request.request.strategy in (None, self.name) and backends.contributions else 0.5

    def assemble(
        self, request: RequestFrame, backends: BackendSet, budget: int, plan_context: PlanContext
    ) -> Sequence[Fragment]:
        """All candidates; nothing is ruled out before packing, since each layer has a room of its own."""
        del request, budget, plan_context
        return [
            fragment
            for layer in PARTS
            if layer in backends.contributions
            for fragment in sorted(
                backends.contributions[layer].fragments,
                key=lambda f: (not f.is_pinned, -f.relevance, f.rank, f.node, f.position),
            )
        ]

    def explain(self) -> str:
        """One sentence for a person who asks why."""
        return "Each layer is filled on its own, from the source's best fragment down."
