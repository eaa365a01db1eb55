"""Kiro's `tasks.md`: numbered tasks on two levels, optional ones starred, requirements below them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import Final, cast

from worker.code.documents.kiro import read_kiro as read_requirements
from worker.code.documents.markdown import clean, parse_markdown
from worker.plans.assembling import MAX_EDGES
from worker.plans.boxes import BoxRules, read_boxes
from worker.plans.dependencies import Wanted
from worker.plans.drafts import PlanDraft, StepDraft
from worker.plans.fields import split_fields
from worker.plans.plan_text import PlanText
from worker.plans.results import PlanNote
from worker.plans.step_ids import LeadingId

_PATH: Final = re.compile(r"(?:^|/)\.kiro/specs/(?:[^/]+/)+tasks\.md$", re.IGNORECASE)
_TASK: Final = re.compile(r"^\s*[-*]\s+\[.\]\*?\s+\d{1,4}(?:\.\d{1,4})?\.?\s", re.MULTILINE)
_TELLTALE: Final = re.compile(
    r"_Requirements?:\s|\*\*Validates:\s+Requirements|^\s*[-*]\s+\[.\]\*\s+\d", re.MULTILINE
)
_REQUIREMENT_FILES: Final = ("requirements.md", "bugfix.md")


def is_kiro(path: str, text: str) -> bool:
    """Whether it is a task file of Kiro, by its place or by what its lines look like."""
    return _PATH.search(path) is not None or (
        _TASK.search(text) is not None and _TELLTALE.search(text) is not None
    )


def read_kiro(plan: PlanText, siblings: Mapping[str, str]) -> PlanDraft:
    """The tasks; links to criteria that the requirements beside them do not have are noted. O(n)."""
    boxes = read_boxes(
        plan,
        BoxRules(dialect="kiro", needs_id=True, depth_from_id=True, accept=_accept, read_tags=_read_fields),
    )
    draft = PlanDraft(
        title=plan.title(),
        goal=plan.goal(),
        steps=boxes.steps,
        criteria=boxes.criteria,
        decisions=plan.decisions(),
        notes=[*plan.notes, *boxes.notes],
    )
    _add_waves(plan, draft)
    known = _known_requirements(siblings)
    if known is not None:
        draft.notes += _dangling(boxes.steps, known)
    return draft


def _accept(leading: LeadingId, known: AbstractSet[str]) -> bool:
    del known
    return leading.is_numbered or leading.is_marked_off


def _read_fields(step: StepDraft, rest: str) -> str:
    """Fields may stand behind the title, on the same line."""
    text, details = split_fields(rest)
    step.take(details, [])
    return text


def _known_requirements(siblings: Mapping[str, str]) -> frozenset[str] | None:
    """Ids of the requirements beside the plan; None where no such file is at hand."""
    paths = [path for path in sorted(siblings) if path.rpartition("/")[2].lower() in _REQUIREMENT_FILES]
    if not paths:
        return None
    return frozenset(
        requirement.id
        for path in paths
        for requirement in read_requirements(path, parse_markdown(clean(siblings[path]))).requirements
    )


def _dangling(steps: list[StepDraft], known: AbstractSet[str]) -> Iterator[PlanNote]:
    for step in steps:
        for literal in dict.fromkeys(step.requirements):
            if literal not in known:
                yield PlanNote(kind="dangling_link", line=step.line, text=literal)


def _add_waves(plan: PlanText, draft: PlanDraft) -> None:
    """The task dependency graph: every task of a wave waits for all of the wave before."""
    graphs = (_waves(fence.body) for fence in plan.source.fences)
    waves = next((found for found in graphs if found), list[list[str]]())
    steps = {step.printed_id: step for step in reversed(draft.steps)}
    edges = 0
    for before, wave in pairwise(waves):
        wanted = [Wanted(literal, is_sure=False) for literal in before]
        edges += len(wanted) * len(wave)
        if edges > MAX_EDGES:
            return
        for literal in wave:
            if literal in steps:
                steps[literal].wanted += wanted


def _waves(body: str) -> list[list[str]]:
    if '"waves"' not in body:
        return []
    try:
        found: object = json.loads(body)
    except (ValueError, RecursionError):
        return []
    if not isinstance(found, dict):
        return []
    waves = cast("dict[str, object]", found).get("waves")
    return [_wave_ids(wave) for wave in cast("list[object]", waves)] if isinstance(waves, list) else []


def _wave_ids(wave: object) -> list[str]:
    """A wave is a list of ids, or an object that holds one."""
    if isinstance(wave, dict):
        fields = cast("dict[str, object]", wave)
        wave = next((fields[name] for name in ("tasks", "ids", "taskIds") if name in fields), None)
    if not isinstance(wave, list):
        return []
    return [str(one) for one in cast("list[object]", wave) if isinstance(one, str | int | float)]
