from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.assembling import settings
from tests.support.handling import FIELDS, LIMITS, NOW, ROUTES, Bench, open_store, record
from worker.failpoints import Failpoints
from worker.kafka.handlers import RequestHandler
from worker.telemetry import Telemetry
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
    handler = RequestHandler(
        assemble=build_assembler(settings(), telemetry).assemble,
        store=bench,
        publisher=bench,
        usage_log=bench,
        routes=ROUTES,
        limits=LIMITS,
        telemetry=telemetry,
        failpoints=Failpoints(),
        now=lambda: NOW,
    )
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
    assert {span["parent_id"] for span in spans.values()} == {own}
    assert {span["context"]["trace_id"] for span in spans.values()} == {f"0x{TRACE_ID}"}


async def test_no_span_carries_text_of_the_prompt_nor_of_an_error(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    with open_tracing("file", file=file, ratio=1) as provider:
        telemetry = Telemetry(provider)
        await reply_trace(bench, telemetry, None)
        with pytest.raises(ValueError, match="MARK five"), telemetry.tracer.start_as_current_span("broken"):
            raise ValueError("MARK five")
    assert "MARK" not in file.read_text()
    broken = read_spans(file)[-1]
    assert broken["status"] == {"status_code": "ERROR"}
    assert [event["attributes"] for event in broken["events"]] == [{"exception.type": "ValueError"}]


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


async def test_the_console_is_standard_error(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_tracing("console", file=tmp_path / "never", ratio=1) as provider:
        await reply_trace(bench, Telemetry(provider), None)
    shown = capsys.readouterr()
    assert '"name": "context.request"' in shown.err
    assert "context.request" not in shown.out


def test_a_file_that_cannot_be_opened_is_an_error_at_start(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), open_tracing("file", file=tmp_path, ratio=1):
        raise AssertionError
