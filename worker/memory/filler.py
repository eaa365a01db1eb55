"""Lines that a reader does not miss: repetitions, the middles of stack traces and of long code blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from worker.memory.sentences import is_fenced, is_frame, pieces_of

_PYTHON_FRAME: Final = re.compile(r'(\s*)File "[^"\n]*", line \d+')
_COUNT: Final = re.compile(r"… \d+ more (?:repetition|frame|line)s?")
_LEAST_REPEATS: Final = 3
_FRAMES_HEAD, _FRAMES_TAIL = 2, 2
_CODE_HEAD, _CODE_TAIL = 6, 4

Run = Sequence[int]
"""Where each line, or each frame with its source, of a stretch that may give up its middle begins."""


def without_repetitions(text: str) -> str:
    """Of each run of at least three equal lines, or of two lines that alternate, the first and a count."""
    lines = text.splitlines(keepends=True)
    kept: list[str] = []
    at = 0
    while at < len(lines):
        period, times = _repetition(lines, at)
        end = at + period * times
        marker = _marker(lines[at], times - 1, "repetition")
        if times < _LEAST_REPEATS or _size(lines[at + period : end]) <= len(marker):
            kept.append(lines[at])
            at += 1
            continue
        kept += lines[at : at + period]
        if any(line.strip() for line in lines[at : at + period]):
            kept.append(marker)
        at = end
    return _joined(lines, kept)


def without_frame_middles(text: str) -> str:
    """Of each stack trace the first two frames, the last two, and how many stood between."""
    return _without_middles(text, _frame_runs, _FRAMES_HEAD, _FRAMES_TAIL, "frame")


def without_code_middles(text: str) -> str:
    """Of each long fenced block the first six lines, the last four, and how many stood between."""
    if "```" not in text and "~~~" not in text:
        return text
    return _without_middles(text, _code_runs, _CODE_HEAD, _CODE_TAIL, "line")


def is_count(line: str) -> bool:
    """Whether the line is what these functions write in place of others."""
    return _COUNT.fullmatch(line.strip()) is not None


def _repetition(lines: Sequence[str], at: int) -> tuple[int, int]:
    """The shortest period (one or two lines) that repeats from here on, and how many times it stands."""
    for period in (1, 2):
        end = at + period
        while end < len(lines) and lines[end].strip() == lines[end - period].strip():
            end += 1
        times = (end - at) // period
        if times >= _LEAST_REPEATS:
            return period, times
    return 1, 1


def _without_middles(
    text: str, runs_of: Callable[[str, Sequence[str]], Iterator[Run]], head: int, tail: int, unit: str
) -> str:
    lines = text.splitlines(keepends=True)
    kept: list[str] = []
    done = 0
    for run in runs_of(text, lines):
        if len(run) <= head + tail:
            continue
        first, last = run[head], run[-tail]
        marker = _marker(lines[first], len(run) - head - tail, unit)
        if _size(lines[first:last]) > len(marker):
            kept += [*lines[done:first], marker]
            done = last
    return _joined(lines, kept + lines[done:])


def _frame_runs(text: str, lines: Sequence[str]) -> Iterator[Run]:
    del text
    at = 0
    while at < len(lines):
        units: list[int] = []
        end = at
        while end < len(lines) and is_frame(lines[end]):
            units.append(end)
            end = _after_frame(lines, end)
        if units:
            yield units
        at = max(end, at + 1)


def _after_frame(lines: Sequence[str], at: int) -> int:
    """The line behind a frame: Python shows its source, and marks in it, further to the right."""
    python = _PYTHON_FRAME.match(lines[at])
    end = at + 1
    if python is None:
        return end
    deeper = python[1] + "  "
    while end < len(lines) and lines[end].startswith(deeper) and not is_frame(lines[end]):
        end += 1
    return end


def _code_runs(text: str, lines: Sequence[str]) -> Iterator[Run]:
    position = at = 0
    for piece in pieces_of(text):
        if not (piece.is_block and is_fenced(text, piece)):
            continue
        while position < piece.start:
            position += len(lines[at])
            at += 1
        start = at
        while position < piece.end:
            position += len(lines[at])
            at += 1
        # The fences stay, whatever is between them.
        yield range(start + 1, at - 1)


def _size(lines: Sequence[str]) -> int:
    return sum(map(len, lines))


def _marker(line: str, count: int, unit: str) -> str:
    indent = line[: len(line) - len(line.lstrip())].rstrip("\r\n")
    return f"{indent}… {count} more {unit}{'' if count == 1 else 's'}\n"


def _joined(lines: Sequence[str], kept: Sequence[str]) -> str:
    text = "".join(kept)
    # A marker in place of the last line must not add a line end that was not there.
    is_open = bool(lines) and lines[-1].splitlines()[0] == lines[-1]
    return text.removesuffix("\n") if is_open and text.endswith("\n") else text
