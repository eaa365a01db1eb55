"""What happens to one agent's answer, from the record to its last acknowledged publication.

`worker.answering.judging` comes to what is published, and stores it before this publishes any of it: the
verdict, then the usage event of the bundle in it, then the escalation. So whatever is killed in between, a
redelivery publishes the same bytes; what was out already comes again, and nothing is counted twice.

There is no outcome under the answer's own id: an answer that cannot be read, or is met by a defect, is a dead
letter and a rejection with its id as `request_id`. It may be sent again, under the same id.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime
from typing import Protocol

from opentelemetry.trace import SpanKind

from schemas.answers import AgentAnswer
from schemas.times import time_of_record
from worker.answering.verdicts import Settled
from worker.kafka.answer_received import ReceivedAnswer, receive_answer
from worker.kafka.headers import RequestHeaders
from worker.kafka.plain_handler import Door, PlainHandler
from worker.kafka.records import InboundRecord
from worker.kafka.spans import note_ids, note_outcome
from worker.telemetry import SPAN_ANSWER, SPAN_PUBLISH


class Settle(Protocol):
    """Comes to what is published for an answer."""

    def __call__(self, answer: AgentAnswer, *, answered_at: datetime) -> Awaitable[Settled]:
        """As `worker.answering.judging.Answers.settle`."""
        ...


class ResponseHandler(PlainHandler[ReceivedAnswer, Settled]):
    """Answers agents' answers by verdicts; one per worker."""

    KIND = "answer"
    SPAN = SPAN_ANSWER
    RECEIVED = ReceivedAnswer

    def __init__(self, door: Door, *, settle: Settle, escalations: str) -> None:
        """Replies go to the topic of verdicts; `escalations` is the topic where people are asked."""
        super().__init__(door)
        self._settle = settle
        self._escalations = escalations

    async def _receive(self, record: InboundRecord, headers: RequestHeaders) -> ReceivedAnswer:
        return await receive_answer(record, headers, self._limits)

    async def _work(self, received: ReceivedAnswer) -> Settled:
        read = received.message
        self._telemetry.count_notes(read.notes)
        note_ids(read.answer.project_id, read.answer.request_id)
        return await self._settle(read.answer, answered_at=time_of_record(received.record.timestamp_ms))

    async def _publish(self, received: ReceivedAnswer, done: Settled) -> None:
        answer_id = received.message.answer.answer_id
        with self._telemetry.step(SPAN_PUBLISH, kind=SpanKind.PRODUCER):
            await self._replies.reply(received, done.verdict, kind="verdict", refusal=None)
            await self._failpoints.reach("answer.before_usage", answer_id)
            if done.usage is not None:
                await self._replies.usage(received, done.usage)
            await self._failpoints.reach("answer.before_escalation", answer_id)
            if done.escalation is not None:
                await self._replies.beside(
                    received, done.escalation, topic=self._escalations, kind="escalation"
                )
            await self._failpoints.reach("answer.before_done", answer_id)
        note_outcome(done.kind, done.code)
        self._telemetry.verdicts.labels("repeated" if done.is_repeat else done.kind, done.code).inc()
