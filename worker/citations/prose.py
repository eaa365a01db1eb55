"""What of an answer is prose, where ids count: without fenced code, and without addresses.

What stands in a fenced code block is code, and what stands in an address is an address: neither is a
citation, nor an invented one. Inline code is prose, since models set ids in it. An answer that is JSON, alone
or in one fence, is read string by string, keys included; each key is a heading of what stands below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, cast

from pydantic_core import from_json

_FENCE_LINE: Final = re.compile(r"\n[ \t>]*+(`{3,}+|~{3,}+)([^\n]*+)")
_IN_ADDRESS: Final = r"[^\s<>\"'`|\\()\[\]{}]"
_ADDRESS: Final = re.compile(rf"://(?:{_IN_ADDRESS}++|\({_IN_ADDRESS}*+\)|\[{_IN_ADDRESS}*+\])*+")
"""Up to a blank, a quotation mark, or a bracket that was not opened in it."""
_JSON_FENCE: Final = re.compile(r"\s*```(?:json)?[ \t]*\n(.*)\n[ \t]*```\s*\Z", re.DOTALL)
_MOST_LEVELS: Final = 6
_NOTHING: Final = "none"


def prose_of(content: str) -> str:
    """The text in which ids are looked for. O(length)."""
    parsed = _parsed(content)
    if parsed is None:
        text = _without_code(content)
    elif _has_fence(content):
        # Each for itself: a block that one string does not close ends with it.
        text = "\n".join([_without_code(line) for line in _lines(parsed)])
    else:
        text = "\n".join(_lines(parsed))
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


def _has_fence(text: str) -> bool:
    # A single character is found the fastest, and most answers have no tilde.
    return "```" in text or ("~" in text and "~~~" in text)


def _without_code(text: str) -> str:
    if not _has_fence(text):
        return text
    return "\n".join([text[start:end] for start, end in _outside_fences(text)])


def _outside_fences(text: str) -> Iterator[tuple[int, int]]:
    """Where the lines outside fenced blocks lie; a block that is never closed goes on to the end."""
    opened, start = "", 0
    # A line is known by the break before it, which the first one has not: a literal is found the fastest.
    for found in _FENCE_LINE.finditer("\n" + text):
        line, end = found.start(), found.end() - 1
        mark, after = found[1], found[2]
        if not opened and "`" not in after:
            opened = mark
            yield start, max(start, line - 1)
        elif opened and mark.startswith(opened) and not after.strip():
            opened, start = "", min(end + 1, len(text))
    if not opened:
        yield start, len(text)
