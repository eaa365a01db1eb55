"""Free plans, `PLAN.md`, `TODO.md`, `ROADMAP.md`: boxes, else tables, else headings, else lists."""

from __future__ import annotations

import re
from typing import Final

from worker.code.documents.text_yaml import text_of
from worker.code.documents.wording import plain
from worker.plans.boxes import BoxRules, read_boxes
from worker.plans.drafts import CriterionDraft, PlanDraft, StepDraft
from worker.plans.fields import Details, read_details
from worker.plans.headings import heading_steps
from worker.plans.marks import read_mark
from worker.plans.outline import Entry
from worker.plans.plan_text import PlanText, is_criteria_heading
from worker.plans.pointers import file_status
from worker.plans.results import PlanNote
from worker.plans.statuses import exact_status, said_status
from worker.plans.tables import table_steps
from worker.plans.titles import split_task, strip_stamp, title_of

_KEYWORD: Final = re.compile(
    r"\W*(?:(?:phase|step|task|milestone|day|week|sprint|stage|iteration|fase|etapa|фаза|этап)"
    r"(?:\s*#?\s*\d{1,4}(?:\.\d{1,4})*[a-z]?|\s+(?-i:[IVX]{1,4}|[A-Z]))\b|(?:阶段|階段|第|フェーズ|ステップ|步骤|단계)\s*\d|M\d{1,3}\b)",
    re.IGNORECASE,
)
_NUMBERED: Final = re.compile(_KEYWORD.pattern + r"|\W*\d{1,3}(?:\.\d{1,3})*[a-z]?[.)]?\s", re.IGNORECASE)
_PLAN_HEADING: Final = re.compile(
    r"\b(?:plans?|steps?|tasks?|to-?do|todos|next|roadmap|backlog|milestones?|action items?)\b"
    r"|计划|計劃|计畫|任务|任務|步骤|下一步|計画|手順|タスク"
    r"|план|задач|шаги|pasos|próximos|etapas|passos|계획|할 일",
    re.IGNORECASE,
)


def read_free(plan: PlanText) -> PlanDraft:
    """The steps of the first kind that the file has. Without any the draft has none. O(n).

    Boxes; rows of a table with a status column or ids of tasks; headings with "Phase", "Step" and the like
    and a number; the ordered list under a heading that speaks of a plan; bullets there with a sign of status.
    """
    draft = PlanDraft(
        title=plan.title(), goal=plan.goal(), decisions=plan.decisions(), notes=list(plan.notes)
    )
    boxes = read_boxes(plan, BoxRules())
    if boxes.steps:
        draft.steps, draft.criteria = boxes.steps, boxes.criteria
        draft.notes += boxes.notes
        return draft
    notes: list[PlanNote] = []
    draft.steps = (
        table_steps(plan, notes)
        or _by_heading(plan, notes)
        or _listed_steps(plan, notes)
        or _signed_bullets(plan, notes)
    )
    if draft.steps:
        draft.criteria = _with_owners(plan, draft.steps, boxes.criteria)
        draft.notes += notes
    elif boxes.criteria:
        # A file of nothing but a checklist is a plan after all.
        return _checklist(plan, draft)
    return draft


def _checklist(plan: PlanText, draft: PlanDraft) -> PlanDraft:
    boxes = read_boxes(plan, BoxRules(), has_criteria=False)
    draft.steps, draft.criteria = boxes.steps, boxes.criteria
    draft.notes += boxes.notes
    return draft


def _with_owners(
    plan: PlanText, steps: list[StepDraft], criteria: list[CriterionDraft]
) -> list[CriterionDraft]:
    """The criteria; those below a heading that is a step belong to it."""
    by_line = {step.line: place for place, step in enumerate(steps)}
    entries = {entry.line: place for place, entry in enumerate(plan.entries)}
    for criterion in criteria:
        above = plan.outline.headings_above(entries[criterion.line])
        lines = (plan.entries[heading].line for heading in above)
        criterion.step = next((by_line[line] for line in lines if line in by_line), None)
    return criteria


def _by_heading(plan: PlanText, notes: list[PlanNote]) -> list[StepDraft]:
    inherited = file_status(plan)
    raw = text_of(plan.source.front.get("status")) if inherited else ""
    steps = heading_steps(plan, _KEYWORD, inherited=inherited, raw=raw, notes=notes)
    if steps:
        return steps
    found: list[PlanNote] = []
    numbered = heading_steps(plan, _NUMBERED, notes=found)
    # Chapters are numbered too; that one of them bears a status tells a plan.
    if any(step.raw.words for step in numbered):
        notes += found
        return numbered
    return []


def _is_below_plan_heading(plan: PlanText, entry: Entry) -> bool:
    section = entry.section
    if section is None:
        return False
    heading = plan.entries[section].text
    return _PLAN_HEADING.search(plain(heading)) is not None and not is_criteria_heading(heading)


def _listed_steps(plan: PlanText, notes: list[PlanNote]) -> list[StepDraft]:
    """The items of ordered lists under headings that speak of a plan."""
    chosen = [
        place
        for place, entry in enumerate(plan.entries)
        if entry.kind == "item"
        and entry.number
        and entry.parent is None
        and _is_below_plan_heading(plan, entry)
    ]
    numbers = [plan.entries[place].number for place in chosen]
    has_ids = len(set(numbers)) == len(numbers)
    return [_item_step(plan, place, notes, number=has_ids) for place in chosen]


def _signed_bullets(plan: PlanText, notes: list[PlanNote]) -> list[StepDraft]:
    """Bullets under headings that speak of a plan, where one of them bears a sign or word of status.

    On a board, whose headings are statuses themselves, every bullet below those.
    """
    columns = {
        place
        for place, entry in enumerate(plan.entries)
        if entry.kind == "heading" and exact_status(plain(entry.text)) is not None
    }
    if len(columns) > 1:
        return [
            _item_step(plan, place, notes, number=False)
            for place, entry in enumerate(plan.entries)
            if entry.kind == "item" and entry.parent is None and entry.section in columns
        ]
    chosen = [
        place
        for place, entry in enumerate(plan.entries)
        if entry.kind == "item" and entry.parent is None and _is_below_plan_heading(plan, entry)
    ]
    if not any(said_status(plan.entries[place].text) for place in chosen):
        return []
    return [_item_step(plan, place, notes, number=False) for place in chosen]


def _item_step(plan: PlanText, place: int, notes: list[PlanNote], *, number: bool) -> StepDraft:
    entry = plan.entries[place]
    details: Details = read_details(plan.outline, iter(plan.outline.below(place)))
    parts = split_task(entry.text)
    literal, text = entry.number if number else None, strip_stamp(entry.text)
    if parts.leading is not None and parts.leading.is_marked_off:
        literal, text = parts.leading.id, parts.rest
    reading = read_mark(
        None,
        text,
        legend=plan.legend,
        field=details.status,
        inherited=plan.heading_status(place) or file_status(plan),
    )
    group, path = plan.group(place)
    step = StepDraft(
        title=title_of(reading.title) or title_of(text),
        line=entry.line,
        printed_id=literal,
        group=group,
        group_path=path,
        section=entry.section,
    )
    step.mark(reading, notes)
    step.take_title(text)
    step.take(details, notes)
    return step
