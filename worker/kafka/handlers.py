"""What happens to one request, from the record to the acknowledged publication.

Read `RequestHandler.handle`. One distinct outcome exists for each project, request id and generation,
because all that is published for a key is what the outcome store holds, and the store keeps the first outcome
that was put. What a crash leaves at each point, the offset being uncommitted in all of them:

1. before the put: nothing was published; the next attempt starts afresh.
2. after the put, before the last acknowledgement: the next attempt, here or on another worker, finds the
   stored outcome and publishes all of it: dead letter, reply, usage event. What was out already comes again,
   byte for byte.
3. after the usage event: as 2.
4. two workers at once, or one that was thought dead and wakes up: both assemble, one put wins, both publish
   what the winner stored.

The usage line goes to the log of the worker whose put won, after its publications; a crash in between costs
that line, and the usage topic has the event.

There is no outcome for a record whose ids cannot be read, whose id came before with another body, or which is
older than the store remembers. Its reply and dead letter are made from the record and the refusal alone, so
every attempt at it gives the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Protocol

import structlog

from schemas.bundle import ContextBundle
from schemas.codes import Outcome
from schemas.request import AssemblyRequest
from schemas.times import time_of_record
from schemas.usage import UsageEvent
from schemas.wire import DecodeNotes
from worker.decoding import check_request
from worker.errors import Expired, Rejected, RequestIdReused
from worker.failpoints import Failpoints
from worker.kafka.burying import NOT_DEFECTS, bury
from worker.kafka.concluding import Conclusions, UsageLog
from worker.kafka.headers import RequestHeaders
from worker.kafka.received import (
    BodyLimits,
    Received,
    defect,
    receive,
)
from worker.kafka.records import Handled, InboundRecord, Publisher
from worker.kafka.replies import Replies, Routes
from worker.kafka.spans import note_bundle, note_ids, note_outcome, record_span
from worker.logs import bind_ids
from worker.outcomes import (
    Trail,
    bundle_chars,
    bundle_outcome,
    refusal_of,
    rejection_outcome,
    stored_refusal,
)
from worker.ports import OutcomeKey, OutcomeRecord, OutcomeStore, Tombstone
from worker.telemetry import SPAN_DECODE, SPAN_REQUEST, SPAN_STORE, Telemetry

_log = structlog.get_logger(__name__)

_YOUNG: Final = timedelta(seconds=1)
"""A record younger than this can hardly have an outcome yet, so nobody asks; the put finds it if it has."""

_LOOP_CHARS: Final = 256_000
"""Of a bundle and its capture that are written down on the event loop: about two milliseconds."""


class Assembled(Protocol):
    """What assembling one request gives."""

    @property
    def bundle(self) -> ContextBundle:
        """Ready to be sent."""
        ...

    @property
    def usage(self) -> UsageEvent:
        """What it spent."""
        ...

    @property
    def trail(self) -> Trail:
        """What explains it."""
        ...


class Assemble(Protocol):
    """Assembles one validated request."""

    async def __call__(
        self,
        request: AssemblyRequest,
        *,
        as_of: datetime,
        generation: int,
        notes: DecodeNotes,
        meaning: bytes,
    ) -> Assembled:
        """The bundle, its usage event under this generation, and what explains both.

        Raises Rejected; all else is a defect.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is taken, what fits a record, and what is still remembered."""

    body: BodyLimits
    max_record_bytes: int
    """A larger bundle is published by reference, under `public_url`."""
    max_capture_bytes: int
    """Of a larger one nothing but its size is kept; 0 keeps none."""
    public_url: str
    forget_seconds: int = 48 * 3_600
    """The outcome store's own; a record older than this is `expired`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """The outcome that one attempt came to, before it is stored."""

    record: OutcomeRecord
    outcome: Outcome
    code: str = ""
    usage: UsageEvent | None = None
    """Of a bundle."""


class RequestHandler:
    """Serves assembly requests, as `worker.kafka.records.RecordHandler` says; one per worker."""

    def __init__(
        self,
        *,
        assemble: Assemble,
        store: OutcomeStore,
        publisher: Publisher,
        usage_log: UsageLog,
        routes: Routes,
        limits: Limits,
        telemetry: Telemetry,
        failpoints: Failpoints,
        now: Callable[[], datetime],
    ) -> None:
        """`now` gives the wall clock with its zone: it says what has expired, and stamps usage events."""
        self._assemble = assemble
        self._store = store
        self._replies = Replies(publisher, routes, telemetry=telemetry, failpoints=failpoints)
        self._conclusions = Conclusions(telemetry, usage_log)
        self._reply_topics = routes.allowed_reply_topics
        self._limits = limits
        self._forgets_after = timedelta(seconds=limits.forget_seconds)
        self._telemetry = telemetry
        self._failpoints = failpoints
        self._now = now

    async def handle(self, record: InboundRecord) -> Handled:
        """Everything up to the last acknowledgement; idempotent.

        Raises StoreUnavailable, before anything was published.
        """
        with self._request(record) as headers:
            received = await self._receive(record, headers)
            key, age = received.key, self._age(record)
            if key is None or age > self._forgets_after:
                return await self._answer_without_outcome(received)
            if age >= _YOUNG:
                with self._telemetry.leaf(SPAN_STORE):
                    held = await self._store.get(key)
                if held is not None:
                    return await self._repeat(received, held)
            decision = await self._decide(received, key)
            return await self._settle(received, key, decision)

    async def bury(
        self, record: InboundRecord, *, attempts: int, cause: BaseException | None = None
    ) -> Handled:
        """Settle a record that was tried in vain, as `worker.kafka.burying` says.

        An outcome that an earlier attempt stored stays what it is and is published; the record is a dead
        letter all the same.
        """
        with self._request(record) as headers:
            return await bury(
                record,
                headers,
                Received,
                attempts=attempts,
                cause=cause,
                settle=self._bury,
                refuse=self._refuse,
            )

    async def _bury(self, received: Received, error: Rejected) -> Handled:
        key = received.key
        if key is None or self._is_forgotten(received.record):
            return await self._answer_without_outcome(received)
        decision = self._reject(received, key, error, trace_text=received.traceback)
        held = await self._store.put_if_absent(key, decision.record)
        if isinstance(held, Tombstone):
            return await self._refuse(received, _forgotten())
        stored = stored_refusal(held)
        if stored is None or stored.code != error.code:
            await self._replies.letter(received, refusal_of(error, traceback=received.traceback))
        await self._replies.outcome(received, held)
        if held is decision.record:
            self._conclude(decision)
        return Handled(code=error.code)

    # --- Reading ---------------------------------------------------------------------------------

    def _request(self, record: InboundRecord) -> AbstractContextManager[RequestHeaders]:
        return record_span(
            record, SPAN_REQUEST, kind="request", allowed=self._reply_topics, telemetry=self._telemetry
        )

    async def _receive(self, record: InboundRecord, headers: RequestHeaders) -> Received:
        await self._failpoints.reach("decode", record.value or b"")
        with self._telemetry.leaf(SPAN_DECODE):
            received = await receive(record, headers, self._limits.body)
        if received.decoded is not None:
            self._telemetry.count_notes(received.decoded.notes)
        if received.key is not None:
            note_ids(received.key.project_id, received.key.request_id)
        bind_ids(received.project_id, request_id=received.request_id)
        return received

    def _is_forgotten(self, record: InboundRecord) -> bool:
        """Whether the store has forgotten the record's outcome, if there was one."""
        return self._age(record) > self._forgets_after

    def _age(self, record: InboundRecord) -> timedelta:
        return self._now() - time_of_record(record.timestamp_ms)

    # --- Deciding --------------------------------------------------------------------------------

    async def _decide(self, received: Received, key: OutcomeKey) -> _Decision:
        """The outcome that this attempt comes to. Nothing outside has changed yet."""
        decoded = received.decoded
        if decoded is None or received.refusal is not None:
            return self._reject(received, key, received.reason, trace_text=received.traceback)
        request = decoded.request
        try:
            if request.expires_at is not None and request.expires_at <= self._now():
                return self._reject(received, key, Expired("the request was met after its `expires_at`"))
            check_request(request)
            assembled = await self._assemble(
                request,
                as_of=received.as_of,
                generation=key.generation,
                notes=decoded.notes,
                meaning=decoded.meaning,
            )
            note_bundle(assembled.bundle, assembled.usage, with_text=self._telemetry.has_prompts_on_spans)
            write = partial(
                bundle_outcome,
                assembled.bundle,
                assembled.usage,
                assembled.trail,
                request_digest=decoded.digest,
                as_of=received.as_of,
                max_record_bytes=self._limits.max_record_bytes,
                max_capture_bytes=self._limits.max_capture_bytes,
                public_url=self._limits.public_url,
            )
            # Writing down and hashing megabytes would hold the event loop.
            is_large = bundle_chars(assembled.bundle) + assembled.trail.size_bytes > _LOOP_CHARS
            record = await asyncio.to_thread(write) if is_large else write()
            return _Decision(record=record, outcome=assembled.bundle.status, usage=assembled.usage)
        except Rejected as refusal:
            return self._reject(received, key, refusal)
        except NOT_DEFECTS:
            raise
        except BaseException as error:  # noqa: BLE001 - a panic in an extension is no Exception
            found = defect(error)
            # The kind and the place, without the message: it may quote the prompt. The dead letter has all.
            _log.error(
                "request.failed", kind=type(error).__name__, place=found.place, request_id=key.request_id
            )
            return self._reject(received, key, found.refusal, trace_text=found.traceback)

    def _reject(
        self, received: Received, key: OutcomeKey, refusal: Rejected, *, trace_text: str | None = None
    ) -> _Decision:
        decoded = received.decoded
        record = rejection_outcome(
            refusal,
            key=key,
            request_digest=received.digest,
            as_of=received.as_of,
            timestamp=self._now(),
            request=decoded.request if decoded else None,
            notes=decoded.notes if decoded else None,
            traceback=trace_text,
        )
        return _Decision(record=record, outcome="rejected", code=refusal.code)

    # --- Settling --------------------------------------------------------------------------------

    async def _settle(self, received: Received, key: OutcomeKey, decision: _Decision) -> Handled:
        """Put the outcome, and publish what the store holds then."""
        await self._failpoints.reach("outcome.before_store", received.text)
        with self._telemetry.leaf(SPAN_STORE):
            held = await self._store.put_if_absent(key, decision.record)
        if held is not decision.record:
            return await self._repeat(received, held)
        await self._failpoints.reach("outcome.after_store", received.text)
        refusal = await self._replies.outcome(received, decision.record)
        self._conclude(decision)
        return Handled(code=refusal.code if refusal else None)

    async def _repeat(self, received: Received, held: OutcomeRecord | Tombstone) -> Handled:
        """Answer a request that has an outcome already."""
        if not received.is_repeat_of(held):
            return await self._refuse(
                received, RequestIdReused("this request id came before with another body")
            )
        if isinstance(held, Tombstone):
            return await self._refuse(received, _forgotten())
        await self._replies.outcome(received, held)
        note_outcome("republished", "")
        self._telemetry.outcomes_republished.inc()
        return Handled()

    async def _answer_without_outcome(self, received: Received) -> Handled:
        if self._is_forgotten(received.record):
            return await self._refuse(received, _forgotten())
        return await self._refuse(received, received.reason)

    async def _refuse(self, received: Received, error: Rejected) -> Handled:
        await self._replies.without_outcome(received, error)
        note_outcome("rejected", error.code)
        return Handled(code=error.code)

    def _conclude(self, decision: _Decision) -> None:
        note_outcome(decision.outcome, decision.code)
        self._conclusions.add(
            decision.outcome, code=decision.code, bundle=decision.usage, line=decision.record.usage
        )


def _forgotten() -> Expired:
    return Expired("the request is older than the outcomes that are remembered")
