"""The default: each layer is filled on its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from schemas.codes import PARTS
from worker.fusion.protocols import BackendSet, PlanContext, StrategyCapabilities
from worker.fusion.strategies.standing import relevance_of
from worker.ports import Fragment, RequestFrame

LAYERED: Final = "layered"


class LayeredStrategy:
    """Every source's fragments, layer by layer, in the order in which the source ranked them."""

    name = LAYERED
    capabilities = StrategyCapabilities(
        uses_text=True, uses_graph=True, uses_temporal=True, order="score", competes="within_layers"
    )

    def can_handle(self, request: RequestFrame, backends: BackendSet) -> float:
        """It always can: it asks nothing of the fragments."""
        del request, backends
        return 1.0

    def assemble(
        self, request: RequestFrame, backends: BackendSet, budget: int, plan_context: PlanContext
    ) -> Sequence[Fragment]:
        """All candidates: the pins, then every layer's best, then every layer's second, and so on.

        Nothing is ruled out, since each layer has a room of its own. Where it has to share a budget, the
        layers take turns, so that the first ones do not use it up. O(n log n).
        """
        del request, budget, plan_context
        layers = [
            sorted(
                backends.contributions[layer].fragments,
                key=lambda f: (-relevance_of(f), f.rank, f.node, f.position),
            )
            for layer in PARTS
            if layer in backends.contributions
        ]
        pins = [fragment for ranked in layers for fragment in ranked if fragment.is_pinned]
        turns = zip_longest(*[[f for f in ranked if not f.is_pinned] for ranked in layers])
        return [*pins, *[fragment for turn in turns for fragment in turn if fragment is not None]]

    def explain(self) -> str:
        """One sentence for a person who asks why."""
        return "Each layer is filled on its own, from the source's best fragment down."
