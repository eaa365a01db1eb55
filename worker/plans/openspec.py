"""OpenSpec's changes: `tasks.md` with `- [ ] 2.1 text` below `## 2. Parser`, and the proposal's reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from worker.code.documents.text_yaml import text_of
from worker.plans.boxes import BoxRules, read_boxes
from worker.plans.drafts import PlanDraft
from worker.plans.headings import heading_steps
from worker.plans.marks import CLOSED
from worker.plans.plan_text import PlanText, open_plan
from worker.plans.pointers import file_status
from worker.plans.results import Raw

_PATH: Final = re.compile(
    r"(?:^|/)openspec/changes/(?P<archive>archive/)?(?P<change>[^/]+)/(?P<name>tasks|proposal|design)\.md$",
    re.IGNORECASE,
)
_GROUP: Final = re.compile(r"^##\s+(?P<number>\d{1,4})\.\s+\S", re.MULTILINE)
_TASK: Final = re.compile(r"^\s*[-*]\s+\[.\]\s+(?P<group>\d{1,4})\.\d{1,4}\s", re.MULTILINE)
_LOWEST: Final = re.compile(r"\W*\d{1,4}(?:\.\d{1,4})+[.)]?\s")


def is_openspec(path: str, text: str) -> bool:
    """Whether it belongs to a change of OpenSpec, by its place or by groups and tasks whose numbers agree.

    Others number their tasks alike, so that counts for a file without a path, or of the same name, alone.
    """
    if _PATH.search(path):
        return True
    if path and not path.lower().endswith("tasks.md"):
        return False
    groups = {match["number"] for match in _GROUP.finditer(text)}
    tasks = [match["group"] for match in _TASK.finditer(text)]
    return bool(tasks) and all(group in groups for group in tasks)


def read_openspec(plan: PlanText, siblings: Mapping[str, str]) -> PlanDraft:
    """The tasks; a file without boxes has one step for each numbered heading of the lowest level. O(n).

    In the archive everything is closed: what was left open is skipped.
    """
    path = _PATH.search(plan.path)
    draft = PlanDraft(
        title=plan.title(), goal=_goal(plan, siblings), decisions=plan.decisions(), notes=list(plan.notes)
    )
    draft.is_closed = path is not None and path["archive"] is not None
    if path is not None and path["name"].lower() != "tasks":
        return draft
    boxes = read_boxes(plan, BoxRules())
    if boxes.steps:
        draft.steps, draft.criteria = boxes.steps, boxes.criteria
        draft.notes += boxes.notes
    else:
        inherited = file_status(plan)
        raw = text_of(plan.source.front.get("status")) if inherited else ""
        draft.steps = heading_steps(plan, _LOWEST, inherited=inherited, raw=raw, notes=draft.notes)
    if draft.is_closed:
        for step in draft.steps:
            if step.status not in CLOSED and step.has_own_mark:
                step.status, step.raw = "skipped", Raw(mark=step.raw.mark, words="archive")
    return draft


def _goal(plan: PlanText, siblings: Mapping[str, str]) -> str:
    """What the proposal gives as its reason."""
    for path in sorted(siblings):
        if path.rpartition("/")[2].lower() == "proposal.md" and not plan.path.endswith("proposal.md"):
            return open_plan(path, siblings[path]).goal()
    return plan.goal()
