"""What a replay measures while it runs: latencies as histograms of fixed size, and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

from hdrh.histogram import HdrHistogram

from worker.load.answers import fields_of
from worker.load.observations import Case, Seen

_LONGEST_MICROSECONDS: Final = 3_600_000_000
_DIGITS: Final = 3
PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0, 99.9)


class Latencies:
    """Durations to three significant digits, up to an hour; longer ones count as an hour."""

    def __init__(self) -> None:
        """None yet."""
        self._histogram: Any = cast("Any", HdrHistogram)(1, _LONGEST_MICROSECONDS, _DIGITS)

    def add(self, seconds: float) -> None:
        """Count one."""
        self._histogram.record_value(min(max(1, round(seconds * 1e6)), _LONGEST_MICROSECONDS))

    @property
    def count(self) -> int:
        """How many."""
        return int(self._histogram.get_total_count())

    def percentile_ms(self, percentile: float) -> float:
        """The latency that so many of a hundred do not exceed, in milliseconds; 0 where there is none."""
        return float(self._histogram.get_value_at_percentile(percentile)) / 1_000 if self.count else 0.0

    def as_dict(self) -> dict[str, float | int]:
        """The percentiles, the largest and the number, for a report; milliseconds."""
        found: dict[str, float | int] = {"count": self.count}
        for percentile in PERCENTILES:
            found[f"p{percentile:g}"] = self.percentile_ms(percentile)
        found["max"] = float(self._histogram.get_max_value()) / 1_000 if self.count else 0.0
        return found


def tallied(cases: Iterable[Case], measures: Measures) -> Iterator[Case]:
    """The cases as they come; `measures` has counted by then what each was lost, doubled or degraded by.

    Layers by the usage events, which say it whatever part of the bundle was asked for.
    """
    for case in cases:
        if case.sent:
            measures.lost += not case.replies and not case.letters
            measures.doubled += _is_doubled(case)
            if case.usages:
                _count_layers(case.usages[0], measures.layers)
        yield case


def _is_doubled(case: Case) -> bool:
    """Whether two things that differ were published as the one outcome, or as its one usage event."""
    replies = {seen.body for seen in (*case.replies, *case.earlier)}
    if len(replies) > 1:
        # Whoever takes an id again is told so, beside the outcome of the first.
        replies = {body for body in replies if fields_of(body).get("code") != "request_id_reused"}
    return len(replies) > 1 or len({seen.body for seen in case.usages}) > 1


def _count_layers(usage: Seen, layers: Counter[str]) -> None:
    statuses = fields_of(usage.body).get("statuses")
    for layer, said in (cast("dict[str, Any]", statuses) if isinstance(statuses, dict) else {}).items():
        if said.get("status") in {"failed", "partial"}:
            layers[f"{layer} {said['status']} {said.get('reason')}"] += 1


@dataclass(slots=True, kw_only=True)
class Measures:
    """All of one run. In flight is what was sent and not answered yet."""

    sent: int = 0
    acknowledged: int = 0
    failed: Counter[str] = field(default_factory=Counter[str])
    """Records that the broker did not take, by why."""
    answered: int = 0
    repeated: int = 0
    """Answers to what was answered already."""
    lost: int = 0
    """Requests that were taken by the broker and never answered, late answers counted."""
    doubled: int = 0
    """Requests with two distinct outcomes or usage events; what is byte-equal is no second one."""
    outcomes: Counter[str] = field(default_factory=Counter[str])
    """Answered records: complete, degraded, rejected."""
    codes: Counter[str] = field(default_factory=Counter[str])
    """Rejections by code."""
    layers: Counter[str] = field(default_factory=Counter[str])
    """Failed and partial layers, as `layer status reason`."""
    in_flight: int = 0
    latencies: Latencies = field(default_factory=Latencies)
    """From the instant at which a record was due to its answer."""
    lateness: Latencies = field(default_factory=Latencies)
    """From the instant at which a record was due to its sending: how well the pace was kept."""
    sending_seconds: float = 0.0
    answering_seconds: float = 0.0
    """From the start to the last answer."""
