"""The memory layer: the thread's summary, and what was remembered that speaks of the message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from schemas.codes import PartName
from schemas.session import Memory, MemoryItem
from worker.budget.trimming import trim_to_budget
from worker.memory.index import MemoryIndex
from worker.memory.recall import Recall, recall_from
from worker.ports import LayerBudget, LayerContribution, RequestFrame, Scope, StorageTier, TokenCounter
from worker.providers.contribution import ContributionBuilder, no_content
from worker.providers.offload import run_by_weight
from worker.providers.states import StateReading, ThreadStates
from worker.providers.threads import SourceThreads

HEADING: Final = "# MEMORY"
SUMMARY_TOKENS: Final = 500
RECALL_FLOOR_TOKENS: Final = 50
"""What the summary leaves to the recalled items, however long it is."""

_SUMMARY_RELEVANCE, _LEAST_RELEVANCE, _RELEVANCE_SPAN = 0.9, 0.2, 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A thread's memory, wherever it comes from."""

    has_summary: bool
    facts: int
    """That hold, and can be recalled."""
    summarize: Callable[[int], str]
    """The summary in at most so many tokens."""
    recall: Callable[[int], Recall]
    """What bears on the message, in at most so many tokens."""
    storage_tier: Callable[[MemoryItem], StorageTier] = lambda _: "warm"
    """By use and age; what a request brings along is in no store."""
    summary_tier: StorageTier = "warm"
    """Of the messages that the summary is of."""


class MemoryProvider:
    """Memory that stands inline in the request, else what is known of its thread."""

    layer: PartName = "memory"

    def __init__(
        self,
        states: ThreadStates | None = None,
        *,
        summary_tokens: int = SUMMARY_TOKENS,
        threads: SourceThreads | None = None,
    ) -> None:
        """Ask `states`; cap the summary at `summary_tokens`; work in these threads, else in its own."""
        self._states = states
        self._threads = threads or SourceThreads()
        self._summary_tokens = summary_tokens

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        """Summary and recall; `empty` without memory, or where the budget holds neither.

        Raises StateUnavailable and StateBehind.
        """
        memory, message = frame.request.memory, frame.request.user_message
        if memory is not None:
            build = partial(build_memory, memory, message, budget=budget, summary_tokens=self._summary_tokens)
            return await run_by_weight(self._threads, build, memory, message)
        if self._states is None:
            return no_content(self.layer, "no_data")
        reading = await self._states.of(frame, scope, layer=self.layer)
        if reading.thread is None and not reading.memories.count:
            return no_content(self.layer, "no_data")
        remembered = remembered_of(reading, message, as_of=frame.as_of, counter=budget.counter)
        # A summary takes milliseconds, and so does a search of ten thousand facts.
        return await self._threads.compute(
            partial(write_memory, remembered, budget=budget, summary_tokens=self._summary_tokens)
        )


def remembered_of(
    reading: StateReading, message: str, *, as_of: datetime, counter: TokenCounter
) -> Remembered:
    """The memory of a thread as its state has it: a summary of its messages, and its facts."""

    def summarize(max_tokens: int) -> str:
        summary = reading.summary(max_tokens=max_tokens, counter=counter)
        return "" if summary is None else summary.text

    return Remembered(
        has_summary=reading.thread is not None,
        facts=reading.memories.count,
        summarize=summarize,
        recall=lambda tokens: reading.memories.recall(message, budget_tokens=tokens, counter=counter),
        storage_tier=lambda item: reading.storage_tier(item.id, item.occurred_at, as_of=as_of),
        summary_tier=reading.summary_tier(as_of=as_of),
    )


def build_memory(
    memory: Memory, message: str, *, budget: LayerBudget, summary_tokens: int = SUMMARY_TOKENS
) -> LayerContribution:
    """The memory of a request as `write_memory` writes it."""
    index, text, counter = MemoryIndex(memory.items), memory.summary or "", budget.counter
    remembered = Remembered(
        has_summary=bool(text) and not text.isspace(),
        facts=len(index),
        summarize=lambda tokens: trim_to_budget(text, tokens, counter),
        recall=lambda tokens: recall_from(index, message, budget_tokens=tokens, counter=counter),
    )
    return write_memory(remembered, budget=budget, summary_tokens=summary_tokens)


def write_memory(
    memory: Remembered, *, budget: LayerBudget, summary_tokens: int = SUMMARY_TOKENS
) -> LayerContribution:
    """The summary, at most `summary_tokens` long, then recalled items in what is left of the budget.

    Where there is something to recall, the summary leaves it `RECALL_FLOOR_TOKENS`, or half of a budget
    that is smaller than twice that. What is recalled is `recall_from`'s, in its order.
    """
    block = ContributionBuilder("memory", heading=HEADING, resource_type="memory")
    left = budget.tokens

    def write_summary() -> None:
        nonlocal left
        floor = min(RECALL_FLOOR_TOKENS, budget.tokens // 2) if memory.facts else 0
        text = memory.summarize(min(summary_tokens, budget.tokens - floor))
        if text and not text.isspace():
            left -= budget.counter.count(text)
            block.add(
                "memory://summary",
                text,
                group="## Summary",
                volatility="step",
                relevance=_SUMMARY_RELEVANCE,
                is_divisible=True,
                storage_tier=memory.summary_tier,
            )

    if memory.has_summary:
        block.section("summary", write_summary)
    block.section("recall", lambda: _write_recall(block, memory, memory.recall(left)))
    contribution = block.finish()
    if contribution.status == "empty" and (memory.facts or memory.has_summary):
        return no_content("memory", "below_heading", capped=contribution.capped)
    return contribution


def _write_recall(block: ContributionBuilder, memory: Remembered, recalled: Recall) -> None:
    block.leave_out(recalled.left_out)
    best = max((found.score for found in recalled.items), default=0.0) or 1.0
    for found in recalled.items:
        block.add(
            f"memory://{found.item.id}",
            found.line,
            brief=found.brief,
            group="## Recalled",
            relevance=round(_LEAST_RELEVANCE + _RELEVANCE_SPAN * round(found.score / best, 6), 6),
            is_divisible=found.brief != found.line,
            created_at=found.item.occurred_at,
            storage_tier=memory.storage_tier(found.item),
            about=found.item.subject or found.item.id,
        )
