"""Task Master's `tasks.json`: tags with tasks and subtasks, whose ids are numbers or strings, mixed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

from worker.code.documents.markdown import clean
from worker.plans.dependencies import Wanted
from worker.plans.drafts import CriterionDraft, PlanDraft, StepDraft
from worker.plans.results import PlanNote, Raw
from worker.plans.statuses import status_of_word
from worker.plans.titles import title_of

MAIN_TAG: Final = "master"

_PRIORITIES: Final = {"critical": 0, "high": 1, "medium": 2, "low": 3}
_MAX_LINES: Final = 200
_MAX_MISSES: Final = 20
_Fields = Mapping[str, object]


def parse_task_master(text: str) -> _Fields | None:
    """The file's object, where it is one of Task Master's: tags with tasks, or tasks alone.

    Editors' build tasks share the file name; they have a version, and no status.
    """
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    fields = cast("_Fields", value)
    if isinstance(fields.get("tasks"), list):
        return fields if _are_tasks(fields["tasks"], needs_status="version" in fields) else None
    return fields if any(_are_tasks(tag.get("tasks")) for _, tag in _tags(fields)) else None


def read_task_master(fields: _Fields, text: str, siblings: Mapping[str, str]) -> PlanDraft:
    """The tasks of the current tag: the one that `state.json` names, else `master`, else the first. O(n)."""
    tag, tasks = _current_tasks(fields, siblings)
    draft = PlanDraft(title=title_of(_clean(tag)))
    lines = _Lines(text)
    by_place: list[Sequence[object]] = []
    for task in tasks:
        literal = id_of(task.get("id"))
        _add(draft, task, literal, None, lines)
        by_place.append(_listed(task, "dependencies"))
        parent = len(draft.steps) - 1
        for subtask in _mappings(task.get("subtasks")):
            own = id_of(subtask.get("id"))
            absolute = own if own is None or "." in own or literal is None else f"{literal}.{own}"
            _add(draft, subtask, absolute, parent, lines)
            by_place.append(_listed(subtask, "dependencies"))
    for step, listed in zip(draft.steps, by_place, strict=True):
        above = draft.steps[step.parent].printed_id if step.parent is not None else None
        step.wanted += _wanted(listed, above)
    _set_priorities(draft, tasks)
    return draft


def _tags(fields: _Fields) -> Iterator[tuple[str, _Fields]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield name, cast("_Fields", value)


def _are_tasks(value: object, *, needs_status: bool = False) -> bool:
    if not isinstance(value, list):
        return False
    tasks = list(_mappings(cast("object", value)))
    if not tasks:
        return not value and not needs_status
    return all("id" in task or "title" in task for task in tasks) and any("status" in task for task in tasks)


def _current_tasks(fields: _Fields, siblings: Mapping[str, str]) -> tuple[str, list[_Fields]]:
    if isinstance(fields.get("tasks"), list):
        return MAIN_TAG, list(_mappings(fields["tasks"]))
    tags = {
        name: list(_mappings(tag.get("tasks"))) for name, tag in _tags(fields) if _are_tasks(tag.get("tasks"))
    }
    for path in sorted(siblings):
        if path.rpartition("/")[2] == "state.json":
            current = _current_tag(siblings[path])
            if current in tags:
                return current, tags[current]
    name = MAIN_TAG if MAIN_TAG in tags else next(iter(tags))
    return name, tags[name]


def _current_tag(text: str) -> str:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    tag = cast("_Fields", value).get("currentTag") if isinstance(value, dict) else None
    return tag if isinstance(tag, str) else ""


def _mappings(value: object) -> Iterator[_Fields]:
    if isinstance(value, list):
        for one in cast("list[object]", value):
            if isinstance(one, dict):
                yield cast("_Fields", one)


def _listed(task: _Fields, name: str) -> Sequence[object]:
    value = task.get(name)
    return cast("list[object]", value) if isinstance(value, list) else ()


def id_of(value: object) -> str | None:
    """A task's id as text, whether it was a number or a string; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    is_whole = isinstance(value, float) and value.is_integer()
    return _clean(str(int(value) if is_whole else value)) or None


def _wanted(listed: Sequence[object], above: str | None) -> Iterator[Wanted]:
    """What a list of dependencies means. In a subtask an id without a dot names a sibling."""
    for one in listed:
        literal = id_of(one)
        if literal is not None:
            is_sibling = above is not None and "." not in literal
            yield Wanted(f"{above}.{literal}" if is_sibling else literal, is_sure=True, written=literal)


def _add(draft: PlanDraft, task: _Fields, literal: str | None, parent: int | None, lines: _Lines) -> None:
    title = _text(task, "title")
    raw = _text(task, "status")
    line = lines.of(title)
    description, details = _text(task, "description"), _text(task, "details")
    step = StepDraft(
        title=title_of(title),
        line=line,
        printed_id=literal,
        status=status_of_word(raw) or "pending",
        raw=Raw(words=raw),
        parent=parent,
        goal=" ".join(description.split()),
        actions=_text_lines(details),
        verify=_text_lines(_text(task, "testStrategy")),
    )
    draft.steps.append(step)
    for criterion in _criteria(task.get("acceptanceCriteria")):
        draft.criteria.append(CriterionDraft(text=criterion, line=line, step=len(draft.steps) - 1))
    if step.status == "unknown":
        draft.notes.append(PlanNote(kind="mark_guess", line=line, text=raw))


def _criteria(value: object) -> list[str]:
    if isinstance(value, str):
        return _text_lines(_clean(value))
    listed = cast("list[object]", value) if isinstance(value, list) else []
    return [_clean(one) for one in listed if isinstance(one, str)]


def _text(task: _Fields, name: str) -> str:
    value = task.get(name)
    return _clean(value) if isinstance(value, str) else ""


def _clean(text: str) -> str:
    """JSON may spell a lone surrogate or a NUL, which the wire has no room for."""
    return clean(text).strip()


def _text_lines(text: str) -> list[str]:
    lines = (re.sub(r"\A\s*(?:[-*]|\d{1,3}[.)])\s+", "", line).strip() for line in text.split("\n"))
    return [line for line in lines if line][:_MAX_LINES]


def _set_priorities(draft: PlanDraft, tasks: Sequence[_Fields]) -> None:
    """Ready tasks come by priority, then fewest dependencies, then id; their subtasks as they stand."""
    ranks = iter(tasks)
    key: tuple[int, ...] = ()
    for step in draft.steps:
        if step.parent is None:
            task = next(ranks)
            number = (
                int(step.printed_id)
                if step.printed_id and re.fullmatch(r"\d{1,9}", step.printed_id)
                else 10**9
            )
            rank = _PRIORITIES.get(_text(task, "priority").lower(), _PRIORITIES["medium"])
            key = (rank, len(_listed(task, "dependencies")), number)
        step.priority = key


class _Lines:
    """On which line each title stands, searched forward, so that all of them cost one pass."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._line = 1
        self._misses = 0

    def of(self, title: str) -> int:
        # A title that is spelled with escapes is not found, and each such search costs the whole text.
        if not title or self._misses > _MAX_MISSES:
            return self._line
        found = self._text.find(json.dumps(title, ensure_ascii=False), self._position)
        if found < 0:
            self._misses += 1
            return self._line
        self._line += self._text.count("\n", self._position, found)
        self._position = found
        return self._line
