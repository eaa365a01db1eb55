"""One record as far as it could be read: ids, digest, request, and what already speaks against it."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from typing import ClassVar, Final, Self, TypeVar

from schemas.times import time_of_record
from schemas.wire import sha256_hex
from worker.decoding import DecodedRequest, decode_request, is_heavy, read_ids
from worker.errors import InternalError, Rejected
from worker.kafka.headers import RequestHeaders
from worker.kafka.records import InboundRecord
from worker.ports import OutcomeKey, OutcomeRecord, Tombstone

T = TypeVar("T")

_SMALL_BYTES: Final = 1_024
"""Within these the search for ids, some 3 µs a token, is over sooner than a thread has begun."""
_LARGE_BYTES: Final = 262_144


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """What is decoded at all."""

    max_bytes: int
    max_depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """An unexpected error, as a refusal with its traceback."""

    refusal: InternalError
    traceback: str
    place: str
    """File and line that raised it."""


@dataclass(frozen=True, kw_only=True)  # not slotted: a cached property needs the dictionary
class Received:
    """What a record yielded: `decoded`, or `refusal`, or both where the headers alone are refused."""

    record: InboundRecord
    headers: RequestHeaders
    decoded: DecodedRequest | None
    refusal: Rejected | None
    """Why it is rejected, whatever assembling would say."""
    traceback: str | None = None
    """Where the refusal is a defect of ours."""
    request_id: str | None
    project_id: str | None

    ID_FIELD: ClassVar[str] = "request_id"
    """Where the message's own id stands in its body."""

    @classmethod
    def without_ids(
        cls,
        record: InboundRecord,
        headers: RequestHeaders,
        refusal: Rejected,
        *,
        trace_text: str | None = None,
    ) -> Self:
        """A record of which nothing but its headers was read."""
        return cls(
            record=record,
            headers=headers,
            decoded=None,
            refusal=refusal,
            traceback=trace_text,
            request_id=None,
            project_id=None,
        )

    @classmethod
    async def undecoded(
        cls,
        record: InboundRecord,
        headers: RequestHeaders,
        refusal: Rejected,
        *,
        trace_text: str | None = None,
    ) -> Self:
        """A record that is refused without a decoded body.

        Its ids are searched for, those of a large body not on the event loop.
        """
        body = record.value or b""
        if len(body) <= _SMALL_BYTES:
            own_id, project_id = read_ids(body, id_field=cls.ID_FIELD)
        else:
            own_id, project_id = await asyncio.to_thread(read_ids, body, id_field=cls.ID_FIELD)
        received = cls.without_ids(record, headers, refusal, trace_text=trace_text)
        return await hashed(replace(received, request_id=own_id, project_id=project_id))

    @cached_property
    def key(self) -> OutcomeKey | None:
        """Under which its outcome is stored; None where an id is missing."""
        if self.request_id is None or self.project_id is None:
            return None
        return OutcomeKey(
            project_id=self.project_id, request_id=self.request_id, generation=self.headers.generation
        )

    @property
    def reason(self) -> Rejected:
        """The refusal of a record that has one. Raises ValueError for one that may be served."""
        if self.refusal is None:
            raise ValueError("the record is not refused")
        return self.refusal

    @property
    def digest(self) -> str:
        """What the request means; of a body that was not decoded, its bytes."""
        return self.decoded.digest if self.decoded else self.body_digest

    @cached_property
    def body_digest(self) -> str:
        """SHA-256 of the body as it came; hashed once."""
        return sha256_hex(self.record.value or b"")

    def hash_body(self) -> None:
        """Have `body_digest` ready: 8 MB take up to 20 ms, which is too long on the event loop."""
        _ = self.body_digest

    @cached_property
    def as_of(self) -> datetime:
        """The instant that the request is about: its own, else the record's timestamp."""
        asked = self.decoded.request.as_of if self.decoded else None
        return asked or time_of_record(self.record.timestamp_ms)

    @property
    def text(self) -> str:
        """The message that it carries; empty where it was not decoded."""
        return self.decoded.request.user_message if self.decoded else ""

    def is_repeat_of(self, held: OutcomeRecord | Tombstone) -> bool:
        """Whether a stored outcome is that of the same request.

        An outcome bears the digest of the bytes where the attempt that stored it did not decode them.
        """
        # The body is hashed only where the meaning has not answered.
        return self.digest == held.request_digest or self._is_body_of(held)

    def _is_body_of(self, held: OutcomeRecord | Tombstone) -> bool:
        return held.request_digest == self.body_digest


R = TypeVar("R", bound=Received)


async def receive(record: InboundRecord, headers: RequestHeaders, limits: BodyLimits) -> Received:
    """Decode the body, or read the ids of one that cannot be decoded. A heavy body is read in a thread.

    A body that breaks a rule says so before a header that does.
    """
    decoded = await decode_body(record.value, partial(_decode, limits=limits))
    if isinstance(decoded, Undecodable):
        return await Received.undecoded(record, headers, decoded.refusal, trace_text=decoded.traceback)
    return await hashed(
        Received(
            record=record,
            headers=headers,
            decoded=decoded,
            refusal=headers.refusal,
            request_id=decoded.request.request_id,
            project_id=decoded.request.project_id,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecodable:
    """Why a body could not be decoded."""

    refusal: Rejected
    traceback: str | None = None
    """Where it is a defect of ours."""


async def decode_body(body: bytes | None, decode: Callable[[bytes | None], T]) -> T | Undecodable:
    """What `decode` gives, run in a thread for a heavy body. A defect of it must not stop the partition."""
    try:
        return await asyncio.to_thread(decode, body) if is_heavy(body) else decode(body)
    except Rejected as refusal:
        return Undecodable(refusal=refusal)
    except Exception as error:  # noqa: BLE001 - as said above
        found = defect(error)
        return Undecodable(refusal=found.refusal, traceback=found.traceback)


async def hashed(received: R) -> R:
    """The same, the digest of a large body ready: no repeat shall take it on the event loop."""
    if len(received.record.value or b"") > _LARGE_BYTES:
        await asyncio.to_thread(received.hash_body)
    return received


def defect(error: BaseException) -> Defect:
    """What an unexpected error becomes. The reply names its kind alone: its message may quote the prompt."""
    frames = traceback.extract_tb(error.__traceback__)
    return Defect(
        refusal=InternalError(f"internal error ({type(error).__name__})"),
        traceback="".join(traceback.format_exception(error)),
        place=f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown",
    )


def _decode(body: bytes | None, limits: BodyLimits) -> DecodedRequest:
    return decode_request(body, max_bytes=limits.max_bytes, max_depth=limits.max_depth)
