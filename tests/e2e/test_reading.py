"""Where a topic ends, on both brokers: records that were sent together stand in one batch."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.support.cluster import Mode, Topics
from worker.kafka_clients import TopicReader, whole_topic
from worker.kafka_fetch import log_ends

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="session")]

LINGER_MS = 200


async def send_together(mode: Mode, *values: bytes, partition: int = 0) -> list[int]:
    """Records of one batch; where they stand."""
    producer: Any = AIOKafkaProducer(bootstrap_servers=mode.bootstrap, linger_ms=LINGER_MS)
    await producer.start()
    try:
        sent = [await producer.send(f"{mode.prefix}usage", value, partition=partition) for value in values]
        await producer.flush()
        return [(await future).offset for future in sent]
    finally:
        await producer.stop()


async def read(reader: TopicReader) -> list[bytes | None]:
    return [record.value async for record in reader.up_to_now()]


async def test_a_topic_is_read_to_the_end_of_its_last_batch(mode: Mode, topics: Topics) -> None:
    options = {"bootstrap_servers": [mode.bootstrap]}
    assert await send_together(mode, b"a", b"b", b"c") == [0, 1, 2]
    await send_together(mode, b"other", partition=1)
    async with whole_topic(f"{mode.prefix}usage", options) as reader:
        assert sorted(filter(None, await read(reader))) == [b"a", b"b", b"c", b"other"]
        # What came since, from where it stands.
        await send_together(mode, b"d", b"e")
        assert await read(reader) == [b"d", b"e"]
        assert await read(reader) == []


async def test_who_reads_from_the_end_is_given_nothing_of_the_last_batch(mode: Mode, topics: Topics) -> None:
    options = {"bootstrap_servers": [mode.bootstrap]}
    await send_together(mode, b"a", b"b", b"c")
    async with whole_topic(f"{mode.prefix}usage", options, from_end=True) as reader:
        assert await read(reader) == []
        await send_together(mode, b"d", b"e")
        assert [(await reader.next()).value for _ in range(2)] == [b"d", b"e"]


async def test_ends_are_those_of_the_records(mode: Mode, topics: Topics) -> None:
    await send_together(mode, b"a", b"b", b"c")
    await send_together(mode, b"d", b"e", partition=2)
    places = [TopicPartition(f"{mode.prefix}usage", partition) for partition in range(3)]
    consumer: Any = AIOKafkaConsumer(bootstrap_servers=mode.bootstrap)
    await consumer.start()
    try:
        listed = await consumer.end_offsets(places)
    finally:
        await consumer.stop()
    ends = await log_ends({"bootstrap_servers": [mode.bootstrap]}, listed)
    assert [ends[place] for place in places] == [3, 0, 2]
