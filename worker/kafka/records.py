"""Records as plain values, so that what decides about them needs no broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from schemas.codes import RejectionCode
from worker.errors import WorkerError


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundRecord:
    """One consumed record, untouched: nothing in it was decoded or trusted yet."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboundRecord:
    """One record to publish."""

    topic: str
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    is_topic_foreign: bool = False
    """Whether its topic is somebody else's: where it cannot be written to, nobody waits until it can."""


class CannotPublish(WorkerError):
    """The record can never be published as it is."""


class RecordTooLarge(CannotPublish):
    """The record exceeds what the producer or the topic takes."""

    def __init__(self, record: OutboundRecord, *, limit: str) -> None:
        """Name the topic, the size and whose limit it was."""
        self.size_bytes = len(record.value) + len(record.key or b"")
        super().__init__(f"a record of {self.size_bytes} bytes for {record.topic} exceeds {limit}")
        self.topic = record.topic


class TopicUnusable(CannotPublish):
    """The record's topic is not there or may not be written to, and is not one that the worker creates."""

    def __init__(self, topic: str, *, reason: str) -> None:
        """Name it, and say why."""
        super().__init__(f"topic {topic!r} {reason}")


class Publisher(Protocol):
    """Publishes with acks=all and returns when the broker has acknowledged."""

    async def publish(self, record: OutboundRecord) -> None:
        """Waits with backoff while the broker is away; never drops, never gives up before cancellation.

        Raises RecordTooLarge, and TopicUnusable for a foreign topic.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """How a record ended: `code` is None for a bundle, or for an outcome that was published again."""

    code: RejectionCode | None = None


class RecordHandler(Protocol):
    """What the dispatcher calls, once per record and attempt; idempotent."""

    async def handle(self, record: InboundRecord) -> Handled:
        """Everything up to the acknowledged publication; afterwards the offset may advance.

        Raises StoreUnavailable where the outcome store is away (nothing was published, the record must be
        tried again later). Any other exception is a defect of the handler itself.
        """
        ...

    async def bury(
        self, record: InboundRecord, *, attempts: int, cause: BaseException | None = None
    ) -> Handled:
        """Dead-letter a record that was tried `attempts` times in vain, without parsing its body again.

        `cause` is the defect of the handler that it met; without one it ended the process each time.
        """
        ...
