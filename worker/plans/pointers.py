"""What a file as a whole says: that it is closed, how far it is, which of its steps is the current one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from schemas.codes import StepStatus
from worker.code.documents.text_yaml import text_of
from worker.code.documents.wording import plain
from worker.plans.dependencies import StepNames
from worker.plans.drafts import StepDraft
from worker.plans.marks import OPEN, status_in_field
from worker.plans.plan_text import PlanText
from worker.plans.step_ids import listed_ids
from worker.plans.titles import title_of

_CLOSED: Final = re.compile(
    r"\W*(?:superseded|archived|obsolete|deprecated|abandoned|replaced by)\b", re.IGNORECASE
)
_CLOSED_FOLDER: Final = re.compile(r"(?:^|/)(?:archived?|_completed_|_archived?_)/", re.IGNORECASE)
_STATUS: Final = re.compile(r"[*_>\s-]*status[*_]*\s*[:：][*_\s]*(?P<value>.+)", re.IGNORECASE)
_CURRENT: Final = re.compile(
    r"[*_\s-]*current(?:ly)?\s+(?:focus|step|task|phase|working on|milestone)"
    r"[*_]*\s*[:：][*_\s]*(?P<value>.+)",
    re.IGNORECASE,
)
_CURRENT_HEADING: Final = re.compile(
    r"\W*current\s+(?:work\s+)?(?:focus|step|task|phase)\W*\Z", re.IGNORECASE
)
_HEAD_ENTRIES: Final = 15
_MIN_TITLE_CHARS: Final = 4
_MAX_POINTERS: Final = 20


def is_closed(plan: PlanText) -> bool:
    """Whether the document is archived or superseded, by folder, front matter, or status line."""
    if _CLOSED_FOLDER.search(plan.path) or _CLOSED.match(text_of(plan.source.front.get("status"))):
        return True
    if text_of(plan.source.front.get("superseded_by")).strip("-[] "):
        return True
    found = (_STATUS.match(entry.text[:300]) for entry in plan.entries[:_HEAD_ENTRIES] if entry.mark is None)
    return any(match is not None and _CLOSED.match(match["value"]) for match in found)


def file_status(plan: PlanText) -> StepStatus | None:
    """The front matter's status, which holds for the steps of a file without marks."""
    raw = text_of(plan.source.front.get("status"))
    status = status_in_field(raw, plan.legend) if raw else None
    return None if status == "unknown" else status


def find_pointer(plan: PlanText, steps: Sequence[StepDraft]) -> int | None:
    """The step that the file names as current: in its front matter, a label, or below a heading."""
    names = StepNames([step.printed_id for step in steps])
    titles = {step.title.casefold(): place for place, step in reversed([*enumerate(steps)])}
    for text in islice(_named(plan), _MAX_POINTERS):
        found = names.find(text.strip()) if len(text) < 200 else None  # noqa: PLR2004 (an id is short)
        if found is None:
            found = titles.get(title_of(text).casefold())
        ids = (names.find(literal) for literal in listed_ids(text[:300]).ids)
        place = next((one for one in ids if one is not None), None) if found is None else found
        if place is None:
            place = _by_title(title_of(text).casefold(), titles)
        if place is None:
            place = _in_group(title_of(text).casefold(), steps)
        if place is not None:
            return place
    return _below_current(plan, steps)


def _below_current(plan: PlanText, steps: Sequence[StepDraft]) -> int | None:
    """The first open step right below a heading such as "Current Focus"."""
    headings = {
        place
        for place, entry in enumerate(plan.entries)
        if entry.kind == "heading" and _CURRENT_HEADING.match(plain(entry.text[:200]))
    }
    open_below = (
        place
        for place, step in enumerate(steps)
        if step.section in headings and step.status in OPEN and not step.optional
    )
    return next(open_below, None)


def _by_title(text: str, titles: dict[str, int]) -> int | None:
    """The step whose title a text begins with, the longest of several."""
    fitting = [title for title in titles if len(title) >= _MIN_TITLE_CHARS and text.startswith(title)]
    return titles[max(fitting, key=len)] if fitting else None


def _in_group(text: str, steps: Sequence[StepDraft]) -> int | None:
    """The first open step of the group that is named, as in "Phase 2"."""
    groups = (
        place
        for place, step in enumerate(steps)
        if step.group
        and step.status in OPEN
        and not step.optional
        and re.match(rf"{re.escape(text)}\b", step.group.casefold())
    )
    return next(groups, None) if len(text) >= _MIN_TITLE_CHARS else None


def _named(plan: PlanText) -> Iterator[str]:
    for key, value in plan.source.front.items():
        text = text_of(value)
        if key.lower().startswith("current") and text:
            yield text
            if text.isdigit():
                yield f"{key.lower().rpartition('_')[2]} {text}"
    for place, entry in enumerate(plan.entries):
        if entry.kind == "heading" and _CURRENT_HEADING.match(plain(entry.text[:200])):
            first = next(
                (p for p in plan.outline.below(place) if plan.entries[p].kind in {"text", "item"}), None
            )
            if first is not None and plan.entries[first].mark is None:
                yield plan.entries[first].text
        elif entry.kind in {"text", "item"} and entry.mark is None and "urrent" in entry.text[:40]:
            match = _CURRENT.match(entry.text[:400])
            if match:
                yield match["value"]
