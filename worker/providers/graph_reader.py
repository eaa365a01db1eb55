"""Asks the graph on behalf of the layers that show it: one question a request, answered once.

The graph, semantic and task layers each ask under their own timeouts; who comes first sets the work going,
and it goes on should that one give up. Same question, same snapshot, same answer, so answers are kept; a
cache that is away is read around.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import structlog

from schemas.request import layer_timeout_ms
from worker.citations.labels import label_tokens
from worker.errors import GraphBehind, RelevanceUnavailable, StoreUnavailable, Unavailable
from worker.fusion.masking import mask_secrets
from worker.graph.answers import (
    PART_LINE,
    RELEVANCE_LINE,
    STATE_LINE,
    AnswerInputs,
    GraphAnswer,
    build_answer,
    decode_answer,
    encode_answer,
    unindexed_line,
    unindexed_paths,
)
from worker.graph.links import link_request
from worker.graph.model import NodeRef
from worker.graph.pack_writer import PackHead, write_pack
from worker.graph.packing import TextSizes
from worker.graph.question import GraphPolicy, Question, Trouble, ask
from worker.graph.refining import refine_order, relevance_facts
from worker.graph.relevance import Refinement, RelevanceEngine
from worker.graph.sections import Layout
from worker.graph.selection import Selection, led_by, select
from worker.graph.snapshot import Snapshot
from worker.ports import PackCache, RequestFrame, Scope, TokenCounter
from worker.providers.indexed_modules import ModuleIndex
from worker.providers.snapshots import Snapshots
from worker.providers.states import SIGNAL_KEEP, ThreadStates
from worker.providers.threads import SourceThreads
from worker.state.view import signals_of
from worker.telemetry import Telemetry

log = structlog.get_logger()

_WAIT_SHARE: Final = 0.8
"""Of a layer's timeout, what is spent on waiting for a graph version."""

LAYER_FRAME_TOKENS: Final = 48
"""About what marks and heading around a layer take, so that a pack that fills the layer is not cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An answer, and whether it was kept from before."""

    answer: GraphAnswer
    is_hit: bool
    is_state_missing: bool = False
    """Whether what fails in the thread could not be read, and so was not looked for."""


class GraphReader:
    """One per worker."""

    def __init__(
        self,
        snapshots: Snapshots,
        *,
        cache: PackCache,
        relevance: RelevanceEngine | None,
        policy: GraphPolicy,
        threads: SourceThreads,
        telemetry: Telemetry,
        modules: ModuleIndex | None = None,
        states: ThreadStates | None = None,
        signal_keep: timedelta = SIGNAL_KEEP,
    ) -> None:
        """Without a `relevance` engine, a request that asks for one gets the plain order, which says so.

        `states` say what failed within `signal_keep`; where they cannot be read, the graph is asked without.
        `modules` is for the layers that show source which the worker itself does not see.
        """
        self.modules = modules
        self._states = states
        self._signal_keep = signal_keep
        self._snapshots = snapshots
        self._cache = cache
        self._relevance = relevance
        self._policy = policy
        self._threads = threads
        self._telemetry = telemetry
        self._answering: dict[str, asyncio.Task[Answered]] = {}
        self._sizes: WeakKeyDictionary[Snapshot, dict[TokenCounter, TextSizes]] = WeakKeyDictionary()

    async def answer(
        self,
        frame: RequestFrame,
        scope: Scope,
        *,
        budget_tokens: int,
        counter: TokenCounter,
        layout: Layout = "prompt",
    ) -> Answered | None:
        """What the graph says to the request; None where the project was never indexed.

        `budget_tokens` is the graph layer's, or with the layout `file` what the whole pack may take.

        Raises StoreUnavailable; GraphBehind where the version that the request wants to see does not come in
        time.
        """
        trouble = await self._trouble(frame, scope)
        is_labelled = layout == "prompt" and "citations" in frame.request.include
        question = ask(
            frame,
            scope,
            budget_tokens=budget_tokens,
            layout=layout,
            encoding=counter.name,
            label_tokens=label_tokens(counter) if is_labelled else 0,
            million_tokens=counter.scale(1_000_000),
            policy=self._policy,
            trouble=trouble,
        )
        snapshot = await self._snapshot(frame, question)
        if snapshot is None:
            return None
        key = question.key(snapshot.head.snapshot_id, of_part=snapshot.is_part)
        task = self._answering.get(key)
        if task is None:
            task = asyncio.create_task(self._answer(question, snapshot, counter, key))
            self._answering[key] = task
            task.add_done_callback(lambda done: self._on_answered(key, done))
        answered = await asyncio.shield(task)
        return replace(answered, is_state_missing=question.is_state_missing)

    def _mask(self, question: Question) -> Callable[[str], str] | None:
        """What a pack's text goes through. One for a prompt is masked where all fragments are."""
        is_shown_as_it_is = question.project_id in self._policy.unmasked_projects
        return None if question.layout == "prompt" or is_shown_as_it_is else _masked

    async def _trouble(self, frame: RequestFrame, scope: Scope) -> Trouble | None:
        """What fails in the thread; None where that cannot be known now."""
        working = frame.request.working
        says_what_fails = working is not None and bool(working.failing_tests)
        if self._states is None or (says_what_fails and frame.task_type != "DEBUG"):
            return Trouble()
        try:
            reading = await self._states.of(frame, scope, layer="graph")
        except Unavailable as error:
            log.warning("graph.state_unknown", cause=str(error))
            return None
        signals = signals_of(*reading.events, as_of=frame.as_of, keep=self._signal_keep)
        return Trouble(failing_tests=signals.failing_tests, files=signals.files)

    async def close(self) -> None:
        """Stop what is under way."""
        for task in self._answering.values():
            task.cancel()
        if self._answering:
            await asyncio.wait(self._answering.values())

    async def snapshot(
        self, frame: RequestFrame, scope: Scope, *, roots: Sequence[NodeRef]
    ) -> Snapshot | None:
        """The graph that answers are made from, or what of it lies around `roots` where it is too large.

        None where the project was never indexed. Raises as `answer` does.
        """
        return await self._latest(frame, scope.project_id, roots, ())

    async def _snapshot(self, frame: RequestFrame, question: Question) -> Snapshot | None:
        return await self._latest(frame, question.project_id, question.roots(), question.names())

    async def _latest(
        self, frame: RequestFrame, project_id: str, roots: Sequence[NodeRef], names: Sequence[str]
    ) -> Snapshot | None:
        after = frame.request.after
        version = (after.graph_version or 0) if after is not None else 0
        latest = partial(self._snapshots.latest, project_id, roots=roots, names=names)
        if not version:
            return await latest()
        try:
            async with asyncio.timeout(_WAIT_SHARE * layer_timeout_ms(frame.request, "graph") / 1_000):
                return await latest(at_least_version=version)
        except TimeoutError:
            raise GraphBehind(version) from None

    def _on_answered(self, key: str, task: asyncio.Task[Answered]) -> None:
        del self._answering[key]
        if not task.cancelled():
            task.exception()  # whoever waited has raised it; nobody may have

    async def _answer(
        self, question: Question, snapshot: Snapshot, counter: TokenCounter, key: str
    ) -> Answered:
        kept = await self._kept(question.project_id, key)
        if kept is not None:
            self._telemetry.pack_cache.labels("hit").inc()
            return Answered(answer=kept, is_hit=True)
        self._telemetry.pack_cache.labels("miss").inc()
        sizes = self._sizes_for(snapshot, counter)
        selection = await self._threads.compute(lambda: _select(question, snapshot))
        selection, refinement = await self._refine(question, selection, snapshot)
        mask = self._mask(question)
        answer = await self._threads.compute(
            lambda: _write(question, selection, snapshot, sizes, refinement, mask=mask)
        )
        # The plain order for want of an engine is not what the question means; next time it may be there.
        if not answer.is_relevance_missing:
            await self._keep(question.project_id, key, answer)
        return Answered(answer=answer, is_hit=False)

    async def _refine(
        self, question: Question, selection: Selection, snapshot: Snapshot
    ) -> tuple[Selection, Refinement | None]:
        """The selection, in another order where relevance is on and its rules could be asked."""
        if question.relevance == "off" or not selection.ranked or self._relevance is None:
            return selection, None
        facts = relevance_facts(
            selection, snapshot, task_type=question.task_type, failing=question.failing_tests()
        )
        try:
            refinement = await self._relevance.refine(facts)
        except RelevanceUnavailable as error:
            log.warning("relevance.unavailable", cause=str(error))
            return selection, None
        if refinement.undecided_owners:
            # Denied, and for people to look at: their ownership rules go round in circles, or too deep.
            self._telemetry.undecided_owners.inc(refinement.undecided_owners)
            log.warning(
                "relevance.owners_undecided",
                project_id=question.project_id,
                owners=refinement.undecided_owners,
            )
        refined = refine_order(selection, snapshot, refinement, hops=facts.hops, truncated=facts.truncated)
        return refined, refinement

    async def _kept(self, project_id: str, key: str) -> GraphAnswer | None:
        try:
            data = await self._cache.get(project_id, key)
        except StoreUnavailable as error:
            self._telemetry.pack_cache.labels("unavailable").inc()
            log.warning("pack_cache.unavailable", cause=str(error))
            return None
        try:
            return None if data is None else decode_answer(data)
        except ValueError as error:
            # Cut or foreign: what can be computed again is a miss, not a failure.
            self._telemetry.pack_cache.labels("damaged").inc()
            log.warning("pack_cache.damaged", error=type(error).__name__)
            return None

    async def _keep(self, project_id: str, key: str, answer: GraphAnswer) -> None:
        try:
            await self._cache.put(project_id, key, encode_answer(answer))
        except StoreUnavailable as error:
            log.warning("pack_cache.unavailable", cause=str(error))

    def _sizes_for(self, snapshot: Snapshot, counter: TokenCounter) -> TextSizes:
        """What was counted before for this very snapshot and encoding.

        Nodes are known by their numbers, which hold within one snapshot object; of a part, which serves one
        request, nothing is kept.
        """
        if snapshot.is_part:
            return TextSizes(counter)
        kept = self._sizes.setdefault(snapshot, {})
        return kept.setdefault(counter, TextSizes(counter))


def _masked(text: str) -> str:
    return mask_secrets(text)[0]


def _select(question: Question, snapshot: Snapshot) -> Selection:
    links = link_request(question.text, question.paths, snapshot)
    selection = select(
        links,
        snapshot,
        task_type=question.task_type,
        ranking=question.ranking,
        extra_hops=question.extra_hops,
        has_passages=question.has_passages,
    )
    return led_by(selection, snapshot, question.leading)


def _write(
    question: Question,
    selection: Selection,
    snapshot: Snapshot,
    sizes: TextSizes,
    refinement: Refinement | None,
    *,
    mask: Callable[[str], str] | None,
) -> GraphAnswer:
    is_relevance_missing = question.relevance == "prolog" and refinement is None and bool(selection.ranked)
    around = LAYER_FRAME_TOKENS if question.layout == "prompt" else 0
    head = PackHead(
        project_id=question.project_id,
        requester=question.requester,
        encoding=question.encoding,
        budget_tokens=max(0, question.budget_tokens - around),
        layout=question.layout,
        label_tokens=question.label_tokens,
        notes=_notes(question, snapshot, is_relevance_missing=is_relevance_missing),
    )
    return build_answer(
        selection,
        snapshot,
        write_pack(selection, snapshot, head, sizes=sizes, mask=mask),
        AnswerInputs(
            paths=question.paths,
            tiers=refinement.counts() if refinement else None,
            is_relevance_missing=is_relevance_missing,
        ),
    )


def _notes(question: Question, snapshot: Snapshot, *, is_relevance_missing: bool) -> tuple[str, ...]:
    """What a file says that it lacks; of a prompt the layer says it."""
    if question.layout != "file":
        return ()
    unindexed = unindexed_paths(snapshot, question.paths)
    said = (
        (bool(unindexed), unindexed_line(unindexed)),
        (question.is_state_missing, STATE_LINE),
        (snapshot.is_part, PART_LINE),
        (is_relevance_missing, RELEVANCE_LINE),
    )
    return tuple(line for is_so, line in said if is_so)
