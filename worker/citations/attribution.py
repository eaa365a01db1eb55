"""Which of what a prompt showed its answer used: tokens of what it cites, beside those of all that was shown.

Told to people, as value for tokens. Nothing reads it back: it never steers what is selected.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from schemas.citations import Citations, Used, UsedTokens
from schemas.codes import PARTS
from schemas.receipt import ReceiptRecord
from worker.ports import source_of

_DECISION: Final = "decision/"


def attribute(record: ReceiptRecord, citations: Citations, cited: Iterable[str]) -> Used:
    """What the citations `cited`, short ids of this manifest, make of the bundle with this receipt.

    A thing that several layers show was used in each of them. Counted are the texts that the receipt has a
    line for, without the headings and marks around them. Layers stand in the order of the prompt, sources by
    name; those that showed nothing are left out. O(lines).
    """
    shorts = frozenset(cited)
    used = frozenset(item.id for item in citations.items if item.short in shorts)
    layers: dict[str, list[int]] = {}
    sources: dict[str, list[int]] = {}
    for line in record.fragments:
        if line.tokens is None:
            continue
        source, own_id = source_of(line.node), line.node.partition("://")[2]
        is_used = own_id in used or own_id.removeprefix(_DECISION) in used
        for sums, name in ((layers, line.layer), (sources, source)):
            sum_of = sums.setdefault(name, [0, 0])
            sum_of[0] += line.tokens if is_used else 0
            sum_of[1] += line.tokens
    return Used(
        layers={layer: _tokens(layers[layer]) for layer in PARTS if layer in layers},
        sources={source: _tokens(sums) for source, sums in sorted(sources.items())},
    )


def _tokens(sums: list[int]) -> UsedTokens:
    return UsedTokens(cited_tokens=sums[0], tokens=sums[1])
