from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.assembling import settings
from tests.support.handling import FIELDS, ROUTES, Bench, open_store, record
from worker.errors import Expired
from worker.instruments import ExportTally
from worker.logs import with_trace
from worker.recording import record_spans
from worker.spans import mark_error
from worker.telemetry import SourceRun, Telemetry
from worker.tracing import open_tracing
from worker.wiring import build_assembler

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE_ID}-{PARENT}-01".encode()
UNSAMPLED = f"00-{TRACE_ID}-{PARENT}-00".encode()
BODY = {
    **FIELDS,
    "user_message": "MARK one",
    "system_prompt": "MARK two",
    "memory": {"summary": "MARK three"},
    "payload": {"task_context": "MARK four"},
}


def read_spans(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


async def reply_trace(bench: Bench, telemetry: Telemetry, traceparent: bytes | None) -> bytes | None:
    """The `traceparent` of what a handler with the real assembler answers."""
    watched = replace(bench, telemetry=telemetry)
    handler = watched.handler(assemble=build_assembler(settings(), telemetry).assemble)
    await handler.handle(record(BODY, headers=(("traceparent", traceparent),) if traceparent else ()))
    return dict(bench.on(ROUTES.bundles)[0].headers).get("traceparent")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(open_store(tmp_path / "outcomes.db"))


async def test_a_reply_names_the_workers_own_span_in_the_callers_trace(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "spans.jsonl"
    with open_tracing("file", file=file, ratio=0) as provider:
        written = await reply_trace(bench, Telemetry(provider), SAMPLED)
    assert written is not None
    _, trace_id, span_id, flags = written.decode().split("-")
    assert (trace_id, flags) == (TRACE_ID, "01")
    spans = {span["name"]: span for span in read_spans(file)}
    assert list(spans)[-1] == "context.request"
    assert set(spans) >= {
        "context.decode",
        "context.gather",
        "context.fuse",
        "context.store",
        "context.publish",
    }
    request = spans.pop("context.request")
    assert request["parent_id"] == f"0x{PARENT}"
    own = request["context"]["span_id"]
    # The reply was sent while it was being published, a step of the request.
    assert f"0x{span_id}" in {
        s["context"]["span_id"] for s in read_spans(file) if s["name"] == "context.publish"
    }
    assert request["attributes"]["context.request_id"] == "r-1"
    # The last of them; each is a child of what gathered it.
    assert spans.pop("context.source")["parent_id"] == spans["context.gather"]["context"]["span_id"]
    assert {span["parent_id"] for span in spans.values()} == {own}
    assert {span["context"]["trace_id"] for span in spans.values()} == {f"0x{TRACE_ID}"}


async def test_no_span_carries_text_of_the_prompt_nor_of_an_error(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    with open_tracing("file", file=file, ratio=1) as provider:
        telemetry = Telemetry(provider)
        await reply_trace(bench, telemetry, None)
        broken = telemetry.tracer.start_span("broken")
        mark_error(broken, ValueError("MARK five"))
        broken.end()
    assert "MARK" not in file.read_text()
    broken = read_spans(file)[-1]
    assert broken["status"] == {"status_code": "ERROR"}
    assert broken["attributes"] == {"error.type": "ValueError"}


@pytest.mark.parametrize("traceparent", [UNSAMPLED, None])
async def test_a_request_that_is_not_sampled_is_passed_on_as_it_came(
    bench: Bench, tmp_path: Path, traceparent: bytes | None
) -> None:
    with open_tracing("file", file=tmp_path / "spans.jsonl", ratio=0) as provider:
        assert await reply_trace(bench, Telemetry(provider), traceparent) == traceparent
    assert read_spans(tmp_path / "spans.jsonl") == []


async def test_without_an_exporter_the_callers_trace_is_passed_on_as_it_came(
    bench: Bench, tmp_path: Path
) -> None:
    with open_tracing("none", file=tmp_path / "never", ratio=1) as provider:
        assert provider is None
        assert await reply_trace(bench, Telemetry(provider), SAMPLED) == SAMPLED
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("exporter", ["none", "file"])
async def test_log_lines_of_a_request_carry_its_trace_recorded_or_not(
    bench: Bench, tmp_path: Path, exporter: Literal["none", "file"]
) -> None:
    seen: list[dict[str, Any]] = []
    before = structlog.get_config()
    structlog.configure(
        processors=[with_trace, lambda _logger, _method, event: seen.append(dict(event)) or "{}"],
        wrapper_class=structlog.make_filtering_bound_logger(
            "info"
        ),  # whatever ran before may have set another
    )
    try:
        with open_tracing(exporter, file=tmp_path / "spans.jsonl", ratio=0) as provider:
            await reply_trace(bench, Telemetry(provider), SAMPLED)
    finally:
        structlog.configure(**before)
    (assembled,) = [line for line in seen if line["event"] == "bundle.assembled"]
    assert assembled["trace_id"] == TRACE_ID
    if exporter == "none":
        assert assembled["span_id"] == PARENT
    else:
        request = read_spans(tmp_path / "spans.jsonl")[-1]
        assert f"0x{assembled['span_id']}" == request["context"]["span_id"]


async def test_the_console_is_standard_error(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_tracing("console", file=tmp_path / "never", ratio=1) as provider:
        await reply_trace(bench, Telemetry(provider), None)
    shown = capsys.readouterr()
    assert '"name": "context.request"' in shown.err
    assert "context.request" not in shown.out


def said(spans: Sequence[ReadableSpan]) -> list[dict[str, Any]]:
    """What the spans say, but for ids and times."""
    names = {context.span_id: span.name for span in spans if (context := span.get_span_context())}
    told: list[dict[str, Any]] = []
    for span in spans:
        context, started, ended = span.get_span_context(), span.start_time, span.end_time
        assert context is not None
        assert started is not None
        assert ended is not None
        told.append(
            {
                "name": span.name,
                "parent": names.get(span.parent.span_id) if span.parent else None,
                "kind": span.kind,
                "attributes": dict(span.attributes or {}),
                "status": span.status.status_code,
                "resource": span.resource,
                "scope": span.instrumentation_scope,
                "flags": context.trace_flags,
                "is_in_order": started <= ended,
            }
        )
    return told


def traced_steps(telemetry: Telemetry) -> None:
    """Steps of each kind below one that is live, ended and failed, by a refusal and by a defect."""
    with telemetry.step("whole"):
        with telemetry.leaf("fine"):
            pass
        with suppress(ZeroDivisionError), telemetry.leaf("broken"):
            raise ZeroDivisionError("MARK")
        with suppress(Expired), telemetry.steps("first", "second", "never begun") as next_step:
            next_step()
            raise Expired("MARK")
        telemetry.count_sources(
            [
                SourceRun("plan", 1.0, 2.0, "failed", "timeout", 0, waited=True),
                SourceRun("task", 1.0, 2.0, "ok", None, 3, waited=False),
                SourceRun("graph", 1.0, 2.0, "off", "subject_gated", 0, waited=False),
            ]
        )


def test_spans_that_are_made_at_the_end_say_what_live_ones_say() -> None:
    mine, others = InMemorySpanExporter(), InMemorySpanExporter()
    with record_spans(mine, resource={"service.name": "w"}, ratio=1, tally=ExportTally()) as provider:
        with provider.get_tracer("context-worker").start_as_current_span("root"):
            traced_steps(Telemetry(provider))
        # A provider of somebody else's, which takes live spans alone.
        other = TracerProvider(resource=provider.resource, shutdown_on_exit=False)
        other.add_span_processor(SimpleSpanProcessor(others))
        with other.get_tracer("context-worker").start_as_current_span("root"):
            traced_steps(Telemetry(other))
        other.shutdown()
    spans = said(mine.get_finished_spans())
    assert spans == said(others.get_finished_spans())
    assert [(span["name"], span["parent"]) for span in spans] == [
        *[
            (name, "whole")
            for name in ("fine", "broken", "first", "second", "context.source", "context.source")
        ],
        ("whole", "root"),
        ("root", None),
    ]
    errors = [span["attributes"]["error.type"] for span in spans if "error.type" in span["attributes"]]
    assert errors == ["ZeroDivisionError", "expired"]
    assert "MARK" not in "".join(span.to_json() for span in mine.get_finished_spans())


def test_a_file_that_cannot_be_opened_is_an_error_at_start(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), open_tracing("file", file=tmp_path, ratio=1):
        raise AssertionError
