"""What a thread sees of things of which it and its project as a whole have both told.

The project's events are seen by every thread; the thread's count for that thread alone, as all that it tells:
to change a plan or a goal for all, an event names no thread. So a thing with one id is one thing to whoever
looks from the thread, and comes to what the events of both come to, by their times.

Pure functions of the two documents: what they give depends on no order of arrival. Where both speak of the
same moment, the later word is the thread's, or of a plan or goal, that of whoever has not set it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from worker.state.folding import Document
from worker.state.records import EntityKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """One thing as a store holds it."""

    kind: EntityKind
    id: str
    document: Document


def seen_from(
    thread: Sequence[Entity], project: Sequence[Entity]
) -> tuple[Sequence[Entity], Sequence[Entity]]:
    """The things of both, each of them once: where it was set, else with the thread.

    A plan or goal that the thread has set itself is its own, whatever the project has under that id.
    O(things); nothing is copied where none is told of twice.
    """
    others = {(one.kind, one.id): one for one in project if one.kind in _TOGETHER}
    twice = [one for one in thread if (one.kind, one.id) in others]
    if not twice:
        return thread, project
    own: dict[_Name, Entity | None] = {}
    shared: dict[_Name, Entity | None] = {}
    for one in twice:
        name = (one.kind, one.id)
        other = others[name]
        is_shared = "body" in other.document and "body" not in one.document
        base, changes = (other, one) if is_shared else (one, other)
        together = replace(one, document=_TOGETHER[one.kind](base.document, changes.document))
        own[name], shared[name] = (None, together) if is_shared else (together, None)
    return _with(thread, own), _with(project, shared)


_Name = tuple[EntityKind, str]


def _with(entities: Sequence[Entity], changed: Mapping[_Name, Entity | None]) -> list[Entity]:
    found = (changed.get((one.kind, one.id), one) for one in entities)
    return [one for one in found if one is not None]


def _one_of(own: Document, other: Document) -> Document:
    """Of things whose last event says all: the later one, but the first that has ended is final."""

    def order(document: Document) -> tuple[bool, int]:
        is_final = bool(document.get("final"))
        return not is_final, document["at_us"] if is_final else -document["at_us"]

    return min(own, other, key=order)


def _goal(goal: Document, changes: Document) -> Document:
    """The goal, with what is said of it elsewhere and later, field by field; ended where it was ended."""
    if "body" in changes or "body" not in goal or goal.get("final"):
        return goal
    known, told = goal.get("told_us", {}), changes.get("told_us", {})
    later = {
        name: value
        for name, value in changes.get("changes", {}).items()
        if told[name] >= known.get(name, goal["set_at_us"])
    }
    final = {"final": True} if changes.get("final") else {}
    return {**goal, "body": {**goal["body"], **later}, **final}


def _plan(plan: Document, changes: Document) -> Document:
    """The plan, with the steps that were advanced elsewhere: since it last changed, and later than here."""
    if "body" in changes or "body" not in plan or plan.get("final"):
        return plan
    known, since = plan.get("told_us", {}), plan.get("changed_us", plan["set_at_us"])
    told = changes.get("told_us", {})
    later = {step_id: at_us for step_id, at_us in told.items() if at_us >= known.get(step_id, since)}
    steps = {**plan["steps"], **{step_id: changes["steps"][step_id] for step_id in later}}
    pointer = plan["pointer"]
    newest = max(later, key=lambda step_id: (later[step_id], step_id), default=None)
    if newest is not None and later[newest] >= max(known.values(), default=since):
        named = changes["pointer"] if changes["pointer"] in later else newest
        # As of events in one place: what somebody is at stays current, whatever is done beside it.
        is_held = steps.get(pointer) == "active" and steps[named] != "active"
        pointer = pointer if is_held else named
    ended = {name: changes[name] for name in ("ended_as", "final") if name in changes}
    summaries = {**plan["summaries"], **changes["summaries"]}
    return {**plan, "steps": steps, "pointer": pointer, "summaries": summaries, **ended}


_TOGETHER: Final[Mapping[EntityKind, Callable[[Document, Document], Document]]] = {
    "session": _one_of,
    "goal": _goal,
    "work_item": _one_of,
    "plan": _plan,
    "test": _one_of,
}
