"""That a tool was answered, as an event of the thread's state: what an answer's required tools are judged by.

One event a thread, request and tool, under an id derived from them, whatever was asked of it: a call that is
delivered twice, or repeated, changes nothing, and the state grows by the tools and not by the calls. Calls
that failed are not recorded, nor those that name neither thread nor request: nothing could ask for them.
"""

from __future__ import annotations

from datetime import datetime

from schemas.state import ToolCall, ToolCallEvent
from schemas.tools import tool_event_id
from worker.ports import Scope
from worker.state.records import StateRecord, to_record


def tool_record(
    scope: Scope, *, request_id: str | None, tool: str, answered_at: datetime
) -> StateRecord | None:
    """The event of an answered call, without a time of its own: the earliest record's counts."""
    if scope.thread_id is None and request_id is None:
        return None
    event = ToolCallEvent(
        event="tool_call",
        event_id=tool_event_id(tool=tool, thread_id=scope.thread_id, request_id=request_id),
        project_id=scope.project_id,
        thread_id=scope.thread_id,
        body=ToolCall(tool=tool),
    )
    return to_record(event, record_timestamp=answered_at)
