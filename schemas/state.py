"""Events that the stages of a project publish, and from which the worker keeps the project's state.

The state is a function of the set of events: order of arrival, repeats and the number of writers change
nothing. Of two events about one thing the later counts, by `occurred_at` and then by `event_id`; what has
ended stays ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, RootModel

from schemas.session import (
    Artifact,
    Blocker,
    Criterion,
    Decision,
    Goal,
    HandoffData,
    Plan,
    ProjectState,
    ReadStepStatus,
    WorkItem,
)
from schemas.wire import (
    SCHEMA_VERSION,
    OpaqueId,
    ProjectId,
    RequestModel,
    Timestamp,
    canonical_json,
    format_time,
    sha256_hex,
)

EventKind = Literal[
    "session_opened",
    "session_closed",
    "project_updated",
    "goal_set",
    "goal_updated",
    "work_item",
    "hand_off",
    "plan_set",
    "step_advanced",
    "message",
    "memory",
    "artifact",
    "decision",
    "test_result",
    "gateway_event",
    "tool_call",
]
PlanStatus = Literal["active", "completed", "cancelled"]
TestOutcome = Literal["passed", "failed", "error", "skipped"]
CallStatus = Literal["ok", "failed"]
MAX_REFERENCES: Final = 100

References = Annotated[tuple[str, ...], Field(max_length=MAX_REFERENCES)]


class SessionOpened(RequestModel):
    """A stage, or a person, begins to work."""

    session_id: OpaqueId
    title: str | None = None
    stage: str | None = None


class SessionClosed(RequestModel):
    """It ends; a session does not open again."""

    session_id: OpaqueId
    summary: str | None = None


class GoalSet(Goal):
    """A goal in full. The goal of a thread is the last one set that has not ended."""

    id: OpaqueId  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]  frozen: narrowing is sound


class GoalUpdated(RequestModel):
    """What has changed of a goal; what is absent or null stays. `done` or `cancelled` as status ends it."""

    id: OpaqueId
    status: str | None = None
    statement: str | None = None
    criteria: tuple[Criterion, ...] | None = None
    current_step: str | None = None
    blockers: tuple[Blocker, ...] | None = None


class WorkItemSet(WorkItem):
    """A piece of work in full; `done` or `skipped` as state ends it."""

    id: OpaqueId  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]  frozen: narrowing is sound


class HandOff(HandoffData):
    """What a session hands over, in slots or as the text of a file; the last one of a thread counts."""

    session_id: OpaqueId | None = None
    path: str | None = None
    text: str | None = None
    """Of a file such as `HANDOFF.md`. What the other fields name is added to what it says."""


class PlanSet(Plan):
    """A plan in full: its steps, or the text of a plan file, as it is now."""

    status: PlanStatus = "active"


class StepAdvanced(RequestModel):
    """A step is now in this state. It counts against the marks of every earlier version of the plan."""

    plan_id: OpaqueId
    step_id: OpaqueId
    status: ReadStepStatus = "done"
    summary: str | None = None
    plan_status: PlanStatus = "active"


class ThreadMessage(RequestModel):
    """Something that was said in the thread."""

    role: Annotated[str, Field(max_length=256)]
    content: str
    refers_to: References = ()


class MemorySet(RequestModel):
    """A fact worth remembering; a newer one about the same subject supersedes it."""

    id: OpaqueId
    text: str
    subject: str | None = None
    refers_to: References = ()


class ResultOfTest(RequestModel):
    """How a test ended; the last result of a test counts."""

    test_id: OpaqueId
    status: TestOutcome
    message: str | None = None
    files: References = ()
    """Paths that the failure names."""


class GatewayEvent(RequestModel):
    """Something that happened at run time: a request served or failed, a deployment, an alert."""

    name: Annotated[str, Field(max_length=256)]
    status: CallStatus = "ok"
    message: str | None = None
    files: References = ()
    refers_to: References = ()


class ToolCall(RequestModel):
    """What an agent had a tool do."""

    tool: Annotated[str, Field(max_length=256)]
    status: CallStatus = "ok"
    summary: str | None = None
    files: References = ()
    """Paths that it changed or read."""
    refers_to: References = ()


class _Event(RequestModel):
    schema_version: str = SCHEMA_VERSION
    kind: Literal["state"] = "state"
    event_id: OpaqueId
    """The publisher's own; the same event published again bears the same id."""
    project_id: ProjectId
    thread_id: OpaqueId | None = None
    """The thread that it belongs to; what concerns the project as a whole has none."""
    occurred_at: Timestamp | None = None
    """When it happened. A missing time, or one that lies more than five minutes ahead of the record, becomes
    the smallest record timestamp under which the event was seen."""


class SessionOpenedEvent(_Event):  # noqa: D101  the body says it, here and below
    event: Literal["session_opened"]
    body: SessionOpened


class SessionClosedEvent(_Event):  # noqa: D101
    event: Literal["session_closed"]
    body: SessionClosed


class ProjectUpdatedEvent(_Event):
    """Facts about the project; each that is given replaces what was known, what is absent or null stays."""

    event: Literal["project_updated"]
    body: ProjectState


class GoalSetEvent(_Event):  # noqa: D101
    event: Literal["goal_set"]
    body: GoalSet


class GoalUpdatedEvent(_Event):  # noqa: D101
    event: Literal["goal_updated"]
    body: GoalUpdated


class WorkItemEvent(_Event):  # noqa: D101
    event: Literal["work_item"]
    body: WorkItemSet


class HandOffEvent(_Event):  # noqa: D101
    event: Literal["hand_off"]
    body: HandOff


class PlanSetEvent(_Event):  # noqa: D101
    event: Literal["plan_set"]
    body: PlanSet


class StepAdvancedEvent(_Event):  # noqa: D101
    event: Literal["step_advanced"]
    body: StepAdvanced


class MessageEvent(_Event):  # noqa: D101
    event: Literal["message"]
    body: ThreadMessage


class MemoryEvent(_Event):  # noqa: D101
    event: Literal["memory"]
    body: MemorySet


class ArtifactEvent(_Event):
    """What a stage produced; foreign field names are accepted as in a request."""

    event: Literal["artifact"]
    body: Artifact


class DecisionEvent(_Event):
    """A decision; the last version of one id counts."""

    event: Literal["decision"]
    body: Decision


class ResultOfTestEvent(_Event):  # noqa: D101
    event: Literal["test_result"]
    body: ResultOfTest


class GatewayEventEvent(_Event):  # noqa: D101
    event: Literal["gateway_event"]
    body: GatewayEvent


class ToolCallEvent(_Event):  # noqa: D101
    event: Literal["tool_call"]
    body: ToolCall


AnyStateEvent = (
    SessionOpenedEvent
    | SessionClosedEvent
    | ProjectUpdatedEvent
    | GoalSetEvent
    | GoalUpdatedEvent
    | WorkItemEvent
    | HandOffEvent
    | PlanSetEvent
    | StepAdvancedEvent
    | MessageEvent
    | MemoryEvent
    | ArtifactEvent
    | DecisionEvent
    | ResultOfTestEvent
    | GatewayEventEvent
    | ToolCallEvent
)


class StateEvent(RootModel[Annotated[AnyStateEvent, Field(discriminator="event")]]):
    """One event of a project; `event` says which, and `body` what it says."""


def event_digest(event: AnyStateEvent, body: Mapping[str, Any]) -> str:
    """SHA-256 of what the event says, its id aside; of two events with one id the smaller digest counts.

    `body` is the event's as JSON values, without what is null.
    """
    at = None if event.occurred_at is None else format_time(event.occurred_at)
    said = {"event": event.event, "thread_id": event.thread_id, "occurred_at": at, "body": body}
    return sha256_hex(canonical_json(said))
