"""The ten steps, top to bottom: what the sources gave becomes what each layer shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from schemas.codes import PARTS, PartName
from worker.fusion.deduplicator import ExactDeduplicator
from worker.fusion.depth import AdmittingDepthResolver
from worker.fusion.orchestration import (
    MergingStrategyExecutor,
    NamedStrategySelector,
    ProportionalBudgetAllocator,
)
from worker.fusion.orderer import DocumentOrderer
from worker.fusion.packer import GreedyBudgetPacker, floor_placements, place, section_text
from worker.fusion.preamble import ReadingPreamble
from worker.fusion.protocols import (
    BackendSet,
    BudgetAllocator,
    BudgetPacker,
    ContextStrategy,
    DetailDepthResolver,
    DetailLevels,
    FragmentDeduplicator,
    FragmentOrderer,
    FragmentScorer,
    Frame,
    LayerSpace,
    PackedLayer,
    Placed,
    PlanContext,
    PreambleGenerator,
    ScoredFragment,
    StrategyExecutor,
    StrategySelector,
)
from worker.fusion.scorer import SourceRelevanceScorer
from worker.fusion.sections import SECTION_GAP, Fence
from worker.fusion.strategies import LayeredStrategy
from worker.ports import LayerContribution, RequestFrame, TokenCounter


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The components of one request, injectable one by one; a compressor comes with parent requests."""

    selector: StrategySelector
    allocator: BudgetAllocator
    executor: StrategyExecutor
    deduplicator: FragmentDeduplicator
    depth_resolver: DetailDepthResolver
    scorer: FragmentScorer
    packer: BudgetPacker
    orderer: FragmentOrderer
    preamble: PreambleGenerator


def default_components(*, fence: Fence, counter: TokenCounter, default_strategy: str) -> Components:
    """The built-in component for each step of one request."""
    return Components(
        selector=NamedStrategySelector(default_strategy),
        allocator=ProportionalBudgetAllocator(),
        executor=MergingStrategyExecutor(),
        deduplicator=ExactDeduplicator(),
        depth_resolver=AdmittingDepthResolver(fence),
        scorer=SourceRelevanceScorer(),
        packer=GreedyBudgetPacker(),
        orderer=DocumentOrderer(),
        preamble=ReadingPreamble(fence, counter),
    )


def built_in_strategies() -> dict[str, ContextStrategy]:
    """The strategies that a request may name."""
    return {strategy.name: strategy for strategy in (LayeredStrategy(),)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """After scoring and before packing: what each layer could show, and what its pins need at least."""

    frames: Mapping[PartName, Frame]
    scored: Mapping[PartName, Sequence[ScoredFragment]]
    levels: DetailLevels
    strategies_used: tuple[str, ...]
    escaped_delimiters: int
    orderer: FragmentOrderer

    def floor_section(self, layer: PartName) -> str:
        """The layer's section with its pins at their floors; empty where it has no pins."""
        floors = floor_placements(self.scored[layer], self.levels)
        return self._section(layer, floors)

    def whole_section(self, layer: PartName) -> str:
        """The layer's section with everything at its deepest; empty where it has no fragments."""
        return self._section(
            layer,
            [place(item, self.levels[item.fragment.key][0], rule="whole") for item in self.scored[layer]],
        )

    def pins(self, layer: PartName) -> list[str]:
        """The node ids of the layer's pins, in packing order."""
        return [placed.fragment.node for placed in floor_placements(self.scored[layer], self.levels)]

    def _section(self, layer: PartName, placed: Sequence[Placed]) -> str:
        return section_text(self.frames[layer], self.orderer.order(placed)) if placed else ""


class FusionPipeline:
    """One request's fusion. `rank` runs steps 1 to 6, `pack` steps 7 and 8, `preamble` step 9."""

    def __init__(
        self, components: Components, strategies: Mapping[str, ContextStrategy], fence: Fence
    ) -> None:
        """Use these components and strategies, and frame sections with this fence."""
        self._components = components
        self._strategies = strategies
        self._fence = fence

    def rank(
        self,
        frame: RequestFrame,
        contributions: Mapping[PartName, LayerContribution],
        *,
        budget_tokens: int,
    ) -> Candidates:
        """Select strategies, share the budget, execute, deduplicate, resolve depths, score."""
        parts = self._components
        backends = BackendSet(contributions=contributions)
        plan_context = PlanContext(task_type=frame.task_type, as_of=frame.as_of)
        selected = parts.selector.select(self._strategies, frame, backends)
        strategies_used = tuple([candidate.strategy.name for candidate in selected])
        if not any(contribution.fragments for contribution in contributions.values()):
            return _no_candidates(strategies_used, parts.orderer)
        allocations = parts.allocator.allocate(selected, budget_tokens, frame)
        proposed = parts.executor.execute(allocations, frame, backends, plan_context)
        distinct = parts.deduplicator.deduplicate(proposed)
        levels, escaped = parts.depth_resolver.resolve(distinct, budget_tokens)
        scored = parts.scorer.score(distinct, plan_context)
        return Candidates(
            frames={
                layer: self._frame(layer, contribution)
                for layer, contribution in contributions.items()
                if contribution.fragments
            },
            scored=_by_layer(scored),
            levels=levels,
            strategies_used=strategies_used,
            escaped_delimiters=escaped,
            orderer=parts.orderer,
        )

    def pack(
        self, candidates: Candidates, layer: PartName, *, budget_tokens: int, counter: TokenCounter
    ) -> PackedLayer:
        """Fill one layer's room and put what was kept in text order."""
        scored = candidates.scored[layer]
        frame = candidates.frames[layer]
        space = LayerSpace(budget_tokens=budget_tokens, counter=counter, frame=frame)
        kept = self._components.packer.pack(scored, space, candidates.levels)
        placed = self._components.orderer.order(kept)
        reduced = sum(1 for p in placed if p.is_cut or p.text != candidates.levels[p.fragment.key][0].text)
        return PackedLayer(
            layer=layer,
            frame=frame,
            placed=tuple(placed),
            dropped=len(scored) - len(placed),
            reduced=reduced,
        )

    def preamble(self, frame: RequestFrame, *, max_tokens: int) -> str:
        """How to read the sections, with the gap that ends it; empty where there is no room for it."""
        text = self._components.preamble.generate(
            frame, strategies_used=tuple(self._strategies), budget_used=0.0, max_tokens=max_tokens
        )
        return text + SECTION_GAP if text else ""

    def _frame(self, layer: PartName, contribution: LayerContribution) -> Frame:
        sources = {p.resource_type for f in contribution.fragments for p in f.provenance}
        return Frame(
            opening=self._fence.opening(layer, sources),
            heading=contribution.heading,
            closing=self._fence.closing(layer),
        )


@lru_cache(maxsize=256)
def _no_candidates(strategies_used: tuple[str, ...], orderer: FragmentOrderer) -> Candidates:
    """Where no source gave a fragment there is nothing to share, merge or score."""
    return Candidates(
        frames={},
        scored=dict.fromkeys(PARTS, ()),
        levels={},
        strategies_used=strategies_used,
        escaped_delimiters=0,
        orderer=orderer,
    )


def _by_layer(scored: Sequence[ScoredFragment]) -> dict[PartName, list[ScoredFragment]]:
    by_layer: dict[PartName, list[ScoredFragment]] = {layer: [] for layer in PARTS}
    for item in scored:
        by_layer[item.fragment.layer].append(item)
    return by_layer
