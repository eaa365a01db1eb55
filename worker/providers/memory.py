"""The memory layer: the thread's summary, and what was remembered that speaks of the message."""

from __future__ import annotations

from functools import partial
from typing import Final

from schemas.codes import PartName
from schemas.session import Memory
from worker.budget.trimming import trim_to_budget
from worker.memory.index import MemoryIndex
from worker.memory.recall import Recall, recall_from
from worker.ports import LayerBudget, LayerContribution, RequestFrame, Scope
from worker.providers.contribution import ContributionBuilder, no_content
from worker.providers.offload import run_by_weight
from worker.providers.threads import SourceThreads

HEADING: Final = "# MEMORY"
SUMMARY_TOKENS: Final = 500
RECALL_FLOOR_TOKENS: Final = 50
"""What the summary leaves to the recalled items, however long it is."""

_SUMMARY_RELEVANCE, _LEAST_RELEVANCE, _RELEVANCE_SPAN = 0.9, 0.2, 0.6


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
    that is smaller than twice that. What is recalled is `recall_from`'s, in its order.
    """
    block = ContributionBuilder("memory", heading=HEADING, resource_type="memory")
    has_summary = bool(memory.summary) and not memory.summary.isspace()
    items = MemoryIndex(memory.items)
    left = budget.tokens

    def write_summary() -> None:
        nonlocal left
        floor = min(RECALL_FLOOR_TOKENS, budget.tokens // 2) if len(items) else 0
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
    block.section(
        "recall",
        lambda: _write_recall(block, recall_from(items, message, budget_tokens=left, counter=budget.counter)),
    )
    contribution = block.finish()
    if contribution.status == "empty" and (len(items) or has_summary):
        return no_content("memory", "below_heading", capped=contribution.capped)
    return contribution


def _write_recall(block: ContributionBuilder, recalled: Recall) -> None:
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
        )
