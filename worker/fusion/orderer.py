"""In which order the kept fragments stand in a layer's text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, get_args

from worker.fusion.protocols import Placed
from worker.ports import Volatility

VOLATILITY_ORDER: Final[dict[Volatility, int]] = {name: n for n, name in enumerate(get_args(Volatility))}
"""What changes least stands first."""


class StablePrefixOrderer:
    """As the source laid them out, what changes least above; rank decides what is kept, not where."""

    def order(self, placed: Sequence[Placed]) -> list[Placed]:
        """By position, then node id; then whole groups by the most volatile of their members.

        So a layer of consecutive prompts begins alike as far as it can, and a cache of prefixes can be used.
        What stands under no heading stays at the top; where some of it stands below a group, nothing is
        moved, or a reader would take it for a part of another group. O(n log n).
        """
        laid_out = sorted(placed, key=lambda p: (p.fragment.position, p.fragment.node))
        runs = [(group, list(run)) for group, run in groupby(laid_out, key=lambda p: p.fragment.group)]
        if any(not group for group, _ in runs[1:]):
            return laid_out
        first = 1 if runs and not runs[0][0] else 0
        grouped = sorted(runs[first:], key=lambda run: _volatility(run[1]))
        return [item for _, run in (*runs[:first], *grouped) for item in run]


def _volatility(run: Sequence[Placed]) -> int:
    return max(VOLATILITY_ORDER[item.fragment.volatility] for item in run)
