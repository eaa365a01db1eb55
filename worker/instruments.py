"""Metric families of the worker's own: cheaper to count than the library's, or shared by threads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Literal

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class ExportTally(Collector):
    """A counter of what became of telemetry that leaves the worker; threads share it."""

    def __init__(self) -> None:
        """Nothing is counted so far."""
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {
            (signal, result): 0
            for signal in ("spans", "metrics")
            for result in ("exported", "failed", "dropped")
            if (signal, result) != ("metrics", "dropped")  # nothing waits that could be
        }

    def count(
        self,
        signal: Literal["spans", "metrics"],
        result: Literal["exported", "failed", "dropped"],
        number: int,
    ) -> None:
        """`number` spans, or pushes of all metrics."""
        with self._lock:
            self._counts[signal, result] += number

    def collect(self) -> Iterable[Metric]:
        """The family as it stands."""
        family = CounterMetricFamily(
            "context_telemetry_exports",
            "Spans, and pushes of all metrics, by what became of them: exported, failed or dropped.",
            labels=("signal", "result"),
        )
        with self._lock:
            counts = list(self._counts.items())
        for labels, count in counts:
            family.add_metric(labels, count)
        yield family


class StepSeconds(Collector):
    """A histogram of seconds by one label, for what is timed several times a request.

    Taking one down costs less than a microsecond; the library's own histogram takes five, which for all
    steps of a request is more than publishing it.
    """

    def __init__(self, name: str, documentation: str, *, label: str, bounds: Sequence[float]) -> None:
        """`bounds` are the upper ends of the buckets, ascending; one without an end is added."""
        self._name = name
        self._documentation = documentation
        self._label = label
        self._bounds = tuple(bounds)
        self._ends = (*map(str, map(float, bounds)), "+Inf")
        self._counts: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(self._ends))
        self._sums: defaultdict[str, float] = defaultdict(float)

    def observe(self, step: str, seconds: float) -> None:
        """Take one duration down."""
        self._counts[step][bisect_left(self._bounds, seconds)] += 1
        self._sums[step] += seconds

    def collect(self) -> Iterable[Metric]:
        """The family as it stands."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=(self._label,))
        for step, counts in list(self._counts.items()):
            buckets = list(zip(self._ends, accumulate(counts), strict=True))
            family.add_metric((step,), buckets, self._sums[step])
        yield family


class LayerTally(Collector):
    """A counter of layers by name, status and reason, for what is counted ten times a request."""

    def __init__(self, name: str, documentation: str) -> None:
        """Nothing is counted so far."""
        self._name = name
        self._documentation = documentation
        self._counts: defaultdict[tuple[str, str, str], int] = defaultdict(int)

    def count(self, layer: str, status: str, reason: str | None) -> None:
        """One layer of a bundle."""
        self._counts[layer, status, reason or ""] += 1

    def collect(self) -> Iterable[Metric]:
        """The family as it stands."""
        family = CounterMetricFamily(self._name, self._documentation, labels=("layer", "status", "reason"))
        for labels, count in list(self._counts.items()):
            family.add_metric(labels, count)
        yield family
