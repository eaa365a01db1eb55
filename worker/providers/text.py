"""Text rules that all sources share: folding to one line, cutting between graphemes, fencing.

Pure functions, each linear in what it returns or in its input, whichever is said.
"""

from __future__ import annotations

import re
from typing import Final

import regex

from worker.code.segments import fold as fold  # noqa: PLC0414 - one rule for code and prose, offered with the others

LINE_CHARS: Final = 300
"""Longest line of a short rendering, in characters."""

_ELLIPSIS: Final = "…"
_PIECE: Final = re.compile(r"\s+|\S{1,512}")
_GRAPHEME: Final = regex.compile(r"\X")
_BACKTICKS: Final = re.compile(r"`{3,}")
_SENTENCE_END: Final = re.compile(r"[.!?](?=\s+[^\sa-z]|\s*$)|[。！？]")


def cut(text: str, *, max_chars: int) -> str:
    """The folded text, or its first `max_chars` characters and an ellipsis where there is more.

    Never splits a grapheme: one that does not fit whole is left out. Reads no more of the text than it
    needs, so a preview of ten megabytes costs what a preview of a page does.
    """
    start = fold(text) if len(text) <= max_chars else _fold_start(text, max_chars + 1)
    if len(start) <= max_chars:
        return start
    end = 0
    # One character more than is kept decides whether the last grapheme goes on.
    for grapheme in _GRAPHEME.finditer(start):
        if grapheme.end() > max_chars:
            break
        end = grapheme.end()
    return start[:end].rstrip() + _ELLIPSIS


def _fold_start(text: str, min_chars: int) -> str:
    """The first `min_chars` characters of the folded text, or all of it where it is shorter."""
    pieces: list[str] = []
    length = 0
    for match in _PIECE.finditer(text):
        piece = match[0]
        if piece[0].isspace():
            piece = " " if pieces else ""
        pieces.append(piece)
        length += len(piece)
        # A blank may yet turn out to be trailing, so it does not count as the last character.
        if length >= min_chars and piece != " ":
            break
    return "".join(pieces).rstrip()[:min_chars]


def first_sentence(text: str, *, max_chars: int) -> str:
    """The first sentence, folded and cut to `max_chars` characters.

    It ends at a full stop, question or exclamation mark; one before a small letter ("e.g. this") ends none.
    """
    start = _fold_start(text, max_chars + 1)
    end = _SENTENCE_END.search(start)
    if end is not None and end.end() <= max_chars:
        return start[: end.end()]
    return cut(text, max_chars=max_chars)


def first_line(text: str, *, max_chars: int) -> str:
    """The first line that is not blank, folded and cut to `max_chars` characters."""
    start = text.lstrip()
    return cut(start.split("\n", 1)[0], max_chars=max_chars)


def fenced(text: str, *, info: str = "") -> str:
    """The text in a code fence longer than any run of backticks in it, so that nothing inside closes it."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{info}\n{text}\n{fence}"
