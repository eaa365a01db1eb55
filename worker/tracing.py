"""Where spans and pushed metrics go: nowhere, to standard error, to a file of JSON lines, to a collector.

Without an exporter no span is recorded, and replies carry the caller's `traceparent` as it came, since a span
that nobody exports would break the caller's chain. With one, the replies name the worker's own span, a child
of the caller's.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Literal

from opentelemetry.trace import TracerProvider

from worker.instruments import ExportTally
from worker.private_files import open_private
from worker.spans import Endpoint, resource_of
from worker.telemetry import Telemetry

Exporter = Literal["none", "console", "file", "otlp"]

_NO_ENDPOINT: Final = Endpoint(url="http://127.0.0.1:4318")


@contextmanager
def open_tracing(
    exporter: Exporter,
    *,
    file: Path,
    ratio: float,
    endpoint: Endpoint = _NO_ENDPOINT,
    resource: Mapping[str, str] | None = None,
    tally: ExportTally | None = None,
) -> Generator[TracerProvider | None]:
    """Who records spans, None where nothing is exported; on the way out, the last are written.

    A caller's own decision to sample is followed; of the requests without a trace a share of `ratio`, 0
    to 1, is recorded. Spans are written by a thread of their own; where they come faster than it writes,
    or the collector is away, the newest are dropped and counted in `tally`, so a request never waits. The
    way out takes 3 s at most. Raises OSError when the file or the CA certificates cannot be read, and
    ValueError where the endpoint is no URL.
    """
    if exporter == "none":
        yield None
        return
    # The SDK takes a while to load, which only those pay who use it.
    from worker.recording import lines_to, record_spans  # noqa: PLC0415  # as above

    with ExitStack() as stack:
        if exporter == "otlp":
            from worker.otlp import span_exporter  # noqa: PLC0415  # as above

            sink = span_exporter(endpoint)
        elif exporter == "console":
            sink = lines_to(sys.stderr)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            sink = lines_to(stack.enter_context(open_private(file, "a")))
        yield stack.enter_context(
            record_spans(
                sink,
                resource=resource or resource_of(version="unknown"),
                ratio=ratio,
                tally=tally or ExportTally(),
            )
        )


@contextmanager
def push_metrics(
    telemetry: Telemetry, endpoint: Endpoint, *, every_seconds: float, resource: Mapping[str, str]
) -> Generator[None]:
    """Push all metrics to the collector while the block runs, and once more at its end, for 3 s at most."""
    from worker.otlp import MetricPusher, metric_exporter  # noqa: PLC0415  # loads only where it is used

    pusher = MetricPusher(
        telemetry.registry.collect,
        metric_exporter(endpoint),
        resource=resource,
        tally=telemetry.exports,
        every_seconds=every_seconds,
    )
    try:
        yield
    finally:
        pusher.close()
