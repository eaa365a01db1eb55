"""What a request sees of the state: the same shapes that a request may bring along itself.

Pure functions of the documents that a store holds. What belongs to the thread stands before what belongs to
the project as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic_core import from_json

from schemas.session import (
    Artifact,
    FailingTest,
    Goal,
    HandoffData,
    MemoryItem,
    Plan,
    ProjectState,
    SessionContext,
    Step,
    WorkItem,
)
from schemas.wire import canonical_json
from worker.plans.hand_offs import read_hand_off
from worker.plans.wire import to_handoff_data
from worker.state.folding import Document, decisions_in
from worker.state.records import FUTURE_SLACK_US, EntityKey, EntityKind, instant_of, microseconds
from worker.state.seen import Entity, seen_from

MAX_FAILING_TESTS: Final = 20
"""The newest; each is pinned, and an old pile of red tests must not push the work itself out. That there are
more is said."""

MAX_FILES: Final = 200


def decode_group(data: bytes) -> tuple[Entity, ...]:
    """The things in one group of one thread, as `encode_group` wrote them."""
    return tuple(Entity(kind=kind, id=name, document=document) for kind, name, document in from_json(data))


def encode_entity(key: EntityKey, document: Document) -> bytes:
    """One thing as a row of its group."""
    return canonical_json([key.kind, key.id, document])


def encode_group(rows: Iterable[bytes]) -> bytes:
    """The group from its rows; the caller sorts them by kind and id, as bytes."""
    return b"[" + b",".join(rows) + b"]"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan:
    """A plan and what events say of it."""

    plan: Plan
    """As it was published; `text` is not read yet."""
    statuses: Mapping[str, str]
    """By step id, where an event is later than the document."""
    summaries: Mapping[str, str]
    pointer: str | None
    """The step that the last event named."""
    is_ended: bool

    def with_steps(self, steps: Sequence[Step], *, current_step: str | None) -> Plan:
        """The plan with these steps, and what events say of them. The pointer of an event wins."""
        return Plan(
            plan_id=self.plan.plan_id,
            path=self.plan.path,
            steps=tuple(map(self._as_it_stands, steps)),
            current_step=self.pointer or self.plan.current_step or current_step,
        )

    def _as_it_stands(self, step: Step) -> Step:
        changes: dict[str, Any] = {}
        if step.id is not None and step.id in self.statuses:
            changes["status"] = self.statuses[step.id]
        if step.id is not None and step.id in self.summaries:
            changes["summary"] = self.summaries[step.id]
        return step.model_copy(update=changes) if changes else step


def session_of(thread: Sequence[Entity], project: Sequence[Entity]) -> SessionContext | None:
    """Project, goal, open work and hand-off; None where nothing is known.

    The goal is the last one set that has not ended, of the thread, else of the project. Work items go by
    priority (`P1` before `P2`, none last), then by age. Decisions of both go by time, the newest last, those
    of the hand-off among them.
    """
    thread, project = seen_from(thread, project)
    both = [*project, *thread]
    facts = _project_facts(thread, project)
    goal = _goal_of(thread) or _goal_of(project)
    items = sorted(
        (entity for entity in _live(both, "work_item")),
        key=lambda e: (_priority(e.document["body"]), e.document["at_us"], e.id),
    )
    handoff = _hand_off(both, _last(thread, "hand_off") or _last(project, "hand_off"))
    if not facts and goal is None and not items and handoff is None:
        return None
    return SessionContext(
        project=ProjectState.model_validate(facts),
        goal=goal,
        work_items=tuple(WorkItem.model_validate(entity.document["body"]) for entity in items),
        handoff=handoff,
    )


def plan_of(thread: Sequence[Entity], project: Sequence[Entity], plan_id: str | None) -> StoredPlan | None:
    """The named plan; else the last one set that has not ended, of the thread, else of the project.

    A plan of the project stands as the thread's events have advanced it, for this thread alone.
    """
    thread, project = seen_from(thread, project)
    for entities in (thread, project):
        if not entities:
            continue
        plans = [e for e in _of(entities, "plan") if "body" in e.document]
        if plan_id is not None:
            found = next((e for e in plans if e.id == plan_id), None)
        else:
            live = [e for e in plans if not e.document.get("final")]
            found = max(live, key=lambda e: (e.document["set_at_us"], e.id), default=None)
        if found is not None:
            return _stored_plan(found.document)
    return None


def memories_of(thread: Sequence[Entity], project: Sequence[Entity]) -> tuple[MemoryItem, ...]:
    """All that was remembered, in order of time and id; what a newer fact supersedes is among them."""
    found = [*_of(project, "memory"), *_of(thread, "memory")]
    found.sort(key=lambda e: (e.document["at_us"], e.id))
    return tuple(
        MemoryItem(
            id=entity.id,
            text=entity.document["body"]["text"],
            subject=entity.document["body"].get("subject"),
            occurred_at=instant_of(entity.document["at_us"]),
        )
        for entity in found
    )


def artifacts_of(thread: Sequence[Entity], project: Sequence[Entity]) -> tuple[Artifact, ...]:
    """What was produced, in order of time and id. A long content is shown by its beginning.

    The time is the artifact's own; where it has none, or one that lies ahead of its event, the event's.
    """
    artifacts = [_artifact(entity) for entity in (*_of(project, "artifact"), *_of(thread, "artifact"))]
    return tuple(sorted(artifacts, key=lambda one: (one.occurred_at or _NEVER, one.id)))


def _artifact(entity: Entity) -> Artifact:
    at_us = entity.document["at_us"]
    artifact = Artifact.model_validate({"occurred_at": instant_of(at_us), **entity.document["body"]})
    claimed = artifact.occurred_at
    if claimed is not None and microseconds(claimed) > at_us + FUTURE_SLACK_US:
        return artifact.model_copy(update={"occurred_at": instant_of(at_us)})
    return artifact


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """What failed or was touched lately."""

    failing_tests: tuple[FailingTest, ...]
    """The newest first."""
    more_failing_tests: int
    """How many older ones fail beside them."""
    files: tuple[str, ...]
    """Paths that failed, then paths that were touched, the newest first, each once."""


_NO_SIGNALS: Final = Signals(failing_tests=(), more_failing_tests=0, files=())


def signals_of(
    thread: Sequence[Entity], project: Sequence[Entity], *, as_of: datetime, keep: timedelta
) -> Signals:
    """What is not older than `keep` at `as_of`."""
    if not thread and not project:
        return _NO_SIGNALS
    oldest_us = microseconds(as_of - keep)
    thread, project = seen_from(thread, project)
    both = [*thread, *project]
    failing = sorted(
        (
            (-e.document["at_us"], e.id, e.document["body"])
            for e in _of(both, "test")
            if e.document["body"]["status"] in {"failed", "error"} and e.document["at_us"] >= oldest_us
        ),
        key=lambda item: item[:2],
    )
    events = sorted(
        (event for event in _runtime_events(both) if event["at_us"] >= oldest_us),
        key=lambda event: (-event["at_us"], event["event_id"]),
    )
    broken = [event for event in events if event["status"] == "failed"]
    fine = [event for event in events if event["status"] != "failed"]
    told = [*(body for *_, body in failing), *broken, *fine]
    files = dict.fromkeys(path for one in told for path in one.get("files", ()))
    return Signals(
        failing_tests=tuple(
            FailingTest(id=test_id, message=body.get("message"))
            for _, test_id, body in failing[:MAX_FAILING_TESTS]
        ),
        more_failing_tests=max(0, len(failing) - MAX_FAILING_TESTS),
        files=tuple(files)[:MAX_FILES],
    )


def uses_of(entities: Iterable[Entity]) -> dict[str, int]:
    """When an event last referred to a thing, by the thing's id, in microseconds since 1970."""
    used: dict[str, int] = {}

    def use(name: str, at_us: int) -> None:
        used[name] = max(at_us, used.get(name, at_us))

    for entity in entities:
        match entity.kind:
            case "summary":
                for name, at_us in entity.document.get("used", ()):
                    use(name, at_us)
            case "memory":
                for name in entity.document["body"].get("refers_to", ()):
                    use(name, entity.document["at_us"])
            case "runtime":
                for event in _runtime_events([entity]):
                    for name in event.get("refers_to", ()):
                        use(name, event["at_us"])
            case _:
                pass
    return used


_NEVER: Final = instant_of(0)


def _of(entities: Iterable[Entity], kind: EntityKind) -> Iterator[Entity]:
    return (entity for entity in entities if entity.kind == kind)


def _live(entities: Iterable[Entity], kind: EntityKind) -> Iterator[Entity]:
    return (e for e in _of(entities, kind) if "body" in e.document and not e.document.get("final"))


def _runtime_events(entities: Iterable[Entity]) -> Iterator[Mapping[str, Any]]:
    # What an earlier version kept comes back with the next event of its thread.
    return (e for one in _of(entities, "runtime") for e in one.document["events"] if "event_id" in e)


def _last(entities: Iterable[Entity], kind: EntityKind) -> Entity | None:
    return max(_of(entities, kind), key=lambda e: (e.document["at_us"], e.id), default=None)


def _project_facts(thread: Sequence[Entity], project: Sequence[Entity]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for entities in (project, thread):
        for entity in _of(entities, "project"):
            facts |= entity.document["body"]
    if "active_session" not in facts:
        open_sessions = list(_live(thread, "session")) or list(_live(project, "session"))
        newest = max(open_sessions, key=lambda e: (e.document["opened_at_us"], e.id), default=None)
        if newest is not None:
            facts["active_session"] = newest.document["body"].get("title") or newest.id
    return facts


def _goal_of(entities: Sequence[Entity]) -> Goal | None:
    goals = _live(entities, "goal")
    newest = max(goals, key=lambda e: (e.document["set_at_us"], e.id), default=None)
    return None if newest is None else Goal.model_validate(newest.document["body"])


def _hand_off(entities: Sequence[Entity], last: Entity | None) -> HandoffData | None:
    """The last hand-off, with all that was decided: there, in the hand-offs before it, and by itself."""
    body: Mapping[str, Any] = {} if last is None else _as_slots(last.document["body"])
    dated: dict[str, tuple[int, int, Mapping[str, Any]]] = {}
    for at_us, place, decision in _decided(entities):
        name = decision["id"]
        if name not in dated or at_us >= dated[name][0]:
            dated[name] = (at_us, place, decision)
    if last is None and not dated:
        return None
    decisions = sorted(dated.items(), key=lambda item: (*item[1][:2], item[0]))
    return HandoffData.model_validate({**body, "decisions": [one[2] for _, one in decisions]})


def _decided(entities: Sequence[Entity]) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    """When something was decided, its place among what was told at once, and what it is."""
    for entity in _of(entities, "hand_off"):
        document = entity.document
        for place, (at_us, decision) in enumerate(document.get("earlier", ())):
            yield at_us, place, decision
        for place, decision in enumerate(decisions_in(document["body"])):
            yield document["at_us"], place, decision
    for entity in _of(entities, "decision"):
        yield entity.document["at_us"], 0, entity.document["body"]


def _as_slots(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """A hand-off with what its file says in front of what it names itself."""
    text = body.get("text")
    if text is None:
        return body
    document = read_hand_off(body.get("path") or "", text)
    if document is None:
        name = body.get("path") or "the hand-off"
        return {**body, "alerts": [*body.get("alerts", ()), f"{name} has no section that is known"]}
    read = to_handoff_data(document).model_dump(mode="json", exclude_none=True)
    return {**body, **{slot: [*values, *body.get(slot, ())] for slot, values in read.items()}}


def _priority(body: Mapping[str, Any]) -> tuple[bool, bool, float, str]:
    """Numbers and `P1`-like words by their number, other words after them by their letters, none last."""
    given = body.get("priority")
    text = "" if given is None else str(given).strip().casefold()
    digits = text.removeprefix("p")
    is_number = digits.isdecimal() and len(digits) <= _LONGEST_PRIORITY
    return given is None, not is_number, float(digits) if is_number else 0.0, text


_LONGEST_PRIORITY: Final = 9


def _stored_plan(document: Document) -> StoredPlan:
    return StoredPlan(
        plan=Plan.model_validate(document["body"]),
        statuses=document.get("steps", {}),
        summaries=document.get("summaries", {}),
        pointer=document.get("pointer"),
        is_ended=bool(document.get("final")),
    )
