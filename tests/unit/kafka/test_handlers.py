from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas.request import AssemblyRequest
from schemas.usage import usage_event_id
from schemas.wire import sha256_hex
from tests.support.handling import FIELDS, NOW, NOW_MS, Bench, broken, open_store, record
from worker.errors import BudgetTooSmall, StoreUnavailable
from worker.kafka.records import Handled
from worker.outcomes import bundle_outcome
from worker.ports import OutcomeKey, OutcomeRecord

BUNDLES, USAGE, DEAD = "context.bundles", "context.usage", "context.dead-letters"
KEY = OutcomeKey(project_id="shop", request_id="r-1")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Bench]:
    store = open_store(tmp_path / "outcomes.db")
    yield Bench(store=store)
    await store.close()


def fields(**changes: Any) -> dict[str, Any]:
    return {**FIELDS, **changes}


def metric(bench: Bench, name: str, **labels: str) -> float:
    return bench.telemetry.registry.get_sample_value(name, labels) or 0.0


# --- A bundle ------------------------------------------------------------------------------------------


async def test_a_request_ends_in_one_reply_and_one_usage_event_in_this_order(bench: Bench) -> None:
    assert await bench.handler().handle(record()) == Handled()
    assert [item.topic for item in bench.published] == [BUNDLES, USAGE]
    assert bench.values(BUNDLES)[0]["messages"] == [{"role": "user", "content": "attempt 1"}]
    assert bench.lines == [bench.on(USAGE)[0].value]


async def test_the_reply_carries_the_key_of_its_request_and_the_event_the_project(bench: Bench) -> None:
    await bench.handler().handle(record(key=b"\xff#raw"))
    assert bench.on(BUNDLES)[0].key == b"\xff#raw"
    assert bench.on(USAGE)[0].key == b"shop"


@pytest.mark.parametrize(("chars", "is_elsewhere"), [(1_000, 0), (300_000, 1)])
async def test_a_large_bundle_is_written_down_in_another_thread_than_the_loops(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, chars: int, is_elsewhere: int
) -> None:
    threads: list[int] = []

    def watched(*arguments: Any, **more: Any) -> OutcomeRecord:
        threads.append(threading.get_ident())
        return bundle_outcome(*arguments, **more)

    monkeypatch.setattr("worker.kafka.handlers.bundle_outcome", watched)
    bench.text = "x" * chars
    await bench.handler().handle(record())
    assert [thread != threading.get_ident() for thread in threads] == [is_elsewhere]


async def test_what_is_published_is_what_the_store_holds(bench: Bench) -> None:
    await bench.handler().handle(record())
    held = await bench.store.get(KEY)
    assert isinstance(held, OutcomeRecord)
    assert (held.reply, held.usage) == (bench.on(BUNDLES)[0].value, bench.on(USAGE)[0].value)
    assert held.as_of == NOW - timedelta(seconds=1)


async def test_the_instant_is_the_requests_own_where_it_names_one(bench: Bench) -> None:
    await bench.handler().handle(record(fields(as_of="2025-01-02T03:04:05Z")))
    assert bench.values(BUNDLES)[0]["assembled_at"] == "2025-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("timestamp_ms", "year"), [(2**62, 9999), (NOW_MS + 10**9, 2026)], ids=["absurd", "future"]
)
async def test_a_timestamp_that_no_calendar_has_is_moved_to_its_end(
    bench: Bench, timestamp_ms: int, year: int
) -> None:
    assert await bench.handler().handle(record(timestamp_ms=timestamp_ms)) == Handled()
    held = await bench.store.get(KEY)
    assert isinstance(held, OutcomeRecord)
    assert held.as_of.year == year


async def test_a_repeat_too_young_to_be_looked_up_gets_the_stored_bytes_all_the_same(bench: Bench) -> None:
    steps: list[str] = []
    bench.step = steps.append
    young = record(timestamp_ms=NOW_MS - 999)
    await bench.handler().handle(young)
    assert await bench.handler().handle(young) == Handled()
    assert "before get" not in steps
    assert bench.assembled == 2
    assert len(bench.published) == 4
    assert len({item.value for item in bench.published}) == 2
    assert len(bench.lines) == 1
    assert metric(bench, "context_outcomes_republished_total") == 1
    assert metric(bench, "context_outcomes_total", outcome="complete", code="") == 1


async def test_a_young_reuse_of_an_id_is_refused_by_what_the_put_finds(bench: Bench) -> None:
    await bench.handler().handle(record(timestamp_ms=NOW_MS))
    other = record({**FIELDS, "user_message": "Something else."}, timestamp_ms=NOW_MS)
    assert (await bench.handler().handle(other)).code == "request_id_reused"


async def test_a_repeat_gets_the_stored_bytes_and_is_not_assembled_again(bench: Bench) -> None:
    await bench.handler().handle(record())
    assert await bench.handler().handle(record(offset=99, timestamp_ms=NOW_MS - 2_000)) == Handled()
    assert bench.assembled == 1
    assert len(bench.published) == 4
    assert len({item.value for item in bench.published}) == 2
    assert len(bench.lines) == 1
    assert metric(bench, "context_outcomes_republished_total") == 1
    assert metric(bench, "context_outcomes_total", outcome="complete", code="") == 1


async def test_a_repeat_may_differ_in_deadlines_and_spelling_but_not_in_meaning(bench: Bench) -> None:
    await bench.handler().handle(record())
    await bench.handler().handle(record(json.dumps(fields(deadline_ms=9, new="x"), indent=2).encode()))
    assert len({item.value for item in bench.on(BUNDLES)}) == 1
    outcome = await bench.handler().handle(record(fields(user_message="Add two.")))
    assert outcome == Handled(code="request_id_reused")
    assert bench.values(BUNDLES)[-1]["code"] == "request_id_reused"
    assert len(bench.on(USAGE)) == 2


async def test_the_same_id_of_another_project_has_an_outcome_of_its_own(bench: Bench) -> None:
    await bench.handler().handle(record())
    await bench.handler().handle(record(fields(project_id="bank")))
    assert [reply["project_id"] for reply in bench.values(BUNDLES)] == ["shop", "bank"]
    assert bench.assembled == 2


async def test_a_higher_generation_has_an_outcome_of_its_own(bench: Bench) -> None:
    await bench.handler().handle(record())
    await bench.handler().handle(record(headers=(("context-generation", b"2"),)))
    assert bench.assembled == 2
    events = bench.values(USAGE)
    assert [event["generation"] for event in events] == [0, 2]
    assert events[1]["event_id"] == usage_event_id("shop", "r-1", 2)
    assert dict(bench.on(USAGE)[1].headers)["context-generation"] == b"2"


async def test_three_at_once_on_two_workers_give_one_outcome_and_one_line(bench: Bench) -> None:
    first, second = bench.handler(), bench.handler()
    await asyncio.gather(first.handle(record()), second.handle(record()), first.handle(record()))
    assert len(bench.on(BUNDLES)) == 3
    assert len({item.value for item in bench.on(BUNDLES)}) == 1
    assert len({item.value for item in bench.on(USAGE)}) == 1
    assert len(bench.lines) == 1


async def test_a_bundle_beyond_a_record_is_published_by_reference(bench: Bench) -> None:
    bench.text = "x" * 20_000
    await bench.handler().handle(record())
    reply = bench.values(BUNDLES)[0]
    body = await bench.store.get_bundle(project_id="shop", digest=reply["digest"])
    assert body is not None
    assert reply["kind"] == "bundle_ref"
    assert reply["size_bytes"] == len(body)
    assert sha256_hex(body) == reply["digest"]
    assert reply["url"] == f"http://127.0.0.1:8080/projects/shop/bundles/{reply['digest']}"
    assert dict(bench.on(BUNDLES)[0].headers)["context-kind"] == b"bundle_ref"
    await bench.handler().handle(record())
    assert bench.on(BUNDLES)[1].value == bench.on(BUNDLES)[0].value


async def test_a_heavy_body_is_decoded_too(bench: Bench) -> None:
    await bench.handler().handle(record(fields(payload={"task_context": "word " * 15_000})))
    assert bench.values(BUNDLES)[0]["kind"] == "bundle"


async def test_forgiven_things_are_counted(bench: Bench) -> None:
    await bench.handler().handle(record(fields(as_of="2026-01-01T00:00:00", novel=1, other=2)))
    assert metric(bench, "context_unknown_fields_total") == 2
    assert metric(bench, "context_naive_times_total") == 1


# --- Rejections ----------------------------------------------------------------------------------------


async def test_a_rejection_is_stored_and_has_a_usage_event_without_tokens_and_timings(bench: Bench) -> None:
    bench.assemble_error = BudgetTooSmall(layer="user", overage_tokens=5, total_tokens=10)
    assert await bench.handler().handle(record()) == Handled(code="budget_too_small")
    (reply,), (event,) = bench.values(BUNDLES), bench.values(USAGE)
    assert reply["details"] == {"layer": "user", "overage_tokens": 5, "total_tokens": 10}
    assert reply["retryable"] is False
    assert (event["outcome"], event["code"], event["volk_alias"]) == (
        "rejected",
        "budget_too_small",
        "smith",
    )
    assert {event[name] for name in ("usage", "overhead", "reserved", "statuses", "timings_ms", "exact")} == {
        None
    }
    assert bench.lines == [bench.on(USAGE)[0].value]
    assert not bench.on(DEAD)
    bench.assemble_error = None
    await bench.handler().handle(record())
    assert bench.on(BUNDLES)[0].value == bench.on(BUNDLES)[1].value


async def test_a_layer_that_is_unknown_is_refused_before_anything_is_assembled(bench: Bench) -> None:
    await bench.handler().handle(record(fields(budget={"layers": {"dreams": 1}})))
    assert bench.values(BUNDLES)[0]["code"] == "unknown_layer"
    assert bench.assembled == 0


async def test_a_request_met_after_its_expiry_is_answered_at_once_and_stored(bench: Bench) -> None:
    late = record(fields(expires_at="2026-03-01T12:00:00Z"))
    assert await bench.handler().handle(late) == Handled(code="expired")
    assert bench.assembled == 0
    assert bench.values(BUNDLES)[0]["retryable"] is True
    assert isinstance(await bench.store.get(KEY), OutcomeRecord)
    assert len(bench.on(USAGE)) == 1


async def test_a_repeat_after_the_expiry_gets_the_bundle_that_was_in_time(bench: Bench) -> None:
    request = record(fields(expires_at="2026-03-01T12:00:01Z"))
    await bench.handler().handle(request)
    bench.now = lambda: NOW + timedelta(hours=1)
    await bench.handler().handle(request)
    assert [reply["kind"] for reply in bench.values(BUNDLES)] == ["bundle", "bundle"]


async def test_a_record_older_than_the_memory_of_the_store_is_expired_without_outcome(bench: Bench) -> None:
    old = record(timestamp_ms=NOW_MS - 48 * 3_600_000 - 1)
    assert await bench.handler().handle(old) == Handled(code="expired")
    assert await bench.store.get(KEY) is None
    assert not bench.on(USAGE)
    assert not bench.lines


async def test_a_record_as_old_as_the_memory_of_the_store_is_served(bench: Bench) -> None:
    assert await bench.handler().handle(record(timestamp_ms=NOW_MS - 48 * 3_600_000)) == Handled()


async def test_a_tombstone_answers_expired_to_a_repeat_and_reused_to_another(tmp_path: Path) -> None:
    clock = [0.0]
    store = open_store(tmp_path / "outcomes.db", clock=lambda: clock[0])
    bench = Bench(store=store)
    await bench.handler().handle(record())
    clock[0] = 3 * 3_600
    assert await bench.handler().handle(record()) == Handled(code="expired")
    assert await bench.handler().handle(record(fields(volk="other"))) == Handled(code="request_id_reused")
    assert bench.assembled == 1
    assert len(bench.on(USAGE)) == 1
    await store.close()


@pytest.mark.parametrize("operation", ["before get", "before put"])
async def test_an_absent_store_stops_the_request_before_anything_is_published(
    bench: Bench, operation: str
) -> None:
    def away(name: str) -> None:
        if name == operation:
            raise StoreUnavailable("sqlite")

    bench.step = away
    with pytest.raises(StoreUnavailable):
        await bench.handler().handle(record())
    assert bench.published == []
    assert bench.lines == []


async def test_a_source_that_leaks_its_absence_is_no_dead_letter(bench: Bench) -> None:
    bench.assemble_error = StoreUnavailable("neo4j")
    with pytest.raises(StoreUnavailable):
        await bench.handler().handle(record())
    assert bench.published == []


# --- Poison --------------------------------------------------------------------------------------------


async def test_poison_with_ids_is_dead_lettered_then_answered_and_stored(bench: Bench) -> None:
    poison = record(b'{"request_id": "r-1", "project_id": "shop", oops', headers=(("x", b"\xff"),))
    assert await bench.handler().handle(poison) == Handled(code="invalid_json")
    assert [item.topic for item in bench.published] == [DEAD, BUNDLES, USAGE]
    letter = bench.on(DEAD)[0]
    assert (letter.key, letter.value) == (poison.key, poison.value)
    assert letter.headers[-1] == ("x", b"\xff")
    assert dict(letter.headers[:7]) == {
        "context-dead-code": b"invalid_json",
        "context-dead-message": bench.values(BUNDLES)[0]["message"].encode(),
        "context-dead-topic": b"context.requests",
        "context-dead-partition": b"3",
        "context-dead-offset": b"17",
        "context-dead-timestamp": str(NOW_MS - 1_000).encode(),
        "context-dead-attempts": b"1",
    }
    event = bench.values(USAGE)[0]
    assert (event["code"], event["volk_alias"], event["counts"]) == ("invalid_json", None, None)
    held = await bench.store.get(KEY)
    assert isinstance(held, OutcomeRecord)
    assert held.request_digest == sha256_hex(poison.value or b"")


async def test_poison_without_ids_is_dead_lettered_and_answered_and_nothing_else(bench: Bench) -> None:
    poison = record(b"\xff\xfe")
    assert await bench.handler().handle(poison) == Handled(code="invalid_encoding")
    assert [item.topic for item in bench.published] == [DEAD, BUNDLES]
    reply = bench.values(BUNDLES)[0]
    assert (reply["request_id"], reply["project_id"], reply["code"]) == (None, None, "invalid_encoding")
    assert bench.lines == []
    await bench.handler().handle(poison)
    assert len({item.value for item in bench.published}) == 2


async def test_poison_with_one_id_says_that_one(bench: Bench) -> None:
    await bench.handler().handle(record(b'{"request_id": "r-1", "project_id": "a/b"}'))
    reply = bench.values(BUNDLES)[0]
    assert (reply["request_id"], reply["project_id"]) == ("r-1", None)


async def test_a_null_body_is_poison_and_kept_as_an_empty_one(bench: Bench) -> None:
    await bench.handler().handle(record(value=None))
    assert bench.on(DEAD)[0].value == b""
    assert bench.values(BUNDLES)[0]["code"] == "invalid_json"


async def test_repeated_poison_gets_the_same_bytes_again_the_dead_letter_included(bench: Bench) -> None:
    poison = record(fields(kind="bundle"))
    await bench.handler().handle(poison)
    assert await bench.handler().handle(poison) == Handled()
    assert bench.published[:3] == bench.published[3:]


async def test_poison_under_a_used_id_is_dead_lettered_and_answered_reused(bench: Bench) -> None:
    await bench.handler().handle(record())
    poison = record(b'{"request_id": "r-1", "project_id": "shop"}')
    assert await bench.handler().handle(poison) == Handled(code="request_id_reused")
    assert dict(bench.on(DEAD)[0].headers)["context-dead-code"] == b"invalid_request"
    held = await bench.store.get(KEY)
    assert isinstance(held, OutcomeRecord)
    assert b'"kind":"bundle"' in held.reply


async def test_poison_older_than_the_memory_is_a_dead_letter_all_the_same(bench: Bench) -> None:
    await bench.handler().handle(record(b"{", timestamp_ms=0))
    assert dict(bench.on(DEAD)[0].headers)["context-dead-code"] == b"invalid_json"
    assert bench.values(BUNDLES)[0]["code"] == "expired"


async def test_a_request_once_refused_as_poison_stays_refused_when_it_can_be_decoded(bench: Bench) -> None:
    await bench.handler().bury(record(), attempts=3)
    await bench.handler().handle(record())
    assert {reply["code"] for reply in bench.values(BUNDLES)} == {"worker_died"}
    assert bench.assembled == 0


# --- Defects -------------------------------------------------------------------------------------------


class Panic(BaseException):
    """As a Rust extension raises it."""


@pytest.mark.parametrize("error", [RuntimeError("SECRET\ud800"), RecursionError(), Panic("SECRET")])
async def test_a_defect_is_dead_lettered_with_its_traceback_and_answered_without_its_words(
    bench: Bench, error: BaseException
) -> None:
    bench.assemble_error = error
    assert await bench.handler().handle(record()) == Handled(code="internal_error")
    reply = bench.values(BUNDLES)[0]
    assert reply["message"] == f"internal error ({type(error).__name__})"
    assert reply["retryable"] is True
    assert b"SECRET" not in bench.on(BUNDLES)[0].value + bench.on(USAGE)[0].value
    headers = dict(bench.on(DEAD)[0].headers)
    assert headers["context-dead-code"] == b"internal_error"
    assert headers["context-dead-traceback"].startswith(b"Traceback (most recent call last)")
    assert b"handling.py" in headers["context-dead-traceback"]
    assert bench.on(DEAD)[0].value == record().value


async def test_the_traceback_is_cut_from_its_beginning(bench: Bench) -> None:
    bench.assemble_error = RuntimeError("x" * 50_000 + "the end")
    await bench.handler().handle(record())
    text = dict(bench.on(DEAD)[0].headers)["context-dead-traceback"].decode()
    assert len(text) == 8_000
    assert text.endswith("the end\n")


async def test_a_repeated_defect_gives_the_same_dead_letter_from_the_store(bench: Bench) -> None:
    bench.assemble_error = RuntimeError("once")
    await bench.handler().handle(record())
    bench.assemble_error = None
    await bench.handler().handle(record())
    assert bench.published[:3] == bench.published[3:]
    assert bench.assembled == 1


async def test_cancellation_is_not_an_error(bench: Bench) -> None:
    bench.assemble_error = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        await bench.handler().handle(record())
    assert bench.published == []


async def test_a_defect_of_the_decoder_is_dead_lettered_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> AssemblyRequest:
        raise ZeroDivisionError

    monkeypatch.setattr("worker.kafka.received.decode_request", broken)
    assert await bench.handler().handle(record()) == Handled(code="internal_error")
    assert b"ZeroDivisionError" in dict(bench.on(DEAD)[0].headers)["context-dead-traceback"]
    assert bench.values(BUNDLES)[0]["request_id"] == "r-1"


# --- Burying -------------------------------------------------------------------------------------------


async def test_a_buried_record_is_dead_lettered_and_answered_once_with_its_attempts(bench: Bench) -> None:
    assert await bench.handler().bury(record(), attempts=3) == Handled(code="worker_died")
    assert [item.topic for item in bench.published] == [DEAD, BUNDLES, USAGE]
    headers = dict(bench.on(DEAD)[0].headers)
    assert (headers["context-dead-code"], headers["context-dead-attempts"]) == (b"worker_died", b"3")
    assert bench.on(DEAD)[0].value == record().value
    assert bench.values(BUNDLES)[0]["details"] == {"attempts": 3}
    assert bench.values(USAGE)[0]["code"] == "worker_died"
    assert len(bench.lines) == 1


async def test_burying_again_changes_nothing(bench: Bench) -> None:
    await bench.handler().bury(record(), attempts=3)
    await bench.handler().bury(record(), attempts=4)
    assert bench.published[:3] == bench.published[3:]


async def test_burying_does_not_decode(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fatal(*_: object, **__: object) -> AssemblyRequest:
        raise SystemExit

    monkeypatch.setattr("worker.kafka.received.decode_request", fatal)
    await bench.handler().bury(record(), attempts=3)
    assert bench.values(BUNDLES)[0]["code"] == "worker_died"


async def test_burying_publishes_the_outcome_that_an_attempt_stored_before_it_died(bench: Bench) -> None:
    await bench.handler().handle(record())
    bundle = bench.on(BUNDLES)[0].value
    assert await bench.handler().bury(record(), attempts=3) == Handled(code="worker_died")
    assert [item.value for item in bench.on(BUNDLES)] == [bundle, bundle]
    assert dict(bench.on(DEAD)[0].headers)["context-dead-code"] == b"worker_died"


async def test_burying_a_record_without_ids_answers_from_the_record_alone(bench: Bench) -> None:
    assert await bench.handler().bury(record(b"\xff"), attempts=3) == Handled(code="worker_died")
    assert [item.topic for item in bench.published] == [DEAD, BUNDLES]
    assert bench.values(BUNDLES)[0]["request_id"] is None


async def test_burying_waits_for_the_store_like_everything_else(bench: Bench) -> None:
    def away(name: str) -> None:
        if name == "before put":
            raise StoreUnavailable("sqlite")

    bench.step = away
    with pytest.raises(StoreUnavailable):
        await bench.handler().bury(record(), attempts=3)
    assert bench.published == []


async def test_a_forgotten_record_is_buried_without_outcome(bench: Bench) -> None:
    bench.now = lambda: datetime(2027, 1, 1, tzinfo=UTC)
    assert await bench.handler().bury(record(), attempts=3) == Handled(code="expired")
    assert [item.topic for item in bench.published] == [DEAD, BUNDLES]


async def test_a_record_buried_for_a_defect_is_an_internal_error_with_its_traceback(bench: Bench) -> None:
    cause = RuntimeError("SECRET")
    assert await bench.handler().bury(record(), attempts=3, cause=cause) == Handled(code="internal_error")
    assert [item.topic for item in bench.published] == [DEAD, BUNDLES, USAGE]
    headers = dict(bench.on(DEAD)[0].headers)
    assert (headers["context-dead-code"], headers["context-dead-attempts"]) == (b"internal_error", b"3")
    assert b"RuntimeError: SECRET" in headers["context-dead-traceback"]
    reply = bench.values(BUNDLES)[0]
    assert (reply["code"], reply["details"], reply["retryable"]) == ("internal_error", {"attempts": 3}, True)
    assert b"SECRET" not in bench.on(BUNDLES)[0].value


async def test_a_defect_of_the_burial_itself_leaves_dead_letter_and_reply(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.kafka.received.read_ids", broken)
    assert await bench.handler().bury(record(), attempts=3) == Handled(code="worker_died")
    assert [item.topic for item in bench.published] == [DEAD, BUNDLES]
    headers = dict(bench.on(DEAD)[0].headers)
    assert headers["context-dead-code"] == b"worker_died"
    assert b"ZeroDivisionError" in headers["context-dead-traceback"]
    assert bench.on(DEAD)[0].value == record().value
