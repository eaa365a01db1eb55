"""Cutting a text to a budget at the best boundary that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from worker.budget.boundaries import grapheme_ends, paragraph_ends, sentence_ends, word_ends
from worker.budget.fences import FenceTracker, closing_suffix
from worker.budget.prefixes import PrefixCounter, reach_limit
from worker.budget.tokens import TokenCounter

_PATIENCE: Final = 128
"""Misses in a row after which ends are skipped, ever more of them. Ordinary text has a few."""

_WHOLE_WORDS: Final = (paragraph_ends, sentence_ends, word_ends)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A prefix that fits: where it ends, what closes its fence, and its tokens with that."""

    end: int = 0
    suffix: str = ""
    tokens: int = 0


def trim_to_budget(
    text: str,
    budget_tokens: int,
    counter: TokenCounter,
    hard_limit: bool = True,  # noqa: FBT001, FBT002  # the signature that the users of this function know
) -> str:
    """The text if it fits, else its beginning up to a paragraph, sentence, word or grapheme.

    Whole paragraphs are kept if they use at least half of the budget; otherwise whole sentences, by
    the same measure; otherwise whole words; otherwise whole graphemes. (Without the measure, a heading
    would stand for the long paragraph below it, and a name for the line of data behind it.) At each level
    the largest prefix that fits is taken. Without `hard_limit` no word is cut: where not even one fits,
    the text is given back as it is.

    The result is a prefix of the text, followed by one line where the cut left a code fence open. Its
    `counter.count` is at most `budget_tokens`, fence included; zero or less gives "". Trimming again
    changes nothing. Cost: about one tokenisation of the result, however long the text; with a
    `file:` tokenizer a few.
    """
    limit = counter.raw_budget(budget_tokens)
    if budget_tokens <= 0:
        return ""
    prefixes, high = reach_limit(counter, text, limit)
    if high is None:
        return text
    fences = FenceTracker(text[:high])
    best = _Cut()
    for ends in (*_WHOLE_WORDS, grapheme_ends) if hard_limit else _WHOLE_WORDS:
        found = _last_fit(ends(text, high), text, prefixes, fences, limit)
        # Where a word was found, white space behind it is no more of the text.
        if found.end > best.end and not (best.end and text[best.end : found.end].isspace()):
            best = found
        if 2 * best.tokens >= limit:
            break
    if best.end == 0 and not hard_limit:
        return text
    return text[: best.end] + best.suffix


def _last_fit(
    ends: Iterator[int], text: str, prefixes: PrefixCounter, fences: FenceTracker, limit: int
) -> _Cut:
    skip = misses = 0
    for end in ends:
        if skip:
            skip -= 1
            continue
        suffix = closing_suffix(text, end, fences.closing_line(end))
        # Counted as the string that is returned: a shorter prefix may have more tokens.
        tokens = prefixes.count(end, suffix)
        if tokens <= limit:
            return _Cut(end, suffix, tokens)
        misses += 1
        if misses > _PATIENCE:
            skip = 2 ** (misses - _PATIENCE)
    return _Cut()
