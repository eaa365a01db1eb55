"""Inline session state: project, goal, work items, hand-off, plan, memory, artifacts, working set."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, cast

from pydantic import BeforeValidator, Field, model_validator

from schemas.codes import StepStatus
from schemas.times import format_time, time_of_number
from schemas.wire import Flag, OpaqueId, RequestModel, Timestamp, canonical_json, derived_id, sha256_hex

_WORDS_OF_STATUS: Final[dict[StepStatus, str]] = {
    "pending": "pending todo to_do open planned not_started",
    "active": "active in_progress doing wip started current partial",
    "review": "review in_review",
    "blocked": "blocked",
    "done": "done complete completed finished closed shipped",
    "skipped": "skipped cancelled canceled dropped superseded wont_do n/a",
    "deferred": "deferred postponed later",
}
_STATUS_WORDS: Final = {word: status for status, words in _WORDS_OF_STATUS.items() for word in words.split()}


def read_step_status(word: object) -> object:
    """The status that a word stands for, case, blanks and hyphens folded; else `unknown`."""
    if not isinstance(word, str):
        return word
    folded = word.strip().casefold().replace("-", "_").replace(" ", "_").replace("'", "")
    return _STATUS_WORDS.get(folded, "unknown")


ReadStepStatus = Annotated[StepStatus, BeforeValidator(read_step_status)]


class Step(RequestModel):
    """One step of a plan or one task of a goal."""

    id: OpaqueId | None = None
    title: str
    status: ReadStepStatus = "pending"
    parent: str | None = None
    group: str | None = None
    optional: Flag = False
    parallel: Flag = False
    depends_on: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    goal: str | None = None
    actions: tuple[str, ...] = ()
    verify: tuple[str, ...] = ()
    expected: str | None = None
    summary: str | None = None


class Decision(RequestModel):
    """A decision made earlier; a bare string is its title."""

    id: OpaqueId = ""
    title: str
    text: str | None = None
    applies_to: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, data: Any) -> Any:
        return _with_id("d_", "title", data)


class Blocker(RequestModel):
    """Something that stops the work; a bare string is its text."""

    id: OpaqueId = ""
    text: str

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, data: Any) -> Any:
        return _with_id("b_", "text", data)


def _with_id(prefix: str, field: str, data: Any) -> Any:
    if isinstance(data, str):
        data = {field: data}
    if isinstance(data, dict):
        item = cast("dict[str, Any]", data)
        text = item.get(field)
        if item.get("id") is None and isinstance(text, str):
            return {**item, "id": derived_id(prefix, text)}
    return cast("object", data)


class ProjectState(RequestModel):
    """The project as a whole, one line of the mission block."""

    branch: str | None = None
    version: str | None = None
    status: str | None = None
    test_state: str | None = None
    active_session: str | int | None = None


class Criterion(RequestModel):
    """One acceptance criterion of the goal."""

    text: str
    met: Flag = False


class Goal(RequestModel):
    """The active goal, its criteria, its tasks and what blocks it."""

    id: OpaqueId | None = None
    status: str | None = None
    statement: str
    criteria: tuple[Criterion, ...] = ()
    tasks: tuple[Step, ...] = ()
    current_step: str | None = None
    blockers: tuple[Blocker, ...] = ()


class WorkItem(RequestModel):
    """A deferred or pending piece of work."""

    id: OpaqueId | None = None
    title: str
    priority: str | int | None = None
    state: str = "pending"
    notes: str | None = None


class HandoffData(RequestModel):
    """What the last session handed over."""

    decisions: tuple[Decision, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    active_work: tuple[str, ...] = ()
    key_files: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    alerts: tuple[str, ...] = ()


class SessionContext(RequestModel):
    """Everything the mission block is made from."""

    project: ProjectState = ProjectState()
    goal: Goal | None = None
    work_items: tuple[WorkItem, ...] = ()
    handoff: HandoffData | None = None


MAX_PLAN_FILES: Final = 500


class PlanFile(RequestModel):
    """A file that belongs to a plan."""

    path: str
    text: str


class Plan(RequestModel):
    """A plan given inline: its steps, or the text of a plan file."""

    plan_id: OpaqueId
    path: str | None = None
    text: str | None = None
    files: Annotated[tuple[PlanFile, ...], Field(max_length=MAX_PLAN_FILES)] = ()
    """What else of the plan's folder its format reads: the other tasks, the state file, the proposal, the
    requirements. Of a repeated path the last counts."""
    steps: tuple[Step, ...] = ()
    current_step: str | None = None

    @model_validator(mode="after")
    def _text_or_steps(self) -> Plan:
        if self.text is not None and self.steps:
            msg = "give `text` or `steps`, not both"
            raise ValueError(msg)
        if self.files and self.text is None:
            msg = "`files` belong to a `text`"
            raise ValueError(msg)
        return self


class MemoryItem(RequestModel):
    """One remembered fact; a newer fact about the same subject supersedes it."""

    id: OpaqueId
    text: str
    subject: str | None = None
    occurred_at: Timestamp | None = None


class Memory(RequestModel):
    """The thread's memory given inline."""

    summary: str | None = None
    items: tuple[MemoryItem, ...] = ()


_FOREIGN_TIMES: Final = ("timestamp", "created_at")


class Artifact(RequestModel):
    """What an earlier stage produced. Foreign field names are accepted at this door."""

    id: OpaqueId
    stage: str
    type: str
    path: str | None = None
    content: str
    occurred_at: Timestamp | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_foreign(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        item = dict(cast("dict[str, Any]", data))
        for ours, foreign in (
            ("stage", ("stage_alias",)),
            ("type", ("artifact_type",)),
            ("path", ("file_path",)),
            ("occurred_at", _FOREIGN_TIMES),
            ("id", ("artifact_id",)),
        ):
            for name in foreign:
                if name in item:
                    value = _read_foreign(name, item.pop(name))
                    if item.get(ours) is None:
                        item[ours] = value
        if isinstance(item.get("content"), dict | list):
            # A structured artifact is text by the time a prompt carries it; one spelling for all hosts.
            item["content"] = json.dumps(item["content"], ensure_ascii=False, sort_keys=True)
        if item.get("id") is None:
            rest = {name: item[name] for name in sorted(item) if name in cls.model_fields and name != "id"}
            item["id"] = "a_" + sha256_hex(canonical_json(rest))[:24]
        return item


def _read_foreign(name: str, value: object) -> object:
    """A foreign field's value; its times may be numbers, which our own never are."""
    if name in _FOREIGN_TIMES and isinstance(value, int | float) and not isinstance(value, bool):
        return format_time(time_of_number(value))
    return value


class FailingTest(RequestModel):
    """A test that fails now."""

    id: OpaqueId
    message: str | None = None


class WorkingSet(RequestModel):
    """What is on the bench right now: both kinds are pinned."""

    current_diff: str | None = None
    failing_tests: tuple[FailingTest, ...] = ()


class LegacyPayload(RequestModel, extra="allow"):
    """The payload that older orchestrators send; fields this project does not read are kept as they are."""

    files_created: tuple[str, ...] = ()
    """Paths relative to `project_dir`."""
    project_dir: str | None = None
    file_tree: Any = None
    task_context: Any = None


class ParentRef(RequestModel):
    """The stored bundle that this one starts from, and where its bodies stay whole."""

    request_id: OpaqueId
    focus: tuple[str, ...] = ()


class After(RequestModel):
    """Read-your-writes: what must have been applied before the stores are read."""

    event_ids: tuple[OpaqueId, ...] = ()
    graph_version: Annotated[int, Field(strict=True, ge=0)] | None = None
