"""How much of a prompt a cache can use again for the thread's next one, said before that one is known.

Counted are the tokens of the joined messages up to the first text that the next message may change. Should
nothing but the message change, and that fit its own reservation, no less is shared. So the count ends early
rather than late: at a layer that could not show all it had, or only by borrowing, since what it shows then
depends on others; at one whose source failed; and at an empty one that the message may fill.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from schemas.codes import CONTENT_LAYERS, PartName
from worker.budget.layers import ContextBudget
from worker.budget.utf8 import byte_length
from worker.fusion.finish import Sealed
from worker.fusion.payload import spans_of
from worker.fusion.protocols import PackedLayer
from worker.fusion.sections import SECTION_GAP
from worker.ports import LayerContribution, TokenCounter

_OF_THE_MESSAGE: Final = frozenset({"graph", "ast", "semantic", "task"})
"""Empty now, these may have something to say to the next message."""


def reusable_prefix_tokens(
    sealed: Sealed,
    contributions: Mapping[PartName, LayerContribution],
    *,
    planned: ContextBudget,
    counter: TokenCounter,
) -> int:
    """Tokens of `system`, the preamble, and what follows of the user's message up to what may change.

    `planned` is the budget before any layer borrowed. One token is held back for the seam: how the last one
    is cut depends on what follows it. O(shown fragments).
    """
    chars = _stable_chars(sealed, contributions, planned)
    if not chars:
        return sealed.spent["system"]
    content = sealed.messages[-1].content
    ends = sealed.token_ends if sealed.token_ends is not None else counter.token_ends(content)
    raw = int(np.searchsorted(ends, byte_length(content[:chars]), side="right"))
    return sealed.spent["system"] + counter.scale(max(0, raw - 1))


def _stable_chars(
    sealed: Sealed, contributions: Mapping[PartName, LayerContribution], planned: ContextBudget
) -> int:
    shown = (placed.fragment for packed in sealed.packed.values() for placed in packed.placed)
    if all(fragment.volatility == "request" for fragment in shown):
        return 0  # with nothing to introduce, the next prompt has no preamble
    chars = len(sealed.preamble) + len(sealed.template)
    for layer in CONTENT_LAYERS:
        packed, given = sealed.packed.get(layer), contributions.get(layer)
        if packed is None:
            if given is None or _stays_empty(given):
                continue
            return chars
        fits = sealed.spent[layer] <= planned.layer_budget(layer)
        if given is None or given.status != "ok" or packed.dropped or packed.reduced or not fits:
            return chars
        stable = _stable_in(packed, given)
        if stable < len(sealed.parts[layer]):
            return chars + stable
        chars += stable
    return chars


def _stays_empty(given: LayerContribution) -> bool:
    if given.status == "off":
        return True
    return given.reason == "no_data" and not given.capped and given.layer not in _OF_THE_MESSAGE


def _stable_in(packed: PackedLayer, given: LayerContribution) -> int:
    """Characters of the section before what the next message may change; 0 where that comes first."""
    stays = {s.resource_type for f in given.fragments if f.volatility != "request" for s in f.provenance}
    named = {s.resource_type for f in given.fragments for s in f.provenance}
    if named != stays:
        return 0  # the mark above the section names its sources
    end = 0
    for placed, (_, stop) in spans_of(packed):
        if placed.fragment.volatility == "request":
            return end
        end = stop
    frame = packed.frame
    return end + len(f"\n{frame.closing}") + len(SECTION_GAP)
