"""One request, top to bottom: analyse, plan, gather, fuse, finish, seal.

What arrives here was decoded and validated; what leaves is stored and published by the caller. Nothing in
a bundle depends on clocks, arrival order or identity of the process: same request, same `as_of`, same
result of each source, same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from time import perf_counter
from typing import Final, ParamSpec, TypeVar

import structlog

from schemas.bundle import BundleUsage, ContextBundle, LayerReport, context_hash
from schemas.codes import CONTENT_LAYERS, LAYERS, PARTS, LayerReason, LayerStatus, PartName
from schemas.request import AssemblyRequest, BudgetRequest, layer_timeout_ms
from schemas.usage import (
    LayerOutcome,
    OverheadTokens,
    UsageCounts,
    UsageEvent,
    UsageTotals,
    usage_event_id,
)
from schemas.wire import DecodeNotes
from worker.budget.allocation import Overhead, fit_floors, flow_on, plan_budget
from worker.budget.layers import ContextBudget, requested_budget
from worker.budget.ledger import ContextUsage
from worker.budget.models import ModelSpec, Window, resolve_window
from worker.budget.tokens import TokenCounter, counter_for
from worker.errors import BudgetTooSmall
from worker.failpoints import Failpoints
from worker.fusion.finish import Sealed, join_and_seal
from worker.fusion.payload import build_payload
from worker.fusion.pipeline import Candidates, FusionPipeline, built_in_strategies, default_components
from worker.fusion.protocols import PackedLayer
from worker.fusion.sections import fence_for
from worker.graph.request import analyze_request
from worker.ports import LayerBudget, LayerContribution, Provider, RequestFrame, Scope, Subject
from worker.providers.gather import Abandonment, gather
from worker.telemetry import SPAN_ANALYSE, SPAN_FUSE, SPAN_GATHER, Telemetry

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger()

_DEGRADED: Final = frozenset({"failed", "partial"})

INLINE_CHARS: Final = 48_000
"""Texts up to this length are fused on the event loop: about 5 ms, less than a thread costs in fairness."""

_SEAM_TOKENS: Final = 2
"""Kept beside the preamble for tokenizers that merge across its end; given back where they do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentPolicy:
    """The tables and defaults that shape the bytes of a bundle."""

    models: Mapping[str, ModelSpec]
    default_model: str
    subjects: Mapping[str, Subject]
    default_strategy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """One bundle and the usage event that goes with it."""

    bundle: ContextBundle
    usage: UsageEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The window of one request, before anything was gathered."""

    window: Window
    counter: TokenCounter
    requested: ContextBudget
    effective: ContextBudget
    overhead: Overhead
    preamble: str
    fusion: FusionPipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finished:
    """The sealed prompt, and what was left out of it."""

    sealed: Sealed
    candidates: Candidates
    budget: ContextBudget
    """Effective, sealed, its total less the overhead that was really spent."""
    overhead: OverheadTokens
    usage: UsageTotals


class Assembler:
    """Assembles bundles; one per worker, shared by all its requests."""

    def __init__(
        self,
        *,
        providers: Sequence[Provider],
        policy: ContentPolicy,
        telemetry: Telemetry,
        abandonment: Abandonment,
        now: Callable[[], datetime],
        failpoints: Failpoints,
    ) -> None:
        """Ask these providers, under this policy. `now` stamps usage events and nothing else."""
        self._providers = tuple(providers)
        self._policy = policy
        self._telemetry = telemetry
        self._abandonment = abandonment
        self._now = now
        self._failpoints = failpoints

    async def assemble(
        self,
        request: AssemblyRequest,
        *,
        as_of: datetime,
        generation: int = 0,
        notes: DecodeNotes | None = None,
    ) -> Assembled:
        """The bundle of one validated request.

        Raises Rejected (UnknownSubject, UnknownModel, UnknownStrategy, InvalidRequest, BudgetTooSmall,
        PinsExceedWindow). A source that fails degrades its own layer and nothing else.
        """
        started = perf_counter()
        await self._failpoints.reach("assemble", request.user_message)
        scope = Scope(project_id=request.project_id, thread_id=request.thread_id)
        with self._telemetry.step(SPAN_ANALYSE):
            frame = analyze_request(request, subjects=self._policy.subjects, as_of=as_of)
            texts = len(request.system_prompt) + len(request.user_message)
            plan = await _off_loop(texts, plan_request, frame, scope, self._policy)
        analysed = perf_counter()

        with self._telemetry.step(SPAN_GATHER):
            contributions = await gather(
                self._providers,
                frame,
                scope,
                {
                    layer: LayerBudget(tokens=plan.effective.layer_budget(layer), counter=plan.counter)
                    for layer in CONTENT_LAYERS
                },
                timeouts_seconds={
                    layer: layer_timeout_ms(request, layer) / 1_000 for layer in CONTENT_LAYERS
                },
                deadline_seconds=request.deadline_ms / 1_000 - (perf_counter() - started),
                telemetry=self._telemetry,
                abandonment=self._abandonment,
            )
        gathered = perf_counter()

        with self._telemetry.step(SPAN_FUSE):
            texts += sum(len(f.renderings[0].text) for c in contributions.values() for f in c.fragments)
            finished = await _off_loop(texts, fuse, frame, plan, contributions)
            layers = layer_reports(plan, contributions, finished)
            bundle = seal_bundle(frame, plan, layers, finished)
        fused = perf_counter()

        usage = UsageEvent(
            event_id=usage_event_id(request.project_id, request.request_id, generation),
            timestamp=self._now(),
            project_id=request.project_id,
            request_id=request.request_id,
            generation=generation,
            volk_alias=request.volk,
            subject=request.subject,
            thread_id=request.thread_id,
            model=plan.window.model,
            outcome=bundle.status,
            usage=finished.usage,
            requested_total=plan.requested.total,
            overhead=finished.overhead,
            reserved={layer: plan.requested.layer_budget(layer) for layer in LAYERS},
            statuses={
                layer: LayerOutcome(status=report.status, reason=report.reason)
                for layer, report in layers.items()
            },
            timings_ms={
                "analyse": _milliseconds(started, analysed),
                "gather": _milliseconds(analysed, gathered),
                "fuse": _milliseconds(gathered, fused),
                "total": _milliseconds(started, fused),
            },
            exact=finished.sealed.is_exact,
            counts=_counts(notes or DecodeNotes(), contributions, finished),
        )
        self._observe(usage)
        return Assembled(bundle=bundle, usage=usage)

    def _observe(self, usage: UsageEvent) -> None:
        """Metrics, and one line that says which layers used more than half of what they had."""
        statuses = usage.statuses or {}
        for layer, outcome in statuses.items():
            self._telemetry.count_layer(layer, outcome.status, outcome.reason)
        if usage.counts is not None:
            self._telemetry.escaped_delimiters.inc(usage.counts.escaped_delimiters)
        spends = usage.usage.layers if usage.usage else {}
        log.info(
            "bundle.assembled",
            project_id=usage.project_id,
            request_id=usage.request_id,
            outcome=usage.outcome,
            tokens=usage.usage.spent if usage.usage else 0,
            milliseconds=(usage.timings_ms or {}).get("total"),
            over_half=[layer for layer, spend in spends.items() if spend.spent * 2 > spend.budget],
            degraded=[layer for layer, outcome in statuses.items() if outcome.status in _DEGRADED],
        )


def plan_request(frame: RequestFrame, scope: Scope, policy: ContentPolicy) -> _Plan:
    """The window, the counter, and the effective budget before pins: overhead paid, system and user seated.

    A window too small for the preamble does without it. Raises UnknownModel, UnknownLayer,
    InvalidRequest, BudgetTooSmall.
    """
    request = frame.request
    window = resolve_window(request, models=policy.models, default_model=policy.default_model)
    counter = counter_for(window.encoding, safety_factor=window.safety_factor)
    asked = request.budget or BudgetRequest()
    requested = requested_budget(total=window.total_tokens, layers=asked.layers)
    fence = fence_for(scope)
    fusion = FusionPipeline(
        default_components(fence=fence, counter=counter, default_strategy=policy.default_strategy),
        built_in_strategies(),
        fence,
    )
    preamble = fusion.preamble(frame, max_tokens=window.total_tokens)
    client, framing = asked.client_overhead_tokens, window.framing_tokens
    quick = (
        _quick_size(request.system_prompt, requested.system, counter),
        _quick_size(request.user_message, requested.user, counter),
    )

    def seat(text: str, system_tokens: int, user_tokens: int) -> _Plan:
        overhead = Overhead(client=client, framing=framing, preamble=_preamble_tokens(counter, text))
        return _Plan(
            window=window,
            counter=counter,
            requested=requested,
            effective=plan_budget(
                requested, overhead=overhead, system_tokens=system_tokens, user_tokens=user_tokens
            ),
            overhead=overhead,
            preamble=text,
            fusion=fusion,
        )

    with suppress(BudgetTooSmall):
        return seat(preamble, *quick)
    sizes = (counter.count(request.system_prompt), counter.count(request.user_message))
    with suppress(BudgetTooSmall):
        return seat(preamble, *sizes)
    return seat("", *sizes)


def fuse(frame: RequestFrame, plan: _Plan, contributions: Mapping[PartName, LayerContribution]) -> _Finished:
    """Rank, make room for the pins, pack each layer, join, count, seal the budget, and spend it.

    Raises UnknownStrategy, PinsExceedWindow.
    """
    fusion, counter, request = plan.fusion, plan.counter, frame.request
    candidates = fusion.rank(
        frame,
        contributions,
        budget_tokens=plan.effective.total - plan.effective.output,
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
    returned = plan.overhead.preamble - sealed.preamble_tokens
    budget = replace(sealed.budget, total=sealed.budget.total + returned)
    ledger = ContextUsage(budget)
    for layer, tokens in sealed.spent.items():
        ledger.spend(layer, tokens)
    return _Finished(
        sealed=sealed,
        candidates=candidates,
        budget=budget,
        overhead=overhead,
        usage=UsageTotals.model_validate(ledger.to_dict()),
    )


def _lend_idle(effective: ContextBudget, candidates: Candidates, counter: TokenCounter) -> ContextBudget:
    """Where some layer cannot show all it has, it gets what others cannot use; else nothing moves."""
    wholes: dict[PartName, str] = {layer: candidates.whole_section(layer) for layer in CONTENT_LAYERS}
    if all(counter.fits(text, effective.layer_budget(layer)) for layer, text in wholes.items()):
        return effective
    return flow_on(
        effective,
        demands={layer: counter.count_up_to(text, effective.total) for layer, text in wholes.items()},
    )


def layer_reports(
    plan: _Plan, contributions: Mapping[PartName, LayerContribution], finished: _Finished
) -> dict[PartName, LayerReport]:
    """How each of the ten parts fared, in joined order."""
    reports: dict[PartName, LayerReport] = {}
    for layer in PARTS:
        packed = finished.sealed.packed.get(layer)
        status, reason = _status(layer, contributions.get(layer), packed, finished)
        reports[layer] = LayerReport(
            status=status,
            reason=reason,
            tokens=finished.sealed.spent[layer],
            budget_tokens=finished.budget.layer_budget(layer),
            reserved_tokens=plan.requested.layer_budget(layer),
            fragments=len(packed.placed) if packed else 0,
        )
    return reports


def _status(
    layer: PartName,
    contribution: LayerContribution | None,
    packed: PackedLayer | None,
    finished: _Finished,
) -> tuple[LayerStatus, LayerReason | None]:
    if contribution is None:
        if layer in CONTENT_LAYERS:
            return "off", "not_configured"
        return ("ok", None) if finished.sealed.parts[layer] else ("empty", "no_data")
    if contribution.status != "ok":
        return contribution.status, contribution.reason
    if packed is None:
        return "empty", "below_heading"
    shown = len(packed.placed)
    is_whole = (
        shown == len(finished.candidates.scored[layer]) and not packed.reduced and not contribution.capped
    )
    return ("ok" if is_whole else "trimmed"), None


def seal_bundle(
    frame: RequestFrame,
    plan: _Plan,
    layers: dict[PartName, LayerReport],
    finished: _Finished,
) -> ContextBundle:
    """The bundle with the parts that the request asked to include."""
    request, sealed = frame.request, finished.sealed
    include = set(request.include)
    digest = context_hash(sealed.messages)
    is_degraded = any(report.status in _DEGRADED for report in layers.values())
    return ContextBundle(
        request_id=request.request_id,
        project_id=request.project_id,
        thread_id=request.thread_id,
        volk=request.volk,
        subject=request.subject,
        task_type=frame.task_type,
        status="degraded" if is_degraded else "complete",
        messages=sealed.messages if "messages" in include else None,
        layers=layers if "layers" in include else None,
        usage=BundleUsage(**finished.usage.model_dump(), overhead=finished.overhead, exact=sealed.is_exact)
        if "usage" in include
        else None,
        parts=dict(sealed.parts) if "parts" in include else None,
        payload=build_payload(
            frame,
            sealed,
            budget=finished.budget,
            counter=plan.counter,
            strategies_used=finished.candidates.strategies_used,
            digest=digest,
            with_content="payload_content" in include,
        )
        if include & {"payload", "payload_content"}
        else None,
        context_hash=digest,
        assembled_at=frame.as_of,
    )


def _counts(
    notes: DecodeNotes, contributions: Mapping[PartName, LayerContribution], finished: _Finished
) -> UsageCounts:
    considered = sum(len(c.fragments) + c.capped for c in contributions.values())
    kept = sum(len(packed.placed) for packed in finished.sealed.packed.values())
    return UsageCounts(
        unknown_fields=notes.unknown_fields,
        naive_times=notes.naive_times,
        escaped_delimiters=finished.candidates.escaped_delimiters,
        fragments_considered=considered,
        fragments_kept=kept,
        fragments_dropped=considered - kept,
    )


@lru_cache(maxsize=4_096)
def _preamble_tokens(counter: TokenCounter, text: str) -> int:
    """What is set aside for the preamble; the same for all prompts of a thread."""
    return counter.count(text) + _SEAM_TOKENS if text else 0


def _quick_size(text: str, reserved: int, counter: TokenCounter) -> int:
    """The size of a part that is never trimmed, or its whole reservation where it surely fits that."""
    return reserved if counter.fits(text, reserved) else counter.count(text)


async def _off_loop(chars: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run CPU work here where it is short, else in a thread; tiktoken releases the interpreter's lock."""
    if chars <= INLINE_CHARS:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


def _milliseconds(start: float, end: float) -> float:
    return round((end - start) * 1_000, 3)
