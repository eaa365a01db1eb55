"""Where a text may be cut so that the token counts of both sides add up exactly.

The patterns of `o200k_base` and `cl100k_base` cut a text into pieces, and byte-pair merging never
leaves a piece. Both patterns look at most at what follows a piece, never at what went before. So a
position between two characters that no piece holds together, whatever surrounds them, is a *split*:
`count(text) == count(text[:p]) + count(text[p:])`. The rules below name such pairs of characters;
they are deliberately fewer than there are.

The second half finds *long pieces*: stretches of thousands of characters that are known to be one
piece each, such as 100,000 times one letter. tiktoken's time for a piece grows faster than its
length, and on a million spaces its pattern engine gives up, so these are tokenised block by block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import regex

LOOKBACK_CHARS: Final = 256
"""How far back a split is looked for. Prose and code have one every few characters."""

LONG_PIECE_CHARS: Final = 8_192
"""From this length on a piece is worth tokenising in blocks (measured: 3 to 8 times as fast)."""

LONG_SPACE_CHARS: Final = 100_000
"""White-space runs beyond this length are counted without tiktoken's consent: it refuses them."""

# Never a part of a word or a number, and no combining mark. The apostrophe is not here: "it's" is one
# piece. Only characters whose Unicode category never changed, so Python and Rust agree on them.
_PUNCTUATION: Final = frozenset(',.;:!?()[]{}<>"#$%&*+-/=@\\^_`|~，。、；：？！「」『』（）《》【】“”…')

# What a stretch must hold to hold a split at all.
_MAYBE_SPLIT: Final = re.compile(f"[ \t\r\n0-9{re.escape(''.join(sorted(_PUNCTUATION)))}]")
_LOOKS: Final = 12
"""Characters looked at one by one before a stretch is searched."""

_DIGITS: Final = frozenset("0123456789")
_PICTOGRAPHS: Final = frozenset(
    chr(point)
    for low, high in ((0x1F1E6, 0x1F200), (0x1F300, 0x1F650), (0x1F680, 0x1F700), (0x1F900, 0x1FA00))
    for point in range(low, high)
) | {"\ufe0f"}

_WORD_PREFIX: Final = _PUNCTUATION | {" "}

_SAMPLE_CHARS: Final = 16
_SPACE_CLASS: Final = r"[ \t\x0b\x0c\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
# Classes of which a run is one piece in both patterns. Fixed ranges, again for Python and Rust to agree.
_LETTER_CLASSES: Final = (r"[\u4e00-\u9fa5\u3041-\u3096\u30a1-\u30fa\uac00-\ud7a3]", r"[a-z]", r"[A-Z]")
_SYMBOL_CLASS: Final = (
    r"[!-&(-/:-@\[-`{-~\u200d\u2190-\u21ff\u2500-\u25ff\u2600-\u26ff"
    r"\U0001f300-\U0001f64f\U0001f680-\U0001f6ff\U0001f900-\U0001f9ff]"
)


def is_split(left: str, right: str) -> bool:
    """Whether two neighbouring characters are never in one piece, whatever stands around them."""
    if right in " \t":
        # A piece may begin with one space, and none continues with one.
        return not left.isspace()
    if right in "\r\n":
        # Punctuation takes the line breaks after it into its piece; letters and digits do not.
        return left.isalnum()
    if left in "\r\n":
        # A piece that reaches a line break goes on with line breaks or, in one pattern, with slashes.
        return right != "/" and not right.isspace()
    if right in _PUNCTUATION:
        return left.isalnum()
    # Digits have pieces of their own; letters never take one in front.
    if right in _DIGITS and (left in _PUNCTUATION or left in _PICTOGRAPHS):
        return True
    if left.isascii() and right.isascii():
        return (left.isalpha() and right.isdigit()) or (left.isdigit() and right.isalpha())
    return False


def last_split(text: str, low: int, high: int) -> int:
    """The last split in `low < p <= high`, looking at most `LOOKBACK_CHARS` back; 0 if there is none.

    `high` must be below `len(text)`.
    """
    low = max(low, high - LOOKBACK_CHARS)
    near = max(low, high - _LOOKS)
    if split := _last_split_between(text, near, high):
        return split
    return _last_split_between(text, low, near) if _MAYBE_SPLIT.search(text, low, near + 1) else 0


def _last_split_between(text: str, low: int, high: int) -> int:
    right = text[high]
    for position in range(high, low, -1):
        left = text[position - 1]
        if is_split(left, right):
            return position
        right = left
    return 0


def next_split(text: str, low: int, high: int) -> int:
    """The first split in `low <= p < high`; `high` if there is none. `low` must be above 0."""
    first = _MAYBE_SPLIT.search(text, low - 1, high)
    if first is None:
        return high
    for position in range(max(low, first.start()), high):
        if is_split(text[position - 1], text[position]):
            return position
    return high


def chunk_end(text: str, start: int, size: int) -> int:
    """A split about `size` characters after `start`, later where there is none; else the end."""
    while start + size < len(text):
        if end := last_split(text, start, start + size):
            return end
        size *= 2
    return len(text)


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


@dataclass(frozen=True, slots=True)
class _RunClass:
    """Characters of which a long run is one piece."""

    sample: regex.Pattern[str]
    forward: regex.Pattern[str]
    backward: regex.Pattern[str]
    is_letter: bool
    is_space: bool


def _run_class(characters: str, *, is_letter: bool = False, is_space: bool = False) -> _RunClass:
    return _RunClass(
        sample=regex.compile(f"{characters}{{{_SAMPLE_CHARS}}}"),
        forward=regex.compile(characters + "*+"),
        backward=regex.compile(f"(?r){characters}*+"),
        is_letter=is_letter,
        is_space=is_space,
    )


_RUN_CLASSES: Final = (
    *(_run_class(letters, is_letter=True) for letters in _LETTER_CLASSES),
    _run_class(_SYMBOL_CLASS),
    _run_class(_SPACE_CLASS, is_space=True),
)


def long_pieces(text: str) -> Iterator[tuple[int, int]]:
    """Stretches `(start, end)` of at least `LONG_PIECE_CHARS` that are one piece each, in order.

    What lies between two of them counts separately: both ends are splits. Not every long piece is
    found, only runs of one class of character. Cost: a look each few thousand characters.
    """
    step = LONG_PIECE_CHARS // 2
    done = 0
    for position in range(step, len(text) - _SAMPLE_CHARS, step):
        if position < done:
            continue
        run = next((c for c in _RUN_CLASSES if c.sample.match(text, position)), None)
        if run is None:
            continue
        start, end = _extent(text, done, position, run)
        piece = _as_piece(text, start, end, run, low=done)
        done = end
        if piece and piece[1] - piece[0] >= LONG_PIECE_CHARS:
            yield piece


def uniform_class(text: str, start: int, end: int) -> bool:
    """Whether `text[start:end]` is a run of one class of letter or symbol, so inside one piece."""
    return any(run.forward.fullmatch(text, start, end) for run in _RUN_CLASSES if not run.is_space)


def _extent(text: str, low: int, position: int, run: _RunClass) -> tuple[int, int]:
    behind = run.backward.match(text, low, position)
    ahead = run.forward.match(text, position)
    return behind.start() if behind else position, ahead.end() if ahead else position


def _as_piece(text: str, start: int, end: int, run: _RunClass, *, low: int) -> tuple[int, int] | None:
    """The piece that a run is, if its neighbours prove that it is exactly one."""
    if run.is_space:
        return _space_piece(text, start, end)
    # A word takes one mark or space in front.
    if run.is_letter and start > low and text[start - 1] in _WORD_PREFIX and not _is_edge(text, start):
        start -= 1
    return (start, end) if _is_edge(text, start) and _is_edge(text, end) else None


def _space_piece(text: str, start: int, end: int) -> tuple[int, int] | None:
    # Before a line break the run belongs to a piece that ends with the break: tiktoken copes with that.
    if end < len(text) and text[end] in "\r\n":
        return None
    # The last space of a run goes with the word that follows.
    return start, end if end == len(text) else end - 1


def _is_edge(text: str, position: int) -> bool:
    return position in {0, len(text)} or is_split(text[position - 1], text[position])
