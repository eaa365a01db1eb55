"""Where spans go: nowhere, to standard error, or to a file of JSON lines.

Without an exporter no SDK is set up: a request costs one no-op span, and its replies carry the caller's
`traceparent` as it came, since a span that nobody exports would break the caller's chain. With one, the
replies name the worker's own span, a child of the caller's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Literal, cast

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

Exporter = Literal["none", "console", "file"]

_SERVICE: Final = "context-worker"
_MAX_QUEUED_SPANS: Final = 4_096


@contextmanager
def open_tracing(exporter: Exporter, *, file: Path, ratio: float) -> Generator[TracerProvider | None]:
    """The provider of recorded spans, None where nothing is exported; on the way out, the last are written.

    A caller's own decision to sample is followed; of the requests without a trace a share of `ratio`, 0
    to 1, is recorded. Spans are written by a thread of their own; where they come faster than it writes,
    the newest are dropped, so a request never waits. Raises OSError when the file cannot be opened.
    """
    if exporter == "none":
        yield None
        return
    if exporter == "console":
        with _exporting(sys.stderr, ratio) as provider:
            yield provider
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines, _exporting(lines, ratio) as provider:
        yield provider


@contextmanager
def _exporting(out: IO[str], ratio: float) -> Generator[TracerProvider]:
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(ratio)),
        resource=Resource.create({"service.name": _SERVICE}),
        shutdown_on_exit=False,
    )
    exporter = ConsoleSpanExporter(out=out, formatter=span_line)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=_MAX_QUEUED_SPANS))
    try:
        yield provider
    finally:
        provider.shutdown()


def span_line(span: ReadableSpan) -> str:
    """One span as a line of JSON. Of an exception it holds the type alone: messages may quote a prompt."""
    fields = cast("dict[str, Any]", json.loads(span.to_json(indent=None)))
    fields["status"] = {"status_code": fields["status"]["status_code"]}
    fields["events"] = [
        {
            "name": event["name"],
            "timestamp": event["timestamp"],
            "attributes": {
                name: value for name, value in event["attributes"].items() if name == "exception.type"
            },
        }
        for event in fields["events"]
    ]
    return json.dumps(fields, ensure_ascii=False) + "\n"
