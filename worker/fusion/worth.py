"""What a fragment is worth at each depth, and which steps between depths can pay off."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

DEPTH_WORTH: Final = (0.02, 0.14, 0.26, 0.38, 0.50, 0.62, 0.74, 0.85, 0.93, 1.0)
"""By depth, 0 to 9. A name only says what else there is to ask for; from there on what a reader can do with a
fragment grows with its depth, a little less with each step: concave, and almost a straight line."""

_LEAST_SCORE: Final = 1e-6
"""What is worth nothing at all still goes in where there is room."""


def worth(score: float, depth: int) -> float:
    """The value of showing a fragment of this score at this depth: the score times that of the depth."""
    return max(score, _LEAST_SCORE) * DEPTH_WORTH[depth]


def worths_of(score: float, depths: Sequence[int]) -> list[float]:
    """`worth` at each of these depths."""
    weight = max(score, _LEAST_SCORE)
    return [weight * DEPTH_WORTH[depth] for depth in depths]


class Step:
    """From one way to show a fragment to a deeper one: which of them, what it adds, and what that costs."""

    # No dataclass: thousands of these are made for a request.
    __slots__ = ("cost", "density", "gain", "item", "level")

    def __init__(self, item: int, level: int, gain: float, cost: int) -> None:
        """`level` is the index of the rendering that it leads to."""
        self.item = item
        self.level = level
        self.gain = gain
        self.cost = cost
        self.density = round(gain / max(1, cost), 9)
        """Worth by token."""


def paying_steps(
    item: int, worths: Sequence[float], costs: Sequence[int], *, paid_worth: float = 0.0, paid_cost: int = 0
) -> list[Step]:
    """The steps along the upper hull of worth over cost, the densest first: no mix of others beats them.

    `worths` and `costs` are by rendering, deepest first. The way begins at what is shown and paid for
    already. O(renderings).
    """
    if len(worths) == 2 and not paid_worth and not paid_cost:  # noqa: PLR2004 - text and name
        return _two_steps(item, worths[0], worths[1], costs[0], costs[1])
    hull = [(-1, paid_cost, paid_worth)]
    for level in range(len(worths) - 1, -1, -1):
        cost, value = costs[level], worths[level]
        if value <= hull[-1][2] or cost < hull[-1][1]:
            continue
        while len(hull) > 1 and _bends_up(hull[-2], hull[-1], cost, value):
            hull.pop()
        hull.append((level, cost, value))
    return [
        Step(item, after[0], after[2] - before[2], after[1] - before[1]) for before, after in pairwise(hull)
    ]


def _two_steps(item: int, whole: float, name: float, whole_cost: int, name_cost: int) -> list[Step]:
    """`paying_steps` for nothing, a name and a text, which is what most fragments can be shown as."""
    if whole <= name or whole_cost < name_cost:
        return [Step(item, 1, name, name_cost)]
    if name * whole_cost <= whole * name_cost:
        return [Step(item, 0, whole, whole_cost)]
    return [Step(item, 1, name, name_cost), Step(item, 0, whole - name, whole_cost - name_cost)]


def _bends_up(first: tuple[int, int, float], middle: tuple[int, int, float], cost: int, value: float) -> bool:
    """Whether the middle lies on or below the line from the first to the new point."""
    return (middle[2] - first[2]) * (cost - first[1]) <= (value - first[2]) * (middle[1] - first[1])


def worth_bound(steps: Sequence[Step], room_tokens: int) -> float:
    """What no filling of the room can exceed: the densest steps in full, and of the next one a part.

    `steps` are sorted, the densest first.
    """
    total, left = 0.0, room_tokens
    for step in steps:
        if step.cost > left:
            return total + step.gain * max(0, left) / max(1, step.cost)
        total += step.gain
        left -= step.cost
    return total
