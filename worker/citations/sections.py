"""The sections that an answer ends with, and what stands below their headings."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Final

from schemas.citations import TEMPLATE_SECTIONS, TemplateSection

MOST_BODY_BYTES: Final = 4_000
"""Of what stands below a heading, that is looked at: ids come first, or it is no list of them."""
MOST_BODIES: Final = 30
"""The last of an answer, since it ends with them."""
_HEADING_MARKS: Final = b" \t#*>-.)0123456789|"
_MOST_MARKS: Final = 12
_NAMES: Final = "|".join(section.replace(" ", "[ _]") for section in TEMPLATE_SECTIONS)
_HEADING: Final = re.compile(
    rf"\n[{re.escape(_HEADING_MARKS.decode())}]{{0,{_MOST_MARKS}}}(?:{_NAMES})", re.IGNORECASE | re.ASCII
)
_KEY: Final = re.compile(rf'"[# *]*+(?:{_NAMES})[^"\n]*+"\s*+:', re.IGNORECASE | re.ASCII)
_ATX: Final = re.compile(rb"\n[ \t>]*(#{1,6})[ \t]")
_ANY_LEVEL: Final = 6
_SAYS_NONE: Final = re.compile(r"(?<!\w)(?:none|nothing|n/a)(?!\w)|\A\W*+no(?!\w)", re.IGNORECASE)


def bodies_in(text: str) -> Iterator[tuple[TemplateSection, str]]:
    """What stands below each heading of the template, up to the next heading that is no deeper.

    A heading is a line that begins with the section's name, whatever marks are before it. The same section
    may come more than once; of very many the last are looked at. O(length).
    """
    # Headings are ASCII, and lowering the bytes of a text that is not costs a tenth of lowering its letters.
    data = text.encode(errors="replace")
    folded = data.lower().replace(b"_", b" ")
    found = sorted(place for section in TEMPLATE_SECTIONS for place in _headings(folded, section))
    found = found[-MOST_BODIES:]
    starts = [start for start, *_ in found]
    for (_, begin, level, section), end in zip(found, [*starts, len(data)][1:], strict=True):
        last = min(end, begin + MOST_BODY_BYTES)
        closing = (one.start() for one in _ATX.finditer(data, begin, last) if len(one[1]) <= level)
        yield section, data[begin : next(closing, last)].decode(errors="replace")


def first_heading(text: str, start: int = 0) -> int | None:
    """Where the line break before the next heading stands, code or not."""
    found = _HEADING.search(text, start)
    return None if found is None else found.start()


def has_key(text: str, start: int = 0, end: int = sys.maxsize) -> bool:
    """Whether one of the sections is a key of JSON there."""
    return _KEY.search(text, start, end) is not None


def says_none(body: str) -> bool:
    """Whether it says that there is nothing to name."""
    return _SAYS_NONE.search(body) is not None


def _headings(folded: bytes, section: TemplateSection) -> Iterator[tuple[int, int, int, TemplateSection]]:
    """Where a line and its name's end lie, how deep the heading is, and the section again."""
    wanted = section.lower().encode()
    at = folded.find(wanted)
    while at >= 0:
        marks = folded[max(0, at - _MOST_MARKS - 1) : at].rpartition(b"\n")
        is_line_near = bool(marks[1]) or at <= _MOST_MARKS
        if is_line_near and not marks[2].strip(_HEADING_MARKS):
            yield at - len(marks[2]), at + len(wanted), marks[2].count(b"#") or _ANY_LEVEL, section
        at = folded.find(wanted, at + 1)
