"""The newest first, by the content's own time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from worker.fusion.protocols import BackendSet, PlanContext, StrategyCapabilities
from worker.fusion.strategies.standing import standing
from worker.ports import Fragment, RequestFrame

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class RecencyStrategy:
    """One ranking of all fragments by when their content came about."""

    name = "recency"
    capabilities = StrategyCapabilities(uses_temporal=True)

    def can_handle(self, request: RequestFrame, backends: BackendSet) -> float:
        """The share of fragments that are dated; 0 where none is, 1 where there are no fragments."""
        del request
        fragments = backends.fragments()
        dated = sum(fragment.created_at is not None for fragment in fragments)
        return round(dated / len(fragments), 6) if fragments else 1.0

    def assemble(
        self, request: RequestFrame, backends: BackendSet, budget: int, plan_context: PlanContext
    ) -> Sequence[Fragment]:
        """Pins, then by descending time, undated ones last; ties as `standing` orders them. O(n log n).

        Times are compared as instants, whatever offset they are written with; a naive one is UTC.
        """
        del request, budget, plan_context
        return sorted(backends.fragments(), key=lambda f: (not f.is_pinned, *_age(f.created_at), standing(f)))

    def explain(self) -> str:
        """One sentence for a person who asks why."""
        return "The newest fragments of all layers come first, undated ones last, until the budget is spent."


def _age(time: datetime | None) -> tuple[bool, int]:
    """The smaller, the newer."""
    if time is None:
        return True, 0
    return False, -(((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND)
