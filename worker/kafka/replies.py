"""What answers a record: dead letter, reply, usage event, each after the acknowledgement of the one before.

A dead letter comes before its reply, so whoever reads the reply can find it; a usage event comes after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from opentelemetry import trace

from schemas.bundle import to_wire
from worker.errors import Rejected
from worker.failpoints import Failpoints
from worker.kafka.dead_letters import dead_letter
from worker.kafka.headers import reply_headers
from worker.kafka.publisher import RecordTooLarge
from worker.kafka.received import Received
from worker.kafka.records import OutboundRecord, Publisher
from worker.outcomes import Refusal, refusal_of, rejection_reply, stored_refusal
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
        self, publisher: Publisher, routes: Routes, *, telemetry: Telemetry, failpoints: Failpoints
    ) -> None:
        """Publish by this publisher along these routes."""
        self._publisher = publisher
        self._routes = routes
        self._telemetry = telemetry
        self._failpoints = failpoints

    async def outcome(self, received: Received, held: OutcomeRecord) -> Refusal | None:
        """Publish a stored outcome; give back what it refuses, None for a bundle."""
        refusal = stored_refusal(held)
        with self._telemetry.step(SPAN_PUBLISH):
            if refusal is not None and refusal.is_dead_letter:
                await self.letter(received, refusal)
            kind = "rejection" if refusal else "bundle" if held.bundle is None else "bundle_ref"
            await self._reply(received, held.reply, kind=kind)
            await self._failpoints.reach("reply.before_usage", received.text)
            if held.usage is not None and received.project_id is not None:
                await self._publisher.publish(
                    OutboundRecord(
                        topic=self._routes.usage,
                        key=received.project_id.encode(),
                        value=held.usage,
                        headers=_headers(received, kind="usage"),
                    )
                )
            await self._failpoints.reach("usage.before_done", received.text)
        return refusal

    async def without_outcome(self, received: Received, error: Rejected) -> None:
        """Reply from the record and the error alone, after the dead letter of a record that is broken itself.

        No usage event: nothing was stored that it could be the event of.
        """
        with self._telemetry.step(SPAN_PUBLISH):
            own = received.refusal
            if own is not None and own.is_dead_letter:
                await self.letter(received, refusal_of(own, traceback=received.traceback))
            reply = rejection_reply(error, request_id=received.request_id, project_id=received.project_id)
            await self._reply(received, to_wire(reply), kind="rejection")
        self._telemetry.outcomes.labels("rejected", error.code).inc()

    async def letter(self, received: Received, refusal: Refusal) -> None:
        """Publish the record as a dead letter."""
        topic, record = self._routes.dead_letters, received.record
        try:
            await self._publisher.publish(dead_letter(record, refusal, topic=topic))
        except RecordTooLarge as error:
            # Better a dead letter that says where the record lies than a partition that never goes on.
            _log.warning(
                "dead_letter.cut", error=str(error), partition=record.partition, offset=record.offset
            )
            await self._publisher.publish(dead_letter(record, refusal, topic=topic, is_cut=True))
        self._telemetry.dead_letters.labels(refusal.code).inc()

    async def _reply(self, received: Received, value: bytes, *, kind: str) -> None:
        await self._publisher.publish(
            OutboundRecord(
                topic=received.headers.reply_to or self._routes.bundles,
                key=received.record.key,
                value=value,
                headers=_headers(received, kind=kind),
            )
        )


def _headers(received: Received, *, kind: str) -> tuple[tuple[str, bytes], ...]:
    return reply_headers(received.headers, kind=kind, span=trace.get_current_span())
