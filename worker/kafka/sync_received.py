"""One record of the sync topic as far as it could be read, with the same care as a request."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import ClassVar, Final

from pydantic import ValidationError

from schemas.sync import SyncRequest, sync_digest
from schemas.times import time_of_record
from schemas.wire import DecodeNotes
from worker.decoding import decode_fields, validation_refusal
from worker.kafka.headers import RequestHeaders
from worker.kafka.received import (
    BodyLimits,
    Received,
    Undecodable,
    decode_body,
    hashed,
)
from worker.kafka.records import InboundRecord
from worker.ports import OutcomeKey

_KEY_PREFIX: Final = "\x1fsync\x1f"
"""In front of a sync's id where outcomes are stored: no id of a request holds a control character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedSync:
    """A sync that the contract allows, what it means as a digest, and what was forgiven."""

    request: SyncRequest
    digest: str
    notes: DecodeNotes


@dataclass(frozen=True, kw_only=True)  # not slotted, as what it extends
class ReceivedSync(Received):
    """What a record yielded; `request_id` is the id of the sync."""

    ID_FIELD: ClassVar[str] = "sync_id"

    sync: DecodedSync | None = None

    @cached_property
    def key(self) -> OutcomeKey | None:
        """Under which its outcome is stored; never that of a request with the same id."""
        if self.request_id is None or self.project_id is None:
            return None
        return sync_key(self.project_id, self.request_id, generation=self.headers.generation)

    @property
    def digest(self) -> str:
        """What the sync means; of a body that was not decoded, its bytes."""
        return self.sync.digest if self.sync else self.body_digest

    @cached_property
    def as_of(self) -> datetime:
        """The record's timestamp."""
        return time_of_record(self.record.timestamp_ms)

    @property
    def text(self) -> str:
        """What drills look for: the id."""
        return self.request_id or ""


def sync_key(project_id: str, sync_id: str, *, generation: int = 0) -> OutcomeKey:
    """Under which the outcome of a sync is stored."""
    return OutcomeKey(project_id=project_id, request_id=_KEY_PREFIX + sync_id, generation=generation)


def decode_sync(body: bytes | None, limits: BodyLimits) -> DecodedSync:
    """The sync in `body`, validated. Raises what `worker.decoding.decode_request` does."""
    fields = decode_fields(body, max_bytes=limits.max_bytes, max_depth=limits.max_depth)
    notes = DecodeNotes()
    try:
        request = SyncRequest.model_validate(fields, context=notes)
    except ValidationError as error:
        raise validation_refusal(error) from None
    return DecodedSync(request=request, digest=sync_digest(request), notes=notes)


async def receive_sync(record: InboundRecord, headers: RequestHeaders, limits: BodyLimits) -> ReceivedSync:
    """Decode the body, or read the ids of one that cannot be decoded. A heavy body is read in a thread.

    A body that breaks a rule says so before a header that does.
    """
    sync = await decode_body(record.value, partial(decode_sync, limits=limits))
    if isinstance(sync, Undecodable):
        return await ReceivedSync.undecoded(record, headers, sync.refusal, trace_text=sync.traceback)
    return await hashed(
        ReceivedSync(
            record=record,
            headers=headers,
            decoded=None,
            refusal=headers.refusal,
            request_id=sync.request.sync_id,
            project_id=sync.request.project_id,
            sync=sync,
        )
    )
