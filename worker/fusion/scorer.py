"""What a fragment is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence

from worker.fusion.protocols import PlanContext, ScoredFragment
from worker.ports import Fragment

_STORAGE_TIER_BONUS = {"hot": 0.02, "warm": 0.01, "cold": 0.0}


class SourceRelevanceScorer:
    """The source's own relevance, with a small step for the storage tier that only breaks near-ties."""

    def score(self, fragments: Sequence[Fragment], plan_context: PlanContext) -> list[ScoredFragment]:
        """Finite, 0 to 1, six decimals: numeric libraries differ in the last bits between machines.

        A relevance that is no number counts as 0, one out of range as the nearer end.
        """
        del plan_context
        return [ScoredFragment(fragment=fragment, score=_score(fragment)) for fragment in fragments]


def _score(fragment: Fragment) -> float:
    if math.isnan(fragment.relevance):
        return 0.0
    raw = min(1.0, max(0.0, fragment.relevance))
    return round(min(1.0, raw * 0.98 + _STORAGE_TIER_BONUS[fragment.storage_tier]), 6)
