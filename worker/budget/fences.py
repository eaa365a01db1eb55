"""Code fences left open: which line closes them, wherever a text is cut.

An open fence swallows everything that is joined after it. The rules are CommonMark's (version 0.31,
sections 4.5, 5.1 and 5.2): a fence is closed by a run of its own character that is at least as long,
with nothing behind it, in the same quotes and list items; a quote or item that ends closes the
fences in it. HTML blocks and link definitions are not looked at. The scan is linear and goes at most
32 containers deep.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

_BACKTICKS: Final = "```"
_MARKS: Final = (_BACKTICKS, "~~~")
_MAX_CONTAINERS: Final = 32
_CHECKPOINT_LINES: Final = 64
_TAB_COLUMNS: Final = 4
_CODE_INDENT: Final = 4
_MAX_ITEM_PADDING: Final = 4

_LINE: Final = re.compile(r"([^\r\n]*)(\r\n|\r|\n)?")
_OPENING: Final = re.compile(r"( {0,3})(?:(`{3,}+)[^`]*|(~{3,}+).*)$", re.DOTALL)
_QUOTE_MARK: Final = re.compile(r" {0,3}> ?")
_ITEM_MARK: Final = re.compile(r"( {0,3})(?:[-+*]|(\d{1,9})[.)])(?=( *)(.?))")
_HEADING: Final = re.compile(r" {0,3}#{1,6}(?: |$)")
_UNDERLINE: Final = re.compile(r" {0,3}(?:=+|-+) *$")

_QUOTE: Final = 0
"""A container is a quote, or the columns by which a list item's content is indented."""


@dataclass(frozen=True, slots=True)
class _Fence:
    mark: str
    length: int
    closing_line: str


@dataclass(frozen=True, slots=True)
class _State:
    """What the lines so far leave open."""

    containers: tuple[int, ...] = ()
    fence: _Fence | None = None
    in_paragraph: bool = False
    is_bare_item: bool = False
    """The last line was a list mark alone: a blank line next ends the item."""


_NOTHING: Final = _State()
_IN_PARAGRAPH: Final = _State(in_paragraph=True)


def open_fence(text: str) -> str | None:
    """The line that closes the fence which `text` leaves open; None if it leaves none."""
    if _is_one_block(text):
        return None
    return FenceTracker(text).closing_line(len(text))


def may_open_fence(text: str) -> bool:
    """Whether there is anything in the text that fences are made of. Much cheaper than looking for fences."""
    return "`" in text or "~" in text


def _is_one_block(text: str) -> bool:
    """Whether the whole text is one fenced block, as sources quote code: found without reading its lines."""
    if not text.startswith(_BACKTICKS) or not text.endswith(f"\n{_BACKTICKS}"):
        return False
    info_end = text.index("\n")
    closing = len(text) - len(_BACKTICKS)
    return text.find("`", len(_BACKTICKS), info_end) < 0 and text.find(_BACKTICKS, info_end) == closing


def close_open_fence(text: str) -> str:
    """The text, with one more line when it leaves a fence open."""
    if not may_open_fence(text):
        return text
    return text + closing_suffix(text, len(text), open_fence(text))


def closing_suffix(text: str, end: int, closing_line: str | None) -> str:
    """What must follow `text[:end]` so that `closing_line` is a line of its own; "" for None."""
    if closing_line is None:
        return ""
    return closing_line if end and text[end - 1] in "\r\n" else "\n" + closing_line


class FenceTracker:
    """Tells for many prefixes of one text which fence they leave open, reading the text about once."""

    __slots__ = ("_first_mark", "_offsets", "_states", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        found = [position for mark in _MARKS if (position := text.find(mark)) >= 0]
        self._first_mark = min(found, default=len(text))
        self._offsets = [0]
        self._states = [_NOTHING]

    def closing_line(self, end: int) -> str | None:
        """The line that closes the fence which `text[:end]` leaves open; None if it leaves none.

        Cost: the part of the text not yet read, or a few dozen lines of what was.
        """
        if end <= self._first_mark:
            return None
        known = bisect_right(self._offsets, end) - 1
        state = self._read(self._offsets[known], end, self._states[known])
        return state.fence.closing_line if state.fence else None

    def _read(self, position: int, end: int, state: _State) -> _State:
        text = self._text
        lines = 0
        while position < end:
            if state.fence and not state.containers:
                # Nothing but a line with its own mark closes it: no need to look at the others.
                position = _line_start(text, position, text.find(state.fence.mark * 3, position, end))
                if position < 0:
                    break
            if lines % _CHECKPOINT_LINES == 0 and position > self._offsets[-1]:
                self._offsets.append(position)
                self._states.append(state)
            line = _LINE.match(text, position, end)
            if line is None:  # the pattern matches the empty string, so this is for the type checker
                break
            state = _after_line(state, line[1])
            position = line.end()
            lines += 1
        return state


def _line_start(text: str, low: int, found: int) -> int:
    if found < 0:
        return -1
    return max(low, text.rfind("\n", low, found) + 1, text.rfind("\r", low, found) + 1)


def _after_line(state: _State, line: str) -> _State:
    if "\t" in line:
        line = line.expandtabs(_TAB_COLUMNS)
    if not state.containers and not state.fence and (not line or line[0].isalpha()):
        return _IN_PARAGRAPH if line else _NOTHING  # most lines of prose
    depth, rest = _enter(state.containers, line)
    if state.fence:
        if depth == len(state.containers):
            return _State(state.containers) if _closes(rest, state.fence) else state
        state = _State(state.containers)
    return _after_content(state, depth, rest)


def _enter(containers: tuple[int, ...], line: str) -> tuple[int, str]:
    """How many of the open containers the line continues, and what of it is inside them."""
    is_blank = not line.strip(" ")
    for depth, container in enumerate(containers):
        if container == _QUOTE:
            mark = _QUOTE_MARK.match(line)
            if mark is None:
                return depth, line
            line = line[mark.end() :]
        elif is_blank or line.startswith(" " * container):
            line = line[container:]
        else:
            return depth, line
        is_blank = is_blank or not line.strip(" ")
    return len(containers), line


def _closes(rest: str, fence: _Fence) -> bool:
    run = rest.strip(" ")
    indent = len(rest) - len(rest.lstrip(" "))
    return indent < _CODE_INDENT and len(run) >= fence.length and run == fence.mark * len(run)


def _after_content(state: _State, depth: int, rest: str) -> _State:
    may_interrupt = not (state.in_paragraph and depth == len(state.containers))
    is_blank = not rest.strip(" ")
    containers = state.containers[: depth - 1 if is_blank and state.is_bare_item else depth]
    while len(containers) < _MAX_CONTAINERS:
        container, width = _opened_container(rest, may_interrupt=may_interrupt)
        if width == 0:
            break
        containers = (*containers, container)
        rest = rest[width:]
        may_interrupt = True
    if opening := _OPENING.match(rest):
        return _State(containers, _fence(containers, opening))
    if not may_interrupt and _UNDERLINE.match(rest):
        return _State(containers)  # the paragraph was a heading
    if not rest.strip(" "):
        return _State(containers, is_bare_item=not is_blank and containers[-1:] != (_QUOTE,))
    is_text = not _HEADING.match(rest) and not _is_rule(rest)
    if is_text and state.in_paragraph and containers == state.containers[:depth]:
        return state  # a paragraph goes on, lazily even outside of its containers
    is_code = rest.startswith(" " * _CODE_INDENT)
    return _State(containers, in_paragraph=is_text and not is_code)


def _opened_container(rest: str, *, may_interrupt: bool) -> tuple[int, int]:
    """The container that the line opens, and how much of the line its mark takes: 0 if it opens none."""
    if quote := _QUOTE_MARK.match(rest):
        return _QUOTE, quote.end()
    item = _ITEM_MARK.match(rest)
    if item is None or _is_rule(rest):
        return 0, 0
    number, padding, content = item[2], len(item[3]), item[4]
    if content and padding == 0:
        return 0, 0
    # Inside a paragraph only a list that begins, with 1 and with content, is one.
    if not may_interrupt and (not content or (number is not None and int(number) != 1)):
        return 0, 0
    if not content or padding > _MAX_ITEM_PADDING:
        padding = 1
    width = item.end() + padding
    return width, width


def _is_rule(rest: str) -> bool:
    """A thematic break: three or more of one mark and spaces, nothing else."""
    marks = rest.strip(" ")[:1]
    bare = rest.replace(" ", "")
    return marks in {"-", "*", "_"} and len(bare) >= len("---") and bare == marks * len(bare)


def _fence(containers: tuple[int, ...], opening: re.Match[str]) -> _Fence:
    run = opening[2] or opening[3]
    # The opening's own indent once more: right as well where an item was taken for its surroundings.
    prefix = "".join("> " if container == _QUOTE else " " * container for container in containers)
    return _Fence(run[0], len(run), prefix + opening[1] + run)
