"""Token counters by the name of their encoding, and charging the tokens of a text to its parts."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker.budget.file_counter import FileCounter
from worker.budget.tiktoken_counter import TiktokenCounter
from worker.budget.utf8 import byte_length
from worker.budget.vocabulary import PACKAGED
from worker.ports import TokenCounter

_FILE_PREFIX: Final = "file:"

_lock = threading.Lock()
_counters: dict[tuple[str, Fraction], TokenCounter] = {}


class BytesCounter:
    """UTF-8 bytes: a certified upper bound for every byte-level tokenizer.

    Each of its tokens holds at least one byte. A word count is no such bound: a line of code of 300
    tokens is one word.
    """

    name = "bytes"
    exact = False

    def is_exact(self, text: str) -> bool:  # noqa: ARG002  # the answer is the same for every text
        """Always false: a bound, said aloud."""
        return False

    def scale(self, raw_tokens: int) -> int:
        """The tokens as they are."""
        return raw_tokens

    def raw_budget(self, budget_tokens: int) -> int:
        """The budget as it is."""
        return budget_tokens

    def count(self, text: str) -> int:
        """Bytes of `text`."""
        return byte_length(text)

    def count_up_to(self, text: str, limit_tokens: int) -> int:
        """`count(text)` if that is at most `limit_tokens`, else some number above the limit."""
        return len(text) if len(text) > limit_tokens else byte_length(text)

    def fits(self, text: str, budget_tokens: int) -> bool:
        """Whether `count(text) <= budget_tokens`."""
        return self.count_up_to(text, budget_tokens) <= budget_tokens

    def token_ends(self, text: str) -> NDArray[np.int64]:
        """Every byte ends a token: `(n_bytes,)`."""
        return np.arange(1, byte_length(text) + 1, dtype=np.int64)


class ScaledCounter:
    """Another counter's tokens times a safety factor, rounded up: for models with a private tokenizer."""

    exact = False

    def __init__(self, inner: TokenCounter, factor: Fraction) -> None:
        """`factor` is above 1."""
        self.inner = inner
        self.name = inner.name
        self._factor = factor

    def is_exact(self, text: str) -> bool:  # noqa: ARG002  # the answer is the same for every text
        """Always false: the factor is a precaution, not a count."""
        return False

    def scale(self, raw_tokens: int) -> int:
        """`raw_tokens` times the factor, rounded up, in exact arithmetic."""
        return -(-raw_tokens * self._factor.numerator // self._factor.denominator)

    def raw_budget(self, budget_tokens: int) -> int:
        """The most raw tokens that scale to at most `budget_tokens`."""
        return budget_tokens * self._factor.denominator // self._factor.numerator

    def count(self, text: str) -> int:
        """Scaled tokens of `text`."""
        return self.scale(self.inner.count(text))

    def count_up_to(self, text: str, limit_tokens: int) -> int:
        """`count(text)` if that is at most `limit_tokens`, else some number above the limit."""
        return self.scale(self.inner.count_up_to(text, self.raw_budget(limit_tokens)))

    def fits(self, text: str, budget_tokens: int) -> bool:
        """Whether `count(text) <= budget_tokens`."""
        return self.inner.fits(text, self.raw_budget(budget_tokens))

    def token_ends(self, text: str) -> NDArray[np.int64]:
        """The raw tokens' ends."""
        return self.inner.token_ends(text)


def counter_for(encoding: str, *, safety_factor: str | float | Decimal | Fraction = 1) -> TokenCounter:
    """The counter for `o200k_base`, `cl100k_base`, `bytes` or `file:<tokenizer.json>`, kept per process.

    A `safety_factor` above 1 scales every count; it is read as the decimal that it prints as, so 1.1 is
    eleven tenths. Raises ValueError on an unknown encoding, a file that is no tokenizer, and a factor
    that is not a number of at least 1.
    """
    return _kept_counter(encoding, str(safety_factor))


@lru_cache(maxsize=256)
def _kept_counter(encoding: str, safety_factor: str) -> TokenCounter:
    """Two threads that ask first, at once, get the same counter all the same."""
    factor = Fraction(safety_factor)
    if factor < 1:
        raise ValueError(f"a safety factor is at least 1, not {safety_factor}")
    with _lock:
        if (encoding, Fraction(1)) not in _counters:
            _counters[encoding, Fraction(1)] = _new_counter(encoding)
        plain = _counters[encoding, Fraction(1)]
        if (encoding, factor) not in _counters:
            _counters[encoding, factor] = ScaledCounter(plain, factor)
        return _counters[encoding, factor]


def count_lines(counter: TokenCounter, lines: Iterable[str]) -> int:
    """`counter.count` of these lines joined, found as `count_lines_up_to` finds it."""
    if isinstance(counter, ScaledCounter):
        return counter.scale(count_lines(counter.inner, lines))
    if isinstance(counter, TiktokenCounter):
        return counter.count_lines(lines)
    return counter.count("".join(lines))


def count_lines_up_to(counter: TokenCounter, lines: Iterable[str], limit_tokens: int) -> int:
    """`counter.count_up_to` of these lines joined, which hold their own line breaks.

    Where the encoding is known to split between them, each is counted by itself, and what was counted before
    in another text is known; the number is that of the joined text all the same.
    """
    if isinstance(counter, ScaledCounter):
        raw = count_lines_up_to(counter.inner, lines, counter.raw_budget(limit_tokens))
        return counter.scale(raw)
    if isinstance(counter, TiktokenCounter):
        return counter.count_lines_up_to(lines, limit_tokens)
    return counter.count_up_to("".join(lines), limit_tokens)


def lines_fit(counter: TokenCounter, lines: Sequence[str], budget_tokens: int) -> bool:
    """Whether the joined lines have at most `budget_tokens`, found the cheapest way."""
    # No token is shorter than a byte, and no character longer than four.
    if counter.raw_budget(budget_tokens) >= 4 * sum(map(len, lines)):
        return True
    return count_lines_up_to(counter, lines, budget_tokens) <= budget_tokens


def charge_spans(
    counter: TokenCounter,
    text: str,
    spans: Sequence[tuple[str, int]],
    *,
    ends: NDArray[np.int64] | None = None,
) -> dict[str, int]:
    """Tokens of one encoding of `text`, each charged to the part that holds its first byte.

    `spans` are the parts in order, each with the character offset at which it ends; the last one ends
    with the text. A name may come more than once. The values sum to `counter.count(text)` exactly, by
    construction: merges across a seam are charged once, and a safety factor's rounding falls on the
    part in which it happens. `ends` are the text's token ends, where they are known.

    Raises ValueError when the spans do not cover the text.
    """
    stops = [end for _, end in spans]
    if stops != sorted(stops) or (stops[-1] if stops else 0) != len(text) or (stops and stops[0] < 0):
        raise ValueError(f"spans must cover the {len(text)} characters of the text in order")
    charged = dict.fromkeys((name for name, _ in spans), 0)
    if not spans:
        return charged
    if len(charged) == 1:
        return {spans[0][0]: counter.count(text)}
    if ends is None:
        ends = counter.token_ends(text)
    starts = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1]))[: len(ends)]
    begin = done_bytes = done_tokens = 0
    for index, (name, end) in enumerate(spans):
        done_bytes += byte_length(text[begin:end])
        is_last = index == len(spans) - 1
        raw = len(ends) if is_last else int(np.searchsorted(starts, done_bytes, side="left"))
        tokens = counter.scale(raw)
        charged[name] += tokens - done_tokens
        begin, done_tokens = end, tokens
    return charged


def _new_counter(encoding: str) -> TokenCounter:
    if encoding in PACKAGED:
        return TiktokenCounter(encoding)
    if encoding == BytesCounter.name:
        return BytesCounter()
    if encoding.startswith(_FILE_PREFIX):
        return FileCounter(encoding.removeprefix(_FILE_PREFIX))
    known = ", ".join((*PACKAGED, BytesCounter.name, _FILE_PREFIX + "<tokenizer.json>"))
    raise ValueError(f"unknown encoding {encoding!r}; known: {known}")
