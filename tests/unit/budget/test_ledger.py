from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.budget.layers import LAYERS, ContextBudget
from worker.budget.ledger import ContextUsage


@pytest.fixture
def usage() -> ContextUsage:
    return ContextUsage(ContextBudget(total=100, graph=60, user=20))


def test_spending_adds_up_per_layer_and_over_all(usage: ContextUsage) -> None:
    usage.spend("graph", 30)
    usage.spend("graph", 5)
    usage.spend("user", 20)
    assert usage.total_spent == 55
    assert usage.remaining == 45


def test_a_negative_spend_is_refused(usage: ContextUsage) -> None:
    with pytest.raises(ValueError, match="negative"):
        usage.spend("graph", -1)


def test_an_unknown_layer_cannot_spend(usage: ContextUsage) -> None:
    with pytest.raises(ValueError, match="unknown layer 'grape'"):
        usage.spend("grape", 1)


def test_a_layer_cannot_spend_beyond_its_own_reservation(usage: ContextUsage) -> None:
    usage.spend("graph", 60)
    with pytest.raises(ValueError, match="layer 'graph' would spend 61 tokens, 60 are reserved"):
        usage.spend("graph", 1)
    with pytest.raises(ValueError, match="layer 'plan' would spend 1 tokens, 0 are reserved"):
        usage.spend("plan", 1)


def test_the_running_total_cannot_exceed_the_window() -> None:
    budget = ContextBudget(total=100, graph=60, user=20)
    # No constructor lets reservations exceed the total; the ledger still does not rely on it.
    object.__setattr__(budget, "total", 70)
    usage = ContextUsage(budget)
    usage.spend("graph", 60)
    with pytest.raises(ValueError, match="the prompt would hold 71 tokens, the total is 70"):
        usage.spend("user", 11)
    assert usage.total_spent == 60


def test_a_refused_spend_records_nothing(usage: ContextUsage) -> None:
    usage.spend("graph", 59)
    before = usage.to_dict()
    for layer, tokens in (("graph", 2), ("graph", -1), ("nope", 1)):
        with pytest.raises(ValueError, match="layer"):
            usage.spend(layer, tokens)
    assert usage.to_dict() == before


def test_the_telemetry_shape_is_totals_and_one_entry_per_layer(usage: ContextUsage) -> None:
    usage.spend("user", 7)
    report = usage.to_dict()
    assert {key: report[key] for key in ("total", "spent", "remaining")} == {
        "total": 100,
        "spent": 7,
        "remaining": 93,
    }
    assert list(report) == ["total", "spent", "remaining", "layers"]
    assert list(report["layers"]) == list(LAYERS)
    assert report["layers"]["user"] == {"budget": 20, "spent": 7}
    assert report["layers"]["output"] == {"budget": 0, "spent": 0}


@given(st.lists(st.tuples(st.sampled_from([*LAYERS, "other"]), st.integers(-5, 40))))
@settings(max_examples=200)
def test_whatever_is_tried_no_reservation_and_no_total_is_exceeded(spends: list[tuple[str, int]]) -> None:
    budget = ContextBudget(total=128, **dict.fromkeys(LAYERS, 11))
    usage = ContextUsage(budget)
    accepted = 0
    for layer, tokens in spends:
        try:
            usage.spend(layer, tokens)
        except ValueError:
            continue
        accepted += tokens
    assert usage.total_spent == accepted
    assert usage.total_spent + usage.remaining == 128
    assert all(0 <= entry["spent"] <= entry["budget"] for entry in usage.to_dict()["layers"].values())
