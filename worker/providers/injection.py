"""Graph context for one task, put into the payload of whoever runs agents without the assembler.

What goes in is the pack that the graph layer would show: selected and packed, never an ad-hoc query. Where
the graph cannot be had, the payload gets an empty pack that says why, so that no reader takes silence for
"there is nothing".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import structlog

from schemas.fragments import RelevanceTier
from schemas.request import AssemblyRequest
from worker.errors import GraphBehind, Unavailable
from worker.graph.pack_file import parse_pack
from worker.graph.request import analyze_request
from worker.graph.static_map import static_map_tokens
from worker.ports import RequestFrame, Scope, Subject, TokenCounter
from worker.providers.graph_reader import Answered, GraphReader
from worker.providers.threads import SourceThreads

log = structlog.get_logger()

INJECTED_TOKENS: Final = 4_000
"""The budget where the caller names none: what older injectors had."""
_MAPS_KEPT: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionRecord:
    """What one injection cost and held, for measurement."""

    project_id: str
    subject: str
    task_type: str
    snapshot_id: str
    """Empty where the graph could not be had."""
    budget_tokens: int
    spent_tokens: int
    """Of the whole pack, its front matter and plain text included."""
    static_map_tokens: int | None
    """What a map of the whole project would have taken instead; None where the graph is not at hand whole."""
    sections: tuple[str, ...]
    """Node ids, in the order of the pack."""
    tiers: Mapping[RelevanceTier, int] | None
    """Candidates by relevance tier; None where relevance is off."""
    is_cache_hit: bool
    reason: str = ""
    """Why the pack is empty for want of a graph, or what it lacks: as the status of a graph layer has it.

    Empty where nothing is wanting. The pack says it in words.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """The payload with its context, and the record."""

    payload: dict[str, Any]
    record: InjectionRecord


class GraphInjector:
    """Injects what the graph says to a task; one per worker, for one event loop."""

    def __init__(
        self,
        reader: GraphReader,
        *,
        subjects: Mapping[str, Subject],
        counter: TokenCounter,
        on_injected: Callable[[InjectionRecord], object] = lambda _: None,
        threads: SourceThreads | None = None,
    ) -> None:
        """Ask `reader`, count with `counter`, and tell `on_injected` of each injection.

        Maps of whole projects are counted in `threads`, its own where none are given.
        """
        self._reader = reader
        self._subjects = subjects
        self._counter = counter
        self._on_injected = on_injected
        self._threads = threads or SourceThreads()
        self._maps: OrderedDict[str, int] = OrderedDict()

    def should_inject(self, subject: str) -> bool:
        """Whether this kind of work gets graph context; unknown kinds get none."""
        row = self._subjects.get(subject)
        return row is not None and row.inject

    async def inject_for_task(
        self, request: AssemblyRequest, *, as_of: datetime, budget_tokens: int = INJECTED_TOKENS
    ) -> Injection:
        """A copy of the request's payload with the pack for its task in `graph_context`.

        The rest of the payload, `task_context` too, stays as it is. A pack that stands inline in the request
        is left to whoever assembles. Raises UnknownSubject.
        """
        frame = analyze_request(request, subjects=self._subjects, as_of=as_of)
        scope = Scope(project_id=request.project_id, thread_id=request.thread_id)
        answered: Answered | None = None
        try:
            answered = await self._reader.answer(
                frame, scope, budget_tokens=budget_tokens, counter=self._counter, layout="file"
            )
        except Unavailable as error:
            reason = "graph_behind" if isinstance(error, GraphBehind) else "graph_unavailable"
            log.warning("injection.unavailable", project_id=request.project_id, cause=str(error))
        else:
            reason = _lack(answered) if answered else "not_configured"
        pack = answered.answer.pack if answered else f"(no graph context: {reason})"
        record = InjectionRecord(
            project_id=request.project_id,
            subject=request.subject,
            task_type=frame.task_type,
            snapshot_id=answered.answer.snapshot_id if answered else "",
            budget_tokens=budget_tokens,
            spent_tokens=self._counter.count(pack),
            static_map_tokens=await self._map_tokens(frame, scope) if answered else None,
            sections=_sections(pack, request.project_id) if answered else (),
            tiers=answered.answer.tiers if answered else None,
            is_cache_hit=answered is not None and answered.is_hit,
            reason=reason,
        )
        self._on_injected(record)
        payload = request.payload.model_dump(mode="json", exclude_unset=True)
        return Injection(payload={**payload, "graph_context": pack}, record=record)

    async def _map_tokens(self, frame: RequestFrame, scope: Scope) -> int | None:
        """Of the project's static map, counted once a snapshot; None where only a part of it is held."""
        try:
            snapshot = await self._reader.snapshot(frame, scope, roots=())
        except Unavailable:
            return None
        if snapshot is None or snapshot.is_part:
            return None
        key = snapshot.head.snapshot_id
        if key not in self._maps:
            self._maps[key] = await self._threads.run(lambda: static_map_tokens(snapshot, self._counter))
        while len(self._maps) > _MAPS_KEPT:
            self._maps.popitem(last=False)
        return self._maps[key]


def _lack(answered: Answered) -> str:
    """The reason of a graph layer that shows the same answer."""
    answer = answered.answer
    if answer.unindexed:
        return "not_indexed"
    if answered.is_state_missing or answer.is_part:
        return "section_error"
    return "relevance_unavailable" if answer.is_relevance_missing else ""


def _sections(pack: str, project_id: str) -> tuple[str, ...]:
    sections = parse_pack(pack, project_id=project_id).sections
    return tuple(section.node.node_id for section in sections if section.node is not None)
