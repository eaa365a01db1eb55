from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.session import MemoryItem
from tests.unit.budget.hostile_text import hostile_text
from tests.unit.memory.facts import fact, facts
from worker.budget.tokens import counter_for
from worker.memory.index import MemoryIndex
from worker.memory.recall import PATIENCE, Recall, recall, recall_from

BYTES = counter_for("bytes")
O200K = counter_for("o200k_base")


def ids(found: Recall) -> list[str]:
    return [recalled.item.id for recalled in found.items]


def test_recall_gives_lines_in_order_of_rank() -> None:
    items = [fact("m1", "Retries need\njitter", "retries", 3), fact("m2", "Logs are big")]
    found = recall(items, "add a retry with jitter", budget_tokens=1_000, counter=BYTES)
    assert [r.line for r in found.items] == [
        "- retries: Retries need jitter (2026-01-03T00:00:00Z)",
        "- Logs are big",
    ]
    assert (found.tokens, found.left_out) == (53 + 14, 0)
    assert found.items[0].score > found.items[1].score == 0.0


def test_one_that_does_not_fit_is_skipped_and_smaller_ones_are_tried() -> None:
    items = [fact("big", "x" * 200, day=9), fact("small", "y" * 20), fact("late", "z" * 60)]
    found = recall(items, "", budget_tokens=50, counter=BYTES)
    assert (ids(found), found.tokens, found.left_out) == (["small"], 22, 2)


def test_after_so_many_misses_the_budget_counts_as_spent() -> None:
    big = [fact(f"b{n:02}", "x" * 200, day=9) for n in range(PATIENCE)]
    small = fact("small", "y", day=1)
    assert ids(recall([*big[1:], small], "", budget_tokens=50, counter=BYTES)) == ["small"]
    assert ids(recall([*big, small], "", budget_tokens=50, counter=BYTES)) == []


def test_the_limit_bounds_what_is_tried() -> None:
    items = [fact(f"m{n}", "word", day=1 + n) for n in range(9)]
    found = recall(items, "word", budget_tokens=10_000, counter=BYTES, limit=2)
    assert (ids(found), found.left_out) == (["m8", "m7"], 7)


def test_a_long_fact_is_recalled_by_its_gist_where_the_whole_does_not_fit() -> None:
    story = "We met again. " + "It rained a little in town. " * 3
    story += "We decided to keep outcomes in SQLite. " + "".join(
        f"Person {n} spoke about the weather of day {n}. " for n in range(30)
    )
    found = recall([fact("m", story, "outcomes", 1)], "outcomes", budget_tokens=120, counter=O200K)
    [recalled] = found.items
    assert "We decided to keep outcomes in SQLite." in recalled.brief
    assert recalled.brief.startswith("- outcomes: ")
    assert recalled.brief.endswith(" (2026-01-01T00:00:00Z)")
    assert recalled.tokens == found.tokens == O200K.count(recalled.brief) <= 120 < O200K.count(recalled.line)


@pytest.mark.parametrize("budget_tokens", [0, -1])
def test_without_a_budget_nothing_is_recalled(budget_tokens: int) -> None:
    found = recall([fact("m", "word")], "word", budget_tokens=budget_tokens, counter=BYTES)
    assert found == Recall((), 0, 1)


@settings(max_examples=30, deadline=None)
@given(facts, hostile_text, st.integers(-1, 200), st.integers(0, 5), st.integers(0, 2**32))
def test_recall_keeps_its_budget_and_depends_on_the_set_alone(
    items: list[MemoryItem], query: str, budget_tokens: int, limit: int, seed: int
) -> None:
    found = recall(items, query, budget_tokens=budget_tokens, counter=O200K, limit=limit)
    shuffled = random.Random(seed).sample(items, len(items))
    assert found == recall(shuffled, query, budget_tokens=budget_tokens, counter=O200K, limit=limit)
    assert found.tokens == sum(r.tokens for r in found.items) <= max(0, budget_tokens)
    assert len(found.items) <= limit
    assert len(found.items) + found.left_out == len(MemoryIndex(items))
    for recalled in found.items:
        assert recalled.tokens in {O200K.count(recalled.line), O200K.count(recalled.brief)}
        assert "\n" not in recalled.line + recalled.brief


@settings(max_examples=25, deadline=None)
@given(st.lists(hostile_text, min_size=1, max_size=4), hostile_text)
def test_hostile_facts_are_recalled_like_others(texts: list[str], query: str) -> None:
    items = [fact(f"m{n}", text, "s" if n % 2 else None, 1 + n) for n, text in enumerate(texts)]
    index = MemoryIndex(items)
    found = recall_from(index, query, budget_tokens=1_000_000, counter=O200K)
    assert len(found.items) == len(index)
    assert all(0.0 <= r.score <= 1.0 for r in found.items)


@pytest.mark.parametrize(
    "text", ["a" * 1_000_000, "a " * 500_000, "漢" * 300_000, "x\n" * 500_000, "\x00" * 9]
)
def test_a_megabyte_takes_bounded_time(text: str) -> None:
    started = time.process_time()
    found = recall([fact("m", text)], text, budget_tokens=100, counter=O200K)
    assert time.process_time() - started < 10
    assert found.tokens <= 100
