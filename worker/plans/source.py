"""A file's lines as a reader of plans sees them: what stands in closed fences and comments is taken out.

Fences are found line by line and not in the Markdown tree: a fence in a hand-edited list often closes at
another depth than it opened, and the tree would then begin a second one that swallows what follows.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from worker.code.documents.markdown import Block, Markdown, clean, parse_markdown
from worker.code.documents.text_yaml import load_front_matter
from worker.plans.results import PlanNote

_OPENING: Final = re.compile(
    r"[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?(?P<run>`{3,}(?=[^`]*\Z)|~{3,})(?P<info>.*)\Z"
)
_CLOSING: Final = re.compile(r"\s*(?P<run>`{3,}|~{3,})\s*\Z")
# A code span may hold a comment's opening; it is then text. Short, since a span is searched for at each tick.
_SPAN_OR_COMMENT: Final = re.compile(
    r"(?<!`)(?P<ticks>`{1,3})(?!`)[^`\n]{1,300}(?P=ticks)(?!`)|(?P<comment><!--)"
)
_ITEM_OR_QUOTE: Final = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s|\s*>")
_UNDERLINE: Final = re.compile(r" {0,3}(?:=+|-+)\s*\Z")
_ABOVE_UNDERLINE: Final = 2
"""Of two lines above an underline the title is not made: the tree sees a paragraph with a rule below."""
_NO_FRONT_MATTER: Final = re.compile(r"\s*[-*+]\s+\[.\]\s|#{2,6}\s")
_OPEN_QUESTION: Final = re.compile(r"\[NEEDS CLARIFICATION[:：]?\s*(?P<question>[^\]\n]{0,300})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A closed fence: its first and last line, counted from 1, its info string and what stands inside."""

    start: int
    end: int
    info: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file's text, read once."""

    text: str
    """Cleaned: line ends are line feeds, without byte order mark, NUL and lone surrogates."""
    lines: Sequence[str]
    visible: Sequence[str]
    """The same lines; those in fences, comments and front matter are blank."""
    fences: Sequence[Fence]
    front: Mapping[str, object]
    """The front matter's fields."""
    notes: tuple[PlanNote, ...]

    def parse(self) -> Markdown:
        """The blocks of the visible text: all of them, so that it costs more than all else here."""
        return parse_markdown("\n".join(_without_rule(self.visible)))

    def headings_and_rows(self) -> Iterator[Block]:
        """The headings and table rows. Lists and paragraphs, most of a plan, stay out of the tree."""
        tree = parse_markdown("\n".join(_without_rule(_headings_and_tables(self.visible))))
        return (block for block in tree.blocks if block.kind in {"heading", "row"} and not block.is_quoted)


def read_source(text: str) -> Source:
    """The text with what hides tasks told apart. O(n)."""
    text = clean(text)
    lines = text.split("\n")
    front_lines = _front_matter_lines(lines)
    notes: list[PlanNote] = []
    visible, fences = _mask(lines, front_lines, notes)
    for number, line in enumerate(visible, start=1):
        if "[NEEDS CLARIFICATION" in line:
            notes += (
                PlanNote(kind="open_question", line=number, text=match["question"].strip())
                for match in _OPEN_QUESTION.finditer(line)
            )
    front = "\n".join(lines[1 : front_lines - 1])
    return Source(
        text=text,
        lines=lines,
        visible=visible,
        fences=fences,
        front=load_front_matter(front) if front_lines else {},
        notes=tuple(notes),
    )


def _without_rule(lines: Sequence[str]) -> Sequence[str]:
    """The lines; a rule on the first one would be read as the beginning of front matter once more."""
    return ("", *lines[1:]) if lines[0].rstrip() == "---" else lines


def _headings_and_tables(lines: Sequence[str]) -> list[str]:
    """The lines that may belong to a heading or a table, the others blank."""
    kept = [""] * len(lines)
    for number, line in enumerate(lines):
        if "|" in line and not _ITEM_OR_QUOTE.match(line):
            # A table in a list is indented, and a code block without the list around it.
            kept[number] = line.strip()
        elif line.lstrip(" ").startswith("#"):
            kept[number] = line
        elif _UNDERLINE.match(line):
            first = max(number - _ABOVE_UNDERLINE, 0)
            kept[first : number + 1] = lines[first : number + 1]
    return kept


def _front_matter_lines(lines: Sequence[str]) -> int:
    if lines[0].rstrip() != "---":
        return 0
    ends = (number for number, line in enumerate(lines[1:], start=2) if line.rstrip() in {"---", "..."})
    end = next(ends, 0)
    # Two rules around a part of the plan are no front matter.
    return 0 if any(_NO_FRONT_MATTER.match(line) for line in lines[1:end]) else end


def _mask(lines: Sequence[str], front_lines: int, notes: list[PlanNote]) -> tuple[list[str], list[Fence]]:
    visible = ["" if number < front_lines else line for number, line in enumerate(lines)]
    fences: list[Fence] = []
    closings = {mark: _Closings(lines, mark) for mark in ("`", "~")}
    comment_ends = [number for number, line in enumerate(lines) if "-->" in line]
    number = front_lines
    while number < len(visible):
        opening = (
            _OPENING.match(visible[number]) if "```" in visible[number] or "~~~" in visible[number] else None
        )
        if opening is None:
            number = _mask_comments(visible, number, comment_ends)
            continue
        end = closings[opening["run"][0]].after(number, len(opening["run"]))
        if end is None:
            notes.append(PlanNote(kind="open_fence", line=number + 1, text=opening["run"][:20]))
            visible[number] = ""
            number += 1
            continue
        fences.append(
            Fence(
                start=number + 1,
                end=end + 1,
                info=opening["info"].strip(),
                body="\n".join(lines[number + 1 : end]),
            )
        )
        visible[number : end + 1] = [""] * (end + 1 - number)
        number = end + 1
    return visible, fences


class _Closings:
    """The lines that may close a fence of one character, and the longest run from each of them on."""

    def __init__(self, lines: Sequence[str], mark: str) -> None:
        runs = ((number, _CLOSING.match(line)) for number, line in enumerate(lines) if mark * 3 in line)
        found = [(number, len(run["run"])) for number, run in runs if run and run["run"][0] == mark]
        self._places = [number for number, _ in found]
        self._lengths = [length for _, length in found]
        self._longest = [0] * (len(found) + 1)
        for place in range(len(found) - 1, -1, -1):
            self._longest[place] = max(self._lengths[place], self._longest[place + 1])

    def after(self, number: int, length: int) -> int | None:
        """The first line after `number` with a run at least as long. What it passes is not seen again."""
        place = bisect_left(self._places, number + 1)
        if self._longest[place] < length:
            return None
        while self._lengths[place] < length:
            place += 1
        return self._places[place]


def _mask_comments(visible: list[str], number: int, comment_ends: Sequence[int]) -> int:
    """Take the comments out of a line, which may end further down. The line to go on with."""
    line = visible[number]
    if "<!--" not in line:
        return number + 1
    kept: list[str] = []
    position = 0
    while (start := _comment_start(line, position)) >= 0:
        end = line.find("-->", start)
        if end >= 0:
            kept.append(line[position:start])
            position = end + 3
            continue
        place = bisect_left(comment_ends, number + 1)
        if place == len(comment_ends):
            # Open to the end of the file: it hides nothing.
            break
        visible[number] = "".join((*kept, line[position:start]))
        last = comment_ends[place]
        visible[number + 1 : last] = [""] * (last - number - 1)
        visible[last] = visible[last].split("-->", 1)[1]
        return last
    visible[number] = "".join((*kept, line[position:]))
    return number + 1


def _comment_start(line: str, position: int) -> int:
    starts = (match.start() for match in _SPAN_OR_COMMENT.finditer(line, position) if match["comment"])
    return next(starts, -1)
