"""One call from request to result, the same for every door: answer it, and note that it was answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from schemas.tools import ToolRequest, ToolResult
from worker.ports import Scope
from worker.retrieval.recording import call_records
from worker.retrieval.toolbox import ToolAnswer
from worker.state.writing import StateWriter


class Tools(Protocol):
    """Serves calls, as `worker.retrieval.toolbox.Toolbox` does."""

    async def call(
        self,
        scope: Scope,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        budget_tokens: int | None = None,
        request_id: str | None = None,
    ) -> ToolAnswer:
        """What the tool says; an error is an answer, too."""
        ...


async def serve_call(
    request: ToolRequest, *, tools: Tools, writer: StateWriter, answered_at: datetime
) -> ToolResult:
    """The result of the call; that there was a content is durable when this returns.

    Raises StoreUnavailable where that cannot be noted.
    """
    scope = Scope(project_id=request.project_id, thread_id=request.thread_id)
    answer = await tools.call(
        scope,
        request.tool,
        request.arguments,
        budget_tokens=request.budget_tokens,
        request_id=request.request_id,
    )
    if answer.error is None:
        notes = call_records(
            scope,
            request_id=request.request_id,
            tool=request.tool,
            shown=answer.texts,
            answered_at=answered_at,
        )
        await asyncio.gather(*(writer.apply(request.project_id, note) for note in notes))
    return ToolResult(
        call_id=request.call_id,
        project_id=request.project_id,
        tool=request.tool,
        ok=answer.error is None,
        content=answer.content,
        error=answer.error,
        tokens=answer.tokens,
        truncated=answer.is_truncated,
        next_offset=answer.next_offset,
        receipt=answer.receipt,
    )
