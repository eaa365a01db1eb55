"""Records as plain values, so that what decides about them needs no broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from schemas.codes import RejectionCode


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


class Publisher(Protocol):
    """Publishes with acks=all and returns when the broker has acknowledged."""

    async def publish(self, record: OutboundRecord) -> None:
        """Waits with backoff while the broker is away; never drops, never gives up before cancellation."""
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

    async def bury(self, record: InboundRecord, *, attempts: int) -> Handled:
        """Dead-letter a record that ended the process `attempts` times, without parsing its body again."""
        ...
