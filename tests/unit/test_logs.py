# What is remembered shows nowhere else.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanContext

from worker.logs import Sparingly, with_trace

ROOT = Path(__file__).parents[2]

SCRIPT = """
import logging, sys
import structlog
from worker.logs import bind_ids, configure_logs
configure_logs(level="info", log_format=sys.argv[1])
bind_ids("bank", request_id="r-0")
bind_ids("shop", request_id=None)
structlog.get_logger().info("bundle.assembled", tokens=5)
library = logging.getLogger("aiokafka.client")
library.info("too quiet to be heard")
for attempt in range(50):
    library.error("Unable connect to node %d: %s", attempt, "refused\\nby the host")
try:
    raise ValueError("a defect")
except ValueError:
    library.exception("Unexpected error")
"""


def lines_of(log_format: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, log_format], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_every_line_is_json_the_libraries_lines_and_tracebacks_too() -> None:
    own, refused, defect = [json.loads(line) for line in lines_of("json")]
    assert (own["event"], own["tokens"], own["level"]) == ("bundle.assembled", 5, "info")
    assert (refused["event"], refused["logger"], refused["level"]) == (
        "Unable connect to node 0: refused\nby the host",
        "aiokafka.client",
        "error",
    )
    assert defect["event"] == "Unexpected error"
    assert "ValueError: a defect" in defect["exception"]
    assert own.keys() & refused.keys() & defect.keys() >= {"event", "level", "timestamp"}


def test_a_records_ids_are_on_the_workers_own_lines_alone_and_only_those_that_are_known() -> None:
    own, *libraries = [json.loads(line) for line in lines_of("json")]
    assert own["project_id"] == "shop"
    assert "request_id" not in own
    assert not any("project_id" in line for line in libraries)


def test_on_a_console_the_libraries_lines_look_like_the_others() -> None:
    lines = lines_of("console")
    assert [
        word for line in lines for word in ("bundle.assembled", "Unable connect to node") if word in line
    ] == [
        "bundle.assembled",
        "Unable connect to node",
    ]
    assert "ValueError: a defect" in "\n".join(lines)


def test_a_line_names_the_span_in_which_it_was_written_and_none_where_there_is_none() -> None:
    own = SpanContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0xF067AA0BA902B7, is_remote=True)
    with trace.use_span(trace.NonRecordingSpan(own)):
        assert with_trace(None, "info", {"event": "e"}) == {
            "event": "e",
            "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
            "span_id": "00f067aa0ba902b7",
        }
    assert with_trace(None, "info", {"event": "e"}) == {"event": "e"}


class Log:
    """What passes the filter, by a clock that the test moves."""

    def __init__(self, *, remembered: int = 512) -> None:
        self.now = 0.0
        self.filter = Sparingly(every_seconds=10, clock=lambda: self.now, remembered=remembered)

    def says(
        self, message: str, *args: object, name: str = "aiokafka", level: int = logging.ERROR
    ) -> str | None:
        record = logging.LogRecord(name, level, __file__, 1, message, args, None)
        return record.getMessage() if self.filter.filter(record) else None


def test_a_message_that_repeats_is_written_once_in_a_while_with_the_number_left_out() -> None:
    log = Log()
    written: list[str | None] = []
    for tenth in range(250):
        log.now = tenth / 10
        written.append(log.says("no broker at %s, try %d", "100%", tenth))
    assert [text for text in written if text is not None] == [
        "no broker at 100%, try 0",
        "no broker at 100%, try 100 (and 99 more like it)",
        "no broker at 100%, try 200 (and 99 more like it)",
    ]


@pytest.mark.parametrize(
    ("message", "name", "level"),
    [
        ("another", "aiokafka", logging.ERROR),
        ("one", "redis", logging.ERROR),
        ("one", "aiokafka", logging.WARNING),
    ],
)
def test_another_message_logger_or_level_is_not_held_back_by_the_first(
    message: str, name: str, level: int
) -> None:
    log = Log()
    assert log.says("one") == "one"
    assert log.says(message, name=name, level=level) == message
    assert log.says("one") is None


def test_messages_without_end_take_no_memory_without_end() -> None:
    log = Log(remembered=3)
    for number in range(1_000):
        for _ in range(2):
            log.says(f"message {number}")
    assert log.says("message 999") is None
    assert log.says("message 0") == "message 0"
    assert len(log.filter._passed_at) == 3
    assert len(log.filter._left_out) <= 3
