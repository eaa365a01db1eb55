"""aiokafka's clients for whoever reads without a group or publishes on the side, behind typed faces.

The worker's own consumer and producer are the dispatcher's; this serves the caller's client, the dead letters
and the commands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, cast

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import RecordMetadata

from worker.errors import Unavailable
from worker.kafka_fetch import log_ends
from worker.undecodable import fetch_undecodable

_POLL_SECONDS: Final = 0.5


class Record(Protocol):
    """A record as it was read."""

    @property
    def partition(self) -> int: ...  # noqa: D102  the names say it all
    @property
    def offset(self) -> int: ...  # noqa: D102
    @property
    def key(self) -> bytes | None: ...  # noqa: D102
    @property
    def value(self) -> bytes | None: ...  # noqa: D102
    @property
    def headers(self) -> Iterable[tuple[str, bytes | None]]: ...  # noqa: D102


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
    async def getone(self, *partitions: TopicPartition) -> Record: ...  # noqa: D102


class TopicReader:
    """Reads all partitions of a topic, record by record, each in order."""

    def __init__(self, consumer: Consumer, options: Mapping[str, Any]) -> None:
        """Read from a started consumer; `options` say how to reach its cluster."""
        self._consumer = consumer
        self._options = options
        self._salvaged: dict[TopicPartition, deque[Record]] = {}

    @property
    def partitions(self) -> Sequence[TopicPartition]:
        """What it reads, in order."""
        return sorted(self._consumer.assignment())

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on there, or at the first record that is still kept."""
        first = (await self._consumer.beginning_offsets([partition]))[partition]
        self._consumer.seek(partition, max(offset, first))

    async def next(self, *partitions: TopicPartition) -> Record:
        """The next record, of any partition where none is named; waits for it. Raises KafkaError.

        A record with a header key that is no UTF-8, which brokers store and aiokafka cannot read, comes with
        that key escaped: one such record must not end the reading of all others.
        """
        while (record := await self.next_within(None, *partitions)) is None:
            pass
        return record

    async def next_within(self, seconds: float | None, *partitions: TopicPartition) -> Record | None:
        """As `next`; None where nothing has come in that time, which is not that of a batch to take apart."""
        wanted = partitions or self.partitions
        while not any(map(self._salvaged.get, wanted)):
            try:
                # One at a time: `getmany` loses what it has collected before what cannot be decoded.
                return await asyncio.wait_for(self._consumer.getone(*partitions), seconds)
            except TimeoutError:
                return None
            except UnicodeDecodeError:
                if not await self._salvage(wanted):
                    raise
        return next(self._salvaged[place].popleft() for place in wanted if self._salvaged.get(place))

    async def up_to_now(self, partitions: Iterable[TopicPartition] | None = None) -> AsyncGenerator[Record]:
        """Every record from the positions to the ends as they are at the call, in order within a partition.

        Of all partitions where none are named.
        """
        wanted = self.partitions if partitions is None else sorted(partitions)
        ends = await log_ends(self._options, await self._consumer.end_offsets(wanted))
        while waiting := [
            partition for partition, end in ends.items() if not await self._is_past(partition, end)
        ]:
            # Where nothing comes, what was left is no record, such as a marker.
            record = await self.next_within(_POLL_SECONDS, *waiting)
            if record is not None and any(
                record.partition == partition.partition and record.offset < ends[partition]
                for partition in ends
            ):
                yield record

    async def _is_past(self, partition: TopicPartition, end: int) -> bool:
        # The position, not the last record seen: it also passes over what is no record.
        return not self._salvaged.get(partition) and await self._consumer.position(partition) >= end

    async def _salvage(self, partitions: Iterable[TopicPartition]) -> bool:
        """Take apart what aiokafka cannot decode, and step over it; False where there is nothing of it."""
        positions = {partition: await self._consumer.position(partition) for partition in partitions}
        found = await fetch_undecodable(self._options, positions)
        for partition, batch in found.items():
            self._salvaged.setdefault(partition, deque()).extend(batch.records)
            self._consumer.seek(partition, batch.next_offset)
        return bool(found)


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
) -> AsyncGenerator[TopicReader]:
    """A reader of all partitions of `topic`, positioned at their first records or at their ends.

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
        if from_end:
            starts = await log_ends(options, await consumer.end_offsets(partitions))
        else:
            starts = await consumer.beginning_offsets(partitions)
        for partition, offset in starts.items():
            consumer.seek(partition, offset)
        yield TopicReader(consumer, options)
    finally:
        await consumer.stop()


async def _topics(options: Mapping[str, Any]) -> list[str]:
    admin = AIOKafkaAdminClient(**options)
    try:
        await admin.start()
        return await admin.list_topics()
    finally:
        await admin.close()


class TopicMissing(Unavailable):
    """The broker knows no such topic."""

    def __init__(self, topic: str) -> None:
        """Name it."""
        super().__init__(f"topic {topic!r} does not exist")
