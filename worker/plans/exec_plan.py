"""ExecPlans: living documents whose `## Progress` is a journal of stamped lines; open ones are the plan."""

from __future__ import annotations

import re
from typing import Final

from worker.code.documents.wording import plain
from worker.plans.boxes import BoxRules, read_boxes
from worker.plans.drafts import PlanDraft
from worker.plans.fields import labelled
from worker.plans.plan_text import PlanText
from worker.plans.titles import title_of

_PROGRESS: Final = re.compile(r"^##\s+Progress\b", re.MULTILINE | re.IGNORECASE)
_TELLTALE: Final = re.compile(
    r"^##\s+(?:Surprises\s*(?:&|and)\s*Discoveries|Decision Log|Outcomes\s*(?:&"
    r"|and)\s*Retrospective|Purpose\s*/\s*Big Picture)",
    re.MULTILINE | re.IGNORECASE,
)
_PURPOSE: Final = re.compile(r"\W*(?:purpose\b|goal\b|big picture)", re.IGNORECASE)
_VALIDATION: Final = re.compile(r"\W*validation and acceptance\b", re.IGNORECASE)
_REMAINING: Final = re.compile(r"\bremaining\s*:\s*(?P<rest>[^;)]+)", re.IGNORECASE)
_MAX_VERIFY: Final = 20


def is_exec_plan(text: str) -> bool:
    """Whether it has a progress journal and at least one more of the form's sections."""
    return _PROGRESS.search(text) is not None and _TELLTALE.search(text) is not None


def read_exec_plan(plan: PlanText) -> PlanDraft:
    """The journal's lines; done ones are history. What validates the whole holds for the open ones. O(n)."""
    headings = [place for place, entry in enumerate(plan.entries) if entry.kind == "heading"]
    progress = next((p for p in headings if plan.entries[p].text.lower().startswith("progress")), None)
    outside = {p for p in headings if p != progress and plan.entries[p].section != progress}
    # The title stands above the journal: leaving it out would leave out everything.
    tops = {p for p in outside if progress is None or progress not in plan.outline.below(p)}
    boxes = read_boxes(plan, BoxRules(), leave_out=tops)
    draft = PlanDraft(
        title=plan.title(),
        goal=_purpose(plan, headings),
        steps=boxes.steps,
        criteria=boxes.criteria,
        decisions=plan.decisions(),
        notes=[*plan.notes, *boxes.notes],
    )
    verify = _validation(plan, headings)
    for step in draft.steps:
        remaining = _REMAINING.search(step.raw.words)
        if remaining:
            step.actions.append(title_of(remaining["rest"]))
        if step.status != "done":
            step.verify += verify
    return draft


def _purpose(plan: PlanText, headings: list[int]) -> str:
    for place in headings:
        if _PURPOSE.match(plain(plan.entries[place].text)):
            below = next((p for p in plan.outline.below(place) if plan.entries[p].kind == "text"), None)
            if below is not None:
                return plan.paragraph(below, plan.entries[below].text)
    return plan.goal()


def _validation(plan: PlanText, headings: list[int]) -> list[str]:
    for place in headings:
        if _VALIDATION.match(plain(plan.entries[place].text)):
            found: list[str] = []
            for below in plan.outline.below(place):
                entry = plan.entries[below]
                is_start = entry.kind == "item" or (entry.kind == "text" and entry.is_after_blank)
                if is_start or (entry.kind == "text" and not found):
                    field = labelled(entry.text)
                    found.append(plan.paragraph(below, field[1] if field and field[1] else entry.text))
            return found[:_MAX_VERIFY]
    return []
