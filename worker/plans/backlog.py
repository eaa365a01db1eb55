"""Backlog.md: one file for each task. The file is the step; its boxes are criteria."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from schemas.codes import StepStatus
from worker.code.documents.text_yaml import load_mapping, text_of, texts_of
from worker.plans.boxes import BoxRules, read_boxes
from worker.plans.dependencies import Wanted
from worker.plans.drafts import CriterionDraft, PlanDraft, StepDraft
from worker.plans.fields import read_details
from worker.plans.paths import path_of
from worker.plans.plan_text import PlanText, open_plan
from worker.plans.results import PlanNote, Raw
from worker.plans.statuses import status_of_word
from worker.plans.titles import title_of

_PATH: Final = re.compile(
    r"(?:^|/)backlog/(?P<folder>tasks|completed|drafts|archive/tasks|archive/drafts)/[^/]+\.md$",
    re.IGNORECASE,
)
_MARKERS: Final = ("<!-- AC:BEGIN -->", "<!-- SECTION:", "<!-- DOD:BEGIN -->")
_SECTIONS: Final = (
    ("goal", re.compile(r"\W*description\b", re.IGNORECASE)),
    ("actions", re.compile(r"\W*implementation plan\b", re.IGNORECASE)),
    ("summary", re.compile(r"\W*(?:final summary|implementation notes)\b", re.IGNORECASE)),
)
_NUMBER: Final = re.compile(r"(?P<prefix>.*?)[-_ ]?(?P<number>\d{1,9}(?:\.\d{1,9})*)\Z")
_CRITERION_ID: Final = re.compile(r"#(?P<number>\d{1,5})\s+(?P<text>.*)\Z", re.DOTALL)


def is_backlog(path: str, text: str) -> bool:
    """Whether it is a task of Backlog.md, by its place or by front matter and the tool's own markers."""
    return _PATH.search(path) is not None or (
        text.startswith("---") and any(marker in text for marker in _MARKERS)
    )


def read_backlog(plan: PlanText, siblings: Mapping[str, str]) -> PlanDraft:
    """The task, and the other tasks beside it by their numbers. O(n)."""
    files = [plan, *(open_plan(path, siblings[path]) for path in sorted(siblings) if _is_other(path, plan))]
    statuses = _configured(siblings)
    draft = PlanDraft(title=plan.title(), notes=list(plan.notes))
    path = _PATH.search(plan.path)
    draft.is_closed = path is not None and path["folder"].lower().startswith("archive")
    for file in sorted(files, key=lambda one: (_order(_id_of(one)), one.path)):
        _add(draft, file, statuses, is_own=file is plan)
    _link(draft, [text_of(file.source.front.get("parent_task_id")) for file in _in_order(files)])
    return draft


def _is_other(path: str, plan: PlanText) -> bool:
    return path != plan.path and _PATH.search(path) is not None


def _in_order(files: Sequence[PlanText]) -> list[PlanText]:
    return sorted(files, key=lambda one: (_order(_id_of(one)), one.path))


def _id_of(file: PlanText) -> str:
    """The front matter's id, else what the file's name begins with."""
    name = file.path.rpartition("/")[2].split(" - ", 1)[0].removesuffix(".md")
    return text_of(file.source.front.get("id")) or name


def _order(literal: str) -> tuple[int, ...]:
    match = _NUMBER.match(literal)
    return tuple(int(part) for part in match["number"].split(".")) if match else (10**9,)


def _configured(siblings: Mapping[str, str]) -> list[str]:
    """The statuses of the project in their order; the usual three where none are set."""
    for path in sorted(siblings):
        if path.rpartition("/")[2] in {"config.yml", "config.yaml"}:
            fields = load_mapping(siblings[path]) or {}
            found = [status for status in texts_of(fields.get("statuses")) if status]
            if found:
                return found
    return ["To Do", "In Progress", "Done"]


def _status(raw: str, configured: Sequence[str]) -> StepStatus:
    """A status by its word, else by its place: the first is pending, the last done, others active."""
    known = status_of_word(raw)
    if known is not None and known != "unknown":
        return known
    folded = [status.casefold() for status in configured]
    if raw.casefold() not in folded:
        return "unknown" if raw else "pending"
    place = folded.index(raw.casefold())
    return "pending" if place == 0 else "done" if place == len(folded) - 1 else "active"


def _add(draft: PlanDraft, file: PlanText, configured: Sequence[str], *, is_own: bool) -> None:
    front = file.source.front
    raw = text_of(front.get("status"))
    path = _PATH.search(file.path)
    step = StepDraft(
        title=title_of(text_of(front.get("title"))) or file.title(),
        line=1,
        printed_id=_id_of(file) or None,
        status=_status(raw, configured),
        raw=Raw(words=raw),
        group=text_of(front.get("milestone")) or None,
    )
    if path is not None and path["folder"].lower() == "completed" and step.status != "skipped":
        step.status = "done"
    step.wanted += (
        Wanted(literal, is_sure=True) for literal in texts_of(front.get("dependencies")) if literal
    )
    for name in ("modified_files", "references"):
        step.files += (found for text in texts_of(front.get(name)) if (found := path_of(text)))
    _take_sections(file, step)
    place = len(draft.steps)
    criteria = list(_criteria(file, place))
    draft.steps.append(step)
    if is_own:
        draft.goal, draft.title = step.goal, step.title
        draft.criteria += criteria
    else:
        step.verify += (criterion.text for criterion in criteria)


def _take_sections(file: PlanText, step: StepDraft) -> None:
    for place, entry in enumerate(file.entries):
        if entry.kind != "heading":
            continue
        name = next((name for name, form in _SECTIONS if form.match(entry.text)), None)
        if name is None:
            continue
        details = read_details(file.outline, iter(file.outline.below(place)))
        lines = [title_of(line) for line in details.lines]
        if name == "actions":
            step.actions += lines
        elif name == "goal":
            step.goal = step.goal or " ".join(lines)
        else:
            step.summary = step.summary or " ".join(lines)


def _criteria(file: PlanText, step: int) -> Iterator[CriterionDraft]:
    """Every box of the file, wherever it stands."""
    boxes = read_boxes(file, BoxRules(accept=lambda _, __: False), has_criteria=False)
    for box, place in zip(boxes.steps, boxes.places, strict=True):
        match = _CRITERION_ID.match(file.entries[place].text)
        yield CriterionDraft(
            text=title_of(match["text"]) if match else box.title,
            line=box.line,
            id=f"#{match['number']}" if match else None,
            met=box.status == "done",
            step=step,
        )


def _link(draft: PlanDraft, parents: Sequence[str]) -> None:
    """Parents and dependencies by id; where a prefix is that of no task here, by number."""
    by_id = {(step.printed_id or "").casefold(): place for place, step in reversed([*enumerate(draft.steps)])}
    by_number: dict[str, int] = {}
    prefixes: set[str] = set()
    for place, step in enumerate(draft.steps):
        match = _NUMBER.match(step.printed_id or "")
        if match:
            by_number.setdefault(match["number"], place)
            prefixes.add(match["prefix"].casefold())

    def find(literal: str) -> int | None:
        match = _NUMBER.match(literal)
        is_foreign = match is not None and match["prefix"].casefold() not in prefixes
        return by_id.get(literal.casefold(), by_number.get(match["number"]) if match and is_foreign else None)

    for place, (step, parent) in enumerate(zip(draft.steps, parents, strict=True)):
        above = find(parent) if parent else find((step.printed_id or "").rpartition(".")[0])
        step.parent = above if above is not None and above < place else None
        step.wanted = [
            Wanted(draft.steps[target].printed_id or "", is_sure=True, written=wanted.id)
            if (target := find(wanted.id)) is not None
            else wanted
            for wanted in step.wanted
        ]
        if step.status == "unknown":
            draft.notes.append(PlanNote(kind="mark_guess", line=step.line, text=step.raw.words))
