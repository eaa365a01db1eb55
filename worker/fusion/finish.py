"""The joined messages, their one encoding, and the ledger that agrees with it exactly.

Each message's content is encoded once, and each token is charged to the part that holds its first byte.
Where that puts a layer over its reservation by a seam token, budget moves to it; where none is left, the
layer that lends first gives a fragment way and the messages are joined again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from schemas.bundle import Message
from schemas.codes import PARTS, PartName
from worker.budget.allocation import Overflow, seal
from worker.budget.layers import ContextBudget
from worker.budget.tokens import ChargingCounter, charge_spans
from worker.errors import PinsExceedWindow
from worker.fusion.packer import section_text
from worker.fusion.protocols import PackedLayer

_PREAMBLE = "preamble"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """The finished prompt, with every token accounted for."""

    messages: tuple[Message, ...]
    parts: Mapping[PartName, str]
    packed: Mapping[PartName, PackedLayer]
    preamble: str
    preamble_tokens: int
    spent: Mapping[PartName, int]
    budget: ContextBudget
    is_exact: bool


def join_and_seal(
    *,
    system: str,
    user: str,
    preamble: str,
    budget: ContextBudget,
    packed: Mapping[PartName, PackedLayer],
    repack: Callable[[PartName, int], PackedLayer],
    counter: ChargingCounter,
) -> Sealed:
    """Join, count, and move or free tokens until every layer is within its reservation.

    `budget` is the effective budget with the preamble already off its total; a preamble that turns out to
    have nothing to introduce is given back. `repack(layer, budget_tokens)` packs a layer anew into less.
    Raises PinsExceedWindow where nothing is left that may give way.
    """
    shown = {layer: section for layer, section in packed.items() if section.placed}
    while True:
        parts = {layer: section_text(section.frame, section.placed) for layer, section in shown.items()}
        parts = {layer: parts.get(layer, "") for layer in PARTS} | {"system": system, "user": user}
        used_preamble = preamble if shown else ""
        charged, is_exact = _charge(parts, used_preamble, counter)
        preamble_tokens = charged.pop(_PREAMBLE)
        spent = {layer: charged[layer] for layer in PARTS}
        outcome = seal(budget, spent)
        if isinstance(outcome, ContextBudget):
            return Sealed(
                messages=_messages(parts, used_preamble),
                parts=parts,
                packed=shown,
                preamble=used_preamble,
                preamble_tokens=preamble_tokens,
                spent=spent,
                budget=outcome,
                is_exact=is_exact,
            )
        shown = _give_way(shown, spent, outcome, repack)


def _give_way(
    shown: Mapping[PartName, PackedLayer],
    spent: Mapping[PartName, int],
    overflow: Overflow,
    repack: Callable[[PartName, int], PackedLayer],
) -> dict[PartName, PackedLayer]:
    layer = overflow.layer
    before = shown[layer]
    after = repack(layer, max(0, spent[layer] - overflow.tokens))
    if [p.text for p in after.placed] == [p.text for p in before.placed]:
        pins = {layer: [p.fragment.node for p in after.placed]}
        raise PinsExceedWindow(pins=pins, overage_tokens=overflow.tokens)
    kept = dict(shown) | {layer: after}
    return {name: section for name, section in kept.items() if section.placed}


def _charge(
    parts: Mapping[PartName, str], preamble: str, counter: ChargingCounter
) -> tuple[dict[str, int], bool]:
    system, is_exact = charge_spans(counter, [("system", parts["system"])])
    spans = [(_PREAMBLE, preamble), *((layer, parts[layer]) for layer in PARTS if layer != "system")]
    user, is_user_exact = charge_spans(counter, spans)
    return {**system, **user}, is_exact and is_user_exact


def _messages(parts: Mapping[PartName, str], preamble: str) -> tuple[Message, ...]:
    content = preamble + "".join(parts[layer] for layer in PARTS if layer != "system")
    user = Message(role="user", content=content)
    return (Message(role="system", content=parts["system"]), user) if parts["system"] else (user,)
