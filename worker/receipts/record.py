"""The receipt's record, as canonical JSON, written while the bundle is sealed.

Every request pays for this, so the bytes are written directly, and no token is counted twice: what a shown
fragment costs is read off the one encoding of the joined text. What a fragment that is not shown would cost
is not known here; `worker.explaining` counts it when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from json.encoder import encode_basestring

import numpy as np
from numpy.typing import NDArray

from schemas.codes import CONTENT_LAYERS, PARTS, PartName
from schemas.receipt import (
    MAX_LEFT_OUT_LINES,
    MAX_SHOWN_LINES,
    Fate,
    FragmentRule,
    ReceiptCounts,
    receipt_id,
)
from schemas.times import format_time
from schemas.wire import SCHEMA_VERSION
from worker.budget.utf8 import byte_length
from worker.fusion.finish import Sealed
from worker.fusion.masking import Admitted
from worker.fusion.payload import spans_of
from worker.fusion.pipeline import Candidates
from worker.fusion.protocols import Placed
from worker.planning import Plan
from worker.ports import Absorbed, Fragment, RequestFrame, TokenCounter, source_of
from worker.receipts.capture import Contributed, contributed


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The record of one bundle, and what the capture will hold of the sources."""

    record: bytes
    """Canonical JSON of a `ReceiptRecord`."""
    receipt_id: str
    counts: ReceiptCounts
    sources: Mapping[PartName, Contributed]
    tokens_by_source: dict[str, int]
    """Tokens of the shown fragments by where they come from, by name; headings and marks are no source's."""


def write_record(
    frame: RequestFrame,
    plan: Plan,
    admitted: Admitted,
    candidates: Candidates,
    sealed: Sealed,
    *,
    request_digest: str,
    request_line_digest: str,
    context_hash: str,
) -> Recorded:
    """The record of a sealed prompt. O(fragments), a few microseconds each, and a digest of every text."""
    sources: dict[PartName, Contributed] = {
        layer: contributed(admitted.contributions[layer])
        for layer in CONTENT_LAYERS
        if layer in admitted.contributions
    }
    tokens = shown_tokens(sealed, plan.counter) if sealed.packed else {}
    written = _Lines(admitted, candidates, tokens)
    for layer in PARTS:
        given = admitted.contributions.get(layer)
        if given is not None and given.fragments:
            packed = sealed.packed.get(layer)
            written.write_layer(layer, packed.placed if packed is not None else ())
    for layer, source in sources.items():
        if source.capped:
            written.count(layer, "capped", "source_cap", 0, count=source.capped)
    record = _record(
        frame,
        plan,
        admitted,
        written,
        sources=tuple(sources.values()),
        request_digest=request_digest,
        request_line_digest=request_line_digest,
    )
    considered = sum([source.fragments + source.capped for source in sources.values()])
    kept = sum([len(packed.placed) for packed in sealed.packed.values()])
    return Recorded(
        record=record,
        receipt_id=receipt_id(frame.request.project_id, context_hash, record),
        counts=_counts(considered, kept),
        sources=sources,
        tokens_by_source=_by_source(sealed, tokens),
    )


@lru_cache(maxsize=1_024)
def _counts(considered: int, kept: int) -> ReceiptCounts:
    return ReceiptCounts(considered=considered, kept=kept, dropped=considered - kept)


def _by_source(sealed: Sealed, tokens: Mapping[str, int]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for packed in sealed.packed.values():
        for placed in packed.placed:
            source = source_of(placed.fragment.node)
            sums[source] = sums.get(source, 0) + tokens.get(placed.fragment.key, 0)
    return dict(sorted(sums.items()))


def shown_tokens(sealed: Sealed, counter: TokenCounter) -> dict[str, int]:
    """Tokens charged to the text of each shown fragment, by its key; headings, marks and breaks to none.

    Each token counts where its first byte is, as in the ledger.
    """
    content = sealed.messages[-1].content
    places: list[tuple[str, int, int]] = []
    offset = len(sealed.preamble) + len(sealed.template)
    for layer in PARTS:
        if layer == "system":
            continue
        if layer in sealed.packed:
            places += [
                (placed.fragment.key, offset + start, offset + end)
                for placed, (start, end) in spans_of(sealed.packed[layer])
            ]
        offset += len(sealed.parts[layer])
    if not places:
        return {}
    stops = np.array([stop for _, *both in places for stop in both], dtype=np.int64)
    ends = sealed.token_ends
    if ends is None:
        ends = counter.token_ends(content)
    starts = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1]))[: len(ends)]
    raw = np.searchsorted(starts, _byte_offsets(content, stops), side="left").tolist()
    return {
        key: counter.scale(raw[2 * number + 1]) - counter.scale(raw[2 * number])
        for number, (key, _, _) in enumerate(places)
    }


def _byte_offsets(content: str, stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where these characters stand in the text's UTF-8; `stops` never fall."""
    if content.isascii():
        return stops
    edges = [0, *stops.tolist()]
    sizes = [byte_length(content[a:b]) for a, b in pairwise(edges)]
    return np.array(list(accumulate(sizes)), dtype=np.int64)


# --- Lines -------------------------------------------------------------------------------------------


class _Lines:
    """The lines of all layers, and the counts of what has none."""

    def __init__(self, admitted: Admitted, candidates: Candidates, tokens: Mapping[str, int]) -> None:
        self.lines: list[str] = []
        self.rest: dict[tuple[PartName, Fate, FragmentRule], tuple[int, int]] = {}
        self._admitted = admitted
        self.candidates = candidates
        self._tokens = tokens
        execution = candidates.execution
        self._names: Mapping[str, tuple[str, ...]] = (
            execution.proposed_by if len(execution.strategies_used) > 1 else {}
        )
        self._given: dict[str, Fragment] | None = None
        self._shown = 0

    def write_layer(self, layer: PartName, placed: Sequence[Placed]) -> None:
        """What reached packing, each with what it speaks for; then what no strategy proposed."""
        shown = {item.fragment.key: item for item in placed}
        left_out = 0
        for item in sorted(self.candidates.scored[layer], key=lambda s: s.order_key):
            seen = shown.get(item.fragment.key)
            if seen is None:
                left_out += 1
                self._add(item.fragment, "dropped", "no_room", score=item.score, place=left_out)
            else:
                self._add_shown(seen)
            for other in item.fragment.absorbed:
                left_out += 1
                self._add_merged(other, item.fragment, place=left_out)
        proposed = self.candidates.execution.proposed_by
        contribution = self._admitted.contributions.get(layer)
        for fragment in contribution.fragments if contribution is not None else ():
            if fragment.key not in proposed:
                left_out += 1
                self._add(fragment, "dropped", "not_proposed", place=left_out)

    def count(
        self, layer: PartName, fate: Fate, rule: FragmentRule, size_bytes: int, *, count: int = 1
    ) -> None:
        """Count fragments that have no line."""
        before, bytes_before = self.rest.get((layer, fate, rule), (0, 0))
        self.rest[layer, fate, rule] = (before + count, bytes_before + size_bytes)

    def _add_shown(self, placed: Placed) -> None:
        fragment = placed.fragment
        deepest = self.candidates.levels[fragment.key][0].text
        fate: Fate = "cut" if placed.is_cut else ("kept" if placed.text == deepest else "reduced")
        self._shown += 1
        if self._shown > MAX_SHOWN_LINES:
            self.count(fragment.layer, fate, placed.rule, _size(fragment))
            return
        self.lines.append(
            self._line(
                fragment,
                fate,
                placed.rule,
                score=placed.score,
                depth=placed.depth,
                tokens=self._tokens.get(fragment.key, 0),
            )
        )

    def _add(
        self, fragment: Fragment, fate: Fate, rule: FragmentRule, *, place: int, score: float | None = None
    ) -> None:
        if place > MAX_LEFT_OUT_LINES:
            self.count(fragment.layer, fate, rule, _size(fragment))
        else:
            self.lines.append(self._line(fragment, fate, rule, score=score))

    def _add_merged(self, other: Absorbed, survivor: Fragment, *, place: int) -> None:
        if self._given is None:
            contributions = self._admitted.contributions.values()
            self._given = {f.key: f for c in contributions for f in c.fragments}
        fragment = self._given[other.key]
        if place > MAX_LEFT_OUT_LINES:
            self.count(other.layer, "merged", other.rule, _size(fragment))
        else:
            into = f"{survivor.layer}:{survivor.node}"
            self.lines.append(self._line(fragment, "merged", other.rule, into=into))

    def _line(
        self,
        fragment: Fragment,
        fate: Fate,
        rule: FragmentRule,
        *,
        score: float | None = None,
        depth: int | None = None,
        tokens: int | None = None,
        into: str | None = None,
    ) -> str:
        """Keys in canonical order, absent ones left out."""
        key = fragment.key
        names = self._names.get(key, ())
        return (
            "{"
            + ("" if depth is None else f'"depth":{depth},')
            + f'"fate":"{fate}",'
            + ("" if into is None else f'"into":{_text(into)},')
            + f'"layer":"{fragment.layer}","masked":{self._admitted.masked.get(key, 0)},'
            f'"node":{_text(fragment.node)},"rank":{max(0, fragment.rank)},"rule":"{rule}",'
            + ("" if score is None else f'"score":{_number(score)},')
            + f'"size_bytes":{_size(fragment)}'
            + (f',"strategies":[{",".join(map(_text, names))}]' if names else "")
            + ("" if tokens is None else f',"tokens":{tokens}')
            + "}"
        )


def _size(fragment: Fragment) -> int:
    return byte_length(fragment.renderings[0].text)


def _number(score: float) -> str:
    """A score of 0 to 1 with six decimals, as RFC 8785 spells it."""
    return f"{score:.6f}".rstrip("0").rstrip(".")


def _text(value: str) -> str:
    return encode_basestring(value)


def _record(
    frame: RequestFrame,
    plan: Plan,
    admitted: Admitted,
    written: _Lines,
    *,
    sources: tuple[Contributed, ...],
    request_digest: str,
    request_line_digest: str,
) -> bytes:
    """The whole, its keys in canonical order."""
    execution = written.candidates.execution
    failures = ",".join(
        [f'{{"code":"{failure.code}","name":{_text(failure.name)}}}' for failure in execution.failures]
    )
    graph = admitted.contributions.get("graph")
    snapshot_id = graph.measures.snapshot_id if graph is not None and graph.measures is not None else None
    masked = f'"masked_secrets":{sum(admitted.masked.values())},' if admitted.is_masking else ""
    snapshot = f',"snapshot_id":{_text(snapshot_id)}' if snapshot_id else ""
    policy, window = plan.policy, plan.window
    return (
        f'{{"as_of":"{format_time(frame.as_of)}","code_version":{_text(policy.code_version)}'
        f',"encoding":{_text(window.encoding)},"failures":[{failures}]'
        f',"fragments":[{",".join(written.lines)}],"kind":"receipt",{masked}'
        f'"model":{_text(window.model)},"omitted":[{",".join(_rest(written))}]'
        f',"request_digest":"{request_digest}","request_line_digest":"{request_line_digest}"'
        f',"schema_version":"{SCHEMA_VERSION}","settings_digest":{_text(policy.settings_digest)}{snapshot}'
        f',"sources":[{_sources(sources)}]'
        f',"strategies":[{",".join(map(_text, execution.strategies_used))}]}}'
    ).encode()


def _rest(written: _Lines) -> Iterator[str]:
    for (layer, fate, rule), (count, size_bytes) in sorted(written.rest.items()):
        yield (
            f'{{"count":{count},"fate":"{fate}","layer":"{layer}","rule":"{rule}","size_bytes":{size_bytes}}}'
        )


# Not remembered: who remembers it keeps all that the sources of a request gave.
def _sources(sources: tuple[Contributed, ...]) -> str:
    return ",".join([_source(source) for source in sources])


def _source(source: Contributed) -> str:
    reason = "" if source.reason is None else f',"reason":"{source.reason}"'
    return (
        f'{{"capped":{source.capped},"digest":"{source.digest}","fragments":{source.fragments},'
        f'"layer":"{source.layer}"{reason},"status":"{source.status}"}}'
    )
