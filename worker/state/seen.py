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
from math import inf
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


def _session(own: Document, other: Document) -> Document:
    """Opened where it was first, closed where it was, and field by field as its last events say.

    The fields of each side are as old as its last event: when it told each of them is not kept.
    """
    earlier, later = sorted((other, own), key=lambda document: document["at_us"])
    return {
        **earlier,
        **later,
        "body": {**earlier["body"], **later["body"]},
        "opened_at_us": min(earlier["opened_at_us"], later["opened_at_us"]),
    }


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
    """The plan, with the steps that were advanced elsewhere: since it last changed, and later than here.

    What was told after its end counts no more, wherever it was ended. But a step that was told of again after
    the end elsewhere has lost what was told before, and with it may be which step was current; and of a plan
    that was set again after the end elsewhere, what was set last is shown as ended.
    """
    if "body" in changes or "body" not in plan:
        return plan
    ended = changes if _end_us(changes) < _end_us(plan) else plan
    # At one moment the plan's word comes before that of the changes.
    plan, changes = _until(_end_us(changes), plan), _until(_end_us(plan) - 1, changes)
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
    summed = _summed_us(plan)
    summaries = {
        step_id: changes["summaries"][step_id]
        for step_id, at_us in _summed_us(changes).items()
        if at_us >= summed.get(step_id, at_us)
    }
    return {
        **plan,
        "steps": steps,
        "pointer": pointer,
        "summaries": {**plan["summaries"], **summaries},
        **{name: ended[name] for name in ("ended_as", "final") if name in ended},
    }


def _end_us(document: Document) -> float:
    """When it ended, by its own events."""
    return document["at_us"] if document.get("final") else inf


def _until(last_us: float, document: Document) -> Document:
    """The plan, or changes of one, without the steps that were told of after that instant."""
    told, summed = document.get("told_us", {}), _summed_us(document)
    kept = {step_id: at_us for step_id, at_us in told.items() if at_us <= last_us}
    if len(kept) == len(told):
        return document
    gone, pointer = told.keys() - kept.keys(), document["pointer"]
    newest = max(kept, key=lambda step_id: (kept[step_id], step_id), default=None)
    return {
        **document,
        "told_us": kept,
        "steps": {step_id: status for step_id, status in document["steps"].items() if step_id not in gone},
        "pointer": newest if pointer in gone else pointer,
        "summaries": {
            step_id: text
            for step_id, text in document["summaries"].items()
            if summed.get(step_id, last_us) <= last_us
        },
    }


def _summed_us(document: Document) -> Mapping[str, int]:
    """When each step was summed up; an earlier version kept only when it was told of last."""
    times = {**document.get("told_us", {}), **document.get("summed_us", {})}
    return {step_id: at_us for step_id, at_us in times.items() if step_id in document["summaries"]}


_TOGETHER: Final[Mapping[EntityKind, Callable[[Document, Document], Document]]] = {
    "session": _session,
    "goal": _goal,
    "work_item": _one_of,
    "plan": _plan,
    "test": _one_of,
}
