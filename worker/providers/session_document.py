"""All that is known of a thread as one document for people, laid out by a template.

It is never part of a prompt: what a prompt holds of it is the business of the layers, which have budgets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from importlib.resources import files
from typing import Any, Final

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from schemas.codes import StepStatus
from worker.ports import Scope, TokenCounter
from worker.providers.plan import plan_window, read_steps
from worker.providers.states import SIGNAL_KEEP, StateReading
from worker.providers.text import cut, fold
from worker.state.view import signals_of

TEMPLATE: Final = "session.md.j2"
SUMMARY_TOKENS: Final = 1_000
_PREVIEW_CHARS: Final = 200

MARKS: Final[Mapping[StepStatus, str]] = {
    "pending": " ",
    "active": "/",
    "review": "/",
    "blocked": "!",
    "done": "x",
    "skipped": "-",
    "deferred": ">",
    "unknown": "?",
}


def built_in_template() -> str:
    """The template that is used where none is given; a start for one's own."""
    return files("worker.providers").joinpath(TEMPLATE).read_text(encoding="utf-8")


def render_session(
    reading: StateReading,
    scope: Scope,
    *,
    as_of: datetime,
    counter: TokenCounter,
    template: str | None = None,
) -> str:
    """The document as Markdown, or whatever `template` makes of the same values.

    A template runs in Jinja's sandbox. Raises `jinja2.TemplateError` for one that is wrong.
    """
    environment = SandboxedEnvironment(
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # Markdown for people, no page
    )
    environment.filters["line"] = fold
    values = session_values(reading, scope, as_of=as_of, counter=counter)
    source = built_in_template() if template is None else template
    try:
        text = environment.from_string(source).render(values)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise TemplateError(f"{type(error).__name__}: {error}") from error
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def session_values(
    reading: StateReading, scope: Scope, *, as_of: datetime, counter: TokenCounter
) -> dict[str, Any]:
    """What a template may use."""
    session = reading.session
    handoff = session.handoff if session is not None else None
    goal = session.goal if session is not None else None
    stored = reading.plan(None)
    plan = None
    if stored is not None:
        read = read_steps(stored.plan).plan
        plan = stored.with_steps(read.steps, current_step=read.current_step)
    current_step = None
    if plan is not None and stored is not None and not stored.is_ended:
        place = plan_window(plan.steps, plan.current_step).current
        current_step = None if place is None else plan.steps[place].id
    signals = signals_of(*reading.events, as_of=as_of, keep=SIGNAL_KEEP)
    summary = reading.summary(max_tokens=SUMMARY_TOKENS, counter=counter)
    return {
        "project_id": scope.project_id,
        "thread_id": scope.thread_id,
        "project": session.project.model_dump(exclude_none=True) if session is not None else {},
        "goal": goal,
        "blockers": [
            f"{blocker.id}: {blocker.text}"
            for holder in (goal, handoff)
            for blocker in (holder.blockers if holder is not None else ())
        ],
        "decisions": [
            f"{one.id}: {one.title}" + (f": {one.text}" if one.text else "")
            for one in (handoff.decisions if handoff is not None else ())
        ],
        "work_items": [
            (f"[{item.priority}] " if item.priority is not None else "") + item.title
            for item in (session.work_items if session is not None else ())
        ],
        "handed_over": {
            title: getattr(handoff, field) if handoff is not None else ()
            for field, title in (
                ("active_work", "active work"),
                ("key_files", "key files"),
                ("commands", "commands"),
                ("alerts", "alerts"),
            )
        },
        "plan": plan,
        "plan_has_ended": stored is not None and stored.is_ended,
        "current_step": current_step,
        "marks": MARKS,
        "failing_tests": [f"{test.id}: {test.message or ''}".rstrip(": ") for test in signals.failing_tests],
        "memories": [
            (f"{item.subject}: " if item.subject else "") + item.text for item in reading.memories.current()
        ],
        "artifacts": [
            f"{one.stage} · {one.type}"
            + (f" · {one.path}" if one.path else "")
            + f": {cut(one.content, max_chars=_PREVIEW_CHARS)}"
            for one in reading.artifacts
        ],
        "summary": summary.text if summary is not None else "",
    }
