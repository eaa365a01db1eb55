"""Who is chosen, who gets what share, and what becomes of strategies that misbehave."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codes import CONTENT_LAYERS, PartName
from schemas.fragments import FragmentProvenance
from schemas.request import AssemblyRequest
from worker.budget.tokens import BytesCounter
from worker.errors import UnknownStrategy
from worker.fusion.executing import MergingStrategyExecutor
from worker.fusion.orchestration import NamedStrategySelector, ProportionalBudgetAllocator
from worker.fusion.protocols import (
    Allocation,
    BackendSet,
    Candidate,
    ContextStrategy,
    Execution,
    PlanContext,
    StrategyCapabilities,
    StrategyFailure,
)
from worker.fusion.strategies.layered import LayeredStrategy
from worker.fusion.strategies.recency import RecencyStrategy
from worker.fusion.strategies.recorded import PluginProposal, RecordedStrategy
from worker.fusion.strategies.registry import BUILT_IN
from worker.fusion.strategies.relevance import RelevanceStrategy
from worker.ports import Fragment, LayerContribution, Rendering, RequestFrame, Subject

NOW = datetime(2026, 3, 31, tzinfo=UTC)
PLAN = PlanContext(task_type="BUILD", as_of=NOW)


def frame(strategy: str | None = None) -> RequestFrame:
    fields = {"request_id": "r", "project_id": "p", "volk": "v", "subject": "implement", "user_message": "m"}
    return RequestFrame(
        request=AssemblyRequest.model_validate({**fields, "strategy": strategy}),
        subject=Subject(name="implement", inject=True, semantic=True, task_type="BUILD"),
        task_type="BUILD",
        as_of=NOW,
    )


def fragment(node: str, *, size: int = 9, layer: PartName = "memory", **fields: Any) -> Fragment:
    defaults: dict[str, Any] = {"position": 0, "relevance": 0.5}
    return Fragment(
        layer=layer,
        node=node,
        renderings=(Rendering(depth=9, text="x" * size),),
        provenance=(FragmentProvenance(resource_uri=node, resource_type=layer),),
        **{**defaults, **fields},
    )


def backends(*fragments: Fragment) -> BackendSet:
    return BackendSet(
        contributions={
            layer: LayerContribution(
                layer=layer, status="ok", fragments=tuple(f for f in fragments if f.layer == layer)
            )
            for layer in CONTENT_LAYERS
        }
    )


Assemble = Callable[[BackendSet], Any]


class Custom:
    """A strategy of somebody else's."""

    def __init__(self, assemble: Assemble, *, name: str = "custom", **capabilities: Any) -> None:
        self.name = name
        self.capabilities = StrategyCapabilities(**capabilities)
        self.confidence: Any = 1.0
        self._assemble = assemble

    def can_handle(self, request: RequestFrame, backends: BackendSet) -> float:
        if isinstance(self.confidence, Exception):
            raise self.confidence
        return self.confidence

    def assemble(
        self, request: RequestFrame, backends: BackendSet, budget: int, plan_context: PlanContext
    ) -> Sequence[Fragment]:
        return self._assemble(backends)

    def explain(self) -> str:
        return "Mine."


def execute(given: BackendSet, *shares: tuple[ContextStrategy, int]) -> Execution:
    allocations = [Allocation(strategy=strategy, budget_tokens=tokens) for strategy, tokens in shares]
    return MergingStrategyExecutor(BytesCounter()).execute(allocations, frame(), given, PLAN)


def packing_order(execution: Execution) -> list[str]:
    """The nodes by priority, then by their place."""
    ranked = sorted(execution.fragments, key=lambda f: execution.priorities.get(f.key, 0))
    return [f.node for f in ranked]


# --- The selector ------------------------------------------------------------------------------------


def test_a_request_that_names_none_gets_the_default() -> None:
    selected = NamedStrategySelector("recency+tiered").select(
        BUILT_IN.in_process,
        frame(),
        backends(fragment("a", created_at=NOW), fragment("b", storage_tier="hot")),
    )
    assert [(c.strategy.name, c.confidence) for c in selected] == [("recency", 0.5), ("tiered", 1.0)]


@pytest.mark.parametrize(
    ("confidence", "code"),
    [
        (0, "cannot_handle"),
        (math.nan, "cannot_handle"),
        (-1, "cannot_handle"),
        (OSError(), "plugin_error"),
        ("x", "plugin_error"),
    ],
)
def test_layered_stands_in_for_who_cannot_handle_the_request(confidence: object, code: Any) -> None:
    custom = Custom(lambda b: b.fragments())
    custom.confidence = confidence
    known = {**BUILT_IN.in_process, "custom": custom}
    failure = StrategyFailure(name="custom", code=code)
    for named, used in (
        ("custom", ["layered"]),
        ("layered+custom", ["layered"]),
        ("custom+relevance", ["layered", "relevance"]),
    ):
        given = backends(fragment("a"), fragment("b", relevance=0.1))
        selected = NamedStrategySelector("layered").select(known, frame(named), given)
        assert [c.strategy.name for c in selected] == used
        assert selected[0].failures == (failure,)


def test_confidence_over_one_is_one() -> None:
    custom = Custom(lambda b: b.fragments())
    custom.confidence = math.inf
    (candidate,) = NamedStrategySelector("custom").select({"custom": custom}, frame(), backends())
    assert candidate.confidence == 1.0


def test_a_name_that_is_not_registered_is_refused_by_the_selector_too() -> None:
    with pytest.raises(UnknownStrategy):
        NamedStrategySelector("layered").select(BUILT_IN.in_process, frame("psychic"), backends())


# --- The allocator -----------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 1)), min_size=1, max_size=6), st.integers(-5, 200_000)
)
def test_shares_sum_to_the_budget_and_the_surer_strategy_never_gets_less(
    sure: list[tuple[float, float]], total: int
) -> None:
    candidates = [
        Candidate(strategy=Custom(lambda _: (), name=f"s{i}", quality_score=quality), confidence=confidence)
        for i, (confidence, quality) in enumerate(sure)
    ]
    shares = [a.budget_tokens for a in ProportionalBudgetAllocator().allocate(candidates, total, frame())]
    assert sum(shares) == max(0, total)
    assert min(shares) >= 0
    by_weight = sorted(zip((c * q for c, q in sure), shares, strict=True))
    for (lighter, less), (heavier, more) in pairwise(by_weight):
        assert less <= more + 1 or heavier == lighter


def test_what_rounding_leaves_goes_to_who_lost_most() -> None:
    sure = [Candidate(strategy=LayeredStrategy(), confidence=c) for c in (0.5, 0.3, 0.2)]
    shares = ProportionalBudgetAllocator().allocate(sure, 9, frame())
    assert [a.budget_tokens for a in shares] == [4, 3, 2]  # of 4.5, 2.7 and 1.8
    unsure = [replace(c, confidence=0.0) for c in sure]
    assert [a.budget_tokens for a in ProportionalBudgetAllocator().allocate(unsure, 8, frame())] == [3, 3, 2]


# --- The executor ------------------------------------------------------------------------------------


def test_layered_alone_has_no_share_to_keep_to() -> None:
    execution = execute(backends(fragment("a"), fragment("b", layer="graph")), (LayeredStrategy(), 0))
    assert (execution.beyond_share, execution.priorities) == (frozenset(), {})
    assert set(execution.proposed_by.values()) == {("layered",)}


def test_what_does_not_fit_the_share_is_passed_over_and_a_later_smaller_one_taken() -> None:
    given = backends(
        fragment("first", relevance=0.9),
        fragment("huge", relevance=0.8, size=500),
        fragment("small", relevance=0.7),
        fragment("late", relevance=0.6),
    )
    execution = execute(given, (RelevanceStrategy(), 20))
    assert {key.rpartition(":")[2] for key in execution.beyond_share} == {"huge", "late"}
    assert packing_order(execution) == ["first", "small", "huge", "late"]


def test_what_comes_after_the_share_is_spent_is_not_counted_any_more() -> None:
    counted: list[str] = []

    class Counting(BytesCounter):
        def count_up_to(self, text: str, limit_tokens: int) -> int:
            counted.append(text)
            return super().count_up_to(text, limit_tokens)

    given = backends(*[fragment(f"n{i}", rank=i) for i in range(100)])
    allocation = Allocation(strategy=Custom(lambda b: b.fragments()), budget_tokens=30)
    execution = MergingStrategyExecutor(Counting()).execute([allocation], frame(), given, PLAN)
    assert len(execution.beyond_share) == 97
    assert counted == ["x" * 9 + "\n"] * 3  # that not all of it fits is seen by its length


def test_strategies_take_turns_each_within_its_own_share() -> None:
    given = backends(
        *[
            fragment(f"n{i}", relevance=i / 10, created_at=NOW.replace(day=30 - i), position=i)
            for i in range(6)
        ]
    )
    execution = execute(given, (RelevanceStrategy(), 20), (RecencyStrategy(), 20))
    assert packing_order(execution)[:4] == ["n5", "n0", "n4", "n1"]
    assert {key.rpartition(":")[2] for key in execution.beyond_share} == {"n2", "n3"}
    assert execution.proposed_by[given.fragments()[0].key] == ("relevance", "recency")
    assert execution.strategies_used == ("relevance", "recency")


def test_what_two_propose_costs_the_first_one_alone() -> None:
    given = backends(
        fragment("a", relevance=0.9, created_at=NOW), fragment("b", relevance=0.1, created_at=NOW)
    )
    execution = execute(given, (RelevanceStrategy(), 10), (RecencyStrategy(), 10))
    assert execution.beyond_share == frozenset()


def test_a_pin_is_there_whatever_strategies_propose() -> None:
    pin, other = fragment("pin", is_pinned=True, size=1_000), fragment("other")
    execution = execute(backends(pin, other), (Custom(lambda _: ()), 10))
    assert execution.proposed_by == {pin.key: ()}
    assert list(execution.fragments) == [pin]
    proposing = execute(backends(pin, other), (Custom(lambda b: b.fragments()), 10))
    assert pin.key not in proposing.beyond_share


def raising(_: BackendSet) -> Any:
    raise RuntimeError


def from_another_layer(given: BackendSet) -> list[Fragment]:
    return [replace(given.fragments()[0], layer="graph")]


def giving(proposed: Any) -> Assemble:
    return lambda _: proposed


@pytest.mark.parametrize(
    ("assemble", "code"),
    [
        (raising, "plugin_error"),
        (giving(None), "plugin_error"),
        (giving([1]), "plugin_error"),
        (giving([fragment("of another project")]), "plugin_foreign"),
        (from_another_layer, "plugin_foreign"),
    ],
)
def test_the_share_of_who_fails_goes_to_layered(assemble: Assemble, code: Any) -> None:
    given = backends(fragment("a", relevance=0.9), fragment("b", relevance=0.1), fragment("c", layer="task"))
    execution = execute(given, (Custom(assemble), 10))
    assert execution.failures == (StrategyFailure(name="custom", code=code),)
    assert replace(execution, failures=()) == execute(given, (LayeredStrategy(), 10))
    beside = execute(given, (Custom(assemble), 10), (RelevanceStrategy(), 10))
    assert beside.strategies_used == ("relevance", "layered")
    assert replace(beside, failures=()) == execute(given, (RelevanceStrategy(), 10), (LayeredStrategy(), 10))


def test_relevances_of_a_strategy_are_brought_into_range_and_counted_and_nothing_else_of_it_is_taken() -> (
    None
):
    given = backends(*[fragment(node) for node in "abcd"])
    said = dict(zip("abcd", (math.nan, 7.0, -math.inf, 0.25), strict=True))

    def assemble(b: BackendSet) -> list[Fragment]:
        return [replace(f, relevance=said[f.node], is_pinned=True, group="# Mine") for f in b.fragments()]

    execution = execute(given, (Custom(assemble), 1_000))
    assert [f.relevance for f in execution.fragments] == [0.0, 1.0, 0.0, 0.25]
    assert execution.clamped_scores == 3
    assert not any(f.is_pinned or f.group for f in execution.fragments)


def test_a_strategy_for_some_sources_leaves_the_others_to_layered() -> None:
    given = backends(fragment("m"), fragment("g", layer="graph", size=500))
    seen: list[str] = []

    def assemble(b: BackendSet) -> list[Fragment]:
        seen.extend(f.node for f in b.fragments())
        return b.fragments()

    execution = execute(given, (Custom(assemble, resource_types=("memory",)), 20))
    assert seen == ["m"]
    assert [names for _, names in sorted(execution.proposed_by.items())] == [("layered",), ("custom",)]
    assert execution.beyond_share == frozenset()
    greedy = Custom(lambda _: given.fragments(), resource_types=("memory",))
    assert execute(given, (greedy, 20)).failures == (StrategyFailure(name="custom", code="plugin_foreign"),)


def test_what_a_plugin_proposed_is_what_was_recorded() -> None:
    given = backends(fragment("a"), fragment("b"))
    a, b = (f.key for f in given.fragments())
    recorded = PluginProposal(name="p", capabilities=StrategyCapabilities(), entries=((b, 0.9), (a, 0.5)))
    execution = execute(given, (RecordedStrategy(recorded), 100))
    assert packing_order(execution) == ["b", "a"]
    assert [f.relevance for f in execution.fragments] == [0.9, 0.5]
    foreign = replace(recorded, entries=(("memory:0:gone", 0.5),))
    assert execute(given, (RecordedStrategy(foreign), 100)).failures[0].code == "plugin_foreign"
    failed = PluginProposal.failed("p", "plugin_timeout")
    assert execute(given, (RecordedStrategy(failed), 100)).failures[0].code == "plugin_timeout"


named = st.sampled_from(
    [(), ("layered",), ("relevance",), ("recency", "tiered"), ("tiered", "layered", "relevance")]
)
fragments = st.lists(
    st.builds(
        fragment,
        st.sampled_from("abcdefgh"),
        size=st.integers(0, 40),
        layer=st.sampled_from(CONTENT_LAYERS[:3]),
        relevance=st.sampled_from([0.0, 0.5, math.nan]),
        created_at=st.none() | st.just(NOW),
        storage_tier=st.sampled_from(["hot", "cold"]),
        is_pinned=st.booleans(),
    ),
    unique_by=lambda f: f.key,
    max_size=8,
)


@settings(max_examples=40)
@given(fragments, named, st.integers(0, 120), st.randoms(use_true_random=False))
def test_the_order_of_input_changes_nothing_pins_stay_and_shares_hold(
    given: list[Fragment], names: tuple[str, ...], share: int, rng: random.Random
) -> None:
    runs = [(BUILT_IN.in_process[name], share) for name in names]
    execution = execute(backends(*given), *runs)
    assert execution == execute(backends(*rng.sample(given, len(given))), *runs)
    within = [f for f in execution.fragments if f.key not in execution.beyond_share and not f.is_pinned]
    if len(runs) > 1 or (runs and names != ("layered",)):
        assert sum(len(f.renderings[0].text) for f in within) <= share * len(runs)
    assert {f.key for f in given if f.is_pinned} <= execution.proposed_by.keys() - execution.beyond_share
    assert len({f.key for f in execution.fragments}) == len(execution.fragments)
