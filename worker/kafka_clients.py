"""aiokafka's clients for whoever reads without a group or publishes on the side, behind typed faces.

The worker's own consumer and producer are the dispatcher's; this serves the caller's client, the dead letters
and the commands.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, cast

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.structs import RecordMetadata

from worker.errors import Unavailable

Record = ConsumerRecord[bytes, bytes]

_POLL_MS: Final = 500
_FETCH_WAIT_MS: Final = 20


class Consumer(Protocol):
    """What is used of `AIOKafkaConsumer`, with the types that it leaves out."""

    async def start(self) -> None: ...  # noqa: D102 - as aiokafka documents it, here and below
    async def stop(self) -> None: ...  # noqa: D102
    async def topics(self) -> set[str]: ...  # noqa: D102
    def partitions_for_topic(self, topic: str) -> set[int] | None: ...  # noqa: D102
    def assign(self, partitions: Sequence[TopicPartition]) -> None: ...  # noqa: D102
    def assignment(self) -> frozenset[TopicPartition]: ...  # noqa: D102
    def seek(self, partition: TopicPartition, offset: int) -> None: ...  # noqa: D102
    async def position(self, partition: TopicPartition) -> int: ...  # noqa: D102
    async def beginning_offsets(  # noqa: D102
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]: ...
    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]: ...  # noqa: D102
    async def getmany(  # noqa: D102
        self, *partitions: TopicPartition, timeout_ms: int
    ) -> dict[TopicPartition, list[Record]]: ...
    async def getone(self) -> Record: ...  # noqa: D102


class Producer(Protocol):
    """What is used of `AIOKafkaProducer`, with the types that it leaves out."""

    async def start(self) -> None: ...  # noqa: D102
    async def stop(self) -> None: ...  # noqa: D102
    async def send_and_wait(  # noqa: D102
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        headers: list[tuple[str, bytes]],
    ) -> RecordMetadata: ...


@asynccontextmanager
async def started_producer(options: Mapping[str, Any]) -> AsyncGenerator[Producer]:
    """A producer whose sends return when all in-sync replicas have the record; no limit of size of its own.

    `options` say how to reach the cluster, as keyword arguments of aiokafka's clients. Raises aiokafka's
    KafkaConnectionError where no broker answers.
    """
    make = cast("Any", AIOKafkaProducer)
    producer = cast(
        "Producer",
        make(
            acks="all",
            compression_type="lz4",
            max_request_size=2**30,  # what is too large is the broker's to say
            **options,
        ),
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def whole_topic(
    topic: str, options: Mapping[str, Any], *, from_end: bool = False
) -> AsyncGenerator[Consumer]:
    """A started consumer of all partitions of `topic`, positioned at their first records or at their ends.

    The positions are fixed before this returns, so nothing published afterwards is missed. Partitions added
    later are not seen. Raises TopicMissing, or aiokafka's KafkaConnectionError where no broker answers.
    """
    make = cast("Any", AIOKafkaConsumer)
    consumer = cast(
        "Consumer",
        make(
            group_id=None,
            enable_auto_commit=False,
            # For a broker that lost its records: who waits for a reply must not skip the first new ones.
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            # Kafka answers a waiting fetch when records come; the embedded broker often only half the
            # longest wait later, which was 250 ms a reply.
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            **options,
        ),
    )
    await consumer.start()
    try:
        await consumer.topics()  # fetches the metadata that the next line reads
        partitions = [
            TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())
        ]
        if not partitions:
            raise TopicMissing(topic)
        consumer.assign(partitions)
        read = consumer.end_offsets if from_end else consumer.beginning_offsets
        for partition, offset in (await read(partitions)).items():
            consumer.seek(partition, offset)
        yield consumer
    finally:
        await consumer.stop()


async def up_to_now(consumer: Consumer) -> AsyncIterator[Record]:
    """Every record from the positions to the ends as they are at the call, in order within a partition."""
    ends = await consumer.end_offsets(sorted(consumer.assignment()))
    waiting = await _short_of(consumer, ends)
    while waiting:
        for partition, records in (await consumer.getmany(*waiting, timeout_ms=_POLL_MS)).items():
            for record in records:
                if record.offset < ends[partition]:
                    yield record
        waiting = await _short_of(consumer, ends)


async def _short_of(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    # The position, not the last record seen: it also passes over what is no record, such as markers.
    return [partition for partition, end in ends.items() if await consumer.position(partition) < end]


class TopicMissing(Unavailable):
    """The broker knows no such topic."""

    def __init__(self, topic: str) -> None:
        """Name it."""
        super().__init__(f"topic {topic!r} does not exist")
