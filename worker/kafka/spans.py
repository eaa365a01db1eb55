"""The span of one consumed record, the same for every kind of record."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry import trace

from worker.kafka.headers import RequestHeaders, read_headers, trace_parent
from worker.kafka.records import InboundRecord
from worker.telemetry import Telemetry


@contextmanager
def record_span(
    record: InboundRecord, name: str, *, kind: str, allowed: frozenset[str], telemetry: Telemetry
) -> Generator[RequestHeaders]:
    """A child span of the caller's while the record is worked on; gives the headers that name that.

    `kind` is what the record's own header may say, `allowed` which topics may be replied to.
    """
    headers = read_headers(record.headers, allowed_reply_topics=allowed, kind=kind)
    for ignored in headers.ignored:
        telemetry.ignored_headers.labels(ignored).inc()
    if not telemetry.is_tracing:
        yield headers
        return
    with telemetry.tracer.start_as_current_span(
        name, context=trace_parent(headers), kind=trace.SpanKind.CONSUMER
    ) as span:
        if span.is_recording():
            span.set_attributes(
                {
                    "messaging.system": "kafka",
                    "messaging.operation.type": "process",
                    "messaging.destination.name": record.topic,
                    "messaging.destination.partition.id": str(record.partition),
                    "messaging.kafka.offset": record.offset,
                    "messaging.message.body.size": len(record.value or b""),
                }
            )
        yield headers
