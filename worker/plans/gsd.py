"""GSD's `.planning` folder: a roadmap of phases, a state file that says which is current, plans of tasks."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from schemas.codes import StepStatus
from worker.code.documents.text_yaml import text_of, texts_of
from worker.plans.boxes import BoxRules, read_boxes
from worker.plans.drafts import PlanDraft, StepDraft
from worker.plans.fields import requirement_ids
from worker.plans.marks import CLOSED
from worker.plans.paths import listed_paths, paths_in
from worker.plans.plan_text import PlanText, open_plan
from worker.plans.results import PlanNote, Raw
from worker.plans.statuses import said_status, status_of_word
from worker.plans.step_ids import LeadingId
from worker.plans.titles import split_task, title_of

_FOLDER: Final = re.compile(r"(?:^|/)\.planning/(?:.*/)?(?P<name>[^/]+)\.md$", re.IGNORECASE)
_PLAN_NAME: Final = re.compile(r"(?P<phase>\d{1,4}(?:\.\d{1,3})?)-(?P<plan>\d{1,4})-PLAN\Z", re.IGNORECASE)
_TASK: Final = re.compile(r"<task\b(?P<attributes>[^>\n]{0,300})>(?P<body>.*?)</task>", re.DOTALL)
_TYPE: Final = re.compile(r"type\s*=\s*\"(?P<type>[^\"]{0,80})\"")
_HEADED: Final = re.compile(
    r"^#{2,4}\s+(?P<title>Task\s+\d{1,4}[a-z]?\b[^\n]*)$", re.MULTILINE | re.IGNORECASE
)
_PHASE: Final = re.compile(
    r"^[\s*_-]*Phase[*_]*:[*_]*\s*\[?(?P<number>\d{1,4}(?:\.\d{1,3})?)\]?", re.MULTILINE
)
_PLAN: Final = re.compile(r"^[\s*_-]*Plan[*_]*:[*_]*\s*\[?(?P<number>\d{1,4})\]?", re.MULTILINE)
_PLAN_ITEM: Final = re.compile(
    r"\W*(?P<id>\d{1,4}(?:\.\d{1,3})?-\d{1,4})(?:-PLAN(?:\.md)?)?[`*_]*\s*[:：—–-]*\s*", re.IGNORECASE
)
_MAX_TASKS: Final = 10_000


def is_gsd(path: str, text: str) -> bool:
    """Whether it is a file of a `.planning` folder, or a plan of tagged tasks."""
    if _FOLDER.search(path) is not None and not re.search(r"hand-?off", path, re.IGNORECASE):
        return True
    return "<task " in text and "</task>" in text and "<action>" in text


def read_gsd(plan: PlanText, siblings: Mapping[str, str]) -> PlanDraft:
    """The tasks of a plan; of the roadmap or the state file the phases and their plans. O(n)."""
    if "</task>" in plan.source.text or _HEADED.search(plan.source.text):
        return _read_tasks(plan, siblings)
    name = _name(plan.path)
    state = plan if name == "state" else _open(siblings, "state")
    roadmap = plan if name not in {"state", "requirements"} else _open(siblings, "roadmap")
    draft = PlanDraft(
        title=plan.title(), goal=plan.goal(), decisions=plan.decisions(), notes=list(plan.notes)
    )
    if roadmap is not None:
        boxes = read_boxes(roadmap, BoxRules(accept=_accept))
        draft.steps, draft.criteria = boxes.steps, boxes.criteria
        draft.notes += boxes.notes
    for step in draft.steps:
        if step.printed_id and step.printed_id.isdigit():
            step.printed_id = f"Phase {step.printed_id}"
    _adopt_plans(draft.steps)
    if state is not None:
        _follow_state(draft, state, siblings)
    return draft


def _name(path: str) -> str:
    return posixpath.basename(path).rpartition(".")[0].lower()


def _open(siblings: Mapping[str, str], name: str) -> PlanText | None:
    path = next((path for path in sorted(siblings) if _name(path) == name), None)
    return open_plan(path, siblings[path]) if path is not None else None


def _accept(leading: LeadingId, known: AbstractSet[str]) -> bool:
    del known
    return leading.word == "phase" or leading.is_marked_off or not leading.is_numbered


def _adopt_plans(steps: list[StepDraft]) -> None:
    """The plans of a phase, `03-02`, are its parts, wherever the roadmap lists them."""
    phases = {step.printed_id: place for place, step in reversed([*enumerate(steps)])}
    for place, step in enumerate(steps):
        match = _PLAN_ITEM.match(step.title) if step.printed_id is None else None
        if match is None:
            continue
        step.printed_id = match["id"]
        step.title = title_of(step.title[match.end() :]) or step.title
        number = match["id"].split("-")[0].lstrip("0") or "0"
        above = phases.get(f"Phase {number}")
        if step.parent is None and above is not None and above < place:
            step.parent = above


def _follow_state(draft: PlanDraft, state: PlanText, siblings: Mapping[str, str]) -> None:
    """The state file wins over the roadmap: phases before the current one are closed, it is active."""
    text = "\n".join(state.source.visible)
    phase, number = _PHASE.search(text), _PLAN.search(text)
    if status_of_word(text_of(state.source.front.get("status"))) == "done":
        draft.is_closed = True
    if phase is None:
        return
    current = phase["number"]
    if not draft.steps:
        draft.steps.append(StepDraft(title=f"Phase {current}", line=1, printed_id=f"Phase {current}"))
    for place, step in enumerate(draft.steps):
        literal = (step.printed_id or "").removeprefix("Phase ")
        if step.parent is not None or not re.fullmatch(r"\d{1,4}(?:\.\d{1,3})?", literal):
            continue
        if float(literal) < float(current) and step.status not in CLOSED | {"deferred"}:
            _overrule(draft, step, "done")
        elif literal == current:
            if step.status in CLOSED:
                _overrule(draft, step, "active")
            draft.pointer = place
    _follow_plans(draft, siblings)
    if number is not None and draft.pointer is not None:
        wanted = int(number["number"])
        for place, step in enumerate(draft.steps):
            parts = (step.printed_id or "").split("-")
            if step.parent == draft.pointer and parts[-1].isdigit() and int(parts[-1]) == wanted:
                draft.pointer = place
                break


def _overrule(draft: PlanDraft, step: StepDraft, status: StepStatus) -> None:
    draft.notes.append(PlanNote(kind="status_conflict", line=step.line, text=step.printed_id or step.title))
    step.status = status
    step.raw = Raw(mark=step.raw.mark, words="STATE.md")


def _follow_plans(draft: PlanDraft, siblings: Mapping[str, str]) -> None:
    """A summary beside a plan means that it is done."""
    for step in draft.steps:
        if step.parent is not None and step.printed_id and _has_summary(step.printed_id, siblings):
            step.status = "done"


def _has_summary(literal: str, siblings: Mapping[str, str]) -> bool:
    return any(_name(path) == f"{literal}-summary".lower() for path in siblings)


def _read_tasks(plan: PlanText, siblings: Mapping[str, str]) -> PlanDraft:
    front = plan.source.front
    draft = PlanDraft(
        title=plan.title() or _name(plan.path), notes=list(plan.notes), decisions=plan.decisions()
    )
    text = "\n".join(plan.source.visible)
    draft.goal = title_of(_tag(text, "objective")) or plan.goal()
    name = _PLAN_NAME.match(posixpath.basename(plan.path).rpartition(".")[0])
    is_done = name is not None and _has_summary(f"{name['phase']}-{name['plan']}", siblings)
    files = [path for listed in texts_of(front.get("files_modified")) for path in listed_paths(listed)]
    requirements = [
        one for listed in texts_of(front.get("requirements")) for one in requirement_ids(listed)[0]
    ]
    for title, body, line in _tasks(text):
        parts = split_task(title)
        said = said_status(parts.rest)
        step = StepDraft(
            title=title_of(said.rest if said and said.rest else parts.rest),
            line=line,
            printed_id=parts.leading.id
            if parts.leading is not None and parts.leading.is_marked_off
            else None,
            status="done" if is_done else said.status if said else "pending",
            raw=Raw(words="SUMMARY" if is_done else said.words if said else ""),
            requirements=list(requirements),
        )
        step.files += listed_paths(_tag(body, "files")) or paths_in(_tag(body, "action")) or files
        step.actions += _lines(_tag(body, "action") or _tag(body, "what-built"))
        step.verify += _lines(_tag(body, "verify") or _tag(body, "how-to-verify"))
        step.expected = " ".join(_lines(_tag(body, "done")))
        draft.steps.append(step)
    return draft


def _tasks(text: str) -> Iterator[tuple[str, str, int]]:
    """Title, tags and line of each task: a tagged block, or a heading with tags below it."""
    line, position = 1, 0
    found = [
        (match.start(), _tag(match["body"], "name") or _type(match["attributes"]), match["body"])
        for match in _TASK.finditer(text)
    ]
    if not found:
        heads = [*_HEADED.finditer(text)]
        ends = [*(head.start() for head in heads), len(text)][1:]
        found = [
            (head.start(), head["title"], text[head.end() : end])
            for head, end in zip(heads, ends, strict=True)
        ]
    for start, title, body in found[:_MAX_TASKS]:
        line += text.count("\n", position, start)
        position = start
        yield title, body, line


def _type(attributes: str) -> str:
    """A checkpoint has no name; its type says for whom it waits."""
    match = _TYPE.search(attributes)
    return match["type"] if match else "task"


def _tag(text: str, name: str) -> str:
    start = text.find(f"<{name}>")
    end = text.find(f"</{name}>", start)
    return text[start + len(name) + 2 : end] if 0 <= start < end else ""


def _lines(text: str) -> list[str]:
    return [line for raw in text.split("\n") if (line := title_of(raw.strip().lstrip("-* ")))]
