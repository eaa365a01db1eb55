"""Publishing with acknowledgement, however long the broker stays away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerClosed,
    ProducerFenced,
    TopicAuthorizationFailedError,
    UnknownProducerId,
)

from worker.kafka.connection import KafkaConnection, abandon
from worker.kafka.records import OutboundRecord, RecordTooLarge, TopicUnusable

_log = structlog.get_logger(__name__)

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0
_AWAY_AFTER_SECONDS: Final = 5.0
_DISCARD_TIMEOUT_SECONDS: Final = 30.0

# After these aiokafka's producer stays broken: it never takes back the sequence numbers of a refused batch,
# so each later batch for the partition is out of order. A bare KafkaError says that its sender has ended.
_BREAKING: Final = (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    UnknownProducerId,
)

_UNUSABLE: Final = (InvalidTopicError, TopicAuthorizationFailedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """What differs between clusters and sizes of bundles.

    `max_batch_bytes` defaults to 256 KiB because one 16 KB reply fills aiokafka's own default, which halves
    the throughput. `max_record_bytes` is the largest record, uncompressed. The embedded broker knows no
    idempotent producer.
    """

    is_idempotent: bool = True
    max_record_bytes: int = 1_048_576
    max_batch_bytes: int = 262_144
    linger_ms: int = 0
    request_timeout_ms: int = 40_000


class Producer(Protocol):
    """What is used of aiokafka's producer."""

    async def start(self) -> None:
        """Connect. Raises KafkaError."""
        ...

    async def stop(self) -> None:
        """Flush and disconnect; may take as long as the batches live."""
        ...

    async def send(
        self, topic: str, *, value: bytes, key: bytes | None, headers: list[tuple[str, bytes]]
    ) -> asyncio.Future[Any]:
        """Put the record into a batch; the future ends with the acknowledgement. Both raise KafkaError."""
        ...


class KafkaPublisher:
    """The worker's one producer: acks=all, lz4, and patience.

    `publish` returns when the broker has acknowledged, so what is published after it is later in every
    log. It retries until it is cancelled; a record whose acknowledgement was lost may be stored twice.
    """

    def __init__(
        self,
        *,
        connection: KafkaConnection,
        options: ProducerOptions,
        lacks_topic: Callable[[str], Awaitable[bool]] | None = None,
        make_producer: Callable[..., Producer] = AIOKafkaProducer,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is connected before `start`.

        `lacks_topic` says whether the cluster is known to have no such topic; asked for foreign topics
        alone. Without it they are waited for as long as the worker's own.
        """
        self._options = options
        self._lacks_topic = lacks_topic
        self._settings: dict[str, Any] = {
            **connection.client_options(),
            "acks": "all",
            "compression_type": "lz4",
            "enable_idempotence": options.is_idempotent,
            "linger_ms": options.linger_ms,
            "max_batch_size": options.max_batch_bytes,
            "max_request_size": options.max_record_bytes,
            "request_timeout_ms": options.request_timeout_ms,
        }
        self._make_producer = make_producer
        self._sleep = sleep
        self._clock = clock
        self._producer: Producer | None = None
        self._replacing = asyncio.Lock()
        self._pending = 0
        self._retrying = 0
        self._quiet_since = 0.0
        self._discarded: set[asyncio.Task[None]] = set()
        self._waiting: dict[Producer, set[asyncio.Timeout]] = {}

    @property
    def is_away(self) -> bool:
        """Whether records wait for a broker that refuses them, or that has long acknowledged none."""
        is_quiet = self._clock() - self._quiet_since > _AWAY_AFTER_SECONDS
        return self._retrying > 0 or (self._pending > 0 and is_quiet)

    async def start(self) -> None:
        """Connect. Raises KafkaError where no broker answers; idempotent."""
        if self._producer is None:
            self._producer = await self._connected()

    async def stop(self, *, timeout_seconds: float = 5.0) -> None:
        """Send what is pending and disconnect, or give up on both after the timeout; idempotent."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await _stop(producer, timeout_seconds=timeout_seconds)
        if self._discarded:
            await asyncio.wait(self._discarded, timeout=timeout_seconds)

    async def publish(self, record: OutboundRecord) -> None:
        """Return when the record is stored by every in-sync replica.

        Waits with backoff while the broker is away, until it is cancelled. Raises RecordTooLarge,
        TopicUnusable for a foreign topic, and RuntimeError where the publisher was not started or is
        stopped.
        """
        if not self._pending:
            self._quiet_since = self._clock()
        self._pending += 1
        try:
            if not await self._try(record):
                await self._retry(record)
        finally:
            self._pending -= 1

    async def _retry(self, record: OutboundRecord) -> None:
        self._retrying += 1
        pause_seconds = _FIRST_PAUSE_SECONDS
        try:
            while True:
                await self._sleep(pause_seconds)
                if await self._try(record):
                    return
                pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
        finally:
            self._retrying -= 1

    async def _try(self, record: OutboundRecord) -> bool:
        # Before each try: aiokafka looks for a topic that is not there as long as a request may take.
        if record.is_topic_foreign and self._lacks_topic and await self._lacks_topic(record.topic):
            raise TopicUnusable(record.topic, reason="does not exist")
        producer = self._producer
        if producer is None:
            raise RuntimeError("the publisher is not running")
        try:
            await self._deliver(producer, record)
        except MessageSizeTooLargeError:
            if self._options.is_idempotent:
                await self._replace(producer)
            return await self._try_alone(record)
        except KafkaError as error:
            await self._recover(producer, record, error)
            return False
        self._quiet_since = self._clock()
        return True

    async def _deliver(self, producer: Producer, record: OutboundRecord) -> None:
        """Return when the broker has acknowledged the record.

        Raises RecordTooLarge where the producer takes no such record, MessageSizeTooLargeError where the
        topic does not take its batch, and ProducerClosed also where the producer was discarded and has
        stopped meanwhile: aiokafka then leaves alone whoever waits for it, for topics that nobody asks the
        broker about any more or for the acknowledgement of a batch that was dropped.
        """
        waits = self._waiting.setdefault(producer, set())
        waiting = asyncio.timeout(None)
        waits.add(waiting)
        try:
            async with waiting:
                try:
                    acknowledged = await _send(producer, record)
                except MessageSizeTooLargeError as error:
                    limit = f"max_record_bytes of the producer ({self._options.max_record_bytes})"
                    raise RecordTooLarge(record, limit=limit) from error
                await acknowledged
        except TimeoutError:
            if waiting.expired():
                raise ProducerClosed from None
            raise
        finally:
            waits.discard(waiting)
            if not waits:
                self._waiting.pop(producer, None)

    async def _try_alone(self, record: OutboundRecord) -> bool:
        """Send the record in a batch of its own: the limit is the batch's, and the others filled it too."""
        try:
            producer = await self._connected(max_batch_size=1)  # aiokafka takes any first record of a batch
        except KafkaError as error:
            _log.warning("kafka.publish_failed", topic=record.topic, error=repr(error))
            return False
        try:
            await (await _send(producer, record))
        except MessageSizeTooLargeError as error:
            raise RecordTooLarge(record, limit="max.message.bytes of the topic") from error
        except KafkaError as error:
            _log.warning("kafka.publish_failed", topic=record.topic, error=repr(error))
            return False
        finally:
            self._discard(producer)
        self._quiet_since = self._clock()
        return True

    async def _recover(self, producer: Producer, record: OutboundRecord, error: KafkaError) -> None:
        if self._producer is None and isinstance(error, ProducerClosed):
            raise RuntimeError("the publisher was stopped") from error
        if record.is_topic_foreign and isinstance(error, _UNUSABLE):
            raise TopicUnusable(record.topic, reason=f"cannot be written to: {error!r}") from error
        _log.warning("kafka.publish_failed", topic=record.topic, error=repr(error))
        if isinstance(error, _BREAKING) or type(error) is KafkaError:
            await self._replace(producer)

    async def _replace(self, broken: Producer) -> None:
        async with self._replacing:
            if self._producer is not broken:
                return  # another record's failure was here first, or the publisher was stopped
            try:
                fresh = await self._connected()
            except KafkaError as error:
                _log.warning("kafka.producer_not_replaced", error=repr(error))
                return
            self._producer = fresh
        self._discard(broken)

    def _discard(self, producer: Producer) -> None:
        # What it still holds for sound partitions is delivered, without anybody waiting for it here.
        discarded = asyncio.create_task(self._end(producer))
        self._discarded.add(discarded)
        discarded.add_done_callback(self._discarded.discard)

    async def _end(self, producer: Producer) -> None:
        await _stop(producer, timeout_seconds=_DISCARD_TIMEOUT_SECONDS)
        now = asyncio.get_running_loop().time()
        for waiting in self._waiting.get(producer, ()):
            waiting.reschedule(now)

    async def _connected(self, **other_settings: Any) -> Producer:
        producer = self._make_producer(**{**self._settings, **other_settings})
        try:
            await producer.start()
        except BaseException:
            await _stop(producer, timeout_seconds=1.0)
            raise
        return producer


async def _send(producer: Producer, record: OutboundRecord) -> asyncio.Future[Any]:
    return await producer.send(record.topic, value=record.value, key=record.key, headers=list(record.headers))


async def _stop(producer: Producer, *, timeout_seconds: float) -> None:
    # A producer without a broker would flush until its batches expire, an idempotent one for ever.
    stopping = asyncio.create_task(producer.stop())
    await asyncio.wait({stopping}, timeout=timeout_seconds)
    if not stopping.done():
        stopping.cancel()
        if isinstance(producer, AIOKafkaProducer):
            await abandon(producer)
    await asyncio.gather(stopping, return_exceptions=True)
