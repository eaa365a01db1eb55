"""A task's text to its id, its tags and its plain title."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from worker.plans.step_ids import LeadingId, leading_id

MAX_TITLE_CHARS: Final = 500

_ALL_STRUCK: Final = re.compile(r"[\s*_]*~~(?P<text>[^~]+)~~[\s*_.]*\Z")
_LEADING_SIGN: Final = re.compile(
    r"(?P<sign>[✅✓✔☑🔄🚧►🟡⬜☐⏳📋⛔🔴⏸⏭]\ufe0f?)\s*(?P<rest>\S.*)\Z", re.DOTALL
)
_STAMP: Final = re.compile(
    r"[*_`]*[(\[]?\s*(?:\d{4}|YYYY)-(?:\d{2}|MM)-(?:\d{2}|DD)"
    r"(?:[T ,]+(?:\d{1,2}|HH):?(?:\d{2}|MM)(?::\d{2}(?:\.\d+)?)?\s*(?:Z|UTC|[A-Z]{2,5}|[+-]\d{2}:?\d{2})?)?"
    r"\s*[)\]]?[*_`]*\s*[:：—–-]*\s*"
)
_MARKUP: Final = re.compile(
    # `__init__.py` and `__call__()` are names, though bold type looks the same.
    r"(?P<code>`+[^`]*`+|(?<=/)__\w+__|__\w+__(?=[.(]))|\[(?P<text>[^\[\]\n]{0,300})\]\([^()\s]{0,500}\)"
    r"|\*\*|~~|(?<!\w)[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}(?!\w)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskText:
    """A task's text without what stands around its title."""

    leading: LeadingId | None
    rest: str
    """What follows the id, its markup as written."""
    struck: str
    """The text, or the id, where it is struck through, as written."""


def strip_stamp(text: str) -> str:
    """A line without the time that a journal puts in front of it; all of it where nothing else is there."""
    match = _STAMP.match(text)
    rest = text[match.end() :].strip() if match else ""
    return rest or text


def split_task(text: str) -> TaskText:
    """The id and the rest of a task's text. A sign in front of the id is put behind it, a stamp taken off."""
    text = strip_stamp(text)
    struck = _ALL_STRUCK.match(text)
    if struck:
        text = struck["text"].strip()
    sign = _LEADING_SIGN.match(text)
    leading = leading_id(sign["rest"] if sign else text)
    if leading is None:
        return TaskText(leading=None, rest=text, struck=struck[0].strip() if struck else "")
    rest = f"{sign['sign']} {leading.rest}" if sign else leading.rest
    by_id = f"~~{leading.id}~~" if leading.is_struck else ""
    return TaskText(leading=leading, rest=rest, struck=struck[0].strip() if struck else by_id)


def title_of(text: str) -> str:
    """The text on one line, without markup and targets of links; at most `MAX_TITLE_CHARS`."""
    bare = _MARKUP.sub(lambda match: match["code"] or match["text"] or "", text[: 4 * MAX_TITLE_CHARS])
    return " ".join(bare.split())[:MAX_TITLE_CHARS].strip(" \t—–:：").strip()
