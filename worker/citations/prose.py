"""What of an answer is prose, where ids count: without fenced code, and without addresses.

What stands in a fenced code block is code, and what stands in an address is an address: neither is a
citation, nor an invented one. Inline code is prose, since models set ids in it. A block that is labelled as
Markdown or JSON and holds headings or keys of the template is the answer, or a part of it; one that is never
closed ends at the template's first heading below it. JSON that is the answer, alone or in one fence, or that
has keys of the template, is read string by string, keys included; each key is a heading of what stands below
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from json import JSONDecoder
from typing import Any, Final, cast

from pydantic_core import from_json

from worker.citations.sections import first_heading, has_key

_FENCE: Final = re.compile(r"\n[ \t>]*+(`{3,}+|~{3,}+)([^`\n]*+)(?=\n|\Z)")
_ANSWERS: Final = frozenset({"json", "markdown", "md"})
"""Labels of blocks that may be the answer."""
_MOST_MARKS: Final = 8
"""Of a fence, that are told apart: what closes none of so many lengths is looked for so many times."""
_IN_ADDRESS: Final = r"[^\s<>\"'`|\\()\[\]{}]"
_ADDRESS: Final = re.compile(rf"://(?:{_IN_ADDRESS}++|\({_IN_ADDRESS}*+\)|\[{_IN_ADDRESS}*+\])*+")
"""Up to a blank, a quotation mark, or a bracket that was not opened in it."""
_JSON_FENCE: Final = re.compile(r"\s*```(?i:json)?[ \t]*\n(.*)\n[ \t]*```\s*\Z", re.DOTALL)
_OBJECT: Final = re.compile(r'\{(?=\s*+")')
_MOST_BROKEN: Final = 8
"""Of what begins like an object and is none, that are read: each may go on to the end."""
_DECODER: Final = JSONDecoder()
_MOST_LEVELS: Final = 6
_NOTHING: Final = "none"


def prose_of(content: str) -> str:
    """The text in which ids are looked for. O(length)."""
    parsed = _parsed(content)
    text = _prose(content) if parsed is None else "\n".join(_spelled_out(parsed))
    return _ADDRESS.sub(" ", text) if "://" in text else text


def _parsed(content: str) -> dict[str, Any] | list[Any] | None:
    """The JSON that the answer is; None where it is none, or nests deeper than 200 levels."""
    fenced = _JSON_FENCE.match(content) if content.rstrip().endswith("```") else None
    text = (fenced[1] if fenced is not None else content).strip()
    if not text.startswith(("{", "[")):
        return None
    try:
        parsed: object = from_json(text)
    except ValueError:
        return None
    return cast("dict[str, Any] | list[Any]", parsed) if isinstance(parsed, (dict, list)) else None


def _spelled_out(value: object) -> Iterator[str]:
    """The lines of a JSON value; each for itself, since a block that one does not close ends with it."""
    return (_prose(line) if _has_fence(line) else line for line in _lines(value))


def _lines(value: object) -> Iterator[str]:
    """Every string in a JSON value, in its order; a key as a heading, as deep as it lies.

    What holds nothing, by an empty list or object or by null, says so as prose does.
    """
    waiting: list[tuple[int, object]] = [(1, value)]
    while waiting:
        level, held = waiting.pop()
        if isinstance(held, str):
            yield held
        elif isinstance(held, dict) and held:
            fields = cast("dict[str, object]", held)
            mark = "#" * min(level, _MOST_LEVELS)
            for key, below in reversed(fields.items()):
                waiting += ((level + 1, below), (level, f"{mark} {key}"))
        elif isinstance(held, list) and held:
            waiting += [(level, item) for item in reversed(cast("list[object]", held))]
        elif held is None or held in ({}, []):
            yield _NOTHING


def _prose(text: str) -> str:
    """The text without code, with the objects in it that have keys of the template spelled out."""
    if _has_fence(text):
        text = "\n".join(_Blocks(text).outside())
    return "\n".join(_with_objects(text)) if "{" in text and has_key(text) else text


def _with_objects(text: str) -> Iterator[str]:
    start = at = broken = 0
    while broken < _MOST_BROKEN and (brace := _OBJECT.search(text, at)) is not None:
        try:
            _, at = _DECODER.raw_decode(text, brace.start())
        except (ValueError, RecursionError):
            broken, at = broken + 1, brace.end()
            continue
        # What says where it ends takes halves of characters for whole ones, and nests deeper.
        parsed = _parsed(text[brace.start() : at]) if has_key(text, brace.start(), at) else None
        if parsed is not None:
            yield text[start : brace.start()]
            yield from _spelled_out(parsed)
            start = at
    yield text[start:]


def _has_fence(text: str) -> bool:
    # A single character is found the fastest, and most answers have no tilde.
    return "```" in text or ("~" in text and "~~~" in text)


class _Blocks:
    """The fenced blocks of one text."""

    def __init__(self, text: str) -> None:
        # A line is known by the break before it, which the first one has not: a literal is found the fastest.
        self._text = "\n" + text
        self._never_closed: set[str] = set()

    def outside(self) -> list[str]:
        """What stands in none, or in one that is the answer. O(length)."""
        parts, _ = self._outside(0, within="")
        return [part[1:] for part in parts]

    def _outside(self, start: int, *, within: str) -> tuple[list[str], int]:
        """The parts from there to the fence that closes a block by this mark, and where that ends.

        Each begins with a line break. Without a mark, or where none closes the block, up to the end.
        """
        parts: list[str] = []
        while (fence := _FENCE.search(self._text, start)) is not None:
            parts.append(self._text[start : fence.start()])
            if within and fence[1].startswith(within) and not fence[2].strip():
                return parts, fence.end()
            if fence[2].strip().lower() in _ANSWERS and not within:
                held, start = self._outside(fence.end(), within=fence[1])
                if any(has_key(part) or first_heading(part) is not None for part in held):
                    parts += held
            else:
                start = self._end_of(fence)
        parts.append(self._text[start:])
        return parts, len(self._text)

    def _end_of(self, opening: re.Match[str]) -> int:
        """Where the block of code ends that is opened so."""
        mark = opening[1][:_MOST_MARKS]
        if not any(map(mark.startswith, self._never_closed)):
            closing = _closing(mark).search(self._text, opening.end())
            if closing is not None:
                return closing.end()
            self._never_closed.add(mark)
        heading = first_heading(self._text, opening.end())
        return len(self._text) if heading is None else heading


@lru_cache(maxsize=2 * _MOST_MARKS)
def _closing(mark: str) -> re.Pattern[str]:
    return re.compile(rf"\n[ \t>]*+{mark}{mark[0]}*+[^\S\n]*+(?=\n|\Z)")
