from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.session import Memory, MemoryItem
from tests.unit.providers.frames import BYTES, SCOPE, frame, texts
from worker.ports import LayerBudget, LayerContribution
from worker.providers.contribution import layer_text
from worker.providers.memory import MemoryProvider, build_memory


def item(item_id: str, text: str, subject: str | None = None, day: int | None = None) -> MemoryItem:
    occurred_at = None if day is None else f"2026-01-{day:02}T00:00:00Z"
    return MemoryItem.model_validate(
        {"id": item_id, "text": text, "subject": subject, "occurred_at": occurred_at}
    )


def build(
    *items: MemoryItem, summary: str | None = None, tokens: int = 10_000, message: str = "", cap: int = 500
) -> LayerContribution:
    return build_memory(
        Memory(summary=summary, items=items),
        message,
        budget=LayerBudget(tokens=tokens, counter=BYTES),
        summary_tokens=cap,
    )


def test_the_layer_is_the_summary_and_then_what_is_recalled() -> None:
    contribution = build(
        item("m1", "Retries need\njitter", "retries", 3),
        item("m2", "Logs are big"),
        summary="We trim.\n\nThen we count.",
        message="add a retry with jitter",
    )
    assert layer_text(contribution).split("\n") == [
        "# MEMORY",
        "## Summary",
        "We trim.",
        "",
        "Then we count.",
        "## Recalled",
        "- retries: Retries need jitter (2026-01-03T00:00:00Z)",
        "- Logs are big",
    ]
    assert [f.node for f in contribution.fragments] == ["memory://summary", "memory://m1", "memory://m2"]


@pytest.mark.parametrize("memory", [None, {}, {"summary": " \n"}, {"items": [{"id": "m", "text": " "}]}])
async def test_without_memory_the_layer_is_empty(memory: dict[str, Any] | None) -> None:
    budget = LayerBudget(tokens=1_000, counter=BYTES)
    contribution = await MemoryProvider().provide(frame(memory=memory), SCOPE, budget)
    assert (contribution.status, contribution.reason) == ("empty", "no_data")


async def test_a_budget_that_holds_neither_says_so() -> None:
    budget = LayerBudget(tokens=0, counter=BYTES)
    memory = {"summary": "s", "items": [{"id": "m", "text": "t"}]}
    contribution = await MemoryProvider().provide(frame(memory=memory), SCOPE, budget)
    assert (contribution.status, contribution.reason, contribution.capped) == ("empty", "below_heading", 1)


def test_the_summary_is_capped_and_recall_has_the_rest() -> None:
    words = "word " * 1_000
    contribution = build(item("m1", "x" * 90), item("m2", "y" * 300), summary=words, tokens=600, cap=500)
    summary, recalled = texts(contribution)
    assert 480 <= len(summary) <= 500
    assert recalled == "- " + "x" * 90
    assert contribution.capped == 1


@pytest.mark.parametrize(("tokens", "longest"), [(520, 470), (100, 50), (60, 30), (1, 1)])
def test_the_summary_leaves_recall_its_floor_but_never_more_than_there_is(tokens: int, longest: int) -> None:
    contribution = build(item("m1", "z" * 10), summary="w " * 2_000, tokens=tokens)
    summary = next((f for f in contribution.fragments if f.node == "memory://summary"), None)
    assert summary is None or len(summary.renderings[0].text) <= longest
    assert sum(len(text) for text in texts(contribution)) <= tokens


def test_without_items_the_summary_may_have_the_whole_budget() -> None:
    [summary] = texts(build(summary="w " * 2_000, tokens=120))
    assert len(summary) > 100


def test_an_item_that_does_not_fit_is_skipped_and_smaller_ones_are_tried() -> None:
    contribution = build(
        item("big", "x" * 200, day=9), item("small", "y" * 20, day=8), tokens=100, message="nothing"
    )
    assert texts(contribution) == ["- " + "y" * 20 + " (2026-01-08T00:00:00Z)"]
    assert contribution.capped == 1


def test_a_long_item_may_be_shown_by_its_gist() -> None:
    story = "We met. " * 40 + "We decided to use SQLite for the outcome store. " + "Somebody was late. " * 40
    [fragment] = build(item("m", story), tokens=1_000).fragments
    whole, gist = (rendering.text for rendering in fragment.renderings)
    assert whole == "- " + story.strip()
    assert "We decided to use SQLite for the outcome store." in gist
    assert len(gist) <= 310
    assert fragment.is_divisible


def test_what_was_superseded_is_not_recalled() -> None:
    items = [
        item("m1", "port is 80", "Port", 1),
        item("m3", "port is 443", "port", 3),
        item("m2", "port is 8080", "port ", 2),
        item("m5", "free"),
    ]
    assert [f.node for f in build(*items, message="port").fragments] == ["memory://m3", "memory://m5"]


def test_relevance_falls_with_rank_and_ends_at_its_floor() -> None:
    items = [item("a", "nothing in common"), item("b", "the retry"), item("c", "retries need jitter")]
    fragments = build(*items, message="retry with jitter").fragments
    assert [f.node for f in fragments] == ["memory://c", "memory://b", "memory://a"]
    relevance = [f.relevance for f in fragments]
    assert relevance[0] == 0.8
    assert relevance[0] > relevance[1] > relevance[2] == 0.2


@settings(max_examples=100)
@given(
    st.text("ab .\n", max_size=200),
    st.lists(st.text("ab \n漢", max_size=60), max_size=6),
    st.integers(0, 300),
    st.integers(1, 100),
)
def test_the_source_aims_within_its_budget(summary: str, items: list[str], tokens: int, cap: int) -> None:
    contribution = build(
        *(item(f"m{n}", text) for n, text in enumerate(items)), summary=summary, tokens=tokens, cap=cap
    )
    shown = sum(min(BYTES.count(r.text) for r in f.renderings) for f in contribution.fragments)
    assert shown <= tokens
    assert all(r.text for f in contribution.fragments for r in f.renderings)


async def test_ten_thousand_items_and_a_megabyte_of_summary_take_bounded_time() -> None:
    memory = {
        "summary": "x " * 500_000,
        "items": [{"id": f"m{n}", "text": f"item {n} about topic{n % 50}"} for n in range(10_000)],
    }
    started = time.process_time()
    contribution = await MemoryProvider().provide(
        frame(memory=memory), SCOPE, LayerBudget(tokens=4_000, counter=BYTES)
    )
    assert time.process_time() - started < 10
    assert contribution.fragments
