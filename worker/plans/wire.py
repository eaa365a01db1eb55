"""From what a file says to what crosses the wire: a plan with its steps, a hand-off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from schemas.session import Blocker, Decision, HandoffData, Plan, Step
from worker.plans.results import HandOffDocument, PlanDocument, PlanStep

MAX_REFERRED: Final = 10
"""Commits and pull requests that a hand-off's line names; a pasted log has hundreds."""


def to_plan(document: PlanDocument, plan_id: str, path: str | None) -> Plan:
    """The plan with its steps, the active one as `current_step`.

    Of a file without steps the text as it is; it never has both. Raises nothing for a document that
    `read_plan` gave.
    """
    if not document.steps:
        return Plan(plan_id=plan_id, path=path, text=document.text or None)
    return Plan(
        plan_id=plan_id,
        path=path,
        steps=tuple(_to_step(step) for step in document.steps),
        current_step=document.active,
    )


def _to_step(step: PlanStep) -> Step:
    return Step(
        id=step.id,
        title=step.title,
        status=step.status,
        parent=step.parent,
        group=step.group,
        optional=step.optional,
        parallel=step.parallel,
        depends_on=step.depends_on,
        requirements=step.requirements,
        files=step.files,
        goal=step.goal,
        actions=step.actions,
        verify=step.verify,
        expected=step.expected,
        summary=step.summary,
    )


def to_handoff_data(document: HandOffDocument) -> HandoffData:
    """The hand-off as the mission block takes it.

    Active work is what comes next, else the state; alerts are what was left undone, how it is verified, and
    last, in one line, which commits and pull requests the text speaks of.
    """
    return HandoffData(
        decisions=tuple(Decision.model_validate(text) for text in document.decisions),
        blockers=tuple(Blocker.model_validate(text) for text in document.blockers),
        active_work=document.next or document.state,
        key_files=document.files,
        commands=document.commands,
        alerts=(
            *(f"Not done: {text}" for text in document.not_done),
            *(f"Verify: {text}" for text in document.verification),
            *_referred((*document.commits, *document.pull_requests)),
        ),
    )


def _referred(names: Sequence[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - MAX_REFERRED} more" if len(names) > MAX_REFERRED else ""
        yield f"Refers to: {', '.join(names[:MAX_REFERRED])}{more}"
