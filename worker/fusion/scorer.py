"""What a fragment is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from schemas.codes import PartName
from schemas.fragments import RelevanceTier, StorageTier
from worker.fusion.protocols import PlanContext, ScoredFragment
from worker.ports import Fragment

RELEVANCE_SHARE: Final = 0.8
"""What the source's own relevance decides; steps, each too small to turn a clear order, decide the rest."""
PIN_STEP: Final = 0.06
TARGET_STEP: Final = 0.05
"""For what the request names: files, things to cite."""
TIER_STEPS: Final[Mapping[RelevanceTier, float]] = {
    "core": 0.06,
    "related": 0.03,
    "peripheral": 0.0,
}
STORAGE_TIER_STEPS: Final[Mapping[StorageTier, float]] = {"hot": 0.01, "warm": 0.005, "cold": 0.0}

TARGETED_LAYERS: Final[frozenset[PartName]] = frozenset({"mission", "memory", "artifacts"})
"""Whose sources do not ask what the request names. Graph and AST do, and better than a step can."""


class StepwiseScorer:
    """The source's own relevance, with steps for pins, tiers, and what the work is about."""

    def score(self, fragments: Sequence[Fragment], plan_context: PlanContext) -> list[ScoredFragment]:
        """Finite, 0 to 1, six decimals: numeric libraries differ in the last bits between machines.

        A relevance that is no number counts as 0, one out of range as the nearer end. Each step is added
        where it applies; together with a relevance of 1 they stay below 1. O(n).
        """
        targets = plan_context.targets
        return [ScoredFragment(fragment, _score(fragment, targets)) for fragment in fragments]


def _score(fragment: Fragment, targets: frozenset[str]) -> float:
    relevance = fragment.relevance
    if not 0.0 <= relevance <= 1.0:
        relevance = 0.0 if math.isnan(relevance) else min(1.0, max(0.0, relevance))
    score = relevance * RELEVANCE_SHARE + STORAGE_TIER_STEPS[fragment.storage_tier]
    if fragment.is_pinned:
        score += PIN_STEP
    if fragment.relevance_tier is not None:
        score += TIER_STEPS[fragment.relevance_tier]
    if targets and fragment.layer in TARGETED_LAYERS and _is_target(fragment, targets):
        score += TARGET_STEP
    return round(score, 6) if score < 1.0 else 1.0


def _is_target(fragment: Fragment, targets: frozenset[str]) -> bool:
    """Whether it is, or stands in, what the request names."""
    named = (fragment.about, *(source.location for source in fragment.provenance))
    return any(name in targets or name.partition("::")[0] in targets for name in named if name)
