"""Where a topic ends, on both brokers: records that were sent together stand in one batch."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.support.cluster import Mode, Topics
from tests.support.dispatching import batch_of, send_batch
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


@pytest.mark.parametrize("size", [1, 200_000])
async def test_what_no_client_decodes_is_read_of_each_partition_for_itself(
    mode: Mode, topics: Topics, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("worker.kafka_clients._POLL_SECONDS", 0.001)  # taking apart takes longer
    topic, values = f"{mode.prefix}usage", [bytes([65 + number]) * size for number in range(3)]
    await send_batch(mode.bootstrap, topic, batch_of([(None, value, [(b"\xff", b"")]) for value in values]))
    await send_together(mode, b"d", b"e", partition=1)
    async with whole_topic(topic, {"bootstrap_servers": [mode.bootstrap]}) as reader:
        one, other = (reader.up_to_now([TopicPartition(topic, partition)]) for partition in (0, 1))
        found = [(await anext(stream)).value for stream in (one, other, one, other, one)]
        assert found == [values[0], b"d", values[1], b"e", values[2]]
        assert await anext(one, None) is None
        assert await anext(other, None) is None
