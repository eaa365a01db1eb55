"""Headers, read so that nothing in them can stop a record, and written for what answers it.

Of a repeated header the first counts. What cannot be read is ignored, and named for the metrics, with three
exceptions that decide about the record: another `context-kind` and a malformed `context-generation` make it
an invalid request, and a `reply_to` off the allow-list is answered on the default topic. A header without
bytes says nothing and counts as ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context

from worker.errors import InvalidRequest, Rejected, ReplyToNotAllowed

KIND: Final = "context-kind"
REPLY_TO: Final = "reply_to"
CORRELATION_ID: Final = "correlation_id"
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
GENERATION: Final = "context-generation"
KNOWN: Final = (KIND, REPLY_TO, CORRELATION_ID, TRACEPARENT, TRACESTATE, GENERATION)

Headers = tuple[tuple[str, bytes], ...]

MAX_ECHOED_BYTES: Final = 4_096
"""A longer correlation id is ignored: it would come back with every reply, beside a full-sized bundle."""
_MAX_TRACESTATE_BYTES: Final = 512
# W3C Trace Context: version ff and all-zero ids are invalid; only later versions may have more fields.
_TRACE_FIELDS: Final = "(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TRACEPARENT: Final = re.compile(
    f"00-{_TRACE_FIELDS}|(?!00|ff)[0-9a-f]{{2}}-{_TRACE_FIELDS}(?:-[ -~]{{0,400}})?".encode()
)
_TRACESTATE: Final = re.compile(rb"[ -~\t]+")
_GENERATION: Final = re.compile(rb"[0-9]{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeaders:
    """What the headers of one request say."""

    reply_to: str | None
    """The allowed topic that was asked for; None for the default one."""
    correlation_id: bytes | None
    traceparent: str | None
    tracestate: str | None
    generation: int
    refusal: Rejected | None
    """What in the headers alone makes the record a rejection."""
    ignored: tuple[str, ...]
    """Names of headers that were repeated or could not be read, one entry each time."""


def read_headers(
    headers: Iterable[tuple[str, bytes]], *, allowed_reply_topics: frozenset[str], kind: str = "request"
) -> RequestHeaders:
    """What the contract's headers say; others are not looked at. Raises nothing.

    `kind` is what the topic carries, and what a `context-kind` header may say.
    A malformed generation reads as 0, which is what a record has that `redrive` did not touch.
    """
    first: dict[str, bytes] = {}
    ignored: list[str] = []
    for name, value in headers:
        if name in KNOWN:
            if name in first or not value:
                ignored.append(name)
            else:
                first[name] = value
    correlation_id = first.get(CORRELATION_ID)
    if correlation_id is not None and len(correlation_id) > MAX_ECHOED_BYTES:
        ignored.append(CORRELATION_ID)
        correlation_id = None
    traceparent, tracestate = _read_trace(first, ignored)
    generation = first.get(GENERATION, b"0")
    reply_to = first.get(REPLY_TO, b"").decode("utf-8", "replace")
    return RequestHeaders(
        reply_to=reply_to if reply_to in allowed_reply_topics else None,
        correlation_id=correlation_id,
        traceparent=traceparent,
        tracestate=tracestate,
        generation=int(generation) if _GENERATION.fullmatch(generation) else 0,
        refusal=_refusal(first, allowed_reply_topics, kind),
        ignored=tuple(ignored),
    )


def _read_trace(first: dict[str, bytes], ignored: list[str]) -> tuple[str | None, str | None]:
    parent, state = first.get(TRACEPARENT), first.get(TRACESTATE)
    if parent is not None and not _TRACEPARENT.fullmatch(parent):
        ignored.append(TRACEPARENT)
        parent = None
    # A state without a parent belongs to no trace.
    if state is not None and (
        parent is None or len(state) > _MAX_TRACESTATE_BYTES or not _TRACESTATE.fullmatch(state)
    ):
        ignored.append(TRACESTATE)
        state = None
    return parent.decode("ascii") if parent else None, state.decode("ascii") if state else None


def _refusal(first: dict[str, bytes], allowed_reply_topics: frozenset[str], kind: str) -> Rejected | None:
    if first.get(KIND, kind.encode()) != kind.encode():
        return InvalidRequest(f"the {KIND} header does not say `{kind}`", header=KIND)
    if not _GENERATION.fullmatch(first.get(GENERATION, b"0")):
        return InvalidRequest(f"the {GENERATION} header is not a decimal number", header=GENERATION)
    reply_to = first.get(REPLY_TO)
    if reply_to is not None and reply_to.decode("utf-8", "replace") not in allowed_reply_topics:
        return ReplyToNotAllowed(
            f"the {REPLY_TO} header names a topic that is not on the allow-list",
            allowed=sorted(allowed_reply_topics),
        )
    return None


def trace_parent(headers: RequestHeaders) -> Context | None:
    """The caller's trace as a context to start spans in; None where the caller has none."""
    if headers.traceparent is None:
        return None
    state = None if headers.tracestate is None else trace.TraceState.from_header([headers.tracestate])
    # Read by hand, since its form was checked: the propagator takes four times as long.
    _, trace_id, span_id, flags = headers.traceparent.split("-")[:4]
    sender = trace.SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(flags, 16)),
        trace_state=state,
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(sender), Context())


def reply_headers(headers: RequestHeaders, *, kind: str, span: trace.Span) -> Headers:
    """The headers of what answers a request: kind, echoed correlation id, generation, trace.

    The trace is that of `span` where it is recorded, else the caller's as it came: a chain must not break
    because one member of it does not sample.
    """
    written: list[tuple[str, bytes]] = [(KIND, kind.encode())]
    if headers.correlation_id is not None:
        written.append((CORRELATION_ID, headers.correlation_id))
    written.append((GENERATION, str(headers.generation).encode()))
    carrier: dict[str, str] = {}
    if span.is_recording():
        own = span.get_span_context()
        carrier[TRACEPARENT] = f"00-{own.trace_id:032x}-{own.span_id:016x}-{int(own.trace_flags):02x}"
        if own.trace_state:
            carrier[TRACESTATE] = own.trace_state.to_header()
    elif headers.traceparent is not None:
        carrier[TRACEPARENT] = headers.traceparent
        if headers.tracestate is not None:
            carrier[TRACESTATE] = headers.tracestate
    written.extend((name, value.encode("ascii")) for name, value in carrier.items())
    return tuple(written)
