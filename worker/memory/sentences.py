"""A text as pieces that may be left out one by one: sentences; fenced blocks and stack traces whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from worker.budget.boundaries import sentence_ends

_FENCE: Final = re.compile(r" {0,3}(?:[-*+>] {0,3})?(`{3,}|~{3,})")
# In ASCII every position is the end of a grapheme, so a plain pattern finds what `sentence_ends` finds.
_ASCII_END: Final = re.compile(r"[.!?][\"')\]*_`]{0,4}(?=\s)")
_FRAME: Final = re.compile(
    r"\s*(?:"
    r'File "[^"\n]*", line \d+'  # Python
    r"|(?<=\s)at \S[^\n]*[(:]\S*\d+\)?\s*$"  # Java, JavaScript, C#
    r"|(?<=\s)at \S+\([^()\n]*\)\s*$"  # Java without lines
    r"|\S+\.go:\d+"  # Go
    r"|\d+: +0x[0-9a-f]+ - "  # Rust
    r"|from \S+:\d+:in "  # Ruby
    r"|#\d+ +(?:0x[0-9a-f]+ in |\S+\(\d+\): )"  # C, PHP
    r")"
)
_FRAME_GOES_ON: Final = re.compile(r"    \s*\S|\s*… \d")
_STARTS_SMALL: Final = re.compile(r"\s*[a-z]")


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a text, with the white space around it."""

    start: int
    end: int
    is_block: bool
    """Whether it is a fenced block, fences included, or the frames of a stack trace."""


def pieces_of(text: str) -> Iterator[Piece]:
    """Stretches that cover the text without a gap, in order. No grapheme reaches over their ends. O(length).

    A line ends a sentence. So does a full stop, a question or exclamation mark, unless a small letter follows
    ("e.g. this"). White space behind a sentence belongs to the next one of its line.
    """
    position = block_start = 0
    fence = ""
    in_trace = False
    for line in text.splitlines(keepends=True):
        end = position + len(line)
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line[mark.end() :].strip():
                yield Piece(block_start, end, is_block=True)
                fence = ""
            position = end
            continue
        if is_frame(line) or (in_trace and _FRAME_GOES_ON.match(line)):
            block_start = block_start if in_trace else position
            in_trace = True
            position = end
            continue
        if in_trace:
            yield Piece(block_start, position, is_block=True)
            in_trace = False
        if mark and not (mark[1][0] == "`" and "`" in line[mark.end() :]):
            fence, block_start = mark[1], position
        else:
            yield from _sentences(text, position, end)
        position = end
    if fence or in_trace:
        yield Piece(block_start, len(text), is_block=True)


def is_frame(line: str) -> bool:
    """Whether the line is a frame of a stack trace of Python, Java, JavaScript, Go, Rust, Ruby, PHP or C."""
    return _FRAME.match(line) is not None


def is_fenced(text: str, piece: Piece) -> bool:
    """Whether the block is a fenced one."""
    return _FENCE.match(text, piece.start) is not None


def _sentences(text: str, start: int, end: int) -> Iterator[Piece]:
    line = text[start:end]
    # The white space at the end of the line is no sentence of its own.
    high = len(line.rstrip())
    last = 0
    for stop in _ends(line):
        if last < stop < high and not _STARTS_SMALL.match(line, stop):
            yield Piece(start + last, start + stop, is_block=False)
            last = stop
    yield Piece(start + last, end, is_block=False)


def _ends(line: str) -> list[int]:
    if line.isascii():
        return [found.end() for found in _ASCII_END.finditer(line)]
    return sorted(sentence_ends(line, len(line)))
