"""What the words of a requirement or decision say: how binding it is, its status, its plain text."""

from __future__ import annotations

import re
from typing import Final

from worker.code.documents.results import Modality

_MODALS: Final[tuple[tuple[Modality, str], ...]] = (
    ("must", r"SHALL|MUST|REQUIRED"),
    ("should", r"SHOULD|RECOMMENDED"),
    ("may", r"MAY|OPTIONAL"),
)
_UPPER: Final = tuple((modality, re.compile(rf"\b(?:{words})\b")) for modality, words in _MODALS)
_LOWER: Final = (
    (
        "must",
        re.compile(
            r"\b(?:shall|must)\b|必须|必須|しなければならない|해야|\b(?:debe|deve|muss|должн[аоы]?)\b"
        ),
    ),
    ("should", re.compile(r"\bshould\b|应该|應該|べき")),
    ("may", re.compile(r"\bmay\b|可以")),
)
_NEGATION: Final = re.compile(r"[\s*_]+(?:NOT|NEVER|not|never)\b")

_STATUS_WORDS: Final[dict[str, str]] = {
    word: status
    for status, words in {
        "done": "done complete completed finished closed shipped implemented ✅ ✓ ✔ ☑ 已完成 gotowe готово",
        "active": "in_progress active doing wip started current partial 🔄 🚧 ► 🟡 進行中 进行中",
        "pending": "pending to_do todo open planned not_started ⬜ ☐ ⏳ 📋",
        "blocked": "blocked ❌ ⛔ 🔴",
        "review": "review in_review",
        "deferred": "deferred postponed later ⏸",
        "skipped": "skipped cancelled canceled won't_do n/a dropped superseded removed ⏭",
        "draft": "draft",
        "proposed": "proposed",
        "approved": "approved accepted",
        "withdrawn": "withdrawn deleted obsolete",
    }.items()
    for word in words.split()
}
_IN_TEXT: Final = "DEFERRED|POSTPONED|SKIPPED|CANCELL?ED|DROPPED|SUPERSEDED|WITHDRAWN|REMOVED|OBSOLETE"
_AT_END: Final = re.compile(
    rf"(?:[(\[]\s*[*_]*(?i:(?P<bracketed>{_IN_TEXT}))|[—–-]\s*[*_]+(?i:(?P<bold>{_IN_TEXT}))"
    rf"|[—–-]\s*(?P<upper>{_IN_TEXT}))(?![\w-])[^()\n]{{0,200}}\)?[\s*_.\]~]*\Z"
)
_TAIL_CHARS: Final = 400
_ALL_STRUCK: Final = re.compile(r"~~[^~]+~~")
_AT_START: Final = re.compile(rf"[\s*_(\[:—–-]*(?P<word>{_IN_TEXT})\b")
_MARKUP: Final = re.compile(r"\*\*|__|~~|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w)")
_LINK: Final = re.compile(r"\[(?P<text>[^\[\]\n]{0,300})\]\((?P<target>[^()\s]{0,500})\)")
_MARKS: Final = {" ": "pending", "x": "done", "X": "done", "✓": "done", "✔": "done", "√": "done", "v": "done"}
_OTHER_MARKS: Final = {"/": "active", ">": "active", "!": "blocked", "-": "skipped", "~": "active"}


def modality(text: str) -> tuple[Modality, bool]:
    """How binding the text is, by its strongest word, and whether that word forbids.

    Words in capitals go before all others, as RFC 8174 has it; `SHALL NOT` forbids.
    """
    for level, pattern in (*_UPPER, *_LOWER):
        matches = list(pattern.finditer(text))
        if matches:
            return _MODALITIES[level], all(_NEGATION.match(text, match.end()) for match in matches)
    return "none", False


_MODALITIES: Final[dict[str, Modality]] = {"must": "must", "should": "should", "may": "may"}


def fold_status(raw: str) -> str:
    """The known word for a status, else the text as it is. Case, spaces and hyphens are folded."""
    text = plain(raw).strip(" .:|")
    folded = re.sub(r"[\s-]+", "_", text.replace("\ufe0f", "")).lower()
    if folded in _STATUS_WORDS:
        return _STATUS_WORDS[folded]
    first = folded.split("_", 1)[0]
    # "✅ Complete" and "Done (2026-01-31)" speak by their first word; a sentence does not.
    if first in _STATUS_WORDS and (not first[:1].isalpha() or re.match(r"\w+_?[(,;:]", folded)):
        return _STATUS_WORDS[first]
    return text


def status_in_text(text: str) -> str:
    """The status that a requirement's own words give it: a word in status position, or all struck through."""
    match = _AT_START.match(text) or _AT_END.search(text[-_TAIL_CHARS:])
    if match is None and "\n" in text:
        match = _AT_END.search(text.split("\n", 1)[0][-_TAIL_CHARS:])
    if match:
        return fold_status(match[match.lastgroup or 0])
    return "skipped" if _ALL_STRUCK.fullmatch(text.strip()) else ""


def status_of_mark(mark: str) -> tuple[str, bool]:
    """What a box says, and whether that is a guess; empty for what is no mark."""
    if mark in _MARKS:
        return _MARKS[mark], False
    return _OTHER_MARKS.get(mark, ""), mark in {"-", "~"}


def plain(text: str) -> str:
    """The text without emphasis, strike-through, and the targets of links; code spans keep their ticks."""
    return _MARKUP.sub("", _LINK.sub(lambda match: match["text"], text)).strip()


def one_line(text: str, *, max_chars: int = 200) -> str:
    """The text as a title: plain, blanks folded, cut at `max_chars`."""
    return " ".join(plain(text[: 4 * max_chars]).split())[:max_chars]
