"""What a usage log shows beyond its totals: over time, by step, by what became of each layer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

from hdrh.histogram import HdrHistogram

from schemas.codes import PARTS
from worker.usage.aggregate import UsageAggregate, aggregate_usage, as_count, as_mapping

OUTCOMES: Final = ("complete", "degraded", "rejected")
STATUSES: Final = ("ok", "trimmed", "partial", "failed", "empty", "off")
STEPS: Final = ("analyse", "gather", "fuse", "total")

_MAX_SPANS: Final = 1_024
_FIRST_WIDTH_SECONDS: Final = 60
_MAX_MICROSECONDS: Final = 3_600_000_000
_DIGITS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Calls that ended within one stretch of time."""

    begins: datetime
    outcomes: Mapping[str, int]
    """Of `OUTCOMES`, in their order."""
    spent: int
    """Tokens."""

    @property
    def calls(self) -> int:
        """All of them."""
        return sum(self.outcomes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Milliseconds of one step, to three digits."""

    calls: int
    p50: float
    p95: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePicture:
    """A set of usage records as a page shows it; the same in whatever order they came."""

    totals: UsageAggregate
    reserved: Mapping[str, int]
    """Tokens by layer, as requested; the totals hold the effective budget."""
    statuses: Mapping[str, Mapping[str, int]]
    """By layer, in prompt order, how often it had each of `STATUSES`."""
    fragments: Mapping[str, int]
    """`considered`, `kept` and `dropped`, over all calls."""
    reusable_tokens: int
    """With which the thread's next prompt will begin as well."""
    reusable_of_tokens: int
    """Tokens of the prompts that this is known of."""
    cache_hits: int
    cache_misses: int
    masked_secrets: int
    times: Mapping[str, StepTimes]
    """Of `STEPS`, in their order, those that were timed."""
    spans: tuple[Span, ...]
    """Without gaps, equally long; empty where no record says when it was."""
    span_seconds: int


def picture_of(records: Iterable[Mapping[str, object]], *, max_spans: int = 60) -> UsagePicture:
    """Fold records into a picture of at most `max_spans` stretches of time.

    One pass, linear; memory grows with the names alone. What is missing or of the wrong type is left out.
    """
    drawing = _Drawing()
    totals = aggregate_usage(drawing.watch(records))
    return drawing.finish(totals, max_spans=max_spans)


class _Drawing:
    def __init__(self) -> None:
        self._reserved: Counter[str] = Counter()
        self._statuses: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._sums: Counter[str] = Counter()
        # The library says nothing of its types.
        self._times: dict[str, Any] = {
            step: cast("Any", HdrHistogram)(1, _MAX_MICROSECONDS, _DIGITS) for step in STEPS
        }
        self._line = _TimeLine()

    def watch(self, records: Iterable[Mapping[str, object]]) -> Iterator[Mapping[str, object]]:
        """The same records, taken down on the way."""
        for record in records:
            self._take(record)
            yield record

    def _take(self, record: Mapping[str, object]) -> None:
        usage = as_mapping(record.get("usage"))
        spent = as_count(usage.get("spent"))
        for layer, tokens in as_mapping(record.get("reserved")).items():
            self._reserved[layer] += as_count(tokens)
        for layer, outcome in as_mapping(record.get("statuses")).items():
            status = as_mapping(outcome).get("status")
            if layer in PARTS and status in STATUSES:
                self._statuses[layer][cast("str", status)] += 1
        counts = as_mapping(record.get("counts"))
        for name in ("considered", "kept", "dropped"):
            self._sums[name] += as_count(counts.get(f"fragments_{name}"))
        cache = as_mapping(record.get("cache"))
        self._sums["hits"] += as_count(cache.get("hits"))
        self._sums["misses"] += as_count(cache.get("misses"))
        self._sums["masked"] += as_count(record.get("masked_secrets"))
        if isinstance(record.get("reusable_prefix_tokens"), int):
            self._sums["reusable"] += min(as_count(record.get("reusable_prefix_tokens")), spent)
            self._sums["reusable_of"] += spent
        for step, milliseconds in as_mapping(record.get("timings_ms")).items():
            if step in self._times and _is_duration(milliseconds):
                microseconds = round(cast("float", milliseconds) * 1_000)
                self._times[step].record_value(min(max(microseconds, 1), _MAX_MICROSECONDS))
        outcome = record.get("outcome")
        if outcome in OUTCOMES:
            self._line.add(_seconds(record.get("timestamp")), cast("str", outcome), spent)

    def finish(self, totals: UsageAggregate, *, max_spans: int) -> UsagePicture:
        sums = self._sums
        return UsagePicture(
            totals=totals,
            reserved=dict(self._reserved),
            statuses={
                layer: {status: self._statuses[layer][status] for status in STATUSES}
                for layer in PARTS
                if layer in self._statuses
            },
            fragments={name: sums[name] for name in ("considered", "kept", "dropped")},
            reusable_tokens=sums["reusable"],
            reusable_of_tokens=sums["reusable_of"],
            cache_hits=sums["hits"],
            cache_misses=sums["misses"],
            masked_secrets=sums["masked"],
            times={step: _times(found) for step, found in self._times.items() if found.get_total_count()},
            spans=self._line.spans(at_most=max_spans),
            span_seconds=self._line.width_seconds,
        )


class _TimeLine:
    """Counts by stretches of time, which double in length whenever there are too many of them."""

    def __init__(self) -> None:
        self.width_seconds = _FIRST_WIDTH_SECONDS
        self._counts: defaultdict[int, Counter[str]] = defaultdict(Counter)

    def add(self, at_seconds: float | None, outcome: str, spent: int) -> None:
        if at_seconds is None:
            return
        place = self._counts[int(at_seconds // self.width_seconds)]
        place[outcome] += 1
        place["spent"] += spent
        self._widen(_MAX_SPANS)

    def spans(self, *, at_most: int) -> tuple[Span, ...]:
        self._widen(at_most)
        if not self._counts:
            return ()
        return tuple(
            Span(
                begins=datetime.fromtimestamp(place * self.width_seconds, UTC),
                outcomes={outcome: self._counts[place][outcome] for outcome in OUTCOMES},
                spent=self._counts[place]["spent"],
            )
            for place in range(min(self._counts), max(self._counts) + 1)
        )

    def _widen(self, at_most: int) -> None:
        while self._counts and max(self._counts) - min(self._counts) >= at_most:
            wider: defaultdict[int, Counter[str]] = defaultdict(Counter)
            for place, counts in self._counts.items():
                wider[place // 2].update(counts)
            self._counts = wider
            self.width_seconds *= 2


def _times(found: Any) -> StepTimes:
    return StepTimes(
        calls=found.get_total_count(),
        p50=found.get_value_at_percentile(50) / 1_000,
        p95=found.get_value_at_percentile(95) / 1_000,
        longest=found.get_max_value() / 1_000,
    )


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _seconds(value: object) -> float | None:
    """Since the epoch; None where it is no time, or one that no date can be made of."""
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    try:
        seconds = at.timestamp()
    except (OverflowError, ValueError):
        return None
    return seconds if 0 <= seconds < 32_503_680_000 else None  # noqa: PLR2004 - the year 3000
