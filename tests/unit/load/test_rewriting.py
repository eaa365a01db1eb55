from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.request import AssemblyRequest
from worker.decoding import read_ids
from worker.load.generator import Traffic, canary_of, generate
from worker.load.pacing import Pace, Schedule
from worker.load.recording import RecordedRecord
from worker.load.rewriting import Outgoing, RequestKey, Rewriter

RECORDED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = RECORDED + timedelta(days=30)
BODY: dict[str, Any] = {
    "request_id": "r1",
    "project_id": "shop",
    "volk": "smith",
    "subject": "implement",
    "user_message": "Grüße",
    "budget": {"total": 8_000, "client_overhead_tokens": 7},
    "expires_at": "2026-01-02T03:05:05Z",
}


def recorded(body: object, *, headers: tuple[tuple[str, bytes], ...] = (), at: datetime = RECORDED):
    value = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    return RecordedRecord(
        partition=3, timestamp_ms=int(at.timestamp() * 1_000), key=b"shop", value=value, headers=headers
    )


def rewritten(record: RecordedRecord, *, keep_ids: bool = False) -> tuple[Outgoing, dict[str, Any]]:
    made = Rewriter(run="run", keep_ids=keep_ids).rewrite(record, number=7, publish_at=LATER)
    fields: dict[str, Any] = {}
    with suppress(ValueError):
        fields = json.loads(made.value or b"{}")
    return made, fields


def test_a_request_gets_a_new_id_its_old_instant_and_a_shifted_expiry():
    made, fields = rewritten(recorded(BODY))
    assert fields == BODY | {
        "request_id": "run:r1",
        "as_of": "2026-01-02T03:04:05Z",
        "expires_at": "2026-02-01T03:05:05Z",
    }
    assert made.identity == RequestKey(project_id="shop", request_id="run:r1", generation=0)
    assert (made.partition, made.key, made.user_message) == (3, b"shop", "Grüße")
    assert (made.asked.total_tokens, made.asked.client_overhead_tokens) == (8_000, 7)


def test_an_instant_that_the_request_names_stays():
    _, fields = rewritten(recorded(BODY | {"as_of": "2020-01-01T00:00:00Z"}))
    assert fields["as_of"] == "2020-01-01T00:00:00Z"


@pytest.mark.parametrize("timestamp_ms", [253_402_300_800_000, 2**63 - 1, 10**30])
def test_a_time_that_no_calendar_has_becomes_the_last_one_as_for_the_worker(timestamp_ms: int):
    record = replace(recorded(BODY), timestamp_ms=timestamp_ms)
    made, fields = rewritten(record)
    assert fields["as_of"] == "9999-12-31T00:00:00Z"
    assert made.identity == RequestKey(project_id="shop", request_id="run:r1", generation=0)
    assert rewritten(record, keep_ids=True)[1]["request_id"] == "r1"


def test_with_kept_ids_nothing_changes_but_the_expiry():
    made, fields = rewritten(recorded(BODY, headers=(("reply_to", b"mine"),)), keep_ids=True)
    assert fields == BODY | {"expires_at": "2026-02-01T03:05:05Z"}
    assert made.headers == (("reply_to", b"mine"),)
    plain = b'{ "request_id" : "r1", "project_id":"p" }'
    assert rewritten(recorded(plain), keep_ids=True)[0].value == plain


def test_headers_of_the_caller_of_then_are_left_out():
    headers = (
        ("correlation_id", b"his"),
        ("reply_to", b"his-topic"),
        ("traceparent", b"00-x"),
        ("context-generation", b"2"),
        ("x-mine", b"1"),
    )
    made, _ = rewritten(recorded(BODY, headers=headers))
    assert made.headers == (("correlation_id", b"run:7"), ("context-generation", b"2"), ("x-mine", b"1"))
    assert made.identity is not None
    assert made.identity.generation == 2


def test_a_request_that_was_sent_twice_means_the_same_twice():
    rewriter = Rewriter(run="run", keep_ids=False)
    made = [
        rewriter.rewrite(recorded(body, at=RECORDED + timedelta(seconds=at)), number=at, publish_at=LATER)
        for at, body in enumerate([BODY, BODY | {"request_id": "other"}, BODY])
    ]
    bodies = [json.loads(item.value or b"") for item in made]
    assert bodies[0]["as_of"] == bodies[2]["as_of"] != bodies[1]["as_of"]
    meant = {AssemblyRequest.model_validate(body).digest() for body in (bodies[0], bodies[2])}
    assert len(meant) == 1


def test_an_id_that_would_be_too_long_becomes_its_digest():
    made, fields = rewritten(recorded(BODY | {"request_id": "x" * 256}))
    assert len(fields["request_id"]) <= 256
    assert fields["request_id"].startswith("run:")
    assert made.identity is not None
    other, _ = rewritten(recorded(BODY | {"request_id": "x" * 255 + "y"}))
    assert other.identity != made.identity


@pytest.mark.parametrize(
    "body",
    [b'{"project_id": "shop", "request_id": "r\\u0031", ', b'{"request_id":"r1","project_id":"shop"} x'],
)
def test_a_body_that_is_broken_stays_so_and_gets_its_new_id_all_the_same(body: bytes):
    made, _ = rewritten(recorded(body))
    assert read_ids(made.value) == ("run:r1", "shop")
    assert made.identity == RequestKey(project_id="shop", request_id="run:r1", generation=0)


@settings(max_examples=80)
@given(
    body=st.none()
    | st.binary(max_size=60)
    | st.dictionaries(
        st.sampled_from(["request_id", "project_id", "expires_at", "as_of", "budget", "parent", "model"]),
        st.none() | st.text(max_size=8) | st.integers() | st.just("\ud800") | st.just({"request_id": "r"}),
    ),
    keep_ids=st.booleans(),
)
def test_no_record_however_broken_stops_a_replay(body: object, *, keep_ids: bool):
    record = recorded(body)
    made, _ = rewritten(record, keep_ids=keep_ids)
    assert (made.value is None) == (record.value is None)
    # What is judged later is what the worker will read.
    ids = read_ids(made.value)
    if made.identity is not None:
        assert (made.identity.request_id, made.identity.project_id) == ids
        if not keep_ids:
            assert made.identity.request_id.startswith("run:")


@settings(max_examples=60)
@given(
    times=st.lists(st.integers(0, 100_000), min_size=1, max_size=20), speed=st.sampled_from([0.5, 1.0, 10.0])
)
def test_the_recorded_pace_is_kept_and_never_goes_back(times: list[int], speed: float):
    schedule = Schedule(Pace(speed=speed))
    due = [schedule.due(time) or 0.0 for time in times]
    assert due == sorted(due)
    for time, seconds in zip(times, due, strict=True):
        assert seconds >= (time - times[0]) / 1_000 / speed - 1e-9


def test_a_rate_is_even_and_without_a_pace_everything_is_due_at_once():
    even = Schedule(Pace(rate_per_second=4.0))
    assert [even.due(time) for time in (5, 5, 900)] == [0.0, 0.25, 0.5]
    assert Schedule(Pace()).due(5) is None
    with pytest.raises(ValueError, match="not both"):
        Pace(speed=1.0, rate_per_second=1.0)
    with pytest.raises(ValueError, match="above zero"):
        Pace(speed=0.0)


def test_made_up_traffic_is_the_same_for_the_same_seed_and_valid_and_distinct():
    traffic = Traffic(requests=100, seed=5)
    made = list(generate(traffic))
    assert made == list(generate(traffic))
    assert made != list(generate(Traffic(requests=100, seed=6)))
    requests = [AssemblyRequest.model_validate_json(record.value or b"") for record in made]
    assert len({request.user_message for request in requests}) == 100
    assert len({(request.project_id, request.thread_id) for request in requests}) == 12
    assert [record.timestamp_ms for record in made] == sorted(record.timestamp_ms for record in made)
    for record, request in zip(made, requests, strict=True):
        body = (record.value or b"").decode()
        others = {item.project_id for item in requests} - {request.project_id}
        assert canary_of(request.project_id) in body
        assert not any(canary_of(other) in body for other in others)
