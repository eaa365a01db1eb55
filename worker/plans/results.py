"""What a plan file or a hand-off file says, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from schemas.codes import StepStatus
from worker.code.documents.results import Decision

PlanFormat = Literal[
    "kiro",
    "spec_kit",
    "openspec",
    "task_master",
    "dated_plan",
    "free",
    "backlog",
    "exec_plan",
    "gsd",
    "memory_bank",
    "unknown_format",
]
NoteKind = Literal[
    "mark_guess",
    "open_fence",
    "duplicate_id",
    "status_conflict",
    "range_unexpanded",
    "open_question",
    "dangling_link",
    "unresolved",
    "dependency_cycle",
    "parent_done_children_open",
    "unknown_format",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanNote:
    """Something odd in a file. It never stops the reading of the rest."""

    kind: NoteKind
    line: int
    text: str = ""
    """What it is about: an id, a mark, a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """What decided a step's status, as written."""

    mark: str = ""
    """The character between the brackets."""
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """One step, task, or heading that stands for work."""

    id: str
    """Unique in its document, and what all else refers to: the printed id, the second of a kind with `#2`;
    where none is printed, one derived from the titles on the way to it."""
    printed_id: str | None = None
    """As written, never folded or renumbered."""
    title: str
    """Without mark, id, tags, stamp and strike-through."""
    status: StepStatus = "pending"
    raw: Raw = Raw()
    line: int = 1
    parent: str | None = None
    """Id of the step that it is part of."""
    group: str | None = None
    """The nearest work heading, without its status words."""
    optional: bool = False
    parallel: bool = False
    depends_on: tuple[str, ...] = ()
    """Ids of steps in this document."""
    unresolved: tuple[str, ...] = ()
    """Dependencies that no step answers to, as written. They hold nothing up."""
    requirements: tuple[str, ...] = ()
    requirement_notes: tuple[str, ...] = ()
    """What stood among the requirements without naming one."""
    files: tuple[str, ...] = ()
    """Without suffixes of lines."""
    goal: str | None = None
    actions: tuple[str, ...] = ()
    verify: tuple[str, ...] = ()
    expected: str | None = None
    summary: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCriterion:
    """A condition that a step, or the plan as a whole, is held to."""

    text: str
    line: int
    id: str | None = None
    met: bool = False
    step: str | None = None
    """Id of the step that it belongs to; None for the plan's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Counts of the required steps that have no required steps below them."""

    done: int = 0
    closed: int = 0
    """Done or skipped."""
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument:
    """Everything that one plan file says. A pure function of its path, its text and its siblings."""

    format: PlanFormat
    title: str = ""
    goal: str | None = None
    steps: tuple[PlanStep, ...] = ()
    """In document order."""
    is_closed: bool = False
    """Whether the document is archived or superseded: nothing in it is active, whatever its marks say."""
    active: str | None = None
    also_active: tuple[str, ...] = ()
    """Other steps that are marked active; the active one's ancestors are not named."""
    parallel_with: tuple[str, ...] = ()
    """Open steps that may be done beside the active one."""
    next: tuple[str, ...] = ()
    """The two open required leaves after the active step."""
    criteria: tuple[PlanCriterion, ...] = ()
    decisions: tuple[Decision, ...] = ()
    progress: Progress = Progress()
    notes: tuple[PlanNote, ...] = ()
    """By line."""
    text: str = ""
    """The file's text where the format is unknown, else empty: nothing of it is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOffDocument:
    """What one hand-off file says, slot by slot. Of several blocks in a file, the first."""

    title: str = ""
    state: tuple[str, ...] = ()
    goal: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    not_done: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    """In order of priority."""
    blockers: tuple[str, ...] = ()
    """Blockers and risks."""
    decisions: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Paths without suffixes of lines, where an entry names one; else the entry."""
    commands: tuple[str, ...] = ()
    verification: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    """Hashes, as written."""
    pull_requests: tuple[str, ...] = ()
    """`#12`."""
    supersedes: str | None = None
    notes: tuple[PlanNote, ...] = ()
