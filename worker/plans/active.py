"""Which step is worked on now, which others are, and which come after it.

In this order: the step that the file names; one that is marked active, the deepest, then the first; else the
first that is ready. A step with required steps below it is never chosen: the first ready one of those stands
for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from schemas.codes import StepStatus
from worker.plans.marks import CLOSED, OPEN
from worker.plans.tree import StepTree

NEXT_STEPS: Final = 2

_HOLDS_BACK: Final[frozenset[StepStatus]] = frozenset({"done", "skipped", "deferred"})
"""What a step says of all that stands below it."""


@dataclass(frozen=True, slots=True)
class ActiveSteps:
    """Places of steps."""

    active: int | None = None
    also_active: tuple[int, ...] = ()
    parallel_with: tuple[int, ...] = ()
    next: tuple[int, ...] = ()


def find_active(
    tree: StepTree,
    depends_on: Mapping[int, Sequence[int]],
    *,
    pointer: int | None = None,
    barriers: Sequence[tuple[str, str]] = (),
) -> ActiveSteps:
    """The active step and its neighbours. O(steps + dependencies), nesting aside.

    `depends_on` leaves out what holds nobody up: unknown steps and cycles. `barriers` name groups of which
    the first waits for all of the second.
    """
    finder = _Finder(tree, depends_on, barriers)
    marked = [place for place in range(len(tree.steps)) if finder.is_marked_active(place)]
    chosen = finder.named(pointer) if pointer is not None else None
    if chosen is None:
        chosen = finder.marked(marked)
    if chosen is None:
        chosen = finder.ready()
    if chosen is None:
        return ActiveSteps()
    aside = {chosen, *tree.above(chosen)}
    for place in marked:
        aside.update(_above_until(tree, place, aside))
    return ActiveSteps(
        active=chosen,
        also_active=tuple(place for place in marked if place not in aside),
        parallel_with=finder.parallel_with(chosen),
        next=finder.next_after(chosen),
    )


def _above_until(tree: StepTree, place: int, seen: AbstractSet[int]) -> Iterator[int]:
    """What a step stands below, up to what was seen before."""
    for above in tree.above(place):
        if above in seen:
            return
        yield above


class _Finder:
    def __init__(
        self, tree: StepTree, depends_on: Mapping[int, Sequence[int]], barriers: Sequence[tuple[str, str]]
    ) -> None:
        self._tree = tree
        self._depends_on = depends_on
        self._is_held = self._held_back()
        self._waiting_groups = self._groups_that_wait(barriers)
        self._is_waiting = self._waiting()

    def _held_back(self) -> list[bool]:
        """Whether a step stands below one that is closed or deferred."""
        held = [False] * len(self._tree.steps)
        for place, step in enumerate(self._tree.steps):
            if step.parent is not None:
                above = self._tree.steps[step.parent]
                held[place] = held[step.parent] or (above.has_own_mark and above.status in _HOLDS_BACK)
        return held

    def _groups_that_wait(self, barriers: Sequence[tuple[str, str]]) -> frozenset[str]:
        tree = self._tree
        unfinished = {
            step.group
            for place, step in enumerate(tree.steps)
            if tree.is_leaf(place) and not tree.is_optional[place] and not tree.is_finished[place]
        }
        return frozenset(group for group, needed in barriers if needed in unfinished)

    def _waiting(self) -> list[bool]:
        """Whether a step, or one above it, waits for another or is blocked."""
        waiting = [False] * len(self._tree.steps)
        for place, step in enumerate(self._tree.steps):
            needed = self._depends_on.get(place, ())
            waits = any(not self._tree.is_finished[other] for other in needed)
            is_blocked_above = step.parent is not None and (
                waiting[step.parent] or self._tree.steps[step.parent].status == "blocked"
            )
            waiting[place] = waits or is_blocked_above or step.group in self._waiting_groups
        return waiting

    def is_marked_active(self, place: int) -> bool:
        step = self._tree.steps[place]
        return (
            step.status == "active"
            and step.has_own_mark
            and not self._is_held[place]
            and not self._tree.is_finished[place]
        )

    def named(self, place: int) -> int | None:
        """The named step, or what stands for it. None where it is closed or deferred."""
        if self._tree.status[place] in _HOLDS_BACK or self._tree.is_finished[place]:
            return None
        if self._tree.is_leaf(place):
            return place
        below = [other for other in self._tree.descendants(place) if self.is_marked_active(other)]
        marked = self.marked(below)
        return self.first_ready_below(place) if marked is None else marked

    def marked(self, marked: Sequence[int]) -> int | None:
        """The deepest of these, then the first; what stands for it where it has steps below."""
        for place in sorted(marked, key=lambda place: (-self._tree.depth[place], place)):
            chosen = place if self._tree.is_leaf(place) else self.first_ready_below(place)
            if chosen is not None:
                return chosen
        return None

    def first_ready_below(self, place: int) -> int | None:
        return next((other for other in self._tree.descendants(place) if self._is_ready(other)), None)

    def ready(self) -> int | None:
        """The first ready step: by priority where the format has one, then in document order."""
        ready = [place for place in range(len(self._tree.steps)) if self._is_ready(place)]
        return min(ready, key=lambda place: (self._tree.steps[place].priority, place), default=None)

    def _is_ready(self, place: int) -> bool:
        return (
            self._tree.steps[place].status == "pending"
            and self._tree.is_leaf(place)
            and not self._tree.is_optional[place]
            and not self._is_held[place]
            and not self._is_waiting[place]
        )

    def parallel_with(self, active: int) -> tuple[int, ...]:
        """The open parallel steps right after the active one, if that is parallel, under its heading."""
        steps = self._tree.steps
        found: list[int] = []
        if not steps[active].parallel:
            return ()
        for place in range(active + 1, len(steps)):
            step = steps[place]
            if not step.parallel or step.section != steps[active].section:
                break
            if self._tree.status[place] in OPEN and not self._is_waiting[place]:
                found.append(place)
            elif self._tree.status[place] not in CLOSED:
                break
        return tuple(found)

    def next_after(self, active: int) -> tuple[int, ...]:
        found: list[int] = []
        for place in range(active + 1, len(self._tree.steps)):
            if (
                self._tree.status[place] in OPEN
                and self._tree.is_leaf(place)
                and not self._tree.is_optional[place]
                and not self._is_held[place]
            ):
                found.append(place)
                if len(found) == NEXT_STEPS:
                    break
        return tuple(found)
