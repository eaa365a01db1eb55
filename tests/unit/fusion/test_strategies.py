"""What each strategy does to a bundle: across layers, and within one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.bundle import ContextBundle
from schemas.codes import CONTENT_LAYERS, PartName
from schemas.fragments import FragmentProvenance, StorageTier
from tests.support.assembling import bundle_of, wire_request
from tests.support.fixed_sources import FixedSource, assembler_over
from worker.budget.layers import ContextBudget
from worker.errors import UnknownStrategy
from worker.fusion.protocols import BackendSet, ContextStrategy, PlanContext, StrategyCapabilities
from worker.fusion.strategies.layered import LayeredStrategy
from worker.fusion.strategies.recency import RecencyStrategy
from worker.fusion.strategies.registry import BUILT_IN, StrategyRegistry, strategy_names
from worker.fusion.strategies.relevance import RelevanceStrategy
from worker.fusion.strategies.tiered import TieredStrategy
from worker.library import UnifiedContextAssembler
from worker.ports import Fragment, LayerContribution, Rendering, RequestFrame
from worker.settings import Content, Settings
from worker.wiring import build_proposals, content_policy

NOW = datetime(2026, 3, 31, 12, tzinfo=UTC)
PLAN = PlanContext(task_type="BUILD", as_of=NOW)
REQUEST: Any = None
"""The built-in strategies rank by the fragments alone."""


def fragment(
    node: str,
    *,
    layer: PartName = "memory",
    relevance: float = 0.5,
    created_at: datetime | None = None,
    tier: StorageTier = "warm",
    is_pinned: bool = False,
) -> Fragment:
    return Fragment(
        layer=layer,
        node=node,
        renderings=(Rendering(depth=9, text=node),),
        provenance=(FragmentProvenance(resource_uri=node),),
        position=0,
        relevance=relevance,
        created_at=created_at,
        storage_tier=tier,
        is_pinned=is_pinned,
    )


def backends(fragments: Sequence[Fragment]) -> BackendSet:
    return BackendSet(
        contributions={
            layer: LayerContribution(
                layer=layer, status="ok", fragments=tuple(f for f in fragments if f.layer == layer)
            )
            for layer in CONTENT_LAYERS
        }
    )


def order(strategy: ContextStrategy, fragments: Sequence[Fragment]) -> list[str]:
    return [f.node for f in strategy.assemble(REQUEST, backends(fragments), 100, PLAN)]


def test_layered_takes_turns_between_the_layers_each_from_its_sources_best_down() -> None:
    fragments = [
        fragment("m1", relevance=0.2),
        fragment("m2", relevance=0.3),
        fragment("g1", layer="graph", relevance=0.9),
        fragment("g2", layer="graph", relevance=0.8),
        fragment("pin", layer="task", relevance=0.0, is_pinned=True),
    ]
    assert order(LayeredStrategy(), fragments) == ["pin", "m2", "g1", "m1", "g2"]


def test_relevance_goes_by_descending_score_across_all_layers() -> None:
    fragments = [
        fragment("m1", relevance=0.2),
        fragment("g1", layer="graph", relevance=0.9),
        fragment("a1", layer="artifacts", relevance=0.5),
        fragment("g2", layer="graph", relevance=float("nan")),
        fragment("pin", layer="task", relevance=0.0, is_pinned=True),
    ]
    assert order(RelevanceStrategy(), fragments) == ["pin", "g1", "a1", "m1", "g2"]


def test_recency_compares_instants_and_not_how_they_are_written_and_puts_undated_ones_last() -> None:
    east, west = timezone(timedelta(hours=12)), timezone(timedelta(hours=-11))
    fragments = [
        fragment("undated", relevance=1.0),
        fragment("first", created_at=datetime(2026, 3, 2, 9, tzinfo=east)),  # 1 March, 21:00 in UTC
        fragment("second", created_at=datetime(2026, 3, 1, 22)),  # noqa: DTZ001 - a naive one is UTC
        fragment("third", layer="graph", created_at=datetime(2026, 3, 1, 12, tzinfo=west)),
        fragment("ancient", created_at=datetime.min.replace(tzinfo=east)),
    ]
    assert order(RecencyStrategy(), fragments) == ["third", "second", "first", "ancient", "undated"]


def test_tiered_goes_hot_warm_cold_and_by_relevance_within_a_tier() -> None:
    fragments = [
        fragment("cold", relevance=1.0, tier="cold"),
        fragment("warm", relevance=0.6),
        fragment("warmer", layer="graph", relevance=0.7),
        fragment("hot", relevance=0.1, tier="hot"),
    ]
    assert order(TieredStrategy(), fragments) == ["hot", "warmer", "warm", "cold"]


fragments = st.lists(
    st.builds(
        fragment,
        st.sampled_from("abcdefghij"),
        layer=st.sampled_from(CONTENT_LAYERS[:3]),
        relevance=st.sampled_from([0.0, 0.5, 1.0, float("nan")]),
        created_at=st.none() | st.sampled_from([NOW, NOW - timedelta(days=1)]),
        tier=st.sampled_from(["hot", "warm", "cold"]),
        is_pinned=st.booleans(),
    ),
    unique_by=lambda f: f.key,
    max_size=8,
)


@settings(max_examples=40)
@given(fragments, st.randoms(use_true_random=False), st.sampled_from(BUILT_IN.names))
def test_a_built_in_strategy_orders_what_it_is_given_whatever_order_that_is_in(
    fs: list[Fragment], rng: random.Random, name: str
) -> None:
    strategy = BUILT_IN.in_process[name]
    ordered = [f.key for f in strategy.assemble(REQUEST, backends(fs), 100, PLAN)]
    shuffled = strategy.assemble(REQUEST, backends(rng.sample(fs, len(fs))), 100, PLAN)
    assert ordered == [f.key for f in shuffled]
    assert sorted(ordered) == sorted(f.key for f in fs)
    assert 0 <= strategy.can_handle(REQUEST, backends(fs)) <= 1
    assert strategy.explain().endswith(".")


def test_a_strategy_cannot_rank_by_what_is_the_same_everywhere() -> None:
    alike = backends([fragment("a"), fragment("b")])
    assert [s.can_handle(REQUEST, alike) for s in BUILT_IN.in_process.values()] == [1.0, 0.0, 0.0, 0.0]
    half = backends([fragment("a", created_at=NOW), fragment("b")])
    assert RecencyStrategy().can_handle(REQUEST, half) == 0.5


# --- On the bundle -----------------------------------------------------------------------------------


def sized(node: str, position: int, text: str, **fields: Any) -> Fragment:
    return replace(fragment(node, **fields), renderings=(Rendering(depth=9, text=text),), position=position)


def assembled(
    fragments: Sequence[Fragment], strategy: str | None, *, budget: dict[str, Any] | None = None
) -> ContextBundle:
    fields: dict[str, Any] = {"strategy": strategy} if strategy else {}
    include = ["messages", "parts", "payload", "layers"]
    request = wire_request(encoding="bytes", include=include, budget=budget, **fields)
    return bundle_of(request, assembler_over(fragments))


def shown(bundle: ContextBundle) -> set[str]:
    assert bundle.payload is not None
    return {f.uko_node for f in bundle.payload.fragments}


FACTS = [
    sized("relevant", 0, "r" * 300, relevance=0.9, created_at=NOW - timedelta(days=90), tier="cold"),
    sized("newest", 1, "n" * 300, relevance=0.2, created_at=NOW),
    sized("hot", 2, "h" * 300, relevance=0.1, created_at=NOW - timedelta(days=5), tier="hot"),
]


@pytest.mark.parametrize(
    ("strategy", "kept"),
    [
        (None, "relevant"),
        ("layered", "relevant"),
        ("relevance", "relevant"),
        ("recency", "newest"),
        ("tiered", "hot"),
        ("tiered+recency", "hot"),
        ("recency + tiered", "newest"),
    ],
)
def test_each_strategy_decides_what_a_layer_has_room_for(strategy: str | None, kept: str) -> None:
    bundle = assembled(FACTS, strategy, budget={"total": 1_000, "layers": {"output": 300}})
    assert shown(bundle) == {kept}
    assert bundle.payload is not None
    assert bundle.payload.strategies_used == tuple((strategy or "layered").replace(" ", "").split("+"))


def test_relevance_has_layers_with_weak_fragments_lend_to_layers_with_strong_ones() -> None:
    weak = [sized(f"g{i}", i, f"{i}" * 200, layer="graph", relevance=0.1) for i in range(5)]
    strong = [sized(f"m{i}", i, f"{i + 5}" * 200, relevance=0.8) for i in range(5)]
    room = {"total": 2_200, "layers": {"output": 100}}
    by_layers = shown(assembled([*weak, *strong], "layered", budget=room))
    by_relevance = shown(assembled([*weak, *strong], "relevance", budget=room))
    weak_nodes, strong_nodes = {f.node for f in weak}, {f.node for f in strong}
    assert weak_nodes < by_layers
    assert not strong_nodes <= by_layers
    assert strong_nodes < by_relevance  # and what is left over is filled
    assert len(by_relevance) == len(by_layers)


def test_where_all_fits_no_strategy_changes_a_byte_of_a_section() -> None:
    sections = {str(assembled(FACTS, name).parts) for name in (None, *BUILT_IN.names, "recency+relevance")}
    assert len(sections) == 1


def test_several_strategies_each_get_what_they_would_have_had_first() -> None:
    facts = [
        sized(f"n{i}", i, f"{i}" * 100, relevance=(9 - i) / 10, created_at=NOW - timedelta(days=9 - i))
        for i in range(9)
    ]
    bundle = assembled(facts, "relevance+recency", budget={"total": 1_200, "layers": {"output": 300}})
    kept = sorted(shown(bundle))
    assert kept[0] == "n0"
    assert kept[-1] == "n8"
    assert len(kept) < 9


def test_a_strategy_that_cannot_rank_leaves_the_bundle_to_layered() -> None:
    undated = [replace(f, created_at=None) for f in FACTS]
    tight = {"total": 1_000, "layers": {"output": 300}}
    bundle = assembled(undated, "recency", budget=tight)
    assert bundle.payload is not None
    assert bundle.payload.strategies_used == ("layered",)
    plain = assembled(undated, "layered", budget=tight)
    assert (bundle.parts, bundle.layers) == (plain.parts, plain.layers)


@pytest.mark.parametrize("name", ["psychic", "relevance+psychic", "relevance+", "", "Layered"])
def test_an_unknown_name_is_refused_and_the_known_ones_are_said(name: str) -> None:
    with pytest.raises(UnknownStrategy) as caught:
        bundle_of(wire_request(strategy=name))
    assert caught.value.details["known"] == ["layered", "recency", "relevance", "tiered"]


# --- Names -------------------------------------------------------------------------------------------


class Mine(RelevanceStrategy):
    """A library user's own."""

    name = "mine"


def test_a_strategy_is_registered_under_its_own_free_name() -> None:
    mine = Mine()
    registry = BUILT_IN.with_strategy("mine", mine)
    assert (registry.in_process["mine"], registry.check("mine+layered")) == (mine, ("mine", "layered"))
    assert "mine" not in BUILT_IN.names
    for name, said in (("other", "calls itself 'mine'"), ("mine", "is there already")):
        with pytest.raises(ValueError, match=said):
            registry.with_strategy(name, mine)
    with pytest.raises(ValueError, match="two strategies are called 'layered'"):
        StrategyRegistry(BUILT_IN.in_process, ["layered"])
    with pytest.raises(ValueError, match="no name for a strategy"):
        StrategyRegistry({}, ["a+b"])


def test_names_are_joined_by_plus_and_each_counts_once() -> None:
    assert strategy_names("recency+ layered+recency") == ("recency", "layered")


class Backwards(RelevanceStrategy):
    """The least relevant first."""

    name = "backwards"
    capabilities = StrategyCapabilities()

    def assemble(
        self, request: RequestFrame, backends: BackendSet, budget: int, plan_context: PlanContext
    ) -> Sequence[Fragment]:
        return super().assemble(request, backends, budget, plan_context)[::-1]


class Raising(Backwards):
    """One with a defect."""

    name = "raising"

    def assemble(
        self, request: RequestFrame, backends: BackendSet, budget: int, plan_context: PlanContext
    ) -> Sequence[Fragment]:
        raise ZeroDivisionError


def test_a_library_user_registers_a_strategy_and_names_it(tmp_path: Path) -> None:
    assembler = UnifiedContextAssembler(
        providers_for=lambda _store: [FixedSource("memory", FACTS)],
        policy=content_policy(Settings()),
        budget=ContextBudget(total=1_200, memory=450, user=20),
        encoding="bytes",
        usage_log=tmp_path / "usage.jsonl",
    )
    for strategy in (Backwards(), Raising()):
        assembler.register_strategy(strategy.name, strategy)

    def kept(strategy: str | None) -> str:
        memory = assembler.assemble({}, "implement", "Go", strategy=strategy).parts["memory"]
        return "".join(sorted({text[0] for f in FACTS if (text := f.renderings[0].text) in memory}))

    assert [kept(name) for name in (None, "backwards", "raising")] == ["r", "h", "r"]
    with pytest.raises(ValueError, match="is there already"):
        assembler.register_strategy("backwards", Backwards())
    with pytest.raises(UnknownStrategy, match="known: backwards, layered, raising"):
        kept("forwards")


def test_settings_name_strategies_that_exist() -> None:
    assert content_policy(Settings(content=Content(strategy="recency+tiered"))).default_strategy
    for content in (Content(strategy="psychic"), Content(strategy_plugins=("layered",))):
        with pytest.raises(ValueError, match=r"content\.strategy"):
            content_policy(Settings(content=content))
    with pytest.raises(ValueError, match="strategy plug-in 'absent': no package offers it"):
        build_proposals(Settings(content=Content(strategy_plugins=("absent",))))
    assert build_proposals(Settings()) is None
