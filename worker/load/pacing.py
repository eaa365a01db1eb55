"""When each record of a replay is due. Pure: the clock is the caller's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast: the recorded pace times `speed`, or a fixed rate, or as fast as the broker takes it."""

    speed: float | None = None
    rate_per_second: float | None = None

    def __post_init__(self) -> None:
        if self.speed is not None and self.rate_per_second is not None:
            raise ValueError("a pace is a speed or a rate, not both")
        if any(factor is not None and factor <= 0 for factor in (self.speed, self.rate_per_second)):
            raise ValueError("a speed and a rate are above zero")

    def __str__(self) -> str:
        if self.rate_per_second is not None:
            return f"{self.rate_per_second:g}/s"
        return "as fast as the broker takes it" if self.speed is None else f"{self.speed:g}x"


class Schedule:
    """Due times of one replay, in seconds since its start; never earlier than the one before.

    Records of several partitions were recorded in nearly the order of their times; one that is older than
    the one before it is due at once.
    """

    def __init__(self, pace: Pace) -> None:
        """Nothing was due yet."""
        self._pace = pace
        self._first_ms: int | None = None
        self._number = 0
        self._last = 0.0

    def due(self, timestamp_ms: int) -> float | None:
        """When the next record is due that was recorded at `timestamp_ms`; None where it is now."""
        if self._first_ms is None:
            self._first_ms = timestamp_ms
        number, self._number = self._number, self._number + 1
        if self._pace.rate_per_second is not None:
            return number / self._pace.rate_per_second
        if self._pace.speed is None:
            return None
        self._last = max(self._last, (timestamp_ms - self._first_ms) / 1_000 / self._pace.speed)
        return self._last
