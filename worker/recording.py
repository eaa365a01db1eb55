"""Recording spans with OpenTelemetry's SDK, and the queue in which they wait for their exporter.

Loaded only where something is exported.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import IO, Final

import structlog
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode
from opentelemetry.util.types import AnyValue, AttributeValue

from worker import semconv
from worker.instruments import ExportTally
from worker.spans import SCOPE

_log = structlog.get_logger(__name__)


@contextmanager
def record_spans(
    exporter: SpanExporter, *, resource: Mapping[str, str], ratio: float, tally: ExportTally
) -> Generator[TracerProvider]:
    """A provider whose spans go to `exporter`; on the way out, the last ones, for 3 s at most.

    A caller's own decision to sample is followed; of other traces a share of `ratio`, 0 to 1, is recorded.
    """
    provider = Recorder(SpanQueue(exporter, tally=tally), resource=sender(resource), ratio=ratio)
    try:
        yield provider
    finally:
        provider.shutdown()


class Recorder(TracerProvider):
    """A provider whose spans go to one queue, and that also takes spans of what is over already.

    Those cost a third of what a live one does: nothing asks the sampler again, and nothing locks what no
    other thread can change.
    """

    def __init__(self, queue: SpanProcessor, *, resource: Resource, ratio: float) -> None:
        """Follow a caller's decision to sample; of other traces record a share of `ratio`, 0 to 1."""
        super().__init__(
            sampler=ParentBased(TraceIdRatioBased(ratio)),
            resource=resource,
            shutdown_on_exit=False,
            # The worker has none, and those that a library adds hold the messages of errors.
            span_limits=SpanLimits(max_events=0),
        )
        self.add_span_processor(queue)
        self._queue = queue
        # The one that the tracer of that name has: what differs in it would be exported apart.
        self._scope = InstrumentationScope(SCOPE, "", semconv.SCHEMA_URL)

    def add_ended(
        self,
        name: str,
        *,
        parent: SpanContext,
        started_ns: int,
        ended_ns: int,
        attributes: Mapping[str, AttributeValue],
        is_error: bool,
    ) -> None:
        """As `worker.spans.EndedSpans`."""
        context = SpanContext(
            parent.trace_id,
            self.id_generator.generate_span_id(),
            is_remote=False,
            trace_flags=parent.trace_flags,
            trace_state=parent.trace_state,
        )
        self._queue.on_end(
            ReadableSpan(
                name,
                context,
                parent,
                self.resource,
                attributes,
                status=_FAILED if is_error else _UNSET,
                start_time=started_ns,
                end_time=ended_ns,
                instrumentation_scope=self._scope,
            )
        )


_UNSET: Final = Status(StatusCode.UNSET)
_FAILED: Final = Status(StatusCode.ERROR)


def sender(resource: Mapping[str, str]) -> Resource:
    """Who sends, with what the SDK and `OTEL_RESOURCE_ATTRIBUTES` add."""
    whole = Resource.create(dict(resource), schema_url=semconv.SCHEMA_URL)
    return _Sender(whole.attributes, whole.schema_url)


class _Sender(Resource):
    """Hashed once: the encoder asks for each span, and the SDK's own hash writes JSON each time."""

    def __init__(self, attributes: Mapping[str, AnyValue], schema_url: str) -> None:
        super().__init__(attributes, schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash


def lines_to(out: IO[str]) -> SpanExporter:
    """An exporter that writes each span as a line of JSON; `out` belongs to whoever opened it."""
    return ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\n")


class SpanQueue(SpanProcessor):
    """Ended spans on their way out, bounded, so that an exporter that hangs costs spans and nothing else.

    A thread of its own hands them over in batches, about once a second; meanwhile the queue fills, and then
    the newest are dropped. Whatever becomes of a span is counted. The SDK's own processor counts neither
    what it drops nor what its exporter could not deliver, and its end takes up to 30 s.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        *,
        tally: ExportTally,
        max_spans: int = 8_192,
        batch_spans: int = 512,
        every_seconds: float = 1.0,
        shutdown_seconds: float = 3.0,
    ) -> None:
        """Start the thread. The queue holds `max_spans` and one batch at most."""
        self._exporter = exporter
        self._tally = tally
        self._max_spans = max_spans
        self._batch_spans = batch_spans
        self._every_seconds = every_seconds
        self._shutdown_seconds = shutdown_seconds
        self._waiting: deque[ReadableSpan] = deque()
        self._held: list[ReadableSpan] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span that has ended, or drop it; returns at once."""
        if self._closing.is_set() or len(self._waiting) >= self._max_spans:
            self._tally.count("spans", "dropped", 1)
            return
        self._waiting.append(span)
        if len(self._waiting) == self._batch_spans:
            self._wake.set()

    def shutdown(self) -> None:
        """Hand over what waits for at most the seconds that are set, drop and count the rest. Idempotent.

        A thread that hangs in the exporter is left behind; it ends with its call, and with the process.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._wake.set()
        self._thread.join(self._shutdown_seconds)
        with self._lock:
            rest = len(self._held) + len(self._waiting)
            self._held = []
            self._waiting.clear()
        if rest:
            self._tally.count("spans", "dropped", rest)
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(self._every_seconds)
            self._wake.clear()
            self._drain()
        self._drain()

    def _drain(self) -> None:
        while batch := self._take():
            try:
                is_exported = self._exporter.export(batch) is SpanExportResult.SUCCESS
            except Exception as error:  # noqa: BLE001 - a batch with a defect must not keep the next ones
                _log.error("spans.failed", kind=type(error).__name__)
                is_exported = False
            with self._lock:
                # Empty where `shutdown` gave up on this batch meanwhile, and counted it.
                counted = len(self._held)
                self._held = []
            self._tally.count("spans", "exported" if is_exported else "failed", counted)

    def _take(self) -> list[ReadableSpan]:
        with self._lock:
            count = min(len(self._waiting), self._batch_spans)
            self._held = [self._waiting.popleft() for _ in range(count)]
            return self._held
