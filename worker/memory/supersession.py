"""Which remembered facts still hold: a newer one about the same subject takes the place of an older one.

What it replaces is no longer recalled, but stays readable as the history of its subject.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from schemas.session import MemoryItem

Age = tuple[int, str]
"""What orders facts in time: microseconds since the year 1, and the id among equals."""

UNDATED: Final = -1
"""The time of a fact that has none: before any."""

_EPOCH: Final = datetime.min.replace(tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def current(items: Iterable[MemoryItem]) -> list[MemoryItem]:
    """The facts that hold, by id: of each subject the latest, and every one without a subject.

    The latest has the greatest time, among equal times the greatest id; no time comes before any. Blank facts
    do not count. Of several with one id the latest stands for all (equal times: the greater subject, then the
    greater text). So the result depends on the set of facts alone. O(n log n).
    """
    latest: dict[str, MemoryItem] = {}
    held: list[MemoryItem] = []
    for item in by_id(items):
        key = subject_key(item.subject)
        if key is None:
            held.append(item)
        elif key not in latest or age_of(item) > age_of(latest[key]):
            latest[key] = item
    return sorted([*held, *latest.values()], key=lambda item: item.id)


def history(items: Iterable[MemoryItem], subject: str) -> list[MemoryItem]:
    """All facts ever known about the subject, the latest first; empty for a blank subject. O(n log n)."""
    key = subject_key(subject)
    if key is None:
        return []
    told = [item for item in by_id(items) if subject_key(item.subject) == key]
    return sorted(told, key=age_of, reverse=True)


def by_id(items: Iterable[MemoryItem]) -> list[MemoryItem]:
    """One fact for each id, blank ones left out, as `current` says, in order of id."""
    chosen: dict[str, MemoryItem] = {}
    for item in items:
        if is_blank(item):
            continue
        other = chosen.get(item.id)
        if other is None or _version(item) > _version(other):
            chosen[item.id] = item
    return [chosen[item_id] for item_id in sorted(chosen)]


def subject_key(subject: str | None) -> str | None:
    """What two spellings of one subject share: case, width and white space folded. None for a blank one."""
    if subject is None:
        return None
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", subject).casefold())
    return " ".join(folded.split()) or None


def age_of(item: MemoryItem) -> Age:
    """The greater, the later. Ids compare as their bytes do."""
    return micros_of(item.occurred_at), item.id


def micros_of(time: datetime | None) -> int:
    """Microseconds since the year 1 began, exact; `UNDATED` without a time. A naive one is UTC."""
    if time is None:
        return UNDATED
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def time_of(micros: int) -> datetime | None:
    """The inverse of `micros_of`."""
    return None if micros == UNDATED else _EPOCH + micros * _MICROSECOND


def is_blank(item: MemoryItem) -> bool:
    """Whether the fact says nothing."""
    return not item.text or item.text.isspace()


def _version(item: MemoryItem) -> tuple[int, str, str]:
    return micros_of(item.occurred_at), item.subject or "", item.text
