"""Totals over usage records, current and old, whole and broken."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.usage.aggregate import LayerTotals, SpendTotals, UseTotals, aggregate_usage


def _event(
    volk: str | None = "smith", subject: str | None = "implement", *, user: int = 7, **more: object
) -> dict[str, object]:
    return {
        "volk_alias": volk,
        "subject": subject,
        "outcome": "complete",
        "usage": {
            "total": 100,
            "spent": user + 3,
            "remaining": 90 - user,
            "layers": {
                "user": {"budget": 20, "spent": user},
                "system": {"budget": 10, "spent": 3},
                "output": {"budget": 30, "spent": 0},
            },
        },
        "overhead": {"client": 1, "framing": 4, "preamble": 0, "template": None},
        "exact": True,
        **more,
    }


FLAT = {
    "timestamp": "2023-01-01T00:00:00+00:00",
    "volk": "smith",
    "subject": "fix_issues",
    "thread_id": "t",
    "usage": {
        "total": 50,
        "spent": 12,
        "remaining": 38,
        "user": {"budget": 9, "spent": 5},
        "plan": {"budget": 8, "spent": 7},
    },
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
fields = [
    "volk_alias",
    "volk",
    "subject",
    "outcome",
    "code",
    "usage",
    "overhead",
    "statuses",
    "exact",
    "tokens_by_source",
]
usages = st.fixed_dictionaries(
    {},
    optional={
        "spent": st.integers(0, 100) | json_values,
        "total": st.integers(0, 100) | json_values,
        "layers": st.dictionaries(
            st.sampled_from(["user", "plan", "zeta"]), st.just({"budget": 5, "spent": 2}) | json_values
        ),
    },
)
records = st.dictionaries(st.sampled_from(fields), json_values | usages)


def test_no_records_add_up_to_nothing() -> None:
    totals = aggregate_usage([])
    assert (totals.total_calls, totals.total_spent, totals.per_layer, totals.per_volk) == (0, 0, {}, {})


def test_what_answers_used_is_summed_per_layer_and_source_and_is_no_call() -> None:
    use = {
        "kind": "answer_use",
        "used": {
            "layers": {
                "graph": {"cited_tokens": 30, "tokens": 90},
                "mission": {"cited_tokens": 0, "tokens": 8},
            },
            "sources": {"pack": {"cited_tokens": 30, "tokens": 90}, "plan": {"cited_tokens": 9, "tokens": 4}},
        },
    }
    totals = aggregate_usage([_event(), use, use, {"kind": "answer_use", "used": "x"}])
    assert (totals.total_calls, totals.total_spent) == (1, aggregate_usage([_event()]).total_spent)
    assert totals.judged_answers == 3
    assert totals.used_per_layer == {
        "mission": UseTotals(cited_tokens=0, tokens=16),
        "graph": UseTotals(cited_tokens=60, tokens=180),
    }
    assert totals.used_per_source == {
        "pack": UseTotals(cited_tokens=60, tokens=180),
        "plan": UseTotals(cited_tokens=8, tokens=8),
    }


def test_calls_and_tokens_are_summed_whole_and_per_layer_volk_and_subject() -> None:
    totals = aggregate_usage([_event(), _event("scout", "fix_issues", user=20), _event(user=0)])
    assert (totals.total_calls, totals.total_spent, totals.total_budget) == (3, 36, 300)
    assert totals.total_overhead == 15
    assert totals.per_layer == {
        "system": LayerTotals(calls=3, spent=9, budget=30),
        "user": LayerTotals(calls=2, spent=27, budget=60),
        "output": LayerTotals(calls=0, spent=0, budget=90),
    }
    assert totals.per_volk == {
        "scout": SpendTotals(calls=1, spent=23),
        "smith": SpendTotals(calls=2, spent=13),
    }
    assert totals.per_subject == {
        "fix_issues": SpendTotals(calls=1, spent=23),
        "implement": SpendTotals(calls=2, spent=13),
    }


def test_tokens_are_summed_by_source_the_larger_first() -> None:
    events = [
        _event(tokens_by_source={"plan": 4, "pack": 2}),
        _event(tokens_by_source={"pack": 5, "plan": 0}),
    ]
    totals = aggregate_usage([*events, _event(), _event(tokens_by_source={"plan": "many"})])
    assert list(totals.per_source.items()) == [
        ("pack", SpendTotals(calls=2, spent=7)),
        ("plan", SpendTotals(calls=1, spent=4)),
    ]


def test_layers_stand_in_prompt_order_and_volks_by_what_they_spent() -> None:
    totals = aggregate_usage([_event("b"), _event("a"), _event("c", user=9), FLAT])
    assert list(totals.per_layer) == ["system", "plan", "user", "output"]
    assert list(totals.per_volk) == ["c", "smith", "a", "b"]


def test_records_of_the_older_flat_shape_count_too() -> None:
    totals = aggregate_usage([FLAT])
    assert (totals.total_calls, totals.total_spent, totals.total_budget) == (1, 12, 50)
    assert totals.per_layer == {
        "plan": LayerTotals(calls=1, spent=7, budget=8),
        "user": LayerTotals(calls=1, spent=5, budget=9),
    }
    assert totals.per_volk == {"smith": SpendTotals(calls=1, spent=12)}
    assert totals.per_subject == {"fix_issues": SpendTotals(calls=1, spent=12)}


def test_rejections_are_calls_that_spent_nothing_and_are_counted_by_code() -> None:
    rejected = {"volk_alias": None, "subject": None, "outcome": "rejected", "usage": None, "exact": None}
    totals = aggregate_usage(
        [{**rejected, "code": code} for code in ("expired", "invalid_json", "expired")] + [_event()]
    )
    assert totals.rejection_codes == {"expired": 2, "invalid_json": 1}
    assert totals.outcomes == {"rejected": 3, "complete": 1}
    assert totals.per_volk == {
        "smith": SpendTotals(calls=1, spent=10),
        "unknown": SpendTotals(calls=3, spent=0),
    }


def test_failed_and_partial_layers_are_counted_by_reason_and_others_are_not() -> None:
    statuses = {
        "semantic": {"status": "failed", "reason": "timeout"},
        "ast": {"status": "partial", "reason": "refused_path"},
        "plan": {"status": "empty", "reason": "no_data"},
        "graph": {"status": "off", "reason": "not_configured"},
        "user": {"status": "ok"},
    }
    totals = aggregate_usage([_event(statuses=statuses), _event(statuses={"semantic": statuses["semantic"]})])
    assert totals.degraded_reasons == {"semantic: timeout": 2, "ast: refused_path": 1}


def test_calls_counted_by_an_upper_bound_are_counted() -> None:
    assert aggregate_usage([_event(exact=False), _event(), _event(exact=None)]).inexact_calls == 1


def test_tokens_missing_from_the_total_are_taken_from_the_layers() -> None:
    assert aggregate_usage([{"usage": {"layers": {"user": {"spent": 5}}}}]).total_spent == 5


@pytest.mark.parametrize("spent", [-1, True, 1.5, "7", None, [7], {"spent": 7}, 2**53])
def test_what_is_no_count_counts_nothing(spent: object) -> None:
    totals = aggregate_usage([{"usage": {"spent": spent, "layers": {"user": {"budget": 5, "spent": spent}}}}])
    assert (totals.total_spent, totals.per_layer["user"].spent) == (0, 0)


@settings(max_examples=50)
@given(st.lists(records, max_size=6), st.randoms(use_true_random=False))
def test_any_records_add_up_to_the_same_in_any_order(
    given_records: list[dict[str, object]], rng: random.Random
) -> None:
    totals = aggregate_usage(given_records)
    shuffled = rng.sample(given_records, len(given_records))
    again = aggregate_usage(shuffled)
    assert totals == again
    assert [*totals.per_layer, *totals.per_volk, *totals.outcomes] == [
        *again.per_layer,
        *again.per_volk,
        *again.outcomes,
    ]
    assert totals.total_calls == len(given_records)
    for sums in (totals.per_volk, totals.per_subject):
        assert sum(part.calls for part in sums.values()) == totals.total_calls
        assert sum(part.spent for part in sums.values()) == totals.total_spent
