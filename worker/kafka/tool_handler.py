"""What happens to one call of a tool, from the record to the acknowledged reply.

A tool changes nothing but the note that it was answered, which is the same however often it is written. So no
outcome is stored: a call that is delivered again is answered again, from what is known then. The note is
durable before the reply is published, so whoever has read the reply can rely on it.

A call that can be read is answered by a result, whatever it asks for. One that cannot is a dead letter and a
rejection, with the id of the call as `request_id`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

import structlog
from opentelemetry import trace

from schemas.bundle import to_wire
from schemas.tools import ToolRequest, ToolResult
from worker.errors import Rejected
from worker.failpoints import Failpoints
from worker.kafka.burying import NOT_DEFECTS, bury
from worker.kafka.headers import RequestHeaders
from worker.kafka.received import BodyLimits, defect, instant
from worker.kafka.records import Handled, InboundRecord
from worker.kafka.replies import Replies
from worker.kafka.spans import record_span
from worker.kafka.tool_received import ReceivedCall, receive_call
from worker.retrieval.serving import Tools, serve_call
from worker.state.writing import StateWriter
from worker.telemetry import SPAN_DECODE, SPAN_PUBLISH, SPAN_TOOL, Telemetry

_log = structlog.get_logger(__name__)


class ToolHandler:
    """Answers calls, as `worker.kafka.records.RecordHandler` says; one per worker."""

    def __init__(
        self,
        *,
        tools: Tools,
        writer: StateWriter,
        replies: Replies,
        reply_topics: frozenset[str],
        limits: BodyLimits,
        telemetry: Telemetry,
        failpoints: Failpoints,
    ) -> None:
        """`replies` go to the topic of results; `reply_topics` are those that a call may ask for."""
        self._tools = tools
        self._writer = writer
        self._replies = replies
        self._reply_topics = reply_topics
        self._limits = limits
        self._telemetry = telemetry
        self._failpoints = failpoints

    async def handle(self, record: InboundRecord) -> Handled:
        """Everything up to the acknowledged reply; idempotent. Raises StoreUnavailable before that."""
        with self._call_span(record) as headers:
            await self._failpoints.reach("decode", record.value or b"")
            with self._telemetry.step(SPAN_DECODE):
                received = await receive_call(record, headers, self._limits)
            call = received.call
            if call is None or received.refusal is not None:
                return await self._refuse(received, received.reason)
            self._telemetry.count_notes(call.notes)
            _mark_span(call.request)
            try:
                result = await self._result(call.request, received)
            except NOT_DEFECTS:
                raise
            except BaseException as error:  # noqa: BLE001 - a panic in an extension is no Exception
                found = defect(error)
                _log.error(
                    "tool.failed", kind=type(error).__name__, place=found.place, tool=call.request.tool
                )
                refused = replace(received, refusal=found.refusal, traceback=found.traceback)
                return await self._refuse(refused, found.refusal)
            with self._telemetry.step(SPAN_PUBLISH):
                await self._replies.reply(received, to_wire(result), kind="tool_result", refusal=None)
            outcome = "failed" if result.error else "answered"
            self._telemetry.tool_calls.labels(outcome, result.error.code if result.error else "").inc()
            return Handled()

    async def bury(
        self, record: InboundRecord, *, attempts: int, cause: BaseException | None = None
    ) -> Handled:
        """Settle a record that was tried in vain, as `worker.kafka.burying` says."""
        with self._call_span(record) as headers:
            return await bury(
                record,
                headers,
                ReceivedCall,
                attempts=attempts,
                cause=cause,
                settle=self._refuse,
                refuse=self._refuse,
            )

    async def _result(self, request: ToolRequest, received: ReceivedCall) -> ToolResult:
        await self._failpoints.reach("tool.before_call", request.call_id)
        result = await serve_call(
            request,
            tools=self._tools,
            writer=self._writer,
            answered_at=instant(received.record.timestamp_ms),
        )
        await self._failpoints.reach("tool.before_reply", request.call_id)
        return result

    async def _refuse(self, received: ReceivedCall, error: Rejected) -> Handled:
        await self._replies.without_outcome(received, error)
        return Handled(code=error.code)

    def _call_span(self, record: InboundRecord) -> AbstractContextManager[RequestHeaders]:
        return record_span(
            record, SPAN_TOOL, kind="tool", allowed=self._reply_topics, telemetry=self._telemetry
        )


def _mark_span(request: ToolRequest) -> None:
    span = trace.get_current_span()
    if span.is_recording():
        span.set_attribute("context.project_id", request.project_id)
        span.set_attribute("gen_ai.tool.name", request.tool)
