"""Exact counting with the packaged tiktoken vocabularies."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import numpy as np
import tiktoken
from numpy.typing import NDArray

from worker.budget.splits import SPLIT_RULES, has_long_space
from worker.budget.utf8 import well_formed
from worker.budget.vocabulary import load_vocabulary

_HEAD_BYTES = 4
_BLOCK_BYTES = 4_096
_MAX_CONSECUTIVE_RETREATS = 16
_CHUNK_CHARS = 65_536
_SHORT_CHARS = 1_000
_REMEMBERED_CHARS = 16_384
"""The same code, plans and marks come with every request of a project; longer texts are mostly unique."""
_REMEMBERED_TEXTS = 65_536
"""With their keys some 8 MB."""


class TiktokenCounter:
    """Counts as `tiktoken` does for text that holds no special tokens, whatever the text is.

    Lone surrogates count as U+FFFD, as in `Encoding.encode`. Exact, also where tiktoken gives up
    (white-space runs of about a million); `is_exact` is nevertheless false for runs beyond 100,000,
    because nobody can confirm such a number with tiktoken.
    """

    exact = True

    def __init__(self, name: str, *, remembered_texts: int = _REMEMBERED_TEXTS) -> None:
        """Load the vocabulary (about half a second, once per process). Raises ValueError on its name.

        The counts of so many texts are remembered, of which a project's requests have the most in common.
        """
        self.name = name
        self._remembered_texts = remembered_texts
        self._vocabulary = load_vocabulary(name)
        self.rules = SPLIT_RULES[name]
        self._encoding: tiktoken.Encoding = self._vocabulary.encoding
        self.longest_token_bytes = self._vocabulary.longest_token_bytes
        self._longest: dict[bytes, int] = {}
        self._counts: dict[tuple[int, int], int] = {}
        self._is_begun_by: dict[str, bool] = {}

    def is_exact(self, text: str) -> bool:
        """Whether `count(text)` is what tiktoken itself would say."""
        return not has_long_space(text)

    def scale(self, raw_tokens: int) -> int:
        """The tokens as they are."""
        return raw_tokens

    def raw_budget(self, budget_tokens: int) -> int:
        """The budget as it is."""
        return budget_tokens

    def count(self, text: str) -> int:
        """Tokens of `text`. About 15 MB/s, without the interpreter lock.

        What was counted lately is known, at a tenth of the cost.
        """
        if len(text) > _REMEMBERED_CHARS:
            return len(self.encode(text))
        key = _key(text)
        tokens = self._counts.get(key)
        if tokens is None:
            # Short ones lack what `encode` guards against, and cost a third without it.
            is_short = len(text) <= _SHORT_CHARS
            tokens = len(self._encoding.encode_ordinary(text) if is_short else self.encode(text))
            self._remember(key, tokens)
        return tokens

    def count_up_to(self, text: str, limit_tokens: int) -> int:
        """`count(text)` if that is at most `limit_tokens`, else one more than that, whatever is remembered.

        Stops just past the limit, except inside a single piece that has no end.
        """
        if len(text) > limit_tokens * self.longest_token_bytes:
            return limit_tokens + 1
        size = min(_CHUNK_CHARS, 256 + limit_tokens)
        if len(text) <= size:
            return min(self.count(text), limit_tokens + 1)
        key = _key(text) if len(text) <= _REMEMBERED_CHARS else None
        if key is not None and (known := self._counts.get(key)) is not None:
            return min(known, limit_tokens + 1)
        counted, start = 0, 0
        while start < len(text) and counted <= limit_tokens:
            end = self.rules.chunk_end(text, start, size)
            counted += self.count(text[start:end])
            start = end
        if key is not None and start == len(text):
            self._remember(key, counted)
        return min(counted, limit_tokens + 1)

    def count_lines(self, lines: Iterable[str]) -> int:
        """`count` of the lines joined, which hold their own line breaks.

        What lies behind a line break is counted apart from what lies before it, unless it begins with white
        space or a slash. So a line that was counted alone, or in another text, need not be counted again.
        """
        return sum([self.count(run) for run in self._apart(lines)])

    def count_lines_up_to(self, lines: Iterable[str], limit_tokens: int) -> int:
        """`count_up_to` of the lines joined, found as `count_lines` finds it."""
        counted = 0
        for run in self._apart(lines):
            counted += self.count_up_to(run, limit_tokens - counted)
            if counted > limit_tokens:
                break
        return min(counted, limit_tokens + 1)

    def _apart(self, lines: Iterable[str]) -> Iterator[str]:
        """The lines, with those that are not to be counted apart in one piece."""
        run = ""
        for line in lines:
            if run and run[-1] == "\n" and self._begins_apart(line[:1]):
                yield run
                run = line
            else:
                run = run + line if run else line
        if run:
            yield run

    def _begins_apart(self, character: str) -> bool:
        """Whether there is a split between a line break and the character."""
        known = self._is_begun_by.get(character)
        if known is None:
            known = self._is_begun_by[character] = (
                self.rules.is_split("\n" + character, 1) and character != ""
            )
        return known

    def _remember(self, key: tuple[int, int], tokens: int) -> None:
        if len(self._counts) >= self._remembered_texts:
            self._counts.clear()
        if self._remembered_texts:
            self._counts[key] = tokens

    def fits(self, text: str, budget_tokens: int) -> bool:
        """Whether `count(text) <= budget_tokens`, found the cheapest way."""
        # A token has at least one byte, and a character at most four.
        if 4 * len(text) <= budget_tokens:
            return True
        return self.count_up_to(text, budget_tokens) <= budget_tokens

    def token_ends(self, text: str) -> NDArray[np.int64]:
        """UTF-8 byte offsets at which the tokens of `text` end: `(n_tokens,)`, ascending."""
        return self.ends_of(self.encode(text))

    def ends_of(self, ids: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Byte offsets at which tokens end that stand one after the other: `(n_tokens,)`."""
        return np.cumsum(self._vocabulary.token_bytes[ids])

    def encode(self, text: str) -> NDArray[np.uint32]:
        """The token ids of `text`: `(n_tokens,)`."""
        parts: list[NDArray[np.uint32]] = []
        done = 0
        for start, end in self.rules.long_pieces(text):
            parts.append(self._encode_text(text[done:start]))
            parts.append(self._encode_long_piece(text[start:end].encode()))
            done = end
        parts.append(self._encode_text(text[done:] if done else text))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def encode_piece(self, piece: bytes) -> list[int]:
        """The token ids of bytes that lie within one piece."""
        return self._encoding._encode_single_piece(piece)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the public ways all run the pattern first

    def joins(self, left: int, right: int) -> bool:
        """Whether two tokens stay two when their bytes stand side by side in one piece.

        Byte-pair merging is local: a sequence of tokens is the encoding of its bytes exactly when each
        neighbouring pair is.
        """
        both = self._encoding.decode_bytes((left, right))
        return self.encode_piece(both) == [left, right]

    def begins_token(self, data: bytes) -> bool:
        """Whether some token is longer than `data` and begins with it."""
        if len(data) >= self._longest_from(data[:_HEAD_BYTES]):
            return False
        tokens = self._vocabulary.sorted_tokens
        index = bisect_right(tokens, data)
        return index < len(tokens) and tokens[index].startswith(data)

    def _longest_from(self, head: bytes) -> int:
        """The length in bytes of the longest token that begins with `head`, kept per head."""
        longest = self._longest.get(head)
        if longest is None:
            tokens = self._vocabulary.sorted_tokens
            first = bisect_left(tokens, head)
            after = bisect_left(tokens, head + b"\xff" * self.longest_token_bytes, first)
            longest = self._longest[head] = max(map(len, tokens[first:after]), default=0)
        return longest

    def _encode_text(self, text: str) -> NDArray[np.uint32]:
        try:
            # Plain `encode` refuses "<|endoftext|>" in user text; `encode_ordinary` panics, with
            # something that is no Exception, where this call raises ValueError.
            return self._encoding.encode_to_numpy(text, disallowed_special=())
        except UnicodeEncodeError:
            return self._encoding.encode_to_numpy(well_formed(text), disallowed_special=())

    def _encode_long_piece(self, piece: bytes) -> NDArray[np.uint32]:
        """One piece, block by block, in time proportional to its length.

        A prefix of an encoding is the encoding of its bytes, so a block may follow any token of the
        one before, if only the two tokens at the seam stay apart. Where they do not, the seam moves
        back a token.
        """
        tokens: list[int] = []
        lengths = self._vocabulary.token_bytes
        done = retreats = 0
        while done < len(piece):
            block = self.encode_piece(piece[done : done + _BLOCK_BYTES])
            if tokens and not self.joins(tokens[-1], block[0]):
                retreats += 1
                if retreats > _MAX_CONSECUTIVE_RETREATS:
                    return np.array(self.encode_piece(piece), dtype=np.uint32)
                done -= int(lengths[tokens.pop()])
                continue
            retreats = 0
            # The last tokens of a block end where it was cut, not where the piece would have it.
            kept = block if done + _BLOCK_BYTES >= len(piece) else block[:-2]
            tokens += kept
            done += int(lengths[kept].sum())
        return np.array(tokens, dtype=np.uint32)


def _key(text: str) -> tuple[int, int]:
    """What the text's count is kept by: length and keyed hash. The text itself is kept nowhere."""
    return len(text), hash(text)
