from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schemas.codes import PartName
from worker.budget.allocation import (
    Overflow,
    Overhead,
    demands_for,
    fit_floors,
    flow_on,
    plan_budget,
    seal,
)
from worker.budget.layers import CONTENT_LAYERS, LAYERS, LENDING_ORDER, PARTS, ContextBudget
from worker.budget.tokens import BytesCounter, ScaledCounter
from worker.errors import BudgetTooSmall, PinsExceedWindow
from worker.outcomes import rejection_reply
from worker.ports import TokenCounter

EVEN = ContextBudget(total=120, **dict.fromkeys(LAYERS, 10))
"""Ten tokens for each layer, ten unreserved."""

small = st.integers(0, 60)


def _budget(layers: dict[str, int], spare: int) -> ContextBudget:
    return ContextBudget(total=sum(layers.values()) + spare, **layers)


budgets = st.builds(_budget, st.fixed_dictionaries(dict.fromkeys(LAYERS, small)), small)
overheads = st.builds(Overhead, client=small, framing=small, preamble=small, template=small)
floor_maps = st.dictionaries(st.sampled_from(CONTENT_LAYERS), small)


def changed(before: ContextBudget, after: ContextBudget) -> dict[str, int]:
    left, right = before.as_layers(), after.as_layers()
    return {layer: right[layer] - left[layer] for layer in LAYERS if left[layer] != right[layer]}


def lent_in_order(before: ContextBudget, after: ContextBudget, kept: dict[str, int]) -> bool:
    """Whether each lender gave all it could before the next one gave anything."""
    left, right = before.as_layers(), after.as_layers()
    gave = [max(0, left[layer] - right[layer]) for layer in (*LENDING_ORDER, "system", "user")]
    could = [max(0, left[layer] - kept.get(layer, 0)) for layer in (*LENDING_ORDER, "system", "user")]
    if any(gave) and after.available:
        return False
    last = max((i for i, tokens in enumerate(gave) if tokens), default=0)
    return gave[:last] == could[:last]


def test_overhead_is_the_sum_of_what_no_layer_may_have() -> None:
    assert Overhead(client=1, framing=20, preamble=300, template=4_000).total == 4_321
    assert Overhead().total == 0


def test_a_request_that_fits_keeps_its_reservations() -> None:
    plan = plan_budget(EVEN, overhead=Overhead(), system_tokens=10, user_tokens=3)
    assert plan == EVEN


def test_overhead_comes_off_the_total_and_out_of_unreserved_tokens_first() -> None:
    plan = plan_budget(EVEN, overhead=Overhead(client=4, framing=3), system_tokens=10, user_tokens=10)
    assert plan.total == 113
    assert plan.available == 3
    assert changed(EVEN, plan) == {}


def test_deficits_are_paid_by_the_lending_layers_in_order_each_down_to_zero() -> None:
    plan = plan_budget(EVEN, overhead=Overhead(preamble=5), system_tokens=22, user_tokens=21)
    # 5 + 12 + 11 to pay: 10 unreserved, 10 semantic, 8 ast.
    assert changed(EVEN, plan) == {"system": 12, "user": 11, "semantic": -10, "ast": -8}
    assert plan.total == 115
    assert plan.available == 0


def test_system_and_user_lend_what_they_cannot_use_only_at_the_end() -> None:
    plan = plan_budget(EVEN, overhead=Overhead(), system_tokens=4, user_tokens=104)
    # 94 to pay: 10 unreserved, 80 from the eight lenders, 4 of the 6 that system leaves.
    assert plan == ContextBudget(total=120, system=6, user=104, output=10)


@pytest.mark.parametrize(
    ("overhead", "system", "user", "layer", "overage"),
    [
        (0, 10, 101, "user", 1),
        (0, 111, 0, "system", 1),
        (0, 111, 50, "system", 51),
        (111, 0, 0, "output", 1),
        (30, 40, 50, "user", 10),
    ],
)
def test_fixed_texts_beyond_the_window_are_refused_with_layer_and_overage(
    overhead: int, system: int, user: int, layer: str, overage: int
) -> None:
    with pytest.raises(BudgetTooSmall) as refused:
        plan_budget(EVEN, overhead=Overhead(client=overhead), system_tokens=system, user_tokens=user)
    assert refused.value.details == {"layer": layer, "overage_tokens": overage, "total_tokens": 120}


@given(requested=budgets, overhead=overheads, system=small, user=small)
@settings(max_examples=300)
def test_the_plan_holds_the_fixed_texts_or_the_request_is_refused_for_the_tokens_it_lacks(
    requested: ContextBudget, overhead: Overhead, system: int, user: int
) -> None:
    lacking = overhead.total + requested.output + system + user - requested.total
    if lacking > 0:
        with pytest.raises(BudgetTooSmall) as refused:
            plan_budget(requested, overhead=overhead, system_tokens=system, user_tokens=user)
        assert refused.value.overage_tokens == lacking
        return
    plan = plan_budget(requested, overhead=overhead, system_tokens=system, user_tokens=user)
    assert plan.total == requested.total - overhead.total
    assert plan.system >= system
    assert plan.user >= user
    assert plan.output == requested.output
    assert all(plan.layer_budget(layer) <= requested.layer_budget(layer) for layer in CONTENT_LAYERS)
    assert lent_in_order(requested, plan, {"system": system, "user": user})


def test_floors_borrow_from_unreserved_tokens_and_then_in_lending_order() -> None:
    fitted = fit_floors(
        EVEN, floors={"task": 31, "mission": 10}, pins={"task": ["diff"]}, system_tokens=10, user_tokens=10
    )
    assert changed(EVEN, fitted) == {"task": 21, "semantic": -10, "ast": -1}


def test_a_lender_with_pins_of_its_own_keeps_their_floor() -> None:
    fitted = fit_floors(EVEN, floors={"task": 30, "semantic": 7}, pins={}, system_tokens=10, user_tokens=10)
    assert changed(EVEN, fitted) == {"task": 20, "semantic": -3, "ast": -7}


def test_the_last_to_lend_to_pins_are_system_and_user() -> None:
    fitted = fit_floors(EVEN, floors={"task": 104}, pins={}, system_tokens=3, user_tokens=2)
    assert fitted == ContextBudget(total=120, system=3, task=104, user=3, output=10)


def test_pins_that_the_window_cannot_hold_are_named_with_the_overage() -> None:
    with pytest.raises(PinsExceedWindow) as refused:
        fit_floors(
            EVEN,
            floors={"task": 60, "mission": 40},
            pins={"mission": ["goal", "b_1"], "task": ["diff"]},
            system_tokens=10,
            user_tokens=2,
        )
    assert refused.value.details == {
        "pins": {"mission": ["goal", "b_1"], "task": ["diff"]},
        "more_pins": {},
        "floor_tokens": {"task": 60, "mission": 40},
        "overage_tokens": 2,
    }
    assert refused.value.message == (
        "pinned content exceeds the window by 2 tokens (mission: goal, b_1; task: diff)"
    )


pin_names = st.text(st.sampled_from('aé中😀"\\\n'), min_size=1, max_size=400)


@given(
    pins=st.dictionaries(
        st.sampled_from(CONTENT_LAYERS), st.lists(pin_names, min_size=1, max_size=4), min_size=1
    ),
    times=st.integers(1, 3_000),
)
@settings(max_examples=40)
def test_however_many_pins_there_are_the_refusal_is_short_and_names_the_first_of_each_layer(
    pins: dict[PartName, list[str]], times: int
) -> None:
    many: dict[PartName, Sequence[str]] = {layer: names * times for layer, names in pins.items()}
    refused = PinsExceedWindow(pins=many, overage_tokens=1, floors=dict.fromkeys(many, 5))
    reply = rejection_reply(refused, request_id="r", project_id="p")
    assert reply.details == refused.details
    assert len(reply.message) <= 1_500
    named, more = reply.details["pins"], reply.details["more_pins"]
    assert reply.details["floor_tokens"] == dict.fromkeys(many, 5)
    for layer, names in many.items():
        assert len(named[layer]) + more.get(layer, 0) == len(names)
        assert len(named[layer]) >= min(len(names), 1)
        for shown, name in zip(named[layer], names, strict=False):
            assert shown == name or (name.startswith(shown[:-1]) and shown.endswith("…"))


def test_only_content_layers_have_floors() -> None:
    with pytest.raises(ValueError, match="only content layers hold pins, not output"):
        fit_floors(EVEN, floors={"output": 1}, pins={}, system_tokens=0, user_tokens=0)


@given(effective=budgets, floors=floor_maps, system=small, user=small)
@settings(max_examples=300)
def test_every_floor_is_met_or_the_missing_tokens_are_reported(
    effective: ContextBudget, floors: dict[str, int], system: int, user: int
) -> None:
    assume(system <= effective.system and user <= effective.user)
    lacking = effective.output + system + user + sum(floors.values()) - effective.total
    if lacking > 0:
        with pytest.raises(PinsExceedWindow) as refused:
            fit_floors(effective, floors=floors, pins={}, system_tokens=system, user_tokens=user)
        assert refused.value.overage_tokens == lacking
        return
    fitted = fit_floors(effective, floors=floors, pins={}, system_tokens=system, user_tokens=user)
    assert fitted.total == effective.total
    assert fitted.output == effective.output
    assert fitted.system >= system
    assert fitted.user >= user
    assert all(fitted.layer_budget(layer) >= tokens for layer, tokens in floors.items())
    assert lent_in_order(effective, fitted, {**floors, "system": system, "user": user})


def test_idle_reservations_flow_to_who_lends_last_up_to_its_demand() -> None:
    demands = {**dict.fromkeys(CONTENT_LAYERS, 10), "mission": 0, "semantic": 4, "graph": 21, "task": 14}
    flowed = flow_on(EVEN, demands=demands)
    # Sixteen idle: task wants four and is served before graph, which gets eleven of its eleven.
    assert changed(EVEN, flowed) == {"task": 4, "graph": 11, "semantic": -6, "mission": -9}


@given(effective=budgets, demands=floor_maps)
@settings(max_examples=300)
def test_flow_keeps_the_total_and_takes_from_nobody_what_it_can_use(
    effective: ContextBudget, demands: dict[str, int]
) -> None:
    flowed = flow_on(effective, demands=demands)
    assert flowed.reserved == effective.reserved
    assert flowed.total == effective.total
    for layer in LAYERS:
        had, has, wants = effective.layer_budget(layer), flowed.layer_budget(layer), demands.get(layer, 0)
        assert has >= min(had, wants)
        assert has <= max(had, wants)
    unmet = [layer for layer in CONTENT_LAYERS if flowed.layer_budget(layer) < demands.get(layer, 0)]
    idle = [layer for layer in CONTENT_LAYERS if flowed.layer_budget(layer) > demands.get(layer, 0)]
    assert not unmet or not idle


@given(
    budgets,
    st.dictionaries(st.sampled_from(CONTENT_LAYERS), st.integers(0, 400)),
    st.sampled_from([BytesCounter(), ScaledCounter(BytesCounter(), Fraction(11, 10))]),
)
@settings(max_examples=60)
def test_demands_that_are_counted_as_far_as_they_matter_move_what_the_whole_ones_move(
    budget: ContextBudget, sizes: dict[PartName, int], counter: TokenCounter
) -> None:
    texts: dict[PartName, list[str]] = {layer: ["\n", "x" * sizes.get(layer, 0)] for layer in CONTENT_LAYERS}
    whole = {layer: counter.count("".join(lines)) for layer, lines in texts.items()}
    assert flow_on(budget, demands=demands_for(budget, texts, counter)) == flow_on(budget, demands=whole)


def test_a_budget_within_which_all_stayed_is_sealed_as_it_is() -> None:
    assert seal(EVEN, spent=dict.fromkeys(PARTS, 10), floors={}) == EVEN


def test_seam_tokens_come_from_unreserved_tokens_then_from_what_lenders_left() -> None:
    spent = {**dict.fromkeys(PARTS, 10), "plan": 19, "user": 14, "graph": 6, "memory": 9}
    sealed = seal(EVEN, spent=spent, floors={})
    assert isinstance(sealed, ContextBudget)
    assert changed(EVEN, sealed) == {"plan": 9, "user": 4, "memory": -1, "graph": -2}


def test_system_and_user_give_their_unspent_tokens_after_all_lenders() -> None:
    spent = {**dict.fromkeys(PARTS, 10), "plan": 23, "mission": 9, "user": 6}
    sealed = seal(EVEN, spent=spent, floors={})
    assert isinstance(sealed, ContextBudget)
    assert changed(EVEN, sealed) == {"plan": 13, "mission": -1, "user": -2}


def test_the_first_lender_above_its_floor_gives_way_when_nothing_is_left() -> None:
    spent = {**dict.fromkeys(PARTS, 10), "plan": 23, "semantic": 0, "ast": 10, "artifacts": 20}
    assert seal(EVEN, spent=spent, floors={"ast": 10}) == Overflow(layer="artifacts", missing_tokens=3)


def test_without_a_layer_above_its_floor_nobody_can_give_way() -> None:
    spent = {"user": 90, "task": 30}
    assert seal(EVEN, spent=spent, floors={"task": 30}) == Overflow(layer=None, missing_tokens=10)


@given(
    effective=budgets,
    spent=st.dictionaries(st.sampled_from(PARTS), small),
    floors=floor_maps,
)
@settings(max_examples=300)
def test_a_sealed_budget_covers_every_spend_or_the_excess_is_named(
    effective: ContextBudget, spent: dict[str, int], floors: dict[str, int]
) -> None:
    over = sum(spent.values()) + effective.output - effective.total
    sealed = seal(effective, spent=spent, floors=floors)
    if isinstance(sealed, Overflow):
        assert sealed.missing_tokens == over > 0
        assert sealed.layer is None or spent[sealed.layer] > floors.get(sealed.layer, 0)
        return
    assert over <= 0
    assert sealed.total == effective.total
    assert sealed.output == effective.output
    assert all(tokens <= sealed.layer_budget(layer) for layer, tokens in spent.items())
    assert lent_in_order(effective, sealed, spent)
