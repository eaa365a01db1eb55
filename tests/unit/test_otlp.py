"""What a collector gets, and what the worker does without one."""

# What waits shows nowhere else.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv import schemas
from opentelemetry.semconv._incubating.attributes import (
    gen_ai_attributes,
    messaging_attributes,
    service_attributes,
)
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.trace import StatusCode, use_span
from prometheus_client.core import Metric

from tests.support.assembling import settings
from tests.support.collector import Manner, collector, no_collector
from tests.support.collector import attributes as attributes_of
from tests.support.handling import FIELDS, Bench, open_store, record
from worker import semconv
from worker.instruments import ExportTally
from worker.otlp import MetricPusher, metric_exporter, span_exporter
from worker.recording import SpanQueue, record_spans
from worker.spans import Endpoint, resource_of
from worker.telemetry import Telemetry
from worker.tracing import open_tracing, push_metrics
from worker.wiring import build_assembler

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE_ID}-{PARENT}-01".encode()
RESOURCE = resource_of(version="1.2.3")
STEPS = ("decode", "analyse", "plan", "gather", "fuse", "finish", "seal", "store", "publish")


def counted(tally: ExportTally) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["signal"], sample.labels["result"]): sample.value
        for family in tally.collect()
        for sample in family.samples
        if sample.value
    }


async def handle(bench: Bench, telemetry: Telemetry, body: object = None, **more: Any) -> None:
    """One request through the handler and the real assembler."""
    watched = replace(bench, telemetry=telemetry)
    handler = watched.handler(assemble=build_assembler(settings(), telemetry).assemble)
    headers = (("traceparent", SAMPLED), ("tracestate", b"shop=7"), ("correlation_id", b"c-1"))
    await handler.handle(record(body, headers=headers, **more))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(open_store(tmp_path / "outcomes.db"))


# What arrives


async def test_a_collector_gets_a_span_a_step_and_a_source_that_had_something_to_do_as_children_of_the_caller(
    bench: Bench, tmp_path: Path
) -> None:
    body = {**FIELDS, "memory": {"summary": "Said before."}}
    with (
        collector() as other,
        open_tracing(
            "otlp", file=tmp_path / "never", ratio=0, endpoint=Endpoint(url=other.url), resource=RESOURCE
        ) as provider,
    ):
        await handle(bench, Telemetry(provider), body)
    spans = {span.name: span for span in other.spans}
    root = spans["context.request"]
    assert root.trace_id.hex() == TRACE_ID
    assert root.parent_span_id.hex() == PARENT
    assert not root.links  # the parent says the same
    assert (root.kind, root.trace_state) == (SpanMessage.SPAN_KIND_CONSUMER, "shop=7")
    assert {"context." + step for step in STEPS} <= spans.keys()
    for step in STEPS:
        assert spans[f"context.{step}"].parent_span_id == root.span_id
        assert root.start_time_unix_nano <= spans[f"context.{step}"].start_time_unix_nano
    sources = [span for span in other.spans if span.name == "context.source"]
    assert {span.parent_span_id for span in sources} == {spans["context.gather"].span_id}
    told = {attributes_of(span)["context.layer"]: attributes_of(span) for span in sources}
    assert told["memory"] == {"context.layer": "memory", "context.status": "ok", "context.fragments": 1}
    assert len(told) == len(sources)
    assert not told.keys() & {"graph", "plan"}  # off, and without anything to show
    order = ["analyse", "plan", "gather", "fuse", "finish", "seal"]
    ends = [spans[f"context.{step}"].end_time_unix_nano for step in order]
    begins = [spans[f"context.{step}"].start_time_unix_nano for step in order]
    assert begins == sorted(begins)
    assert ends == sorted(ends)


async def test_attributes_are_those_of_the_conventions_and_hold_no_text(bench: Bench, tmp_path: Path) -> None:
    body = {**FIELDS, "system_prompt": "MARK", "user_message": "MARK"}
    with (
        collector() as other,
        open_tracing(
            "otlp", file=tmp_path / "never", ratio=0, endpoint=Endpoint(url=other.url), resource=RESOURCE
        ) as provider,
    ):
        await handle(bench, Telemetry(provider), body)
    (group,) = other.traces[0].resource_spans
    assert group.schema_url == group.scope_spans[0].schema_url == "https://opentelemetry.io/schemas/1.44.0"
    who = attributes_of(group.resource)
    assert (who["service.name"], who["service.version"]) == ("context-worker", "1.2.3")
    assert who["telemetry.sdk.name"] == "opentelemetry"
    spans = {span.name: span for span in other.spans}
    root = attributes_of(spans["context.request"])
    assert root["messaging.system"] == "kafka"
    assert root["messaging.operation.type"] == "process"
    assert root["messaging.destination.name"] == "context.requests"
    assert root["messaging.destination.partition.id"] == "3"
    assert root["messaging.kafka.offset"] == 17
    assert root["messaging.message.conversation_id"] == "c-1"
    assert root["gen_ai.request.model"] == "gpt-4o"
    assert root["gen_ai.agent.name"] == "smith"
    assert root["gen_ai.conversation.id"] == "t-1"
    assert 16 < root["gen_ai.usage.input_tokens"] < 500
    assert root["context.outcome"] == "complete"
    publish = spans["context.publish"]
    assert publish.kind == SpanMessage.SPAN_KIND_PRODUCER
    assert attributes_of(publish)["messaging.destination.name"] == "context.bundles"
    assert not any(b"MARK" in request.SerializeToString() for request in other.traces)


async def test_a_prompt_stands_on_its_span_where_that_is_switched_on_cut_to_what_a_span_holds(
    bench: Bench, tmp_path: Path
) -> None:
    body = {**FIELDS, "system_prompt": "You are a smith.", "user_message": "word " * 4_000}
    with (
        collector() as other,
        open_tracing("otlp", file=tmp_path / "never", ratio=0, endpoint=Endpoint(url=other.url)) as provider,
    ):
        await handle(bench, Telemetry(provider, has_prompts_on_spans=True), body)
    (root,) = [span for span in other.spans if span.name == "context.request"]
    told = attributes_of(root)
    system = json.loads(told["gen_ai.system_instructions"])
    assert system == [{"type": "text", "content": "You are a smith."}]
    (message,) = json.loads(told["gen_ai.input.messages"])
    assert (message["role"], len(message["parts"][0]["content"])) == ("user", 8_192)


async def test_a_refusal_is_the_status_and_the_error_type_of_its_span(bench: Bench, tmp_path: Path) -> None:
    body = {**FIELDS, "budget": {"total": 20, "layers": {"output": 18}}}
    with (
        collector() as other,
        open_tracing("otlp", file=tmp_path / "never", ratio=0, endpoint=Endpoint(url=other.url)) as provider,
    ):
        await handle(bench, Telemetry(provider), body)
    spans = {span.name: span for span in other.spans}
    assert attributes_of(spans["context.request"])["context.outcome"] == "rejected"
    assert attributes_of(spans["context.request"])["error.type"] == "budget_too_small"
    assert spans["context.plan"].status.code == 2
    assert spans["context.plan"].status.message == ""
    assert attributes_of(spans["context.plan"])["error.type"] == "budget_too_small"
    assert spans["context.analyse"].status.code == 0
    assert "context.gather" not in spans


async def test_pushed_metrics_say_what_the_page_says(bench: Bench) -> None:
    telemetry = Telemetry()
    with (
        collector() as other,
        push_metrics(telemetry, Endpoint(url=other.url, token="t"), every_seconds=60, resource=RESOURCE),  # noqa: S106 - of the test alone
    ):
        await handle(bench, telemetry)
    assert other.headers[0]["authorization"] == "Bearer t"
    request = other.metrics[-1]  # on the way out
    pushed = {m.name: m for m in request.resource_metrics[0].scope_metrics[0].metrics}
    filled = [family for family in telemetry.registry.collect() if family.samples]
    assert pushed.keys() == {family.name for family in filled}
    for family in filled:
        message = pushed[family.name]
        kind = str(message.WhichOneof("data"))
        assert kind == {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}[family.type]
        for point in getattr(message, kind).data_points:
            labels = attributes_of(point)
            if kind == "histogram":
                name = family.name
                assert telemetry.registry.get_sample_value(f"{name}_count", labels) == point.count
                assert telemetry.registry.get_sample_value(f"{name}_sum", labels) == point.sum
                assert sum(point.bucket_counts) == point.count
                assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
                at = list(point.explicit_bounds).index(0.1)
                below = telemetry.registry.get_sample_value(f"{name}_bucket", {**labels, "le": "0.1"})
                assert sum(point.bucket_counts[: at + 1]) == below
            elif family.name != "context_telemetry_exports":  # of itself a push cannot know yet
                name = family.name + ("_total" if kind == "sum" else "")
                assert telemetry.registry.get_sample_value(name, labels) == point.as_double
    assert counted(telemetry.exports) == {("metrics", "exported"): 1}


# Without a collector

GONE: Sequence[Manner] = ("is busy", "never answers", "dies while it answers")


@contextmanager
def recording(queue: SpanQueue) -> Generator[TracerProvider]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(queue)
    yield provider
    provider.shutdown()


def flood(provider: TracerProvider, count: int) -> None:
    tracer = provider.get_tracer("flood")
    for number in range(count):
        tracer.start_span(f"span {number}").end()


@pytest.mark.parametrize("manner", [*GONE, "is not there"])
def test_a_collector_that_is_away_costs_spans_that_are_counted_and_never_memory_or_time(manner: Any) -> None:
    tally = ExportTally()
    with collector(manner if manner in GONE else "takes") as other, no_collector() as nowhere:
        url = nowhere if manner == "is not there" else other.url
        exporter = span_exporter(Endpoint(url=url, timeout_seconds=30))
        queue = SpanQueue(
            exporter, tally=tally, max_spans=100, batch_spans=10, every_seconds=0.001, shutdown_seconds=0.2
        )
        with recording(queue) as provider:
            begun = time.thread_time()
            flood(provider, 2_000)
            assert time.thread_time() - begun < 2  # of computing: nobody waited for 30 s
            assert len(queue._waiting) <= 100
            assert len(queue._held) <= 10
            if manner in GONE:
                other.wait_for(lambda: other.posts > 0)
            started = time.monotonic()
        assert time.monotonic() - started < 10  # the timeout of one batch alone is three times that
        assert counted(tally) == {("spans", "dropped"): 2_000}
    # What was left behind still has a line to log, and later there may be nowhere to log it.
    queue._thread.join(60)
    assert not queue._thread.is_alive()


@pytest.mark.parametrize("manner", ["refuses the data", "is busy", "redirects", "has moved"])
def test_what_a_collector_refuses_or_does_not_take_in_time_is_failed(manner: Manner) -> None:
    tally = ExportTally()
    with collector(manner) as other:
        exporter = span_exporter(Endpoint(url=other.url, timeout_seconds=0.5))
        with recording(SpanQueue(exporter, tally=tally, every_seconds=0.001)) as provider:
            flood(provider, 10)
        assert other.posts >= 1
    assert counted(tally) == {("spans", "failed"): 10}


def test_a_collector_that_comes_back_gets_what_waited_in_its_order_and_once() -> None:
    tally = ExportTally()
    with collector("is busy") as other:
        exporter = span_exporter(Endpoint(url=other.url, timeout_seconds=30))
        queue = SpanQueue(exporter, tally=tally, max_spans=100, batch_spans=10, every_seconds=0.001)
        with recording(queue) as provider:
            flood(provider, 50)
            other.wait_for(lambda: other.posts > 0)
            other.manner = "takes"
            other.wait_for(lambda: len(other.spans) == 50)
        assert [span.name for span in other.spans] == [f"span {number}" for number in range(50)]
    assert counted(tally) == {("spans", "exported"): 50}


def test_a_connection_that_was_closed_meanwhile_is_opened_again() -> None:
    tally = ExportTally()
    with collector() as other:
        queue = SpanQueue(span_exporter(Endpoint(url=other.url)), tally=tally, every_seconds=0.001)
        with recording(queue) as provider:
            flood(provider, 1)
            other.wait_for(lambda: len(other.spans) == 1)
            other._open[0].shutdown(2)
            flood(provider, 1)
    assert counted(tally) == {("spans", "exported"): 2}


def test_a_push_of_metrics_to_nobody_is_counted_and_does_not_hold_up_the_end() -> None:
    telemetry = Telemetry()
    with collector("never answers") as other:
        endpoint = Endpoint(url=other.url, timeout_seconds=30)
        started = time.monotonic()
        with push_metrics(telemetry, endpoint, every_seconds=0.001, resource=RESOURCE):
            other.wait_for(lambda: other.posts > 0)
        assert time.monotonic() - started < 20
    with no_collector() as nowhere:
        endpoint = Endpoint(url=nowhere, timeout_seconds=0.1)
        with push_metrics(telemetry, endpoint, every_seconds=60, resource=RESOURCE):
            pass
        assert counted(telemetry.exports)["metrics", "failed"] >= 1


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://collector:port"])
def test_an_endpoint_that_is_no_address_is_an_error_at_start(url: str, tmp_path: Path) -> None:
    endpoint = Endpoint(url=url)
    with (
        pytest.raises(ValueError, match=r"URL|port"),
        open_tracing("otlp", file=tmp_path / "never", ratio=1, endpoint=endpoint),
    ):
        raise AssertionError


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_certificates_that_cannot_be_read_are_an_error_at_start(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    if text is not None:
        file.write_text(text)
    with pytest.raises(OSError, match=r"ca\.pem|No such|certificate"):
        metric_exporter(Endpoint(url="https://127.0.0.1", ca_file=file))


def test_a_password_of_the_hosts_user_is_not_sent_in_place_of_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with collector() as other:
        exporter = span_exporter(Endpoint(url=other.url, token="t"))  # noqa: S106 - of the test alone
        exporter.export([])
        exporter.shutdown()
        assert other.headers[0]["authorization"] == "Bearer t"


class Stuck(SpanExporter):
    """Hangs until it is let go."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.is_asked = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.is_asked.set()
        self.free.wait()
        return SpanExportResult.SUCCESS


def test_a_batch_that_was_given_up_is_not_counted_a_second_time_when_it_ends() -> None:
    tally, exporter = ExportTally(), Stuck()
    queue = SpanQueue(exporter, tally=tally, batch_spans=1, every_seconds=0.001, shutdown_seconds=0.001)
    with recording(queue) as provider:
        flood(provider, 3)
        assert exporter.is_asked.wait(10)
    exporter.free.set()
    queue._thread.join(10)
    assert not queue._thread.is_alive()
    flood(provider, 1)
    assert counted(tally) == {("spans", "dropped"): 4}


class BrokenOnce(InMemorySpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if spans[0].name == "broken":
            raise RuntimeError
        return super().export(spans)


def test_a_batch_with_a_defect_is_counted_and_does_not_keep_the_next_one() -> None:
    tally, exporter = ExportTally(), BrokenOnce()
    with recording(SpanQueue(exporter, tally=tally, batch_spans=1, every_seconds=0.001)) as provider:
        provider.get_tracer("test").start_span("broken").end()
        flood(provider, 1)
    assert [span.name for span in exporter.get_finished_spans()] == ["span 0"]
    assert counted(tally) == {("spans", "failed"): 1, ("spans", "exported"): 1}


def test_a_push_that_fails_does_not_end_the_later_ones() -> None:
    telemetry, tries = Telemetry(), iter([RuntimeError("once")])

    def collect() -> Iterable[Metric]:
        for error in tries:
            raise error
        return telemetry.registry.collect()

    with collector() as other:
        pusher = MetricPusher(
            collect,
            metric_exporter(Endpoint(url=other.url)),
            resource=RESOURCE,
            tally=telemetry.exports,
            every_seconds=0.001,
        )
        other.wait_for(lambda: other.posts > 0)
        pusher.close()
    assert counted(telemetry.exports)["metrics", "failed"] == 1
    assert counted(telemetry.exports)["metrics", "exported"] >= 1


# Recording


def test_a_share_of_traces_is_recorded_whole() -> None:
    exporter = InMemorySpanExporter()
    with record_spans(exporter, resource=RESOURCE, ratio=0.25, tally=ExportTally()) as provider:
        tracer = provider.get_tracer("test")
        for _ in range(400):
            with tracer.start_as_current_span("root"), tracer.start_as_current_span("child"):
                pass
    names = [span.name for span in exporter.get_finished_spans()]
    assert names.count("root") == names.count("child")
    assert 40 < names.count("root") < 180


def test_a_span_keeps_no_message_of_an_error() -> None:
    exporter = InMemorySpanExporter()
    with record_spans(exporter, resource=RESOURCE, ratio=1, tally=ExportTally()) as provider:
        telemetry = Telemetry(provider)
        root = telemetry.tracer.start_span("root")
        root.record_exception(ValueError("MARK"))  # as a library may
        with (
            use_span(root, end_on_exit=True),
            pytest.raises(ValueError, match="MARK"),
            telemetry.steps("part"),
            telemetry.step("broken"),
        ):
            raise ValueError("MARK")
    told = {span.name: span for span in exporter.get_finished_spans()}
    assert told.keys() == {"root", "part", "broken"}
    assert "MARK" not in "".join(span.to_json() for span in told.values())
    for name in ("broken", "part"):
        assert dict(told[name].attributes or {}) == {"error.type": "ValueError"}
        assert told[name].status.status_code is StatusCode.ERROR


# Names


def test_the_conventions_names_are_those_of_the_version_that_is_named() -> None:
    assert schemas.Schemas.V1_44_0.value == semconv.SCHEMA_URL
    known = {
        value
        for module in (
            gen_ai_attributes,
            messaging_attributes,
            service_attributes,
            error_attributes,
        )
        for value in vars(module).values()
        if isinstance(value, str)
    }
    own = {
        name: value
        for name, value in vars(semconv).items()
        if name.isupper() and name not in {"VERSION", "SCHEMA_URL"}
    }
    assert set(own.values()) <= known
    for name, value in own.items():
        assert value.replace(".", "_").upper() == name
