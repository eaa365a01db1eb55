"""The effective budget: what a request reserved, rearranged until what must be in fits.

Three steps, each from one frozen budget to the next:

    plan_budget    before anything is gathered: overhead, and the texts that are never trimmed
    fit_floors     when the pinned fragments are known: their floors (and `flow_on` for what is idle)
    seal           after the one encoding of the joined messages: the seam tokens

Whoever needs room takes it from tokens that nobody reserved, then from the layers in lending order,
and last from reservations that `system` and `user` cannot use. `output` never lends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from schemas.codes import PartName
from worker.budget.layers import CONTENT_LAYERS, LENDING_ORDER, ContextBudget
from worker.budget.tokens import count_lines_up_to
from worker.errors import BudgetTooSmall, PinsExceedWindow
from worker.ports import TokenCounter

LayerTokens = Mapping[str, int] | Mapping[PartName, int]
"""Tokens by layer name. Two spellings, since the key type of a Mapping is invariant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Tokens of the window that no layer may have."""

    client: int = 0
    """What the caller adds himself: tool schemas, conversation history."""
    framing: int = 0
    """The model's own tokens around each message."""
    preamble: int = 0
    template: int = 0

    @property
    def total(self) -> int:
        """All of it together."""
        return self.client + self.framing + self.preamble + self.template


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """The joined text is over: `layer` must give way by `missing_tokens`, then be joined again.

    `layer` is the first in lending order that holds more than its floor; None when no layer does.
    """

    layer: PartName | None
    missing_tokens: int


def plan_budget(
    requested: ContextBudget, *, overhead: Overhead, system_tokens: int, user_tokens: int
) -> ContextBudget:
    """Take the overhead off the total, and give `system` and `user` what their texts need.

    The overhead is paid first, then what `system` lacks, then what `user` lacks. Raises BudgetTooSmall
    when the window cannot hold overhead, output, system and user: it names the first of the three
    layers that does not fit, and by how much all of them together exceed the window.
    """
    return _plan_budget(requested, overhead, system_tokens, user_tokens)


@lru_cache(maxsize=1_024)
def _plan_budget(
    requested: ContextBudget, overhead: Overhead, system_tokens: int, user_tokens: int
) -> ContextBudget:
    """The same for all requests whose fixed texts stay within their reservations, which most do."""
    left = requested.total - overhead.total
    for layer, tokens in (("output", requested.output), ("system", system_tokens), ("user", user_tokens)):
        left -= tokens
        if left < 0:
            fixed = overhead.total + requested.output + system_tokens + user_tokens
            raise BudgetTooSmall(
                layer=layer, overage_tokens=fixed - requested.total, total_tokens=requested.total
            )
    floors = {"system": system_tokens, "user": user_tokens}
    layers = requested.as_layers()
    deficits = {layer: max(0, tokens - layers[layer]) for layer, tokens in floors.items()}
    # The fixed texts fit, so this much can be found: see the sum above.
    _collect(layers, requested.available, overhead.total + sum(deficits.values()), floors=floors)
    for layer, tokens in deficits.items():
        layers[layer] += tokens
    return ContextBudget(total=requested.total - overhead.total, **layers)


def fit_floors(
    effective: ContextBudget,
    *,
    floors: LayerTokens,
    pins: Mapping[PartName, Sequence[str]],
    system_tokens: int,
    user_tokens: int,
) -> ContextBudget:
    """Raise each reservation to its layer's floor: what its pinned fragments need at the least.

    `floors` are tokens by content layer, the section's own frame included. No lender goes below its
    own floor, nor `system` and `user` below their texts. Raises PinsExceedWindow with the first names in
    `pins`, by layer, when the window cannot hold all floors; ValueError on a floor of another layer.
    """
    foreign = [layer for layer in floors if layer not in CONTENT_LAYERS]
    if foreign:
        raise ValueError(f"only content layers hold pins, not {', '.join(foreign)}")
    layers = effective.as_layers()
    deficits = {layer: max(0, tokens - layers[layer]) for layer, tokens in floors.items()}
    protected = {"system": system_tokens, "user": user_tokens} | dict(floors.items())
    missing = _collect(layers, effective.available, sum(deficits.values()), floors=protected)
    if missing:
        raise PinsExceedWindow(pins=pins, overage_tokens=missing, floors=dict(floors.items()))
    for layer, tokens in deficits.items():
        layers[layer] += tokens
    return ContextBudget(total=effective.total, **layers)


def flow_on(effective: ContextBudget, *, demands: LayerTokens) -> ContextBudget:
    """Hand reservations that a content layer cannot use to those that want more than they have.

    `demands` are the tokens that each content layer could use; a layer that is not named wants none.
    Who lends last is served first, each up to its demand; what nobody wants stays where it was.
    Unreserved tokens stay unreserved.
    """
    layers = effective.as_layers()
    wanted = {layer: demands.get(layer, 0) - layers[layer] for layer in CONTENT_LAYERS}
    idle = sum(-tokens for tokens in wanted.values() if tokens < 0)
    lent = 0
    for layer in reversed(LENDING_ORDER):
        granted = min(max(0, wanted[layer]), idle - lent)
        layers[layer] += granted
        lent += granted
    for layer in LENDING_ORDER:
        given = min(max(0, -wanted[layer]), lent)
        layers[layer] -= given
        lent -= given
    return effective.with_layers(layers)


def demands_for(
    effective: ContextBudget, texts: Mapping[PartName, Sequence[str]], counter: TokenCounter
) -> dict[PartName, int]:
    """What `flow_on` needs to know of layers that could show these texts, in tokens; each is given by lines.

    Exact for what fits. What does not is counted as far as its layer can get at the most, which is its own
    reservation and all that the others leave: more would change nothing.
    """
    layers = effective.as_layers()
    demands: dict[PartName, int] = {
        layer: count_lines_up_to(counter, lines, layers[layer]) for layer, lines in texts.items()
    }
    wanting: list[PartName] = [layer for layer, tokens in demands.items() if tokens > layers[layer]]
    idle = sum([layers[layer] - demands.get(layer, 0) for layer in CONTENT_LAYERS if layer not in wanting])
    for layer in wanting if idle else ():
        demands[layer] = count_lines_up_to(counter, texts[layer], layers[layer] + idle)
    return demands


def seal(effective: ContextBudget, *, spent: LayerTokens, floors: LayerTokens) -> ContextBudget | Overflow:
    """The budget under which every layer may spend what it has spent, or who must give way.

    `spent` are the charges of the one encoding of the joined messages. A layer that is over by a few
    seam tokens takes from unreserved tokens, then from what the lending layers left unspent, then from
    what `system` and `user` left; never from `output`. `floors` say what no layer can be asked for.
    """
    layers = effective.as_layers()
    excess = {layer: tokens - layers[layer] for layer, tokens in spent.items() if tokens > layers[layer]}
    if not excess:
        return effective
    missing = _collect(layers, effective.available, sum(excess.values()), floors=spent)
    if missing:
        able: Iterator[PartName] = (
            layer for layer in LENDING_ORDER if spent.get(layer, 0) > floors.get(layer, 0)
        )
        return Overflow(layer=next(able, None), missing_tokens=missing)
    for layer, tokens in excess.items():
        layers[layer] += tokens
    return effective.with_layers(layers)


def _collect(layers: dict[str, int], unreserved: int, tokens: int, *, floors: LayerTokens) -> int:
    """Take `tokens` from whoever can lend, lowering `layers`; what could not be found is returned."""
    missing = max(0, tokens - unreserved)
    for layer in (*LENDING_ORDER, "system", "user"):
        lent = min(missing, max(0, layers[layer] - floors.get(layer, 0)))
        layers[layer] -= lent
        missing -= lent
    return missing
