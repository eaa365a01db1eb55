from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.bundle import ContextBundle, Rejection, to_wire
from schemas.request import AssemblyRequest
from schemas.usage import UsageEvent
from schemas.wire import DecodeNotes, sha256_hex
from tests.support.handling import FIELDS, Trail, bundle, usage
from worker.errors import InternalError, InvalidRequest, Rejected, UnknownLayer, WorkerDied
from worker.outcomes import (
    Refusal,
    bundle_outcome,
    bundle_url,
    refusal_of,
    rejection_outcome,
    rejection_reply,
    stored_refusal,
)
from worker.ports import OutcomeKey, OutcomeRecord

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY = OutcomeKey(project_id="shop", request_id="r-1", generation=2)
REQUEST = AssemblyRequest.model_validate(FIELDS)


def rejected(error: Rejected, **more: Any) -> OutcomeRecord:
    return rejection_outcome(error, key=KEY, request_digest="d" * 64, as_of=AT, timestamp=AT, **more)


def served(text: str, *, max_record_bytes: int) -> OutcomeRecord:
    return bundle_outcome(
        bundle(REQUEST, text),
        usage(REQUEST),
        Trail(),
        request_digest="d" * 64,
        as_of=AT,
        max_record_bytes=max_record_bytes,
        max_capture_bytes=1_000,
        public_url="http://host:1/",
    )


# --- Rejections ----------------------------------------------------------------------------------------


def test_a_rejection_says_what_the_error_says() -> None:
    reply = rejection_reply(UnknownLayer("x", known=["b", "a"]), request_id="r-1", project_id=None)
    assert json.loads(to_wire(reply)) == {
        "schema_version": "1.0",
        "kind": "rejection",
        "request_id": "r-1",
        "project_id": None,
        "code": "unknown_layer",
        "message": "unknown layer 'x'; known: a, b",
        "details": {"name": "x", "known": ["a", "b"]},
        "retryable": False,
    }


def test_equal_errors_give_equal_bytes() -> None:
    first, second = (rejected(InvalidRequest("no", b=1, a=[2]), request=REQUEST) for _ in range(2))
    assert first == second


def test_a_message_as_long_as_the_body_is_cut() -> None:
    reply = rejection_reply(UnknownLayer("x", known=["a" * 10**6]), request_id="r", project_id="p")
    assert len(reply.message) == 2_000
    assert reply.details == {"omitted": "the details are too large for a reply"}
    assert len(to_wire(reply)) < 20_000


@pytest.mark.parametrize("details", [{"x": "\ud800"}, {"x": float("nan")}, {"x": {1, 2}}, {"x": b"raw"}])
def test_details_that_are_no_json_never_stop_a_reply(details: dict[str, Any]) -> None:
    reply = rejection_reply(InvalidRequest("no", **details), request_id="r", project_id="p")
    assert Rejection.model_validate_json(to_wire(reply)).code == "invalid_request"


@given(st.text(st.characters(), max_size=50), st.text(st.characters(), max_size=50))
@settings(max_examples=100)
def test_any_text_makes_a_reply(message: str, detail: str) -> None:
    reply = rejection_reply(InvalidRequest(message, detail=detail), request_id="r", project_id="p")
    to_wire(reply).decode()


def test_the_usage_event_of_a_rejection_has_no_tokens_and_no_timings() -> None:
    outcome = rejected(
        InvalidRequest("no"), request=REQUEST, notes=DecodeNotes(unknown_fields=2, naive_times=1)
    )
    assert outcome.usage is not None
    event = UsageEvent.model_validate_json(outcome.usage)
    assert event.event_id == sha256_hex(b'["shop","r-1",2]')[:26]
    assert (event.outcome, event.code, event.generation) == ("rejected", "invalid_request", 2)
    assert (event.volk_alias, event.subject, event.thread_id) == ("smith", "implement", "t-1")
    parts = (event.usage, event.overhead, event.reserved, event.statuses, event.timings_ms, event.exact)
    assert parts == (None,) * 6
    assert event.counts is not None
    assert (event.counts.unknown_fields, event.counts.naive_times) == (2, 1)
    assert event.timestamp == AT


def test_the_usage_event_of_poison_knows_the_ids_alone() -> None:
    outcome = rejected(InvalidRequest("no"))
    assert outcome.usage is not None
    event = UsageEvent.model_validate_json(outcome.usage)
    assert (event.project_id, event.request_id) == ("shop", "r-1")
    assert (event.volk_alias, event.subject, event.counts) == (None, None, None)


# --- What a dead letter repeats --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "traceback"),
    [
        (InvalidRequest("no", errors=[]), None),
        (InternalError("internal error (KeyError)"), "Traceback\nKeyError: \ud800"),
        (WorkerDied("died", attempts=5), None),
        (InvalidRequest("x" * 5_000, attempts=7), None),
    ],
)
def test_a_stored_rejection_says_what_its_error_said(error: Rejected, traceback: str | None) -> None:
    assert stored_refusal(rejected(error, traceback=traceback)) == refusal_of(error, traceback=traceback)


def test_attempts_are_those_of_a_record_that_ended_the_process_and_one_else() -> None:
    assert refusal_of(WorkerDied("died", attempts=5)).attempts == 5
    assert refusal_of(InvalidRequest("no", attempts=7)).attempts == 1


def test_a_stored_bundle_refuses_nothing_whatever_it_says() -> None:
    request = REQUEST.model_copy(update={"volk": '"outcome":"rejected"'})
    outcome = bundle_outcome(
        bundle(request, "x"),
        usage(request),
        Trail(),
        request_digest="d" * 64,
        as_of=AT,
        max_record_bytes=10_000,
        max_capture_bytes=0,
        public_url="",
    )
    assert stored_refusal(outcome) is None


def test_which_refusals_are_dead_letters() -> None:
    def is_letter(error: Rejected) -> bool:
        return refusal_of(error).is_dead_letter

    assert is_letter(InvalidRequest("no"))
    assert not is_letter(UnknownLayer("x", known=[]))
    assert Refusal(code="expired", message="", traceback=None, attempts=1).is_dead_letter is False


# --- Bundles -------------------------------------------------------------------------------------------


def test_a_bundle_that_fits_is_the_reply() -> None:
    outcome = served("x", max_record_bytes=10_000)
    assert ContextBundle.model_validate_json(outcome.reply) == bundle(REQUEST, "x")
    assert outcome.bundle is None
    assert (outcome.request_digest, outcome.as_of) == ("d" * 64, AT)


def test_the_limit_of_a_record_is_exact() -> None:
    size_bytes = len(served("x", max_record_bytes=10_000).reply)
    assert served("x", max_record_bytes=size_bytes).bundle is None
    assert served("x", max_record_bytes=size_bytes - 1).bundle is not None


def test_a_reference_names_the_bytes_that_are_kept() -> None:
    outcome = served("x" * 5_000, max_record_bytes=2_000)
    body = to_wire(bundle(REQUEST, "x" * 5_000))
    digest = sha256_hex(body)
    assert outcome.bundle == body
    assert json.loads(outcome.reply) == {
        "schema_version": "1.0",
        "kind": "bundle_ref",
        "request_id": "r-1",
        "project_id": "shop",
        "digest": digest,
        "size_bytes": len(body),
        "status": "complete",
        "url": f"http://host:1/projects/shop/bundles/{digest}",
    }


def test_a_url_has_one_slash_between_its_parts() -> None:
    assert bundle_url("http://h//", project_id="p", digest="d") == "http://h/projects/p/bundles/d"


def test_a_long_unknown_name_leaves_room_for_the_known_ones() -> None:
    reply = rejection_reply(UnknownLayer("x" * 10**6, known=["a", "b"]), request_id="r", project_id="p")
    assert reply.message.endswith("; known: a, b")
    assert reply.details == {"name": "x" * 255 + "…", "known": ["a", "b"]}
