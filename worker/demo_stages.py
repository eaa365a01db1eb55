"""Four stages of one piece of work, told by events alone: what one stage publishes, the next one knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from schemas.state import StateEvent

STAGES_PROJECT: Final = "demo-stages"
THREAD: Final = "retry-deadline"
STATE_LAYERS: Final = ("mission", "plan", "memory", "artifacts", "task")

PLAN_TEXT: Final = """# Implementation Plan: retry deadline

- [ ] 1. Deadline object
  - One absolute deadline per call, made from the caller's timeout
  - _Requirements: 1.1_
- [ ] 2. Retry loop ends at the deadline
  - Stop before an attempt that cannot finish in time
  - The first error is raised, with the number of attempts
  - _Requirements: 1.2, 1.3_
- [ ]* 3. Property test: no call outlives its deadline
- [ ] 4. Describe the behaviour in the client's guide
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage: the agent, what it is asked, and what it publishes when it is done."""

    name: str
    volk: str
    subject: str
    message: str
    tells: tuple[tuple[str, Mapping[str, Any]], ...]
    """Kind and body of each event, in order of time."""


BEFORE: Final[tuple[tuple[str, Mapping[str, Any]], ...]] = (
    ("project_updated", {"branch": "retry-deadline", "version": "2.4.0", "test_state": "green"}),
    (
        "goal_set",
        {
            "id": "G-7",
            "status": "active",
            "statement": "No call of the payment client outlives the caller's timeout.",
            "criteria": [{"text": "A property test shows it"}, {"text": "The guide says so"}],
        },
    ),
    ("work_item", {"id": "W-3", "title": "Jitter of retries", "priority": "P2"}),
    ("memory", {"id": "m-1", "subject": "attempts", "text": "The client makes at most three attempts."}),
)

STAGES: Final = (
    Stage(
        name="design",
        volk="architect",
        subject="design_review",
        message="Design how retries respect the caller's deadline.",
        tells=(
            ("session_opened", {"session_id": "design", "title": "design"}),
            ("message", {"role": "architect", "content": "We decided on one absolute deadline per call."}),
            (
                "decision",
                {"id": "D-1", "title": "Deadlines are absolute", "text": "Durations add up wrongly."},
            ),
            ("plan_set", {"plan_id": "retry", "path": ".kiro/specs/retry/tasks.md", "text": PLAN_TEXT}),
            (
                "artifact",
                {
                    "id": "design-note",
                    "stage": "design",
                    "type": "design_note",
                    "path": "docs/retry-deadline.md",
                    "content": "The deadline is made once, from the caller's timeout, and handed down.",
                },
            ),
            ("session_closed", {"session_id": "design"}),
        ),
    ),
    Stage(
        name="implement",
        volk="smith",
        subject="implement",
        message="Build the current step: the retry loop respects the deadline.",
        tells=(
            ("session_opened", {"session_id": "build", "title": "implement"}),
            (
                "step_advanced",
                {"plan_id": "retry", "step_id": "1", "summary": "Deadline is a frozen value."},
            ),
            (
                "memory",
                {"id": "m-2", "subject": "attempts", "text": "Attempts end at the deadline, not at three."},
            ),
            (
                "artifact",
                {
                    "id": "patch-1",
                    "stage": "implement",
                    "type": "patch",
                    "path": "client/retry.py",
                    "content": "Deadline.left() guards each attempt; the first error is kept.",
                },
            ),
            (
                "hand_off",
                {
                    "blockers": ["Nobody has tried a clock that jumps"],
                    "key_files": ["client/retry.py", "client/deadline.py"],
                    "commands": ["pytest tests/test_retry.py"],
                },
            ),
        ),
    ),
    Stage(
        name="review",
        volk="critic",
        subject="review_and_test",
        message="Review the retry loop against its plan and run its tests.",
        tells=(
            (
                "test_result",
                {
                    "test_id": "tests/test_retry.py::test_last_attempt",
                    "status": "failed",
                    "message": "assert 1.2 <= 1.0\n  the last attempt began at 0.9 s of 1.0 s",
                    "files": ["client/retry.py"],
                },
            ),
            (
                "message",
                {"role": "critic", "content": "The last attempt must not begin unless it can end in time."},
            ),
            (
                "decision",
                {"id": "D-2", "title": "An attempt needs its own minimum", "applies_to": ["client/retry.py"]},
            ),
        ),
    ),
    Stage(
        name="fix",
        volk="medic",
        subject="fix_issues",
        message="Fix the failing retry test.",
        tells=(
            ("test_result", {"test_id": "tests/test_retry.py::test_last_attempt", "status": "passed"}),
            ("step_advanced", {"plan_id": "retry", "step_id": "2", "summary": "No attempt begins in vain."}),
            ("goal_updated", {"id": "G-7", "criteria": [{"text": "A property test shows it", "met": True}]}),
        ),
    ),
)


def events_of(
    tells: tuple[tuple[str, Mapping[str, Any]], ...], *, prefix: str, minute: int
) -> list[StateEvent]:
    """The events with ids and times; minutes keep the stages apart, seconds the events."""
    return [
        StateEvent.model_validate(
            {
                "event_id": f"{prefix}-{number}",
                "project_id": STAGES_PROJECT,
                "thread_id": THREAD,
                "event": kind,
                "occurred_at": f"2026-01-20T09:{minute:02}:{number:02}Z",
                "body": body,
            }
        )
        for number, (kind, body) in enumerate(tells, start=1)
    ]


def request_of(stage: Stage, event_ids: list[str]) -> dict[str, Any]:
    """A request with nothing but ids and a message, which wants to see these events."""
    return {
        "request_id": f"stage-{stage.name}",
        "project_id": STAGES_PROJECT,
        "thread_id": THREAD,
        "volk": stage.volk,
        "subject": stage.subject,
        "user_message": stage.message,
        "after": {"event_ids": event_ids},
        "include": ["messages", "layers", "usage", "parts"],
        "deadline_ms": 6_000,
        "layer_timeouts_ms": dict.fromkeys(STATE_LAYERS, 5_000),
        "as_of": "2026-01-20T10:00:00Z",
    }
