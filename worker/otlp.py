"""OTLP over HTTP: OpenTelemetry's exporters, and the metrics that Prometheus scrapes in the form they take.

Loaded only where something is exported.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import requests
import structlog
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as ExportedMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from worker import semconv
from worker.instruments import ExportTally
from worker.recording import sender
from worker.spans import SCOPE, Endpoint

_log = structlog.get_logger(__name__)

_UNKNOWN: Final[Any] = None
"""The protocol has a least and a greatest value as options, the SDK's types do not."""


def span_exporter(endpoint: Endpoint) -> SpanExporter:
    """Posts spans to the collector. Raises OSError, ValueError, as `_options` does."""
    return OTLPSpanExporter(**_options(endpoint, "/v1/traces"))


def metric_exporter(endpoint: Endpoint) -> MetricExporter:
    """Posts metrics to the collector. Raises OSError, ValueError, as `_options` does."""
    return OTLPMetricExporter(**_options(endpoint, "/v1/metrics"))


def _options(endpoint: Endpoint, path: str) -> dict[str, Any]:
    """Raises OSError where the CA file cannot be read, and ValueError where the endpoint is no URL."""
    url = endpoint.url.rstrip("/") + path
    requests.Request("POST", url).prepare()
    certificates = ssl.get_default_verify_paths()
    if endpoint.ca_file is not None:
        ssl.create_default_context(cafile=endpoint.ca_file)  # reads it, so that a wrong one shows at start
    session = requests.Session()
    session.trust_env = False  # a password in ~/.netrc would be sent in place of the token
    session.hooks["response"].append(_refuse_redirection)
    return {
        "endpoint": url,
        "headers": {"Authorization": f"Bearer {endpoint.token}"} if endpoint.token is not None else {},
        "certificate_file": str(endpoint.ca_file or certificates.cafile or certificates.capath or "") or None,
        "timeout": endpoint.timeout_seconds,
        "session": session,
    }


def _refuse_redirection(response: requests.Response, **_: object) -> None:
    """Raises HTTPError for an answer of 3xx: nobody took the data, and the exporter calls it a success."""
    if HTTPStatus.MULTIPLE_CHOICES <= response.status_code < HTTPStatus.BAD_REQUEST:
        response.close()
        raise requests.HTTPError(f"the collector redirects: {response.status_code} {response.reason}")


class MetricPusher:
    """Exports all metrics every so often, on a thread of its own.

    The numbers are totals since the start, so a push that fails loses nothing that the next does not say:
    nothing waits, and nothing is kept for a collector that is away.
    """

    def __init__(
        self,
        collect: Callable[[], Iterable[Metric]],
        exporter: MetricExporter,
        *,
        resource: Mapping[str, str],
        tally: ExportTally,
        every_seconds: float,
        shutdown_seconds: float = 3.0,
    ) -> None:
        """Start the thread. `collect` gives the metrics as they stand; it is called on that thread."""
        self._collect = collect
        self._exporter = exporter
        self._resource = sender(resource)
        self._tally = tally
        self._every_seconds = every_seconds
        self._shutdown_seconds = shutdown_seconds
        self._started_ns = time.time_ns()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Push once more, for at most the seconds that are set; then leave the thread to its fate."""
        self._closing.set()
        self._thread.join(self._shutdown_seconds)
        self._exporter.shutdown()  # pyright: ignore[reportUnknownMemberType]  # its further arguments have no types

    def _run(self) -> None:
        while not self._closing.wait(self._every_seconds):
            self._push()
        self._push()

    def _push(self) -> None:
        try:
            data = metrics_data(self._collect(), resource=self._resource, started_ns=self._started_ns)
            result = self._exporter.export(data)  # pyright: ignore[reportUnknownMemberType]  # as above
            is_exported = result is MetricExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - a push with a defect must not end all later ones
            _log.error("metrics.failed", kind=type(error).__name__)
            is_exported = False
        self._tally.count("metrics", "exported" if is_exported else "failed", 1)


# --- Prometheus' metrics as OpenTelemetry's --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """In nanoseconds since the epoch: since when totals count, and until when."""

    since_ns: int
    now_ns: int


def metrics_data(families: Iterable[Metric], *, resource: Resource, started_ns: int) -> MetricsData:
    """Counters as cumulative sums, the rest as gauges and histograms; linear.

    `started_ns` is since when the totals count. Families of which nothing was counted yet are left out.
    """
    times = _Times(since_ns=started_ns, now_ns=time.time_ns())
    metrics = [_metric(family, times) for family in families if family.samples]
    scope = InstrumentationScope(SCOPE, schema_url=semconv.SCHEMA_URL)
    scopes = [ScopeMetrics(scope=scope, metrics=metrics, schema_url=semconv.SCHEMA_URL)]
    return MetricsData(
        [ResourceMetrics(resource=resource, scope_metrics=scopes, schema_url=semconv.SCHEMA_URL)]
    )


def _metric(family: Metric, times: _Times) -> ExportedMetric:
    data: Histogram | Sum | Gauge
    if family.type == "histogram":
        data = Histogram(_histogram_points(family, times), AggregationTemporality.CUMULATIVE)
    elif family.type == "counter":
        totals = [sample for sample in family.samples if sample.name.endswith("_total")]
        data = Sum(_points(totals, times), AggregationTemporality.CUMULATIVE, is_monotonic=True)
    else:
        data = Gauge(_points(family.samples, times))
    return ExportedMetric(name=family.name, description=family.documentation, unit=family.unit, data=data)


def _points(samples: Iterable[Sample], times: _Times) -> list[NumberDataPoint]:
    return [
        NumberDataPoint(
            attributes=one.labels,
            start_time_unix_nano=times.since_ns,
            time_unix_nano=times.now_ns,
            value=float(one.value),
        )
        for one in samples
    ]


def _histogram_points(family: Metric, times: _Times) -> list[HistogramDataPoint]:
    """One point for each set of labels; Prometheus adds its buckets up, OTLP does not."""
    buckets: defaultdict[tuple[tuple[str, str], ...], list[tuple[str, int]]] = defaultdict(list)
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        labels = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        if sample.name.endswith("_bucket"):
            buckets[labels].append((sample.labels["le"], int(sample.value)))
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    return [
        HistogramDataPoint(
            attributes=dict(labels),
            count=ends[-1][1],
            sum=sums[labels],
            bucket_counts=[
                total - before for (_, total), (_, before) in zip(ends, [("", 0), *ends[:-1]], strict=True)
            ],
            explicit_bounds=[float(end) for end, _ in ends[:-1]],
            min=_UNKNOWN,
            max=_UNKNOWN,
            start_time_unix_nano=times.since_ns,
            time_unix_nano=times.now_ns,
        )
        for labels, ends in buckets.items()
    ]
