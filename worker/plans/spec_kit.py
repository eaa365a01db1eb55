"""GitHub Spec Kit's `tasks.md`: `- [ ] T012 [P] [US1] text`, in phases that are worked through in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Final

from worker.code.documents.wording import plain
from worker.plans.boxes import Boxes, BoxRules, read_boxes, sections_named
from worker.plans.drafts import PlanDraft, StepDraft
from worker.plans.outline import Entry
from worker.plans.plan_text import PlanText
from worker.plans.step_ids import LeadingId, letters_of
from worker.plans.titles import title_of

_PATH: Final = re.compile(r"(?:^|/)specs/\d{1,14}-[^/]+/(?P<name>tasks|plan)\.md$", re.IGNORECASE)
_TASK: Final = re.compile(r"^\s*[-*]\s+\[[ xX~/>!-]\]\s+[*~]*T\d{3,4}[a-z]?\b", re.MULTILINE)
_TELLTALE: Final = re.compile(r"\[US\d|^#+\s+Phase\s+\d|^#+\s+Format:", re.MULTILINE)
_NO_TASKS: Final = re.compile(
    r"[\W_]*(?:parallel\b|implementation strategy|summary|mvp\b|notes\b|dependencies|format\b"
    r"|path conventions"
    r"|phase dependencies|user story dependencies|within each user story|incremental delivery)",
    re.IGNORECASE,
)
_TAG: Final = re.compile(r"[*_]*\[(?P<tag>[A-Z][\w+,&/ -]{0,40})\][*_]*\s*")
_STORY: Final = re.compile(r"US\d+[a-z]?")
_PHASE: Final = re.compile(r"\bPhase\s+(?P<number>\d{1,4})\b", re.IGNORECASE)
_PHASE_DEPENDS: Final = re.compile(
    r"\bPhase\s+(?P<number>\d{1,4})\b[^\n]{0,120}?\bdepends\s+on\s+(?P<needed>Phases?\s+[^\n]{1,120})",
    re.IGNORECASE,
)
_SLOT: Final = re.compile(
    r"(?:\A|(?<=\s))[*_]{2}(?P<name>Goal|Independent Test|Checkpoint)(?:[*_]{2}\s*[:：]"
    r"|\s*[:：]\s*[*_]{2})\s*",
    re.IGNORECASE,
)


def is_spec_kit(path: str, text: str) -> bool:
    """Whether it is one of Spec Kit's task or plan files, by its place or by what its lines look like."""
    return _PATH.search(path) is not None or (
        _TASK.search(text) is not None and _TELLTALE.search(text) is not None
    )


def read_spec_kit(plan: PlanText) -> PlanDraft:
    """The tasks. `plan.md` holds technical context and no steps. O(n)."""
    draft = PlanDraft(
        title=plan.title(), goal=plan.goal(), notes=list(plan.notes), decisions=plan.decisions()
    )
    path = _PATH.search(plan.path)
    if path is not None and path["name"].lower() == "plan":
        return draft
    rules = BoxRules(needs_id=True, accept=_accept, read_tags=read_tags)
    boxes = read_boxes(plan, rules, leave_out=set(sections_named(plan, _holds_no_tasks)))
    draft.steps, draft.criteria = boxes.steps, boxes.criteria
    draft.notes += boxes.notes
    _add_slots(plan, boxes)
    draft.barriers = list(_phase_barriers(plan, boxes.steps))
    return draft


def _accept(leading: LeadingId, known: AbstractSet[str]) -> bool:
    if leading.is_numbered:
        return leading.is_marked_off or "." in leading.id
    return leading.id.startswith("T") or leading.is_marked_off or letters_of(leading.id) in known


def read_tags(step: StepDraft, rest: str) -> str:
    """Takes `[P]`, `[US1]`, `[US1+US3]`, `[Setup]` off a task's text, in any order."""
    while match := _TAG.match(rest):
        tag = match["tag"].strip()
        if tag == "P":
            step.parallel = True
        elif _STORY.match(tag):
            step.requirements += _STORY.findall(tag)
        elif tag.isupper():
            # A status in brackets.
            break
        rest = rest[match.end() :]
    return rest


def _holds_no_tasks(heading: str) -> bool:
    return _NO_TASKS.match(plain(heading)) is not None


def _add_slots(plan: PlanText, boxes: Boxes) -> None:
    """A phase's Goal, Independent Test and Checkpoint hold for each task in it."""
    slots: dict[int, dict[str, str]] = {}
    for place, entry in enumerate(plan.entries):
        if entry.kind not in {"text", "item"} or entry.mark is not None:
            continue
        top = _phase_section(plan, entry)
        if top is None or "**" not in entry.text:
            continue
        _, *parts = _SLOT.split(entry.text)
        for n, (name, value) in enumerate(zip(parts[::2], parts[1::2], strict=True), start=1):
            is_last = 2 * n == len(parts)
            text = plan.paragraph(place, value) if is_last else title_of(value)
            slots.setdefault(top, {}).setdefault(name.lower(), text)
    for step, place in zip(boxes.steps, boxes.places, strict=True):
        top = _phase_section(plan, plan.entries[place])
        found = slots.get(top, {}) if top is not None else {}
        step.goal = step.goal or found.get("goal", "")
        step.verify += (found[name] for name in ("independent test", "checkpoint") if name in found)


def _phase_section(plan: PlanText, entry: Entry) -> int | None:
    """The heading of the second level that an entry stands below."""
    section = entry.section
    while section is not None and plan.entries[section].level > 2:  # noqa: PLR2004 (phases stand on level 2)
        section = plan.entries[section].section
    return section


def _phase_barriers(plan: PlanText, steps: list[StepDraft]) -> Iterator[tuple[str, str]]:
    """Groups that wait for others, where `Phase N … Depends on Phase M` says so."""
    groups: dict[int, str] = {}
    for step in steps:
        match = _PHASE.match(step.group or "")
        if match and step.group:
            groups.setdefault(int(match["number"]), step.group)
    for entry in plan.entries:
        match = _PHASE_DEPENDS.search(title_of(entry.text)) if "epends" in entry.text else None
        if match is None or int(match["number"]) not in groups:
            continue
        for needed in re.findall(r"\d{1,4}", match["needed"]):
            if int(needed) in groups and int(needed) < int(match["number"]):
                yield groups[int(match["number"])], groups[int(needed)]
