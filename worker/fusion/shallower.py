"""Shallower renderings of code, read off its text: without docstring, skeleton, signature.

By lines and brackets, not by a parser: half-written code and other languages than Python have to do as well,
and it takes microseconds. What cannot be read so has no shallower rendering.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from worker.ports import Rendering

CODE_DEPTH: Final = 7
"""The whole code without its docstring."""
SKELETON_DEPTH: Final = 5
"""The heads of a class and of what is defined in it, each with the first line of its docstring."""
DOCUMENTED_DEPTH: Final = 4
"""The head with the first line of the docstring."""
SIGNATURE_DEPTH: Final = 3

_MAX_HEAD_LINES: Final = 24
_REST: Final = "…"
"""Stands for what is left out."""

_FENCED: Final = re.compile(
    r"(?P<above>(?:[^`]*\n)?)(?P<fence>`{3,})(?P<info>[^`\n]*)\n(?P<code>.*)\n(?P=fence)", re.DOTALL
)
_DEFINITION: Final = re.compile(r"(?P<indent>\s*)(?:async\s+def|def|class)\s")
_DOCSTRING: Final = re.compile(r"\s*[rRuU]?(?P<quotes>\"\"\"|''')")
_COMMENT: Final = re.compile(r"\s#")


def is_fenced_code(text: str) -> bool:
    """Whether the text is code in one fence, with nothing below it."""
    return text.endswith("```") and _FENCED.fullmatch(text) is not None


def shallower_code(deepest: Rendering) -> list[Rendering]:
    """Renderings of the fenced code below the deepest one, each shorter than the one before. O(length)."""
    found = _FENCED.fullmatch(deepest.text)
    if found is None:
        return []
    lines = found["code"].split("\n")
    head = _read_head(lines, 0)
    if head is None:
        return []
    above, fence = found["above"], found["fence"]
    shown: list[Rendering] = []
    for depth, kept in _renderings(lines, head):
        code = "\n".join(kept)
        text = f"{above}{fence}{found['info']}\n{code}\n{fence}"
        if depth < deepest.depth and len(text) < len((shown[-1] if shown else deepest).text):
            shown.append(Rendering(depth=depth, text=text))
    return shown


@dataclass(frozen=True, slots=True)
class _Head:
    """A definition's own lines, and those of its docstring, as ranges of line numbers."""

    start: int
    end: int
    doc_end: int
    """Where the docstring ends; `end` where there is none."""
    indent: str
    is_python: bool


def _renderings(lines: Sequence[str], head: _Head) -> Iterator[tuple[int, list[str]]]:
    own, summary = list(lines[head.start : head.end]), _summary(lines, head)
    body = lines[head.doc_end :]
    if summary and any(line.strip() for line in body):
        yield CODE_DEPTH, [*lines[: head.end], *body]
    skeleton = list(_skeleton(lines, head)) if head.is_python else []
    if skeleton:
        yield SKELETON_DEPTH, [*own, *summary, *skeleton]
    rest = [f"{head.indent}    {_REST}"]
    if summary:
        yield DOCUMENTED_DEPTH, [*own, *summary, *rest]
    yield SIGNATURE_DEPTH, [*own, *rest]


def _skeleton(lines: Sequence[str], outer: _Head) -> Iterator[str]:
    """Heads of the definitions one step further in, as they come; those within functions are left out."""
    number, level = outer.doc_end, ""
    while number < len(lines):
        line = lines[number]
        # Most lines are none: they are not read for one.
        head = _read_definition(lines, number) if "def" in line or "class" in line else None
        if head is None or not head.indent.startswith(outer.indent) or head.indent == outer.indent:
            number += 1
            continue
        level = level or head.indent
        if head.indent == level:
            yield from lines[head.start : head.end]
            yield from _summary(lines, head)
        number = head.doc_end


def _summary(lines: Sequence[str], head: _Head) -> list[str]:
    """The docstring's first line, closed; none where there is no docstring."""
    if head.doc_end == head.end:
        return []
    first = next(line for line in lines[head.end :] if line.strip())
    match = _DOCSTRING.match(first)
    quotes = match["quotes"] if match is not None else ""
    text = first.rstrip()
    closed = text.count(quotes) > 1
    if not closed and text.endswith(quotes):
        # The text begins on the next line.
        number = next(n for n in range(head.end, head.doc_end) if lines[n].strip())
        following = lines[number + 1].strip() if number + 1 < head.doc_end else ""
        text += following.removesuffix(quotes).rstrip()
    return [text if closed else text + quotes]


def _read_head(lines: Sequence[str], start: int) -> _Head | None:
    """The head of what the code defines: of Python a definition, else all up to the first open brace."""
    for number in range(start, min(len(lines), start + _MAX_HEAD_LINES)):
        line = lines[number].strip()
        if line.startswith(("@", "#", "//", "/*", "*")) or not line:
            continue
        if _DEFINITION.match(lines[number]):
            head = _read_definition(lines, number)
            return None if head is None else _Head(start, head.end, head.doc_end, head.indent, is_python=True)
        return _read_braced(lines, start, number)
    return None


def _read_definition(lines: Sequence[str], number: int) -> _Head | None:
    """The Python definition whose keyword stands in this line; None where there is none, or it has no end."""
    match = _DEFINITION.match(lines[number])
    if match is None:
        return None
    depth = 0
    for end in range(number, min(len(lines), number + _MAX_HEAD_LINES)):
        line = _without_comment(lines[end])
        depth += sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
        if depth <= 0 and line.endswith(":"):
            doc_end = _docstring_end(lines, end + 1)
            return _Head(number, end + 1, doc_end, match["indent"], is_python=True)
    return None


def _without_comment(line: str) -> str:
    """The line up to the comment behind its last quote, if there is one, without blanks at its end."""
    comment = _COMMENT.search(line, 1 + max(line.rfind("'"), line.rfind('"')))
    return (line if comment is None else line[: comment.start()]).rstrip()


def _docstring_end(lines: Sequence[str], start: int) -> int:
    """Where the docstring ends that the body begins with; `start` where it begins with none."""
    number = next((n for n in range(start, len(lines)) if lines[n].strip()), len(lines))
    match = _DOCSTRING.match(lines[number]) if number < len(lines) else None
    if match is None:
        return start
    quotes = match["quotes"]
    if quotes in lines[number][match.end() :]:
        return number + 1
    return next((n + 1 for n in range(number + 1, len(lines)) if quotes in lines[n]), start)


def _read_braced(lines: Sequence[str], start: int, number: int) -> _Head | None:
    indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
    for end in range(number, min(len(lines), number + _MAX_HEAD_LINES)):
        if lines[end].rstrip().endswith("{"):
            return _Head(start, end + 1, end + 1, indent, is_python=False)
    return None
