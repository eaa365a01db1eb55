"""One plan file's text to what it says: which format it is, by path and content, and that format's parser."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from worker.code.documents.markdown import clean
from worker.plans.assembling import assemble
from worker.plans.backlog import is_backlog, read_backlog
from worker.plans.dated import is_dated, read_dated
from worker.plans.drafts import PlanDraft
from worker.plans.exec_plan import is_exec_plan, read_exec_plan
from worker.plans.free import read_free
from worker.plans.gsd import is_gsd, read_gsd
from worker.plans.kiro import is_kiro, read_kiro
from worker.plans.memory_bank import is_memory_bank, read_memory_bank
from worker.plans.openspec import is_openspec, read_openspec
from worker.plans.plan_text import PlanText, open_plan
from worker.plans.pointers import find_pointer, is_closed
from worker.plans.results import PlanDocument, PlanFormat, PlanNote
from worker.plans.spec_kit import is_spec_kit, read_spec_kit
from worker.plans.task_master import parse_task_master, read_task_master

MAX_PLAN_CHARS: Final = 4_000_000
"""A larger file is kept as text, with a note."""

_NO_STEPS: Final = re.compile(
    r"(?:^|/)specs/\d{1,14}-[^/]+/plan\.md$|(?:^|/)openspec/changes/(?:archive/)?[^/]+/(?:proposal|design)\.md$"
    r"|(?:^|/)\.planning/REQUIREMENTS\.md$",
    re.IGNORECASE,
)

_NO_SIBLINGS: Final[Mapping[str, str]] = MappingProxyType({})


def read_plan(path: str | None, text: str, *, siblings: Mapping[str, str] = _NO_SIBLINGS) -> PlanDocument:
    """What a plan file says. Never raises; what is odd is noted, and what is unknown keeps its text.

    `path` is relative to the project's root, with `/`, or None where the text came without one; `siblings`
    are other files of the same feature, change or plan folder by path: requirements, the current tag, the
    proposal, the status file, other tasks. A pure function of all three, so its result may be kept under
    their digest. O(n): some four seconds a megabyte of tasks, 0.05 s for a plan of a hundred steps.
    """
    place = (path or "").replace("\\", "/")
    if len(text) > MAX_PLAN_CHARS:
        return _unknown(text, f"{len(text)} characters are too many")
    text = clean(text)
    if not text.strip():
        return _unknown(text, "empty")
    if text.lstrip()[:1] == "{" or place.endswith(".json"):
        fields = parse_task_master(text)
        if fields is None:
            return _unknown(text, "no tasks with a status")
        return assemble("task_master", read_task_master(fields, text, siblings))
    plan_format = detect(place, text)
    return _read(plan_format, open_plan(place, text), siblings)


def detect(path: str, text: str) -> PlanFormat:
    """The format of a Markdown plan: by its place where that says it, else by what its lines look like."""
    formats: tuple[tuple[PlanFormat, bool], ...] = (
        ("kiro", is_kiro(path, "")),
        ("spec_kit", is_spec_kit(path, "")),
        ("openspec", is_openspec(path, "")),
        ("backlog", is_backlog(path, text)),
        ("memory_bank", is_memory_bank(path)),
        ("gsd", is_gsd(path, text)),
        ("dated_plan", is_dated(path, text)),
        ("exec_plan", is_exec_plan(text)),
        ("kiro", is_kiro(path, text)),
        ("spec_kit", is_spec_kit(path, text)),
        ("openspec", is_openspec(path, text)),
    )
    for plan_format, holds in formats:
        if holds:
            return plan_format
    return "free"


def _read(plan_format: PlanFormat, plan: PlanText, siblings: Mapping[str, str]) -> PlanDocument:
    draft = _draft(plan_format, plan, siblings)
    if not draft.steps and not holds_no_steps(plan.path):
        # The right place, another shape: somebody wrote the plan by hand.
        draft = read_free(plan)
    draft.is_closed = draft.is_closed or is_closed(plan)
    if draft.pointer is None:
        draft.pointer = find_pointer(plan, draft.steps)
    if not draft.steps and not holds_no_steps(plan.path):
        unknown = _unknown(plan.source.text, "no steps")
        notes = sorted((*unknown.notes, *plan.source.notes), key=lambda note: note.line)
        return replace(unknown, title=draft.title, notes=tuple(notes))
    return assemble(plan_format, draft)


def holds_no_steps(path: str) -> bool:
    """Whether it is one of the files beside a plan that say why and how, and never what is left to do."""
    return _NO_STEPS.search(path) is not None


def _draft(plan_format: PlanFormat, plan: PlanText, siblings: Mapping[str, str]) -> PlanDraft:
    match plan_format:
        case "kiro":
            return read_kiro(plan, siblings)
        case "spec_kit":
            return read_spec_kit(plan)
        case "openspec":
            return read_openspec(plan, siblings)
        case "dated_plan":
            return read_dated(plan)
        case "exec_plan":
            return read_exec_plan(plan)
        case "backlog":
            return read_backlog(plan, siblings)
        case "gsd":
            return read_gsd(plan, siblings)
        case "memory_bank":
            return read_memory_bank(plan)
        case _:
            return read_free(plan)


def _unknown(text: str, why: str) -> PlanDocument:
    note = PlanNote(kind="unknown_format", line=1, text=why)
    return PlanDocument(format="unknown_format", text=text, notes=(note,))
