"""How many tokens each prefix of a text has, without tokenising more of it than a budget's worth.

Counts of prefixes are not monotone: one more character may lower them. So a prefix is always counted
as the string that it is; what is saved is counting again what lies before a split.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import isqrt
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from worker.budget.splits import RUN_CHARS
from worker.budget.tiktoken_counter import TiktokenCounter
from worker.budget.tokens import ScaledCounter, TokenCounter
from worker.budget.utf8 import byte_length, byte_offsets, well_formed

# Chunks small enough that little is read in vain, large enough that a call costs little beside its work.
_MIN_CHUNK_CHARS: Final = 256
_MAX_CHUNK_CHARS: Final = 8_192
_SPARE_CHARS: Final = 64

# How far beyond the limit a longer prefix with fewer tokens is looked for where there is no split.
_MARGIN_TOKENS: Final = 4
_MARGIN_CHARS: Final = 64
_CHEAP_CHARS: Final = 2_048

# The same where there is one; in words and code it is nearer.
_FAR_TOKENS: Final = 12

# A split is used for counting if it is that near.
_NEAR_CHARS: Final = 96

_RESUME_BYTES: Final = 24
_RESUME_TRIES: Final = 8


class PrefixCounter(Protocol):
    """Counts prefixes of one text, in raw tokens."""

    def reach(self, limit_tokens: int) -> int | None:
        """None when the whole text has at most `limit_tokens`; else where to look for the last fit.

        That is a character offset at or a little beyond the longest prefix that fits.
        """
        ...

    def count(self, end: int, suffix: str) -> int:
        """The tokens of `text[:end] + suffix`, for `0 < end` up to what `reach` said."""
        ...


def reach_limit(counter: TokenCounter, text: str, limit_tokens: int) -> tuple[PrefixCounter, int | None]:
    """What counts prefixes of `text` fastest, and what its `reach` says about a limit of raw tokens."""
    if isinstance(counter, ScaledCounter):
        counter = counter.inner
    if isinstance(counter, TiktokenCounter):
        try:
            prefixes = SplitPrefixes(counter, text)
            return prefixes, prefixes.reach(limit_tokens)
        except UnicodeEncodeError:
            # A lone surrogate: bytes and characters no longer match, and nobody needs this to be fast.
            pass
    whole = WholePrefixes(counter, text)
    return whole, whole.reach(limit_tokens)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A tokenised stretch `text[start:stop]`; it begins at a split and, unless open, ends at one."""

    start: int
    stop: int
    base_tokens: int
    data: bytes
    ids: NDArray[np.uint32]
    ends: NDArray[np.int64]
    is_open: bool
    """The text goes on after `stop`, which is no split: the last tokens are those of a cut piece."""

    @property
    def total_tokens(self) -> int:
        """Tokens of the text up to `stop`."""
        return self.base_tokens + len(self.ids)

    def end_of_token(self, index: int) -> int:
        """The character offset at which the token ends, rounded down to a whole character."""
        return self.start + len(self.data[: self.ends[index]].decode(errors="ignore"))

    def tokens_before(self, offset_bytes: int) -> int:
        """Tokens of the text that end at or before an offset in this chunk."""
        return self.base_tokens + int(self.ends.searchsorted(offset_bytes, side="right"))


class SplitPrefixes:
    """Prefixes under a tiktoken encoding: counted from the last split, or the last sure token."""

    def __init__(self, counter: TiktokenCounter, text: str) -> None:
        self._counter = counter
        self._rules = counter.rules
        self._text = text
        self._chunks: list[_Chunk] = []
        self._starts: list[int] = []
        self._joined: dict[tuple[int, int], bool] = {}

    def reach(self, limit_tokens: int) -> int | None:
        """Tokenise chunk by chunk until just past the limit. Raises UnicodeEncodeError on surrogates."""
        text = self._text
        size = max(_MIN_CHUNK_CHARS, min(limit_tokens // 4, _MAX_CHUNK_CHARS))
        start = total = 0
        while start < len(text):
            stop = start + size
            end = self._rules.last_split(text, start, stop, anchor=start) if stop < len(text) else len(text)
            chunk = (
                self._chunk(start, end)
                if end
                else self._window(start, size, limit_tokens)
                or self._chunk(start, self._rules.chunk_end(text, start, size))
            )
            total = chunk.total_tokens
            if total > limit_tokens or (total == limit_tokens and chunk.stop < len(text)):
                return self._crossing(chunk, limit_tokens)
            start = chunk.stop
            # As much as the rest of the limit takes at the rate so far, so that little is in vain.
            size = start * (limit_tokens - total) // total + _SPARE_CHARS
            size = max(_MIN_CHUNK_CHARS, min(size, _MAX_CHUNK_CHARS))
        return None

    def count(self, end: int, suffix: str) -> int:
        """Cost: tokenising from the last split before `end`, in prose and code a word."""
        text = self._text
        chunk = self._chunks[bisect_left(self._starts, end) - 1]
        # With a suffix, `end` itself is followed by another character than in the text.
        high = end - 1 if suffix else end
        low = max(chunk.start, high - _NEAR_CHARS)
        if low < high < len(text) and (split := self._rules.last_split(text, low, high, anchor=chunk.start)):
            before = chunk.tokens_before(byte_length(text[chunk.start : split]))
            return before + self._counter.count(text[split:end] + suffix)
        sure = self._count_in_run(chunk, end)
        if sure is not None and (not suffix or self._rules.is_split(text[end - 1] + suffix[0], 1)):
            return sure + (self._counter.count(suffix) if suffix else 0)
        return chunk.base_tokens + self._counter.count(text[chunk.start : end] + suffix)

    def _chunk(self, start: int, stop: int, *, is_open: bool = False) -> _Chunk:
        data = self._text[start:stop].encode()
        ids = self._counter.encode(self._text[start:stop])
        base = self._chunks[-1].total_tokens if self._chunks else 0
        chunk = _Chunk(start, stop, base, data, ids, self._counter.ends_of(ids), is_open)
        self._chunks.append(chunk)
        self._starts.append(start)
        return chunk

    def _window(self, start: int, size: int, limit_tokens: int) -> _Chunk | None:
        """The beginning of a stretch without splits, if that proves that the limit is passed."""
        is_over = len(self._text) > limit_tokens * self._counter.longest_token_bytes
        wanted = limit_tokens + _MARGIN_TOKENS - (self._chunks[-1].total_tokens if self._chunks else 0)
        width = max(size // 2, _MIN_CHUNK_CHARS)
        while start + width < len(self._text) and (
            is_over or self._rules.in_piece(self._text, start + width, anchor=start)
        ):
            chunk = self._chunk(start, start + width, is_open=True)
            if len(chunk.ids) >= wanted and (is_over or self._proves_over(chunk, limit_tokens)):
                return chunk
            self._chunks.pop()
            self._starts.pop()
            # The rate so far, and what it may be wrong by; at least a quarter more in any case.
            at_rate = width * wanted // len(chunk.ids)
            width = max(width + width // 4, at_rate + at_rate // isqrt(width) + _SPARE_CHARS)
        return None

    def _proves_over(self, chunk: _Chunk, limit_tokens: int) -> bool:
        """Whether any text that goes on after this end of a run has more tokens than the limit.

        Some token of the longer text ends at or covers the chunk's end. Up to its first byte the longer
        text is tokenised like the prefix that ends there, so it is enough to count those prefixes.
        """
        data = chunk.data
        for cut in range(len(data), len(data) - self._counter.longest_token_bytes, -1):
            if cut < len(data) and not self._counter.begins_token(data[cut:]):
                continue
            counted = self._resume(chunk, cut)
            if counted is None or counted <= limit_tokens:
                return False
        return True

    def _crossing(self, chunk: _Chunk, limit_tokens: int) -> int:
        """The first split at which the limit is used up: whatever is longer has more tokens."""
        index = limit_tokens - chunk.base_tokens - 1
        low = max(chunk.end_of_token(index) if index >= 0 else chunk.start, chunk.start + 1)
        high = min(low + _NEAR_CHARS, chunk.stop)
        far = chunk.end_of_token(min(max(index, 0) + _FAR_TOKENS, len(chunk.ids) - 1))
        split = self._rules.next_split(self._text, low, high)
        if split < high or (split == chunk.stop and not chunk.is_open):
            return max(low, min(split, far))
        # No split in sight: a few tokens more, where looking at them is cheap.
        is_cheap = (
            self._rules.in_piece(self._text, low, anchor=chunk.start) or low - chunk.start < _CHEAP_CHARS
        )
        index = max(index, 0) + (_MARGIN_TOKENS if is_cheap else 0)
        return min(chunk.end_of_token(min(index, len(chunk.ids) - 1)), low + _MARGIN_CHARS)

    def _count_in_run(self, chunk: _Chunk, end: int) -> int | None:
        if not self._rules.in_piece(self._text, end, anchor=chunk.start):
            return None
        return self._resume(chunk, byte_length(self._text[chunk.start : end]))

    def _resume(self, chunk: _Chunk, offset_bytes: int) -> int | None:
        """Tokens up to an offset deep in a run of one class, tokenising only its last few bytes.

        The text up to the offset is one piece from before the run, so a token of the chunk may be
        followed by the encoding of the rest if the two at the seam stay apart (see `joins`).
        """
        last = int(chunk.ends.searchsorted(offset_bytes - _RESUME_BYTES, side="right")) - 1
        for index in range(last, max(last - _RESUME_TRIES, -1), -1):
            seam = int(chunk.ends[index])
            if offset_bytes - seam > RUN_CHARS // 2:
                return None
            rest = self._counter.encode_piece(chunk.data[seam:offset_bytes])
            pair = int(chunk.ids[index]), rest[0]
            stay_apart = self._joined.get(pair)
            if stay_apart is None:
                # Ends are tried one after the other, mostly over the same seam.
                stay_apart = self._joined[pair] = self._counter.joins(*pair)
            if stay_apart:
                return chunk.base_tokens + index + 1 + len(rest)
        return None


class WholePrefixes:
    """Prefixes under any counter: each is counted whole."""

    def __init__(self, counter: TokenCounter, text: str) -> None:
        self._counter = counter
        self._text = text

    def reach(self, limit_tokens: int) -> int | None:
        """Count up to the limit, then find where about its last token ends."""
        if self._counter.fits(self._text, limit_tokens):
            return None
        width = max(_MIN_CHUNK_CHARS, limit_tokens)
        while True:
            # Only an estimate is wanted, so a replaced surrogate does no harm.
            window = well_formed(self._text[:width])
            ends = self._counter.token_ends(window)
            if len(ends) > limit_tokens or width >= len(self._text):
                break
            width *= 2
        last_byte = int(ends[min(limit_tokens, len(ends)) - 1])
        end = int(np.searchsorted(byte_offsets(window), last_byte, side="right")) - 1
        return max(1, min(end, len(self._text)))

    def count(self, end: int, suffix: str) -> int:
        """Cost: tokenising the prefix."""
        return self._counter.count(self._text[:end] + suffix)
