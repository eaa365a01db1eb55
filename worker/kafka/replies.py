"""What answers a record: dead letter, reply, usage event, each after the acknowledgement of the one before.

A dead letter comes before its reply, so whoever reads the reply can find it; a usage event comes after it.

No record waits for ever for one that cannot be published. A dead letter that is too large leaves out the
body; a bundle that is too large for its topic becomes a dead letter and a rejection, `too_large`; a rejection
loses its details; what is still too large then is left out, as a usage event is. A reply to a foreign topic
that does not exist, or may not be written to, goes to the bundles topic. A long key is replaced. All of that
depends on the record, the stored outcome and the cluster alone, so that a redelivery comes to the same; it is
logged and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import structlog
from opentelemetry import trace
from opentelemetry.trace import SpanKind
from prometheus_client import Counter

from schemas.bundle import to_wire
from worker.errors import Rejected, TooLarge
from worker.failpoints import Failpoints
from worker.kafka.dead_letters import dead_letter
from worker.kafka.headers import MAX_ECHOED_BYTES, reply_headers
from worker.kafka.received import Received
from worker.kafka.records import OutboundRecord, Publisher, RecordTooLarge, TopicUnusable
from worker.kafka.spans import note_sending
from worker.outcomes import Refusal, refusal_of, rejection_reply, shortened_reply, stored_refusal
from worker.ports import OutcomeRecord
from worker.telemetry import SPAN_PUBLISH, Telemetry

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Where to publish."""

    bundles: str
    """Also the reply topic of requests that name none, or one that is not allowed."""
    usage: str
    dead_letters: str
    reply_topics: frozenset[str] = frozenset()
    """What a `reply_to` header may name besides `bundles`."""

    @property
    def allowed_reply_topics(self) -> frozenset[str]:
        """Every topic that a reply may go to."""
        return self.reply_topics | {self.bundles}


class Replies:
    """Publishes answers; every method returns when its last record was acknowledged."""

    def __init__(
        self,
        publisher: Publisher,
        routes: Routes,
        *,
        telemetry: Telemetry,
        failpoints: Failpoints,
        ended: Counter | None = None,
    ) -> None:
        """Publish by this publisher along these routes.

        `ended` counts what is refused without an outcome, by outcome and code; that of requests where absent.
        """
        self._publisher = publisher
        self._routes = routes
        self._telemetry = telemetry
        self._failpoints = failpoints
        self._ended = telemetry.outcomes if ended is None else ended

    async def outcome(self, received: Received, held: OutcomeRecord) -> Refusal | None:
        """Publish a stored outcome; give back what it refuses, None for a bundle."""
        refusal = stored_refusal(held)
        with self._telemetry.step(SPAN_PUBLISH, kind=SpanKind.PRODUCER):
            kind = "rejection" if refusal else "bundle" if held.bundle is None else "bundle_ref"
            await self.reply(received, held.reply, kind=kind, refusal=refusal)
            await self._failpoints.reach("reply.before_usage", received.text)
            if held.usage is not None:
                await self.usage(received, held.usage)
            await self._failpoints.reach("usage.before_done", received.text)
        return refusal

    async def reply(self, received: Received, value: bytes, *, kind: str, refusal: Refusal | None) -> None:
        """Publish a stored reply, after the dead letter where it refuses a record that is kept as one."""
        if refusal is not None and refusal.is_dead_letter:
            await self.letter(received, refusal)
        try:
            await self._reply(received, value, kind=kind)
        except RecordTooLarge as error:
            await self._reply_shorter(received, value, refusal, error, kind=kind)

    async def usage(self, received: Received, value: bytes) -> None:
        """Publish a stored usage event; one that its topic does not take is left out."""
        await self.beside(received, value, topic=self._routes.usage, kind="usage")

    async def beside(self, received: Received, value: bytes, *, topic: str, kind: str) -> None:
        """Publish what goes beside the reply, keyed by its project; what its topic does not take is left out.

        A record without a project has nothing beside its reply.
        """
        if received.project_id is None:
            return
        record = OutboundRecord(
            topic=topic,
            key=received.project_id.encode(),
            value=value,
            headers=_headers(received, kind=kind),
        )
        await self._publish_if_it_fits(record, kind=kind)

    async def without_outcome(self, received: Received, error: Rejected) -> None:
        """Reply from the record and the error alone, after the dead letter of a record that is broken itself.

        No usage event: nothing was stored that it could be the event of.
        """
        with self._telemetry.step(SPAN_PUBLISH, kind=SpanKind.PRODUCER):
            own = received.refusal
            if own is not None and own.is_dead_letter:
                await self.letter(received, refusal_of(own, traceback=received.traceback))
            value = to_wire(
                rejection_reply(error, request_id=received.request_id, project_id=received.project_id)
            )
            try:
                await self._reply(received, value, kind="rejection")
            except RecordTooLarge as too_large:
                await self._reply_shorter(received, value, refusal_of(error), too_large, kind="rejection")
        self._ended.labels("rejected", error.code).inc()

    async def letter(self, received: Received, refusal: Refusal) -> None:
        """Publish the record as a dead letter."""
        topic, record = self._routes.dead_letters, received.record
        try:
            await self._publisher.publish(dead_letter(record, refusal, topic=topic))
        except RecordTooLarge as error:
            # Better a dead letter that says where the record lies than a partition that never goes on.
            self._note(received, "dead_letter", "cut", error)
            await self._publish_if_it_fits(
                dead_letter(record, refusal, topic=topic, is_cut=True), kind="dead_letter"
            )
        self._telemetry.dead_letters.labels(refusal.code).inc()

    # --- Parts -----------------------------------------------------------------------------------

    async def _reply(self, received: Received, value: bytes, *, kind: str) -> None:
        """Publish a reply where it was asked for, else on the bundles topic. Raises RecordTooLarge."""
        asked = received.headers.reply_to or self._routes.bundles
        reply = OutboundRecord(
            topic=asked,
            key=self._reply_key(received),
            value=value,
            headers=_headers(received, kind=kind),
            is_topic_foreign=asked != self._routes.bundles,
        )
        note_sending(reply)
        try:
            await self._publisher.publish(reply)
        except TopicUnusable as error:
            self._note(received, kind, "other_topic", error)
            await self._publisher.publish(replace(reply, topic=self._routes.bundles, is_topic_foreign=False))

    async def _reply_shorter(
        self, received: Received, value: bytes, refusal: Refusal | None, error: RecordTooLarge, *, kind: str
    ) -> None:
        """Say in a few hundred bytes what a reply that does not fit has said, or that it does not fit."""
        self._note(received, kind, "shortened", error)
        if refusal is None:
            unpublished = TooLarge(
                "the reply exceeds what its topic takes", size_bytes=len(value), topic=error.topic
            )
            # The request is kept: it can be redriven when the topic takes more.
            await self.letter(received, refusal_of(unpublished))
            reply = rejection_reply(
                unpublished, request_id=received.request_id, project_id=received.project_id
            )
        else:
            reply = shortened_reply(value)
        try:
            await self._reply(received, to_wire(reply), kind="rejection")
        except RecordTooLarge as still:
            self._note(received, "rejection", "left_out", still)

    async def _publish_if_it_fits(self, record: OutboundRecord, *, kind: str) -> None:
        try:
            await self._publisher.publish(record)
        except RecordTooLarge as error:
            _log.error("publication.left_out", kind=kind, error=str(error))
            self._telemetry.altered_publications.labels(kind, "left_out").inc()

    def _reply_key(self, received: Received) -> bytes | None:
        key = received.record.key
        if key is None or len(key) <= MAX_ECHOED_BYTES:
            return key
        self._telemetry.altered_publications.labels("reply", "other_key").inc()
        # What the contract asks callers to key by; a key that is no such thing orders nothing.
        return None if received.project_id is None else received.project_id.encode()

    def _note(self, received: Received, kind: str, change: str, error: Exception) -> None:
        record = received.record
        _log.warning(
            "publication.altered",
            kind=kind,
            change=change,
            error=str(error),
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
        )
        self._telemetry.altered_publications.labels(kind, change).inc()


def _headers(received: Received, *, kind: str) -> tuple[tuple[str, bytes], ...]:
    return reply_headers(received.headers, kind=kind, span=trace.get_current_span())
