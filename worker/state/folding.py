"""How events about one thing become what is known of it: a fold over them in their order.

Each rule takes what is known and one later event. A document holds JSON values only, so that every store
keeps the same bytes; `final` in it says that the thing has ended, and that nothing changes it any more.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, Final

from schemas.session import read_step_status
from schemas.state import EventKind
from schemas.wire import canonical_json, sha256_hex
from worker.memory.thread_state import ThreadMessage, ThreadState
from worker.plans.hand_offs import read_hand_off
from worker.plans.wire import to_handoff_data
from worker.state.records import EntityKind, Order, StateRecord, instant_of

Document = Mapping[str, Any]

MAX_RUNTIME_EVENTS: Final = 200
"""Gateway events and tool calls that are kept in mind of one thread, the newest."""

MAX_USES: Final = 1_000
"""Things that the messages of one thread refer to, and of which that is kept in mind; those named last."""

MAX_EARLIER_DECISIONS: Final = 100
"""Of the hand-offs before the last one, the newest."""

UNORDERED: Final[frozenset[EntityKind]] = frozenset({"summary", "runtime"})
"""Things whose events may be folded in any order, to the same end."""

LAST_COUNTS: Final[frozenset[EntityKind]] = frozenset({"decision", "memory", "artifact", "test"})
"""Things of which the last event alone counts: an earlier one that comes later changes nothing."""

_AT_A_TIME: Final = 1_000
_MAX_KEPT_THREADS: Final = 64
_ENDED: Final = frozenset({"done", "skipped"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityState:
    """What is known of one thing, and up to which event."""

    document: Document
    last: Order
    base: EntityState | None = None
    """What events came to that are forgotten one by one; it has no base of its own."""


def fold_anew(base: EntityState | None, records: Iterable[StateRecord]) -> EntityState | None:
    """What is known after all events later than `base`, sorted; None where there is nothing.

    Holds no more than a few of them at a time.
    """
    state = base
    rest = iter(records)
    while some := tuple(islice(rest, _AT_A_TIME)):
        state = fold_on(state, some)
    return state if base is None or state is None else replace(state, base=base)


def compacted(state: EntityState | None) -> EntityState | None:
    """The state as a base for later events."""
    return None if state is None else replace(state, base=None)


def fold_on(state: EntityState | None, records: Iterable[StateRecord]) -> EntityState:
    """What is known after these events, which are sorted and all later than the state; at least one.

    For things in `UNORDERED` they need not be later. Raises ValueError for a document that another version of
    this program wrote, and that has to be folded anew.
    """
    document: Document = {} if state is None else state.document
    last = None if state is None else state.last
    for _, run in groupby(records, key=lambda record: record.kind):
        events = tuple(run)
        last = events[-1].order if last is None else max(last, events[-1].order)
        document = _RULES[events[0].kind](document, events)
    if last is None:
        raise ValueError("nothing to fold")
    return EntityState(document=document, last=last, base=None if state is None else state.base)


Rule = Callable[[Document, Sequence[StateRecord]], Document]


def _each(rule: Callable[[Document, StateRecord], Document]) -> Rule:
    """One event after the other, until the thing has ended."""

    def fold(known: Document, records: Sequence[StateRecord]) -> Document:
        for record in records:
            if known.get("final"):
                break
            known = rule(known, record)
        return known

    return fold


def _replaced(known: Document, record: StateRecord) -> Document:
    """The last one counts."""
    del known
    return {"at_us": record.at_us, "body": record.body}


def _hand_off(known: Document, record: StateRecord) -> Document:
    """The last one counts, but what the ones before had decided stays decided."""
    if "body" not in known:
        return {"at_us": record.at_us, "body": record.body, "earlier": []}
    earlier = {one["id"]: (at_us, one) for at_us, one in known.get("earlier", ())}
    for decision in decisions_in(known["body"]):
        # What is told again is as new as its last telling.
        earlier.pop(decision["id"], None)
        earlier[decision["id"]] = (known["at_us"], decision)
    kept = [[at_us, one] for at_us, one in earlier.values()][-MAX_EARLIER_DECISIONS:]
    return {"at_us": record.at_us, "body": record.body, "earlier": kept}


def decisions_in(hand_off: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The decisions of a hand-off: those that its file names, then its own."""
    text = hand_off.get("text")
    document = None if text is None else read_hand_off(hand_off.get("path") or "", text)
    told = () if document is None else to_handoff_data(document).decisions
    return (*(one.model_dump(mode="json", exclude_none=True) for one in told), *hand_off.get("decisions", ()))


def _project(known: Document, record: StateRecord) -> Document:
    return {"at_us": record.at_us, "body": {**known.get("body", {}), **record.body}}


def _session_opened(known: Document, record: StateRecord) -> Document:
    opened = {"opened_at_us": record.at_us} | {k: v for k, v in known.items() if k == "opened_at_us"}
    return {**opened, "at_us": record.at_us, "body": {**known.get("body", {}), **record.body}}


def _session_closed(known: Document, record: StateRecord) -> Document:
    return {
        **_session_opened(known, record),
        "closed_at_us": record.at_us,
        "final": True,
    }


def _goal_set(known: Document, record: StateRecord) -> Document:
    del known
    return _goal(record.body, set_at_us=record.at_us, at_us=record.at_us)


def _goal_updated(known: Document, record: StateRecord) -> Document:
    told = {**known.get("told_us", {}), **dict.fromkeys(record.body, record.at_us)}
    if "set_at_us" in known:
        body = {**known["body"], **record.body}
        return _goal(body, set_at_us=known["set_at_us"], at_us=record.at_us, told_us=told)
    # Forgotten where the goal is set here later; `seen_from` has use for it where it is set elsewhere.
    return {
        "at_us": record.at_us,
        "changes": {**known.get("changes", {}), **record.body},
        "told_us": told,
        **_final_if(read_step_status(record.body.get("status")) in _ENDED),
    }


def _goal(
    body: Mapping[str, Any], *, set_at_us: int, at_us: int, told_us: Mapping[str, int] | None = None
) -> Document:
    return {
        "set_at_us": set_at_us,
        "at_us": at_us,
        "body": body,
        **({"told_us": told_us} if told_us else {}),
        **_final_if(read_step_status(body.get("status")) in _ENDED),
    }


def _work_item(known: Document, record: StateRecord) -> Document:
    return {
        **_replaced(known, record),
        **_final_if(read_step_status(record.body.get("state")) in _ENDED),
    }


def _plan_set(known: Document, record: StateRecord) -> Document:
    body = {name: value for name, value in record.body.items() if name != "status"}
    digest = sha256_hex(canonical_json(body))
    is_unchanged = known.get("digest") == digest
    return {
        "set_at_us": record.at_us,
        "at_us": record.at_us,
        "body": body,
        "digest": digest,
        # A document that is published again as it was says nothing against what has happened meanwhile;
        # one that has changed does, and its own marks count.
        "steps": known.get("steps", {}) if is_unchanged else {},
        "pointer": known.get("pointer") if is_unchanged else None,
        "told_us": known.get("told_us", {}) if is_unchanged else {},
        "changed_us": known.get("changed_us", record.at_us) if is_unchanged else record.at_us,
        "summaries": known.get("summaries", {}),
        **({"summed_us": known["summed_us"]} if "summed_us" in known else {}),
        **_plan_end(record.body.get("status")),
    }


def _step_advanced(known: Document, record: StateRecord) -> Document:
    step_id, status = record.body["step_id"], record.body["status"]
    summary = record.body.get("summary")
    summed = {"summed_us": {**known.get("summed_us", {}), step_id: record.at_us}} if summary else {}
    pointer = known.get("pointer")
    # What somebody is at stays current, whatever is done beside it.
    is_held = pointer not in {None, step_id} and known.get("steps", {}).get(pointer) == "active"
    return {
        **known,
        "at_us": record.at_us,
        "steps": {**known.get("steps", {}), step_id: status},
        "pointer": pointer if is_held and status != "active" else step_id,
        "told_us": {**known.get("told_us", {}), step_id: record.at_us},
        "summaries": {**known.get("summaries", {}), **({step_id: summary} if summary else {})},
        **summed,
        **_plan_end(record.body.get("plan_status")),
    }


def _plan_end(status: object) -> Document:
    return {"ended_as": status, "final": True} if status in {"completed", "cancelled"} else {}


def _runtime(known: Document, records: Sequence[StateRecord]) -> Document:
    """The newest, in short: each change writes all of them anew."""
    telling = (record for record in records if record.kind != "tool_call" or _tells_something(record.body))
    events = [*known.get("events", ()), *map(_in_short, telling)]
    if not all("event_id" in event for event in events):
        raise ValueError("events as another version kept them")
    events.sort(key=lambda event: (event["at_us"], event["event_id"]))
    return {"events": events[-MAX_RUNTIME_EVENTS:]}


def _tells_something(body: Mapping[str, Any]) -> bool:
    """Whether a tool call says more than that it was made: else it would only displace what does."""
    return body["status"] == "failed" or bool(body.get("files") or body.get("refers_to"))


def _in_short(record: StateRecord) -> Document:
    body = record.body
    lists = {name: body[name] for name in ("files", "refers_to") if body.get(name)}
    return {"at_us": record.at_us, "event_id": record.event_id, "status": body["status"], **lists}


def _messages(known: Document, records: Sequence[StateRecord]) -> Document:
    """What a summary of the thread needs, and what it refers to; in whatever order they come."""
    thread = _THREADS.take(known["thread"]) if "thread" in known else ThreadState()
    used: dict[str, int] = dict(known.get("used", ()))
    for record in records:
        role, content = record.body["role"], record.body["content"]
        for name in record.body.get("refers_to", ()):
            used[name] = max(record.at_us, used.get(name, record.at_us))
        thread.advance(
            ThreadMessage(
                id=record.event_id,
                text=content,
                speaker=role,
                role=role,
                occurred_at=instant_of(record.at_us),
            )
        )
    written = thread.to_bytes().decode()
    _THREADS.keep(written, thread)
    last_used = sorted(used.items(), key=lambda use: (use[1], use[0]))[-MAX_USES:]
    # Pairs and not a mapping: names of any script as keys cost canonical JSON thirty times as much.
    return {"thread": written, **({"used": [list(use) for use in last_used]} if used else {})}


class _Threads:
    """States of threads as they were written last, by that text: to read one takes as long as to lead it on.

    A memory of a pure function, no state. Each is given out once.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[str, ThreadState] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, written: str) -> ThreadState:
        with self._lock:
            held = self._held.pop(written, None)
        return ThreadState.from_bytes(written.encode()) if held is None else held

    def keep(self, written: str, thread: ThreadState) -> None:
        with self._lock:
            self._held[written] = thread
            if len(self._held) > _MAX_KEPT_THREADS:
                self._held.popitem(last=False)


_THREADS: Final = _Threads()


def _final_if(is_final: bool) -> Document:  # noqa: FBT001  a condition, nothing to configure
    return {"final": True} if is_final else {}


_RULES: Final[Mapping[EventKind, Rule]] = {
    "session_opened": _each(_session_opened),
    "session_closed": _each(_session_closed),
    "project_updated": _each(_project),
    "goal_set": _each(_goal_set),
    "goal_updated": _each(_goal_updated),
    "work_item": _each(_work_item),
    "hand_off": _each(_hand_off),
    "decision": _each(_replaced),
    "plan_set": _each(_plan_set),
    "step_advanced": _each(_step_advanced),
    "memory": _each(_replaced),
    "message": _messages,
    "artifact": _each(_replaced),
    "test_result": _each(_replaced),
    "gateway_event": _runtime,
    "tool_call": _runtime,
}
