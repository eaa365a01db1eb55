"""What happens to one call of a tool, from the record to the acknowledged reply.

A tool changes nothing but the note that it was answered, which is the same however often it is written. So no
outcome is stored: a call that is delivered again is answered again, from what is known then. The note is
durable before the reply is published, so whoever has read the reply can rely on it.

A call that can be read is answered by a result, whatever it asks for. One that cannot is a dead letter and a
rejection, with the id of the call as `request_id`.
"""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.trace import SpanKind

from schemas.bundle import to_wire
from schemas.times import time_of_record
from schemas.tools import ToolRequest, ToolResult
from worker import semconv
from worker.kafka.headers import RequestHeaders
from worker.kafka.plain_handler import Door, PlainHandler
from worker.kafka.records import InboundRecord
from worker.kafka.spans import note_ids, note_outcome
from worker.kafka.tool_received import ReceivedCall, receive_call
from worker.retrieval.serving import Tools, serve_call
from worker.state.writing import StateWriter
from worker.telemetry import SPAN_PUBLISH, SPAN_TOOL


class ToolHandler(PlainHandler[ReceivedCall, ToolResult]):
    """Answers calls; one per worker."""

    KIND = "tool"
    SPAN = SPAN_TOOL
    RECEIVED = ReceivedCall

    def __init__(self, door: Door, *, tools: Tools, writer: StateWriter) -> None:
        """Replies go to the topic of results; `writer` notes what was called."""
        super().__init__(door)
        self._tools = tools
        self._writer = writer

    async def _receive(self, record: InboundRecord, headers: RequestHeaders) -> ReceivedCall:
        return await receive_call(record, headers, self._limits)

    async def _work(self, received: ReceivedCall) -> ToolResult:
        call = received.message
        self._telemetry.count_notes(call.notes)
        _mark_span(call.request)
        await self._failpoints.reach("tool.before_call", call.request.call_id)
        result = await serve_call(
            call.request,
            tools=self._tools,
            writer=self._writer,
            answered_at=time_of_record(received.record.timestamp_ms),
        )
        await self._failpoints.reach("tool.before_reply", call.request.call_id)
        return result

    async def _publish(self, received: ReceivedCall, done: ToolResult) -> None:
        with self._telemetry.step(SPAN_PUBLISH, kind=SpanKind.PRODUCER):
            await self._replies.reply(received, to_wire(done), kind="tool_result", refusal=None)
        outcome = "failed" if done.error else "answered"
        note_outcome(outcome, done.error.code if done.error else "")
        self._telemetry.tool_calls.labels(outcome, done.error.code if done.error else "").inc()


def _mark_span(request: ToolRequest) -> None:
    note_ids(request.project_id)
    span = trace.get_current_span()
    if span.is_recording():
        span.set_attribute(semconv.GEN_AI_OPERATION_NAME, "execute_tool")
        span.set_attribute(semconv.GEN_AI_TOOL_NAME, request.tool)
        span.set_attribute(semconv.GEN_AI_TOOL_CALL_ID, request.call_id)
