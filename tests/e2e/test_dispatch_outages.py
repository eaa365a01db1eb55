"""The dispatcher while its broker is frozen, gone, or started anew. Each test has a broker of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.dispatching import create_topics, read_all, running, send, until, until_committed
from worker.kafka.app import ExitCode
from worker.kafka.connection import KafkaConnection
from worker.kafka.embedded import embedded_broker
from worker.kafka.partition import Limits
from worker.kafka.publisher import KafkaPublisher, ProducerOptions
from worker.kafka.records import Handled, InboundRecord, OutboundRecord

pytestmark = pytest.mark.timeout(150)

ROOT = Path(__file__).parents[2]
SESSION_SECONDS = 6  # as `running` sets it


@dataclass(frozen=True, kw_only=True)
class Broker:
    """A broker that the test may freeze."""

    bootstrap: str
    pause: Callable[[], Awaitable[None]]
    resume: Callable[[], Awaitable[None]]


def services(folder: Path, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "infra" / "services.py"), "--dir", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=200).stdout


@pytest.fixture(scope="module")
def kafka_folder(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Where a real Kafka of this file's own runs: what is frozen and ended here must serve nobody else."""
    folder = tmp_path_factory.mktemp("services")
    services(folder, "up", "kafka")
    try:
        yield folder
    finally:
        services(folder, "down")


@pytest.fixture
def own_kafka(kafka_folder: Path) -> Generator[tuple[str, Callable[[str], Awaitable[None]]]]:
    """The address of a real Kafka of the file's own, and `do` to pause, continue, stop or start it."""

    async def do(command: str) -> None:
        await asyncio.to_thread(services, kafka_folder, command, "kafka")

    exported = dict(
        line.removeprefix("export ").split("=", 1) for line in services(kafka_folder, "env").splitlines()
    )
    yield exported["CONTEXT_TEST_KAFKA"], do
    services(kafka_folder, "continue", "kafka")  # after a test that failed while it was frozen


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.services)])
def freezable(request: pytest.FixtureRequest) -> Callable[[], AbstractAsyncContextManager[Broker]]:
    @asynccontextmanager
    async def embedded() -> AsyncGenerator[Broker]:
        async with embedded_broker() as broker:

            async def pause() -> None:
                broker.pause()

            async def resume() -> None:
                broker.resume()

            yield Broker(bootstrap=broker.bootstrap_servers, pause=pause, resume=resume)

    @asynccontextmanager
    async def kafka() -> AsyncGenerator[Broker]:
        bootstrap, do = request.getfixturevalue("own_kafka")
        yield Broker(bootstrap=bootstrap, pause=lambda: do("pause"), resume=lambda: do("continue"))

    return embedded if request.param == "embedded" else kafka


def numbered(count: int, *, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def answers(bootstrap: str, topic: str) -> list[bytes]:
    return sorted([record.value for record in await read_all(bootstrap, f"{topic}.replies")], key=int)


QUICK = Limits(commit_interval_seconds=0.1, fetch_silence_seconds=2)


async def test_a_broker_frozen_for_longer_than_a_session_costs_nothing(
    freezable: Callable[[], AbstractAsyncContextManager[Broker]], topic_prefix: str, tmp_path: Path
):
    topic = f"{topic_prefix}requests"
    async with freezable() as broker:
        await create_topics(broker.bootstrap, topic, partitions=2)
        async with running(
            broker.bootstrap, topic, ledger=tmp_path / "l.db", partitions=2, limits=QUICK, max_in_flight=4
        ) as one:
            held, release = asyncio.Event(), asyncio.Event()

            async def holding(record: InboundRecord) -> Handled:
                held.set()
                await release.wait()
                return Handled()

            one.handler.script[b"0"] = holding
            await send(broker.bootstrap, topic, numbered(30))
            await asyncio.wait_for(held.wait(), 30)
            await broker.pause()
            frozen_at = time.monotonic()
            release.set()  # its answer is published into the outage
            await until(lambda: "broker_away" in one.health.not_ready, seconds=20)
            assert one.health.is_live
            await until(lambda: time.monotonic() - frozen_at > SESSION_SECONDS + 2)
            await broker.resume()
            await until(lambda: one.health.is_ready, seconds=40)
            await send(broker.bootstrap, topic, numbered(10, start=30))
            await until(
                lambda: {record.value for record in one.handler.ended} >= set(numbered(40)), seconds=40
            )
            ends = dict.fromkeys(range(2), 0)
            for record in await read_all(broker.bootstrap, topic):
                ends[record.partition] = record.offset + 1
            for partition, end in ends.items():
                await until_committed(broker.bootstrap, topic, topic, end, partition=partition)
        assert sorted(set(await answers(broker.bootstrap, topic)), key=int) == numbered(40)


async def test_a_worker_that_is_told_to_stop_does_not_wait_for_a_frozen_broker(
    freezable: Callable[[], AbstractAsyncContextManager[Broker]], topic_prefix: str, tmp_path: Path
):
    topic = f"{topic_prefix}requests"
    async with freezable() as broker:
        await create_topics(broker.bootstrap, topic)
        async with running(
            broker.bootstrap, topic, ledger=tmp_path / "l.db", limits=QUICK, drain_seconds=1
        ) as one:
            await send(broker.bootstrap, topic, numbered(5))
            await until_committed(broker.bootstrap, topic, topic, 5)
            await broker.pause()
            # Whoever waited for the broker would wait for ever: it is resumed only after this.
            assert await one.stopped() is ExitCode.STOPPED
        await broker.resume()


@pytest.mark.services
@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_publisher_stops_in_time_though_a_record_waits_for_a_frozen_broker(
    own_kafka: tuple[str, Callable[[str], Awaitable[None]]],
    topic_prefix: str,
    idempotent: bool,  # noqa: FBT001
):
    topic = f"{topic_prefix}replies"
    bootstrap, do = own_kafka
    await create_topics(bootstrap, topic)
    publisher = KafkaPublisher(
        connection=KafkaConnection(bootstrap_servers=(bootstrap,)),
        options=ProducerOptions(is_idempotent=idempotent, request_timeout_ms=600_000),
    )
    await publisher.start()
    await publisher.publish(OutboundRecord(topic=topic, key=b"k", value=b"before"))
    await do("pause")
    waiting = asyncio.create_task(publisher.publish(OutboundRecord(topic=topic, key=b"k", value=b"into it")))
    await until(lambda: publisher.is_away)
    # An idempotent producer would flush for ever, another one until its batches expire.
    await asyncio.wait_for(publisher.stop(timeout_seconds=1), 40)
    waiting.cancel()
    await asyncio.wait({waiting})
    await do("continue")


@pytest.mark.services
async def test_a_broker_that_is_restarted_under_load_loses_no_record(
    own_kafka: tuple[str, Callable[[str], Awaitable[None]]], topic_prefix: str, tmp_path: Path
):
    topic = f"{topic_prefix}requests"
    bootstrap, do = own_kafka
    await create_topics(bootstrap, topic, partitions=2)
    await send(bootstrap, topic, numbered(300))
    async with running(
        bootstrap,
        topic,
        ledger=tmp_path / "l.db",
        partitions=2,
        limits=QUICK,
        max_in_flight=8,
        idempotent=True,
    ) as one:
        is_down = asyncio.Event()

        async def slowly(record: InboundRecord) -> Handled:
            if len(one.handler.ended) > 50:
                await is_down.wait()  # so that the restart comes in the middle
            return Handled()

        one.handler.script.update(dict.fromkeys(numbered(320), slowly))
        await until(lambda: len(one.handler.ended) > 50, seconds=30)
        await do("stop")
        assert len(one.handler.ended) < 300
        is_down.set()
        await until(lambda: "broker_away" in one.health.not_ready, seconds=20)
        assert one.health.is_live
        await do("start")
        await until(lambda: one.health.is_ready, seconds=60)
        await send(bootstrap, topic, numbered(20, start=300))
        await until(lambda: {record.value for record in one.handler.ended} >= set(numbered(320)), seconds=60)
        assert await one.stopped() is ExitCode.STOPPED
    assert sorted(set(await answers(bootstrap, topic)), key=int) == numbered(320)


async def test_an_embedded_broker_that_began_anew_is_consumed_from_its_beginning(
    topic_prefix: str, tmp_path: Path
):
    """All records and offsets are gone then; what was counted for the old cluster means nothing now."""
    topic = f"{topic_prefix}requests"
    async with embedded_broker() as first:
        bootstrap = first.bootstrap_servers
        await create_topics(bootstrap, topic)
        async with running(bootstrap, topic, ledger=tmp_path / "l.db", limits=QUICK) as one:
            await send(bootstrap, topic, numbered(20))
            await until_committed(bootstrap, topic, topic, 20)
            first.process.kill()
            await first.process.wait()
            async with embedded_broker(port=int(bootstrap.rpartition(":")[2])):
                await create_topics(bootstrap, topic, f"{topic}.replies")
                # The worker's client may ask for the topic first, and this broker then makes it with four.
                await send(bootstrap, topic, numbered(5, start=20), partition=0)
                await until(lambda: len(one.handler.ended) == 25, seconds=60)
                await until_committed(bootstrap, topic, topic, 5)
                assert await one.stopped() is ExitCode.STOPPED
