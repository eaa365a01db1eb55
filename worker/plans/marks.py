"""What a mark means: the legend, an explicit field, the item's own words, the dialect, the common table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from schemas.codes import StepStatus
from worker.plans.legends import Legend
from worker.plans.results import Raw
from worker.plans.statuses import SaidStatus, said_status, status_in_words, status_of_word

Dialect = Literal["common", "kiro"]

CLOSED: Final[frozenset[StepStatus]] = frozenset({"done", "skipped"})
OPEN: Final[frozenset[StepStatus]] = frozenset({"pending", "active", "review", "blocked"})

_TABLE: Final[Mapping[str, StepStatus]] = {
    " ": "pending",
    "": "pending",
    "x": "done",
    "X": "done",
    "х": "done",
    "Х": "done",
    "v": "done",
    "√": "done",
    "✓": "done",
    "✔": "done",
    "☑": "done",
    "/": "active",
    ">": "active",
    "!": "blocked",
}
_DIALECTS: Final[Mapping[Dialect, Mapping[str, StepStatus]]] = {
    "common": {},
    "kiro": {"-": "active", "~": "pending"},
}
_SAID_BY_WORDS: Final[Mapping[str, frozenset[StepStatus]]] = {
    "-": frozenset({"deferred", "skipped", "blocked"}),
    "~": frozenset({"deferred", "skipped", "active", "blocked"}),
}
_GUESSES: Final[Mapping[str, StepStatus]] = {"-": "skipped", "~": "active"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkReading:
    """A step's status and what decided it."""

    status: StepStatus
    raw: Raw
    title: str
    """The text without the words that say a status."""
    is_guess: bool = False
    is_conflict: bool = False
    """Whether what was passed over says something else that cannot be true at the same time."""


def read_mark(
    mark: str | None,
    text: str,
    *,
    legend: Legend,
    dialect: Dialect = "common",
    field: str = "",
    details: str = "",
    inherited: StepStatus | None = None,
    is_heading: bool = False,
    struck: str = "",
) -> MarkReading:
    """The status of an item, by the first of these that speaks.

    `text` is the item's without its id, `field` what an explicit status field says, `details` the lines below
    it, in which a mark without meaning of its own is explained; `inherited` is the status of the heading, for
    items without mark; `struck` is the text, or the id, that is struck through. An item of which nothing
    speaks is pending.
    """
    said = said_status(text, is_heading=is_heading)
    title = said.rest if said is not None else text
    by_mark = _by_table(mark, dialect)
    by_legend = legend.status(mark) if mark is not None else None
    by_field = status_in_field(field, legend)
    if by_field == "unknown" and by_mark is not None:
        # A word that nobody knows says less than the box does.
        by_field = None
    if by_legend is not None:
        found = by_legend, ""
    elif by_field is not None:
        found = by_field, field.strip()
    else:
        found = ("skipped", struck) if struck else _in_words(mark, f"{text}\n{details}", said, dialect)
    if found is not None:
        status, words = found
        return MarkReading(
            status=status,
            raw=Raw(mark=mark or "", words=words),
            title=title,
            is_conflict=by_mark is not None and _contradict(status, by_mark),
        )
    if by_mark is not None:
        return MarkReading(status=by_mark, raw=Raw(mark=mark or ""), title=title)
    if mark is None:
        return MarkReading(status=inherited or "pending", raw=Raw(), title=title)
    if mark in _GUESSES:
        return MarkReading(status=_GUESSES[mark], raw=Raw(mark=mark), title=title, is_guess=True)
    by_sign = status_of_word(mark) or "unknown"
    return MarkReading(status=by_sign, raw=Raw(mark=mark), title=title, is_guess=by_sign == "unknown")


def _in_words(
    mark: str | None, text: str, said: SaidStatus | None, dialect: Dialect
) -> tuple[StepStatus, str] | None:
    """What the item's own words say; for a mark without meaning of its own those anywhere in it."""
    if said is not None:
        return said.status, said.words
    if mark in _SAID_BY_WORDS and mark not in _DIALECTS[dialect]:
        return status_in_words(text, _SAID_BY_WORDS[mark])
    return None


def status_in_field(raw: str, legend: Legend) -> StepStatus | None:
    """What an explicit status says, first by the signs of the legend. None where it is empty."""
    sign = raw.replace("\ufe0f", "").strip()[:1]
    if sign and not sign.isalnum():
        by_legend = legend.status(sign)
        if by_legend is not None:
            return by_legend
    return status_of_word(raw)


def _by_table(mark: str | None, dialect: Dialect) -> StepStatus | None:
    if mark is None:
        return None
    return _DIALECTS[dialect].get(mark) or _TABLE.get(mark)


def _contradict(said: StepStatus, marked: StepStatus) -> bool:
    """Whether a step is said to be open and marked done, or the other way round."""
    return (said in OPEN and marked in CLOSED) or (said == "done" and marked == "blocked")
