"""What a library user gets for one call: the parts of a prompt, and the ledger of what they spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Any, Final

from schemas.citations import Citations
from schemas.codes import CONTENT_LAYERS, LAYERS, PARTS, LayerName, PartName
from schemas.request import AssemblyRequest
from schemas.usage import LayerOutcome, OverheadTokens, UsageEvent, UsageTotals, usage_event_id
from worker.assembly import Assembled
from worker.budget.layers import LENDING_ORDER, ContextBudget
from worker.budget.ledger import ContextUsage
from worker.budget.tokens import charge_spans
from worker.budget.trimming import trim_to_budget
from worker.errors import BudgetTooSmall
from worker.fusion.collapsing import graph_context
from worker.fusion.sections import SECTION_GAP
from worker.ports import TokenCounter

_NO_OVERHEAD: Final = OverheadTokens(client=0, framing=0, preamble=0, template=0)


@dataclass(frozen=True, slots=True)
class ContextAssembly:
    """One prompt's parts by layer, what stands above them, and the ledger of what the parts spent."""

    parts: dict[PartName, str]
    usage: ContextUsage
    """What `preamble` and `template` take is off its total already."""
    preamble: str = ""
    """Says that the sections below it are data to be read, and no instructions to be followed."""
    template: str = ""
    """How to cite and answer; empty where nobody asked."""
    citations: Citations | None = None
    """By which ids an answer may name what it used, and which it must; None where nobody asked."""
    is_exact: bool = True
    """Whether all tokens were counted, and none estimated from above."""
    is_raw: bool = False
    """Whether assembling failed, and these are the caller's own texts and what the injector gave."""

    @property
    def effective_message(self) -> str:
        """What to send as the user's message: preamble, template, the layers, and the user's own text last.

        All of the prompt but the system prompt; the last of the `messages` that the worker would send.
        """
        return self._above_message + self.parts["user"]

    def collapsed_into(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """A shallow copy of the payload with the bundle in its `graph_context`; all else stays as it is.

        That is `effective_message` without the user's own text at its end. So whoever prepends
        `graph_context` to a message shows the whole bundle, and whoever reads `task_context` finds what was
        there.
        """
        return {**payload, "graph_context": self._above_message}

    @property
    def _above_message(self) -> str:
        return graph_context(self.parts, preamble=self.preamble, template=self.template)


def assembly_of(assembled: Assembled) -> ContextAssembly:
    """The assembly of a bundle that was asked for with `usage` and `parts`."""
    sealed, bundle = assembled.trail.sealed.finished.sealed, assembled.bundle
    totals = assembled.usage.usage
    if totals is None or bundle.parts is None:  # asked for both, so both are there
        raise AssertionError
    usage = ContextUsage(
        ContextBudget(total=totals.total, **{layer: totals.layers[layer].budget for layer in LAYERS})
    )
    for layer in LAYERS:
        usage.spend(layer, totals.layers[layer].spent)
    return ContextAssembly(
        parts=bundle.parts,
        usage=usage,
        preamble=sealed.preamble,
        template=sealed.template,
        citations=bundle.citations,
        is_exact=sealed.is_exact,
    )


# --- Without the pipeline ----------------------------------------------------------------------------


def raw_assembly(
    texts: Mapping[PartName, str],
    *,
    system: str,
    user: str,
    budget: ContextBudget,
    counter: TokenCounter,
) -> ContextAssembly:
    """An assembly of plain texts: each in its layer's reservation and in what `system` and `user` leave.

    Those two are never cut. The joined message is counted as a whole, and each token charged to the part
    that holds its first byte; where a seam makes it too long, the layer that lends first gives way. The
    ledger's budget is what each part spends, within the same total. Raises BudgetTooSmall where the two and
    `output` exceed it.
    """
    parts: dict[PartName, str] = {**dict.fromkeys(PARTS, ""), "system": system, "user": user}
    left = budget.total - budget.output - counter.count(system) - counter.count(user)
    if left < 0:
        raise BudgetTooSmall(layer="user", overage_tokens=-left, total_tokens=budget.total)
    for layer in CONTENT_LAYERS:
        parts[layer] = _section(texts.get(layer, ""), min(left, budget.layer_budget(layer)), counter)
        left -= counter.count(parts[layer])
    spent = _charged(parts, counter)
    while (over_tokens := sum(spent.values()) + budget.output - budget.total) > 0:
        lender: PartName = next(layer for layer in LENDING_ORDER if parts[layer])
        room = counter.count(parts[lender]) - over_tokens
        parts[lender] = _section(texts[lender], room, counter)
        spent = _charged(parts, counter)
    usage = ContextUsage(ContextBudget(total=budget.total, output=budget.output, **spent))
    for layer, tokens in spent.items():
        usage.spend(layer, tokens)
    is_exact = counter.exact and all(map(counter.is_exact, (system, _message(parts))))
    return ContextAssembly(parts=parts, usage=usage, is_exact=is_exact, is_raw=True)


def raw_usage(
    assembly: ContextAssembly,
    request: AssemblyRequest,
    *,
    budget: ContextBudget,
    model: str,
    timestamp: datetime,
) -> UsageEvent:
    """The usage event of a raw assembly: degraded, since no source was heard to its end.

    A layer that shows something is `partial`, one that does not has `failed`. `budget` is what was asked for.
    """
    statuses: dict[PartName, LayerOutcome] = {
        layer: _outcome(assembly.parts[layer], is_content=layer in CONTENT_LAYERS) for layer in PARTS
    }
    reserved: dict[LayerName, int] = {layer: budget.layer_budget(layer) for layer in LAYERS}
    return UsageEvent(
        event_id=usage_event_id(request.project_id, request.request_id, 0),
        timestamp=timestamp,
        project_id=request.project_id,
        request_id=request.request_id,
        generation=0,
        volk_alias=request.volk,
        subject=request.subject,
        thread_id=request.thread_id,
        model=model,
        outcome="degraded",
        usage=UsageTotals.model_validate(assembly.usage.to_dict()),
        requested_total=budget.total,
        overhead=_NO_OVERHEAD,
        reserved=reserved,
        statuses=statuses,
        timings_ms=None,
        exact=assembly.is_exact,
        counts=None,
    )


def _section(text: str, room_tokens: int, counter: TokenCounter) -> str:
    """The beginning of the text that fits with the gap that ends it; empty where nothing does."""
    # Counted with the gap: a seam may cost a token more than its two sides, or one less.
    whole = text.rstrip()
    if not counter.fits(whole + SECTION_GAP, room_tokens):
        whole = trim_to_budget(whole, room_tokens - counter.count(SECTION_GAP), counter)
    return whole + SECTION_GAP if whole and counter.fits(whole + SECTION_GAP, room_tokens) else ""


def _message(parts: Mapping[PartName, str]) -> str:
    return "".join([parts[layer] for layer in PARTS if layer != "system"])


def _charged(parts: Mapping[PartName, str], counter: TokenCounter) -> dict[PartName, int]:
    """Tokens by part, one encoding a message."""
    shown: list[PartName] = [layer for layer in PARTS if layer != "system" and parts[layer]]
    ends = accumulate([len(parts[layer]) for layer in shown])
    charged = charge_spans(counter, _message(parts), list(zip(shown, ends, strict=True)))
    charged["system"] = counter.count(parts["system"])
    return {layer: charged.get(layer, 0) for layer in PARTS}


def _outcome(text: str, *, is_content: bool) -> LayerOutcome:
    if is_content:
        status, reason = ("partial", "section_error") if text else ("failed", "error")
        return LayerOutcome(status=status, reason=reason)
    return LayerOutcome(status="ok") if text else LayerOutcome(status="empty", reason="no_data")
