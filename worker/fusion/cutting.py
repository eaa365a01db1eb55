"""The last resort of packing: the beginning of one fragment, in the room that remains."""

from __future__ import annotations

from typing import Final

from worker.budget.fences import close_open_fence, open_fence
from worker.budget.trimming import trim_to_budget
from worker.citations.labels import is_bare_label, unmarked
from worker.ports import TokenCounter

MIN_CUT_TOKENS: Final = 8
"""A shorter prefix of a fragment is noise, not context."""

ELLIPSIS: Final = "…"
"""Ends a short rendering where a deeper one goes on."""


def cut_into(deepest: str, shown: str, left_tokens: int, *, counter: TokenCounter) -> str:
    """The beginning of `deepest` in place of `shown`, in `left_tokens` more; "" where that is too few.

    Where `shown` is no prefix of it, it stays as it is, and what `deepest` has beyond it follows. An id with
    nothing to cite behind it is too few, and no id stands twice.
    """
    if left_tokens < MIN_CUT_TOKENS:
        return ""
    limit = left_tokens + (counter.count(shown + "\n") if shown else 0)
    # One token is kept back for the newline that follows.
    text = trim_to_budget(deepest, limit - 1, counter)
    is_begun = text.startswith(shown.removesuffix(ELLIPSIS)) and len(text) > len(shown)
    says_more = is_begun and not is_bare_label(text)
    if says_more and counter.fits(text + "\n", limit):
        return text
    rest = _beyond(unmarked(deepest), unmarked(shown)) if shown else deepest
    above = f"{shown}\n" if shown else ""
    kept_back = 1
    while left_tokens - kept_back >= MIN_CUT_TOKENS:
        more = trim_to_budget(rest, left_tokens - kept_back, counter)
        if not more:
            return ""
        # Counted as it will stand: the two may have more tokens together than apart.
        text = close_open_fence(above + more)
        if counter.fits(text + "\n", limit):
            return "" if is_bare_label(text) else text
        kept_back *= 2
    return ""


def _beyond(deepest: str, shown: str) -> str:
    """`deepest` without the first lines that `shown` says too, unless a code fence is open behind them."""
    lines = deepest.split("\n")
    said = 0
    for line, known in zip(lines, shown.split("\n"), strict=False):
        if not known.startswith(line):
            break
        said += 1
    return deepest if open_fence("\n".join(lines[:said])) else "\n".join(lines[said:])
