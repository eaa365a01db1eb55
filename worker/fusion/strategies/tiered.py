"""Hot before warm before cold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from worker.fusion.protocols import BackendSet, PlanContext, StrategyCapabilities
from worker.fusion.strategies.standing import standing
from worker.ports import Fragment, RequestFrame

_TIER_NUMBER: Final = {"hot": 0, "warm": 1, "cold": 2}


class TieredStrategy:
    """One ranking of all fragments by storage tier, and by relevance within a tier."""

    name = "tiered"
    capabilities = StrategyCapabilities(uses_temporal=True)

    def can_handle(self, request: RequestFrame, backends: BackendSet) -> float:
        """Not where several fragments are there and all are of one tier: that would be no ranking."""
        del request
        fragments = backends.fragments()
        return 1.0 if len(fragments) < 2 or len({f.storage_tier for f in fragments}) > 1 else 0.0  # noqa: PLR2004 - one needs no ranking

    def assemble(
        self, request: RequestFrame, backends: BackendSet, budget: int, plan_context: PlanContext
    ) -> Sequence[Fragment]:
        """Pins, then hot, warm, cold; ties as `standing` orders them. O(n log n)."""
        del request, budget, plan_context
        return sorted(
            backends.fragments(), key=lambda f: (not f.is_pinned, _TIER_NUMBER[f.storage_tier], standing(f))
        )

    def explain(self) -> str:
        """One sentence for a person who asks why."""
        return "What is used lately comes first, what has lain long comes last, in all layers."
