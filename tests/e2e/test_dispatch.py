"""The dispatcher against the embedded broker and a real Kafka: what a group, a log and a client really do."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from tests.support.dispatching import (
    batch_of,
    committed,
    create_topics,
    read_all,
    running,
    send,
    send_batch,
    until,
    until_committed,
)
from worker.errors import StoreUnavailable
from worker.kafka.app import ExitCode
from worker.kafka.connection import KafkaConnection
from worker.kafka.embedded import embedded_broker
from worker.kafka.partition import Limits
from worker.kafka.publisher import KafkaPublisher, ProducerOptions
from worker.kafka.records import Handled, InboundRecord, OutboundRecord, RecordTooLarge, TopicUnusable
from worker.kafka.topics import TopicCatalogue

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def replies(broker: str, topic: str) -> list[bytes]:
    return [record.value for record in await read_all(broker, f"{topic}.replies")]


async def test_every_record_is_answered_once_and_committed(broker: str, topic: str, ledger: Path):
    await create_topics(broker, topic, partitions=3)
    await send(broker, topic, numbered(60))
    async with running(broker, topic, ledger=ledger, partitions=3) as one:
        await one.ready()
        await until(lambda: len(one.handler.ended) == 60)
        ends = {n: sum(record.partition == n for record in one.handler.ended) for n in range(3)}
        for partition, end in ends.items():
            await until_committed(broker, topic, topic, end, partition=partition)
        assert one.health.is_live
        assert await one.stopped() is ExitCode.STOPPED
    assert sorted(await replies(broker, topic), key=int) == numbered(60)


async def test_hostile_records_are_handed_over_byte_for_byte_and_hold_nobody_up(
    broker: str, topic: str, ledger: Path
):
    await create_topics(broker, topic)
    await send(broker, topic, [b"good"])
    await send(
        broker, topic, [b"\xff\x00"], key=b"\x00\xff", headers=[("reply_to", b"\xff\xfe"), ("reply_to", None)]
    )
    await send(broker, topic, [None], key=b"tombstone")
    await send(broker, topic, [b""], headers=[("", b""), ("correlation_id", b"\x00")])
    batch = batch_of([(b"k", b"bad header", [(b"\xff", b"v"), (b"ok", None)]), (None, b"beside it", [])])
    await send_batch(broker, topic, batch)
    await send(broker, topic, [b"also good"])
    async with running(broker, topic, ledger=ledger) as one:
        await until_committed(broker, topic, topic, 7)
        assert await one.stopped() is ExitCode.STOPPED
    handled = {record.offset: record for record in one.handler.handled}
    assert [handled[offset].value for offset in range(7)] == [
        b"good",
        b"\xff\x00",
        None,
        b"",
        b"bad header",
        b"beside it",
        b"also good",
    ]
    assert handled[1].key == b"\x00\xff"
    assert handled[1].headers == (("reply_to", b"\xff\xfe"), ("reply_to", b""))
    assert handled[3].headers == (("", b""), ("correlation_id", b"\x00"))
    assert (handled[4].key, handled[4].headers) == (b"k", (("\\xff", b"v"), ("ok", b"")))


async def test_a_slow_record_pauses_its_partition_at_the_cap_and_no_other(
    broker: str, topic: str, ledger: Path
):
    await create_topics(broker, topic, partitions=2)
    await send(broker, topic, [b"slow", *numbered(20)], partition=0)
    await send(broker, topic, numbered(20), partition=1)
    release = asyncio.Event()

    async def slow(record: InboundRecord) -> Handled:
        await release.wait()
        return Handled()

    limits = Limits(commit_interval_seconds=0.1, uncommitted_span=6)
    async with running(broker, topic, ledger=ledger, partitions=2, limits=limits) as one:
        one.handler.script[b"slow"] = slow
        await until(lambda: len(one.handler.ended) == 25, seconds=30)
        await until_committed(broker, topic, topic, 20, partition=1)
        ended = sorted(record.offset for record in one.handler.ended if record.partition == 0)
        assert ended == [1, 2, 3, 4, 5]
        assert await committed(broker, topic, topic) is None
        assert one.health.is_ready
        release.set()
        await until_committed(broker, topic, topic, 21)
    assert len(await replies(broker, topic)) == 41


async def test_a_second_worker_takes_over_what_the_first_cannot_end_in_time(
    broker: str, topic: str, ledger: Path
):
    await create_topics(broker, topic, partitions=2)
    await send(broker, topic, [b"stuck", *numbered(5)], partition=0)
    await send(broker, topic, [b"stuck", *numbered(5)], partition=1)

    async def stuck(record: InboundRecord) -> Handled:
        await asyncio.Event().wait()
        return Handled()

    limits = Limits(commit_interval_seconds=0.1, revoke_wait_seconds=0.5)
    async with running(broker, topic, ledger=ledger, partitions=2, limits=limits) as first:
        first.handler.script[b"stuck"] = stuck
        await until(lambda: len(first.handler.ended) == 10, seconds=30)
        async with running(broker, topic, ledger=ledger, partitions=2, limits=limits) as second:
            await until(lambda: any(record.value == b"stuck" for record in second.handler.ended), seconds=30)
            taken = {record.partition for record in second.handler.ended if record.value == b"stuck"}
            assert len(taken) == 1
            for partition in taken:
                await until_committed(broker, topic, topic, 6, partition=partition)
            # The other partition is the first worker's again, and still stuck.
            assert await second.stopped() is ExitCode.STOPPED
        first.handler.script.clear()
        assert await first.stopped() is ExitCode.STOPPED
        (other,) = {0, 1} - taken
        assert await committed(broker, topic, topic, other) is None
    answers = await replies(broker, topic)
    assert set(answers) == {b"stuck", *numbered(5)}
    assert answers.count(b"stuck") == 1


async def test_a_worker_that_leaves_hands_its_partitions_to_the_other_one(
    broker: str, topic: str, ledger: Path
):
    await create_topics(broker, topic, partitions=4)
    async with running(broker, topic, ledger=ledger, partitions=4) as staying:
        await staying.ready()
        async with running(broker, topic, ledger=ledger, partitions=4) as leaving:
            await leaving.ready()
            await send(broker, topic, numbered(40))
            await until(lambda: len(staying.handler.ended) + len(leaving.handler.ended) >= 40, seconds=30)
            assert await leaving.stopped() is ExitCode.STOPPED
        await send(broker, topic, numbered(40))
        await until(lambda: len(staying.handler.ended) + len(leaving.handler.ended) >= 80, seconds=30)
        assert await staying.stopped() is ExitCode.STOPPED
    assert sorted(await replies(broker, topic)) == sorted(numbered(40) * 2)


async def test_an_outage_of_the_store_delays_everything_and_costs_nothing(
    broker: str, topic: str, ledger: Path
):
    is_away = True

    async def probe() -> None:
        if is_away:
            raise StoreUnavailable("redis")

    async def needs_the_store(record: InboundRecord) -> Handled:
        await probe()
        return Handled()

    await create_topics(broker, topic)
    await send(broker, topic, numbered(40))
    async with running(broker, topic, ledger=ledger, probe=probe) as one:
        one.handler.script.update(dict.fromkeys(numbered(50), needs_the_store))
        await until(lambda: "outcome_store_away" in one.health.not_ready, seconds=30)
        await send(broker, topic, [b"%d" % number for number in range(40, 50)])
        assert one.health.is_live
        assert one.handler.ended == []
        is_away = False
        await until_committed(broker, topic, topic, 50)
        assert one.health.is_ready
    assert sorted(await replies(broker, topic), key=int) == numbered(50)


async def test_a_bad_deploy_stops_by_itself_and_leaves_the_topic_undrained(
    broker: str, topic: str, ledger: Path
):
    await create_topics(broker, topic)
    await send(broker, topic, [b"fails"] * 200)

    async def fails(record: InboundRecord) -> Handled:
        return Handled(code="internal_error")

    async with running(broker, topic, ledger=ledger, max_in_flight=4) as one:
        one.handler.script[b"fails"] = fails
        assert await asyncio.wait_for(asyncio.shield(one.task), 30) is ExitCode.BAD_DEPLOY
        assert "bad_deploy" in one.health.not_ready
    assert 20 <= len(one.handler.ended) <= 30
    assert (await committed(broker, topic, topic) or 0) <= 30


async def test_a_worker_that_starts_before_its_broker_waits_and_says_so(topic: str, ledger: Path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with running(f"127.0.0.1:{port}", topic, ledger=ledger) as one:
        await until(lambda: one.health.not_ready == ("starting", "broker_away"))
        assert one.health.is_live
        async with embedded_broker(port=port) as broker:
            await one.ready()
            await send(broker.bootstrap_servers, topic, [b"at last"])
            await until(lambda: one.handler.ended)
            assert await one.stopped() is ExitCode.STOPPED


async def test_a_worker_can_be_stopped_while_it_waits_for_a_broker(topic: str, ledger: Path):
    async with running("127.0.0.1:1", topic, ledger=ledger) as one:
        await until(lambda: "broker_away" in one.health.not_ready)
        assert await one.stopped() is ExitCode.STOPPED
        assert one.health.not_ready[-1] == "stopped"


async def test_a_bad_deploy_leaves_what_is_in_work_to_the_next_version(broker: str, topic: str, ledger: Path):
    await create_topics(broker, topic)
    await send(broker, topic, [b"good", b"held", *numbered(25)])
    async with running(broker, topic, ledger=ledger, max_in_flight=8) as one:
        cancelled = asyncio.Event()

        async def hold(record: InboundRecord) -> Handled:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return Handled()

        async def fail(record: InboundRecord) -> Handled:
            return Handled(code="internal_error")

        one.handler.script.update({b"held": hold, **dict.fromkeys(numbered(25), fail)})
        # By itself: nobody asks it to stop.
        assert await asyncio.wait_for(asyncio.shield(one.task), 30) is ExitCode.BAD_DEPLOY
        assert cancelled.is_set()
        assert b"held" not in {record.value for record in one.handler.ended}
    assert await committed(broker, topic, topic) == 1
    async with running(broker, topic, ledger=ledger) as mended:
        await until_committed(broker, topic, topic, 27)
        assert next(record.value for record in mended.handler.ended) == b"held"
    answered = [record.value for record in await read_all(broker, f"{topic}.replies")]
    assert set(answered) == {b"good", b"held", *numbered(25)}
    assert answered.count(b"held") == 1


# --- Publishing --------------------------------------------------------------------------------------


async def publisher_for(
    broker: str, *, idempotent: bool, max_record_bytes: int = 1_048_576
) -> KafkaPublisher:
    connection = KafkaConnection(bootstrap_servers=(broker,))
    publisher = KafkaPublisher(
        connection=connection,
        lacks_topic=TopicCatalogue(connection).lacks,
        options=ProducerOptions(is_idempotent=idempotent, max_record_bytes=max_record_bytes),
    )
    await publisher.start()
    return publisher


async def test_a_large_record_and_many_small_ones_arrive_in_order(broker: str, topic: str):
    await create_topics(broker, topic)
    publisher = await publisher_for(broker, idempotent=False, max_record_bytes=4_000_000)
    large = os.urandom(900_000)
    for value in (b"before", large, b"after"):
        await publisher.publish(OutboundRecord(topic=topic, key=b"k", value=value, headers=(("h", b"\xff"),)))
    with pytest.raises(RecordTooLarge):
        await publisher.publish(OutboundRecord(topic=topic, key=b"k", value=os.urandom(4_000_001)))
    await publisher.stop()
    stored = await read_all(broker, topic)
    assert [record.value for record in stored] == [b"before", large, b"after"]
    assert stored[0].headers == (("h", b"\xff"),)


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_record_that_the_topic_refuses_breaks_no_later_one(
    kafka_bootstrap: str,
    topic: str,
    idempotent: bool,  # noqa: FBT001
):
    await create_topics(kafka_bootstrap, topic, configs={"max.message.bytes": "100000"})
    publisher = await publisher_for(kafka_bootstrap, idempotent=idempotent)
    refused = OutboundRecord(topic=topic, key=b"k", value=os.urandom(300_000))
    for number in range(3):
        await publisher.publish(OutboundRecord(topic=topic, key=b"k", value=b"%d" % number))
        with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
            await publisher.publish(refused)
    await publisher.publish(OutboundRecord(topic=topic, key=b"k", value=b"3"))
    await publisher.stop()
    assert [record.value for record in await read_all(kafka_bootstrap, topic)] == numbered(4)


@pytest.mark.parametrize("idempotent", [True, False])
async def test_small_records_that_together_exceed_the_topics_limit_all_arrive(
    kafka_bootstrap: str,
    topic: str,
    idempotent: bool,  # noqa: FBT001
):
    await create_topics(kafka_bootstrap, topic, configs={"max.message.bytes": "4000"})
    publisher = await publisher_for(kafka_bootstrap, idempotent=idempotent)
    values = [os.urandom(900) for _ in range(8)]
    await asyncio.gather(
        *(publisher.publish(OutboundRecord(topic=topic, key=b"k", value=value)) for value in values)
    )
    await publisher.stop()
    assert {record.value for record in await read_all(kafka_bootstrap, topic)} == set(values)


async def test_a_foreign_topic_is_written_to_as_soon_as_it_is_there(broker: str, topic: str):
    publisher = await publisher_for(broker, idempotent=False)
    reply = OutboundRecord(topic=topic, key=b"k", value=b"v", is_topic_foreign=True)
    async with asyncio.timeout(60):
        with pytest.raises(TopicUnusable, match="does not exist"):
            await publisher.publish(reply)
        await create_topics(broker, topic)
        while True:
            try:
                await publisher.publish(reply)
                break
            except TopicUnusable:
                await asyncio.sleep(0.2)  # as long as what was seen last counts
    await publisher.stop()
    assert [record.value for record in await read_all(broker, topic)] == [b"v"]


# --- Transactions ------------------------------------------------------------------------------------


async def test_aborted_records_are_never_handled_and_markers_are_committed_past(
    kafka_bootstrap: str, topic: str, ledger: Path
):
    await create_topics(kafka_bootstrap, topic)
    producer: Any = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=topic)
    await producer.start()
    for value, ends in ((b"kept", producer.commit_transaction), (b"aborted", producer.abort_transaction)):
        await producer.begin_transaction()
        await producer.send_and_wait(topic, value)
        end: Callable[[], Any] = ends
        await end()
    await producer.stop()
    async with running(kafka_bootstrap, topic, ledger=ledger) as one:
        await until_committed(kafka_bootstrap, topic, topic, 4)
        assert [record.value for record in one.handler.ended] == [b"kept"]


# --- Fairness ----------------------------------------------------------------------------------------


async def test_while_one_project_floods_its_partition_the_others_are_answered(
    broker: str, topic: str, ledger: Path
):
    flood_may_end = asyncio.Event()

    async def hold(_: InboundRecord) -> Handled:
        await flood_may_end.wait()
        return Handled()

    await create_topics(broker, topic, f"{topic}.replies", partitions=2)
    await send(broker, topic, [b"flood"] * 40, key=b"flood", partition=0)
    await send(broker, topic, [b"behind it"] * 5, key=b"other#thread", partition=0)
    await send(broker, topic, [b"flood"] * 10, key=b"flood#thread", partition=0)
    await send(broker, topic, [b"elsewhere"] * 5, key=b"third", partition=1)
    async with running(broker, topic, ledger=ledger, partitions=2, max_in_flight=8, share=4) as one:
        one.handler.script = {b"flood": hold}
        await until(lambda: len(one.handler.ended) == 10, what="the others are answered")
        assert {record.value for record in one.handler.ended} == {b"behind it", b"elsewhere"}
        await until(lambda: sum(record.value == b"flood" for record in one.handler.handled) == 4)
        flood_may_end.set()
        await until_committed(broker, topic, topic, 55)
        await until_committed(broker, topic, topic, 5, partition=1)
    flood = [record.offset for record in one.handler.handled if record.value == b"flood"]
    assert flood == [*range(40), *range(45, 55)]
