"""What handlers have in common that keep no outcome under the id of what they handle.

They read a record, work on it, and publish what came of that; a record that cannot be read, or is met by a
defect, is a dead letter and a rejection with its own id as `request_id`. That nothing is done twice is for
what they work with to see to: whatever a crash leaves, the record comes again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar

import structlog

from worker.errors import Rejected
from worker.failpoints import Failpoints
from worker.kafka.burying import NOT_DEFECTS, bury
from worker.kafka.headers import RequestHeaders
from worker.kafka.received import BodyLimits, Received, defect
from worker.kafka.records import Handled, InboundRecord
from worker.kafka.replies import Replies
from worker.kafka.spans import note_outcome, record_span
from worker.logs import bind_ids
from worker.telemetry import SPAN_DECODE, Telemetry

_log = structlog.get_logger(__name__)

R = TypeVar("R", bound=Received)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What each of them is given: how it answers, what it takes, and what it tells."""

    replies: Replies
    """Go where this kind of record is answered."""
    reply_topics: frozenset[str]
    """Those that a record may ask to be answered on."""
    limits: BodyLimits
    telemetry: Telemetry
    failpoints: Failpoints


class PlainHandler(ABC, Generic[R, T]):
    """Serves records of one kind, as `worker.kafka.records.RecordHandler` says."""

    KIND: ClassVar[str]
    """What a record's own header may say, and what the log calls it."""
    SPAN: ClassVar[str]
    RECEIVED: type[R]
    """What a record is read into."""

    def __init__(self, door: Door) -> None:
        """Answer through `door`."""
        self._replies = door.replies
        self._reply_topics = door.reply_topics
        self._limits = door.limits
        self._telemetry = door.telemetry
        self._failpoints = door.failpoints

    async def handle(self, record: InboundRecord) -> Handled:
        """Everything up to the last acknowledgement; idempotent.

        Raises StoreUnavailable, before anything was published.
        """
        with self._span(record) as headers:
            await self._failpoints.reach("decode", record.value or b"")
            with self._telemetry.leaf(SPAN_DECODE):
                received = await self._receive(record, headers)
            bind_ids(received.project_id, **{received.ID_FIELD: received.request_id})
            if received.refusal is not None:
                return await self._refuse(received, received.refusal)
            try:
                done = await self._work(received)
            except NOT_DEFECTS:
                raise
            except BaseException as error:  # noqa: BLE001 - a panic in an extension is no Exception
                found = defect(error)
                # The kind and the place, without the message: it may quote what somebody wrote.
                _log.error(f"{self.KIND}.failed", kind=type(error).__name__, place=found.place)
                refused = replace(received, refusal=found.refusal, traceback=found.traceback)
                return await self._refuse(refused, found.refusal)
            await self._publish(received, done)
            return Handled()

    async def bury(
        self, record: InboundRecord, *, attempts: int, cause: BaseException | None = None
    ) -> Handled:
        """Settle a record that was tried in vain, as `worker.kafka.burying` says.

        Whether the work was done before the process died is not known.
        """
        with self._span(record) as headers:
            return await bury(
                record,
                headers,
                self.RECEIVED,
                attempts=attempts,
                cause=cause,
                settle=self._refuse,
                refuse=self._refuse,
            )

    @abstractmethod
    async def _receive(self, record: InboundRecord, headers: RequestHeaders) -> R:
        """The record as far as it can be read."""

    @abstractmethod
    async def _work(self, received: R) -> T:
        """Do what the record asks for; a defect of it is answered as one. Raises StoreUnavailable."""

    @abstractmethod
    async def _publish(self, received: R, done: T) -> None:
        """Publish what came of it."""

    async def _refuse(self, received: R, error: Rejected) -> Handled:
        await self._replies.without_outcome(received, error)
        note_outcome("rejected", error.code)
        return Handled(code=error.code)

    def _span(self, record: InboundRecord) -> AbstractContextManager[RequestHeaders]:
        return record_span(
            record, self.SPAN, kind=self.KIND, allowed=self._reply_topics, telemetry=self._telemetry
        )
