"""Steps that are list items with a box, and the criteria among them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from worker.plans.drafts import CriterionDraft, StepDraft
from worker.plans.fields import Details, labelled, read_details
from worker.plans.marks import CLOSED, OPEN, Dialect, read_mark
from worker.plans.outline import letter_box
from worker.plans.plan_text import PlanText
from worker.plans.results import PlanNote
from worker.plans.step_ids import LeadingId, families, letters_of
from worker.plans.titles import TaskText, split_task, strip_stamp, title_of

_CRITERION_ID: Final = re.compile(r"(?:SC|AC)-?\d")
_REQUIREMENT_ID: Final = re.compile(r"(?:N?FR|REQ|DOD|EC|CHK|UAT|US)-?\d")
_TASK_NUMBER: Final = re.compile(r"T\d{2,5}[a-z]?\Z")
_EXPLAINING_LINES: Final = 20
_WRAPPED_CHARS: Final = 60
"""A shorter line was broken on purpose; what follows it is no part of the title."""


def accept_any(leading: LeadingId, known: AbstractSet[str]) -> bool:
    """Ids that are set off by a sign, dotted numbers, `T012`, and letters that several ids begin with."""
    if leading.is_numbered:
        return leading.is_marked_off or "." in leading.id
    is_task_number = _TASK_NUMBER.match(leading.id) is not None
    return leading.is_marked_off or is_task_number or letters_of(leading.id) in known


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRules:
    """How a format differs in its task lines."""

    dialect: Dialect = "common"
    needs_id: bool = False
    """A box without id is no step."""
    depth_from_id: bool = False
    """A whole number stands at the top, however it is indented."""
    accept: Callable[[LeadingId, AbstractSet[str]], bool] = accept_any
    """Whether an id is one, given the letters that several ids of the file begin with."""
    read_tags: Callable[[StepDraft, str], str] = field(default=lambda _, rest: rest)
    """Reads the tags that follow the id into the step; what is left of the text."""


@dataclass(slots=True)
class Boxes:
    """What was found, with the entries' places."""

    steps: list[StepDraft] = field(default_factory=list[StepDraft])
    criteria: list[CriterionDraft] = field(default_factory=list[CriterionDraft])
    notes: list[PlanNote] = field(default_factory=list[PlanNote])
    places: list[int] = field(default_factory=list[int])
    """Of each step its entry."""


@dataclass(slots=True, kw_only=True)
class _Candidate:
    place: int
    line: int
    mark: str
    written: str
    """The text behind the box, a stamp in front taken off."""
    text: TaskText
    literal: str | None
    """Its id, where what looks like one is one."""

    def is_task(self, *, in_criteria: bool, needs_id: bool) -> bool:
        """Whether it is a step and no criterion."""
        if self.literal is None:
            return not (in_criteria or needs_id)
        if _CRITERION_ID.match(self.literal):
            return False
        return not (in_criteria and (self.literal.isdigit() or _REQUIREMENT_ID.match(self.literal)))


def read_boxes(
    plan: PlanText,
    rules: BoxRules,
    *,
    leave_out: AbstractSet[int] = frozenset(),
    has_criteria: bool = True,
) -> Boxes:
    """The steps and criteria among the boxes of a plan. O(n).

    `leave_out` are sections that hold none. Without `has_criteria` every box is a step.
    """
    candidates = _candidates(plan, rules, leave_out)
    scope = plan.criteria_scope() if has_criteria else [False] * len(plan.entries)
    with_ids = any(candidate.literal is not None for candidate in candidates)
    steps = {
        candidate.place: candidate
        for candidate in candidates
        if candidate.is_task(in_criteria=scope[candidate.place], needs_id=rules.needs_id and with_ids)
    }
    criteria = [candidate for candidate in candidates if candidate.place not in steps]
    return _Reader(plan, rules, steps).read(criteria)


def _heading_conflicts(plan: PlanText, found: Boxes) -> Iterator[PlanNote]:
    """A note for each open step below a heading that is said to be closed: the step's own mark holds."""
    for step, place in zip(found.steps, found.places, strict=True):
        said = plan.said_above(place)
        if said is not None and said.status in CLOSED and step.status in OPEN and not step.optional:
            yield PlanNote(kind="status_conflict", line=step.line, text=said.words)


def _candidates(plan: PlanText, rules: BoxRules, leave_out: AbstractSet[int]) -> list[_Candidate]:
    boxed: list[tuple[int, int, str, str, TaskText]] = []
    left_out: set[int] = set()
    for place, entry in enumerate(plan.entries):
        if entry.kind == "heading":
            if place in leave_out or entry.section in left_out:
                left_out.add(place)
            continue
        if entry.kind != "item" or place in plan.legend.places or entry.section in left_out:
            continue
        mark, text = entry.mark, entry.text
        if mark is None:
            letter, rest = letter_box(text)
            if letter is None or not plan.legend.is_mark(letter):
                continue
            mark, text = letter, rest
        written = strip_stamp(text)
        boxed.append((place, entry.line, mark, written, split_task(written)))
    leading = [text.leading for *_, text in boxed if text.leading is not None]
    known = families(one.id for one in leading if not one.is_numbered)
    numbers = Counter(plan.entries[place].number for place, *_ in boxed)
    return [
        _Candidate(
            place=place,
            line=line,
            mark=mark,
            written=written,
            text=text,
            literal=_literal(plan.entries[place].number, text, rules, known, numbers),
        )
        for place, line, mark, written, text in boxed
    ]


def _literal(
    number: str, text: TaskText, rules: BoxRules, known: AbstractSet[str], numbers: Mapping[str, int]
) -> str | None:
    """The id in the text; else the number of an ordered item, where no other has it."""
    if text.leading is not None and rules.accept(text.leading, known):
        return text.leading.id
    is_usable = number and not rules.needs_id and numbers[number] == 1
    return number if is_usable else None


def _full_text(plan: PlanText, place: int, rest: str) -> tuple[str, int]:
    """A task's text with the lines it was wrapped over, and the place after them."""
    lines = [rest]
    following = place + 1
    before = plan.entries[place]
    while following < len(plan.entries):
        entry = plan.entries[following]
        is_wrapped = len(plan.source.visible[before.line - 1].rstrip()) >= _WRAPPED_CHARS
        if (
            entry.kind != "text"
            or entry.is_after_blank
            or entry.line != before.line + 1
            or not is_wrapped
            or before.text.rstrip("*_ ").endswith((".", ":", "!", "?", "。"))
            or labelled(entry.text)
            or entry.text.startswith(("*", "_"))
        ):
            break
        lines.append(entry.text)
        before = entry
        following += 1
    return " ".join(lines), following


class _Reader:
    """Turns candidates into steps, the lines below them into their fields."""

    def __init__(self, plan: PlanText, rules: BoxRules, steps: Mapping[int, _Candidate]) -> None:
        self._plan = plan
        self._rules = rules
        self._steps = steps
        self._owners = self._find_owners()
        self._numbers: dict[str, int] = {}
        self._drafts: dict[int, int] = {}
        self._found = Boxes()

    def read(self, criteria: Sequence[_Candidate]) -> Boxes:
        found = self._found
        texts = {place: _full_text(self._plan, place, one.text.rest) for place, one in self._steps.items()}
        below = self._own_entries(texts, {candidate.place for candidate in criteria})
        for place, candidate in self._steps.items():
            details = read_details(self._plan.outline, iter(below[place]))
            step = self._step(candidate, texts[place][0], details)
            step.parent = self._parent(candidate)
            self._drafts[place] = len(found.steps)
            if candidate.literal is not None:
                self._numbers[candidate.literal] = len(found.steps)
            found.steps.append(step)
            found.places.append(place)
        found.notes += _heading_conflicts(self._plan, found)
        for candidate in criteria:
            owner = self._owners[candidate.place]
            found.criteria.append(_criterion(candidate, self._drafts[owner] if owner is not None else None))
        return found

    def _find_owners(self) -> list[int | None]:
        """Of each entry the nearest step that it stands below."""
        owners: list[int | None] = []
        for entry in self._plan.entries:
            parent = entry.parent
            owners.append(None if parent is None else parent if parent in self._steps else owners[parent])
        return owners

    def _own_entries(
        self, texts: Mapping[int, tuple[str, int]], criteria: AbstractSet[int]
    ) -> Mapping[int, Sequence[int]]:
        """Of each step the entries below it that belong to no other step, its title's lines aside."""
        below: defaultdict[int, list[int]] = defaultdict(list)
        for place, owner in enumerate(self._owners):
            is_own = place not in self._steps and place not in criteria
            if owner is not None and is_own and place >= texts[owner][1]:
                below[owner].append(place)
        return below

    def _step(self, candidate: _Candidate, text: str, details: Details) -> StepDraft:
        entry = self._plan.entries[candidate.place]
        if candidate.text.leading is not None and candidate.literal != candidate.text.leading.id:
            # What looked like an id belongs to the title.
            text = candidate.written + text.removeprefix(candidate.text.rest)
        group, path = self._plan.group(candidate.place)
        step = StepDraft(
            title="",
            line=entry.line,
            printed_id=candidate.literal,
            group=group,
            group_path=path,
            section=entry.section,
            optional=entry.is_starred,
        )
        rest = self._rules.read_tags(step, text)
        reading = read_mark(
            candidate.mark,
            rest,
            struck=candidate.text.struck,
            legend=self._plan.legend,
            dialect=self._rules.dialect,
            field=details.status,
            details="\n".join(details.lines[:_EXPLAINING_LINES]),
        )
        step.title = title_of(reading.title) or title_of(rest)
        step.mark(reading, self._found.notes)
        step.take_title(rest)
        step.take(details, self._found.notes)
        return step

    def _parent(self, candidate: _Candidate) -> int | None:
        """The step whose number the id continues; else the one that it is indented below."""
        literal = candidate.literal
        if literal is not None and literal[0].isdigit():
            above = literal.rpartition(".")[0]
            while above:
                if above in self._numbers:
                    return self._numbers[above]
                above = above.rpartition(".")[0]
            if self._rules.depth_from_id:
                return None
        owner = self._owners[candidate.place]
        return self._drafts[owner] if owner is not None else None


def _criterion(candidate: _Candidate, step: int | None) -> CriterionDraft:
    leading = candidate.text.leading
    return CriterionDraft(
        text=title_of(candidate.text.rest if leading is not None else candidate.written),
        line=candidate.line,
        id=leading.id if leading is not None else None,
        met=candidate.mark in {"x", "X", "✓", "✔", "√", "v"},
        step=step,
    )


def sections_named(plan: PlanText, is_named: Callable[[str], bool]) -> Iterator[int]:
    """The headings of which a predicate holds."""
    return (
        place for place, entry in enumerate(plan.entries) if entry.kind == "heading" and is_named(entry.text)
    )
