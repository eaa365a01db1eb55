"""Every name that is measured, spelled once: metrics (Prometheus) and span names (OpenTelemetry).

Labels are closed vocabularies (layers, codes, statuses, topics); ids and texts never become labels.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from time import perf_counter
from types import TracebackType
from typing import Any, Final

from opentelemetry import trace
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from schemas.usage import UsageEvent
from schemas.wire import DecodeNotes

SPAN_REQUEST: Final = "context.request"
SPAN_DECODE: Final = "context.decode"
SPAN_ANALYSE: Final = "context.analyse"
SPAN_GATHER: Final = "context.gather"
SPAN_FUSE: Final = "context.fuse"
SPAN_STORE: Final = "context.store"
SPAN_PUBLISH: Final = "context.publish"
SPAN_SYNC: Final = "context.sync"
SPAN_INDEX: Final = "context.index"
SPAN_STATE: Final = "context.state"
SPAN_TOOL: Final = "context.tool"
SPAN_TOOL_READ: Final = "context.tool.read"
SPAN_TOOL_RUN: Final = "context.tool.run"

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class StepSeconds(Collector):
    """A histogram of seconds by step, for what is timed several times a request.

    Taking one down costs less than a microsecond; the library's own histogram takes five, which for all
    steps of a request is more than publishing it.
    """

    def __init__(self, name: str, documentation: str, *, bounds: Sequence[float]) -> None:
        """`bounds` are the upper ends of the buckets, ascending; one without an end is added."""
        self._name = name
        self._documentation = documentation
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
        family = HistogramMetricFamily(self._name, self._documentation, labels=("stage",))
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


class _Step:
    """One step of the path, timed; a span where the request is traced."""

    __slots__ = ("_name", "_span", "_started", "_telemetry")

    def __init__(self, telemetry: Telemetry, name: str) -> None:
        self._telemetry = telemetry
        self._name = name
        self._span: AbstractContextManager[Any] | None = None
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = perf_counter()
        if self._telemetry.is_traced:
            self._span = self._telemetry.tracer.start_as_current_span(self._name)
            self._span.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_back: TracebackType | None
    ) -> None:
        if self._span is not None:
            self._span.__exit__(kind, error, trace_back)
        self._telemetry.stage_seconds.observe(self._name, perf_counter() - self._started)


class Telemetry:
    """The instruments of one worker. Each worker has its own registry; `wiring` makes one and hands it on."""

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        """Create every instrument, so that `/metrics` shows zeros before the first event.

        Spans are made by `tracer_provider`; without one nothing is recorded, unless one is set globally.
        """
        self.registry = CollectorRegistry()
        registry = self.registry
        self.tracer = trace.get_tracer("context-worker", tracer_provider=tracer_provider)
        self.outcomes = Counter(
            "context_outcomes_total",
            "Requests ended, by outcome and rejection code (empty for bundles).",
            ("outcome", "code"),
            registry=registry,
        )
        self.outcomes_republished = Counter(
            "context_outcomes_republished_total", "Stored outcomes published again.", registry=registry
        )
        self.syncs = Counter(
            "context_syncs_total",
            "Syncs ended, by outcome (indexed, unchanged, repeated, rejected) and rejection code.",
            ("outcome", "code"),
            registry=registry,
        )
        self.state_events = Counter(
            "context_state_events_total",
            "State events, by outcome (new, repeated, conflicting, late, rejected) and rejection code.",
            ("outcome", "code"),
            registry=registry,
        )
        self.tool_calls = Counter(
            "context_tool_calls_total",
            "Tool calls over Kafka, by outcome (answered, failed, rejected) and error or rejection code.",
            ("outcome", "code"),
            registry=registry,
        )
        self.undecided_owners = Counter(
            "context_undecided_owners_total",
            "Owners that the relevance rules could not decide within their bound, and so denied.",
            registry=registry,
        )
        self.dead_letters = Counter(
            "context_dead_letters_total",
            "Records kept on the dead-letter topic.",
            ("code",),
            registry=registry,
        )
        self.layers = LayerTally(
            "context_layers_total",
            "Layers of the bundles that became outcomes, by status and reason (empty where there is none).",
        )
        registry.register(self.layers)
        self.abandoned = Counter(
            "context_sources_abandoned_total",
            "Source calls that swallowed their cancellation and were left behind.",
            ("layer",),
            registry=registry,
        )
        self.abandoned_now = Gauge(
            "context_sources_left_behind", "Abandoned source calls that still run.", registry=registry
        )
        self.unknown_fields = Counter(
            "context_unknown_fields_total",
            "Request fields that the contract does not have.",
            registry=registry,
        )
        self.naive_times = Counter(
            "context_naive_times_total", "Times without a zone, read as UTC.", registry=registry
        )
        self.escaped_delimiters = Counter(
            "context_escaped_delimiters_total",
            "Section delimiters found in content, made visibly harmless.",
            registry=registry,
        )
        self.pack_cache = Counter(
            "context_pack_cache_total",
            "Questions to the graph by what the cache said: hit, miss or unavailable.",
            ("result",),
            registry=registry,
        )
        self.state_cache = Counter(
            "context_state_cache_total",
            "State asked of Redis by what it said: hit, miss, damaged or unavailable.",
            ("result",),
            registry=registry,
        )
        self.ignored_headers = Counter(
            "context_ignored_headers_total",
            "Headers that could not be read and were ignored, or repeated ones.",
            ("header",),
            registry=registry,
        )
        self.records_given_up = Counter(
            "context_records_given_up_total",
            "Records that could be neither handled nor kept as dead letters; only their own topic has them.",
            registry=registry,
        )
        self.altered_publications = Counter(
            "context_altered_publications_total",
            "Records that could not be published as they were, by what and by what was done about it.",
            ("kind", "change"),
            registry=registry,
        )
        self.stage_seconds = StepSeconds(
            "context_stage_seconds", "Time per step of the path.", bounds=_SECONDS
        )
        registry.register(self.stage_seconds)
        self.in_flight = Gauge("context_records_in_flight", "Records in work.", registry=registry)
        self.paused_partitions = Gauge(
            "context_partitions_paused", "Assigned partitions that are paused.", ("cause",), registry=registry
        )
        self.uncommitted_span = Gauge(
            "context_uncommitted_span",
            "Widest distance between the committed and the last admitted offset.",
            registry=registry,
        )
        self.commits = Counter("context_commits_total", "Offset commits.", registry=registry)
        self.quarantine = Gauge(
            "context_quarantine", "1 while records are tried one at a time.", registry=registry
        )
        self.usage_log_failures = Counter(
            "context_usage_log_failures_total", "Usage lines that could not be written.", registry=registry
        )
        self.loop_lag_seconds = Gauge(
            "context_event_loop_lag_seconds", "Latest delay of a periodic timer.", registry=registry
        )

    @property
    def is_tracing(self) -> bool:
        """Whether anything records spans: a provider of this worker's own, or a global one."""
        return not isinstance(self.tracer, trace.ProxyTracer) or not isinstance(
            trace.get_tracer_provider(), trace.ProxyTracerProvider
        )

    @property
    def is_traced(self) -> bool:
        """Whether spans of the current request are recorded."""
        return trace.get_current_span().is_recording()

    def step(self, name: str) -> AbstractContextManager[None]:
        """One step of the path: its seconds in the histogram, and a span where the request is traced."""
        return _Step(self, name)

    def count_notes(self, notes: DecodeNotes) -> None:
        """What decoding a record forgave, which is mostly nothing."""
        if notes.unknown_fields:
            self.unknown_fields.inc(notes.unknown_fields)
        if notes.naive_times:
            self.naive_times.inc(notes.naive_times)

    def count_bundle(self, usage: UsageEvent) -> None:
        """The layers of a bundle that became the outcome, and the delimiters that were escaped in it."""
        for layer, outcome in (usage.statuses or {}).items():
            self.layers.count(layer, outcome.status, outcome.reason)
        if usage.counts is not None and usage.counts.escaped_delimiters:
            self.escaped_delimiters.inc(usage.counts.escaped_delimiters)

    def exposition(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)
