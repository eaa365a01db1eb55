"""A whole dispatcher with a scripted handler in this process, and its records, for the delivery tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import GroupCoordinatorNotAvailableError, NotLeaderForPartitionError
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import (
    _DefaultRecordBatchBuilderPy,  # pyright: ignore[reportPrivateUsage]  the C one refuses such headers
)

from worker.errors import StoreUnavailable
from worker.kafka.app import ConsumerOptions, ExitCode, KafkaWorker, Route
from worker.kafka.connection import KafkaConnection
from worker.kafka.health import Health
from worker.kafka.partition import Limits
from worker.kafka.publisher import KafkaPublisher, ProducerOptions
from worker.kafka.records import Handled, InboundRecord, OutboundRecord, Publisher
from worker.kafka_fetch import log_ends
from worker.ports import RecordRef
from worker.stores.sqlite import SqliteCrashLedger
from worker.telemetry import Telemetry


async def until(holds: Callable[[], Any], *, seconds: float = 20, what: str = "") -> None:
    """Return as soon as `holds()` is true; fail at the deadline."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while not holds():
        assert clock() < deadline, f"not within {seconds} s: {what or holds}"
        await asyncio.sleep(0.01)


async def create_topics(
    bootstrap: str, *topics: str, partitions: int = 1, configs: dict[str, str] | None = None
) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        response: Any = await admin.create_topics(
            [NewTopic(topic, partitions, 1, topic_configs=configs) for topic in topics]
        )
        errors = {error[0]: error[1] for error in response.topic_errors if error[1] not in (0, 36)}
        assert not errors, errors
    finally:
        await admin.close()


async def send(bootstrap: str, topic: str, values: Iterable[bytes | None], **more: Any) -> None:
    """Publish one after the other, so that offsets follow the order."""
    producer: Any = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    await producer.start()
    try:
        for value in values:
            await producer.send_and_wait(topic, value, **more)
    finally:
        await producer.stop()


class _RawName(str):
    """A header key that encodes to bytes which are no UTF-8."""

    __slots__ = ("raw",)
    raw: bytes

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return self.raw


def batch_of(
    records: Iterable[tuple[bytes | None, bytes | None, Iterable[tuple[bytes, bytes | None]]]],
    *,
    codec: int = 0,
    base_offset: int = 0,
) -> bytes:
    """A record batch as a careless client would write it: key, value and raw headers of each record."""
    builder = _DefaultRecordBatchBuilderPy(2, codec, 0, -1, -1, 0, 1 << 24)
    for index, (key, value, headers) in enumerate(records):
        named: list[tuple[str, bytes | None]] = []
        for name, header_value in headers:
            raw = _RawName()
            raw.raw = name
            named.append((raw, header_value))
        # aiokafka refuses to send neither key nor value, but the format knows it.
        builder.append(index, 1_000, key, value, named)
    batch = builder.build()
    batch[:8] = base_offset.to_bytes(8, "big")  # not part of what the checksum covers
    return bytes(batch)


async def send_batch(bootstrap: str, topic: str, batch: bytes) -> None:
    """Put a finished batch on partition 0, past every check of the client."""
    producer: Any = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    try:
        await producer.partitions_for(topic)
        node = producer.client.cluster.leader_for_partition(TopicPartition(topic, 0))
        request = ProduceRequest(
            required_acks=-1, timeout=5_000, topics=[(topic, [(0, batch)])], transactional_id=None
        )
        while True:
            response = await producer.client.send(node, request)
            error_code = response.topics[0][1][0][1]
            if error_code != NotLeaderForPartitionError.errno:
                break
            await asyncio.sleep(0.05)  # of a topic that was made just now
        assert error_code == 0, response
    finally:
        await producer.stop()


async def read_all(bootstrap: str, topic: str) -> list[Any]:
    """Everything that stands on the topic now, by partition and offset."""
    consumer: Any = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    await consumer.start()
    try:
        listed = await consumer.end_offsets(sorted(consumer.assignment()))
        ends = await log_ends({"bootstrap_servers": [bootstrap]}, listed)
        found: list[Any] = []
        while any([await consumer.position(tp) < end for tp, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found.extend(records)
        return sorted(found, key=lambda record: (record.partition, record.offset))
    finally:
        await consumer.stop()


async def committed(bootstrap: str, group: str, topic: str, partition: int = 0) -> int | None:
    """The group's committed offset, asked from outside the group's members."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        tp = TopicPartition(topic, partition)
        offsets = await admin.list_consumer_group_offsets(group, partitions=[tp])
    except GroupCoordinatorNotAvailableError:
        return None  # a broker that was just started has not yet made the topic of the offsets
    else:
        found = offsets.get(tp)
        return None if found is None or found.offset < 0 else found.offset
    finally:
        await admin.close()


async def until_committed(
    bootstrap: str, group: str, topic: str, offset: int, *, partition: int = 0, seconds: float = 30
) -> None:
    """Return when the group has committed exactly this offset; fail at the deadline."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while (found := await committed(bootstrap, group, topic, partition)) != offset:
        assert clock() < deadline, f"{topic}-{partition}: committed {found}, not {offset}"
        await asyncio.sleep(0.05)


@dataclass(kw_only=True)
class MemoryLedger:
    """A crash ledger that outlives the lives that a test plays in one process."""

    starts: dict[tuple[str, RecordRef], int] = field(default_factory=dict[tuple[str, RecordRef], int])
    attempts: dict[RecordRef, int] = field(default_factory=dict[RecordRef, int])
    is_away: bool = False

    def _check(self) -> None:
        if self.is_away:
            raise StoreUnavailable("ledger")

    async def raise_start(self, group: str, position: RecordRef) -> int:
        self._check()
        self.starts[group, position] = self.starts.get((group, position), 0) + 1
        return self.starts[group, position]

    async def withdraw_start(self, group: str, position: RecordRef) -> None:
        self._check()
        _count_less(self.starts, (group, position))

    async def clear_starts(self, group: str, *, scope: str, topic: str, partition: int) -> None:
        self._check()
        for counted, ref in list(self.starts):
            if (counted, ref.scope, ref.topic, ref.partition) == (group, scope, topic, partition):
                del self.starts[counted, ref]

    async def begin_attempt(self, record: RecordRef) -> int:
        self._check()
        earlier = self.attempts.get(record, 0)
        self.attempts[record] = earlier + 1
        return earlier

    async def withdraw_attempt(self, record: RecordRef) -> None:
        self._check()
        _count_less(self.attempts, record)

    async def end_attempt(self, record: RecordRef) -> None:
        self._check()
        self.attempts.pop(record, None)

    async def close(self) -> None:
        """Nothing is open."""


def _count_less(counts: dict[Any, int], key: object) -> None:
    if (left := counts.pop(key, 0) - 1) > 0:
        counts[key] = left


Act = Callable[[InboundRecord], Awaitable[Handled]]


@dataclass(kw_only=True)
class Scripted:
    """A handler that does what the test says for a value, and answers every record on a topic."""

    reply_topic: str
    publisher: Publisher
    script: dict[bytes, Act] = field(default_factory=dict[bytes, "Act"])
    handled: list[InboundRecord] = field(default_factory=list[InboundRecord])
    ended: list[InboundRecord] = field(default_factory=list[InboundRecord])
    buried: list[tuple[InboundRecord, int]] = field(default_factory=list[tuple[InboundRecord, int]])
    at_once: int = 0
    most_at_once: int = 0

    async def handle(self, record: InboundRecord) -> Handled:
        self.handled.append(record)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            act = self.script.get(record.value or b"")
            handled = Handled() if act is None else await act(record)
            await self._reply(record, record.value or b"")
        finally:
            self.at_once -= 1
        self.ended.append(record)
        return handled

    async def bury(
        self, record: InboundRecord, *, attempts: int, cause: BaseException | None = None
    ) -> Handled:
        self.buried.append((record, attempts))
        await self._reply(record, b"buried after %d: " % attempts + (record.value or b""))
        return Handled(code="worker_died")

    async def _reply(self, record: InboundRecord, value: bytes) -> None:
        reply = OutboundRecord(topic=self.reply_topic, key=record.key, value=value, headers=record.headers)
        await self.publisher.publish(reply)


@dataclass(kw_only=True)
class Running:
    """One worker in this process."""

    worker: KafkaWorker
    handler: Scripted
    health: Health
    telemetry: Telemetry
    task: asyncio.Task[ExitCode]

    async def ready(self) -> None:
        await until(lambda: self.health.is_ready or self.task.done(), what="ready")
        if self.task.done():
            self.task.result()

    async def stopped(self) -> ExitCode:
        self.worker.request_stop()
        return await asyncio.wait_for(self.task, 30)


@asynccontextmanager
async def running(
    bootstrap: str,
    topic: str,
    *,
    ledger: Path,
    group: str = "",
    probe: Callable[[], Awaitable[None]] | None = None,
    limits: Limits | None = None,
    max_in_flight: int = 16,
    share: int | None = None,
    partitions: int = 1,
    drain_seconds: float = 10,
    idempotent: bool = False,
) -> AsyncGenerator[Running]:
    """A worker on `topic` that answers on `topic`.replies; stopped on the way out."""
    connection = KafkaConnection(bootstrap_servers=tuple(bootstrap.split(",")))
    options = ProducerOptions(is_idempotent=idempotent, request_timeout_ms=10_000)
    publisher = KafkaPublisher(connection=connection, options=options)
    handler = Scripted(reply_topic=f"{topic}.replies", publisher=publisher)
    crash_ledger = SqliteCrashLedger(ledger)
    health, telemetry = Health(), Telemetry()

    async def declare() -> None:
        await create_topics(bootstrap, topic, f"{topic}.replies", partitions=partitions)

    async def probe_store() -> None:
        if probe is not None:
            await probe()

    worker = KafkaWorker(
        connection=connection,
        routes=[
            Route(
                topic=topic,
                group=group or topic,
                handler=handler,
                max_in_flight=max_in_flight,
                max_in_flight_per_project=share,
            )
        ],
        publisher=publisher,
        ledger=crash_ledger,
        probe_store=probe_store,
        declare_topics=declare,
        telemetry=telemetry,
        health=health,
        consumer=ConsumerOptions(session_timeout_ms=6_000, heartbeat_interval_ms=500),
        limits=limits or Limits(commit_interval_seconds=0.1),
        drain_seconds=drain_seconds,
    )
    task = asyncio.create_task(worker.run(handle_signals=False))
    one = Running(worker=worker, handler=handler, health=health, telemetry=telemetry, task=task)
    try:
        yield one
    finally:
        worker.request_stop()
        worker.request_stop()
        try:
            await asyncio.wait({task}, timeout=20)
        finally:
            task.cancel()
            await asyncio.wait({task})
            await crash_ledger.close()
