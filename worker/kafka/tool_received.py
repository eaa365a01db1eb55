"""One record of the tools topic as far as it could be read, with the same care as a request."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from pydantic import ValidationError

from schemas.tools import ToolRequest
from schemas.wire import DecodeNotes
from worker.decoding import decode_fields, validation_refusal
from worker.kafka.headers import RequestHeaders
from worker.kafka.received import BodyLimits, Received, Undecodable, decode_body, hashed
from worker.kafka.records import InboundRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedCall:
    """A call that the contract allows, and what was forgiven."""

    request: ToolRequest
    notes: DecodeNotes


@dataclass(frozen=True, kw_only=True)  # not slotted, as what it extends
class ReceivedCall(Received):
    """What a record yielded; `request_id` is the id of the call."""

    ID_FIELD: ClassVar[str] = "call_id"

    call: DecodedCall | None = None

    @property
    def message(self) -> DecodedCall:
        """The call. Raises ValueError where it could not be decoded."""
        if self.call is None:
            raise ValueError("the call was not decoded")
        return self.call


def decode_call(body: bytes | None, limits: BodyLimits) -> DecodedCall:
    """The call in `body`, validated. Raises what `worker.decoding.decode_request` does."""
    fields = decode_fields(body, max_bytes=limits.max_bytes, max_depth=limits.max_depth)
    notes = DecodeNotes()
    try:
        request = ToolRequest.model_validate(fields, context=notes)
    except ValidationError as error:
        raise validation_refusal(error) from None
    return DecodedCall(request=request, notes=notes)


async def receive_call(record: InboundRecord, headers: RequestHeaders, limits: BodyLimits) -> ReceivedCall:
    """Decode the body, or read the ids of one that cannot be decoded. A heavy body is read in a thread.

    A body that breaks a rule says so before a header that does.
    """
    call = await decode_body(record.value, partial(decode_call, limits=limits))
    if isinstance(call, Undecodable):
        return await ReceivedCall.undecoded(record, headers, call.refusal, trace_text=call.traceback)
    return await hashed(
        ReceivedCall(
            record=record,
            headers=headers,
            decoded=None,
            refusal=headers.refusal,
            request_id=call.request.call_id,
            project_id=call.request.project_id,
            call=call,
        )
    )
