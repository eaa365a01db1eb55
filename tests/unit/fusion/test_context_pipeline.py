"""The components over a library user's own fragments."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.fragments import ContextFragment, FragmentBudget, FragmentProvenance
from worker.budget.tokens import BytesCounter
from worker.errors import UnknownStrategy
from worker.fusion.context_pipeline import ContextPipeline
from worker.fusion.protocols import BackendSet, PlanContext
from worker.fusion.strategies.relevance import RelevanceStrategy
from worker.ports import Fragment, RequestFrame

NOW = datetime(2026, 3, 31, tzinfo=UTC)


def fragment(number: int, content: str | None = None, **fields: Any) -> ContextFragment:
    defaults: dict[str, Any] = {
        "fragment_id": f"01HZ{number:022}",
        "uko_node": f"project://app/{number}",
        "layer": "graph",
        "span": (0, 0),
        "content": f"text number {number} " * 4 if content is None else content,
        "token_count": 0,
        "provenance": (FragmentProvenance(resource_uri=f"u{number}"),),
        "created_at": NOW - timedelta(days=number),
    }
    return ContextFragment(**{**defaults, **fields})


def numbers(
    fragments: Sequence[ContextFragment],
    strategy: str,
    *,
    available: int = 10_000,
    pipeline: ContextPipeline | None = None,
) -> list[int]:
    using = pipeline or ContextPipeline(counter=BytesCounter())
    budget = FragmentBudget(max_tokens=available + 10, reserved_tokens=10)
    payload = using.assemble(plan_id="p", fragments=fragments, budget=budget, strategy=strategy)
    assert payload.is_within_budget
    return [int(one.uko_node.rpartition("/")[2]) for one in payload.fragments]


THREE = [
    fragment(1, relevance_score=0.9, tier="cold"),
    fragment(2, relevance_score=0.7, tier="hot", created_at=NOW),
    fragment(3, relevance_score=0.3, tier="warm"),
]


@pytest.mark.parametrize(
    ("strategy", "order"),
    [("relevance", [1, 2, 3]), ("recency", [2, 1, 3]), ("tiered", [2, 3, 1]), ("layered", [1, 2, 3])],
)
def test_a_strategy_decides_order_and_what_there_is_room_for(strategy: str, order: list[int]) -> None:
    assert numbers(THREE, strategy) == order
    assert numbers(THREE, strategy, available=150)[:2] == order[:2]
    assert len(numbers(THREE, strategy, available=150)) == 2


def test_a_payload_says_what_was_chosen_and_by_whom() -> None:
    pipeline = ContextPipeline()
    payload = pipeline.assemble(plan_id="plan-1", fragments=THREE, budget=FragmentBudget())
    joined = "\n".join(one.content or "" for one in payload.fragments)
    assert [joined[slice(*one.span)] for one in payload.fragments] == [
        one.content for one in payload.fragments
    ]
    assert (payload.plan_id, payload.strategies_used, payload.assembled_at) == ("plan-1", ("relevance",), NOW)
    assert payload.total_tokens == sum(one.token_count for one in payload.fragments) > 0
    assert set(payload.provenance_map) == {one.fragment_id for one in THREE}


def test_equal_texts_are_one_fragment_with_both_provenances() -> None:
    payload = ContextPipeline().assemble(
        plan_id="p",
        fragments=[fragment(1, "The same text."), fragment(2, "The same text.")],
        budget=FragmentBudget(),
    )
    (only,) = payload.fragments
    assert {p.resource_uri for p in only.provenance} == {"u1", "u2"}


class Oddest(RelevanceStrategy):
    """Odd numbers only."""

    name = "oddest"

    def assemble(
        self, request: RequestFrame, backends: BackendSet, budget: int, plan_context: PlanContext
    ) -> list[Fragment]:
        return [f for f in backends.fragments() if int(f.node[-1]) % 2]


def test_a_strategy_of_ones_own_is_registered_at_run_time() -> None:
    pipeline = ContextPipeline(counter=BytesCounter())
    with pytest.raises(UnknownStrategy):
        numbers(THREE, "oddest", pipeline=pipeline)
    pipeline.register_strategy("oddest", Oddest())
    assert numbers(THREE, "oddest", pipeline=pipeline) == [1, 3]


def test_nothing_makes_an_empty_payload_and_a_fragment_without_content_is_refused() -> None:
    assert numbers([], "recency") == []
    bare = THREE[0].model_copy(update={"content": None})
    with pytest.raises(ValueError, match="has no content"):
        numbers([bare], "relevance")


many = st.lists(
    st.builds(
        fragment,
        st.integers(0, 9),
        content=st.text("ab \n", min_size=1, max_size=40),
        relevance_score=st.sampled_from([0.0, 0.5, 1.0]),
        tier=st.sampled_from(["hot", "cold"]),
    ),
    unique_by=lambda f: f.fragment_id,
    max_size=7,
)


@settings(max_examples=30)
@given(
    many,
    st.integers(1, 200),
    st.sampled_from(["relevance", "recency", "tiered"]),
    st.randoms(use_true_random=False),
)
def test_the_budget_holds_and_the_order_of_input_changes_nothing(
    fragments: list[ContextFragment], available: int, strategy: str, rng: random.Random
) -> None:
    shuffled = rng.sample(fragments, len(fragments))
    assert numbers(fragments, strategy, available=available) == numbers(
        shuffled, strategy, available=available
    )
