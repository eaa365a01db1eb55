"""One record of the state topic as far as it could be read, with the same care as a request."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import ClassVar, Final

from pydantic import TypeAdapter, ValidationError

from schemas.state import StateEvent
from schemas.times import time_of_record
from schemas.wire import DecodeNotes
from worker.decoding import decode_fields, validation_refusal
from worker.errors import InvalidRequest
from worker.kafka.headers import RequestHeaders
from worker.kafka.received import (
    BodyLimits,
    Received,
    Undecodable,
    decode_body,
    hashed,
)
from worker.kafka.records import InboundRecord
from worker.state.records import StateRecord, to_record

_EVENTS: Final = TypeAdapter[StateEvent](StateEvent)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedEvent:
    """An event that the contract allows, as it is kept, and what was forgiven."""

    project_id: str
    record: StateRecord
    notes: DecodeNotes


@dataclass(frozen=True, kw_only=True)  # not slotted, as what it extends
class ReceivedEvent(Received):
    """What a record yielded; `request_id` is the id of the event."""

    ID_FIELD: ClassVar[str] = "event_id"

    event: DecodedEvent | None = None

    @property
    def message(self) -> DecodedEvent:
        """The event. Raises ValueError where it could not be decoded."""
        if self.event is None:
            raise ValueError("the event was not decoded")
        return self.event


def decode_event(body: bytes | None, *, limits: BodyLimits, received_at: datetime) -> DecodedEvent:
    """The event in `body`, validated. Raises what `worker.decoding.decode_request` does."""
    fields = decode_fields(body, max_bytes=limits.max_bytes, max_depth=limits.max_depth)
    notes = DecodeNotes()
    try:
        event = _EVENTS.validate_python(fields, context=notes).root
    except ValidationError as error:
        raise validation_refusal(error) from None
    try:
        record = to_record(event, record_timestamp=received_at)
    except ValueError:
        raise InvalidRequest("a number is beyond what canonical JSON can carry") from None
    return DecodedEvent(project_id=event.project_id, record=record, notes=notes)


async def receive_event(record: InboundRecord, headers: RequestHeaders, limits: BodyLimits) -> ReceivedEvent:
    """Decode the body, or read the ids of one that cannot be decoded. A heavy body is read in a thread.

    A body that breaks a rule says so before a header that does.
    """
    decode = partial(decode_event, limits=limits, received_at=time_of_record(record.timestamp_ms))
    event = await decode_body(record.value, decode)
    if isinstance(event, Undecodable):
        return await ReceivedEvent.undecoded(record, headers, event.refusal, trace_text=event.traceback)
    return await hashed(
        ReceivedEvent(
            record=record,
            headers=headers,
            decoded=None,
            refusal=headers.refusal,
            request_id=event.record.event_id,
            project_id=event.project_id,
            event=event,
        )
    )
