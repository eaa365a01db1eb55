"""Where a text may end: after a paragraph, a sentence, a word, or at least a whole grapheme.

Each function yields ends in descending order from `high`, lazily, so that a caller who looks for the
last one that fits reads only a little of a large text. An end is never 0 and never within a grapheme.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import regex

# Two line breaks with nothing but white space between them, of one kind: "\r\n" is a single break.
_BLANK_LINE: Final = regex.compile(r"(?r)\n[^\S\n]*+\n|\r[^\S\r\n]*+\r")

# A terminator with its closing quotes, then white space; Chinese and Japanese ones need none.
_SENTENCE_END: Final = regex.compile(r"""(?r)[.!?…]["'”’)\]»*_`]{0,4}(?=\s)|[。！？]["”’」』）】]{0,4}""")

# White space ends a word. Han and Hiragana are written without it, and each character is a word of its
# own (UAX #29, section 4).
_UNSPACED: Final = r"[\p{Han}\p{Hiragana}]"
_WORD_END: Final = regex.compile(rf"(?r)(?<=\S)(?=\s|{_UNSPACED})|(?<={_UNSPACED})(?=\S)")

# What a stretch must hold to hold an end at all: wider patterns than those above, which the standard
# library searches several times as fast.
_MAYBE_SENTENCE_END: Final = re.compile(r"""[.!?…]["'”’)\]»*_`]{0,4}\s|[。！？]""")
_MAYBE_WORD_END: Final = re.compile(
    r"[\s\u2e80-\u30ff\u3200-\u9fff\uf900-\ufaff\U00016fe0-\U00016fff"
    r"\U0001b000-\U0001b16f\U0001f200\U00020000-\U0003ffff]"
)
_STRETCH_CHARS: Final = 4_096
_OVERLAP_CHARS: Final = 8
"""More than an end's pattern looks back."""

# A blank line further behind a paragraph than that does not end it: nobody reads a megabyte of spaces.
_SPACE_AHEAD: Final = regex.compile(r"\s{0,4096}+")
_SPACE_BEHIND: Final = regex.compile(r"(?r)\s*+")
# A pair of regional indicators and what extends it, spelled out: in a long run of them `\X` goes back
# to the first one at each step.
_FLAG: Final = r"[\U0001f1e6-\U0001f1ff]{1,2}[\p{GCB=Extend}\p{GCB=ZWJ}\p{GCB=SpacingMark}]*+"
_GRAPHEME: Final = regex.compile(rf"{_FLAG}|\X")

# Printable ASCII, tab, kana and plain Han join what stands before them only after a prepended mark;
# Hangul syllables after a leading consonant, too, pictographs after a joiner, flags after their like.
_SIMPLE: Final = regex.compile(
    r"(?<!\p{GCB=Prepend})(?:[ -~\t\u3001-\u3029\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff]"
    r"|(?<!\p{GCB=L})[\uac00-\ud7a3]"
    r"|(?<!\u200d)[\u2600-\u27bf\U0001f300-\U0001f3fa\U0001f400-\U0001f64f\U0001f680-\U0001f6ff"
    r"\U0001f900-\U0001f9ff]"
    r"|(?<![\U0001f1e6-\U0001f1ff])[\U0001f1e6-\U0001f1ff])"
    # Nothing joins two characters without a part in the rules; a mark with a width of its own ends a join.
    r"|(?<=[\p{GCB=Other}\p{GCB=SpacingMark}])\p{GCB=Other}"
)
# These join whatever stands before them, so no end is between or before them, bar after a control.
_JOINED: Final = regex.compile(r"(?r)[\p{GCB=Extend}\p{GCB=ZWJ}\p{GCB=SpacingMark}]++")
_REGIONAL: Final = regex.compile(r"(?r)[\U0001f1e6-\U0001f1ff]*+")


def paragraph_ends(text: str, high: int) -> Iterator[int]:
    """Ends of paragraphs, without the white space before the blank line."""
    ahead = _SPACE_AHEAD.match(text, high)
    limit = ahead.end() if ahead else high
    while blank := _BLANK_LINE.search(text, 0, _after_last_break(text, limit)):
        behind = _SPACE_BEHIND.match(text, 0, blank.start())
        limit = behind.start() if behind else blank.start()
        if 0 < limit <= high and is_grapheme_end(text, limit):
            yield limit


def sentence_ends(text: str, high: int) -> Iterator[int]:
    """Ends of sentences: a terminator and white space."""
    yield from _ends_of(_SENTENCE_END, _MAYBE_SENTENCE_END, text, high)


def word_ends(text: str, high: int) -> Iterator[int]:
    """Ends of words."""
    yield from _ends_of(_WORD_END, _MAYBE_WORD_END, text, high)


def grapheme_ends(text: str, high: int) -> Iterator[int]:
    """Ends of user-perceived characters (UAX #29, extended grapheme clusters)."""
    while high > 0:
        low = _certain_boundary(text, high - 1)
        yield from (end for end in reversed(list(_clusters(text, low, high))) if end <= high)
        if low > 0:
            yield low
        high = low - 1


def is_grapheme_end(text: str, position: int) -> bool:
    """Whether no grapheme reaches over `position`."""
    if position in {0, len(text)} or _is_certain(text, position):
        return True
    return position in _clusters(text, _certain_boundary(text, position - 1), position)


def _after_last_break(text: str, limit: int) -> int:
    return max(text.rfind("\n", 0, limit), text.rfind("\r", 0, limit)) + 1


def _ends_of(pattern: regex.Pattern[str], maybe: re.Pattern[str], text: str, high: int) -> Iterator[int]:
    stop = high
    while stop > 0:
        start = (stop - 1) // _STRETCH_CHARS * _STRETCH_CHARS
        before = max(0, start - _OVERLAP_CHARS)
        # One character beyond the stretch, for the pattern to see what follows.
        if maybe.search(text, before, stop + 1):
            for found in pattern.finditer(text, before, stop + 1):
                if start < found.end() <= stop and is_grapheme_end(text, found.end()):
                    yield found.end()
        stop = start


def _clusters(text: str, low: int, high: int) -> Iterator[int]:
    """Ends of the clusters from the boundary `low` on, the last one at or beyond `high`."""
    while low < high:
        cluster = _GRAPHEME.match(text, low)
        low = cluster.end() if cluster else high
        yield low


def _certain_boundary(text: str, high: int) -> int:
    """The last position at or before `high` that is a boundary whatever stands further off."""
    while high > 0 and not _is_certain(text, high):
        if pairs := _pairs_before(text, high):
            return pairs
        joined = _JOINED.match(text, 0, high)
        # The first of those that join may still be a boundary: behind a line break.
        high = joined.start() if joined else high - 1
    return high


def _pairs_before(text: str, high: int) -> int:
    """The last end of a flag at or before `high` inside a run of regional indicators; 0 if there is none."""
    if not _is_regional(text[high]):
        return 0
    run = _REGIONAL.match(text, 0, high)
    start = run.start() if run else high
    end = high - (high - start) % 2
    return end if end > start else 0


def _is_regional(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _is_certain(text: str, position: int) -> bool:
    left, right = text[position - 1], text[position]
    if left == "\n":
        return True
    if right in "\r\n":
        return left != "\r"
    return _SIMPLE.match(text, position) is not None
