"""What leaves: each layer's report, the bundle, and the usage event, from what fusing gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final, cast

from schemas.bundle import BundleUsage, ContextBundle, LayerReport, context_hash
from schemas.citations import Citations
from schemas.codes import CONTENT_LAYERS, PARTS, LayerName, LayerReason, LayerStatus, PartName
from schemas.receipt import Receipt, ReceiptRecord
from schemas.trusted import trusted
from schemas.usage import (
    CacheCounts,
    LayerOutcome,
    OverheadTokens,
    UsageCounts,
    UsageEvent,
    UsageTotals,
    usage_event_id,
)
from schemas.wire import DecodeNotes
from worker.budget.layers import ContextBudget
from worker.citations.manifest import build_manifest
from worker.fusion.collapsing import graph_context
from worker.fusion.finish import Sealed
from worker.fusion.masking import Admitted
from worker.fusion.payload import build_payload
from worker.fusion.pipeline import Candidates
from worker.fusion.prefix import reusable_prefix_tokens
from worker.fusion.protocols import PackedLayer
from worker.planning import Plan
from worker.ports import LayerContribution, RequestFrame
from worker.receipts.record import Recorded, write_record

DEGRADED: Final = frozenset({"failed", "partial"})
"""The layer statuses that make a bundle `degraded`."""

_IS_CONTENT: Final = frozenset(CONTENT_LAYERS)
_PAYLOAD_PARTS: Final = frozenset({"payload", "payload_content"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The sealed prompt, and what was left out of it."""

    sealed: Sealed
    candidates: Candidates
    budget: ContextBudget
    """Effective, sealed, its total less the overhead that was really spent."""
    overhead: OverheadTokens
    usage: UsageTotals
    is_cramped: bool
    """Whether preamble, template or ids had to give way, which beside another message they might not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedBundle:
    """A finished prompt written down: how each layer fared, the bundle, and its receipt."""

    finished: Finished
    layers: Mapping[PartName, LayerReport]
    bundle: ContextBundle
    admitted: Admitted
    recorded: Recorded


def seal_bundle(
    frame: RequestFrame,
    plan: Plan,
    admitted: Admitted,
    finished: Finished,
    *,
    request_digest: str,
    request_line_digest: str,
) -> SealedBundle:
    """The bundle, with the parts that the request asked to include, and what it is made from."""
    layers = layer_reports(plan, admitted.contributions, finished)
    digest = context_hash(finished.sealed.messages)
    recorded = write_record(
        frame,
        plan,
        admitted,
        finished.candidates,
        finished.sealed,
        request_digest=request_digest,
        request_line_digest=request_line_digest,
        context_hash=digest,
    )
    bundle = _bundle(frame, plan, finished, layers=layers, recorded=recorded, digest=digest)
    return SealedBundle(finished=finished, layers=layers, bundle=bundle, admitted=admitted, recorded=recorded)


def layer_reports(
    plan: Plan, contributions: Mapping[PartName, LayerContribution], finished: Finished
) -> dict[PartName, LayerReport]:
    """How each of the ten parts fared, in joined order."""
    sealed, packed_layers = finished.sealed, finished.sealed.packed
    budgets, reserved = finished.budget.as_layers(), plan.requested.as_layers()
    reports: dict[PartName, LayerReport] = {}
    for layer in PARTS:
        packed = packed_layers.get(layer)
        fared = _status(layer, contributions.get(layer), packed, finished)
        fragments = len(packed.placed) if packed else 0
        reports[layer] = _report(fared, sealed.spent[layer], budgets[layer], reserved[layer], fragments)
    return reports


def _bundle(
    frame: RequestFrame,
    plan: Plan,
    finished: Finished,
    *,
    layers: dict[PartName, LayerReport],
    recorded: Recorded,
    digest: str,
) -> ContextBundle:
    request, sealed, usage = frame.request, finished.sealed, finished.usage
    include = set(request.include)
    is_degraded = any(report.status in DEGRADED for report in layers.values())
    return trusted(
        ContextBundle,
        request_id=request.request_id,
        parent_request_id=frame.parent_request_id,
        project_id=request.project_id,
        thread_id=request.thread_id,
        volk=request.volk,
        subject=request.subject,
        task_type=frame.task_type,
        status="degraded" if is_degraded else "complete",
        messages=sealed.messages if "messages" in include else None,
        layers=layers if "layers" in include else None,
        usage=trusted(
            BundleUsage,
            total=usage.total,
            spent=usage.spent,
            remaining=usage.remaining,
            layers=usage.layers,
            overhead=finished.overhead,
            exact=sealed.is_exact,
        )
        if "usage" in include
        else None,
        parts=dict(sealed.parts) if "parts" in include else None,
        graph_context=graph_context(sealed.parts, preamble=sealed.preamble, template=sealed.template)
        if "graph_context" in include
        else None,
        payload=build_payload(
            frame,
            sealed,
            budget=finished.budget,
            counter=plan.counter,
            strategies_used=finished.candidates.strategies_used,
            digest=digest,
            with_content="payload_content" in include,
        )
        if include & _PAYLOAD_PARTS
        else None,
        citations=_citations(frame, finished) if "citations" in include else None,
        receipt=trusted(
            Receipt,
            receipt_id=recorded.receipt_id,
            counts=recorded.counts,
            record=ReceiptRecord.model_validate_json(recorded.record) if "receipt" in include else None,
        ),
        context_hash=digest,
        assembled_at=frame.as_of,
    )


def _citations(frame: RequestFrame, finished: Finished) -> Citations:
    sealed = finished.sealed
    packed = [sealed.packed[layer] for layer in PARTS if layer in sealed.packed]
    return build_manifest(
        [placed.fragment for section in packed for placed in section.placed],
        finished.candidates.labels,
        must_cite=frame.request.must_cite,
        template=sealed.template.rstrip(),
    )


def usage_event(
    frame: RequestFrame,
    plan: Plan,
    sealed: SealedBundle,
    *,
    generation: int,
    timestamp: datetime,
    timings_ms: dict[str, float],
    notes: DecodeNotes,
) -> UsageEvent:
    """The event that goes with the bundle; the only place where clocks show."""
    request, finished = frame.request, sealed.finished
    contributions, masked = sealed.admitted.contributions, sealed.admitted.masked
    graph = contributions.get("graph")
    asked = graph.measures if graph is not None else None
    return trusted(
        UsageEvent,
        event_id=usage_event_id(request.project_id, request.request_id, generation),
        timestamp=timestamp,
        project_id=request.project_id,
        request_id=request.request_id,
        parent_request_id=frame.parent_request_id,
        generation=generation,
        volk_alias=request.volk,
        subject=request.subject,
        thread_id=request.thread_id,
        model=plan.window.model,
        outcome=sealed.bundle.status,
        usage=finished.usage,
        requested_total=plan.requested.total,
        overhead=finished.overhead,
        reserved=cast("dict[LayerName, int]", plan.requested.as_layers()),
        statuses={layer: _outcome(report.status, report.reason) for layer, report in sealed.layers.items()},
        timings_ms=timings_ms,
        exact=finished.sealed.is_exact,
        counts=_counts(notes, contributions, finished),
        cache=CacheCounts(hits=int(asked.is_cache_hit), misses=int(not asked.is_cache_hit))
        if asked
        else None,
        tiers=dict(asked.tiers) if asked and asked.tiers else None,
        reusable_prefix_tokens=finished.sealed.spent["system"]
        if finished.is_cramped
        else reusable_prefix_tokens(
            finished.sealed, contributions, planned=plan.effective, counter=plan.counter
        ),
        masked_secrets=sum(masked.values()) if sealed.admitted.is_masking else None,
        tokens_by_source=sealed.recorded.tokens_by_source,
    )


def _status(
    layer: PartName,
    contribution: LayerContribution | None,
    packed: PackedLayer | None,
    finished: Finished,
) -> tuple[LayerStatus, LayerReason | None]:
    if contribution is None:
        if layer in _IS_CONTENT:
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


# Frozen, and mostly the same from one request to the next: most layers of most requests hold nothing.
@lru_cache(maxsize=4_096)
def _report(
    fared: tuple[LayerStatus, LayerReason | None],
    tokens: int,
    budget_tokens: int,
    reserved_tokens: int,
    fragments: int,
) -> LayerReport:
    status, reason = fared
    return LayerReport(
        status=status,
        reason=reason,
        tokens=tokens,
        budget_tokens=budget_tokens,
        reserved_tokens=reserved_tokens,
        fragments=fragments,
    )


@lru_cache(maxsize=256)
def _outcome(status: LayerStatus, reason: LayerReason | None) -> LayerOutcome:
    return LayerOutcome(status=status, reason=reason)


def _counts(
    notes: DecodeNotes, contributions: Mapping[PartName, LayerContribution], finished: Finished
) -> UsageCounts:
    considered = sum([len(c.fragments) + c.capped for c in contributions.values()])
    kept = sum([len(packed.placed) for packed in finished.sealed.packed.values()])
    return trusted(
        UsageCounts,
        unknown_fields=notes.unknown_fields,
        naive_times=notes.naive_times,
        escaped_delimiters=finished.candidates.escaped_delimiters,
        clamped_scores=finished.candidates.execution.clamped_scores,
        fragments_considered=considered,
        fragments_kept=kept,
        fragments_dropped=considered - kept,
    )
