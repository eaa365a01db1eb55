"""One request, top to bottom: analyse, plan, gather, fuse, finish, seal.

What arrives here was decoded and validated; what leaves is stored and published by the caller. Nothing in
a bundle depends on clocks, arrival order or identity of the process: same request, same `as_of`, same
result of each source, same bytes. Step by step: `planning` says what room there is, `providers` fill it,
`fusing` decides what is shown, and `sealing` writes it down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial
from time import perf_counter
from typing import Final, ParamSpec, TypeVar

import structlog

from schemas.bundle import ContextBundle
from schemas.codes import CONTENT_LAYERS, PartName
from schemas.request import AssemblyRequest, layer_timeout_ms
from schemas.usage import UsageEvent
from schemas.wire import DecodeNotes, sha256_hex
from worker.budget.layers import ContextBudget
from worker.budget.tokens import TokenCounter
from worker.budget.utf8 import byte_length
from worker.errors import NotSupported
from worker.failpoints import Failpoints
from worker.fusing import Fusing, Trail, fuse_and_seal
from worker.fusion.compressor import INHERITED_LAYERS
from worker.fusion.masking import Admitted, admit
from worker.fusion.protocols import ParentContexts, Placed
from worker.fusion.strategies.recorded import PluginProposal
from worker.graph.request import analyze_request
from worker.planning import ContentPolicy, Plan, plan_request
from worker.ports import LayerBudget, LayerContribution, Preparation, Provider, RequestFrame, Scope
from worker.providers.gather import Abandonment, gather
from worker.providers.proposals import PluginProposals
from worker.receipts.capture import request_line
from worker.sealing import DEGRADED, usage_event
from worker.telemetry import (
    SPAN_ANALYSE,
    SPAN_FINISH,
    SPAN_FUSE,
    SPAN_GATHER,
    SPAN_PLAN,
    SPAN_SEAL,
    Telemetry,
)
from worker.turns import TURNS

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger()

INLINE_WEIGHT: Final = 8_000
"""Work up to this weight is done on the event loop: 5 ms. A prompt of eight thousand tokens from eight layers
weighs 40,000 and takes 22."""

_JSON_WEIGHT: Final = 1 / 8
"""Of a byte of JSON that is read and written once: nothing of it is ranked or counted."""

_CHOICE: Final = 2
"""Where layers compete, each source may come with this many times what its layer may spend: it may get more,
and else there would be nothing to choose between."""

_PARENT_SHARE: Final = 0.5
"""Of the time that is left, what reading a parent may take: the rest of the default deadline still gives each
source its whole timeout."""

_WIDE_BYTE_WEIGHT: Final = 4
"""A character weighs 1, and this for each byte beyond its first: Han and emoji have a token or more each,
and stand in long pieces without a space, so a tokenizer takes ten times as long for them."""

_FRAGMENT_WEIGHT: Final = 200
"""What a fragment costs besides its text: it is ranked, placed, counted and joined for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """One bundle, the usage event that goes with it, and what explains it."""

    bundle: ContextBundle
    usage: UsageEvent
    trail: Trail


class ParentLate(NotSupported):
    """The parent's context is kept, and was not made again in time: the child goes on without it."""


class Assembler:
    """Assembles bundles; one per worker, shared by all its requests."""

    def __init__(
        self,
        *,
        providers: Sequence[Provider],
        preparation: Preparation | None = None,
        policy: ContentPolicy,
        telemetry: Telemetry,
        abandonment: Abandonment,
        now: Callable[[], datetime],
        failpoints: Failpoints,
        proposals: PluginProposals | None = None,
        parents: ParentContexts | None = None,
    ) -> None:
        """Ask these providers, under this policy, and what `proposals` asks of strategies that run elsewhere.

        `parents` are what requests may start from. `now` stamps usage events and nothing else.
        """
        self._providers = tuple(providers)
        self._preparation = preparation
        self._policy = policy
        self._telemetry = telemetry
        self._abandonment = abandonment
        self._now = now
        self._failpoints = failpoints
        self._proposals = proposals
        self._parents = parents
        # Asked once: even a line that is not written costs as much as a layer.
        asks = getattr(log.bind(), "is_enabled_for", None)
        self._is_logged = asks is None or bool(asks(logging.INFO))

    async def assemble(
        self,
        request: AssemblyRequest,
        *,
        as_of: datetime,
        generation: int = 0,
        notes: DecodeNotes | None = None,
        meaning: bytes | None = None,
    ) -> Assembled:
        """The bundle of one validated request. `meaning` is what `request.meaning()` gives, where known.

        Raises Rejected (NotSupported, UnknownSubject, UnknownModel, UnknownStrategy, InvalidRequest,
        BudgetTooSmall, PinsExceedWindow), and StoreUnavailable where a parent cannot be read now. A source
        that fails degrades its own layer and nothing else; a parent that is late, those that would inherit.
        """
        analyse = partial(analyze_request, request, subjects=self._policy.subjects, as_of=as_of)
        return await self._assemble(
            request, analyse, generation=generation, notes=notes, meaning=meaning, kept=_NOTHING_KEPT
        )

    async def assemble_again(
        self, frame: RequestFrame, *, kept: Admitted, asked: frozenset[PartName], generation: int
    ) -> Assembled:
        """The bundle of a frame whose sources were asked before, and gave what `kept` holds, masked.

        Those of `asked` are asked anew. What they gave before stays where they give nothing now; where they
        fail, it says that some is missing. Raises as `assemble` does, UnknownSubject apart.
        """
        return await self._assemble(
            frame.request,
            lambda: frame,
            generation=generation,
            notes=None,
            meaning=None,
            kept=kept,
            asked=asked,
        )

    async def _assemble(
        self,
        request: AssemblyRequest,
        analyse: Callable[[], RequestFrame],
        *,
        generation: int,
        notes: DecodeNotes | None,
        meaning: bytes | None,
        kept: Admitted,
        asked: frozenset[PartName] = frozenset(),
    ) -> Assembled:
        started = perf_counter()

        def left_seconds() -> float:
            return request.deadline_ms / 1_000 - (perf_counter() - started)

        await self._failpoints.reach("assemble", request.user_message)
        scope = Scope(project_id=request.project_id, thread_id=request.thread_id)
        with self._telemetry.steps(SPAN_ANALYSE, SPAN_PLAN) as next_step:
            frame = analyse()
            next_step()
            own_weight = _weight(request.system_prompt) + _weight(request.user_message)
            plan = await _off_loop(own_weight, plan_request, frame, scope, self._policy)
        analysed = perf_counter()

        with self._telemetry.step(SPAN_GATHER):
            standing = frozenset(kept.contributions) - asked
            may_take = left_seconds() * _PARENT_SHARE
            parent = await self._parent(request, scope, standing, wait_seconds=may_take)
            parent_read = perf_counter()
            contributions = await self._contributions(
                frame,
                scope,
                plan,
                parent,
                kept=kept.contributions,
                standing=standing,
                deadline_seconds=left_seconds(),
            )
        gathered = perf_counter()

        with self._telemetry.steps(SPAN_FUSE, SPAN_FINISH, SPAN_SEAL) as next_step:
            weight = own_weight + sum(map(_contribution_weight, contributions.values()))
            admitted = await _off_loop(weight, _admit, contributions, kept, is_masking=plan.is_masking)
            proposals = await self._propose(frame, plan, admitted.contributions, wait_seconds=left_seconds())
            meaning = request.meaning() if meaning is None else meaning
            line = await _off_loop(len(meaning) * _JSON_WEIGHT, request_line, request, meaning)
            fusing = Fusing(
                frame=frame,
                plan=plan,
                admitted=admitted,
                request_digest=sha256_hex(meaning),
                request_line_digest=sha256_hex(line),
                proposals=proposals,
            )
            sealed = await _off_loop(weight, fuse_and_seal, fusing, next_step=next_step)
        fused = perf_counter()

        timings_ms = {
            "analyse": _milliseconds(started, analysed),
            "gather": _milliseconds(parent_read, gathered),
            "fuse": _milliseconds(gathered, fused),
            "total": _milliseconds(started, fused),
        }
        if request.parent is not None:
            timings_ms["parent"] = _milliseconds(analysed, parent_read)
        usage = usage_event(
            frame,
            plan,
            sealed,
            generation=generation,
            timestamp=self._now(),
            timings_ms=timings_ms,
            notes=notes or DecodeNotes(),
        )
        if self._is_logged:
            _log_assembled(usage)
        return Assembled(
            bundle=sealed.bundle, usage=usage, trail=Trail(fusing=fusing, sealed=sealed, request_line=line)
        )

    async def _propose(
        self,
        frame: RequestFrame,
        plan: Plan,
        contributions: Mapping[PartName, LayerContribution],
        *,
        wait_seconds: float,
    ) -> tuple[PluginProposal, ...]:
        """What the strategies say that the request names and that run in processes of their own."""
        if not plan.plugins:
            return ()
        if self._proposals is None:
            return tuple([PluginProposal.failed(name, "plugin_missing") for name in plan.plugins])
        return await self._proposals.propose(
            plan.plugins, frame, contributions, budget_tokens=plan.content_tokens, wait_seconds=wait_seconds
        )

    async def _parent(
        self, request: AssemblyRequest, scope: Scope, standing: frozenset[PartName], *, wait_seconds: float
    ) -> Sequence[Placed] | None:
        """What the request's parent showed beside the layers that stand; nothing where it has none.

        None where it takes longer. Where no source is asked, the parent is not either. Raises NotSupported.
        """
        if request.parent is None or all(one.layer in standing for one in self._providers):
            return ()
        if self._parents is None:
            raise NotSupported("parent", reason="whoever assembles here keeps no bundles")
        try:
            placed = await self._parents.read(scope, request.parent.request_id, wait_seconds=wait_seconds)
        except ParentLate:
            return None
        return [one for one in placed if one.fragment.layer not in standing]

    async def _contributions(
        self,
        frame: RequestFrame,
        scope: Scope,
        plan: Plan,
        parent: Sequence[Placed] | None,
        *,
        kept: Mapping[PartName, LayerContribution],
        standing: frozenset[PartName],
        deadline_seconds: float,
    ) -> dict[PartName, LayerContribution]:
        """What was kept, and of the layers that do not stand, what sources and parent give."""
        providers = [one for one in self._providers if one.layer not in standing]
        if not providers:
            return {layer: kept[layer] for layer in CONTENT_LAYERS if layer in kept}
        started, request = perf_counter(), frame.request
        if self._preparation is not None:
            await self._preparation.prepare(frame, scope)
        contributions = await self._gather(
            providers, frame, scope, plan, deadline_seconds=deadline_seconds - (perf_counter() - started)
        )
        if parent:
            contributions = await _off_loop(
                sum([_FRAGMENT_WEIGHT + _weight(placed.text) for placed in parent]),
                plan.fusion.inherit,
                contributions,
                parent,
                request.parent.focus if request.parent is not None else (),
                budget_tokens=plan.content_tokens,
            )
        if parent is None:
            contributions = _without_parent(contributions)
        standing_in = _standing_in(contributions, kept)
        whole: dict[PartName, LayerContribution] = {**kept, **contributions, **standing_in}
        return {layer: whole[layer] for layer in CONTENT_LAYERS if layer in whole}

    async def _gather(
        self,
        providers: Sequence[Provider],
        frame: RequestFrame,
        scope: Scope,
        plan: Plan,
        *,
        deadline_seconds: float,
    ) -> dict[PartName, LayerContribution]:
        """Ask these sources at once, each for what its layer may spend."""
        return await gather(
            providers,
            frame,
            scope,
            _layer_budgets(plan.effective, plan.counter, _CHOICE if plan.is_competing else 1),
            timeouts_seconds={
                layer: layer_timeout_ms(frame.request, layer) / 1_000 for layer in CONTENT_LAYERS
            },
            deadline_seconds=deadline_seconds,
            telemetry=self._telemetry,
            abandonment=self._abandonment,
        )


def _without_parent(contributions: Mapping[PartName, LayerContribution]) -> dict[PartName, LayerContribution]:
    """The contributions, with those that would have inherited from a parent that was late saying so."""
    marked = dict(contributions)
    for layer in INHERITED_LAYERS:
        own = contributions.get(layer)
        if own is not None and own.status == "ok":
            marked[layer] = replace(own, status="partial", reason="section_error")
        elif own is not None and own.status == "empty":
            marked[layer] = replace(own, status="failed", reason="timeout")
    return marked


def _standing_in(
    contributions: Mapping[PartName, LayerContribution], kept: Mapping[PartName, LayerContribution]
) -> dict[PartName, LayerContribution]:
    """Of layers that were asked anew in vain, what they gave before."""
    found: dict[PartName, LayerContribution] = {}
    for layer, now in contributions.items():
        before = kept.get(layer)
        if before is not None and not now.fragments:
            is_doubtful = now.status == "failed" and before.status == "ok"
            found[layer] = (
                replace(before, status="partial", reason="section_error") if is_doubtful else before
            )
    return found


_NOTHING_KEPT: Final = Admitted(contributions={})


def _admit(
    contributions: Mapping[PartName, LayerContribution], kept: Admitted, *, is_masking: bool
) -> Admitted:
    """The contributions as they may be shown; of what was masked before, with what was then counted."""
    admitted = admit(contributions, is_masking=is_masking)
    if not kept.masked:
        return admitted
    left = {one.key for layer in contributions.values() for one in layer.fragments}
    before = {key: count for key, count in kept.masked.items() if key in left}
    return replace(admitted, masked={**before, **admitted.masked})


@lru_cache(maxsize=1_024)
def _layer_budgets(
    effective: ContextBudget, counter: TokenCounter, choice: int
) -> Mapping[PartName, LayerBudget]:
    """What each source should aim for, `choice` times what its layer may spend.

    The same for all requests with the same effective budget.
    """
    budgets = effective.as_layers()
    return {
        layer: LayerBudget(
            tokens=budgets[layer] * choice, counter=counter, graph_tokens=budgets["graph"] * choice
        )
        for layer in CONTENT_LAYERS
    }


def _log_assembled(usage: UsageEvent) -> None:
    """One line that says which layers used more than half of their reservations."""
    spends = usage.usage.layers if usage.usage else {}
    reserved = usage.reserved or {}
    log.info(
        "bundle.assembled",
        project_id=usage.project_id,
        request_id=usage.request_id,
        outcome=usage.outcome,
        tokens=usage.usage.spent if usage.usage else 0,
        milliseconds=(usage.timings_ms or {}).get("total"),
        over_half=[layer for layer, spend in spends.items() if spend.spent * 2 > reserved.get(layer, 0)],
        degraded=[layer for layer, outcome in (usage.statuses or {}).items() if outcome.status in DEGRADED],
    )


def _weight(text: str) -> int:
    chars = len(text)
    return chars if text.isascii() else chars + _WIDE_BYTE_WEIGHT * (byte_length(text) - chars)


def _contribution_weight(contribution: LayerContribution) -> int:
    return sum(_FRAGMENT_WEIGHT + _weight(f.renderings[0].text) for f in contribution.fragments)


async def _off_loop(weight: float, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run CPU work here where it is short, else in a thread; tiktoken releases the interpreter's lock."""
    if weight <= INLINE_WEIGHT:
        return work(*args, **kwargs)
    return await asyncio.to_thread(lambda: TURNS.run(work, *args, **kwargs))


def _milliseconds(start: float, end: float) -> float:
    return round((end - start) * 1_000, 3)
