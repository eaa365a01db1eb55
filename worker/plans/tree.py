"""The steps as a tree: what stands below what, and what the steps below say of the one above."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from schemas.codes import StepStatus
from worker.plans.drafts import StepDraft
from worker.plans.marks import CLOSED
from worker.plans.results import PlanNote, Progress


@dataclass(frozen=True, slots=True)
class StepTree:
    """Steps by their place in the document; a parent always stands before its children."""

    steps: Sequence[StepDraft]
    children: Sequence[Sequence[int]]
    depth: Sequence[int]
    is_optional: Sequence[bool]
    """Whether a step, or one above it, is optional."""
    status: Sequence[StepStatus]
    """Of each step its own status; of a heading without mark what the steps below it make of it."""
    is_finished: Sequence[bool]
    """Whether a step is closed, or is open and all required steps below it are closed."""

    def is_leaf(self, place: int) -> bool:
        """Whether no required step stands below: what is optional does not stand for its parent."""
        return self.is_optional[place] or not any(
            not self.is_optional[child] for child in self.children[place]
        )

    def above(self, place: int) -> Iterator[int]:
        """The steps that a step stands below, the nearest first."""
        parent = self.steps[place].parent
        while parent is not None:
            yield parent
            parent = self.steps[parent].parent

    def descendants(self, place: int) -> Iterator[int]:
        """The steps below a step, in document order."""
        waiting = list(reversed(self.children[place]))
        while waiting:
            below = waiting.pop()
            yield below
            waiting += reversed(self.children[below])


def build_tree(steps: Sequence[StepDraft]) -> StepTree:
    """The tree of steps. O(n)."""
    children: list[list[int]] = [[] for _ in steps]
    depth = [0] * len(steps)
    is_optional = [step.optional for step in steps]
    for place, step in enumerate(steps):
        if step.parent is not None:
            children[step.parent].append(place)
            depth[place] = depth[step.parent] + 1
            is_optional[place] = step.optional or is_optional[step.parent]
    status: list[StepStatus] = [step.status for step in steps]
    is_finished = [False] * len(steps)
    for place in range(len(steps) - 1, -1, -1):
        step = steps[place]
        required = [child for child in children[place] if not steps[child].optional]
        all_closed = bool(required) and all(is_finished[child] for child in required)
        if not step.has_own_mark and required:
            status[place] = _rolled_up([status[child] for child in required], all_closed=all_closed)
        is_finished[place] = status[place] in CLOSED or (all_closed and status[place] != "deferred")
    return StepTree(steps, children, depth, is_optional, status, is_finished)


def _rolled_up(below: Sequence[StepStatus], *, all_closed: bool) -> StepStatus:
    if all_closed:
        return "done"
    return "active" if "active" in below else "pending"


def progress(tree: StepTree) -> Progress:
    """How many required leaves there are, and how far they are by their own marks."""
    required = [
        place for place in range(len(tree.steps)) if tree.is_leaf(place) and not tree.is_optional[place]
    ]
    return Progress(
        done=sum(tree.status[place] == "done" for place in required),
        closed=sum(tree.status[place] in CLOSED for place in required),
        total=len(required),
    )


def parents_done_too_early(tree: StepTree) -> Iterator[PlanNote]:
    """A note for each step that is marked done above required steps that are not closed."""
    for place, step in enumerate(tree.steps):
        is_early = step.has_own_mark and step.status == "done"
        if is_early and any(
            not tree.is_finished[child] and not tree.is_optional[child] for child in tree.children[place]
        ):
            yield PlanNote(
                kind="parent_done_children_open", line=step.line, text=step.printed_id or step.title
            )
