"""Every name that is measured, spelled once: metrics (Prometheus) and span names (OpenTelemetry).

Labels are closed vocabularies (layers, codes, statuses, topics); ids and texts never become labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import Token
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from time import monotonic, time_ns
from types import TracebackType
from typing import Final, get_args

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from schemas.answers import RefusalCode
from schemas.citations import VerdictCode
from schemas.codes import CONTENT_LAYERS, DEAD_LETTER_CODES, RejectionCode
from schemas.topics import TopicRole
from schemas.usage import UsageEvent
from schemas.wire import DecodeNotes
from worker import semconv
from worker.instruments import ExportTally, LayerTally, StepSeconds
from worker.spans import SCOPE, EndedSpans, error_type, mark_error

SPAN_REQUEST: Final = "context.request"
SPAN_DECODE: Final = "context.decode"
SPAN_ANALYSE: Final = "context.analyse"
SPAN_PLAN: Final = "context.plan"
SPAN_GATHER: Final = "context.gather"
SPAN_SOURCE: Final = "context.source"
SPAN_FUSE: Final = "context.fuse"
SPAN_FINISH: Final = "context.finish"
SPAN_SEAL: Final = "context.seal"
SPAN_STORE: Final = "context.store"
SPAN_PUBLISH: Final = "context.publish"
SPAN_SYNC: Final = "context.sync"
SPAN_INDEX: Final = "context.index"
SPAN_STATE: Final = "context.state"
SPAN_ANSWER: Final = "context.answer"
SPAN_JUDGE: Final = "context.judge"
SPAN_RETRY: Final = "context.retry"
SPAN_TOOL: Final = "context.tool"
SPAN_TOOL_READ: Final = "context.tool.read"
SPAN_TOOL_RUN: Final = "context.tool.run"

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_AGES: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


def _begun(counter: Counter, label_sets: Iterable[Sequence[str]]) -> Counter:
    """The counter with these at 0: an increase from nothing is none, so the first event would go unseen."""
    for labels in label_sets:
        counter.labels(*labels)
    return counter


_CODES: Final = get_args(RejectionCode)
_REFUSED: Final = [("rejected", code) for code in _CODES]
_JUDGED: Final = [
    ("accepted", "complied"),
    *((verdict, code) for verdict in ("retry", "escalated") for code in get_args(VerdictCode)[1:]),
]
_CACHE_RESULTS: Final = [("hit",), ("miss",), ("damaged",), ("unavailable",)]
_REPLIES: Final = ("bundle", "bundle_ref", "rejection", "sync_result", "tool_result", "verdict")
_ALTERED: Final = [
    *((kind, change) for kind in _REPLIES for change in ("other_topic", "shortened")),
    *((kind, "left_out") for kind in ("dead_letter", "escalation", "rejection", "usage")),
    ("dead_letter", "cut"),
    ("reply", "other_key"),
]


@cache
def topic_label(topic: str) -> str:
    """What the topic carries, where its name ends with that; else its name."""
    roles = sorted(get_args(TopicRole), key=len, reverse=True)
    return next((role for role in roles if topic.endswith(role)), topic)


_NO_ATTRIBUTES: Final[Mapping[str, str | int]] = {}


class _Step:
    """One step of the path, timed; a span where the request is traced, and the current one meanwhile."""

    __slots__ = ("_kind", "_name", "_span", "_started", "_telemetry", "_token")

    def __init__(self, telemetry: Telemetry, name: str, kind: SpanKind) -> None:
        self._telemetry = telemetry
        self._name = name
        self._kind = kind
        self._span: trace.Span | None = None
        self._token: Token[Context] | None = None
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = monotonic()
        if self._telemetry.is_traced:
            self._span = self._telemetry.tracer.start_span(self._name, kind=self._kind)
            self._token = contexts.attach(trace.set_span_in_context(self._span))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_back: TracebackType | None
    ) -> None:
        if self._span is not None and self._token is not None:
            contexts.detach(self._token)
            if error is not None:
                mark_error(self._span, error)
            self._span.end()
        self._telemetry.stage_seconds.observe(self._name, monotonic() - self._started)


class _Leaf:
    """A step in which no other is recorded: its span is made at the end, which is cheaper."""

    __slots__ = ("_name", "_started", "_telemetry")

    def __init__(self, telemetry: Telemetry, name: str) -> None:
        self._telemetry = telemetry
        self._name = name
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_back: TracebackType | None
    ) -> None:
        telemetry, ended = self._telemetry, monotonic()
        telemetry.stage_seconds.observe(self._name, ended - self._started)
        if telemetry.is_traced:
            _SpansAfter(telemetry).add(self._name, started=self._started, ended=ended, error=error)


class _Steps:
    """Steps that follow one another without a gap; cheaper than one by one, and pure code can mark them."""

    __slots__ = ("_marks", "_names", "_telemetry")

    def __init__(self, telemetry: Telemetry, names: Sequence[str]) -> None:
        self._telemetry = telemetry
        self._names = names
        self._marks: list[float] = []

    def __enter__(self) -> Callable[[], None]:
        marks = self._marks
        marks.append(monotonic())
        return lambda: marks.append(monotonic())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_back: TracebackType | None
    ) -> None:
        telemetry, marks = self._telemetry, self._marks
        marks.append(monotonic())
        # After an error those that were not begun are left out, and the last one that was has failed.
        last = len(marks) - 2
        done = zip(self._names, pairwise(marks), strict=False)
        spans = _SpansAfter(telemetry) if telemetry.is_traced else None
        for position, (name, (started, ended)) in enumerate(done):
            telemetry.stage_seconds.observe(name, ended - started)
            if spans is not None:
                failed = error if position == last else None
                spans.add(name, started=started, ended=ended, error=failed)


class _SpansAfter:
    """Makes spans of what is over already, children of the current one; times by `time.monotonic`."""

    __slots__ = ("_ended", "_parent", "_tracer", "_wall_ns")

    def __init__(self, telemetry: Telemetry) -> None:
        self._tracer = telemetry.tracer
        self._ended = telemetry.ended_spans
        self._parent = trace.get_current_span().get_span_context()
        self._wall_ns = time_ns() - int(monotonic() * 1e9)

    def add(
        self,
        name: str,
        *,
        started: float,
        ended: float,
        attributes: Mapping[str, str | int] = _NO_ATTRIBUTES,
        error: BaseException | None = None,
    ) -> None:
        started_ns = self._wall_ns + int(started * 1e9)
        ended_ns = self._wall_ns + int(ended * 1e9)
        if error is not None:
            attributes = {**attributes, semconv.ERROR_TYPE: error_type(error)}
        if self._ended is not None:
            self._ended.add_ended(
                name,
                parent=self._parent,
                started_ns=started_ns,
                ended_ns=ended_ns,
                attributes=attributes,
                is_error=error is not None,
            )
            return
        span = self._tracer.start_span(name, start_time=started_ns, attributes=attributes)
        if error is not None:
            span.set_status(StatusCode.ERROR)
        span.end(ended_ns)


@dataclass(frozen=True, slots=True)
class SourceRun:
    """How one source fared; times by `time.monotonic`."""

    layer: str
    started: float
    ended: float
    result: str
    """The status of what it gave, or `rejected`."""
    reason: str | None
    fragments: int
    waited: bool
    """Whether it asked somebody: it did not answer at once."""

    @property
    def was_idle(self) -> bool:
        """Whether it had nothing to do: it is off, or had been given nothing and asked nobody."""
        return self.result in {"off", "empty"} and not self.waited


class Telemetry:
    """The instruments of one worker. Each worker has its own registry; `wiring` makes one and hands it on."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        *,
        exports: ExportTally | None = None,
        has_prompts_on_spans: bool = False,
    ) -> None:
        """Create every instrument, so that `/metrics` shows zeros before the first event.

        Spans are made by `tracer_provider`; without one nothing is recorded, unless one is set globally.
        `exports` counts what becomes of them; the prompt's text stands on them only if it is asked for.
        """
        self.registry = CollectorRegistry()
        registry = self.registry
        self.tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider, schema_url=semconv.SCHEMA_URL)
        self.ended_spans = tracer_provider if isinstance(tracer_provider, EndedSpans) else None
        self.has_prompts_on_spans = has_prompts_on_spans
        self.exports = ExportTally() if exports is None else exports
        registry.register(self.exports)
        self.outcomes = _begun(
            Counter(
                "context_outcomes_total",
                "Requests ended, by outcome and rejection code (empty for bundles).",
                ("outcome", "code"),
                registry=registry,
            ),
            [("complete", ""), ("degraded", ""), *_REFUSED],
        )
        self.outcomes_republished = Counter(
            "context_outcomes_republished_total", "Stored outcomes published again.", registry=registry
        )
        self.syncs = _begun(
            Counter(
                "context_syncs_total",
                "Syncs ended, by outcome (indexed, unchanged, repeated, rejected) and rejection code.",
                ("outcome", "code"),
                registry=registry,
            ),
            [("indexed", ""), ("unchanged", ""), ("repeated", ""), *_REFUSED],
        )
        self.state_events = _begun(
            Counter(
                "context_state_events_total",
                "State events, by outcome (new, repeated, conflicting, late, rejected) and rejection code.",
                ("outcome", "code"),
                registry=registry,
            ),
            [("new", ""), ("repeated", ""), ("conflicting", ""), ("late", ""), *_REFUSED],
        )
        self.tool_calls = _begun(
            Counter(
                "context_tool_calls_total",
                "Tool calls over Kafka, by outcome (answered, failed, rejected) and error or rejection code.",
                ("outcome", "code"),
                registry=registry,
            ),
            [("answered", ""), *_REFUSED],
        )
        self.verdicts = _begun(
            Counter(
                "context_verdicts_total",
                "Answers by verdict (accepted, retry, escalated, refused; or repeated, rejected) and code.",
                ("verdict", "code"),
                registry=registry,
            ),
            [*_JUDGED, *(("refused", code) for code in get_args(RefusalCode)), *_REFUSED],
        )
        self.undecided_owners = Counter(
            "context_undecided_owners_total",
            "Owners that the relevance rules could not decide within their bound, and so denied.",
            registry=registry,
        )
        self.dead_letters = _begun(
            Counter(
                "context_dead_letters_total",
                "Records kept on the dead-letter topic, by rejection code.",
                ("code",),
                registry=registry,
            ),
            [(code,) for code in sorted(DEAD_LETTER_CODES)],
        )
        self.layers = LayerTally(
            "context_layers_total",
            "Layers of the bundles that became outcomes, by status and reason (empty where there is none).",
        )
        registry.register(self.layers)
        self.abandoned = _begun(
            Counter(
                "context_sources_abandoned_total",
                "Source calls that swallowed their cancellation and were left behind, by layer.",
                ("layer",),
                registry=registry,
            ),
            [(layer,) for layer in CONTENT_LAYERS],
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
        self.pack_cache = _begun(
            Counter(
                "context_pack_cache_total",
                "Questions to the graph by what the cache said: hit, miss, damaged or unavailable.",
                ("result",),
                registry=registry,
            ),
            _CACHE_RESULTS,
        )
        self.state_cache = _begun(
            Counter(
                "context_state_cache_total",
                "State asked of Redis by what it said: hit, miss, damaged or unavailable.",
                ("result",),
                registry=registry,
            ),
            _CACHE_RESULTS,
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
        self.altered_publications = _begun(
            Counter(
                "context_altered_publications_total",
                "Records that could not be published as they were, by what and by what was done about it.",
                ("kind", "change"),
                registry=registry,
            ),
            _ALTERED,
        )
        self.stage_seconds = StepSeconds(
            "context_stage_seconds", "Time per step of the path.", label="stage", bounds=_SECONDS
        )
        registry.register(self.stage_seconds)
        self.source_seconds = StepSeconds(
            "context_source_seconds", "Time that each source took, by layer.", label="layer", bounds=_SECONDS
        )
        registry.register(self.source_seconds)
        self.record_age_seconds = StepSeconds(
            "context_record_age_seconds",
            "Time from a record's timestamp to each beginning of its work, by topic without its prefix.",
            label="topic",
            bounds=_AGES,
        )
        registry.register(self.record_age_seconds)
        self.records_lag = Gauge(
            "context_records_lag",
            "Offsets from the commit to the end of the log as last fetched, by topic without its prefix.",
            ("topic",),
            registry=registry,
        )
        self.in_flight = Gauge(
            "context_records_in_flight",
            "Records in work, by topic without its prefix.",
            ("topic",),
            registry=registry,
        )
        self.waiting = Gauge(
            "context_records_waiting",
            "Records that were read ahead and wait for their turn, by topic without its prefix.",
            ("topic",),
            registry=registry,
        )
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
            "context_event_loop_lag_seconds",
            "Greatest delay of a periodic timer in the last minute.",
            registry=registry,
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

    def step(self, name: str, *, kind: SpanKind = SpanKind.INTERNAL) -> AbstractContextManager[None]:
        """One step of the path: its seconds in the histogram, and a span where the request is traced."""
        return _Step(self, name, kind)

    def leaf(self, name: str) -> AbstractContextManager[None]:
        """A step in which no other is recorded, and of which nothing is noted. Its span is never current."""
        return _Leaf(self, name)

    def steps(self, *names: str) -> AbstractContextManager[Callable[[], None]]:
        """Steps that follow one another; what it gives ends one and begins the next.

        It may be called in a thread. Their spans are made at the end, and none is current meanwhile.
        """
        return _Steps(self, names)

    def count_sources(self, runs: Iterable[SourceRun]) -> None:
        """What each source took, and a span of each that had something to do where the request is traced."""
        spans = _SpansAfter(self) if self.is_traced else None
        for run in runs:
            self.source_seconds.observe(run.layer, run.ended - run.started)
            if spans is not None and not run.was_idle:
                attributes: dict[str, str | int] = {
                    "context.layer": run.layer,
                    "context.status": run.result,
                    "context.fragments": run.fragments,
                }
                if run.reason is not None:
                    attributes["context.reason"] = run.reason
                spans.add(SPAN_SOURCE, started=run.started, ended=run.ended, attributes=attributes)

    def count_age(self, topic: str, timestamp_ms: int) -> None:
        """How old a record is of which the work begins; one without a timestamp, -1, has no age."""
        if timestamp_ms >= 0:
            age_ns = time_ns() - timestamp_ms * 1_000_000
            # A sender's clock may be ahead.
            self.record_age_seconds.observe(topic_label(topic), max(0, age_ns) / 1e9)

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
