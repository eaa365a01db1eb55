"""Steps that are headings: `## Phase 2: API ✅`, `### 1.1 Schema`, `### 3. Parser — IN PROGRESS`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from schemas.codes import StepStatus
from worker.code.documents.wording import plain
from worker.plans.drafts import StepDraft
from worker.plans.fields import read_details
from worker.plans.marks import read_mark
from worker.plans.plan_text import PlanText, is_criteria_heading
from worker.plans.results import PlanNote, Raw
from worker.plans.titles import split_task, title_of


def heading_steps(
    plan: PlanText,
    form: re.Pattern[str],
    *,
    inherited: StepStatus | None = None,
    raw: str = "",
    notes: list[PlanNote],
) -> list[StepDraft]:
    """A step for each heading that `form` matches, those below others as their parts. O(n).

    A heading's own words decide, or a `Status:` line below it; then `inherited`, the status of the whole
    file, whose words are `raw`. One that has steps below it and says nothing itself takes its from those.
    """
    chosen = {
        place
        for place, entry in enumerate(plan.entries)
        if entry.kind == "heading"
        and form.match(plain(entry.text[:200]))
        and not is_criteria_heading(entry.text)
    }
    steps: list[StepDraft] = []
    places: dict[int, int] = {}
    for place in sorted(chosen):
        parent = next(
            (places[above] for above in plan.outline.headings_above(place) if above in places), None
        )
        own = own_entries(plan, place, chosen)
        step = _heading_step(plan, place, own, notes, inherited=inherited, raw=raw)
        step.parent = parent
        if parent is not None and not steps[parent].raw.words:
            steps[parent].has_own_mark = False
        places[place] = len(steps)
        steps.append(step)
    return steps


def own_entries(plan: PlanText, place: int, chosen: set[int], *, with_boxes: bool = False) -> list[int]:
    """What stands below a heading and not below another step; without boxes where those are criteria."""
    own: list[int] = []
    end = 0
    for other in plan.outline.below(place):
        if other < end:
            continue
        if other in chosen:
            end = plan.outline.end[other]
            continue
        if with_boxes or plan.entries[other].mark is None:
            own.append(other)
    return own


def _heading_step(
    plan: PlanText,
    place: int,
    own: Sequence[int],
    notes: list[PlanNote],
    *,
    inherited: StepStatus | None,
    raw: str,
) -> StepDraft:
    entry = plan.entries[place]
    task = split_task(entry.text)
    details = read_details(plan.outline, iter(own))
    reading = read_mark(
        None,
        task.rest,
        legend=plan.legend,
        field=details.status,
        inherited=inherited,
        is_heading=True,
        struck=task.struck,
    )
    group, path = plan.group(place)
    literal = None
    if task.leading is not None:
        word = task.leading.word
        literal = f"{word.capitalize()} {task.leading.id}" if word else task.leading.id
    step = StepDraft(
        title=title_of(reading.title) or plan.heading_name(place),
        line=entry.line,
        printed_id=literal,
        group=group,
        group_path=path,
        section=entry.section,
    )
    step.mark(reading, notes)
    if inherited is not None and not reading.raw.words:
        step.raw = Raw(words=raw)
    step.take_title(task.rest)
    step.take(details, notes)
    return step
