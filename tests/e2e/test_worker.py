"""The real worker on real Kafka and on the embedded broker: every request ends once, whatever happens."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.cluster import Mode, Published, Topics, request, workers
from worker.kafka.embedded import EmbeddedBroker

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture(params=["embedded", "services"])
def mode(request: pytest.FixtureRequest, namespace: str, tmp_path: Path) -> Mode:
    if request.param == "embedded":
        broker: EmbeddedBroker = request.getfixturevalue("embedded")
        bootstrap = broker.bootstrap_servers
        environment = {
            "WORKER_KAFKA__IDEMPOTENT_PRODUCER": "false",
            "WORKER_OUTCOMES__SQLITE_PATH": str(tmp_path / "outcomes.db"),
        }
    else:
        bootstrap = request.getfixturevalue("kafka_bootstrap")
        environment = {
            "WORKER_OUTCOMES__STORE": "redis",
            "WORKER_OUTCOMES__REDIS_URL": request.getfixturevalue("redis_url"),
            "WORKER_OUTCOMES__KEY_PREFIX": namespace,
        }
    return Mode(
        name=request.param,
        bootstrap=bootstrap,
        prefix=f"{namespace}.",
        group=f"g-{namespace}",
        environment=environment,
    )


@pytest_asyncio.fixture(loop_scope="session")
async def topics(mode: Mode) -> AsyncGenerator[Topics]:
    async with Topics(mode) as topics:
        yield topics


def ids(published: Published) -> set[str | None]:
    return {json.loads(record.value).get("request_id") for record in published.records}


def covers(wanted: set[str]) -> Callable[[Published], bool]:
    return lambda published: wanted <= ids(published)


def longer_than(records: int) -> Callable[[Published], bool]:
    return lambda published: len(published.records) > records


async def assert_each_ended_once(topics: Topics, wanted: set[str]) -> dict[Any, list[bytes]]:
    """Exactly one distinct outcome and usage event each; what was published again is byte-equal."""
    await topics.read_until("bundles", covers(wanted), seconds=120)
    await topics.read_until("usage", covers(wanted), seconds=60)
    outcomes = (await topics.read_all("bundles")).by_outcome()
    usages = (await topics.read_all("usage")).by_outcome()
    assert {key[1] for key in outcomes} == wanted
    assert {key: len(set(values)) for key, values in outcomes.items()} == dict.fromkeys(outcomes, 1)
    assert {key: len(set(values)) for key, values in usages.items()} == dict.fromkeys(outcomes, 1)
    return outcomes


async def test_requests_become_bundles_with_usage(mode: Mode, topics: Topics, tmp_path: Path) -> None:
    async with workers(mode, tmp_path) as start:
        worker = await start()
        trace = (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        await topics.send(request(1), headers=[("correlation_id", b"c-1"), (trace[0].decode(), trace[1])])
        published = await topics.read_until("bundles", covers({"r1"}))
        headers = dict(published.records[0].headers)
        assert published.records[0].key == b"p"
        assert headers["correlation_id"] == b"c-1"
        assert headers["traceparent"].split(b"-")[1] == b"0af7651916cd43dd8448eb211c80319c"
        body = json.loads(published.records[0].value)
        assert (body["kind"], body["status"]) == ("bundle", "complete")
        usage = await topics.read_until("usage", covers({"r1"}))
        event = json.loads(usage.records[0].value)
        assert event["usage"]["spent"] == body["usage"]["spent"]
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
    lines = [json.loads(line) for line in (tmp_path / "usage.jsonl").read_text().splitlines()]
    assert [line["request_id"] for line in lines] == ["r1"]


async def test_poison_between_good_records_stops_nothing(mode: Mode, topics: Topics, tmp_path: Path) -> None:
    poison: list[bytes] = [
        b"{not json",
        b"\xff\xfe\x00",
        b'{"request_id": "nan", "project_id": "p", "volk": NaN}',
        b'{"request_id": "nul\\u0000"}',
        b'{"request_id": "surrogate", "project_id": "p", "user_message": "\\ud800"}',
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"request_id": "missing", "project_id": "p"}',
        b'{"request_id": "type", "project_id": "p", "volk": 1, "subject": 2, "user_message": 3}',
        b"[]",
        b"null",
        b"",
        b'{"request_id": "v2", "project_id": "p", "schema_version": "2.0"}',
    ]
    async with workers(mode, tmp_path) as start:
        await start()
        for number, body in enumerate(poison):
            await topics.send(request(number), partition=0)
            await topics.send(
                body,
                partition=0,
                headers=[
                    ("correlation_id", b"\xff\xfe"),
                    ("traceparent", b"\xff"),
                    ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
                    ("x", b"\xff"),
                ],
            )
        good = {f"r{number}" for number in range(len(poison))}
        await topics.read_until("bundles", covers(good), seconds=90)
        dead = await topics.read_until("dead-letters", lambda p: len(p.records) >= len(poison))
        assert {record.value for record in dead.records} == set(poison)
        for record in dead.records:
            headers = dict(record.headers)
            assert headers["context-dead-topic"] == f"{mode.prefix}requests".encode()
            assert headers["context-dead-partition"] == b"0"
            assert headers["context-dead-code"] in {
                b"invalid_json",
                b"invalid_encoding",
                b"too_large",
                b"invalid_request",
                b"unsupported_version",
            }
            assert ("x", b"\xff") in record.headers
        replies = (await topics.read_all("bundles")).by_outcome()
        rejected = {
            json.loads(values[0])["code"]
            for key, values in replies.items()
            if key[1] in {"nan", "surrogate", "missing", "type", "v2"}
        }
        assert rejected >= {"invalid_request", "unsupported_version"}


async def test_sigkill_in_the_middle_of_work_loses_and_doubles_nothing(
    mode: Mode, topics: Topics, tmp_path: Path
) -> None:
    wanted = {f"r{number}" for number in range(120)}
    async with workers(mode, tmp_path) as start:
        for number in range(120):
            await topics.send(request(number), key=f"p{number}")
        for _ in range(2):
            seen = len((await topics.read_all("bundles")).records)
            victim = await start()
            await topics.read_until("bundles", lambda p, seen=seen: len(p.records) > seen, seconds=60)
            victim.signal(signal.SIGKILL)
            await victim.ended()
        await start()
        await assert_each_ended_once(topics, wanted)


@pytest.mark.parametrize(
    "point", ["outcome.before_store", "outcome.after_store", "reply.before_usage", "usage.before_done"]
)
async def test_a_kill_at_each_point_of_the_path_still_ends_each_request_once(
    mode: Mode, topics: Topics, tmp_path: Path, point: str
) -> None:
    async with workers(mode, tmp_path) as start:
        victim = await start(WORKER_FAILPOINTS=f"{point}=kill@number 3")
        for number in range(6):
            await topics.send(request(number), key=f"p{number}")
        assert await victim.ended() == -signal.SIGKILL
        await start()
        await assert_each_ended_once(topics, {f"r{number}" for number in range(6)})


async def test_two_workers_with_rebalances_end_each_request_once(
    mode: Mode, topics: Topics, tmp_path: Path
) -> None:
    wanted = {f"r{number}" for number in range(300)}
    async with workers(mode, tmp_path) as start:
        first = await start()

        async def publish() -> None:
            for number in range(300):
                await topics.send(request(number), key=f"p{number}")
                if number % 20 == 0:
                    await asyncio.sleep(0.1)

        publishing = asyncio.create_task(publish())
        await topics.read_until("bundles", lambda p: len(p.records) >= 20)
        await start()
        await topics.read_until("bundles", lambda p: len(p.records) >= 100)
        first.signal(signal.SIGTERM)
        assert await first.ended() == 0
        await start()
        await publishing
        await assert_each_ended_once(topics, wanted)


async def test_sigterm_under_load_drains_and_nothing_is_redelivered(
    mode: Mode, topics: Topics, tmp_path: Path
) -> None:
    async with workers(mode, tmp_path) as start:
        first = await start()
        for number in range(200):
            await topics.send(request(number), key=f"p{number}")
        await topics.read_until("bundles", lambda p: len(p.records) >= 30)
        first.signal(signal.SIGTERM)
        assert await first.ended() == 0
        await start()
        outcomes = await assert_each_ended_once(topics, {f"r{number}" for number in range(200)})
        assert max(len(values) for values in outcomes.values()) == 1


async def test_the_same_request_thrice_at_once_on_two_workers_gets_the_same_bytes(
    mode: Mode, topics: Topics, tmp_path: Path
) -> None:
    async with workers(mode, tmp_path) as start:
        await start()
        await start()
        # Spread over partitions on purpose: a caller that changes its key must not get a second outcome.
        await asyncio.gather(*(topics.send(request(1), partition=n) for n in (0, 5, 11)))
        await topics.read_until("bundles", lambda p: len(p.records) >= 3)
        outcomes = (await topics.read_all("bundles")).by_outcome()
        assert [len(set(values)) for values in outcomes.values()] == [1]
        usage = await topics.read_until("usage", lambda p: len(p.records) >= 3)
        assert len({record.value for record in usage.records}) == 1
        await topics.send(request(1, user_message="Something else."))
        again = await topics.read_until("bundles", lambda p: len(p.records) >= 4)
        assert json.loads(again.records[-1].value)["code"] == "request_id_reused"
        await topics.send(request(1, project="other"), key="other")
        other = await topics.read_until("bundles", lambda p: len(p.records) >= 5)
        assert json.loads(other.records[-1].value)["project_id"] == "other"


async def test_a_request_that_kills_the_process_is_isolated_and_its_neighbours_pass(
    mode: Mode, topics: Topics, tmp_path: Path
) -> None:
    good = {f"r{number}" for number in range(8)}
    async with workers(mode, tmp_path) as start:
        for number in range(8):
            await topics.send(request(number), partition=3)
            if number == 3:
                await topics.send(request(99, user_message="a poisoned message", thread_id="t"), partition=3)
        for _ in range(9):
            worker = await start(WORKER_FAILPOINTS="assemble=kill@poisoned")
            reading = asyncio.create_task(topics.read_until("bundles", covers(good | {"r99"}), seconds=200))
            ending = asyncio.create_task(worker.process.wait())
            await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                ending.cancel()
                break
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        published = await topics.read_all("bundles")
        assert covers(good | {"r99"})(published)
        reply = next(
            json.loads(r.value) for r in published.records if json.loads(r.value)["request_id"] == "r99"
        )
        assert reply["code"] == "worker_died"
        dead = await topics.read_until("dead-letters", lambda p: len(p.records) >= 1)
        assert dict(dead.records[0].headers)["context-dead-code"] == b"worker_died"
        assert json.loads(dead.records[0].value)["request_id"] == "r99"


async def test_a_hanging_source_degrades_its_layer_in_time(
    mode: Mode, topics: Topics, tmp_path: Path
) -> None:
    async with workers(mode, tmp_path) as start:
        await start(WORKER_FAILPOINTS="provider.memory=hang@number 1")
        await topics.send(request(1, memory={"summary": "x"}, layer_timeouts_ms={"memory": 200}))
        published = await topics.read_until("bundles", covers({"r1"}))
        body = json.loads(published.records[0].value)
        assert body["status"] == "degraded"
        assert body["layers"]["memory"]["status"] == "failed"
        assert body["layers"]["memory"]["reason"] == "abandoned"


async def test_an_expired_request_is_answered_at_once(mode: Mode, topics: Topics, tmp_path: Path) -> None:
    async with workers(mode, tmp_path) as start:
        await start()
        await topics.send(request(1, expires_at="2020-01-01T00:00:00Z"))
        published = await topics.read_until("bundles", covers({"r1"}))
        body = json.loads(published.records[0].value)
        assert (body["code"], body["retryable"]) == ("expired", True)


async def test_a_worker_waits_for_a_broker_that_is_away_and_loses_nothing(
    embedded: EmbeddedBroker, namespace: str, tmp_path: Path
) -> None:
    mode = Mode(
        name="embedded",
        bootstrap=embedded.bootstrap_servers,
        prefix=f"{namespace}.",
        group=f"g-{namespace}",
        environment={
            "WORKER_KAFKA__IDEMPOTENT_PRODUCER": "false",
            "WORKER_OUTCOMES__SQLITE_PATH": str(tmp_path / "outcomes.db"),
        },
    )
    async with Topics(mode) as topics, workers(mode, tmp_path) as start:
        await start()
        await topics.send(request(1))
        await topics.read_until("bundles", covers({"r1"}))
        embedded.pause()
        try:
            await asyncio.sleep(8)  # the outage itself: longer than the worker's session
        finally:
            embedded.resume()
        for number in range(2, 12):
            await topics.send(request(number))
        await assert_each_ended_once(topics, {f"r{number}" for number in range(1, 12)})


def test_the_environment_of_the_tests_is_not_the_workers() -> None:
    assert not [name for name in os.environ if name.startswith("WORKER_")]
