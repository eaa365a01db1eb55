"""What each layer really spends, refused where it exceeds what was reserved."""

from __future__ import annotations

from typing import TypedDict

from worker.budget.layers import LAYERS, ContextBudget


class LayerSpend(TypedDict):
    """Tokens reserved for and spent by one layer."""

    budget: int
    spent: int


class UsageTotals(TypedDict):
    """The shape that telemetry consumers read."""

    total: int
    spent: int
    remaining: int
    layers: dict[str, LayerSpend]


class ContextUsage:
    """The ledger of one prompt: per-layer counters against a sealed budget."""

    __slots__ = ("_spent", "_total_spent", "budget")

    def __init__(self, budget: ContextBudget) -> None:
        self.budget = budget
        self._total_spent = 0
        self._spent = dict.fromkeys(LAYERS, 0)

    def spend(self, layer: str, tokens: int) -> None:
        """Add `tokens` to what `layer` has spent.

        Raises ValueError, and records nothing, on a negative amount, an unknown layer, a layer over
        its own reservation, or a running total over the whole window.
        """
        if tokens < 0:
            raise ValueError(f"cannot spend {tokens} tokens on layer {layer!r}: negative")
        reserved = self.budget.layer_budget(layer)
        if self._spent[layer] + tokens > reserved:
            raise ValueError(
                f"layer {layer!r} would spend {self._spent[layer] + tokens} tokens, {reserved} are reserved"
            )
        if self._total_spent + tokens > self.budget.total:
            raise ValueError(
                f"the prompt would hold {self._total_spent + tokens} tokens, the total is {self.budget.total}"
            )
        self._spent[layer] += tokens
        self._total_spent += tokens

    @property
    def total_spent(self) -> int:
        """Tokens spent by all layers together."""
        return self._total_spent

    @property
    def remaining(self) -> int:
        """Tokens of the window that nothing has spent yet."""
        return self.budget.total - self.total_spent

    def to_dict(self) -> UsageTotals:
        """Totals and per-layer counters, in the order of the joined prompt."""
        return {
            "total": self.budget.total,
            "spent": self.total_spent,
            "remaining": self.remaining,
            "layers": {
                name: {"budget": reserved, "spent": self._spent[name]}
                for name, reserved in self.budget.as_layers().items()
            },
        }
