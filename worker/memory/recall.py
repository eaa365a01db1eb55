"""What a thread remembers that bears on a request, best first, within a budget of tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from schemas.session import MemoryItem
from schemas.wire import format_time
from worker.code.segments import fold
from worker.memory.compression import compress
from worker.memory.index import MemoryIndex
from worker.ports import TokenCounter

RECALL_LIMIT: Final = 256
"""How many facts are tried for their place in the budget, unless told otherwise."""

BRIEF_CHARS: Final = 300
"""A longer fact has a brief, of as many tokens as its first so many characters."""

MAX_BRIEFS: Final = 32
"""How many long facts are compressed for one request; further ones are shown whole or not at all."""

PATIENCE: Final = 32
"""After so many facts in a row that do not fit, the budget counts as spent."""

_KEPT_CHARS: Final = 20_000
_MAX_KEPT_GISTS: Final = 512


@dataclass(frozen=True, slots=True)
class RecalledItem:
    """A fact that fits, as the lines that show it."""

    item: MemoryItem
    score: float
    """What it has in common with the request: 0 to 1."""
    line: str
    """The whole fact on one line."""
    brief: str
    """The same, compressed where it is long."""
    tokens: int
    """Of the line if that fitted, else of the brief."""


@dataclass(frozen=True, slots=True)
class Recall:
    """What was recalled, best first."""

    items: tuple[RecalledItem, ...]
    tokens: int
    """Of the items together; at most the budget."""
    left_out: int
    """How many facts hold and are not among the items."""


def recall(
    items: Iterable[MemoryItem],
    query: str,
    *,
    budget_tokens: int,
    counter: TokenCounter,
    limit: int = RECALL_LIMIT,
) -> Recall:
    """The facts that hold and bear on the query, as `recall_from`; reads all the items to index them."""
    return recall_from(MemoryIndex(items), query, budget_tokens=budget_tokens, counter=counter, limit=limit)


def recall_from(
    index: MemoryIndex, query: str, *, budget_tokens: int, counter: TokenCounter, limit: int = RECALL_LIMIT
) -> Recall:
    """The facts of an index that bear on the query, best first, in at most `budget_tokens`.

    The `limit` best are tried in order of their score (equal scores: the latest, then the smallest id). One
    that does not fit is tried as its brief; one that does not fit either way is skipped, and those behind it
    have their chance, until 32 in a row did not fit. Facts without anything in common with the query fill
    what is left, the latest first. O(facts), and the briefs of at most 32 long ones.
    """
    chosen: list[RecalledItem] = []
    left = budget_tokens
    briefs, misses = MAX_BRIEFS, 0
    for ranked in index.rank(query, limit=limit if budget_tokens > 0 else 0):
        line = _line(ranked.item, ranked.item.text)
        tokens, brief = counter.count_up_to(line, left), line
        if len(line) > BRIEF_CHARS and briefs:
            briefs -= 1
            brief = _line(ranked.item, _gist(ranked.item.text, counter))
        if tokens > left:
            tokens = counter.count_up_to(brief, left)
        if tokens > left:
            misses += 1
            if misses == PATIENCE:
                break
        else:
            misses = 0
            left -= tokens
            chosen.append(RecalledItem(ranked.item, ranked.score, line, brief, tokens))
    return Recall(tuple(chosen), max(0, budget_tokens) - max(0, left), len(index) - len(chosen))


def _gist(text: str, counter: TokenCounter) -> str:
    return _kept_gist(text, counter) if len(text) <= _KEPT_CHARS else _new_gist(text, counter)


def _new_gist(text: str, counter: TokenCounter) -> str:
    return compress(text, max_tokens=counter.count(text[:BRIEF_CHARS]), counter=counter)


_kept_gist: Final = lru_cache(maxsize=_MAX_KEPT_GISTS)(_new_gist)
"""Threads recall the same facts from request to request."""


def _line(item: MemoryItem, text: str) -> str:
    subject = f"{fold(item.subject)}: " if item.subject and not item.subject.isspace() else ""
    when = f" ({format_time(item.occurred_at)})" if item.occurred_at is not None else ""
    return f"- {subject}{fold(text)}{when}"
