"""A source as one flat list of entries: headings, items with their marks, table rows, fences, lines of text.

An item's depth comes from its indentation alone, whatever Markdown makes of it: four blanks in front of a
bullet below a heading are a code block there, and a task for everyone who writes plans.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from worker.code.documents.markdown import Block
from worker.plans.source import Fence, Source

EntryKind = Literal["heading", "item", "row", "fence", "text"]

TAB_COLUMNS: Final = 4
MAX_TEXT_CHARS: Final = 20_000
"""Of a longer line the rest is not read: nobody's task, and every pattern would have to cross it."""

_ITEM: Final = re.compile(r"(?P<indent>\s*)(?:[-*+•]|(?P<number>\d{1,9})[.)])(?=\s|\Z)\s*(?P<rest>.*)\Z")
_BOX: Final = re.compile(r"`?\[(?P<mark>[^\[\]\w]{0,3}|[\w])\]`?(?P<star>\*(?!\*))?(?:\s+|\Z)(?P<rest>.*)\Z")
_LETTER_MARKS: Final = frozenset("xXvхХ")
_INDENT: Final = re.compile(r"\s*")
_TAG: Final = re.compile(r"</?[A-Za-z][\w-]*(?:\s[^<>]*)?/?>\Z")
_LABEL_START: Final = re.compile(r"[*_]{2}[^*_\n]{1,60}[*_]{2}|_[A-Z]\w*:|#{1,6}\s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line, or one fence, of a plan."""

    kind: EntryKind
    line: int
    text: str
    """Without heading marks, bullet and box."""
    level: int = 0
    """Of a heading."""
    indent: int = 0
    """In columns."""
    number: str = ""
    """Of an ordered item, as printed."""
    mark: str | None = None
    """What stands in an item's box; None where it has none."""
    is_starred: bool = False
    is_after_blank: bool = False
    parent: int | None = None
    """Place of the item that it stands below."""
    section: int | None = None
    """Place of the heading that it stands below; of a heading the one above it."""
    block: Block | None = None
    """Of a row."""
    fence: Fence | None = None


@dataclass(frozen=True, slots=True)
class Outline:
    """The entries in document order."""

    source: Source
    entries: Sequence[Entry]
    end: Sequence[int]
    """Of each entry the place after the last one that stands below it, of a heading its whole section."""

    def headings_above(self, place: int) -> Iterator[int]:
        """The headings that an entry stands below, the nearest first."""
        above = self.entries[place].section
        while above is not None:
            yield above
            above = self.entries[above].section

    def below(self, place: int) -> range:
        """Everything below an item or a heading."""
        return range(place + 1, self.end[place])


def read_outline(source: Source) -> Outline:
    """The entries of a source. O(n) but for a factor of the nesting of items."""
    return _Reader(source).read()


class _Reader:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._entries: list[Entry] = []
        self._headings: list[int] = []
        self._items: list[int] = []

    def read(self) -> Outline:
        blocks = {block.start: block for block in self._source.headings_and_rows()}
        fences = {fence.start: fence for fence in self._source.fences}
        is_after_blank = True
        skip_to = 0
        for number, line in enumerate(self._source.visible, start=1):
            block = blocks.get(number)
            if number < skip_to:
                continue
            if block is not None:
                skip_to = block.end + 1
                self._add_heading(block) if block.kind == "heading" else self._add_row(block)
            elif number in fences:
                self._add_fence(fences[number])
            elif line.strip():
                self._add_line(number, line[:MAX_TEXT_CHARS], is_after_blank=is_after_blank)
            is_after_blank = not line.strip()
        return Outline(self._source, self._entries, self._ends())

    def _add(self, entry: Entry) -> None:
        self._entries.append(entry)

    def _section(self) -> int | None:
        return self._headings[-1] if self._headings else None

    def _add_heading(self, block: Block) -> None:
        self._items.clear()
        while self._headings and self._entries[self._headings[-1]].level >= block.level:
            self._headings.pop()
        text = block.text[:MAX_TEXT_CHARS]
        self._add(
            Entry(kind="heading", line=block.start, text=text, level=block.level, section=self._section())
        )
        self._headings.append(len(self._entries) - 1)

    def _add_row(self, block: Block) -> None:
        self._add(
            Entry(
                kind="row",
                line=block.start,
                text=block.text[:MAX_TEXT_CHARS],
                parent=self._items[-1] if self._items else None,
                section=self._section(),
                block=block,
            )
        )

    def _add_fence(self, fence: Fence) -> None:
        indent = _columns(self._source.lines[fence.start - 1])
        # Samples are often pasted at the margin, in the middle of a list that goes on below them.
        around = (place for place in reversed(self._items) if self._entries[place].indent < indent)
        self._add(
            Entry(
                kind="fence",
                line=fence.start,
                text=fence.info,
                indent=indent,
                parent=next(around, None),
                section=self._section(),
                fence=fence,
            )
        )

    def _close_items(self, indent: int) -> None:
        while self._items and self._entries[self._items[-1]].indent >= indent:
            self._items.pop()

    def _add_line(self, number: int, line: str, *, is_after_blank: bool) -> None:
        match = _ITEM.match(line)
        if match is None or _is_rule(line):
            self._add_text(number, line, is_after_blank=is_after_blank)
            return
        indent = _columns(match["indent"])
        self._close_items(indent)
        mark, is_starred, text = read_box(match["rest"])
        self._add(
            Entry(
                kind="item",
                line=number,
                text=text,
                indent=indent,
                number=match["number"] or "",
                mark=mark,
                is_starred=is_starred,
                is_after_blank=is_after_blank,
                parent=self._items[-1] if self._items else None,
                section=self._section(),
            )
        )
        self._items.append(len(self._entries) - 1)

    def _add_text(self, number: int, line: str, *, is_after_blank: bool) -> None:
        text = line.strip()
        if text.startswith(("|", ">")) or _is_rule(line) or _TAG.match(text):
            # The head of a table, a quotation, a rule, a tag around other lines.
            return
        indent = _columns(line)
        if is_after_blank or _LABEL_START.match(text):
            self._close_items(indent)
        self._add(
            Entry(
                kind="text",
                line=number,
                text=text,
                indent=indent,
                is_after_blank=is_after_blank,
                parent=self._items[-1] if self._items else None,
                section=self._section(),
            )
        )

    def _ends(self) -> list[int]:
        ends = [place + 1 for place in range(len(self._entries))]
        for place in range(len(self._entries) - 1, -1, -1):
            entry = self._entries[place]
            for above in (entry.parent, entry.section):
                if above is not None:
                    ends[above] = max(ends[above], ends[place])
        return ends


def read_box(text: str) -> tuple[str | None, bool, str]:
    """The mark of a box that a text begins with, whether a star follows, and the rest.

    A letter is a mark only where it says done: `[P]` and `[S]` are tags. Which other letters a legend makes
    marks is for `legends` to say; they are given back by `letter_box`.
    """
    match = _BOX.match(text)
    if match is None or not match["rest"].strip():
        return None, False, text.strip()
    mark = match["mark"].replace("\ufe0f", "").strip() or " "
    if mark.isalnum() and mark not in _LETTER_MARKS:
        return None, False, text.strip()
    return mark, match["star"] is not None, match["rest"].strip()


def letter_box(text: str) -> tuple[str | None, str]:
    """The letter in a box that a text begins with, and the rest."""
    match = _BOX.match(text)
    if match is None or not match["mark"].isalnum() or not match["rest"].strip():
        return None, text
    return match["mark"], match["rest"].strip()


def _is_rule(line: str) -> bool:
    text = "".join(line.split())
    return len(text) > 2 and text[0] in "-*_=" and not text.strip(text[0])  # noqa: PLR2004 (three make a rule)


def _columns(line: str) -> int:
    """How far a line is indented, tabs counted to their stops."""
    blank = _INDENT.match(line)
    return len((blank[0] if blank else "").expandtabs(TAB_COLUMNS))
