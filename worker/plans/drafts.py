"""A step while its file is being read: what a format's parser fills in, and `assembling` completes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from schemas.codes import StepStatus
from worker.code.documents.results import Decision
from worker.plans.dependencies import Wanted, wanted_in_field, wanted_in_title
from worker.plans.fields import Details, cited_requirements
from worker.plans.marks import MarkReading
from worker.plans.paths import paths_in
from worker.plans.results import PlanNote, Raw

MAX_DEPENDENCIES: Final = 200
"""Of one line; a longer list is a list of something else."""


@dataclass(slots=True, kw_only=True)
class StepDraft:
    """One step as its parser sees it. Other steps are meant by their place in the list of drafts."""

    title: str
    line: int
    printed_id: str | None = None
    status: StepStatus = "pending"
    raw: Raw = field(default_factory=Raw)
    has_own_mark: bool = True
    """False for a heading whose status follows from the steps below it."""
    parent: int | None = None
    group: str | None = None
    group_path: tuple[str, ...] = ()
    """The headings on the way to it, from which the id is made of a step that has none."""
    section: int | None = None
    """The heading right above it, whichever kind it is."""
    optional: bool = False
    parallel: bool = False
    wanted: list[Wanted] = field(default_factory=list[Wanted])
    requirements: list[str] = field(default_factory=list[str])
    requirement_notes: list[str] = field(default_factory=list[str])
    files: list[str] = field(default_factory=list[str])
    goal: str = ""
    actions: list[str] = field(default_factory=list[str])
    verify: list[str] = field(default_factory=list[str])
    expected: str = ""
    summary: str = ""
    priority: tuple[int, ...] = ()
    """Which of several ready steps comes first, the smallest; document order where all are equal."""

    def take(self, details: Details, notes: list[PlanNote]) -> None:
        """Add what the lines below the step say."""
        unexpanded = list(details.unexpanded)
        for listed in details.dependencies:
            self.wanted += islice(wanted_in_field(listed, unexpanded), MAX_DEPENDENCIES)
        notes += (PlanNote(kind="range_unexpanded", line=self.line, text=text) for text in unexpanded)
        self.requirements += details.requirements
        self.requirement_notes += details.requirement_notes
        self.files += details.files
        self.goal = self.goal or details.goal
        self.actions += details.actions
        self.verify += details.verify
        self.expected = self.expected or " ".join(details.expected)
        self.summary = self.summary or " ".join(details.summary)

    def take_title(self, text: str) -> None:
        """Add what the task's own line names: files, dependencies, requirements."""
        self.files += paths_in(text)
        self.wanted += islice(wanted_in_title(text), MAX_DEPENDENCIES)
        self.requirements += (literal for literal in cited_requirements(text) if literal != self.printed_id)

    def mark(self, reading: MarkReading, notes: list[PlanNote]) -> None:
        """Take over what its mark was found to mean."""
        self.status, self.raw = reading.status, reading.raw
        if reading.is_guess:
            notes.append(PlanNote(kind="mark_guess", line=self.line, text=f"[{reading.raw.mark}]"))
        if reading.is_conflict:
            text = f"[{reading.raw.mark}] {reading.raw.words}".strip()
            notes.append(PlanNote(kind="status_conflict", line=self.line, text=text))


@dataclass(slots=True, kw_only=True)
class CriterionDraft:
    """A criterion, and the place of the draft that it belongs to."""

    text: str
    line: int
    id: str | None = None
    met: bool = False
    step: int | None = None


@dataclass(slots=True, kw_only=True)
class PlanDraft:
    """What a format's parser found in a file."""

    title: str = ""
    goal: str = ""
    steps: list[StepDraft] = field(default_factory=list[StepDraft])
    criteria: list[CriterionDraft] = field(default_factory=list[CriterionDraft])
    decisions: tuple[Decision, ...] = ()
    notes: list[PlanNote] = field(default_factory=list[PlanNote])
    pointer: int | None = None
    """The step that the file, or one beside it, names as the current one."""
    is_closed: bool = False
    """Whether the document is archived or superseded, so that nothing in it is active."""
    barriers: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Groups of which the first waits for all of the second."""


def unique(values: Iterable[str]) -> tuple[str, ...]:
    """Each once, in order."""
    return tuple(dict.fromkeys(values))
