"""The ten steps, top to bottom: what the sources gave becomes what each layer shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from schemas.codes import PARTS, PartName
from worker.citations.labels import Label, label_fragments, mark_levels
from worker.fusion.compressor import SKELETON_SHARE, FocusSkeletonCompressor, inherit
from worker.fusion.deduplicator import CrossLayerDeduplicator
from worker.fusion.depth import AdmittingDepthResolver
from worker.fusion.executing import MergingStrategyExecutor
from worker.fusion.orchestration import NamedStrategySelector, ProportionalBudgetAllocator
from worker.fusion.orderer import StablePrefixOrderer
from worker.fusion.packer import WorthBudgetPacker, floor_placements, place, section_lines, section_text
from worker.fusion.preamble import ReadingPreamble
from worker.fusion.protocols import (
    BackendSet,
    BudgetAllocator,
    BudgetPacker,
    Candidate,
    ContextStrategy,
    DetailDepthResolver,
    DetailLevels,
    Execution,
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
    SkeletonCompressor,
    StrategyExecutor,
    StrategyFailure,
    StrategySelector,
)
from worker.fusion.scorer import StepwiseScorer
from worker.fusion.sections import SECTION_GAP, Fence
from worker.fusion.strategies.recorded import PluginProposal, RecordedStrategy
from worker.ports import Fragment, LayerContribution, RequestFrame, Scope, TokenCounter
from worker.targets import targets_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The components of one request, injectable one by one."""

    selector: StrategySelector
    allocator: BudgetAllocator
    executor: StrategyExecutor
    deduplicator: FragmentDeduplicator
    depth_resolver: DetailDepthResolver
    scorer: FragmentScorer
    packer: BudgetPacker
    orderer: FragmentOrderer
    preamble: PreambleGenerator
    compressor: SkeletonCompressor


def default_components(*, fence: Fence, counter: TokenCounter, default_strategy: str) -> Components:
    """The built-in component for each step of one request."""
    return Components(
        selector=NamedStrategySelector(default_strategy),
        allocator=ProportionalBudgetAllocator(),
        executor=MergingStrategyExecutor(counter),
        deduplicator=CrossLayerDeduplicator(),
        depth_resolver=AdmittingDepthResolver(fence),
        scorer=StepwiseScorer(),
        packer=WorthBudgetPacker(),
        orderer=StablePrefixOrderer(),
        preamble=ReadingPreamble(fence, counter),
        compressor=FocusSkeletonCompressor(counter),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """After scoring and before packing: what each layer could show, and what its pins need at least."""

    frames: Mapping[PartName, Frame]
    scored: Mapping[PartName, Sequence[ScoredFragment]]
    levels: DetailLevels
    execution: Execution
    escaped_delimiters: int
    orderer: FragmentOrderer
    labels: Mapping[str, Label] = field(default_factory=dict[str, Label])
    """Of what can be cited, by fragment key; none where the prompt shows no ids."""

    def floor_section(self, layer: PartName) -> list[str]:
        """The lines of the layer's section with its pins at their floors; none where it has no pins."""
        floors = floor_placements(self.scored[layer], self.levels)
        return self._section(layer, floors)

    @property
    def strategies_used(self) -> tuple[str, ...]:
        """Those whose proposals the candidates are."""
        return self.execution.strategies_used

    def whole_section(self, layer: PartName) -> list[str]:
        """The lines of the layer's section with everything at its deepest; none where it has no fragments."""
        return self._whole(layer, self.scored[layer])

    def wanted_section(self, layer: PartName) -> list[str]:
        """The same with what asks for room alone: what the strategies have a share for, and pins."""
        return self._whole(layer, [item for item in self.scored[layer] if item.asks_for_room])

    @property
    def is_all_wanted(self) -> bool:
        """Whether everything asks for room."""
        return not self.execution.beyond_share

    def _whole(self, layer: PartName, items: Sequence[ScoredFragment]) -> list[str]:
        return self._section(
            layer, [place(item, self.levels[item.fragment.key][0], rule="whole") for item in items]
        )

    def pins(self, layer: PartName) -> list[str]:
        """The node ids of the layer's pins, in packing order."""
        return [placed.fragment.node for placed in floor_placements(self.scored[layer], self.levels)]

    def _section(self, layer: PartName, placed: Sequence[Placed]) -> list[str]:
        if not placed:
            return []
        return section_lines(
            self.frames[layer], [(p.fragment.group, p.text) for p in self.orderer.order(placed)]
        )


class FusionPipeline:
    """One request's fusion. `rank` runs steps 1 to 6, `pack` steps 7 and 8, `preamble` step 9.

    Step 10, `inherit`, comes before all of them where there is a parent: what is left of its context is
    ranked with the rest.
    """

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
        counter: TokenCounter | None = None,
        proposals: Sequence[PluginProposal] = (),
        is_labelled: bool = False,
    ) -> Candidates:
        """Select strategies, share the budget, execute, deduplicate, resolve depths, score.

        `budget_tokens` are for all content layers; with a `counter`, strategies for which layers compete
        share what the sections' frames leave of it. `proposals` are what the plug-ins that the request names
        said. `is_labelled` gives what can be cited the id to cite it by. Raises UnknownStrategy.
        """
        parts = self._components
        backends = BackendSet(contributions=contributions)
        plan_context = PlanContext.of(frame)
        selected = parts.selector.select(self._known(proposals), frame, backends)
        stood_in_for = tuple([failure for candidate in selected for failure in candidate.failures])
        if not any(contribution.fragments for contribution in contributions.values()) and not proposals:
            names = tuple([candidate.strategy.name for candidate in selected])
            return _no_candidates(names, stood_in_for, parts.orderer)
        frames: dict[PartName, Frame] = {
            layer: self._frame(layer, contribution)
            for layer, contribution in contributions.items()
            if contribution.fragments
        }
        shared_tokens = budget_tokens
        if counter is not None and not _fills_layers_alone(selected):
            shared_tokens -= sum([counter.count(section_text(shown, ())) for shown in frames.values()])
        allocations = parts.allocator.allocate(selected, shared_tokens, frame)
        execution = parts.executor.execute(allocations, frame, backends, plan_context)
        if stood_in_for or proposals:
            execution = replace(
                execution,
                failures=(*stood_in_for, *execution.failures),
                clamped_scores=execution.clamped_scores + sum(p.clamped_scores for p in proposals),
            )
        distinct, in_groups = _with_safe_groups(
            parts.deduplicator.deduplicate(execution.fragments), self._fence
        )
        levels, escaped = parts.depth_resolver.resolve(distinct, budget_tokens)
        labels = _labels(distinct, frame) if is_labelled else {}
        scored = parts.scorer.score(distinct, plan_context)
        return Candidates(
            frames=frames,
            scored=_by_layer(_as_proposed(scored, execution)),
            levels=mark_levels(levels, labels),
            execution=execution,
            escaped_delimiters=escaped + in_groups,
            orderer=parts.orderer,
            labels=labels,
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

    def preamble(
        self, frame: RequestFrame, *, strategies: Sequence[str], budget_used: float, max_tokens: int
    ) -> str:
        """How to read the sections, with the gap that ends it; empty where there is no room for it."""
        text = self._components.preamble.generate(
            frame, strategies_used=strategies, budget_used=budget_used, max_tokens=max_tokens
        )
        return text + SECTION_GAP if text else ""

    def inherit(
        self,
        contributions: Mapping[PartName, LayerContribution],
        parent: Sequence[Placed],
        focus: Sequence[str],
        *,
        budget_tokens: int,
    ) -> dict[PartName, LayerContribution]:
        """The contributions with the parent's skeleton, which has a share of the content's tokens."""
        skeleton_tokens = int(budget_tokens * SKELETON_SHARE)
        return inherit(contributions, self._components.compressor.compress(parent, focus, skeleton_tokens))

    def _known(self, proposals: Sequence[PluginProposal]) -> Mapping[str, ContextStrategy]:
        """The strategies by name, those that ran elsewhere as what was recorded of them."""
        if not proposals:
            return self._strategies
        recorded = {proposal.name: RecordedStrategy(proposal) for proposal in proposals}
        return {**self._strategies, **recorded}

    def _frame(self, layer: PartName, contribution: LayerContribution) -> Frame:
        sources = {p.resource_type for f in contribution.fragments for p in f.provenance}
        return Frame(
            opening=self._fence.opening(layer, sources),
            heading=self._fence.escape(contribution.heading)[0],
            closing=self._fence.closing(layer),
        )


def _with_safe_groups(fragments: Sequence[Fragment], fence: Fence) -> tuple[Sequence[Fragment], int]:
    """The fragments with the delimiters in their groups' headings escaped, and how many those were.

    A heading may be a path or a title, so it is content, too. Each counts once, however many stand under it.
    """
    escaped = {group: fence.escape(group) for group in {fragment.group for fragment in fragments}}
    found = sum(count for _, count in escaped.values())
    if not found:
        return fragments, 0
    return [replace(fragment, group=escaped[fragment.group][0]) for fragment in fragments], found


def _fills_layers_alone(selected: Sequence[Candidate]) -> bool:
    """Whether no layer competes with another, so that the strategy has no use for a share."""
    return len(selected) == 1 and selected[0].strategy.capabilities.competes == "within_layers"


def _labels(fragments: Sequence[Fragment], frame: RequestFrame) -> dict[str, Label]:
    request = frame.request
    return label_fragments(
        fragments,
        Scope(project_id=request.project_id, thread_id=request.thread_id),
        must_cite=targets_of(request),
        message=request.user_message,
    )


@lru_cache(maxsize=256)
def _no_candidates(
    strategies_used: tuple[str, ...], failures: tuple[StrategyFailure, ...], orderer: FragmentOrderer
) -> Candidates:
    """Where no source gave a fragment there is nothing to share, merge or score."""
    return Candidates(
        frames={},
        scored=dict.fromkeys(PARTS, ()),
        levels={},
        execution=Execution(
            fragments=(),
            proposed_by={},
            priorities={},
            beyond_share=frozenset(),
            strategies_used=strategies_used,
            failures=failures,
        ),
        escaped_delimiters=0,
        orderer=orderer,
    )


def _as_proposed(scored: Sequence[ScoredFragment], execution: Execution) -> Sequence[ScoredFragment]:
    """With the strategies' priorities: of what one fragment speaks for, the best counts."""
    priorities, beyond = execution.priorities, execution.beyond_share
    if not priorities:
        return scored
    ranked: list[ScoredFragment] = []
    for item in scored:
        keys = [item.fragment.key, *(absorbed.key for absorbed in item.fragment.absorbed)]
        known = [key for key in keys if key in execution.proposed_by]
        ranked.append(
            item._replace(
                priority=min((priorities.get(key, 0) for key in known), default=0),
                asks_for_room=item.fragment.is_pinned or any(key not in beyond for key in known),
            )
        )
    return ranked


def _by_layer(scored: Sequence[ScoredFragment]) -> dict[PartName, list[ScoredFragment]]:
    by_layer: dict[PartName, list[ScoredFragment]] = {layer: [] for layer in PARTS}
    for item in scored:
        by_layer[item.fragment.layer].append(item)
    return by_layer
