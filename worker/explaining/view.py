"""What a person is shown of one bundle: layer by layer, what is in it, what stayed out, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from schemas.bundle import LayerReport
from schemas.codes import PARTS, LayerReason, LayerStatus, PartName
from schemas.receipt import Fate, FragmentRule, ReceiptFragment, ReceiptRecord
from schemas.times import format_time
from worker.budget.tokens import counter_for
from worker.explaining.stored import Stored
from worker.ports import Fragment, TokenCounter
from worker.receipts.capture import Capture, CaptureUnreadable

SHOWN: Final[frozenset[Fate]] = frozenset({"kept", "reduced", "cut"})

WHY: Final[Mapping[FragmentRule, str]] = {
    "whole": "room for everything",
    "fits": "fitted whole",
    "pinned_floor": "pinned: its shortest form",
    "shallower": "its whole did not fit",
    "name": "no more of it fitted",
    "cut": "its beginning filled the room",
    "no_room": "the room went to better ones",
    "not_proposed": "no strategy wanted it",
    "exact": "the same as",
    "contained": "part of",
    "same_node": "shows the same thing as",
    "source_cap": "its source gives no more",
}
"""Each rule in words; those of merged fragments go on with the one that speaks for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentView:
    """One fragment as it is shown to a person."""

    node: str
    fate: Fate
    rule: FragmentRule
    why: str
    rank: int
    score: float | None
    depth: int | None
    tokens: int | None
    """Spent on it; None where it is not shown."""
    whole_tokens: int | None
    """What all of it takes: shown whole, the same as `tokens`; else its deepest rendering counted alone.

    None without a capture.
    """
    size_bytes: int
    masked: int
    strategies: tuple[str, ...]
    also_from: tuple[str, ...]
    """The other fragments that it speaks for, each as its layer and node."""
    text: str | None
    """The deepest rendering; None without a capture."""

    @property
    def is_shown(self) -> bool:
        """Whether any of it is in the prompt."""
        return self.fate in SHOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class RestView:
    """Fragments that have no line of their own."""

    fate: Fate
    rule: FragmentRule
    why: str
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerView:
    """One of the ten parts: its budget, and what became of what its source gave.

    Token fields are None where the bundle was read without its ledger.
    """

    layer: PartName
    status: LayerStatus | None
    reason: LayerReason | None
    tokens: int | None
    budget_tokens: int | None
    reserved_tokens: int | None
    fragments: tuple[FragmentView, ...]
    rest: tuple[RestView, ...]

    @property
    def shown(self) -> tuple[FragmentView, ...]:
        """Those in the prompt, in packing order."""
        return tuple([fragment for fragment in self.fragments if fragment.is_shown])

    @property
    def left_out(self) -> tuple[FragmentView, ...]:
        """Those that are not, best first."""
        return tuple([fragment for fragment in self.fragments if not fragment.is_shown])


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that one page or screen says of a bundle."""

    project_id: str
    request_id: str
    thread_id: str | None
    receipt_id: str
    status: str
    volk: str
    subject: str
    task_type: str
    model: str
    encoding: str
    as_of: str
    snapshot_id: str | None
    settings_digest: str
    code_version: str
    strategies: tuple[str, ...]
    failures: tuple[str, ...]
    """Strategies that failed, each with its code."""
    considered: int
    kept: int
    dropped: int
    masked_secrets: int | None
    total_tokens: int | None
    spent_tokens: int | None
    layers: tuple[LayerView, ...]
    capture: str
    """`kept`, or the code of why there is none."""


def explain(stored: Stored) -> Explanation:
    """What became of every fragment; where a capture is kept, with their texts and what all of each takes."""
    bundle, record = stored.bundle, stored.record
    try:
        capture, capture_state = stored.capture(), "kept"
    except CaptureUnreadable as error:
        capture, capture_state = None, error.code
    usage = bundle.usage or (stored.usage.usage if stored.usage else None)
    counts = bundle.receipt.counts
    return Explanation(
        project_id=bundle.project_id,
        request_id=bundle.request_id,
        thread_id=bundle.thread_id,
        receipt_id=bundle.receipt.receipt_id,
        status=bundle.status,
        volk=bundle.volk,
        subject=bundle.subject,
        task_type=bundle.task_type,
        model=record.model,
        encoding=record.encoding,
        as_of=format_time(record.as_of),
        snapshot_id=record.snapshot_id,
        settings_digest=record.settings_digest,
        code_version=record.code_version,
        strategies=record.strategies,
        failures=tuple([f"{failure.name}: {failure.code}" for failure in record.failures]),
        considered=counts.considered,
        kept=counts.kept,
        dropped=counts.dropped,
        masked_secrets=record.masked_secrets,
        total_tokens=usage.total if usage else None,
        spent_tokens=usage.spent if usage else None,
        layers=layer_views(record, _reports(stored), capture),
        capture=capture_state,
    )


def layer_views(
    record: ReceiptRecord, reports: Mapping[PartName, LayerReport], capture: Capture | None
) -> tuple[LayerView, ...]:
    """The ten parts in joined order."""
    texts = _Texts(record, capture)
    spoken_for = _spoken_for(record.fragments)
    sources = {source.layer: source for source in record.sources}
    views: list[LayerView] = []
    for layer in PARTS:
        report, source = reports.get(layer), sources.get(layer)
        views.append(
            LayerView(
                layer=layer,
                status=report.status if report else (source.status if source else None),
                reason=report.reason if report else (source.reason if source else None),
                tokens=report.tokens if report else None,
                budget_tokens=report.budget_tokens if report else None,
                reserved_tokens=report.reserved_tokens if report else None,
                fragments=tuple(
                    [
                        texts.view(line, also_from=also_from)
                        for line, also_from in zip(record.fragments, spoken_for, strict=True)
                        if line.layer == layer
                    ]
                ),
                rest=tuple(_rest(record, layer)),
            )
        )
    return tuple(views)


def why(line: ReceiptFragment) -> str:
    """The rule that decided, as a person would say it."""
    return f"{WHY[line.rule]} {line.into}" if line.into else WHY[line.rule]


def _spoken_for(lines: Sequence[ReceiptFragment]) -> list[tuple[str, ...]]:
    """For each line the fragments that were merged into it.

    Their lines follow its own; each is asked whose it is, for one that is only counted has no line.
    """
    spoken_for: list[tuple[str, ...]] = []
    following: list[ReceiptFragment] = []
    for line in reversed(lines):
        if line.into is not None:
            following.append(line)
            spoken_for.append(())
            continue
        name = f"{line.layer}:{line.node}"
        mine = [f"{other.layer}:{other.node}" for other in reversed(following) if other.into == name]
        spoken_for.append(tuple(mine))
        following = []
    return spoken_for[::-1]


def _rest(record: ReceiptRecord, layer: PartName) -> Iterator[RestView]:
    for rest in record.omitted:
        if rest.layer == layer:
            yield RestView(
                fate=rest.fate,
                rule=rest.rule,
                why="like others" if rest.fate == "merged" else WHY[rest.rule],
                count=rest.count,
                size_bytes=rest.size_bytes,
            )


def _reports(stored: Stored) -> Mapping[PartName, LayerReport]:
    """From the bundle, else from its usage event, which counts no fragments."""
    if stored.bundle.layers is not None:
        return stored.bundle.layers
    usage = stored.usage
    if usage is None or usage.usage is None or usage.statuses is None:
        return {}
    reserved = usage.reserved or {}
    return {
        layer: LayerReport(
            status=outcome.status,
            reason=outcome.reason,
            tokens=usage.usage.layers[layer].spent,
            budget_tokens=usage.usage.layers[layer].budget,
            reserved_tokens=reserved.get(layer, 0),
            fragments=0,
        )
        for layer, outcome in usage.statuses.items()
    }


class _Texts:
    """What a capture adds to the receipt's lines: texts, and what they take."""

    def __init__(self, record: ReceiptRecord, capture: Capture | None) -> None:
        self._fragments: dict[tuple[str, str, int], Fragment] = {}
        self._counter: TokenCounter | None = None
        if capture is None:
            return
        for contribution in capture.admitted.contributions.values():
            for fragment in contribution.fragments:
                self._fragments.setdefault((fragment.layer, fragment.node, fragment.rank), fragment)
                self._fragments.setdefault((fragment.layer, fragment.node, -1), fragment)
        spec = capture.header.spec
        self._counter = counter_for(record.encoding, safety_factor=spec.safety_factor if spec else "1")

    def view(self, line: ReceiptFragment, *, also_from: tuple[str, ...]) -> FragmentView:
        plain = FragmentView(
            node=line.node,
            fate=line.fate,
            rule=line.rule,
            why=why(line),
            rank=line.rank,
            score=line.score,
            depth=line.depth,
            tokens=line.tokens,
            whole_tokens=None,
            size_bytes=line.size_bytes,
            masked=line.masked,
            strategies=line.strategies or (),
            also_from=also_from,
            text=None,
        )
        # A fragment that others were merged into may have the rank of one of them.
        fragment = self._fragments.get((line.layer, line.node, line.rank)) or self._fragments.get(
            (line.layer, line.node, -1)
        )
        if fragment is None or self._counter is None:
            return plain
        text = fragment.renderings[0].text
        # Alone a text may take a token more or less: in the prompt it shares some with its neighbours, and
        # a safety factor is rounded once, for all of them.
        is_charged = line.fate == "kept" and line.tokens is not None
        return replace(
            plain, text=text, whole_tokens=line.tokens if is_charged else self._counter.count(text)
        )
