"""The memory layer: the thread's summary, and what was remembered that speaks of the message."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from schemas.codes import PartName
from schemas.session import Memory, MemoryItem
from schemas.wire import format_time
from worker.budget.trimming import trim_to_budget
from worker.ports import LayerBudget, LayerContribution, RequestFrame, Scope, TokenCounter
from worker.providers.contribution import ContributionBuilder, no_content
from worker.providers.offload import run_by_weight
from worker.providers.text import LINE_CHARS, cut, fold
from worker.providers.threads import SourceThreads
from worker.providers.words import words_of

HEADING: Final = "# MEMORY"
SUMMARY_TOKENS: Final = 500
RECALL_FLOOR_TOKENS: Final = 50
"""What the summary leaves to the recalled items, however long it is."""

_SUMMARY_RELEVANCE, _LEAST_RELEVANCE, _RELEVANCE_SPAN = 0.9, 0.2, 0.6
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
"""Stands for a time that is not given: older than any."""


class MemoryProvider:
    """Memory that stands inline in the request."""

    layer: PartName = "memory"

    def __init__(self, *, summary_tokens: int = SUMMARY_TOKENS, threads: SourceThreads | None = None) -> None:
        """Cap the summary at `summary_tokens`; work on heavy input in these threads, else in its own."""
        self._threads = threads or SourceThreads()
        self._summary_tokens = summary_tokens

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        """Summary and recall; `empty` without memory, or where the budget holds neither."""
        del scope  # inline state is the request's own
        memory, message = frame.request.memory, frame.request.user_message
        if memory is None:
            return no_content(self.layer, "no_data")
        build = partial(build_memory, memory, message, budget=budget, summary_tokens=self._summary_tokens)
        return await run_by_weight(self._threads, build, memory, message)


def build_memory(
    memory: Memory, message: str, *, budget: LayerBudget, summary_tokens: int = SUMMARY_TOKENS
) -> LayerContribution:
    """The summary, at most `summary_tokens` long, then recalled items in what is left of the budget.

    Where there is something to recall, the summary leaves it `RECALL_FLOOR_TOKENS`, or half of a budget
    that is smaller than twice that. Items are taken best first; one that does not fit is skipped.
    """
    block = ContributionBuilder("memory", heading=HEADING, resource_type="memory")
    has_summary = bool(memory.summary) and not memory.summary.isspace()
    items = rank_items(memory.items, message)
    left = budget.tokens

    def write_summary() -> None:
        nonlocal left
        floor = min(RECALL_FLOOR_TOKENS, budget.tokens // 2) if items else 0
        text = trim_to_budget(
            memory.summary or "", min(summary_tokens, budget.tokens - floor), budget.counter
        )
        if text and not text.isspace():
            left -= budget.counter.count(text)
            block.add(
                "memory://summary",
                text,
                group="## Summary",
                relevance=_SUMMARY_RELEVANCE,
                is_divisible=True,
            )

    if has_summary:
        block.section("summary", write_summary)
    block.section("recall", lambda: _write_recall(block, items, left, budget.counter))
    contribution = block.finish()
    if contribution.status == "empty" and (items or has_summary):
        return no_content("memory", "below_heading", capped=contribution.capped)
    return contribution


@dataclass(frozen=True, slots=True)
class RankedItem:
    """A remembered item and how much it has in common with the message, 0 to 1."""

    item: MemoryItem
    score: float


def rank_items(items: Sequence[MemoryItem], message: str) -> list[RankedItem]:
    """The items that still hold, best first: by shared words, then newest, then id. O(n log n + length).

    Of several items on one subject only the newest holds (equal times: the greater id). A shared word
    counts for more the fewer items have it (`log(1 + n/df)`), and less in an item of many words (their
    square root). Scores are relative to the best one and rounded to six decimals.
    """
    current = _newest_per_subject(items)
    asked = words_of(message)
    words = [words_of(item.text) | words_of(item.subject or "") for item in current]
    frequency = Counter(word for distinct in words for word in distinct & asked)
    weights = {word: math.log(1 + len(current) / count) for word, count in frequency.items()}
    # fsum is exact, so the order in which a set yields its words makes no difference.
    raw = [
        math.fsum(weights[word] for word in distinct & asked) / math.sqrt(len(distinct) or 1)
        for distinct in words
    ]
    best = max(raw, default=0.0) or 1.0
    ranked = [RankedItem(item, round(score / best, 6)) for item, score in zip(current, raw, strict=True)]
    ranked.sort(key=lambda r: r.item.id)
    ranked.sort(key=lambda r: r.item.occurred_at or _NEVER, reverse=True)
    ranked.sort(key=lambda r: r.score, reverse=True)
    return ranked


def _newest_per_subject(items: Sequence[MemoryItem]) -> list[MemoryItem]:
    newest: dict[str, MemoryItem] = {}
    loose: list[MemoryItem] = []
    for item in items:
        if not item.text or item.text.isspace():
            continue
        if item.subject is None:
            loose.append(item)
        elif (other := newest.get(item.subject)) is None or _age_key(item) >= _age_key(other):
            newest[item.subject] = item
    return [*loose, *newest.values()]


def _age_key(item: MemoryItem) -> tuple[datetime, str]:
    return (item.occurred_at or _NEVER, item.id)


def _write_recall(
    block: ContributionBuilder, items: Sequence[RankedItem], budget_tokens: int, counter: TokenCounter
) -> None:
    left = budget_tokens
    for ranked in items:
        line = _line(ranked.item)
        brief = cut(line, max_chars=LINE_CHARS)
        spent = next((t for text in (line, brief) if (t := counter.count_up_to(text, left)) <= left), None)
        if left <= 0 or spent is None:
            block.leave_out(1)
            continue
        left -= spent
        block.add(
            f"memory://{ranked.item.id}",
            line,
            brief=brief,
            group="## Recalled",
            relevance=round(_LEAST_RELEVANCE + _RELEVANCE_SPAN * ranked.score, 6),
            is_divisible=len(line) > LINE_CHARS,
            created_at=ranked.item.occurred_at,
        )


def _line(item: MemoryItem) -> str:
    subject = f"{fold(item.subject)}: " if item.subject else ""
    when = f" ({format_time(item.occurred_at)})" if item.occurred_at is not None else ""
    return f"- {subject}{fold(item.text)}{when}"
