"""The span of one consumed record, the same for every kind of record, and what is said on it."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Final

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.util.types import AttributeValue

from schemas.bundle import ContextBundle, Message
from schemas.usage import UsageEvent
from worker import semconv
from worker.kafka.headers import RequestHeaders, read_headers, trace_parent
from worker.kafka.records import InboundRecord, OutboundRecord
from worker.spans import mark_error
from worker.telemetry import Telemetry

MAX_TEXT_CHARS: Final = 8_192
"""Of a prompt, on a span: spans wait in memory."""


@contextmanager
def record_span(
    record: InboundRecord, name: str, *, kind: str, allowed: frozenset[str], telemetry: Telemetry
) -> Generator[RequestHeaders]:
    """A child span of the caller's while the record is worked on; gives the headers that name that.

    `kind` is what the record's own header may say, `allowed` which topics may be replied to. Where nothing is
    recorded the caller's span is the current one, for the ids in log lines.
    """
    headers = read_headers(record.headers, allowed_reply_topics=allowed, kind=kind)
    for ignored in headers.ignored:
        telemetry.ignored_headers.labels(ignored).inc()
    telemetry.count_age(record.topic, record.timestamp_ms)
    started = monotonic()
    if telemetry.is_tracing:
        span = _started(record, name, headers, telemetry)
    else:
        span = trace.get_current_span(trace_parent(headers))
    token = contexts.attach(trace.set_span_in_context(span))
    try:
        yield headers
    except BaseException as error:
        mark_error(span, error)
        raise
    finally:
        contexts.detach(token)
        span.end()
        telemetry.stage_seconds.observe(name, monotonic() - started)


def _started(record: InboundRecord, name: str, headers: RequestHeaders, telemetry: Telemetry) -> trace.Span:
    # The sender is the parent, and needs no link beside it.
    span = telemetry.tracer.start_span(name, context=trace_parent(headers), kind=trace.SpanKind.CONSUMER)
    if span.is_recording():
        attributes: dict[str, AttributeValue] = {
            semconv.MESSAGING_SYSTEM: "kafka",
            semconv.MESSAGING_OPERATION_NAME: "process",
            semconv.MESSAGING_OPERATION_TYPE: "process",
            semconv.MESSAGING_DESTINATION_NAME: record.topic,
            semconv.MESSAGING_DESTINATION_PARTITION_ID: str(record.partition),
            semconv.MESSAGING_KAFKA_OFFSET: record.offset,
            semconv.MESSAGING_MESSAGE_BODY_SIZE: len(record.value or b""),
        }
        if headers.correlation_id is not None:
            attributes[semconv.MESSAGING_MESSAGE_CONVERSATION_ID] = headers.correlation_id.decode(
                "utf-8", "replace"
            )
        span.set_attributes(attributes)
    return span


def note_ids(project_id: str, request_id: str | None = None) -> None:
    """Say on the current span whose record it is."""
    span = trace.get_current_span()
    if span.is_recording():
        span.set_attribute("context.project_id", project_id)
        if request_id is not None:
            span.set_attribute("context.request_id", request_id)


def note_sending(record: OutboundRecord) -> None:
    """Say on the current span, that of the step which publishes, where its reply goes."""
    span = trace.get_current_span()
    if span.is_recording():
        span.set_attributes(
            {
                semconv.MESSAGING_SYSTEM: "kafka",
                semconv.MESSAGING_OPERATION_NAME: "send",
                semconv.MESSAGING_OPERATION_TYPE: "send",
                semconv.MESSAGING_DESTINATION_NAME: record.topic,
                semconv.MESSAGING_MESSAGE_BODY_SIZE: len(record.value),
            }
        )


def note_outcome(outcome: str, code: str) -> None:
    """Say on the current span how its record ended; `code` is empty where nothing was refused."""
    span = trace.get_current_span()
    if span.is_recording():
        span.set_attribute("context.outcome", outcome)
        if code:
            span.set_attribute(semconv.ERROR_TYPE, code)


def note_bundle(bundle: ContextBundle, usage: UsageEvent, *, with_text: bool) -> None:
    """Say on the current span whom the prompt is for and what it holds; its text only if asked for."""
    span = trace.get_current_span()
    if not span.is_recording():
        return
    attributes: dict[str, AttributeValue] = {
        semconv.GEN_AI_AGENT_NAME: bundle.volk,
        "context.subject": bundle.subject,
    }
    if usage.model is not None:
        attributes[semconv.GEN_AI_REQUEST_MODEL] = usage.model
    if bundle.thread_id is not None:
        attributes[semconv.GEN_AI_CONVERSATION_ID] = bundle.thread_id
    if usage.usage is not None and usage.overhead is not None:
        overhead = usage.overhead
        added = overhead.client + overhead.framing + overhead.preamble + (overhead.template or 0)
        attributes[semconv.GEN_AI_USAGE_INPUT_TOKENS] = usage.usage.spent + added
        attributes[semconv.GEN_AI_REQUEST_MAX_TOKENS] = usage.usage.layers["output"].budget
    if with_text:
        attributes |= _texts(bundle.messages or ())
    span.set_attributes(attributes)


def _texts(messages: Sequence[Message]) -> dict[str, AttributeValue]:
    """The prompt in the form that the conventions give it, cut to what a span may hold."""
    parts = {
        message.role: [{"type": "text", "content": message.content[:MAX_TEXT_CHARS]}] for message in messages
    }
    texts: dict[str, AttributeValue] = {}
    if "system" in parts:
        texts[semconv.GEN_AI_SYSTEM_INSTRUCTIONS] = json.dumps(parts["system"])
    if "user" in parts:
        texts[semconv.GEN_AI_INPUT_MESSAGES] = json.dumps([{"role": "user", "parts": parts["user"]}])
    return texts
