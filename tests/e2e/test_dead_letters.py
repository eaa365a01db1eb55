"""Dead letters on both brokers: written, listed, shown, and sent back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from typer.testing import CliRunner

from schemas.bundle import ContextBundle, Rejection
from schemas.request import AssemblyRequest
from tests.support.dispatching import batch_of, read_all, send_batch
from tests.support.handling import record
from tests.support.serving import Serving, serving
from worker.cli import app
from worker.client import ContextClient
from worker.kafka.connection import KafkaConnection
from worker.kafka.dead_letters import (
    DeadLetter,
    DeadLetterTopic,
    Selection,
    dead_letter,
    list_dead_letters,
    read_dead_letters,
    redrive,
    show_dead_letter,
)
from worker.kafka.embedded import EmbeddedBroker
from worker.kafka.records import InboundRecord
from worker.kafka.topics import ensure_topics
from worker.kafka_clients import TopicMissing, started_producer
from worker.outcomes import Refusal

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="session")]

BAD = Refusal(code="invalid_json", message="ünïcode", traceback=None, attempts=1)
BROKEN = Refusal(code="internal_error", message="m", traceback="Traceback\n", attempts=1)
BODY = b'{"request_id": "r-1", "project_id": "shop", oops'


@pytest.fixture(params=["embedded", pytest.param("services", marks=pytest.mark.services)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    if request.param == "services":
        return request.getfixturevalue("kafka_bootstrap")
    broker: EmbeddedBroker = request.getfixturevalue("embedded")
    return broker.bootstrap_servers


@pytest_asyncio.fixture(loop_scope="session")
async def topic(bootstrap: str, topic_prefix: str) -> DeadLetterTopic:
    connection = KafkaConnection(bootstrap_servers=(bootstrap,))
    await ensure_topics(connection, prefix=topic_prefix, replication_factor=1)
    return DeadLetterTopic(topic=f"{topic_prefix}dead-letters", connection=connection)


@pytest.fixture
def requests(topic_prefix: str) -> str:
    return f"{topic_prefix}requests"


async def bury(topic: DeadLetterTopic, *letters: tuple[InboundRecord, Refusal], is_cut: bool = False) -> None:
    async with started_producer(topic.connection.client_options()) as producer:
        for item, refusal in letters:
            out = dead_letter(item, refusal, topic=topic.topic, is_cut=is_cut)
            await producer.send_and_wait(out.topic, out.value, out.key, headers=list(out.headers))


async def redriven(topic: DeadLetterTopic, requests: str, **selection: Any) -> list[tuple[bool, int]]:
    found = await redrive(topic, Selection(**selection), allowed_topics=frozenset({requests}), dry_run=False)
    return [(item.is_published, item.generation) for item in found]


# --- Reading -----------------------------------------------------------------------------------------


async def test_a_letter_that_aiokafka_cannot_read_hides_no_other(
    topic: DeadLetterTopic, requests: str
) -> None:
    (bootstrap,) = topic.connection.bootstrap_servers
    letters = [(record(BODY, topic=requests, key=b"%d" % number), BAD) for number in range(12)]
    await bury(topic, *letters)
    await send_batch(bootstrap, topic.topic, batch_of([(b"k", b"stranger", [(b"\xff", b"v")])]))
    await bury(topic, *letters)
    found = await list_dead_letters(topic)
    assert sorted(letter.code for letter in found) == ["invalid_json"] * 24 + ["unreadable"]
    (stranger,) = (letter.id for letter in found if letter.code == "unreadable")
    shown = await show_dead_letter(topic, stranger)
    assert shown is not None
    assert (shown.value, shown.headers) == (b"stranger", (("\\xff", b"v"),))


async def test_a_dead_letter_reads_as_it_was_written(topic: DeadLetterTopic, requests: str) -> None:
    headers = (
        ("context-dead-code", b"forged"),
        ("x", b"\xff"),
        ("x", b""),
        ("context-generation", b"4"),
        ("correlation_id", b"c"),
    )
    item = record(BODY, topic=requests, headers=headers, key=b"shop#t-1")
    await bury(topic, (item, BAD))
    (letter,) = await list_dead_letters(topic)
    assert letter == DeadLetter(
        id=letter.id,
        code="invalid_json",
        message="ünïcode",
        topic=requests,
        partition=3,
        offset=17,
        timestamp=datetime.fromtimestamp(item.timestamp_ms / 1_000, UTC),
        attempts=1,
        traceback=None,
        is_cut=False,
        key=b"shop#t-1",
        value=BODY,
        headers=headers,
        project_id="shop",
        request_id="r-1",
        generation=4,
    )


@pytest.mark.parametrize(("key", "value"), [(b"k", None), (None, b""), (b"", b"\x00\xff" * 100)])
async def test_every_key_and_body_survives(
    topic: DeadLetterTopic, requests: str, key: bytes | None, value: bytes | None
) -> None:
    await bury(topic, (record(topic=requests, key=key, value=value), BAD))
    (letter,) = await list_dead_letters(topic)
    assert (letter.key, letter.value) == (key, value or b"")
    assert (letter.request_id, letter.generation) == (None, 0)


async def test_a_record_that_no_worker_wrote_is_shown_and_not_taken_for_a_dead_letter(
    topic: DeadLetterTopic, requests: str
) -> None:
    async with started_producer(topic.connection.client_options()) as producer:
        await producer.send_and_wait(topic.topic, b"stray", b"k", headers=[("context-dead-offset", b"many")])
    (letter,) = await list_dead_letters(topic)
    assert (letter.code, letter.offset, letter.value) == ("unreadable", -1, b"stray")
    assert await redriven(topic, requests) == [(False, 1)]


async def test_the_list_can_be_narrowed(topic: DeadLetterTopic, requests: str) -> None:
    start = datetime(2026, 3, 1, tzinfo=UTC)

    def at(minutes: int, project: str) -> InboundRecord:
        instant = start + timedelta(minutes=minutes)
        return record(
            b"%d" % minutes,
            topic=requests,
            key=project.encode() + b"#t",
            offset=minutes,
            timestamp_ms=int(instant.timestamp() * 1_000),
        )

    await bury(topic, (at(3, "shop"), BAD), (at(1, "shop"), BROKEN), (at(2, "bank"), BAD))

    async def values(**narrow: Any) -> list[bytes]:
        return [letter.value for letter in await list_dead_letters(topic, Selection(**narrow))]

    letters = await list_dead_letters(topic)
    assert [letter.value for letter in letters] == [b"1", b"2", b"3"]
    assert await values(code="invalid_json") == [b"2", b"3"]
    assert await values(project_id="shop") == [b"1", b"3"]
    assert await values(since=start + timedelta(minutes=2)) == [b"2", b"3"]
    assert await values(topic="another") == []
    assert await values(ids=frozenset({letters[0].id, letters[2].id})) == [b"1", b"3"]
    assert await values(code="invalid_json", project_id="shop") == [b"3"]


async def test_a_time_that_no_calendar_has_hides_no_letter(topic: DeadLetterTopic, requests: str) -> None:
    times_ms = (-(2**63), 1_000, 2**63 - 1)
    await bury(
        topic, *((record(b"%d" % ms, topic=requests, key=b"k", timestamp_ms=ms), BAD) for ms in times_ms)
    )
    found = await list_dead_letters(topic)
    assert [(letter.value, letter.timestamp.year) for letter in found] == [
        (b"%d" % -(2**63), 1970),
        (b"1000", 1970),
        (b"%d" % (2**63 - 1), 9999),
    ]
    assert await redriven(topic, requests, ids=frozenset({found[1].id})) == [(True, 1)]


async def test_one_can_be_shown_by_its_id(topic: DeadLetterTopic, requests: str) -> None:
    await bury(topic, *((record(b"%d" % n, topic=requests, key=b"k"), BROKEN) for n in range(5)))
    letters = await list_dead_letters(topic)
    assert [await show_dead_letter(topic, letter.id) for letter in letters] == list(letters)
    assert letters[0].traceback == "Traceback\n"
    for unknown in ("0:999", "99:0"):
        assert await show_dead_letter(topic, unknown) is None
    for malformed in ("", "1", "a:b", "1:-1", "1:2:3"):
        with pytest.raises(ValueError, match="is not `partition:offset`"):
            await show_dead_letter(topic, malformed)


async def test_looking_ends_at_what_was_there_and_changes_nothing(
    topic: DeadLetterTopic, requests: str
) -> None:
    await bury(topic, (record(b"1", topic=requests), BAD), (record(b"2", topic=requests), BAD))
    seen: list[bytes] = []
    async for letter in read_dead_letters(topic):
        seen.append(letter.value)
        if len(seen) == 1:
            await bury(topic, (record(b"3", topic=requests), BAD))
    assert seen == [b"1", b"2"]
    assert len(await list_dead_letters(topic)) == 3


async def test_an_empty_topic_has_none(topic: DeadLetterTopic, requests: str) -> None:
    assert await list_dead_letters(topic) == ()
    assert await redriven(topic, requests) == []


@pytest.mark.services
async def test_a_topic_that_does_not_exist_is_named(kafka_bootstrap: str, topic_prefix: str) -> None:
    connection = KafkaConnection(bootstrap_servers=(kafka_bootstrap,))
    with pytest.raises(TopicMissing, match=topic_prefix):
        await list_dead_letters(DeadLetterTopic(topic=topic_prefix + "none", connection=connection))


# --- Redriving ---------------------------------------------------------------------------------------


async def test_a_redriven_record_is_the_original_under_the_next_generation(
    topic: DeadLetterTopic, requests: str, bootstrap: str
) -> None:
    headers = (("x", b"\xff"), ("context-generation", b"1"), ("reply_to", b"r"), ("context-generation", b"9"))
    await bury(topic, (record(BODY, topic=requests, headers=headers, key=b"k"), BAD))
    assert await redriven(topic, requests) == [(True, 2)]
    (sent,) = await read_all(bootstrap, requests)
    assert (sent.key, sent.value) == (b"k", BODY)
    assert list(sent.headers) == [("context-generation", b"2"), ("x", b"\xff"), ("reply_to", b"r")]


async def test_a_dry_run_says_the_same_and_publishes_nothing(
    topic: DeadLetterTopic, requests: str, bootstrap: str
) -> None:
    await bury(topic, (record(BODY, topic=requests), BAD))
    (item,) = await redrive(topic, Selection(), allowed_topics=frozenset({requests}), dry_run=True)
    assert (item.is_published, item.generation, item.topic, item.skipped) == (False, 1, requests, None)
    assert await read_all(bootstrap, requests) == []


async def test_of_one_request_only_the_last_is_sent_back_above_all_its_generations(
    topic: DeadLetterTopic, requests: str, bootstrap: str
) -> None:
    first = record(BODY, topic=requests, key=b"k")
    second = replace(first, offset=18, headers=(("context-generation", b"1"),))
    other = record(b"\xff", topic=requests, key=b"k", offset=19)
    await bury(topic, (first, BAD), (first, BAD), (second, BAD), (other, BAD))
    assert await redriven(topic, requests) == [(False, 2), (False, 2), (True, 2), (True, 1)]
    assert len(await read_all(bootstrap, requests)) == 2


async def test_a_request_its_answers_and_its_calls_go_back_each_for_itself(
    topic: DeadLetterTopic, topic_prefix: str
) -> None:
    def of(role: str, **ids: str) -> InboundRecord:
        body = {"project_id": "shop", "request_id": "r-1", **ids}
        return record(body, topic=topic_prefix + role, key=b"shop")

    again = of("responses", answer_id="a-2")
    letters = [
        of("requests"),
        of("responses", answer_id="a-1"),
        again,
        replace(again, headers=(("context-generation", b"1"),)),
        of("tools", call_id="c-1"),
        of("tools", call_id="c-2"),
        # Equal in all but the topic.
        of("state", event_id="x"),
        of("sync", event_id="x"),
    ]
    await bury(topic, *((letter, BAD) for letter in letters))
    allowed = frozenset({topic_prefix + role for role in ("requests", "responses", "tools", "state", "sync")})
    found = await redrive(topic, Selection(), allowed_topics=allowed, dry_run=True)
    assert [(item.topic.removeprefix(topic_prefix), item.generation, item.skipped) for item in found] == [
        ("requests", 1, None),
        ("responses", 1, None),
        ("responses", 2, "another dead letter of the same record is newer"),
        ("responses", 2, None),
        ("tools", 1, None),
        ("tools", 1, None),
        ("state", 1, None),
        ("sync", 1, None),
    ]


async def test_the_commands_can_be_told_one_topic(
    topic: DeadLetterTopic, topic_prefix: str, bootstrap: str
) -> None:
    tools = f"{topic_prefix}tools"
    body = {"project_id": "shop", "request_id": "r-1", "call_id": "c-1"}
    await bury(topic, *((record(body, topic=topic_prefix + role), BAD) for role in ("requests", "tools")))
    environment = {
        "WORKER_KAFKA__BOOTSTRAP_SERVERS": json.dumps([bootstrap]),
        "WORKER_KAFKA__TOPIC_PREFIX": topic_prefix,
    }

    async def run(*command: str) -> list[dict[str, Any]]:
        arguments = ["dead-letters", *command, "--topic", tools, "--json"]
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=environment)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    assert [(row["topic"], row["request_id"]) for row in await run("list")] == [(tools, "c-1")]
    assert [row["topic"] for row in await run("redrive", "--yes")] == [tools]
    assert await read_all(bootstrap, f"{topic_prefix}requests") == []
    assert len(await read_all(bootstrap, tools)) == 1


async def test_a_generation_counts_even_where_its_letter_is_not_selected(
    topic: DeadLetterTopic, requests: str
) -> None:
    first = record(BODY, topic=requests, key=b"k")
    second = replace(first, offset=18, headers=(("context-generation", b"5"),))
    await bury(topic, (first, BAD), (second, BROKEN))
    assert await redriven(topic, requests, code="invalid_json") == [(True, 6)]


async def test_a_letter_goes_to_no_topic_but_the_allowed_ones_and_not_without_its_body(
    topic: DeadLetterTopic, requests: str
) -> None:
    await bury(topic, (record(BODY, topic="payments"), BAD))
    await bury(topic, (record(BODY, topic=requests), BAD), is_cut=True)
    found = await redrive(topic, Selection(), allowed_topics=frozenset({requests}), dry_run=False)
    assert {item.skipped for item in found} == {
        "records do not go back to 'payments'",
        "the dead letter does not hold the body",
    }


# --- The whole way -----------------------------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="session")
async def worker(
    bootstrap: str, topic_prefix: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Serving]:
    async with serving(bootstrap, topic_prefix, tmp_path_factory.mktemp("worker")) as one:
        yield one


async def test_a_mended_defect_is_redriven_to_a_bundle_of_its_own(worker: Serving) -> None:
    request = AssemblyRequest(
        request_id=uuid4().hex,
        project_id="shop",
        volk="smith",
        subject="implement",
        user_message="Add a retry.",
    )
    allowed = frozenset({f"{worker.prefix}requests"})
    worker.broken.add(request.request_id)
    async with ContextClient(worker.bootstrap_servers, topic_prefix=worker.prefix) as client:
        reply = await client.assemble(request, timeout_seconds=20)
        assert isinstance(reply, Rejection)
        assert (reply.code, reply.retryable) == ("internal_error", True)
        (letter,) = await list_dead_letters(worker.dead_letters)
        assert letter.traceback is not None
        assert "broken on purpose" in letter.traceback
        worker.broken.clear()
        assert await client.assemble(request, timeout_seconds=20) == reply

        events = await client.usage_events()
        # The repeated request is a dead letter again; the two are one request, which goes back once.
        found = await redrive(
            worker.dead_letters, Selection(code="internal_error"), allowed_topics=allowed, dry_run=False
        )
        assert sorted(item.is_published for item in found) == [False, True]
        event = await asyncio.wait_for(anext(events), 20)
        assert (event.request_id, event.generation, event.outcome) == (request.request_id, 1, "complete")
    replies = await read_all(worker.bootstrap_servers[0], f"{worker.prefix}bundles")
    bundles = [item for item in replies if dict(item.headers)["context-kind"] == b"bundle"]
    assert [dict(item.headers)["context-generation"] for item in bundles] == [b"1"]
    assert ContextBundle.model_validate_json(bundles[0].value).request_id == request.request_id
