"""Every name that is measured, spelled once: metrics (Prometheus) and span names (OpenTelemetry).

Labels are closed vocabularies (layers, codes, statuses, topics); ids and texts never become labels.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final, Generic, TypeVar

from opentelemetry import trace
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from schemas.codes import LayerReason, LayerStatus, PartName

SPAN_REQUEST: Final = "context.request"
SPAN_DECODE: Final = "context.decode"
SPAN_ANALYSE: Final = "context.analyse"
SPAN_GATHER: Final = "context.gather"
SPAN_FUSE: Final = "context.fuse"
SPAN_STORE: Final = "context.store"
SPAN_PUBLISH: Final = "context.publish"

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


M = TypeVar("M", Counter, Histogram)


class _Children(dict[Any, M], Generic[M]):
    """The children of one metric by their label or labels, looked up once each."""

    def __init__(self, metric: M) -> None:
        super().__init__()
        self._metric = metric

    def __missing__(self, labels: str | tuple[str, ...]) -> M:
        child = self._metric.labels(*((labels,) if isinstance(labels, str) else labels))
        self[labels] = child
        return child


class Telemetry:
    """The instruments of one worker. Each worker has its own registry; `wiring` makes one and hands it on."""

    def __init__(self) -> None:
        """Create every instrument, so that `/metrics` shows zeros before the first event."""
        self.registry = CollectorRegistry()
        registry = self.registry
        self.tracer = trace.get_tracer("context-worker")
        self.outcomes = Counter(
            "context_outcomes_total",
            "Requests ended, by outcome and rejection code (empty for bundles).",
            ("outcome", "code"),
            registry=registry,
        )
        self.outcomes_republished = Counter(
            "context_outcomes_republished_total", "Stored outcomes published again.", registry=registry
        )
        self.dead_letters = Counter(
            "context_dead_letters_total",
            "Records kept on the dead-letter topic.",
            ("code",),
            registry=registry,
        )
        self.layers = Counter(
            "context_layers_total",
            "Layers of published bundles, by status and reason (empty where there is none).",
            ("layer", "status", "reason"),
            registry=registry,
        )
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
        self.stage_seconds = Histogram(
            "context_stage_seconds",
            "Time per step of the path.",
            ("stage",),
            buckets=_SECONDS,
            registry=registry,
        )
        # Looking a child up by its labels costs more than counting; these are counted for each request.
        self._stages = _Children(self.stage_seconds)
        self._layers = _Children(self.layers)
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

    @contextmanager
    def step(self, name: str) -> Generator[None]:
        """One step of the path: its seconds in the histogram, and a span where the request is traced."""
        started = perf_counter()
        try:
            if trace.get_current_span().is_recording():
                with self.tracer.start_as_current_span(name):
                    yield
            else:
                yield
        finally:
            self._stages[name].observe(perf_counter() - started)

    def count_layer(self, layer: PartName, status: LayerStatus, reason: LayerReason | None) -> None:
        """One layer of a bundle."""
        self._layers[layer, status, reason or ""].inc()

    def exposition(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)
