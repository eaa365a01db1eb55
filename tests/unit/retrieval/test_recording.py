"""Which calls of tools count for which answers, and that nobody can note calls that were not made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worker.errors import InvalidRequest
from worker.kafka.received import BodyLimits
from worker.kafka.state_received import decode_event
from worker.ports import Scope
from worker.retrieval.reading import MAX_BODIES
from worker.retrieval.recording import CallsFor, call_records, notes_of, text_of

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
THREAD = Scope(project_id="shop", thread_id="t1")
NO_THREAD = Scope(project_id="shop", thread_id=None)
DAY = 86_400


def notes(
    scope: Scope,
    request_id: str | None,
    *,
    at: datetime = NOW,
    tool: str = "get_code",
    shown: Sequence[str] = (),
) -> set[str]:
    records = call_records(scope, request_id=request_id, tool=tool, shown=shown, answered_at=at)
    return {one.event_id for one in records}


def asked(
    *requests: str,
    scope: Scope = THREAD,
    since: datetime = NOW,
    until: datetime = NOW,
    tool: str = "get_code",
) -> list[str]:
    return [*notes_of(scope, subject=tool, calls=CallsFor(request_ids=requests, since=since, until=until))]


@pytest.mark.parametrize(
    ("called_by", "request_id", "is_counted"),
    [(THREAD, "r", True), (NO_THREAD, "r", True), (THREAD, "r~r1", True), (THREAD, "r2", False)],
)
def test_a_call_that_names_a_request_counts_for_it_alone_whenever_it_was(
    called_by: Scope, request_id: str, *, is_counted: bool
) -> None:
    for at in (NOW, NOW - timedelta(days=9), NOW + timedelta(days=9)):
        assert notes(called_by, request_id, at=at).isdisjoint(asked("r", "r~r1")) != is_counted


def test_a_call_counts_for_its_own_tool_and_thread() -> None:
    other = Scope(project_id="shop", thread_id="t2")
    for request_id in ("r", None):
        noted = notes(THREAD, request_id)
        assert not noted.isdisjoint(asked("r"))
        assert noted.isdisjoint(asked("r", tool="get_tests"))
        assert noted.isdisjoint(asked("r", scope=other))
    assert notes(NO_THREAD, None) == set()


@pytest.mark.parametrize("request_id", ["r", None])
def test_all_that_a_call_showed_is_noted_like_the_call(request_id: str | None) -> None:
    shown = [f"src/a.py::f{number}" for number in range(MAX_BODIES)]
    noted = notes(THREAD, request_id, shown=shown)
    assert not [own_id for own_id in shown if noted.isdisjoint(asked("r", tool=text_of(own_id)))]
    assert noted > notes(THREAD, request_id)
    # No tool has the name of a text, and no text the name of a tool.
    assert notes(THREAD, request_id, shown=["get_tests"]).isdisjoint(asked("r", tool="get_tests"))


@given(st.integers(0, 2 * DAY), st.integers(0, DAY), st.floats(-2 * DAY, 2 * DAY), st.integers(0, 999_999))
@example(begins=0, lasts=DAY, called=0.0, fraction=1)
@example(begins=4_095, lasts=1, called=1.0, fraction=0)
@example(begins=4_096, lasts=0, called=-0.001, fraction=0)
def test_a_call_that_names_no_request_counts_from_the_second_in_which_the_prompt_was_made(
    begins: int, lasts: int, called: float, fraction: int
) -> None:
    since = NOW + timedelta(seconds=begins, microseconds=fraction)
    at = since + timedelta(seconds=called)
    wanted = asked(since=since, until=since + timedelta(seconds=lasts))
    is_counted = not notes(THREAD, None, at=at).isdisjoint(wanted)
    second = since.replace(microsecond=0)
    if at < second:
        assert not is_counted
    elif called <= lasts:
        assert is_counted
    assert len(wanted) == len({*wanted}) <= 200


def test_an_answer_whose_clock_is_behind_still_has_its_calls() -> None:
    wanted = asked(since=NOW, until=NOW - timedelta(hours=1))
    assert not notes(THREAD, None, at=NOW + timedelta(minutes=4)).isdisjoint(wanted)


def test_no_event_that_is_published_has_the_id_of_a_note() -> None:
    limits = BodyLimits(max_bytes=100_000, max_depth=32)
    event = {"project_id": "shop", "thread_id": "t1", "event": "tool_call", "body": {"tool": "get_code"}}
    forged = {*asked("r"), *notes(NO_THREAD, "r")}
    assert len(forged) > 3
    for event_id in forged:
        with pytest.raises(InvalidRequest, match="event_id"):
            decode_event(json.dumps({**event, "event_id": event_id}).encode(), limits=limits, received_at=NOW)
    honest = decode_event(
        json.dumps({**event, "event_id": "tool_1"}).encode(), limits=limits, received_at=NOW
    )
    assert honest.record.event_id not in forged
