"""What the graph commands do, apart from how they speak to a person."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemas.codes import Ranking, Relevance, Requester, TaskType
from schemas.request import AssemblyRequest
from worker.budget.tokens import counter_for
from worker.errors import Unavailable
from worker.graph.pack_writer import PackHead, write_empty_pack
from worker.graph.packing import TextSizes
from worker.graph.selection import EmptyReason
from worker.ports import RequestFrame, Scope, Subject, TokenCounter
from worker.telemetry import Telemetry
from worker.wiring import Settings
from worker.wiring_graph import build_graph

_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOrder:
    """What a pack is asked for."""

    project_id: str
    task_type: TaskType
    target: str
    """A name, id, path, or free text."""
    budget_tokens: int
    encoding: str = "o200k_base"
    ranking: Ranking | None = None
    relevance: Relevance | None = None
    requester: Requester = "human"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackDelivery:
    """A pack file, and what stands in the way of a fuller one."""

    text: str
    reason: EmptyReason | None = None
    """Why it is empty, where it is."""
    unindexed: tuple[str, ...] = ()
    is_relevance_missing: bool = False


async def order_pack(settings: Settings, order: PackOrder) -> PackDelivery:
    """The pack. Where the graph is away or was never made, an empty one that says so.

    Raises ValueError for a budget that does not even hold the front matter.
    """
    counter = counter_for(order.encoding, safety_factor="1")
    delivery = await _deliver(settings, order, counter)
    least = counter.count(delivery.text)
    if least > order.budget_tokens:
        raise ValueError(f"the front matter alone takes {least} tokens, the budget is {order.budget_tokens}")
    return delivery


async def _deliver(settings: Settings, order: PackOrder, counter: TokenCounter) -> PackDelivery:
    request = AssemblyRequest(
        request_id="pack",
        project_id=order.project_id,
        volk="pack",
        subject="pack",
        user_message=order.target,
        requester=order.requester,
        task_type=order.task_type,
        ranking=order.ranking,
        relevance=order.relevance,
    )
    frame = RequestFrame(
        request=request,
        subject=Subject(name="pack", inject=True, semantic=True, task_type=order.task_type),
        task_type=order.task_type,
        as_of=_EPOCH,  # nothing in a pack is judged by a clock
    )
    reason: EmptyReason = "not_indexed"
    async with aclosing(build_graph(settings, Telemetry())) as graph:
        try:
            answered = await graph.reader.answer(
                frame,
                Scope(project_id=order.project_id, thread_id=None),
                budget_tokens=order.budget_tokens,
                counter=counter,
                layout="file",
            )
        except Unavailable:
            answered, reason = None, "graph_unavailable"
    if answered is not None:
        answer = answered.answer
        return PackDelivery(
            text=answer.pack,
            reason="nothing_found" if "\nreason: nothing_found\n" in answer.pack else None,
            unindexed=answer.unindexed,
            is_relevance_missing=answer.is_relevance_missing,
        )
    head = PackHead(
        project_id=order.project_id,
        requester=order.requester,
        encoding=counter.name,
        budget_tokens=order.budget_tokens,
    )
    return PackDelivery(
        text=write_empty_pack(head, reason=reason, sizes=TextSizes(counter)).text, reason=reason
    )
