from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.handling import FIELDS, Bench, open_store, record
from worker.kafka.headers import KNOWN, MAX_ECHOED_BYTES, read_headers, reply_headers, trace_parent
from worker.kafka.records import Handled

BUNDLES, USAGE, DEAD = "context.bundles", "context.usage", "context.dead-letters"
ALLOWED = frozenset({"context.bundles", "team.replies"})
TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Bench]:
    store = open_store(tmp_path / "outcomes.db")
    yield Bench(store=store)
    await store.close()


def read(*headers: tuple[str, bytes]):
    return read_headers(headers, allowed_reply_topics=ALLOWED)


def ignored_total(bench: Bench, header: str) -> float | None:
    return bench.telemetry.registry.get_sample_value("context_ignored_headers_total", {"header": header})


# --- Reading -------------------------------------------------------------------------------------------


def test_of_a_repeated_header_the_first_counts_and_the_others_are_named() -> None:
    headers = read(
        ("correlation_id", b"one"),
        ("context-generation", b"1"),
        ("correlation_id", b"two"),
        ("context-generation", b"x"),
        ("correlation_id", b"three"),
    )
    assert (headers.correlation_id, headers.generation, headers.refusal) == (b"one", 1, None)
    assert headers.ignored == ("correlation_id", "context-generation", "correlation_id")


@pytest.mark.parametrize("name", KNOWN)
def test_a_header_without_bytes_is_as_good_as_absent(name: str) -> None:
    headers = read((name, b""))
    assert headers == read_headers((), allowed_reply_topics=ALLOWED).__class__(
        reply_to=None,
        correlation_id=None,
        traceparent=None,
        tracestate=None,
        generation=0,
        refusal=None,
        ignored=(name,),
    )


def test_foreign_headers_are_not_looked_at() -> None:
    assert read(("Reply_To", b"x"), ("x", b"\xff"), ("x", b"")).ignored == ()


@pytest.mark.parametrize(
    ("value", "generation"), [(b"0", 0), (b"1", 1), (b"007", 7), (b"999999999", 999_999_999)]
)
def test_a_generation_is_decimal(value: bytes, generation: int) -> None:
    headers = read(("context-generation", value))
    assert (headers.generation, headers.refusal) == (generation, None)


@pytest.mark.parametrize(
    "value", [b"-1", b"+1", b"1.0", b"0x1", b" 1", b"one", b"\xd9\xa1", b"\xff", b"1" * 10, b"1\n"]
)
def test_a_malformed_generation_is_an_invalid_request_of_generation_zero(value: bytes) -> None:
    headers = read(("context-generation", value))
    assert headers.generation == 0
    assert headers.refusal is not None
    assert headers.refusal.code == "invalid_request"


@pytest.mark.parametrize("value", [b"bundle", b"Request", b"request ", b"\xff"])
def test_another_kind_is_an_invalid_request(value: bytes) -> None:
    refusal = read(("context-kind", value)).refusal
    assert refusal is not None
    assert (refusal.code, refusal.details) == ("invalid_request", {"header": "context-kind"})


def test_the_kind_of_a_request_is_no_refusal() -> None:
    assert read(("context-kind", b"request")).refusal is None


@pytest.mark.parametrize("value", [b"team.replies", b"context.bundles"])
def test_an_allowed_reply_topic_is_taken(value: bytes) -> None:
    headers = read(("reply_to", value))
    assert (headers.reply_to, headers.refusal) == (value.decode(), None)


@pytest.mark.parametrize(
    "value", [b"context.requests", b"team.replies ", b"team.replies\x00", b"\xff", b"x" * 9_999]
)
def test_any_other_reply_topic_is_refused_and_the_allowed_ones_are_named(value: bytes) -> None:
    headers = read(("reply_to", value))
    assert headers.reply_to is None
    assert headers.refusal is not None
    assert headers.refusal.code == "reply_to_not_allowed"
    assert headers.refusal.details == {"allowed": ["context.bundles", "team.replies"]}


@pytest.mark.parametrize("value", [b"\xff\x00\xfe", b"a" * MAX_ECHOED_BYTES, "ünïcode".encode()])
def test_a_correlation_id_is_any_bytes(value: bytes) -> None:
    assert read(("correlation_id", value)).correlation_id == value


def test_a_correlation_id_as_large_as_a_record_is_ignored() -> None:
    headers = read(("correlation_id", b"a" * (MAX_ECHOED_BYTES + 1)))
    assert (headers.correlation_id, headers.ignored) == (None, ("correlation_id",))


@pytest.mark.parametrize("value", [TRACE, b"01" + TRACE[2:], b"cc" + TRACE[2:] + b"-what the future brings"])
def test_a_trace_parent_is_read(value: bytes) -> None:
    headers = read(("traceparent", value), ("tracestate", b"rojo=00f067aa0ba902b7"))
    assert headers.traceparent == value.decode()
    assert headers.tracestate == "rojo=00f067aa0ba902b7"
    context = trace_parent(headers)
    assert context is not None
    span = trace.get_current_span(context).get_span_context()
    assert (span.trace_id, span.span_id) == (0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7)
    assert span.trace_state.get("rojo") == "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "value",
    [
        b"ff" + TRACE[2:],
        TRACE + b"-more",
        TRACE.upper(),
        TRACE[:-1],
        TRACE + b"\n",
        b"00-" + b"0" * 32 + TRACE[35:],
        TRACE[:36] + b"0" * 16 + TRACE[52:],
        b"\xff",
        b"01" + TRACE[2:] + b"-" + b"x" * 500,
    ],
)
def test_a_malformed_trace_parent_is_ignored_and_its_state_with_it(value: bytes) -> None:
    headers = read(("traceparent", value), ("tracestate", b"a=b"))
    assert (headers.traceparent, headers.tracestate, headers.refusal) == (None, None, None)
    assert headers.ignored == ("traceparent", "tracestate")


@pytest.mark.parametrize("value", [b"\xff", b"a=" + b"b" * 600, b"a=\x00"])
def test_a_malformed_trace_state_is_ignored_alone(value: bytes) -> None:
    headers = read(("traceparent", TRACE), ("tracestate", value))
    assert (headers.traceparent, headers.tracestate) == (TRACE.decode(), None)
    assert headers.ignored == ("tracestate",)


names = st.sampled_from([*KNOWN, "other"])


@given(st.lists(st.tuples(names, st.binary(max_size=70) | st.just(TRACE)), max_size=12))
@settings(max_examples=200)
def test_no_headers_raise_or_come_back_in_a_form_that_cannot_be_sent(
    raw: list[tuple[str, bytes]],
) -> None:
    headers = read(*raw)
    trace_parent(headers)
    assert headers.reply_to in {None, *ALLOWED}
    for name, value in reply_headers(headers, kind="bundle", span=trace.INVALID_SPAN):
        assert name in KNOWN
        assert value


# --- What becomes of the record --------------------------------------------------------------------------


async def test_the_reply_goes_where_it_was_asked_for_and_echoes_the_correlation_id(bench: Bench) -> None:
    await bench.handler().handle(
        record(headers=(("reply_to", b"team.replies"), ("correlation_id", b"\xff1")))
    )
    assert dict(bench.on("team.replies")[0].headers) == {
        "context-kind": b"bundle",
        "correlation_id": b"\xff1",
        "context-generation": b"0",
    }
    assert dict(bench.on(USAGE)[0].headers)["context-kind"] == b"usage"
    assert bench.on(BUNDLES) == []


async def test_a_topic_off_the_list_is_refused_on_the_default_topic(bench: Bench) -> None:
    item = record(headers=(("reply_to", b"elsewhere"),))
    assert await bench.handler().handle(item) == Handled(code="reply_to_not_allowed")
    assert [published.topic for published in bench.published] == [BUNDLES, USAGE]
    assert bench.assembled == 0


async def test_a_repeat_with_a_topic_off_the_list_gets_the_bundle_on_the_default_topic(bench: Bench) -> None:
    await bench.handler().handle(record())
    await bench.handler().handle(record(headers=(("reply_to", b"elsewhere"),)))
    assert bench.on(BUNDLES)[0].value == bench.on(BUNDLES)[1].value


async def test_another_kind_is_dead_lettered_with_its_headers(bench: Bench) -> None:
    item = record(headers=(("context-kind", b"state"),))
    assert await bench.handler().handle(item) == Handled(code="invalid_request")
    assert bench.on(DEAD)[0].headers[-1] == ("context-kind", b"state")
    assert bench.values(BUNDLES)[0]["request_id"] == "r-1"


async def test_a_body_that_breaks_a_rule_says_so_before_a_header_that_does(bench: Bench) -> None:
    await bench.handler().handle(record(b"{", headers=(("reply_to", b"elsewhere"),)))
    assert bench.values(BUNDLES)[0]["code"] == "invalid_json"


async def test_ignored_headers_are_counted_by_name(bench: Bench) -> None:
    await bench.handler().handle(record(headers=(("traceparent", b"x"), ("traceparent", b"y"))))
    assert ignored_total(bench, "traceparent") == 2


async def test_the_callers_trace_is_passed_on_where_nothing_is_recorded(bench: Bench) -> None:
    await bench.handler().handle(record(headers=(("traceparent", TRACE), ("tracestate", b"a=b"))))
    for topic in (BUNDLES, USAGE):
        headers = dict(bench.on(topic)[0].headers)
        assert (headers["traceparent"], headers["tracestate"]) == (TRACE, b"a=b")


async def test_a_recorded_trace_goes_on_through_the_worker(bench: Bench) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    bench.telemetry.tracer = provider.get_tracer("test")
    await bench.handler().handle(record(headers=(("traceparent", TRACE), ("tracestate", b"a=b"))))
    spans = {span.name: span for span in exporter.get_finished_spans()}
    root = spans["context.request"]
    assert root.parent is not None
    assert root.parent.span_id == 0x00F067AA0BA902B7
    publish = spans["context.publish"].get_span_context()
    assert publish is not None
    headers = dict(bench.on(BUNDLES)[0].headers)
    assert headers["traceparent"] == (
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{publish.span_id:016x}-01".encode()
    )
    assert headers["tracestate"] == b"a=b"
    assert root.attributes is not None
    assert root.attributes["messaging.destination.name"] == "context.requests"
    assert root.attributes["context.request_id"] == "r-1"
    assert FIELDS["user_message"] not in str([span.attributes for span in spans.values()])
