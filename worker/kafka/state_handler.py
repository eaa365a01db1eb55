"""What happens to one state event, from the record to the store.

An event is durable before its offset is committed, and to apply it again changes nothing: whatever is killed
in between, what is known afterwards is what it would have been without. So there is no outcome to store, no
order to keep, and nothing to answer to an event that was taken. One that cannot be is a dead letter, and a
rejection with the event's id as `request_id`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

import structlog

from worker.errors import Rejected
from worker.failpoints import Failpoints
from worker.kafka.burying import NOT_DEFECTS, bury
from worker.kafka.headers import RequestHeaders
from worker.kafka.received import BodyLimits, defect
from worker.kafka.records import Handled, InboundRecord
from worker.kafka.replies import Replies
from worker.kafka.spans import record_span
from worker.kafka.state_received import DecodedEvent, ReceivedEvent, receive_event
from worker.state.writing import StateWriter
from worker.telemetry import SPAN_STATE, SPAN_STORE, Telemetry

_log = structlog.get_logger(__name__)


class StateHandler:
    """Takes state events in, as `worker.kafka.records.RecordHandler` says; one per worker."""

    def __init__(
        self,
        *,
        writer: StateWriter,
        replies: Replies,
        reply_topics: frozenset[str],
        limits: BodyLimits,
        telemetry: Telemetry,
        failpoints: Failpoints,
    ) -> None:
        """`reply_topics` are those that a rejection may be asked for on."""
        self._writer = writer
        self._replies = replies
        self._reply_topics = reply_topics
        self._limits = limits
        self._telemetry = telemetry
        self._failpoints = failpoints

    async def handle(self, record: InboundRecord) -> Handled:
        """Return when the event is durable, or answered as what it is. Raises StoreUnavailable."""
        with self._event_span(record) as headers:
            await self._failpoints.reach("decode", record.value or b"")
            received = await receive_event(record, headers, self._limits)
            event = received.event
            if event is None or received.refusal is not None:
                return await self._refuse(received, received.reason)
            self._telemetry.count_notes(event.notes)
            try:
                await self._take(event)
            except NOT_DEFECTS:
                raise
            except BaseException as error:  # noqa: BLE001 - a panic in an extension is no Exception
                found = defect(error)
                _log.error("state.failed", kind=type(error).__name__, place=found.place)
                refused = replace(received, refusal=found.refusal, traceback=found.traceback)
                return await self._refuse(refused, found.refusal)
            return Handled()

    async def bury(
        self, record: InboundRecord, *, attempts: int, cause: BaseException | None = None
    ) -> Handled:
        """Settle a record that was tried in vain, as `worker.kafka.burying` says.

        Whether the event was taken before the process died is not known: it may stand in the state.
        """
        with self._event_span(record) as headers:
            return await bury(
                record,
                headers,
                ReceivedEvent,
                attempts=attempts,
                cause=cause,
                settle=self._refuse,
                refuse=self._refuse,
            )

    async def _take(self, event: DecodedEvent) -> None:
        event_id = event.record.event_id
        await self._failpoints.reach("state.before_store", event_id)
        with self._telemetry.step(SPAN_STORE):
            await self._writer.apply(event.project_id, event.record)
        await self._failpoints.reach("state.after_store", event_id)

    async def _refuse(self, received: ReceivedEvent, error: Rejected) -> Handled:
        await self._replies.without_outcome(received, error)
        return Handled(code=error.code)

    def _event_span(self, record: InboundRecord) -> AbstractContextManager[RequestHeaders]:
        return record_span(
            record, SPAN_STATE, kind="state", allowed=self._reply_topics, telemetry=self._telemetry
        )
