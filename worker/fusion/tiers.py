"""How long what is stored stays at hand: hot, warm, cold.

A thing is touched when it is told, and when an event refers to it; to read it is no use of it, or requests
would change each other's bundles. From then on it is hot for a while, then warm, then cold: age demotes it,
the next use promotes it again. Nothing is ever thrown away for being cold: it comes last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from schemas.fragments import StorageTier

UNDATED_TIER: Final[StorageTier] = "warm"
"""Of what nobody dated and nothing refers to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRetention:
    """For how long after it was touched a thing is in a tier; cold has no end."""

    hot: timedelta = timedelta(days=1)
    warm: timedelta = timedelta(days=30)
    """Counted from the same instant as `hot`, and never shorter."""

    def __post_init__(self) -> None:
        if not timedelta() <= self.hot <= self.warm:
            raise ValueError(f"a thing cannot be warm for {self.warm} and hot for {self.hot} of that")


class ContextTierService:
    """Says in which tier a thing is, from what is stored of it."""

    def __init__(self, retention: TierRetention | None = None) -> None:
        """Keep things for as long as this says."""
        self._retention = retention or TierRetention()

    def tier(
        self, *, told_at: datetime | None, used_at: Iterable[datetime] = (), as_of: datetime
    ) -> StorageTier:
        """The tier at `as_of`, by the latest of the times at which it was touched; a naive one is UTC.

        What was touched after `as_of` is hot: clocks differ, and a request that is made again with the
        `as_of` that it had meets the state of today. One more use never lowers the tier, and one more day
        without any never raises it.
        """
        touched = [_utc(time) for time in (told_at, *used_at) if time is not None]
        if not touched:
            return UNDATED_TIER
        idle = _utc(as_of) - max(touched)
        if idle <= self._retention.hot:
            return "hot"
        return "warm" if idle <= self._retention.warm else "cold"


def _utc(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)
