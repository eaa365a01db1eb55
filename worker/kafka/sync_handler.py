"""What happens to one sync, from the record to the acknowledged reply.

The graph is changed before the outcome is stored, and the outcome before it is published. So a crash leaves,
the offset being uncommitted each time:

1. before the change: the graph that was there, since a change is applied as a whole or not at all.
2. after the change, before the put: the next attempt indexes the same files again, finds nothing to change,
   and comes to the same result.
3. after the put: the next attempt publishes the stored outcome, byte for byte, and indexes nothing.
4. a worker that was thought dead and wakes up: it finds its sync settled, or the graph changed, before it can
   change anything itself, and begins again with the stored outcome.

Syncs of one project must come in their order, or an older file would replace a newer one. They share a
partition, and the route takes one record at a time: a sync that waits for a store holds up those behind it,
and overtakes none.

There are no usage events: nothing of a prompt is spent. A rejection bears the id of the sync as `request_id`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

import structlog
from opentelemetry.trace import SpanKind

from schemas.bundle import to_wire
from schemas.sync import SyncRequest
from schemas.times import time_of_record
from worker.code.indexing import IndexReport
from worker.code.syncing import IsSettled, Overtaken, sync_result
from worker.errors import (
    Expired,
    Rejected,
    RequestIdReused,
    StoreUnavailable,
)
from worker.failpoints import Failpoints
from worker.kafka.burying import NOT_DEFECTS, bury
from worker.kafka.headers import RequestHeaders
from worker.kafka.received import BodyLimits, defect
from worker.kafka.records import Handled, InboundRecord, Publisher
from worker.kafka.replies import Replies, Routes
from worker.kafka.spans import note_ids, note_outcome, record_span
from worker.kafka.sync_received import ReceivedSync, receive_sync
from worker.logs import bind_ids
from worker.outcomes import Refusal, read_refusal, refusal_of, rejection_reply, reply_outcome
from worker.ports import OutcomeKey, OutcomeRecord, OutcomeStore, Tombstone
from worker.telemetry import SPAN_DECODE, SPAN_INDEX, SPAN_PUBLISH, SPAN_STORE, SPAN_SYNC, Telemetry

_log = structlog.get_logger(__name__)

_REJECTION_HEAD: Final = b'"kind":"rejection"'
_HEAD_BYTES: Final = 64


class Syncs(Protocol):
    """Carries one sync out."""

    async def sync(self, request: SyncRequest, *, is_settled: IsSettled) -> IndexReport:
        """Change the graph. Raises Rejected, StoreUnavailable or Overtaken, with the graph as it was."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """The outcome that one attempt came to, before it is stored."""

    record: OutcomeRecord
    outcome: str
    refusal: Refusal | None = None


class SyncHandler:
    """Serves syncs, as `worker.kafka.records.RecordHandler` says; one per worker.

    Its route must take one record at a time.
    """

    def __init__(
        self,
        *,
        syncs: Syncs,
        store: OutcomeStore,
        publisher: Publisher,
        routes: Routes,
        limits: BodyLimits,
        forget_seconds: float,
        telemetry: Telemetry,
        failpoints: Failpoints,
        now: Callable[[], datetime],
    ) -> None:
        """`routes.bundles` is where results go; `forget_seconds` is the outcome store's own.

        `now` gives the wall clock with its zone: it says which records are too old.
        """
        self._syncs = syncs
        self._store = store
        self._replies = Replies(
            publisher, routes, telemetry=telemetry, failpoints=failpoints, ended=telemetry.syncs
        )
        self._reply_topics = routes.allowed_reply_topics
        self._limits = limits
        self._forget = timedelta(seconds=forget_seconds)
        self._telemetry = telemetry
        self._failpoints = failpoints
        self._now = now

    async def handle(self, record: InboundRecord) -> Handled:
        """Everything up to the acknowledged reply; idempotent.

        Raises StoreUnavailable, before anything was published, where a store or the graph's is away.
        """
        with self._sync_span(record) as headers:
            received = await self._receive(record, headers)
            key = received.key
            if key is None:
                return await self._refuse(received, received.reason)
            if self._is_forgotten(record):
                return await self._refuse(received, _forgotten())
            with self._telemetry.leaf(SPAN_STORE):
                held = await self._store.get(key)
            if held is not None:
                return await self._repeat(received, held)
            return await self._settle(received, key, await self._decide(received, key))

    async def bury(
        self, record: InboundRecord, *, attempts: int, cause: BaseException | None = None
    ) -> Handled:
        """Settle a record that was tried in vain, as `worker.kafka.burying` says.

        An outcome that an earlier attempt stored stays what it is and is published; the record is a dead
        letter all the same.
        """
        with self._sync_span(record) as headers:
            return await bury(
                record,
                headers,
                ReceivedSync,
                attempts=attempts,
                cause=cause,
                settle=self._bury,
                refuse=self._refuse,
            )

    async def _bury(self, received: ReceivedSync, error: Rejected) -> Handled:
        key = received.key
        if key is None:
            return await self._refuse(received, error)
        if self._is_forgotten(received.record):
            return await self._refuse(received, _forgotten())
        decision = self._reject(received, error, trace_text=received.traceback)
        held = await self._store.put_if_absent(key, decision.record)
        if isinstance(held, Tombstone):
            return await self._refuse(received, _forgotten())
        stored = _refusal_in(held)
        if stored is None or stored.code != error.code:
            await self._replies.letter(received, refusal_of(error, traceback=received.traceback))
        await self._publish(received, held)
        if held is decision.record:
            self._telemetry.syncs.labels("rejected", error.code).inc()
        return Handled(code=error.code)

    # --- Reading ---------------------------------------------------------------------------------

    def _sync_span(self, record: InboundRecord) -> AbstractContextManager[RequestHeaders]:
        return record_span(
            record, SPAN_SYNC, kind="sync", allowed=self._reply_topics, telemetry=self._telemetry
        )

    async def _receive(self, record: InboundRecord, headers: RequestHeaders) -> ReceivedSync:
        await self._failpoints.reach("decode", record.value or b"")
        with self._telemetry.leaf(SPAN_DECODE):
            received = await receive_sync(record, headers, self._limits)
        if received.sync is not None:
            self._telemetry.count_notes(received.sync.notes)
        if received.project_id is not None:
            note_ids(received.project_id)
        bind_ids(received.project_id, sync_id=received.request_id)
        return received

    def _is_forgotten(self, record: InboundRecord) -> bool:
        return self._now() - time_of_record(record.timestamp_ms) > self._forget

    # --- Deciding --------------------------------------------------------------------------------

    async def _decide(self, received: ReceivedSync, key: OutcomeKey) -> _Decision:
        """The outcome that this attempt comes to."""
        sync = received.sync
        if sync is None or received.refusal is not None:
            return self._reject(received, received.reason, trace_text=received.traceback)
        request = sync.request

        async def is_settled() -> bool:
            return await self._store.get(key) is not None

        try:
            await self._failpoints.reach("sync.before_index", received.text)
            with self._telemetry.step(SPAN_INDEX):
                report = await self._syncs.sync(request, is_settled=is_settled)
            _say(report)
            reply = to_wire(sync_result(request, report))
            return _Decision(
                record=reply_outcome(reply, request_digest=sync.digest, as_of=received.as_of),
                outcome="indexed" if report.is_changed else "unchanged",
            )
        except Rejected as refusal:
            return self._reject(received, refusal)
        except Overtaken as error:
            # The next attempt asks for the outcome first, and else computes from the graph as it is then.
            raise StoreUnavailable("graph", str(error)) from error
        except NOT_DEFECTS:
            raise
        except BaseException as error:  # noqa: BLE001 - a panic in an extension is no Exception
            found = defect(error)
            # The kind and the place, without the message: it may quote a file.
            _log.error("sync.failed", kind=type(error).__name__, place=found.place)
            return self._reject(received, found.refusal, trace_text=found.traceback)

    def _reject(self, received: ReceivedSync, error: Rejected, *, trace_text: str | None = None) -> _Decision:
        reply = rejection_reply(error, request_id=received.request_id, project_id=received.project_id)
        record = reply_outcome(
            to_wire(reply), request_digest=received.digest, as_of=received.as_of, traceback=trace_text
        )
        return _Decision(record=record, outcome="rejected", refusal=read_refusal(record))

    # --- Settling --------------------------------------------------------------------------------

    async def _settle(self, received: ReceivedSync, key: OutcomeKey, decision: _Decision) -> Handled:
        """Put the outcome, and publish what the store holds then."""
        await self._failpoints.reach("outcome.before_store", received.text)
        with self._telemetry.leaf(SPAN_STORE):
            held = await self._store.put_if_absent(key, decision.record)
        if held is not decision.record:
            return await self._repeat(received, held)
        await self._failpoints.reach("outcome.after_store", received.text)
        await self._publish(received, decision.record)
        code = decision.refusal.code if decision.refusal else None
        note_outcome(decision.outcome, code or "")
        self._telemetry.syncs.labels(decision.outcome, code or "").inc()
        return Handled(code=code)

    async def _repeat(self, received: ReceivedSync, held: OutcomeRecord | Tombstone) -> Handled:
        """Answer a sync that has an outcome already."""
        if not received.is_repeat_of(held):
            return await self._refuse(received, RequestIdReused("this sync id came before with another body"))
        if isinstance(held, Tombstone):
            return await self._refuse(received, _forgotten())
        await self._publish(received, held)
        self._telemetry.syncs.labels("repeated", "").inc()
        return Handled()

    async def _publish(self, received: ReceivedSync, held: OutcomeRecord) -> None:
        refusal = _refusal_in(held)
        kind = "sync_result" if refusal is None else "rejection"
        with self._telemetry.step(SPAN_PUBLISH, kind=SpanKind.PRODUCER):
            await self._replies.reply(received, held.reply, kind=kind, refusal=refusal)

    async def _refuse(self, received: ReceivedSync, error: Rejected) -> Handled:
        await self._replies.without_outcome(received, error)
        note_outcome("rejected", error.code)
        return Handled(code=error.code)


def _refusal_in(held: OutcomeRecord) -> Refusal | None:
    """Why a stored outcome is a rejection; None for a result."""
    # The kind stands before all that a caller could have written.
    return read_refusal(held) if _REJECTION_HEAD in held.reply[:_HEAD_BYTES] else None


def _say(report: IndexReport) -> None:
    _log.info(
        "sync.indexed",
        graph_version=report.graph_version,
        is_changed=report.is_changed,
        files_read=report.files_read,
        seconds=round(sum(report.seconds.values()), 3),
    )


def _forgotten() -> Expired:
    return Expired("the sync is older than the outcomes that are remembered")
