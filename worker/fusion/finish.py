"""The joined messages, their one encoding, and the ledger that agrees with it exactly.

Each message's content is encoded once, and each token is charged to the part that holds its first byte.
Where that puts a layer over its reservation by a seam token, budget moves to it; where none is left, the
layer that lends first gives a fragment way and the messages are joined again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.bundle import Message
from schemas.codes import PARTS, PartName
from schemas.trusted import trusted
from worker.budget.allocation import Overflow, seal
from worker.budget.layers import ContextBudget
from worker.budget.tokens import TokenCounter, charge_spans
from worker.errors import PinsExceedWindow
from worker.fusion.packer import section_text
from worker.fusion.protocols import PackedLayer

_PREAMBLE: Final = "preamble"
_TEMPLATE: Final = "template"
_OF_USER: Final = (_PREAMBLE, _TEMPLATE, *(layer for layer in PARTS if layer != "system"))
"""What the user's message is joined from, in order."""
_CHARGED: Final = ("system", *_OF_USER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """The finished prompt, with every token accounted for."""

    messages: tuple[Message, ...]
    parts: Mapping[PartName, str]
    packed: Mapping[PartName, PackedLayer]
    preamble: str
    preamble_tokens: int
    template: str
    """How to cite and answer; behind the preamble."""
    template_tokens: int
    spent: Mapping[PartName, int]
    budget: ContextBudget
    is_exact: bool
    token_ends: NDArray[np.int64] | None
    """Of the user message's one encoding, as `TokenCounter.token_ends` gives them; None where it has but one
    part."""


def join_and_seal(
    *,
    system: str,
    user: str,
    preamble: str,
    template: str,
    budget: ContextBudget,
    floors: Mapping[PartName, int],
    packed: Mapping[PartName, PackedLayer],
    repack: Callable[[PartName, int], PackedLayer],
    counter: TokenCounter,
) -> Sealed:
    """Join, count, and move or free tokens until every layer is within its reservation.

    `budget` has preamble and template off its total already; where they have nothing to introduce they are
    not shown.
    `floors` are the tokens that a layer's pins need. `repack(layer, budget_tokens)` packs a layer anew into
    less. Raises PinsExceedWindow where nothing is left that may give way.
    """
    shown: Mapping[PartName, PackedLayer] = {
        layer: section for layer, section in packed.items() if section.placed
    }
    own: dict[PartName, str] = {"system": system, "user": user}
    while True:
        sections = {layer: section_text(section.frame, section.placed) for layer, section in shown.items()}
        parts: dict[PartName, str] = {layer: own.get(layer) or sections.get(layer, "") for layer in PARTS}
        above = {_PREAMBLE: preamble, _TEMPLATE: template} if shown else {_PREAMBLE: "", _TEMPLATE: ""}
        charged, is_exact, token_ends = _charge(parts, above, counter)
        spent: dict[PartName, int] = {layer: charged[layer] for layer in PARTS}
        outcome = seal(budget, spent=spent, floors=floors)
        if isinstance(outcome, ContextBudget):
            return Sealed(
                messages=_messages(parts, "".join(above.values())),
                parts=parts,
                packed=shown,
                preamble=above[_PREAMBLE],
                preamble_tokens=charged[_PREAMBLE],
                template=above[_TEMPLATE],
                template_tokens=charged[_TEMPLATE],
                spent=spent,
                budget=outcome,
                is_exact=is_exact,
                token_ends=token_ends,
            )
        shown = _give_way(shown, spent, outcome, repack)


def _give_way(
    shown: Mapping[PartName, PackedLayer],
    spent: Mapping[PartName, int],
    overflow: Overflow,
    repack: Callable[[PartName, int], PackedLayer],
) -> dict[PartName, PackedLayer]:
    """The layers with the first lender packed into less; each round frees a token at least, so it ends."""
    if overflow.layer is None:
        pins: dict[PartName, list[str]] = {
            layer: [p.fragment.node for p in section.placed] for layer, section in shown.items()
        }
        raise PinsExceedWindow(pins=pins, overage_tokens=overflow.missing_tokens)
    layer = overflow.layer
    missing = overflow.missing_tokens
    before = [p.text for p in shown[layer].placed]
    while True:
        # What was packed by the sum of parts may be smaller than the join says: take more until it gives.
        after = repack(layer, max(0, spent[layer] - missing))
        if [p.text for p in after.placed] != before or missing >= spent[layer]:
            break
        missing *= 2
    kept: dict[PartName, PackedLayer] = {**shown, layer: after}
    return {name: section for name, section in kept.items() if section.placed}


def _charge(
    parts: Mapping[PartName, str], above: Mapping[str, str], counter: TokenCounter
) -> tuple[dict[str, int], bool, NDArray[np.int64] | None]:
    """Tokens by part, one encoding a message; whether all are exact; the last message's token ends."""
    charged = dict.fromkeys(_CHARGED, 0)
    is_exact = True
    token_ends = None
    texts: dict[str, str] = {**above, **parts}
    for message in (("system",), _OF_USER):
        shown = [name for name in message if texts[name]]
        if shown:
            content = "".join([texts[name] for name in shown])
            ends = accumulate([len(texts[name]) for name in shown])
            token_ends = counter.token_ends(content) if len(shown) > 1 else None
            charged |= charge_spans(counter, content, list(zip(shown, ends, strict=True)), ends=token_ends)
            is_exact = is_exact and counter.is_exact(content)
    return charged, is_exact and counter.exact, token_ends


def _messages(parts: Mapping[PartName, str], above: str) -> tuple[Message, ...]:
    content = above + "".join([parts[layer] for layer in PARTS if layer != "system"])
    user = trusted(Message, role="user", content=content)
    return (trusted(Message, role="system", content=parts["system"]), user) if parts["system"] else (user,)
