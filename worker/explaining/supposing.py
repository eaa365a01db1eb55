"""What another budget or strategy would change, found by making the bundle again with it.

The sources are asked nothing: they gave what they gave for the budget that they were told. So a larger budget
shows more of that, and not what a source would have added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from schemas.codes import PARTS, LayerStatus
from schemas.receipt import Fate, ReceiptRecord
from schemas.request import AssemblyRequest, BudgetRequest
from worker.errors import Rejected
from worker.explaining.difference import FragmentChange, by_name, fragment_changes
from worker.explaining.replay import fuse_again
from worker.explaining.view import SHOWN
from worker.planning import ContentPolicy
from worker.receipts.capture import Capture
from worker.sealing import SealedBundle

STEP_TOKENS: Final = 1_000
_WHOLE: Final = frozenset[Fate]({"kept", "merged", "capped"})
"""Fates of all that there is where all is shown that could be: what sources kept back no budget brings in."""

_NOT_ALL: Final[Mapping[LayerStatus, str]] = {"failed": "failed", "partial": "gave only a part"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Supposition:
    """What is supposed to be otherwise."""

    total_tokens: int | None = None
    layers: Mapping[str, int] = field(default_factory=dict[str, int])
    """Reservations in tokens; those of other layers stay as the request has them."""
    strategy: str | None = None

    def applied(self, request: AssemblyRequest) -> AssemblyRequest:
        """The request with it. Raises ValueError where a number cannot be a budget."""
        asked = request.budget or BudgetRequest()
        budget = BudgetRequest.model_validate(
            {
                "total": asked.total if self.total_tokens is None else self.total_tokens,
                "layers": {**asked.layers, **self.layers},
                "client_overhead_tokens": asked.client_overhead_tokens,
            }
        )
        return request.model_copy(update={"budget": budget, "strategy": self.strategy or request.strategy})


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChange:
    """One layer's budget and what it spends of it, both ways."""

    layer: str
    budget_before: int
    budget_after: int
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A fragment that another thousand tokens bring in, or show deeper."""

    layer: str
    node: str
    score: float
    tokens: int
    """How many more are spent on it."""
    depth_before: int | None
    depth_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What the next tokens bring."""

    total_tokens: int
    arrivals: tuple[Arrival, ...]
    """Best score first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supposed:
    """What would be otherwise."""

    total_before: int
    total_after: int
    spent_before: int
    spent_after: int
    layers: tuple[LayerChange, ...]
    """Those whose budget or spending differs."""
    fragments: tuple[FragmentChange, ...]
    worth: tuple[Worth, ...]
    """Of each further thousand tokens, up to the window."""
    worth_end: str
    """Why there are no further steps."""
    unknown: tuple[str, ...]
    """What the sources that did not answer, or not wholly, leave open: a sentence for each kind of it."""


def suppose(capture: Capture, policy: ContentPolicy, supposition: Supposition, *, steps: int = 3) -> Supposed:
    """Make the bundle as it was and as supposed, and as with each further thousand tokens.

    Raises Rejected where the supposition cannot be served, ValueError where it is none. Costs a fusing for
    each step and two more.
    """
    before = fuse_again(capture, policy)
    request = supposition.applied(capture.request)
    after = fuse_again(capture, policy, request=request)
    worth, end = _worth(capture, policy, supposition, after, steps=steps)
    usage, usage_after = before.finished.usage, after.finished.usage
    return Supposed(
        total_before=usage.total,
        total_after=usage_after.total,
        spent_before=usage.spent,
        spent_after=usage_after.spent,
        layers=tuple(_layer_changes(before, after)),
        fragments=fragment_changes(_record(before), _record(after)),
        worth=worth,
        worth_end=end,
        unknown=unknown_of(_record(before)),
    )


def _worth(
    capture: Capture, policy: ContentPolicy, supposition: Supposition, start: SealedBundle, *, steps: int
) -> tuple[tuple[Worth, ...], str]:
    worth: list[Worth] = []
    asked = supposition.applied(capture.request).budget
    spec = capture.header.spec
    total = (asked.total if asked else None) or (spec.window if spec else start.finished.usage.total)
    previous = _record(start)
    for number in range(1, steps + 1):
        more = Supposition(
            total_tokens=total + number * STEP_TOKENS,
            layers=supposition.layers,
            strategy=supposition.strategy,
        )
        try:
            record = _record(fuse_again(capture, policy, request=more.applied(capture.request)))
        except Rejected as error:
            return tuple(worth), error.message
        worth.append(Worth(total_tokens=total + number * STEP_TOKENS, arrivals=_arrivals(previous, record)))
        if is_shown_whole(record):
            return tuple(worth), _said_whole(record)
        previous = record
    return tuple(worth), ""


def is_shown_whole(record: ReceiptRecord) -> bool:
    """Whether all that the sources gave is shown whole, or as part of what is; lines and counts alike."""
    return all(line.fate in _WHOLE for line in (*record.fragments, *record.omitted))


def unknown_of(record: ReceiptRecord) -> tuple[str, ...]:
    """Which layers did not give all that they have, with the cause; in the order of the sources."""
    layers: dict[tuple[str, str], list[str]] = {}
    for source in record.sources:
        if source.status in _NOT_ALL:
            layers.setdefault((_NOT_ALL[source.status], source.reason or "error"), []).append(source.layer)
    return tuple(
        [
            f"{', '.join(names)} {did} ({reason}): what they would have given is unknown"
            for (did, reason), names in layers.items()
        ]
    )


def _said_whole(record: ReceiptRecord) -> str:
    capped = sum(source.capped for source in record.sources)
    said = "everything that the sources gave is shown whole"
    return f"{said}; {capped:,} more they left out themselves" if capped else said


def _arrivals(before: ReceiptRecord, after: ReceiptRecord) -> tuple[Arrival, ...]:
    shown = {name: line for name, line in by_name(before).items() if line.fate in SHOWN}
    arrivals: list[Arrival] = []
    for name, line in by_name(after).items():
        old = shown.get(name)
        more = (line.tokens or 0) - ((old.tokens or 0) if old else 0)
        if line.fate in SHOWN and line.depth is not None and more > 0:
            arrivals.append(
                Arrival(
                    layer=line.layer,
                    node=line.node,
                    score=line.score or 0.0,
                    tokens=more,
                    depth_before=old.depth if old else None,
                    depth_after=line.depth,
                )
            )
    return tuple(sorted(arrivals, key=lambda a: (-a.score, a.layer, a.node)))


def _layer_changes(before: SealedBundle, after: SealedBundle) -> list[LayerChange]:
    changes: list[LayerChange] = []
    for layer in PARTS:
        old, new = before.layers[layer], after.layers[layer]
        if (old.budget_tokens, old.tokens) != (new.budget_tokens, new.tokens):
            changes.append(
                LayerChange(
                    layer=layer,
                    budget_before=old.budget_tokens,
                    budget_after=new.budget_tokens,
                    tokens_before=old.tokens,
                    tokens_after=new.tokens,
                )
            )
    return changes


def _record(sealed: SealedBundle) -> ReceiptRecord:
    return ReceiptRecord.model_validate_json(sealed.recorded.record)
