"""One record of the responses topic as far as it could be read, with the same care as a request."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from pydantic import ValidationError

from schemas.answers import AgentAnswer
from schemas.wire import DecodeNotes
from worker.decoding import decode_fields, validation_refusal
from worker.kafka.headers import RequestHeaders
from worker.kafka.received import BodyLimits, Received, Undecodable, decode_body, hashed
from worker.kafka.records import InboundRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedAnswer:
    """An answer that the contract allows, and what was forgiven."""

    answer: AgentAnswer
    notes: DecodeNotes


@dataclass(frozen=True, kw_only=True)  # not slotted, as what it extends
class ReceivedAnswer(Received):
    """What a record yielded; `request_id` is the id of the answer."""

    ID_FIELD: ClassVar[str] = "answer_id"

    read: DecodedAnswer | None = None

    @property
    def message(self) -> DecodedAnswer:
        """The answer. Raises ValueError where it could not be decoded."""
        if self.read is None:
            raise ValueError("the answer was not decoded")
        return self.read


def decode_answer(body: bytes | None, limits: BodyLimits) -> DecodedAnswer:
    """The answer in `body`, validated. Raises what `worker.decoding.decode_request` does."""
    fields = decode_fields(body, max_bytes=limits.max_bytes, max_depth=limits.max_depth)
    notes = DecodeNotes()
    try:
        answer = AgentAnswer.model_validate(fields, context=notes)
    except ValidationError as error:
        raise validation_refusal(error) from None
    return DecodedAnswer(answer=answer, notes=notes)


async def receive_answer(
    record: InboundRecord, headers: RequestHeaders, limits: BodyLimits
) -> ReceivedAnswer:
    """Decode the body, or read the ids of one that cannot be decoded. A heavy body is read in a thread.

    A body that breaks a rule says so before a header that does.
    """
    read = await decode_body(record.value, partial(decode_answer, limits=limits))
    if isinstance(read, Undecodable):
        return await ReceivedAnswer.undecoded(record, headers, read.refusal, trace_text=read.traceback)
    return await hashed(
        ReceivedAnswer(
            record=record,
            headers=headers,
            decoded=None,
            refusal=headers.refusal,
            request_id=read.answer.answer_id,
            project_id=read.answer.project_id,
            read=read,
        )
    )
