"""Python with syntax errors, cut into definitions, so that an error costs the one that it stands in.

A bracket or quote that is left open makes a parser take what follows for its content. Definitions are found
by their first lines and their indentation instead, and each is parsed on its own, at its place in the file.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from tree_sitter import Node, Parser, Point, Range

from worker.code.grammars import PYTHON, parser_for
from worker.code.parsing import STRING_OR_COMMENT

MAX_DEPTH: Final = 6
"""How deep definitions are cut out of definitions; each level is parsed once more."""

_HEADER: Final = re.compile(r"(?:async[ \t]+)?(?P<kind>def|class)[ \t]+(?P<name>[^\W\d]\w*)")
_TAB_COLUMNS: Final = 8
_CLOSED: Final = re.compile(r"(\"{3}|'{3}).*\1\Z", re.DOTALL)
"""A string of three quotes, to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Where a definition begins. Lines count from 0, `first` with its decorators."""

    first: int
    line: int
    column: int
    is_class: bool
    name: str
    text: str
    """The line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A definition (without a header the module), parsed without the pieces inside it that are their own."""

    header: Header | None
    first: int
    end: int
    """The line after its last."""
    root: Node
    inner: tuple[Piece, ...] = ()


def cut(text: str, content: bytes) -> Piece:
    """The module whose tree has errors in it, cut where that helps. `content` is the text's UTF-8.

    Gives the same tree uncut where no definition begins in it. O(n) for each level of nesting.
    """
    return _Cutting(text, content).module()


class _Cutting:
    def __init__(self, text: str, content: bytes) -> None:
        self._lines = text.split("\n")
        self._content = content
        sizes = [len(line) + 1 for line in content.split(b"\n")]
        self._offsets = [0, *accumulate(sizes)]
        self._offsets[-1] = len(content)
        self._headers = _headers(self._lines)
        self._headers = self._outside_strings(text)
        self._firsts = [header.first for header in self._headers]

    def module(self) -> Piece:
        return self._piece(None, 0, len(self._lines), depth=0)

    def _piece(self, header: Header | None, first: int, end: int, *, depth: int) -> Piece:
        root = self._parse(first, end)
        whole = Piece(header=header, first=first, end=end, root=root)
        if not root.has_error or depth > MAX_DEPTH:
            return whole
        inner = [self._inner(found, end, depth=depth) for found in self._inside(header, first, end)]
        if not inner:
            return whole
        broken = tuple(piece for piece in inner if piece.root.has_error or piece.inner)
        root = self._parse(first, end, without=broken)
        if root.has_error or not broken:
            broken = tuple(inner)
            root = self._parse(first, end, without=broken)
        return Piece(header=header, first=first, end=end, root=root, inner=broken)

    def _inner(self, header: Header, limit: int, *, depth: int) -> Piece:
        return self._piece(header, header.first, self._end(header, limit), depth=depth + 1)

    def _inside(self, header: Header | None, first: int, end: int) -> Iterator[Header]:
        """The outermost definitions between the lines, but for the one that they are of."""
        at = bisect_left(self._firsts, first) + (header is not None)
        passed = first
        while at < len(self._headers) and self._headers[at].line < end:
            found = self._headers[at]
            if found.first >= passed:
                yield found
                passed = self._end(found, end)
            at += 1

    def _end(self, header: Header, limit: int) -> int:
        """The line after the definition's last: below it something begins that is indented no deeper."""
        at = bisect_left(self._firsts, header.first) + 1
        while at < len(self._headers) and self._headers[at].column > header.column:
            at += 1
        bound = min(limit, self._headers[at].first if at < len(self._headers) else limit)
        text = "\n".join(self._lines[header.line : bound])
        inside = _lines_in_strings(text)
        end = header.line + 1
        for line in range(header.line + 1, bound):
            content = self._lines[line].strip()
            if not content or content.startswith("#"):
                continue
            is_inside = line - header.line in inside or content[0] in ")]}"
            if not is_inside and _column(self._lines[line]) <= header.column:
                break
            end = line + 1
        return end

    def _outside_strings(self, text: str) -> list[Header]:
        """Those that are no text in a string.

        Where a quote is left open, strings and what stands between them change places. What really stands in
        a string has one quote too many when it is parsed on its own.
        """
        starts = list(accumulate((len(line) + 1 for line in self._lines), initial=0))
        begins = [starts[header.line] for header in self._headers]
        dropped: set[int] = set()
        for match in STRING_OR_COMMENT.finditer(text):
            low, high = bisect_left(begins, match.start()), bisect_left(begins, match.end())
            if low == high or not _CLOSED.match(match[0]):
                continue
            last = self._headers[high - 1]
            bound = self._headers[high].first if high < len(self._headers) else len(self._lines)
            if self._parse(last.first, bound).has_error:
                dropped.update(range(low, high))
        return [header for number, header in enumerate(self._headers) if number not in dropped]

    def _parse(self, first: int, end: int, *, without: Sequence[Piece] = ()) -> Node:
        """The tree of those lines, its positions those of the file."""
        ranges: list[Range] = []
        for piece in without:
            if first < piece.first:
                ranges.append(self._range(first, piece.first, is_first=not ranges))
            first = piece.end
        if first < end or not ranges:
            ranges.append(self._range(first, max(first, end), is_first=not ranges))
        return Parser(parser_for(PYTHON).language, included_ranges=ranges).parse(self._content).root_node

    def _range(self, first: int, end: int, *, is_first: bool) -> Range:
        """The lines; without the first indentation, which is around the piece and not in it."""
        column = len(_indent(self._lines[first])) if is_first and first < end else 0
        return Range(Point(first, column), Point(end, 0), self._offsets[first] + column, self._offsets[end])


def _headers(lines: Sequence[str]) -> list[Header]:
    """Every line that begins a definition, with the decorators above it."""
    found: list[Header] = []
    decorated: tuple[int, int] | None = None
    for number, line in enumerate(lines):
        content = line.lstrip(" \t")
        if not content or content[0] in "#)]}":
            continue
        column = _column(line)
        match = _HEADER.match(content)
        if match is not None:
            has_decorators = decorated is not None and decorated[1] == column
            first = decorated[0] if decorated is not None and has_decorators else number
            found.append(
                Header(
                    first=first,
                    line=number,
                    column=column,
                    is_class=match["kind"] == "class",
                    name=match["name"],
                    text=content,
                )
            )
            decorated = None
        elif content[0] == "@":
            if decorated is None or decorated[1] != column:
                decorated = (number, column)
        elif decorated is not None and column <= decorated[1]:
            decorated = None
    return found


def _lines_in_strings(text: str) -> set[int]:
    """The lines, from 0, that begin inside a string of three quotes which ends."""
    found: set[int] = set()
    line, counted = 0, 0
    for match in STRING_OR_COMMENT.finditer(text):
        if _CLOSED.match(match[0]):
            line += text.count("\n", counted, match.start())
            counted = match.start()
            found.update(range(line + 1, line + match[0].count("\n") + 1))
    return found


def _column(line: str) -> int:
    return len(_indent(line).expandtabs(_TAB_COLUMNS))


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]
