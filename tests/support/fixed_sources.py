"""An assembler over sources that always have the same, for tests of what fusing makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from schemas.codes import CONTENT_LAYERS, PartName
from tests.support.assembling import settings
from worker.assembly import Assembler
from worker.failpoints import Failpoints
from worker.fusion.protocols import ParentContexts
from worker.fusion.strategies.registry import BUILT_IN, StrategyRegistry
from worker.ports import Fragment, LayerBudget, LayerContribution, RequestFrame, Scope
from worker.providers.gather import Abandonment
from worker.providers.proposals import PluginProposals
from worker.telemetry import Telemetry
from worker.wiring import content_policy, utc_now


class FixedSource:
    """A source that always has the same."""

    def __init__(self, layer: PartName, fragments: Sequence[Fragment]) -> None:
        self.layer: PartName = layer
        self._fragments = tuple(fragments)

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        del frame, scope, budget
        if not self._fragments:
            return LayerContribution(layer=self.layer, status="empty", reason="no_data")
        return LayerContribution(
            layer=self.layer, status="ok", heading=f"# {self.layer.upper()}", fragments=self._fragments
        )


def assembler_over(
    fragments: Sequence[Fragment],
    *,
    strategies: StrategyRegistry = BUILT_IN,
    proposals: PluginProposals | None = None,
    parents: ParentContexts | None = None,
) -> Assembler:
    return Assembler(
        providers=[
            FixedSource(layer, [fragment for fragment in fragments if fragment.layer == layer])
            for layer in CONTENT_LAYERS
        ],
        policy=replace(content_policy(settings()), strategies=strategies),
        telemetry=Telemetry(),
        abandonment=Abandonment(cap=4),
        now=utc_now,
        failpoints=Failpoints(),
        proposals=proposals,
        parents=parents,
    )
