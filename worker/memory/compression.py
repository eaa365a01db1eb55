"""One long text in fewer tokens: what a reader does not miss goes first, then the least telling sentences."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np
import regex

from worker.budget.trimming import trim_to_budget
from worker.memory.choosing import Ints, Vectors, choose
from worker.memory.embedding import DIMENSIONS, NORM, embed
from worker.memory.filler import (
    is_count,
    without_code_middles,
    without_frame_middles,
    without_repetitions,
)
from worker.memory.salience import points_of
from worker.memory.sentences import Piece, pieces_of
from worker.ports import TokenCounter

_FILLER_STAGES: Final = (without_repetitions, without_frame_middles, without_code_middles)

_MAX_PIECES: Final = 400
"""Of a text of more pieces the first half and the last half of so many are weighed."""

_WEIGHED_CHARS: Final = 1_000
_CENTRALITY_POINTS: Final = 40
_FIRST_POINTS, _LAST_POINTS, _HEADING_POINTS = 25, 10, 10
_GAP: Final = " …"
_ENDS_OPEN: Final = regex.compile(r"\p{GCB=Prepend}$")


def compress(text: str, *, max_tokens: int, counter: TokenCounter) -> str:
    """The text if it fits, else its gist in at most `max_tokens`.

    First repeated lines, the middles of stack traces and of long code blocks make way for a count of what
    was there; each step is taken only while the text is too long. Then sentences are chosen, the most telling
    first: those that resemble the rest, decide, block or name something, and the first and the last; equals
    in order. They stand in their order, with "…" where something was left out; a fenced block is kept or left
    out whole. Where nothing fits, the beginning of the text stands for it, as `trim_to_budget` cuts it.

    The result has never more tokens than the text; compressing it again changes nothing. No grapheme is
    split. O(length).
    """
    for stage in _FILLER_STAGES:
        if counter.fits(text, max_tokens):
            return text
        text = stage(text)
    if counter.fits(text, max_tokens):
        return text
    return _gist(text, max_tokens, counter) or trim_to_budget(text, max_tokens, counter)


def _gist(text: str, max_tokens: int, counter: TokenCounter) -> str:
    """The most telling pieces that fit, in order; empty where none does."""
    pieces = _weighed(text)
    contents = [text[p.start : p.end].strip()[:_WEIGHED_CHARS] for p in pieces]
    vectors = np.array([embed(content) for content in contents]).reshape(len(pieces), DIMENSIONS)
    left = max_tokens

    def take(number: int) -> bool:
        nonlocal left
        # Each piece pays for a gap behind it, be there one or not.
        tokens = counter.count_up_to(text[pieces[number].start : pieces[number].end] + _GAP, left)
        if tokens > left:
            return False
        left -= tokens
        return True

    kept = choose(_points(pieces, contents, vectors), vectors, take)
    while kept:
        result = _assembled(text, [pieces[number] for number in sorted(kept)])
        if counter.fits(result, max_tokens):
            return result
        kept.pop()
    return ""


def _weighed(text: str) -> list[Piece]:
    """The pieces to choose from, in order; what was said before is said once."""
    distinct = _distinct(text)
    half = _MAX_PIECES // 2
    return [*islice(distinct, half), *deque(distinct, maxlen=half)]


def _distinct(text: str) -> Iterator[Piece]:
    said: set[str] = set()
    for piece in pieces_of(text):
        content = text[piece.start : piece.end].strip().casefold()
        # A count of what was left out says nothing by itself; where it stood, a gap is marked.
        if content and content not in said and not is_count(content):
            said.add(content)
            yield piece


def _points(pieces: Sequence[Piece], contents: Sequence[str], vectors: Vectors) -> Ints:
    """What each piece is worth: its likeness to all the others, its words, its place: `(n_pieces,)`."""
    wide = vectors.astype(np.int64)
    # The likeness to the sum of all is the sum of the likenesses; a piece's own is taken off.
    alike = np.maximum(0, wide @ wide.sum(axis=0) - NORM**2)
    own: list[int] = []
    for number, content in enumerate(contents):
        points = 0 if pieces[number].is_block else points_of(content)
        points += _FIRST_POINTS * (number == 0) + _LAST_POINTS * (number == len(pieces) - 1)
        points += _HEADING_POINTS * content.startswith("#")
        own.append(points)
    return np.array(own, dtype=np.int64) + _CENTRALITY_POINTS * alike // max(1, int(alike.max(initial=0)))


def _assembled(text: str, pieces: Sequence[Piece]) -> str:
    """The pieces as they stand in the text, with a mark in each gap."""
    parts: list[str] = []
    end = 0
    for piece in pieces:
        content = text[piece.start : piece.end]
        if text[end : piece.start].strip():
            parts.append(_gap_after(parts))
            # What stood on a line of its own does so again.
            parts.append("\n" if _is_line_start(text, piece.start) else "")
        parts.append(content)
        end = piece.end
    if text[end:].strip():
        parts.append(_gap_after(parts))
    return "".join(parts).strip("\r\n") if parts else ""


def _gap_after(parts: list[str]) -> str:
    """The mark of a gap, which takes the place of the white space that ends the parts so far."""
    if not parts:
        return _GAP.strip()
    before = parts[-1]
    parts[-1] = before.rstrip()
    if not _ENDS_OPEN.search(parts[-1]):
        return _GAP
    # Such a character is one grapheme with whatever follows it but a line end.
    parts[-1] = before.rstrip("\r\n")
    return "\n" + _GAP.strip()


def _is_line_start(text: str, position: int) -> bool:
    return position == 0 or text[position - 1] in "\r\n"
