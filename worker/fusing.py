"""From what the sources gave to the sealed bundle. Pure: all the work that grows with the texts, and no I/O.

`fuse` decides what is shown, `sealing` writes it down. A capture holds what a `Fusing` holds, so that a
bundle can be made again without its sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from schemas.codes import CONTENT_LAYERS, LAYERS, PartName
from schemas.trusted import trusted
from schemas.usage import LayerSpend, OverheadTokens, UsageTotals
from worker.budget.allocation import demands_for, fit_floors, flow_on
from worker.budget.layers import ContextBudget
from worker.budget.ledger import ContextUsage
from worker.budget.tokens import TokenCounter, count_lines, lines_fit
from worker.errors import PinsExceedWindow
from worker.fusion.finish import join_and_seal
from worker.fusion.masking import Admitted
from worker.fusion.pipeline import Candidates
from worker.fusion.protocols import PackedLayer
from worker.fusion.strategies.recorded import PluginProposal
from worker.planning import Plan
from worker.ports import LayerContribution, RequestFrame
from worker.receipts.capture import write_capture
from worker.sealing import Finished, SealedBundle, seal_bundle

_MARK_BYTES: Final = 10
"""What a capture's header has for a fragment beside its key: a relevance or a count, quotes, commas."""


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


def _unwatched() -> None:
    """Nobody asks how long the steps take."""


def fuse_and_seal(fusing: Fusing, *, next_step: Callable[[], None] = _unwatched) -> SealedBundle:
    """From what the sources gave to the bundle: all that takes CPU in proportion to the texts.

    A pure function; `next_step` is called where fusing ends and finishing begins, and again before sealing.
    Raises UnknownStrategy, PinsExceedWindow.
    """
    frame, plan, admitted = fusing.frame, fusing.plan, fusing.admitted
    finished = fuse(frame, plan, admitted.contributions, fusing.proposals, next_step=next_step)
    next_step()
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
    *,
    next_step: Callable[[], None] = _unwatched,
) -> Finished:
    """Rank, make room for the pins, pack each layer, join, count, seal the budget, and spend it.

    `proposals` are what `plan.plugins` said to these contributions; `next_step` is called when the layers are
    packed. What must be shown goes before what helps to cite it: where the pins do not fit else, the prompt
    does without the template, then without ids. Raises UnknownStrategy, PinsExceedWindow.
    """
    when_packed = _once(next_step)

    def finish(plan: Plan, *, is_labelled: bool) -> Finished:
        return _finish(
            frame, plan, contributions, proposals, is_labelled=is_labelled, when_packed=when_packed
        )

    if "citations" not in frame.request.include:
        return finish(plan, is_labelled=False)
    with suppress(PinsExceedWindow):
        return finish(plan, is_labelled=True)
    bare = plan.without_template()
    if bare is not plan:
        with suppress(PinsExceedWindow):
            return finish(bare, is_labelled=True)
    return replace(finish(bare, is_labelled=False), is_cramped=True)


def _once(act: Callable[[], None]) -> Callable[[], None]:
    """The same, which does nothing when it is called again."""
    waiting = [act]
    return lambda: waiting.pop()() if waiting else None


def _finish(
    frame: RequestFrame,
    plan: Plan,
    contributions: Mapping[PartName, LayerContribution],
    proposals: Sequence[PluginProposal],
    *,
    is_labelled: bool,
    when_packed: Callable[[], None],
) -> Finished:
    """`fuse` within this plan, with ids in the texts or without. Raises PinsExceedWindow where that fails."""
    fusion, counter, request = plan.fusion, plan.counter, frame.request
    candidates = fusion.rank(
        frame,
        contributions,
        budget_tokens=plan.content_tokens,
        counter=counter,
        proposals=proposals,
        is_labelled=is_labelled,
    )
    filled: list[PartName] = [layer for layer in CONTENT_LAYERS if candidates.scored[layer]]
    floor_sections: dict[PartName, list[str]] = {layer: candidates.floor_section(layer) for layer in filled}
    floors: dict[PartName, int] = {
        layer: count_lines(counter, lines) for layer, lines in floor_sections.items() if lines
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

    packed: dict[PartName, PackedLayer] = {
        layer: pack(layer, effective.layer_budget(layer)) for layer in filled
    }
    when_packed()
    sealed = join_and_seal(
        system=request.system_prompt,
        user=request.user_message,
        preamble=plan.preamble,
        template=plan.template,
        budget=effective,
        floors=floors,
        packed=packed,
        repack=pack,
        counter=counter,
    )
    overhead = OverheadTokens(
        client=plan.overhead.client,
        framing=plan.overhead.framing,
        preamble=sealed.preamble_tokens,
        template=sealed.template_tokens if sealed.template else None,
    )
    unused = plan.overhead.preamble - sealed.preamble_tokens + plan.overhead.template - sealed.template_tokens
    budget = _with_returned(sealed.budget, unused)
    ledger = ContextUsage(budget)
    for layer, tokens in sealed.spent.items():
        if tokens:
            ledger.spend(layer, tokens)
    return Finished(
        sealed=sealed,
        candidates=candidates,
        budget=budget,
        overhead=overhead,
        usage=_totals(ledger),
        is_cramped=plan.is_cramped,
    )


@lru_cache(maxsize=1_024)
def _with_returned(budget: ContextBudget, tokens: int) -> ContextBudget:
    """The budget with what was set aside for preamble and template and not spent on them."""
    return replace(budget, total=budget.total + tokens)


def _totals(ledger: ContextUsage) -> UsageTotals:
    """The ledger as it is published."""
    totals = ledger.to_dict()
    return trusted(
        UsageTotals,
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
    wholes: dict[PartName, list[str]] = {layer: candidates.whole_section(layer) for layer in CONTENT_LAYERS}
    if all(lines_fit(counter, lines, effective.layer_budget(layer)) for layer, lines in wholes.items()):
        return effective

    def flowed(budget: ContextBudget, texts: Mapping[PartName, Sequence[str]]) -> ContextBudget:
        return flow_on(budget, demands=demands_for(budget, texts, counter))

    if not candidates.is_all_wanted:
        # First what the strategies have a share for, whatever it takes from others; then what is left over.
        effective = flowed(effective, {layer: candidates.wanted_section(layer) for layer in CONTENT_LAYERS})
    return flowed(effective, wholes)
