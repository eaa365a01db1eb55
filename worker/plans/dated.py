"""Dated plans: `### Task 3: title` with its files, and steps `- [ ] **Step 1: …**` that restart in each task.

The boxes of such plans stay open long after the work is done: progress is kept elsewhere, by events.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from worker.code.documents.wording import plain
from worker.plans.drafts import PlanDraft, StepDraft
from worker.plans.fields import read_details
from worker.plans.headings import own_entries
from worker.plans.marks import read_mark
from worker.plans.plan_text import PlanText
from worker.plans.titles import split_task, title_of

_PATH: Final = re.compile(r"(?:^|/)plans/\d{4}-\d{2}-\d{2}-[^/]+\.md$", re.IGNORECASE)
_TASK_HEADING: Final = re.compile(r"\W*Task\s+\d{1,4}[a-z]?\b", re.IGNORECASE)
_TASK_LINE: Final = re.compile(r"^#{2,4}\s+\W*Task\s+\d{1,4}[a-z]?\b", re.MULTILINE | re.IGNORECASE)
_STEP_LINE: Final = re.compile(r"^\s*(?:[-*]\s+\[.\]\s+)?\*\*Step\s+\d{1,4}", re.MULTILINE | re.IGNORECASE)
_STEP: Final = re.compile(r"\W*Step\s+(?P<number>\d{1,4}[a-z]?)\b", re.IGNORECASE)


def is_dated(path: str, text: str) -> bool:
    """Whether it is a plan of tasks with steps, by headings and steps, or by place and headings."""
    return _TASK_LINE.search(text) is not None and (
        _STEP_LINE.search(text) is not None or _PATH.search(path) is not None
    )


def read_dated(plan: PlanText) -> PlanDraft:
    """Each task a step, its steps its parts: `3.1` is step 1 of task 3. O(n)."""
    draft = PlanDraft(
        title=plan.title(), goal=plan.goal(), decisions=plan.decisions(), notes=list(plan.notes)
    )
    tasks = {
        place
        for place, entry in enumerate(plan.entries)
        if entry.kind == "heading" and _TASK_HEADING.match(plain(entry.text[:200]))
    }
    for place in sorted(tasks):
        _add_task(plan, draft, place, own_entries(plan, place, tasks, with_boxes=True))
    return draft


def _add_task(plan: PlanText, draft: PlanDraft, place: int, own: Sequence[int]) -> None:
    entry = plan.entries[place]
    heading = split_task(entry.text)
    starts = [at for at, other in enumerate(own) if _is_step(plan, other)]
    before = own[: starts[0]] if starts else own
    details = read_details(plan.outline, iter(before))
    reading = read_mark(
        None, heading.rest, legend=plan.legend, field=details.status, is_heading=True, struck=heading.struck
    )
    group, path = plan.group(place)
    task = StepDraft(
        title=title_of(reading.title) or plan.heading_name(place),
        line=entry.line,
        printed_id=heading.leading.id if heading.leading is not None else None,
        group=group,
        group_path=path,
        section=entry.section,
        has_own_mark=bool(reading.raw.words) or not starts,
    )
    task.mark(reading, draft.notes)
    task.take_title(heading.rest)
    task.take(details, draft.notes)
    parent = len(draft.steps)
    draft.steps.append(task)
    for start, end in pairwise([*starts, len(own)]):
        _add_step(plan, draft, own[start], own[start + 1 : end], parent)


def _is_step(plan: PlanText, place: int) -> bool:
    entry = plan.entries[place]
    if entry.kind == "item":
        return entry.mark is not None and place not in plan.legend.places
    return entry.kind == "text" and entry.text.startswith("**") and _STEP.match(entry.text) is not None


def _add_step(plan: PlanText, draft: PlanDraft, place: int, below: Sequence[int], parent: int) -> None:
    entry = plan.entries[place]
    task = draft.steps[parent]
    match = _STEP.match(entry.text)
    parts = split_task(entry.text)
    text = parts.rest if match and parts.leading else entry.text
    details = read_details(plan.outline, iter(below))
    reading = read_mark(
        entry.mark, text, legend=plan.legend, field=details.status, details="\n".join(details.lines[:20])
    )
    step = StepDraft(
        title=title_of(reading.title) or title_of(text),
        line=entry.line,
        printed_id=f"{task.printed_id}.{match['number']}" if match and task.printed_id else None,
        parent=parent,
        group=task.printed_id and f"Task {task.printed_id}: {task.title}",
        group_path=task.group_path,
        section=entry.section,
        optional=entry.is_starred,
    )
    step.mark(reading, draft.notes)
    step.take_title(text)
    step.take(details, draft.notes)
    # A step seldom names its files: they stand above it, once for the task.
    step.files = step.files or list(task.files)
    draft.steps.append(step)
