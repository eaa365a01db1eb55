"""Words and signs that say how far a piece of work is, and where in a text they speak."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from schemas.codes import StepStatus
from worker.code.documents.wording import plain

_WORDS: Final[dict[StepStatus, str]] = {
    "done": "done|complete|completed|finished|closed|shipped|implemented|merged|✅|✓|✔|☑",
    "active": (
        "in progress|active|doing|wip|work in progress|started|current|partial|partially|partially done"
        "|partially complete|partly done|ongoing|underway|🔄|🚧|►|🟡"
    ),
    "pending": (
        "pending|to do|todo|open|planned|not started|not yet started|not done|not complete|incomplete"
        "|queued|backlog|upcoming|⬜|☐|⏳|📋"
    ),
    "blocked": "blocked|⛔|🔴",
    "review": "review|in review|under review|needs review|ready for review",
    "deferred": "deferred|postponed|later|on hold|paused|⏸",
    "skipped": (
        "skipped|cancelled|canceled|won't do|wont do|won’t do|n/a|not applicable|dropped|superseded"
        "|abandoned|obsolete|⏭"
    ),
}
_STATUS_OF: Final[dict[str, StepStatus]] = {
    word: status for status, words in _WORDS.items() for word in words.split("|")
}
_LEGEND_ONLY: Final[dict[str, StepStatus]] = {
    "forwarded": "deferred",
    "moved on": "deferred",
    "migrated": "deferred",
}

_SIGN: Final = "✅✓✔☑🔄🚧►🟡⬜☐⏳📋⛔🔴⏸⏭"


def _alternatives(words: Iterable[str]) -> str:
    """The words as one pattern, the longest first; blanks and hyphens stand for each other."""
    ordered = sorted(words, key=lambda word: (-len(word), word))
    return "|".join(re.escape(word).replace(r"\ ", r"[\s_-]+") for word in ordered)


_PLAIN: Final = [word for word in _STATUS_OF if word[0].isalpha()]
_CLOSING: Final = [word for word in _PLAIN if _STATUS_OF[word] in {"deferred", "skipped", "blocked"}]
_WORD: Final = f"(?i:{_alternatives(_PLAIN)})"
_UPPER: Final = _alternatives(word.upper() for word in _PLAIN)
_CLOSING_WORD: Final = f"(?i:{_alternatives(_CLOSING)})"
_CLOSING_UPPER: Final = _alternatives(word.upper() for word in _CLOSING)
_LOUD: Final = _alternatives([*(word.upper() for word in _CLOSING), "WIP", "IN PROGRESS"])

_EXACT: Final = re.compile(rf"{_WORD}\Z|[{_SIGN}]\Z")
_PREFIX: Final = re.compile(
    rf"(?P<sign>[{_SIGN}❌])|(?P<word>{_WORD})"
    r"(?=\s*[-(\[,;:.!—–✅]|\s+(?i:by|until|on|in|since|as|for|to|due|because|\d)\b)"
)
_ANYWHERE: Final = re.compile(rf"(?<!\w)(?i:{_alternatives([*_PLAIN, *_LEGEND_ONLY])})(?!\w)|[{_SIGN}❌]")
# A bracket that says a status: the word alone, or with its reason behind it.
_REASON: Final = (
    r"(?:\s*[:：,;—–]|\s+-|\s+(?:by|until|in|on|for|to|since|because|due|as|per|see|with|after|pending|\d))"
)
_BRACKET: Final = (
    rf"[(\[]\s*[*_]*(?P<bracketed>{_WORD}|[{_SIGN}])[*_]*(?=\s*[)\]]|{_REASON})[^()\[\]\n]{{0,300}}[)\]]"
)
_DECOR: Final = r"[\s*_.!~`]*"
_AT_END: Final = re.compile(
    rf"(?:{_BRACKET}"
    rf"|(?P<sign>[{_SIGN}])(?:\s*[*_]*(?P<signed>{_WORD})(?!\w))?"
    rf"|[—–:-]\s*[*_]*(?P<upper>{_UPPER})"
    rf"|[—–:-]\s*[*_]{{1,3}}(?P<bold>{_WORD})[*_]{{1,3}}"
    rf"|(?<!\w)(?P<loud>{_LOUD})"
    rf"|[—–]\s*[*_]*(?P<lower>{_CLOSING_WORD})){_DECOR}\Z"
)
_WITH_REASON: Final = re.compile(
    rf"(?:(?<=\s)|\A)(?:[—–-]\s*[*_]*|[*_]{{1,3}})(?P<word>{_CLOSING_UPPER})(?!\w)[^\n]{{0,300}}\Z"
)
_HEADING_END: Final = re.compile(
    rf"\s(?:[—–-]\s+[*_]*(?P<lower>{_WORD})|[—–-]?\s*(?P<sign>[{_SIGN}])\s*(?P<signed>{_WORD})?)"
    rf"{_DECOR}(?:\([^()\n]{{0,100}}\))?{_DECOR}\Z"
)
_AT_START: Final = re.compile(
    rf"(?:{_BRACKET}|(?P<sign>[{_SIGN}])|[*_]{{2}}(?P<bold>{_UPPER})\s*[:：—–-]?[*_]{{2}}"
    rf"|[—–-]?\s*(?P<upper>{_UPPER})(?=\s*[:：—–]|\s+-\s|\s*\Z))\s*[:：—–-]*\s*"
)
_HALF_DONE: Final = re.compile(
    r"\((?:done|completed)\s*:[^()\n]{1,300}?\b(?:remaining|left|to do|todo)\s*:[^()\n]{1,300}\)\s*\Z",
    re.IGNORECASE,
)
_STRUCK: Final = re.compile(r"[\s*_]*~~(?P<text>[^~]+)~~[\s*_.]*\Z")
_TAIL_CHARS: Final = 400
_VARIATION: Final = "\ufe0f"


@dataclass(frozen=True, slots=True)
class SaidStatus:
    """A status, the words that say it, and the text without them."""

    status: StepStatus
    words: str
    rest: str


def status_of_word(raw: str) -> StepStatus | None:
    """The status that an explicit field or cell says; `unknown` for words that are not known, None for none.

    "✅ Complete", "Done (2026-01-31)" and "Blocked by 2.1" speak by what they begin with; ❌ is blocked here.
    """
    text = " ".join(plain(raw.replace(_VARIATION, "")[:_TAIL_CHARS]).split()).strip(" .|`\"'")
    if not text.strip("-—–"):
        return None
    if _EXACT.match(text):
        return _status(text)
    match = _PREFIX.match(text)
    if match is None:
        return "unknown"
    if match["sign"]:
        # The words behind a sign say more: "🟡 Blocked on review".
        rest = text[1:].strip()
        said = status_of_word(rest) if rest else None
        return said if said not in {None, "unknown"} else _status(match["sign"])
    return _status(match["word"])


def exact_status(text: str) -> StepStatus | None:
    """The status that a text is the word for; None for any other text."""
    text = text.replace(_VARIATION, "").strip()
    return _status(text) if _EXACT.match(text) else None


def status_in_legend(text: str) -> StepStatus | None:
    """The first known word anywhere in an explanation; the longest of those that begin there."""
    match = _ANYWHERE.search(text.replace(_VARIATION, "")[:_TAIL_CHARS])
    if match is None:
        return None
    folded = _fold(match[0])
    return _LEGEND_ONLY.get(folded) or _status(folded)


def status_in_words(text: str, among: frozenset[StepStatus]) -> tuple[StepStatus, str] | None:
    """The first word anywhere in a text that says one of these; for marks that mean nothing by themselves."""
    for match in _ANYWHERE.finditer(text.replace(_VARIATION, "")[: 10 * _TAIL_CHARS]):
        status = _STATUS_OF.get(_fold(match[0]))
        if status in among:
            return status, match[0]
    return None


def said_status(text: str, *, is_heading: bool = False) -> SaidStatus | None:
    """What a title itself says: a word in status position, or all of it struck through.

    Status position is the end, or the beginning (the id being taken off), in capitals, brackets or bold type,
    or a sign. In a heading small letters behind a dash or in brackets count too. ❌ and ⚠ are content.
    """
    text = text.replace(_VARIATION, "").strip()
    struck = _STRUCK.match(text)
    if struck:
        return SaidStatus("skipped", text[:_TAIL_CHARS], struck["text"].strip())
    half = _HALF_DONE.search(text[-_TAIL_CHARS:])
    if half:
        return SaidStatus("active", half[0], text.removesuffix(half[0]).strip())
    start = _AT_START.match(text)
    if start:
        return _said(start, text[start.end() :])
    cut = max(0, len(text) - _TAIL_CHARS)
    tail = text[cut:]
    end = _AT_END.search(tail) or _WITH_REASON.search(tail)
    if end:
        return _said(end, text[: cut + end.start()])
    if is_heading:
        found = _HEADING_END.search(tail)
        if found:
            return _said(found, text[: cut + found.start()])
    return None


def without_status(text: str) -> str:
    """A heading's text without status words and signs at either end."""
    for _ in range(4):
        said = said_status(text, is_heading=True)
        if said is None or not said.rest.strip():
            break
        text = said.rest
    return text.strip().rstrip("—–-:：").strip()


_GROUPS: Final = ("signed", "bracketed", "bold", "upper", "loud", "lower", "word", "sign")


def _said(match: re.Match[str], rest: str) -> SaidStatus:
    words = match.groupdict()
    word = next(words[name] for name in _GROUPS if words.get(name))
    status = _status(word)
    return SaidStatus(status, match[0].strip(" \t*_—–-~"), rest.strip().rstrip("—–-:：").strip())


def _status(word: str) -> StepStatus:
    return "blocked" if word == "❌" else _STATUS_OF[_fold(word)]


def _fold(word: str) -> str:
    folded = re.sub(r"[\s_-]+", " ", word).strip().lower()
    return folded if folded in _STATUS_OF or folded in _LEGEND_ONLY else folded.replace("’", "'")
