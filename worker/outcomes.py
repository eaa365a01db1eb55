"""The bytes of outcomes: what is stored before it is published, and published as it is stored.

Pure: what goes in decides every byte that comes out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol, cast

from pydantic_core import from_json

from schemas.bundle import BundleRef, ContextBundle, Rejection, to_wire
from schemas.codes import DEAD_LETTER_CODES, RejectionCode
from schemas.request import AssemblyRequest
from schemas.usage import UsageCounts, UsageEvent, usage_event_id
from schemas.wire import DecodeNotes, canonical_json, sha256_hex
from worker.errors import InternalError, Rejected, WorkerDied
from worker.ports import OutcomeKey, OutcomeRecord

MAX_MESSAGE_CHARS: Final = 2_000
MAX_DETAILS_BYTES: Final = 16_384
MAX_TRACEBACK_CHARS: Final = 8_000
_SHORT_MESSAGE_CHARS: Final = 200


def rejection_reply(error: Rejected, *, request_id: str | None, project_id: str | None) -> Rejection:
    """The reply that says why there is no bundle; at most some 20 KB, whatever the request held.

    A message above 2,000 characters is cut, details above 16 KB are left out and say so.
    """
    return Rejection(
        request_id=request_id,
        project_id=project_id,
        code=error.code,
        message=_shortened(error.message, MAX_MESSAGE_CHARS),
        details=_bounded_details(error.details),
        retryable=error.is_retryable,
    )


def shortened_reply(reply: bytes) -> Rejection:
    """The rejection in `reply` without its details and with the beginning of its message."""
    rejection = Rejection.model_validate_json(reply)
    return rejection.model_copy(
        update={
            "message": _shortened(rejection.message, _SHORT_MESSAGE_CHARS),
            "details": {"omitted": "the reply topic takes no more"},
        }
    )


def rejection_outcome(
    error: Rejected,
    *,
    key: OutcomeKey,
    request_digest: str,
    as_of: datetime,
    timestamp: datetime,
    request: AssemblyRequest | None = None,
    notes: DecodeNotes | None = None,
    traceback: str | None = None,
) -> OutcomeRecord:
    """The outcome of a request that is refused: the reply, and a usage event without tokens and timings.

    `request` and `notes` are absent where the body could not be decoded. The traceback of an internal error
    is kept as the receipt, so that every dead letter written for this outcome says the same.
    """
    reply = rejection_reply(error, request_id=key.request_id, project_id=key.project_id)
    usage = rejection_usage(error, key=key, timestamp=timestamp, request=request, notes=notes)
    return OutcomeRecord(
        request_digest=request_digest,
        as_of=as_of,
        reply=to_wire(reply),
        usage=to_wire(usage),
        receipt=None if traceback is None else canonical_json({"traceback": _last_of(traceback)}),
    )


def rejection_usage(
    error: Rejected,
    *,
    key: OutcomeKey,
    timestamp: datetime,
    request: AssemblyRequest | None = None,
    notes: DecodeNotes | None = None,
) -> UsageEvent:
    """The usage event of a request that is refused, without tokens and timings."""
    return UsageEvent(
        event_id=usage_event_id(key.project_id, key.request_id, key.generation),
        timestamp=timestamp,
        project_id=key.project_id,
        request_id=key.request_id,
        generation=key.generation,
        volk_alias=request.volk if request else None,
        subject=request.subject if request else None,
        thread_id=request.thread_id if request else None,
        model=request.model if request else None,
        outcome="rejected",
        code=error.code,
        usage=None,
        requested_total=None,
        overhead=None,
        reserved=None,
        statuses=None,
        timings_ms=None,
        exact=None,
        counts=UsageCounts(unknown_fields=notes.unknown_fields, naive_times=notes.naive_times)
        if notes
        else None,
    )


def reply_outcome(
    reply: bytes, *, request_digest: str, as_of: datetime, traceback: str | None = None
) -> OutcomeRecord:
    """The outcome of a message that no usage event tells of; the traceback as in `rejection_outcome`."""
    return OutcomeRecord(
        request_digest=request_digest,
        as_of=as_of,
        reply=reply,
        usage=None,
        receipt=None if traceback is None else canonical_json({"traceback": _last_of(traceback)}),
    )


def bundle_chars(bundle: ContextBundle) -> int:
    """About how many characters the bundle's texts have; what writing it down costs grows with them."""
    chars = sum(len(message.content) for message in bundle.messages or ())
    chars += sum(map(len, (bundle.parts or {}).values())) + len(bundle.graph_context or "")
    return chars + (chars if bundle.payload is not None else 0)


class Trail(Protocol):
    """What is kept to explain a bundle, and to make it again."""

    @property
    def record(self) -> bytes:
        """The receipt's record."""
        ...

    @property
    def size_bytes(self) -> int:
        """About what record and capture have together."""
        ...

    def capture(self, *, max_bytes: int) -> bytes:
        """The inputs of fusing and sealing; where they are larger, one line that says so."""
        ...


def bundle_outcome(
    bundle: ContextBundle,
    usage: UsageEvent,
    trail: Trail,
    *,
    request_digest: str,
    as_of: datetime,
    max_record_bytes: int,
    max_capture_bytes: int,
    public_url: str,
) -> OutcomeRecord:
    """The outcome of a request that is served.

    A bundle of more than `max_record_bytes` is kept beside a reference to it, which is the reply then. Where
    `max_capture_bytes` is 0 no capture is kept.
    """
    body = to_wire(bundle)
    reference = None
    if len(body) > max_record_bytes:
        digest = sha256_hex(body)
        reference = BundleRef(
            request_id=bundle.request_id,
            project_id=bundle.project_id,
            digest=digest,
            size_bytes=len(body),
            status=bundle.status,
            url=bundle_url(public_url, project_id=bundle.project_id, digest=digest),
        )
    return OutcomeRecord(
        request_digest=request_digest,
        as_of=as_of,
        reply=body if reference is None else to_wire(reference),
        usage=to_wire(usage),
        bundle=None if reference is None else body,
        receipt=trail.record,
        capture=trail.capture(max_bytes=max_capture_bytes) if max_capture_bytes else None,
    )


def bundle_url(public_url: str, *, project_id: str, digest: str) -> str:
    """Where the bundle with that SHA-256 is served; project ids need no escaping."""
    return f"{public_url.rstrip('/')}/projects/{project_id}/bundles/{digest}"


# --- Reading an outcome back -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a rejection says, as its dead letter repeats it."""

    code: RejectionCode
    message: str
    traceback: str | None
    attempts: int

    @property
    def is_dead_letter(self) -> bool:
        """Whether there is one."""
        return self.code in DEAD_LETTER_CODES


def refusal_of(error: Rejected, *, traceback: str | None = None) -> Refusal:
    """What the dead letter of a record without an outcome says."""
    return Refusal(
        code=error.code,
        message=_shortened(error.message, MAX_MESSAGE_CHARS),
        traceback=None if traceback is None else _last_of(traceback),
        attempts=_attempts(error.code, error.details),
    )


def stored_refusal(outcome: OutcomeRecord) -> Refusal | None:
    """Why a stored outcome is a rejection; None for a bundle. Reads the usage event first: it is small."""
    # Inside a string of the event the quotes would be escaped, so these bytes are the field itself.
    if outcome.usage is None or b'"outcome":"rejected"' not in outcome.usage:
        return None
    return read_refusal(outcome)


def read_refusal(outcome: OutcomeRecord) -> Refusal:
    """Why the message was rejected whose stored outcome this is. Raises ValueError unless it was."""
    reply = Rejection.model_validate_json(outcome.reply)
    receipt = cast("dict[str, str]", from_json(outcome.receipt or b"{}"))
    return Refusal(
        code=reply.code,
        message=reply.message,
        traceback=receipt.get("traceback") if reply.code == InternalError.code else None,
        attempts=_attempts(reply.code, reply.details),
    )


def thread_of(outcome: OutcomeRecord) -> str | None:
    """The thread that the outcome's request belongs to, as far as the request could be read.

    What has no usage event may say it in its receipt, as an answer that was judged does.
    """
    said = cast("dict[str, object]", from_json(outcome.usage or outcome.receipt or b"{}"))
    thread_id = said.get("thread_id")
    return thread_id if isinstance(thread_id, str) else None


def _attempts(code: RejectionCode, details: Mapping[str, object]) -> int:
    """How often the record was tried in vain: once, where nothing says more."""
    attempts = details.get("attempts") if code in {WorkerDied.code, InternalError.code} else None
    return attempts if isinstance(attempts, int) else 1


# --- Bounds ------------------------------------------------------------------------------------------


def _bounded_details(details: dict[str, object]) -> dict[str, object]:
    try:
        encoded = json.dumps(details, default=str)
        if len(encoded) <= MAX_DETAILS_BYTES:
            return cast("dict[str, object]", from_json(encoded))
    except ValueError:
        return {"omitted": "the details are not JSON"}
    return {"omitted": "the details are too large for a reply"}


def _shortened(text: str, limit: int) -> str:
    text = _carriable(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _last_of(traceback: str) -> str:
    """The end, where the exception stands."""
    text = _carriable(traceback)
    return text if len(text) <= MAX_TRACEBACK_CHARS else "…" + text[-MAX_TRACEBACK_CHARS + 1 :]


def _carriable(text: str) -> str:
    """Lone surrogates, which UTF-8 has no bytes for, spelled out: exceptions quote all sorts of things."""
    return text.encode("utf-8", "backslashreplace").decode()
