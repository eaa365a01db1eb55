"""Pieces of source as they are written, folded to one line and bounded."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

import regex

MAX_SEGMENT_LINES: Final = 12
MAX_SLICE_BYTES: Final = 1_000

_MORE: Final = " …"

_GRAPHEME: Final = regex.compile(r"\X")


class Segments:
    """Cuts pieces out of one module by the positions of its nodes."""

    def __init__(self, lines: Sequence[str]) -> None:
        """`lines` as the parser counts them, the first at index 0."""
        self._lines = lines
        self._encoded: dict[int, bytes] = {}

    def of(self, first: ast.expr | ast.pattern, last: ast.expr | ast.pattern | None = None) -> str:
        """The source from the start of `first` to the end of `last` (the same node where absent), folded.

        Comments between the two are left out. O(1): of a piece that is long, or over many lines, the start
        is given, with an ellipsis.
        """
        end = last or first
        # The parser gives an end to every expression and pattern.
        end_line, end_column = end.end_lineno or first.lineno, end.end_col_offset or 0
        if first.lineno == end_line:
            return self._slice(end_line, first.col_offset, end_column)
        head = self._slice(first.lineno, first.col_offset, None)
        if end_line - first.lineno >= MAX_SEGMENT_LINES:
            return head + _MORE
        middle = [self._slice(line, 0, None) for line in range(first.lineno + 1, end_line)]
        text = " ".join((head, *middle, self._slice(end_line, 0, end_column)))
        if "#" in text:
            # A comment, unless it is in a string: the parser's own spelling has none.
            has_spelling = last is None and len(text) <= MAX_SLICE_BYTES
            return (_unparsed(first) if has_spelling else "") or head + _MORE
        return text

    def starts_with(self, word: str, *, line: int, column: int = 0) -> bool:
        """Whether the word stands there. `column` must not be right of a character that is not ASCII."""
        return self._lines[line - 1].startswith(word, column)

    def find_else(self, *, after_line: int, until_line: int) -> int:
        """The line of the `else` between two statements, `until_line` where it is hard to see."""
        for line in range(after_line + 1, until_line):
            if self._lines[line - 1].lstrip().startswith("else"):
                return line
        return until_line

    def _slice(self, line: int, start: int, end: int | None) -> str:
        """Part of a line by UTF-8 offsets, which is what the parser gives; folded."""
        text = self._lines[line - 1]
        if end is None or end > start + MAX_SLICE_BYTES:
            more = _MORE if len(text) > start + MAX_SLICE_BYTES else ""
            end = start + MAX_SLICE_BYTES
        else:
            more = ""
        if text.isascii():
            return fold(text[start:end]) + more
        encoded = self._encoded.get(line)
        if encoded is None:
            encoded = self._encoded[line] = text.encode()
        return fold(encoded[start:end].decode(errors="ignore")) + more


def fold(text: str) -> str:
    """The text on one line: each run of white space becomes one blank, none at the ends."""
    return " ".join(text.split())


def shorten(text: str, *, max_chars: int) -> str:
    """The text, or as many whole graphemes as leave room for an ellipsis where it is longer."""
    if len(text) <= max_chars:
        return text
    if text.isascii():
        return text[: max_chars - 1] + "…"
    end = 0
    for grapheme in _GRAPHEME.finditer(text[: max_chars + 1]):
        if grapheme.end() > max_chars - 1:
            break
        end = grapheme.end()
    return text[:end] + "…"


def first_line(text: str) -> str:
    """The first line that is not blank, folded."""
    return fold(text.lstrip().split("\n", 1)[0])


def _unparsed(node: ast.expr | ast.pattern) -> str:
    """The parser's own spelling, empty where there is none."""
    try:
        return fold(ast.unparse(node))
    except (ValueError, RecursionError):
        # An f-string that cannot be written back with the quotes there are, or too deep a nesting.
        return ""
