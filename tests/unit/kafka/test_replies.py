"""Answers that do not fit, and answers that nobody can take: the record ends all the same."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.bundle import Rejection
from tests.support.handling import FIELDS, LIMITS, ROUTES, Bench, open_store, record
from worker.errors import BudgetTooSmall
from worker.kafka.headers import MAX_ECHOED_BYTES
from worker.kafka.records import Handled, OutboundRecord, RecordTooLarge, TopicUnusable

BUNDLES, USAGE, DEAD, TEAM = "context.bundles", "context.usage", "context.dead-letters", "team.replies"
EVERYTHING = 10_000_000


def size_of(item: OutboundRecord) -> int:
    headers = sum(len(name.encode()) + len(value) for name, value in item.headers)
    return len(item.value) + len(item.key or b"") + headers


@dataclass(slots=True)
class Broker(Bench):
    """A bench whose topics take records up to a size, and which lacks some topics."""

    takes_bytes: Callable[[str], int] = lambda _: EVERYTHING
    lacks: frozenset[str] = frozenset()

    async def publish(self, record: OutboundRecord) -> None:
        if record.topic in self.lacks:
            assert record.is_topic_foreign, f"{record.topic} would be waited for for ever"
            raise TopicUnusable(record.topic, reason="does not exist")
        if size_of(record) > self.takes_bytes(record.topic):
            raise RecordTooLarge(record, limit="the test's limit")
        await Bench.publish(self, record)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Broker]:
    store = open_store(tmp_path / "outcomes.db")
    yield Broker(store=store, limits=replace(LIMITS, max_record_bytes=50_000))
    await store.close()


def limits(**by_role: int) -> Callable[[str], int]:
    names = {"bundles": BUNDLES, "usage": USAGE, "dead": DEAD, "team": TEAM}
    by_topic = {names[role]: size_bytes for role, size_bytes in by_role.items()}
    return lambda topic: by_topic.get(topic, EVERYTHING)


def altered(bench: Bench, kind: str, change: str) -> float:
    labels = {"kind": kind, "change": change}
    return bench.telemetry.registry.get_sample_value("context_altered_publications_total", labels) or 0.0


# --- Replies that do not fit ---------------------------------------------------------------------------


async def test_a_bundle_that_its_topic_refuses_becomes_a_rejection_and_a_dead_letter(bench: Broker) -> None:
    bench.takes_bytes, bench.text = limits(bundles=5_000), "x" * 20_000
    assert await bench.handler().handle(record()) == Handled()
    assert [item.topic for item in bench.published] == [DEAD, BUNDLES, USAGE]
    (reply,) = bench.values(BUNDLES)
    assert (reply["code"], reply["request_id"], reply["project_id"]) == ("too_large", "r-1", "shop")
    assert reply["details"]["topic"] == BUNDLES
    assert reply["details"]["size_bytes"] > 20_000
    assert dict(bench.on(BUNDLES)[0].headers)["context-kind"] == b"rejection"
    assert bench.on(DEAD)[0].value == record().value
    assert dict(bench.on(DEAD)[0].headers)["context-dead-code"] == b"too_large"
    assert altered(bench, "bundle", "shortened") == 1


async def test_a_redelivery_gets_the_same_substitute_byte_for_byte(bench: Broker) -> None:
    bench.takes_bytes, bench.text = limits(bundles=5_000), "x" * 20_000
    await bench.handler().handle(record())
    await bench.handler().handle(record())
    assert bench.assembled == 1
    assert bench.published[:3] == bench.published[3:]


async def test_a_rejection_that_its_topic_refuses_keeps_its_code_and_loses_its_details(bench: Broker) -> None:
    bench.takes_bytes = limits(bundles=1_200)
    bench.assemble_error = BudgetTooSmall(layer="x" * 1_000, overage_tokens=5, total_tokens=10)
    assert await bench.handler().handle(record()) == Handled(code="budget_too_small")
    (reply,) = bench.values(BUNDLES)
    assert reply["code"] == "budget_too_small"
    assert reply["details"] == {"omitted": "the reply topic takes no more"}
    assert len(reply["message"]) == 200
    assert not bench.on(DEAD)
    assert altered(bench, "rejection", "shortened") == 1


async def test_a_reply_without_outcome_is_shortened_too(bench: Broker) -> None:
    bench.takes_bytes = limits(bundles=400)
    assert await bench.handler().handle(record({"request_id": "r-1"})) == Handled(code="invalid_request")
    assert bench.values(BUNDLES)[0]["details"] == {"omitted": "the reply topic takes no more"}
    assert altered(bench, "rejection", "shortened") == 1


async def test_a_usage_event_that_its_topic_refuses_is_left_out_and_the_line_is_written(
    bench: Broker,
) -> None:
    bench.takes_bytes = limits(usage=10)
    assert await bench.handler().handle(record()) == Handled()
    assert [item.topic for item in bench.published] == [BUNDLES]
    assert len(bench.lines) == 1
    assert altered(bench, "usage", "left_out") == 1


async def test_topics_that_take_nothing_at_all_hold_no_record_up(bench: Broker) -> None:
    bench.takes_bytes = limits(bundles=0, usage=0, dead=0)
    assert await bench.handler().handle(record()) == Handled()
    assert await bench.handler().handle(record(b"\xff")) == Handled(code="invalid_encoding")
    assert await bench.handler().bury(record(offset=18), attempts=3) == Handled(code="worker_died")
    assert bench.published == []
    assert altered(bench, "rejection", "left_out") >= 2
    assert altered(bench, "dead_letter", "left_out") >= 2


# --- Keys, names and headers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "replaced"), [(MAX_ECHOED_BYTES, False), (MAX_ECHOED_BYTES + 1, True), (9_000_000, True)]
)
async def test_a_long_key_is_replaced_by_the_project(
    bench: Broker,
    length: int,
    replaced: bool,  # noqa: FBT001
) -> None:
    await bench.handler().handle(record(key=b"k" * length))
    assert bench.on(BUNDLES)[0].key == (b"shop" if replaced else b"k" * length)
    assert altered(bench, "reply", "other_key") == int(replaced)


async def test_a_long_key_of_a_record_without_a_project_is_left_out(bench: Broker) -> None:
    await bench.handler().handle(record(b"\xff", key=b"k" * 9_000))
    assert bench.on(BUNDLES)[0].key is None
    assert bench.on(DEAD)[0].key == b"k" * 9_000


async def test_a_dead_letter_that_does_not_fit_is_cut_to_what_names_the_record(bench: Broker) -> None:
    bench.takes_bytes = limits(dead=16_384)
    headers = tuple((f"h{number}", b"v" * 1_000) for number in range(100))
    poison = record(b"{" + b"x" * 50_000, key=b"k" * 50_000, headers=headers)
    bench.assemble_error = RuntimeError("x" * 50_000)
    await bench.handler().handle(poison)
    (letter,) = bench.on(DEAD)
    says = dict(letter.headers)
    assert (letter.key, letter.value) == (None, b"")
    assert says["context-dead-cut"] == b"50001"
    assert (says["context-dead-code"], says["context-dead-offset"]) == (b"invalid_json", b"17")
    assert letter.headers[-4:] == headers[:4]
    assert altered(bench, "dead_letter", "cut") == 1


LONG = "n" * 400_000


@pytest.mark.parametrize(
    "changes",
    [
        {"model": LONG},
        {"subject": LONG},
        {"strategy": LONG},
        {"volk": LONG},
        {"thread_id": LONG},
        {"plan_id": LONG},
        {"encoding": LONG},
        {"requester": LONG},
        {"task_type": LONG},
        {"ranking": LONG},
        {"include": [LONG]},
        {"kind": LONG},
        {"schema_version": LONG},
        {"schema_version": "9" * 100_000},
        {"deadline_ms": LONG},
        {"as_of": LONG},
        {"budget": {"layers": {LONG: 1}}},
        {"budget": {"layers": {LONG: -1}}},
        {"budget": {"layers": {LONG + str(number): "x" for number in range(4)}}},
        {"layer_timeouts_ms": {LONG: 1}},
        {"layer_timeouts_ms": {LONG: LONG}},
        {"project_id": LONG},
        {"request_id": LONG},
        {"must_cite": [LONG]},
        {"required_tools": [LONG]},
        {"parent": {"request_id": LONG}},
        {"after": {"event_ids": [LONG]}},
        {"plan": {"plan_id": LONG, "text": LONG}},
        {"pack": LONG},
        {"working": {"failing_tests": [{"id": LONG}]}},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_no_text_of_the_caller_makes_an_answer_large(bench: Broker, changes: dict[str, Any]) -> None:
    bench.limits = replace(LIMITS, body=replace(LIMITS.body, max_bytes=EVERYTHING), max_record_bytes=50_000)
    headers = (
        ("correlation_id", b"c" * MAX_ECHOED_BYTES),
        ("traceparent", b"01-" + b"1" * 32 + b"-" + b"1" * 16 + b"-01-" + b"x" * 400_000),
        ("tracestate", b"s" * 400_000),
        ("reply_to", b"r" * 400_000),
        ("context-kind", b"k" * 400_000),
    )
    await bench.handler().handle(record({**FIELDS, **changes}, headers=headers, key=b"k" * 400_000))
    answers = bench.on(BUNDLES) + bench.on(USAGE)
    assert answers
    assert max(map(size_of, answers)) < 32_000


@given(
    model=st.text(max_size=400),
    subject=st.text(max_size=400),
    strategy=st.text(max_size=400),
    volk=st.text(min_size=1, max_size=400),
    key=st.binary(max_size=6_000) | st.none(),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_request_is_left_without_an_answer_that_fits(
    tmp_path_factory: pytest.TempPathFactory, key: bytes | None, **names: str
) -> None:
    store = open_store(tmp_path_factory.mktemp("fits") / "outcomes.db")
    bench = Broker(store=store, takes_bytes=lambda _: 32_000)
    body = json.dumps({**FIELDS, **names}, ensure_ascii=True).encode()
    await bench.handler().handle(record(body, key=key))
    await store.close()
    assert len(bench.on(BUNDLES)) == 1
    assert not altered(bench, "rejection", "shortened")


# --- Foreign reply topics ------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [None, b"{", {"request_id": "r-1", "project_id": "shop"}])
async def test_a_reply_to_a_topic_that_is_not_there_goes_to_the_bundles_topic(
    bench: Broker, body: object
) -> None:
    bench.lacks = frozenset({TEAM})
    await bench.handler().handle(record(body, headers=(("reply_to", TEAM.encode()),)))
    assert len(bench.on(BUNDLES)) == 1
    kind = "bundle" if body is None else "rejection"
    assert bench.values(BUNDLES)[0]["kind"] == kind
    assert altered(bench, kind, "other_topic") == 1


async def test_only_the_topics_of_others_may_be_missing(bench: Broker) -> None:
    await bench.handler().handle(record(b"{"))
    await bench.handler().handle(record(offset=18, headers=(("reply_to", TEAM.encode()),)))
    await bench.handler().handle(record(offset=19, headers=(("reply_to", BUNDLES.encode()),)))
    assert {item.topic for item in bench.published if item.is_topic_foreign} == {TEAM}
    assert len(bench.on(TEAM)) == 1


async def test_a_reply_that_fits_neither_topic_is_shortened_on_the_bundles_topic(bench: Broker) -> None:
    bench.lacks, bench.takes_bytes, bench.text = frozenset({TEAM}), limits(bundles=5_000), "x" * 20_000
    await bench.handler().handle(record(headers=(("reply_to", TEAM.encode()),)))
    reply = Rejection.model_validate(bench.values(BUNDLES)[0])
    assert reply.code == "too_large"


def test_the_routes_of_the_bench_are_those_that_these_tests_name() -> None:
    assert (ROUTES.bundles, ROUTES.usage, ROUTES.dead_letters) == (BUNDLES, USAGE, DEAD)
    assert ROUTES.reply_topics == {TEAM}
