"""Where a text may be cut so that the token counts of both sides add up exactly.

The patterns of `o200k_base` and `cl100k_base` cut a text into pieces, and byte-pair merging never
leaves a piece. Both patterns look at most at what follows a piece, never at what went before. So a
position that no piece reaches over, and that changes nothing about the pieces before it, is a *split*:
`count(text) == count(text[:p]) + count(text[p:])`. Most splits show in the kinds of the characters
around them; those within a run of digits or of marked symbols only from where the run begins. The rules
name fewer splits than there are.

Where there is none for long, the text is inside one piece: `in_piece`. `long_pieces` finds those of
thousands of characters, such as 100,000 times one letter. tiktoken's time for a piece grows faster than
its length, and on a million spaces its pattern engine gives up, so these are tokenised block by block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from worker.budget.characters import kinds_of

RUN_CHARS: Final = 384
"""A run must go back that far for every token that may reach over its end (128 bytes at most), for the
seam before that, and for what tells that it is one piece. A split is looked for no further back."""

LONG_PIECE_CHARS: Final = 8_192
"""From this length on a piece is worth tokenising in blocks (measured: 3 to 8 times as fast)."""

LONG_SPACE_CHARS: Final = 100_000
"""White-space runs beyond this length are counted without tiktoken's consent: it refuses them."""

_NEAR_CHARS: Final = 12
_SEARCH_CHARS: Final = 4_096
_DIGITS_IN_PIECE: Final = 3
_SAMPLE_CHARS: Final = 16

# In the patterns below: u, l, o letters (capital, small, other), m marks, d digits, s and / symbols,
# ' the apostrophe, n line breaks, t and the space white space (see `characters`).
_PAIRS: Final = (
    rb"[^ tn](?=[ t])",  # a piece may begin with one white space, and none goes on with one
    rb"[luo](?=[s/n])",  # no word has punctuation behind it, apart from the apostrophe
    rb"d(?=[luoms/'n])|[luoms/'](?=d)",  # digits have pieces of their own
    rb"n(?=[^ tn/])",  # after a line break go on line breaks, white space or, in one pattern, slashes
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRules:
    """The splits and the long pieces under the pattern of one encoding."""

    pairs: re.Pattern[bytes]
    """Characters that are followed by a split."""
    piece_run: re.Pattern[bytes]
    """Runs that are inside one piece, but perhaps for their first 96 characters."""
    letter_runs: tuple[re.Pattern[bytes], ...]
    """Of which kinds a run is inside one word."""
    units: re.Pattern[bytes]
    """Pieces of symbols, as many as there are from a split on, each after the other."""
    piece_at_split: re.Pattern[bytes]
    """Runs that are inside one piece if they begin at a split, but for what is `before` it."""
    symbols_begin: re.Pattern[bytes]
    """What stands between a split and the beginning of a piece that takes all symbols from there on."""

    def is_split(self, text: str, position: int) -> bool:
        """Whether the characters around a position show that it is a split; both ends of a text are."""
        if position in {0, len(text)}:
            return True
        low = max(0, position - 2)
        return self.pairs.match(kinds_of(text[low : position + 1]), position - 1 - low) is not None

    def last_split(self, text: str, low: int, high: int, *, anchor: int) -> int:
        """The last known split in `low < p <= high`, at most `RUN_CHARS` back; 0 if there is none.

        `anchor` is some split at or before `low`; `high` must be below `len(text)`.
        """
        back = max(anchor, high - RUN_CHARS)
        kinds = kinds_of(text[back : high + 1])
        near = max(low - back, len(kinds) - _NEAR_CHARS)
        if split := self._last_pair(kinds, near, len(kinds)):
            return back + split
        if self.piece_run.fullmatch(kinds):
            return 0
        split = self._last_pair(kinds, max(low - back, 0), near + 1)
        return back + split if split else self._split_in_run(text, low, high, anchor)

    def next_split(self, text: str, low: int, high: int) -> int:
        """The first split that shows by itself in `low <= p < high`, else `high`. `low` is above 0."""
        while low < high:
            stop = min(low + _SEARCH_CHARS, high)
            if found := self.pairs.search(kinds_of(text[low - 1 : stop])):
                return low - 1 + found.end()
            low = stop
        return high

    def chunk_end(self, text: str, start: int, size: int) -> int:
        """A split about `size` characters after the split `start`, later if there is none; else the end."""
        stop = start + size
        if stop >= len(text):
            return len(text)
        return self.last_split(text, start, stop, anchor=start) or self.next_split(text, stop, len(text))

    def in_piece(self, text: str, end: int, *, anchor: int) -> bool:
        """Whether what stands before `end` is inside one piece, from deep before or from `anchor` on.

        `anchor` is some split before `end`. The piece may end there or go on, and begins at the same
        place either way. White space is left out: how it is cut depends on what follows.
        """
        kinds = kinds_of(text[max(anchor, end - RUN_CHARS) : end])
        if len(kinds) == RUN_CHARS:
            if self.piece_run.fullmatch(kinds):
                return True
            if not _MAY_BE_PIECE.fullmatch(kinds):
                return False
            kinds = kinds_of(text[anchor:end])
        led = self.piece_at_split.fullmatch(kinds)
        return led is not None and (led.end("before") <= 0 or len(kinds) - led.end("before") >= RUN_CHARS)

    def long_pieces(self, text: str) -> Iterator[tuple[int, int]]:
        """Stretches `(start, end)` of at least `LONG_PIECE_CHARS` that are one piece each, in order.

        What lies between two of them counts separately: both ends are splits. Not every long piece is
        found, only runs of one class of characters. Cost: a look each few thousand characters.
        """
        step = LONG_PIECE_CHARS // 2
        done = 0
        for position in range(step, len(text) - _SAMPLE_CHARS, step):
            if position < done:
                continue
            sample = kinds_of(text[position : position + _SAMPLE_CHARS])
            run = next((run for run in (*self.letter_runs, _SYMBOLS, _SPACES) if run.fullmatch(sample)), None)
            if run is None:
                continue
            start, end = _run_start(text, done, position, run), _run_end(text, position, run)
            piece = self._as_piece(text, start, end, run, low=done)
            done = end
            if piece and piece[1] - piece[0] >= LONG_PIECE_CHARS:
                yield piece

    def _last_pair(self, kinds: bytes, low: int, high: int) -> int:
        """The last split `low < p < high` that shows by itself; 0 if there is none."""
        last = 0
        for found in self.pairs.finditer(kinds, low, high):
            last = found.end()
        return last

    def _split_in_run(self, text: str, low: int, high: int, anchor: int) -> int:
        """A split that only the beginning of a run tells, if the run begins at `anchor`."""
        kinds = kinds_of(text[anchor : high + 1])
        digits = _DIGITS.match(kinds)
        if digits and anchor + digits.end() > high:
            split = high - (high - anchor) % _DIGITS_IN_PIECE
        else:
            # The last unit in sight may go on.
            units = self.units.match(kinds)
            split = anchor + kinds.rfind(b"s", 0, units.end()) if units else 0
        return split if split > low else 0

    def _as_piece(
        self, text: str, start: int, end: int, run: re.Pattern[bytes], *, low: int
    ) -> tuple[int, int] | None:
        """The piece that a run is, if its neighbours prove that it is exactly one."""
        if run is _SPACES:
            return _space_piece(text, start, end)
        if run is _SYMBOLS:
            return self._symbol_piece(text, start, end, low=low)
        # A word takes one mark or space in front.
        if start > low and not self.is_split(text, start) and kinds_of(text[start - 1]) in b"s/ t":
            start -= 1
        return (start, end) if self.is_split(text, start) and self.is_split(text, end) else None

    def _symbol_piece(self, text: str, start: int, end: int, *, low: int) -> tuple[int, int] | None:
        if start > low and text[start - 1] == " ":
            start -= 1
        begin = self.symbols_begin.match(kinds_of(text[start:end]))
        if begin is None or not self.is_split(text, start):
            return None
        # Symbols leave the letters behind them alone.
        ends = self.is_split(text, end) or kinds_of(text[end]) in b"ulo"
        return (start + begin.end(), end) if ends else None


_SYMBOLS: Final = re.compile(rb"[s/m]*+")
_SPACES: Final = re.compile(rb"[ t]*+")
_DIGITS: Final = re.compile(rb"d*+")
_MAY_BE_PIECE: Final = re.compile(rb"u*+|[s/m]*+")

_O200K: Final = SplitRules(
    # A word ends before a capital, unless what looks like its end is that of "we'lL".
    pairs=re.compile(b"|".join((*_PAIRS, rb"(?<=[^'])l(?=u)"))),
    # Marks are letters of a word. A symbol with marks is a piece, unless one of symbols goes on.
    piece_run=re.compile(rb"m{0,96}+[lo][lom]*+|m*+|(?=[s/m]{0,94}?[s/]{2})[s/m]*+"),
    piece_at_split=re.compile(
        rb"(?P<before>(?:[s/]m++)*+)(?=[s/]{2})[s/m]*+| [s/][s/m]*+|[ts/ ]?(?:u++|[lom]++)"
    ),
    letter_runs=(re.compile(rb"[lom]*+"), re.compile(rb"u*+")),
    units=re.compile(rb"(?:[s/]m++)*+"),
    symbols_begin=re.compile(rb"(?:[s/]m++)*+(?=[s/]{2})|(?= [s/])"),
)
_CL100K: Final = SplitRules(
    pairs=re.compile(b"|".join((*_PAIRS, rb"[luo](?=m)"))),
    piece_run=re.compile(rb"[luo]*+|[s/m]*+"),
    piece_at_split=re.compile(rb"(?P<before>)(?: ?[s/m]{2}[s/m]*+|[ts/m ]?[luo]++)"),
    letter_runs=(re.compile(rb"[luo]*+"),),
    units=re.compile(b""),
    symbols_begin=re.compile(rb"(?= ?[s/m]{2})"),
)
SPLIT_RULES: Final = {"o200k_base": _O200K, "cl100k_base": _CL100K}


def has_long_space(text: str) -> bool:
    """Whether some run of white space exceeds `LONG_SPACE_CHARS`. Cost: a look each 100,000 characters."""
    step = LONG_SPACE_CHARS
    for position in range(0, len(text), step):
        if text[position].isspace():
            before = text[max(0, position - step) : position]
            after = text[position : position + step + 1]
            run = len(before) - len(before.rstrip()) + len(after) - len(after.lstrip())
            if run > step:
                return True
    return False


def _run_start(text: str, low: int, position: int, run: re.Pattern[bytes]) -> int:
    while position > low:
        before = max(low, position - _SEARCH_CHARS)
        backwards = kinds_of(text[before:position])[::-1]
        same = run.match(backwards)
        position -= same.end() if same else 0
        if position > before:
            break
    return position


def _run_end(text: str, position: int, run: re.Pattern[bytes]) -> int:
    while position < len(text):
        kinds = kinds_of(text[position : position + _SEARCH_CHARS])
        same = run.match(kinds)
        position += same.end() if same else 0
        if same is None or same.end() < len(kinds):
            break
    return position


def _space_piece(text: str, start: int, end: int) -> tuple[int, int] | None:
    # Before a line break the run belongs to a piece that ends with the break: tiktoken copes with that.
    if end < len(text) and text[end] in "\r\n":
        return None
    # The last space of a run goes with the word that follows.
    return start, end if end == len(text) else end - 1
