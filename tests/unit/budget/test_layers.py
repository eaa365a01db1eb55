from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from worker.budget.layers import (
    CONTENT_LAYERS,
    DEFAULT_SPLIT_128K,
    LAYERS,
    LENDING_ORDER,
    PARTS,
    ContextBudget,
    default_layers,
    requested_budget,
)
from worker.errors import InvalidRequest, UnknownLayer

tokens = st.integers(0, 50_000)
named = st.dictionaries(st.sampled_from(LAYERS), tokens)


def test_the_layers_stand_in_the_order_of_the_joined_prompt() -> None:
    assert LAYERS == (
        "system",
        "mission",
        "plan",
        "memory",
        "artifacts",
        "graph",
        "ast",
        "semantic",
        "task",
        "user",
        "output",
    )
    assert LAYERS[:10] == PARTS
    assert LAYERS[1:9] == CONTENT_LAYERS


def test_every_content_layer_lends_and_no_other_does() -> None:
    assert LENDING_ORDER == ("semantic", "ast", "artifacts", "memory", "graph", "task", "plan", "mission")
    assert set(LENDING_ORDER) == set(CONTENT_LAYERS)


def test_the_default_split_names_every_layer_and_leaves_some_tokens_unreserved() -> None:
    budget = ContextBudget(total=128_000, **DEFAULT_SPLIT_128K)
    assert tuple(DEFAULT_SPLIT_128K) == LAYERS
    assert budget.output == 8_000
    assert budget.reserved == 111_000
    assert budget.available == 17_000


def test_reservations_beyond_the_total_are_refused_at_construction() -> None:
    assert ContextBudget(total=10, graph=6, user=4).available == 0
    with pytest.raises(ValueError, match="reservations of 11 tokens exceed the total of 10"):
        ContextBudget(total=10, graph=7, user=4)


def test_negative_numbers_are_refused_at_construction() -> None:
    with pytest.raises(ValueError, match="never negative"):
        ContextBudget(total=10, graph=-1)
    with pytest.raises(ValueError, match="never negative"):
        ContextBudget(total=-1)


def test_a_budget_cannot_be_changed() -> None:
    budget = ContextBudget(total=10)
    with pytest.raises(FrozenInstanceError):
        budget.graph = 5  # pyright: ignore[reportAttributeAccessIssue]  # the claim of this test


def test_an_unknown_layer_is_refused_with_the_known_names() -> None:
    budget = ContextBudget(total=10, graph=6)
    assert budget.layer_budget("graph") == 6
    with pytest.raises(ValueError, match=r"unknown layer 'grahp'; known: system, mission, plan, .*output"):
        budget.layer_budget("grahp")
    with pytest.raises(ValueError, match="unknown layer 'total'"):
        budget.with_layers({"total": 5})


def test_with_layers_replaces_only_what_it_names() -> None:
    budget = ContextBudget(total=10, graph=6, user=2).with_layers({"graph": 1, "plan": 7})
    assert budget == ContextBudget(total=10, graph=1, plan=7, user=2)
    assert list(budget.as_layers()) == list(LAYERS)


def test_a_request_that_names_no_layer_gets_the_default_split() -> None:
    assert requested_budget(total=128_000, layers={}).as_layers() == dict(DEFAULT_SPLIT_128K)
    assert requested_budget(total=8_000, layers={}).as_layers() == default_layers(8_000)


def test_layers_not_named_share_what_the_named_ones_leave() -> None:
    budget = requested_budget(total=64_000, layers={"graph": 18_000, "output": 4_000})
    # 42,000 left for what holds 84,000 of the default window: half of each default.
    assert budget.graph == 18_000
    assert budget.output == 4_000
    assert budget.memory == 3_000
    assert budget.semantic == 6_000
    assert budget.available == 8_500


def test_shares_are_rounded_down() -> None:
    assert default_layers(100)["plan"] == 2
    assert requested_budget(total=100, layers={}).plan == 2


def test_named_layers_beyond_the_total_are_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match="layers ask for 101 tokens, the total is 100"):
        requested_budget(total=100, layers={"graph": 60, "user": 41})
    with pytest.raises(InvalidRequest, match="never negative"):
        requested_budget(total=100, layers={"graph": -1})
    with pytest.raises(InvalidRequest, match="never negative"):
        requested_budget(total=-1, layers={})


def test_a_request_with_an_unknown_layer_is_told_the_known_ones() -> None:
    with pytest.raises(UnknownLayer, match=r"unknown layer 'Graph'; known: artifacts, ast, .*user"):
        requested_budget(total=100, layers={"Graph": 60})


@given(total=st.integers(0, 2_000_000))
def test_the_default_split_fits_any_window(total: int) -> None:
    assert sum(default_layers(total).values()) <= total


def test_a_model_of_its_own_split_is_scaled_and_the_request_has_the_last_word() -> None:
    split = requested_budget(total=200_000, layers={"output": 50_000})
    half = requested_budget(total=100_000, layers={}, split=split)
    assert half.output == 25_000
    # What is left for the others, they share as in the default split.
    assert half.graph == 75_000 * DEFAULT_SPLIT_128K["graph"] // 120_000
    asked = requested_budget(total=100_000, layers={"output": 10_000}, split=split)
    assert asked.output == 10_000
    assert asked.graph == 90_000 * split.graph // 150_000


def test_a_split_that_gives_all_to_some_leaves_nothing_for_the_others() -> None:
    split = requested_budget(total=1_000, layers={"graph": 900, "output": 100})
    assert requested_budget(total=500, layers={"graph": 100, "output": 100}, split=split) == ContextBudget(
        total=500, graph=100, output=100
    )


@given(total=st.integers(0, 500_000), layers=named, window=st.integers(1, 500_000), own=named)
@settings(max_examples=200)
def test_whatever_a_model_reserves_the_named_layers_are_honoured_within_the_total(
    total: int, layers: dict[str, int], window: int, own: dict[str, int]
) -> None:
    assume(sum(layers.values()) <= total and sum(own.values()) <= window)
    split = requested_budget(total=window, layers=own)
    budget = requested_budget(total=total, layers=layers, split=split)
    assert budget.reserved <= total
    assert all(budget.layer_budget(name) == tokens for name, tokens in layers.items())
    assert all(
        budget.layer_budget(name) == total * tokens // window for name, tokens in own.items() if not layers
    )


@given(total=st.integers(0, 500_000), layers=named)
@settings(max_examples=200)
def test_a_requested_budget_honours_every_named_layer_and_never_exceeds_its_total(
    total: int, layers: dict[str, int]
) -> None:
    if sum(layers.values()) > total:
        with pytest.raises(InvalidRequest):
            requested_budget(total=total, layers=layers)
        return
    budget = requested_budget(total=total, layers=layers)
    assert budget.total == total
    assert budget.reserved <= total
    assert {name: budget.layer_budget(name) for name in layers} == layers
