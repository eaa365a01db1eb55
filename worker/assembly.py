"""One request, top to bottom: analyse, plan, gather, fuse, finish, seal.

What arrives here was decoded and validated; what leaves is stored and published by the caller. Nothing in
a bundle depends on clocks, arrival order or identity of the process: same request, same `as_of`, same
result of each source, same bytes. Step by step: `planning` says what room there is, `providers` fill it,
`fuse` below decides what is shown, `sealing` writes it down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from time import perf_counter
from typing import Final, ParamSpec, TypeVar

import structlog

from schemas.bundle import ContextBundle
from schemas.codes import CONTENT_LAYERS, LAYERS, PartName
from schemas.request import AssemblyRequest, layer_timeout_ms
from schemas.usage import LayerSpend, OverheadTokens, UsageEvent, UsageTotals
from schemas.wire import DecodeNotes, sha256_hex
from worker.budget.allocation import fit_floors, flow_on
from worker.budget.layers import ContextBudget
from worker.budget.ledger import ContextUsage
from worker.budget.tokens import TokenCounter
from worker.budget.utf8 import byte_length
from worker.errors import NotSupported
from worker.failpoints import Failpoints
from worker.fusion.finish import join_and_seal
from worker.fusion.masking import Admitted, admit
from worker.fusion.pipeline import Candidates
from worker.fusion.protocols import PackedLayer, ParentContexts, Placed
from worker.fusion.strategies.recorded import PluginProposal
from worker.graph.request import analyze_request
from worker.planning import ContentPolicy, Plan, plan_request
from worker.ports import LayerBudget, LayerContribution, Preparation, Provider, RequestFrame, Scope
from worker.providers.gather import Abandonment, gather
from worker.providers.proposals import PluginProposals
from worker.receipts.capture import request_line, write_capture
from worker.sealing import DEGRADED, Finished, SealedBundle, seal_bundle, usage_event
from worker.telemetry import SPAN_ANALYSE, SPAN_FUSE, SPAN_GATHER, Telemetry

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger()

INLINE_WEIGHT: Final = 48_000
"""Work up to this weight is done on the event loop: about 5 ms, less than a thread costs in fairness."""

_CHOICE: Final = 2
"""Where layers compete, each source may come with this many times what its layer may spend: it may get more,
and else there would be nothing to choose between."""

_WIDE_BYTE_WEIGHT: Final = 4
"""A character weighs 1, and this for each byte beyond its first: Han and emoji have a token or more each,
and stand in long pieces without a space, so a tokenizer takes ten times as long for them."""

_MARK_BYTES: Final = 10
"""What a capture's header has for a fragment beside its key: a relevance or a count, quotes, commas."""

_FRAGMENT_WEIGHT: Final = 200
"""What a fragment costs besides its text: it is ranked, placed, counted and joined for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """One bundle, the usage event that goes with it, and what explains it."""

    bundle: ContextBundle
    usage: UsageEvent
    trail: Trail


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
        that fails degrades its own layer and nothing else.
        """
        started = perf_counter()
        await self._failpoints.reach("assemble", request.user_message)
        scope = Scope(project_id=request.project_id, thread_id=request.thread_id)
        with self._telemetry.step(SPAN_ANALYSE):
            frame = analyze_request(request, subjects=self._policy.subjects, as_of=as_of)
            own_weight = _weight(request.system_prompt) + _weight(request.user_message)
            plan = await _off_loop(own_weight, plan_request, frame, scope, self._policy)
        analysed = perf_counter()

        with self._telemetry.step(SPAN_GATHER):
            parent = await self._parent(request, scope)
            if self._preparation is not None:
                await self._preparation.prepare(frame, scope)
            deadline_seconds = request.deadline_ms / 1_000 - (perf_counter() - started)
            contributions = await self._gather(frame, scope, plan, deadline_seconds=deadline_seconds)
            if parent:
                contributions = await asyncio.to_thread(
                    plan.fusion.inherit,
                    contributions,
                    parent,
                    request.parent.focus if request.parent is not None else (),
                    budget_tokens=plan.content_tokens,
                )
        gathered = perf_counter()

        with self._telemetry.step(SPAN_FUSE):
            weight = own_weight + sum(map(_contribution_weight, contributions.values()))
            admitted = await _off_loop(weight, admit, contributions, is_masking=plan.is_masking)
            left_seconds = request.deadline_ms / 1_000 - (perf_counter() - started)
            proposals = await self._propose(frame, plan, admitted.contributions, wait_seconds=left_seconds)
            meaning = request.meaning() if meaning is None else meaning
            line = await _off_loop(len(meaning), request_line, request, meaning)
            fusing = Fusing(
                frame=frame,
                plan=plan,
                admitted=admitted,
                request_digest=sha256_hex(meaning),
                request_line_digest=sha256_hex(line),
                proposals=proposals,
            )
            sealed = await _off_loop(weight, fuse_and_seal, fusing)
        fused = perf_counter()

        usage = usage_event(
            frame,
            plan,
            sealed,
            generation=generation,
            timestamp=self._now(),
            timings_ms={
                "analyse": _milliseconds(started, analysed),
                "gather": _milliseconds(analysed, gathered),
                "fuse": _milliseconds(gathered, fused),
                "total": _milliseconds(started, fused),
            },
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

    async def _parent(self, request: AssemblyRequest, scope: Scope) -> Sequence[Placed]:
        """What the request's parent showed; nothing where it has none. Raises NotSupported."""
        if request.parent is None:
            return ()
        if self._parents is None:
            raise NotSupported("parent", reason="whoever assembles here keeps no bundles")
        return await self._parents.read(scope, request.parent.request_id)

    async def _gather(
        self, frame: RequestFrame, scope: Scope, plan: Plan, *, deadline_seconds: float
    ) -> dict[PartName, LayerContribution]:
        """Ask all sources at once, each for what its layer may spend."""
        return await gather(
            self._providers,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusing:
    """All that decides the bytes of a bundle from here on; a capture holds it."""

    frame: RequestFrame
    plan: Plan
    admitted: Admitted
    request_digest: str
    request_line_digest: str
    proposals: Sequence[PluginProposal] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """What is kept to explain a bundle, and to make it again."""

    fusing: Fusing
    sealed: SealedBundle
    request_line: bytes
    """The request as the capture keeps it."""

    @property
    def record(self) -> bytes:
        """The receipt's record: canonical JSON of a `ReceiptRecord`."""
        return self.sealed.recorded.record

    @property
    def size_bytes(self) -> int:
        """About what record and capture have together; what writing them down costs grows with it."""
        sources = self.sealed.recorded.sources.values()
        marks = [*self.fusing.admitted.masked, *[key for p in self.fusing.proposals for key, _ in p.entries]]
        lines = [self.record, self.request_line, *[source.line for source in sources]]
        return sum(map(len, lines)) + sum([len(mark) + _MARK_BYTES for mark in marks])

    def capture(self, *, max_bytes: int) -> bytes:
        """The inputs of fusing and sealing, or one line that says why they are not kept."""
        fusing = self.fusing
        return write_capture(
            fusing.frame,
            fusing.plan,
            fusing.admitted,
            self.sealed.recorded.sources,
            line=self.request_line,
            request_digest=fusing.request_digest,
            proposals=fusing.proposals,
            max_bytes=max_bytes,
        )


def fuse_and_seal(fusing: Fusing) -> SealedBundle:
    """From what the sources gave to the bundle: all that takes CPU in proportion to the texts.

    A pure function. Raises UnknownStrategy, PinsExceedWindow.
    """
    frame, plan, admitted = fusing.frame, fusing.plan, fusing.admitted
    finished = fuse(frame, plan, admitted.contributions, fusing.proposals)
    return seal_bundle(
        frame,
        plan,
        admitted,
        finished,
        request_digest=fusing.request_digest,
        request_line_digest=fusing.request_line_digest,
    )


def fuse(
    frame: RequestFrame,
    plan: Plan,
    contributions: Mapping[PartName, LayerContribution],
    proposals: Sequence[PluginProposal] = (),
) -> Finished:
    """Rank, make room for the pins, pack each layer, join, count, seal the budget, and spend it.

    `proposals` are what `plan.plugins` said to these contributions. Raises UnknownStrategy, PinsExceedWindow.
    """
    fusion, counter, request = plan.fusion, plan.counter, frame.request
    candidates = fusion.rank(
        frame,
        contributions,
        budget_tokens=plan.content_tokens,
        counter=counter,
        proposals=proposals,
    )
    filled: list[PartName] = [layer for layer in CONTENT_LAYERS if candidates.scored[layer]]
    floor_sections: dict[PartName, str] = {layer: candidates.floor_section(layer) for layer in filled}
    floors: dict[PartName, int] = {
        layer: counter.count(text) for layer, text in floor_sections.items() if text
    }
    effective = plan.effective
    if any(tokens > effective.layer_budget(layer) for layer, tokens in floors.items()):
        effective = fit_floors(
            effective,
            floors=floors,
            pins={layer: candidates.pins(layer) for layer in floors},
            system_tokens=counter.count(request.system_prompt),
            user_tokens=counter.count(request.user_message),
        )
    if filled:
        effective = _lend_idle(effective, candidates, counter)

    def pack(layer: PartName, budget_tokens: int) -> PackedLayer:
        return fusion.pack(candidates, layer, budget_tokens=budget_tokens, counter=counter)

    sealed = join_and_seal(
        system=request.system_prompt,
        user=request.user_message,
        preamble=plan.preamble,
        budget=effective,
        floors=floors,
        packed={layer: pack(layer, effective.layer_budget(layer)) for layer in filled},
        repack=pack,
        counter=counter,
    )
    overhead = OverheadTokens(
        client=plan.overhead.client, framing=plan.overhead.framing, preamble=sealed.preamble_tokens
    )
    budget = _with_returned(sealed.budget, plan.overhead.preamble - sealed.preamble_tokens)
    ledger = ContextUsage(budget)
    for layer, tokens in sealed.spent.items():
        if tokens:
            ledger.spend(layer, tokens)
    return Finished(
        sealed=sealed, candidates=candidates, budget=budget, overhead=overhead, usage=_totals(ledger)
    )


@lru_cache(maxsize=1_024)
def _with_returned(budget: ContextBudget, tokens: int) -> ContextBudget:
    """The budget with what was set aside for the preamble and not spent on it."""
    return replace(budget, total=budget.total + tokens)


def _totals(ledger: ContextUsage) -> UsageTotals:
    """The ledger as it is published."""
    totals = ledger.to_dict()
    return UsageTotals(
        total=totals["total"],
        spent=totals["spent"],
        remaining=totals["remaining"],
        layers={layer: _layer_spend(**totals["layers"][layer]) for layer in LAYERS},
    )


# Most layers of most requests spend nothing of the same reservation.
@lru_cache(maxsize=4_096)
def _layer_spend(budget: int, spent: int) -> LayerSpend:
    return LayerSpend(budget=budget, spent=spent)


def _lend_idle(effective: ContextBudget, candidates: Candidates, counter: TokenCounter) -> ContextBudget:
    """Where some layer cannot show all it has, it gets what others cannot use; else nothing moves."""
    wholes: dict[PartName, str] = {layer: candidates.whole_section(layer) for layer in CONTENT_LAYERS}
    if all(counter.fits(text, effective.layer_budget(layer)) for layer, text in wholes.items()):
        return effective

    def flowed(budget: ContextBudget, texts: Mapping[PartName, str]) -> ContextBudget:
        demands = {layer: counter.count_up_to(text, budget.total) for layer, text in texts.items()}
        return flow_on(budget, demands=demands)

    if not candidates.is_all_wanted:
        # First what the strategies have a share for, whatever it takes from others; then what is left over.
        effective = flowed(effective, {layer: candidates.wanted_section(layer) for layer in CONTENT_LAYERS})
    return flowed(effective, wholes)


def _log_assembled(usage: UsageEvent) -> None:
    """One line that says which layers used more than half of what they had."""
    spends = usage.usage.layers if usage.usage else {}
    log.info(
        "bundle.assembled",
        project_id=usage.project_id,
        request_id=usage.request_id,
        outcome=usage.outcome,
        tokens=usage.usage.spent if usage.usage else 0,
        milliseconds=(usage.timings_ms or {}).get("total"),
        over_half=[layer for layer, spend in spends.items() if spend.spent * 2 > spend.budget],
        degraded=[layer for layer, outcome in (usage.statuses or {}).items() if outcome.status in DEGRADED],
    )


def _weight(text: str) -> int:
    chars = len(text)
    return chars if text.isascii() else chars + _WIDE_BYTE_WEIGHT * (byte_length(text) - chars)


def _contribution_weight(contribution: LayerContribution) -> int:
    return sum(_FRAGMENT_WEIGHT + _weight(f.renderings[0].text) for f in contribution.fragments)


async def _off_loop(weight: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run CPU work here where it is short, else in a thread; tiktoken releases the interpreter's lock."""
    if weight <= INLINE_WEIGHT:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


def _milliseconds(start: float, end: float) -> float:
    return round((end - start) * 1_000, 3)
