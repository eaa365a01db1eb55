"""Instants on the wire: RFC 3339 in and out, and nothing that merely looks like it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

EXAMPLE: Final = "2026-01-02T03:04:05Z"

# RFC 3339, section 5.6; its note allows lower case and, for readability, a space. The zone may be left
# out: that is this project's own leniency, and it is counted.
_TIME: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:([Zz])|([+-])([0-9]{2}):([0-9]{2}))?"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MS: Final = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_LEAP_SECOND: Final = 60
_LARGEST_OFFSET: Final = (23, 59)
_MICROSECOND_DIGITS: Final = 6
_FIRST_MILLISECONDS: Final = 20_000_000_000
"""Larger numbers are milliseconds: as seconds they would lie beyond the year 2600."""


def time_of_record(timestamp_ms: int) -> datetime:
    """A record's timestamp. Producers write what they like; what no calendar has is moved to its ends."""
    return _EPOCH + timedelta(milliseconds=min(max(timestamp_ms, 0), _LATEST_MS))


def parse_time(text: str) -> tuple[datetime, bool]:
    """The instant in UTC, and whether its zone was missing and taken for UTC.

    Digits beyond the microsecond are cut off. The leap second 23:59:60 UTC at the end of a month is
    the first second of the next one, as in POSIX; `:60` anywhere else is no time. Raises ValueError,
    saying what is wrong.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"not an RFC 3339 time such as {EXAMPLE}")
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    digits = (found[7] or "")[:_MICROSECOND_DIGITS].ljust(_MICROSECOND_DIGITS, "0")
    is_leap = second == _LEAP_SECOND
    try:
        read = datetime(year, month, day, hour, minute, 59 if is_leap else second, int(digits), tzinfo=UTC)
    except ValueError as error:
        raise ValueError(f"no such time: {error}") from None
    offset = _offset(found)
    try:
        instant = read - offset + timedelta(seconds=is_leap)
    except OverflowError:
        raise ValueError("the time lies outside the years 1 to 9999 in UTC") from None
    if is_leap and (instant.day, instant.hour, instant.minute, instant.second) != (1, 0, 0, 0):
        raise ValueError("a leap second is 23:59:60 UTC on the last day of a month")
    return instant, not (found[8] or found[9])


def time_of_number(epoch: float) -> datetime:
    """The instant that lies so many seconds, from 2 * 10^10 on milliseconds, after the epoch, in UTC.

    Raises ValueError outside the years 1 to 9999.
    """
    try:
        seconds = epoch / 1_000 if abs(epoch) > _FIRST_MILLISECONDS else epoch
        return _EPOCH + timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        raise ValueError("the time lies outside the years 1 to 9999 in UTC") from None


def format_time(value: datetime) -> str:
    """RFC 3339 in UTC with a `Z`; fractions of a second only where there are any."""
    instant = value if value.tzinfo is UTC else value.astimezone(UTC)
    return instant.replace(tzinfo=None).isoformat() + "Z"


def _offset(found: re.Match[str]) -> timedelta:
    if not found[9]:
        return timedelta()
    hours, minutes = int(found[10]), int(found[11])
    if hours > _LARGEST_OFFSET[0] or minutes > _LARGEST_OFFSET[1]:
        raise ValueError("no such offset from UTC; the largest is 23:59")
    offset = timedelta(hours=hours, minutes=minutes)
    return -offset if found[9] == "-" else offset
