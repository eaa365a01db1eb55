from __future__ import annotations

from time import time

from tests.support.handling import record
from worker.kafka.spans import record_span
from worker.telemetry import SPAN_REQUEST, Telemetry


def begun(*, timestamp_ms: int) -> Telemetry:
    """What is measured of a record of the requests whose work begins now."""
    telemetry = Telemetry()
    sent = record(topic="tenant.requests", timestamp_ms=timestamp_ms)
    with record_span(sent, SPAN_REQUEST, kind="request", allowed=frozenset(), telemetry=telemetry):
        pass
    return telemetry


def age(telemetry: Telemetry, part: str, **labels: str) -> float | None:
    name = f"context_record_age_seconds_{part}"
    return telemetry.registry.get_sample_value(name, {"topic": "requests", **labels})


def test_what_a_record_has_waited_is_known_when_its_work_begins() -> None:
    telemetry = begun(timestamp_ms=int(1_000 * (time() - 200)))
    assert age(telemetry, "bucket", le="120.0") == 0
    assert age(telemetry, "count") == 1
    assert (age(telemetry, "sum") or 0) >= 199


def test_a_record_from_a_clock_that_is_ahead_has_waited_for_nothing() -> None:
    telemetry = begun(timestamp_ms=int(1_000 * (time() + 3_600)))
    assert (age(telemetry, "sum"), age(telemetry, "bucket", le="0.01")) == (0, 1)


def test_a_record_without_a_timestamp_has_no_age() -> None:
    assert age(begun(timestamp_ms=-1), "count") is None
