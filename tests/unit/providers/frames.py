"""Frames and budgets for the tests of the sources."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from schemas.request import AssemblyRequest
from worker.budget.tokens import counter_for
from worker.ports import LayerBudget, LayerContribution, RequestFrame, Scope, Subject

SCOPE = Scope(project_id="shop", thread_id="t1")
IMPLEMENT = Subject(name="implement", inject=True, semantic=True, task_type="BUILD")


BYTES = counter_for("bytes")
"""One token per UTF-8 byte, which makes expected numbers readable."""

BUDGET = LayerBudget(tokens=4_000, counter=BYTES)


def frame(subject: Subject = IMPLEMENT, /, **fields: Any) -> RequestFrame:
    body = {
        "request_id": "r1",
        "project_id": "shop",
        "thread_id": "t1",
        "volk": "smith",
        "subject": subject.name,
        "user_message": "Add a retry to the HTTP client",
    }
    return RequestFrame(
        request=AssemblyRequest.model_validate(body | fields),
        subject=subject,
        task_type="BUILD",
        as_of=datetime(2026, 1, 1, tzinfo=UTC),
    )


def texts(contribution: LayerContribution) -> list[str]:
    """The deepest rendering of each fragment, in order."""
    return [fragment.renderings[0].text for fragment in contribution.fragments]


def pins(contribution: LayerContribution) -> list[str]:
    """The floor of each pinned fragment, in order."""
    return [f.renderings[-1].text for f in contribution.fragments if f.is_pinned]
