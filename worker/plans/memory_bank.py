"""Memory banks: prose under "Current Focus" and "Next Steps"; "What's Left to Build" in the progress file."""

from __future__ import annotations

import re
from typing import Final

from worker.code.documents.wording import plain
from worker.plans.boxes import BoxRules, read_boxes
from worker.plans.drafts import PlanDraft, StepDraft
from worker.plans.fields import read_details
from worker.plans.marks import CLOSED, read_mark
from worker.plans.plan_text import PlanText
from worker.plans.titles import split_task, title_of

_PATH: Final = re.compile(
    r"(?:^|/)(?:memory-bank|memory_bank|\.memory-bank)/(?:.*/)?(?P<name>[^/]+)\.md$", re.IGNORECASE
)
_FOCUS: Final = re.compile(r"\W*current\s+(?:work\s+)?(?:focus|task|objective)\b", re.IGNORECASE)
_NEXT: Final = re.compile(
    r"\W*(?:immediate\s+)?next\s+(?:steps?|actions?|tasks?)\b|\W*what['’]?s\s+left\b|\W*remaining\b",
    re.IGNORECASE,
)
_BOXES: Final = BoxRules()


def is_memory_bank(path: str) -> bool:
    """Whether it is a file of a memory bank, by its place."""
    return _PATH.search(path) is not None


def read_memory_bank(plan: PlanText) -> PlanDraft:
    """What stands under the focus, then under the next steps. The first that is not complete is active. O(n).

    Other bullets are features and notes, whatever signs they bear.
    """
    draft = PlanDraft(
        title=plan.title(), goal=plan.goal(), decisions=plan.decisions(), notes=list(plan.notes)
    )
    boxes = read_boxes(plan, _BOXES)
    if boxes.steps:
        draft.steps, draft.criteria = boxes.steps, boxes.criteria
        draft.notes += boxes.notes
        return draft
    focus = _items(plan, _FOCUS, draft)
    _items(plan, _NEXT, draft)
    draft.pointer = next((place for place in focus if draft.steps[place].status not in CLOSED), None)
    return draft


def _items(plan: PlanText, heading: re.Pattern[str], draft: PlanDraft) -> list[int]:
    """Add the items below the headings that a pattern matches, or the paragraph of one that has none."""
    places: list[int] = []
    for place, entry in enumerate(plan.entries):
        if entry.kind != "heading" or not heading.match(plain(entry.text)):
            continue
        below = plan.outline.below(place)
        items = [p for p in below if plan.entries[p].kind == "item" and plan.entries[p].parent is None]
        chosen = items or [p for p in below if plan.entries[p].kind == "text"][:1]
        for item in chosen:
            places.append(len(draft.steps))
            draft.steps.append(_step(plan, item, draft))
    return places


def _step(plan: PlanText, place: int, draft: PlanDraft) -> StepDraft:
    entry = plan.entries[place]
    parts = split_task(entry.text)
    is_marked_off = parts.leading is not None and parts.leading.is_marked_off
    text = parts.rest if is_marked_off else entry.text
    if entry.kind == "text":
        text = plan.paragraph(place, text)
    details = read_details(plan.outline, iter(plan.outline.below(place)))
    reading = read_mark(
        entry.mark, text, legend=plan.legend, field=details.status, inherited=plan.heading_status(place)
    )
    group, path = plan.group(place)
    step = StepDraft(
        title=title_of(reading.title) or title_of(text),
        line=entry.line,
        printed_id=parts.leading.id if parts.leading is not None and is_marked_off else None,
        group=group,
        group_path=path,
        section=entry.section,
    )
    step.mark(reading, draft.notes)
    step.take_title(text)
    step.take(details, draft.notes)
    return step
