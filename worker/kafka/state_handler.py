"""What happens to one state event, from the record to the store.

An event is durable before its offset is committed, and to apply it again changes nothing: whatever is killed
in between, what is known afterwards is what it would have been without. So there is no outcome to store, no
order to keep, and nothing to answer to an event that was taken. One that cannot be is a dead letter, and a
rejection with the event's id as `request_id`.
"""

from __future__ import annotations

from worker.kafka.headers import RequestHeaders
from worker.kafka.plain_handler import Door, PlainHandler
from worker.kafka.records import InboundRecord
from worker.kafka.state_received import ReceivedEvent, receive_event
from worker.state.writing import StateWriter
from worker.telemetry import SPAN_STATE, SPAN_STORE


class StateHandler(PlainHandler[ReceivedEvent, None]):
    """Takes state events in; one per worker."""

    KIND = "state"
    SPAN = SPAN_STATE
    RECEIVED = ReceivedEvent

    def __init__(self, door: Door, *, writer: StateWriter) -> None:
        """Events are applied by `writer`."""
        super().__init__(door)
        self._writer = writer

    async def _receive(self, record: InboundRecord, headers: RequestHeaders) -> ReceivedEvent:
        return await receive_event(record, headers, self._limits)

    async def _work(self, received: ReceivedEvent) -> None:
        event = received.message
        self._telemetry.count_notes(event.notes)
        event_id = event.record.event_id
        await self._failpoints.reach("state.before_store", event_id)
        with self._telemetry.leaf(SPAN_STORE):
            await self._writer.apply(event.project_id, event.record)
        await self._failpoints.reach("state.after_store", event_id)

    async def _publish(self, received: ReceivedEvent, done: None) -> None:
        """Nobody waits for an event to be answered."""
