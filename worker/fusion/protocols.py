"""The ten components, each a protocol with one default beside it in this package; and what they exchange.

Phase 1, orchestration: StrategySelector, BudgetAllocator, StrategyExecutor.
Phase 2, fusion: FragmentDeduplicator, DetailDepthResolver, FragmentScorer, BudgetPacker, FragmentOrderer.
Phase 3, finish: PreambleGenerator, SkeletonCompressor.

Everything here is pure: no I/O, no clock, no randomness. Strategies read what was gathered, in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, NamedTuple, Protocol

from schemas.codes import PARTS, PartName, TaskType
from schemas.fragments import RelevanceTier
from worker.ports import Fragment, LayerContribution, Rendering, RequestFrame, Scope, TokenCounter
from worker.targets import targets_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSet:
    """What strategies may draw on: the gathered contributions, by layer.

    What the graph knows of a fragment came with it, so no strategy asks a store, and a bundle can be made
    again from what was gathered alone.
    """

    contributions: Mapping[PartName, LayerContribution]

    def fragments(self) -> list[Fragment]:
        """All of them, in the order of the layers and of their sources."""
        held = [self.contributions[layer] for layer in PARTS if layer in self.contributions]
        return [fragment for contribution in held for fragment in contribution.fragments]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanContext:
    """The frame facts that scoring may use: what kind of work this is, and as of when."""

    task_type: TaskType
    as_of: datetime
    targets: frozenset[str] = frozenset()
    """Ids and paths that the request itself names: files that were created, what has to be cited."""

    @classmethod
    def of(cls, frame: RequestFrame) -> PlanContext:
        """The facts of this frame: the same for strategies here and in processes of their own."""
        request = frame.request
        return cls(
            task_type=frame.task_type,
            as_of=frame.as_of,
            targets=targets_of(request),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyCapabilities:
    """What a strategy makes use of, and how its proposals are taken.

    A plug-in is sent what it makes use of and nothing else.
    """

    uses_text: bool = False
    """Renderings."""
    uses_vector: bool = False
    """No fragment has a vector here: a strategy that needs them is refused."""
    uses_graph: bool = False
    """Metadata, distance and relevance tier."""
    uses_temporal: bool = False
    """When the content came about."""
    uko_levels: tuple[int, ...] = ()
    """The depths of the renderings that it reads; all where empty."""
    resource_types: tuple[str, ...] = ()
    """The types of source that it ranks; all where empty. What others gave is left to `layered`."""
    quality_score: float = 0.5
    """Over 0, to 1: weighs its share where several strategies are equally sure of themselves."""
    order: Literal["own", "score"] = "own"
    """What decides between its proposals: the place that it gave them, or the scorer."""
    competes: Literal["within_layers", "across_layers"] = "across_layers"
    """Whether the fragments of one layer compete with those of others for its tokens."""


class ContextStrategy(Protocol):
    """Chooses which fragments are candidates, and in which order they deserve the budget."""

    @property
    def name(self) -> str:
        """As requests spell it."""
        ...

    @property
    def capabilities(self) -> StrategyCapabilities:
        """What it makes use of."""
        ...

    def can_handle(self, request: RequestFrame, backends: BackendSet) -> float:
        """Confidence from 0 (cannot) to 1."""
        ...

    def assemble(
        self, request: RequestFrame, backends: BackendSet, budget: int, plan_context: PlanContext
    ) -> Sequence[Fragment]:
        """Candidates, best first, out of those in `backends`; their relevance may be another one.

        `budget` is what they may take in tokens. Those beyond it fill what room is left.
        """
        ...

    def explain(self) -> str:
        """One sentence for a person who asks why."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A strategy that was selected, and how confident it is."""

    strategy: ContextStrategy
    confidence: float
    failures: tuple[StrategyFailure, ...] = ()
    """The strategies that were asked for and that it stands in for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A strategy and its share of the tokens."""

    strategy: ContextStrategy
    budget_tokens: int


FailureCode = Literal[
    "cannot_handle", "plugin_error", "plugin_timeout", "plugin_died", "plugin_foreign", "plugin_missing"
]
"""Why `layered` works in a strategy's place: it said that it cannot handle the request; it raised, or said
what is no answer; it took too long; its process ended; it proposed what it was not given; or whoever
assembles here runs no plug-ins."""


class StrategyFailed(Exception):
    """A strategy has nothing to propose, for this reason."""

    def __init__(self, code: FailureCode, *, error: str | None = None) -> None:
        """Fail for this reason; `error` is the type of what a plug-in raised, where it said so."""
        super().__init__(code)
        self.code: FailureCode = code
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyFailure:
    """A strategy whose share went to `layered`, and why."""

    name: str
    code: FailureCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What the strategies propose together."""

    fragments: Sequence[Fragment]
    """Each once, best first."""
    proposed_by: Mapping[str, tuple[str, ...]]
    """Strategies by fragment key; none for a pin that no strategy proposed, and that stays for all that."""
    priorities: Mapping[str, int]
    """By fragment key: the lower, the earlier it is packed in its layer; 0 where absent."""
    beyond_share: frozenset[str]
    """Keys of what no strategy's share had room for: it gets what others leave, and asks for none."""
    strategies_used: tuple[str, ...] = ()
    failures: tuple[StrategyFailure, ...] = ()
    clamped_scores: int = 0
    """How many relevances a strategy gave that are no number, or not between 0 and 1."""


class ScoredFragment(NamedTuple):
    """A fragment and its final score, 0 to 1, rounded to six decimals."""

    # No dataclass: a thousand of these are made for a request, and a frozen one takes three times as long.

    fragment: Fragment
    score: float
    priority: int = 0
    """Where a strategy ranks by itself: its place, 0 first. It comes before the score."""
    asks_for_room: bool = True
    """Whether other layers may have to lend for it; else it takes what its own layer has left."""

    @property
    def ranking(self) -> tuple[bool, int, int, int]:
        """What comes before any score: pins; a strategy's priority; core, related, peripheral.

        Within a tier the nearer comes first: fewer edges to what the request names; last what none lead to.
        """
        fragment = self.fragment
        tier = fragment.relevance_tier
        if tier is None:
            return (not fragment.is_pinned, self.priority, 0, 0)
        hops = _OUT_OF_REACH if fragment.hops is None else fragment.hops
        return (not fragment.is_pinned, self.priority, RELEVANCE_TIERS.index(tier), hops)

    @property
    def order_key(self) -> tuple[bool, int, int, int, float, int, str, int]:
        """Packing order, from whose end is evicted: ranking, score, the rank, node id. Never time."""
        fragment = self.fragment
        return (*self.ranking, -self.score, fragment.rank, fragment.node, fragment.position)


RELEVANCE_TIERS: Final[tuple[RelevanceTier, ...]] = ("core", "related", "peripheral")
"""In the order in which they are packed."""

_OUT_OF_REACH: Final = 1_000_000
"""Farther than any node that edges lead to."""

PlacedRule = Literal["whole", "pinned_floor", "fits", "shallower", "name", "cut"]
"""Why a fragment is shown as it is: the whole layer had room; it is a pin and there was room for its floor
alone; its deepest rendering fitted; a shallower one did; its name did; its beginning filled what was left."""


class Placed(NamedTuple):
    """A fragment that made it into its layer, with the text that is shown of it."""

    # No dataclass, for the same reason as a scored one.

    fragment: Fragment
    score: float
    depth: int
    text: str
    rule: PlacedRule
    is_cut: bool = False
    """Whether `text` holds only the beginning of the deepest rendering, behind its floor where it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What surrounds the fragments of one section: its marks and heading, whose tokens are the layer's."""

    opening: str
    heading: str
    closing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpace:
    """The room that one layer's fragments have, frame included."""

    budget_tokens: int
    counter: TokenCounter
    frame: Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayer:
    """What was kept of one layer, in text order, and how much was left out."""

    layer: PartName
    frame: Frame
    placed: tuple[Placed, ...]
    dropped: int
    """Fragments that are not shown at all."""
    reduced: int
    """Fragments shown at a lower depth, or cut."""


DetailLevels = Mapping[str, Sequence[Rendering]]
"""Renderings by fragment key, deepest first, ready to be shown."""


class StrategySelector(Protocol):
    """Which strategies work on this request."""

    def select(
        self, strategies: Mapping[str, ContextStrategy], request: RequestFrame, backends: BackendSet
    ) -> list[Candidate]:
        """At least one. Raises UnknownStrategy where the request names one that is not registered."""
        ...


class BudgetAllocator(Protocol):
    """How the tokens are shared between the selected strategies."""

    def allocate(
        self, candidates: Sequence[Candidate], total_budget: int, request: RequestFrame
    ) -> list[Allocation]:
        """Shares that sum to at most `total_budget`."""
        ...


class StrategyExecutor(Protocol):
    """Runs the strategies and merges what they propose."""

    def execute(
        self,
        allocations: Sequence[Allocation],
        request: RequestFrame,
        backends: BackendSet,
        plan_context: PlanContext,
    ) -> Execution:
        """Candidates of all strategies, each fragment once, every pin among them.

        A strategy that fails has its share go to `layered`; nothing that it does is raised here.
        """
        ...


class FragmentDeduplicator(Protocol):
    """The same content appears once, with all its provenances."""

    def deduplicate(self, fragments: Sequence[Fragment]) -> list[Fragment]:
        """Input order of the survivors is kept; a pin survives any merge."""
        ...


class DetailDepthResolver(Protocol):
    """At which depths each fragment can be shown."""

    def resolve(self, fragments: Sequence[Fragment], budget: int) -> tuple[DetailLevels, int]:
        """Renderings worth trying under `budget` tokens, deepest first, never none.

        And how many section delimiters had to be escaped in them.
        """
        ...


class FragmentScorer(Protocol):
    """What each fragment is worth for this work."""

    def score(self, fragments: Sequence[Fragment], plan_context: PlanContext) -> list[ScoredFragment]:
        """Scores in 0 to 1, finite and rounded, whatever the sources claimed."""
        ...


class BudgetPacker(Protocol):
    """Depth against count under one layer's hard budget."""

    def pack(
        self,
        scored_fragments: Sequence[ScoredFragment],
        budget: LayerSpace,
        detail_level_maps: DetailLevels,
    ) -> list[Placed]:
        """Kept fragments in packing order; a pin is never below its floor."""
        ...


class FragmentOrderer(Protocol):
    """In which order the kept fragments stand in the text."""

    def order(self, placed: Sequence[Placed]) -> list[Placed]:
        """A permutation of the input."""
        ...


class PreambleGenerator(Protocol):
    """The few lines above the sections that say how to read them."""

    def generate(
        self, request: RequestFrame, *, strategies_used: Sequence[str], budget_used: float, max_tokens: int
    ) -> str:
        """Empty where `max_tokens` cannot hold it."""
        ...


class ParentContexts(Protocol):
    """Where the contexts of earlier requests are kept, for children to start from."""

    async def read(self, scope: Scope, request_id: str, *, wait_seconds: float) -> Sequence[Placed]:
        """What that request's bundle showed.

        Raises NotSupported where the scope has none, or has it no longer, or it is not there within
        `wait_seconds`; StoreUnavailable.
        """
        ...


class SkeletonCompressor(Protocol):
    """A parent's bundle as a child's starting point: bodies to signatures outside the child's focus."""

    def compress(
        self, parent_context: Sequence[Placed], child_focus: Sequence[str], skeleton_budget: int
    ) -> list[Fragment]:
        """Fragments whose deepest renderings sum to at most `skeleton_budget` tokens."""
        ...
