"""aiokafka's clients for whoever reads without a group or publishes on the side, behind typed faces.

The worker's own consumer and producer are the dispatcher's; this serves the caller's client, the dead letters
and the commands.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, cast

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import RecordMetadata

from worker.errors import Unavailable

Record = ConsumerRecord[bytes, bytes]

_POLL_MS: Final = 500


class Consumer(Protocol):
    """What is used of `AIOKafkaConsumer`, with the types that it leaves out."""

    async def start(self) -> None: ...  # noqa: D102 - as aiokafka documents it, here and below
    async def stop(self) -> None: ...  # noqa: D102
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
    try:
        # Inside: one that could not start has connections to close as well.
        await producer.start()
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def whole_topic(
    topic: str, options: Mapping[str, Any], *, from_end: bool = False
) -> AsyncGenerator[Consumer]:
    """A started consumer of all partitions of `topic`, positioned at their first records or at their ends.

    The positions are fixed before this returns, so nothing published afterwards is missed; partitions added
    later are read from their beginning. Raises TopicMissing, or aiokafka's KafkaConnectionError where no
    broker answers.
    """
    # Asked first: aiokafka waits 40 s for a topic that is missing, and some brokers create one that is
    # asked for by its name.
    if topic not in await _topics(options):
        raise TopicMissing(topic)
    make = cast("Any", AIOKafkaConsumer)
    consumer = cast(
        "Consumer",
        make(
            topic,
            group_id=None,
            enable_auto_commit=False,
            # For a broker that lost its records: who waits for a reply must not skip the first new ones.
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            **options,
        ),
    )
    await consumer.start()
    try:
        partitions = sorted(consumer.assignment())
        read = consumer.end_offsets if from_end else consumer.beginning_offsets
        for partition, offset in (await read(partitions)).items():
            consumer.seek(partition, offset)
        yield consumer
    finally:
        await consumer.stop()


async def _topics(options: Mapping[str, Any]) -> list[str]:
    admin = AIOKafkaAdminClient(**options)
    try:
        await admin.start()
        return await admin.list_topics()
    finally:
        await admin.close()


async def up_to_now(
    consumer: Consumer, partitions: Iterable[TopicPartition] | None = None
) -> AsyncGenerator[Record]:
    """Every record from the positions to the ends as they are at the call, in order within a partition.

    Of all partitions where none are named.
    """
    ends = await consumer.end_offsets(sorted(consumer.assignment() if partitions is None else partitions))
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
