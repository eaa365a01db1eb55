"""State events as publishers send them, and what hypothesis makes of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from hypothesis import strategies as st

from schemas.state import StateEvent
from worker.state.folding import fold_anew
from worker.state.merging import merge
from worker.state.records import GROUP_OF, StateRecord, to_record
from worker.state.store import Place, StateStore
from worker.state.view import encode_entity, encode_group

START: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOSTILE_IDS: Final = (
    "a/b",
    "it's",
    'say "x"',
    "50%",
    "*",
    "a\\b",
    "ключ",
    "🙂",
    "a:b|c",
    "{}",
    "-1",
    "'; --",
)


def event(
    event_id: str,
    kind: str,
    body: dict[str, Any],
    *,
    thread: str | None = "t1",
    at: float | None = 0.0,
    project: str = "shop",
) -> StateEvent:
    """One event, `at` seconds after `START`."""
    occurred_at = None if at is None else (START + timedelta(seconds=at)).isoformat()
    return StateEvent.model_validate(
        {
            "event_id": event_id,
            "project_id": project,
            "thread_id": thread,
            "event": kind,
            "occurred_at": occurred_at,
            "body": body,
        }
    )


def record(
    event_id: str, kind: str, body: dict[str, Any], *, received: float | None = None, **more: Any
) -> StateRecord:
    """The event as it is kept, from a Kafka record `received` seconds after `START`."""
    at = more.get("at", 0.0)
    seconds = received if received is not None else (at or 0.0)
    return to_record(
        event(event_id, kind, body, **more).root, record_timestamp=START + timedelta(seconds=seconds)
    )


_few = st.sampled_from
_ids = _few(["x", "y"])
_text = _few(["one", "two", "Drei 🙂"])
_step_status = _few(["done", "active", "pending", "blocked"])


def _body(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(fields)


BODIES: Final[dict[str, st.SearchStrategy[dict[str, Any]]]] = {
    "session_opened": _body(session_id=_ids, title=_text),
    "session_closed": _body(session_id=_ids, summary=_text),
    "project_updated": st.fixed_dictionaries({}, optional={"branch": _text, "test_state": _text}),
    "goal_set": _body(id=_ids, statement=_text, status=_few(["active", "done"])),
    "goal_updated": st.fixed_dictionaries(
        {"id": _ids}, optional={"status": _few(["active", "cancelled"]), "statement": _text}
    ),
    "work_item": _body(id=_ids, title=_text, state=_few(["pending", "done"]), priority=_few([1, "P2", None])),
    "hand_off": _body(decisions=st.lists(_text, max_size=2), blockers=st.lists(_text, max_size=2)),
    "plan_set": _body(
        plan_id=_ids,
        steps=st.lists(_body(id=_few(["1", "2", "3"]), title=_text, status=_step_status), max_size=3),
        status=_few(["active", "active", "completed"]),
    ),
    "step_advanced": _body(plan_id=_ids, step_id=_few(["1", "2"]), status=_step_status, summary=_text),
    "message": _body(role=_few(["user", "agent"]), content=_text),
    "memory": _body(id=_ids, text=_text, subject=_text),
    "artifact": _body(id=_ids, stage=_text, type=_text, content=_few(["short", "long " * 600])),
    "decision": _body(id=_ids, title=_text),
    "test_result": _body(test_id=_ids, status=_few(["passed", "failed"]), message=_text),
    "gateway_event": _body(name=_text, status=_few(["ok", "failed"])),
    "tool_call": _body(tool=_text, files=st.lists(_few(["a.py", "b.py"]), max_size=2)),
}


@st.composite
def records(draw: st.DrawFn) -> StateRecord:
    """Few ids, few times, some missing, some ahead: whatever can collide, does."""
    kind = draw(_few(sorted(BODIES)))
    received = draw(st.integers(0, 20))
    claimed = draw(st.none() | st.integers(0, 20) | st.just(received + 301))
    return record(
        draw(_few([f"e{number}" for number in range(12)])),
        kind,
        draw(BODIES[kind]),
        thread=draw(_few(["t1", "t2", None])),
        at=claimed,
        received=received,
    )


def expected(records: list[StateRecord]) -> dict[Place, bytes]:
    """What the set of events comes to, straight from the definition."""
    by_id: dict[str, StateRecord] = {}
    for one in records:
        by_id[one.event_id] = merge(by_id[one.event_id], one) if one.event_id in by_id else one
    by_entity: dict[Any, list[StateRecord]] = {}
    for one in sorted(by_id.values(), key=lambda one: one.order):
        by_entity.setdefault(one.entity, []).append(one)
    rows: dict[Place, list[bytes]] = {}
    for key in sorted(by_entity):
        state = fold_anew(None, by_entity[key])
        assert state is not None
        rows.setdefault(Place(key.thread_id, GROUP_OF[key.kind]), []).append(
            encode_entity(key, state.document)
        )
    return {place: encode_group(found) for place, found in rows.items()}


async def held(store: StateStore, project_id: str, *threads: str) -> dict[Place, bytes]:
    """Everything that a store holds of these threads; groups that hold nothing are left out."""
    heads = await store.heads(project_id, threads)
    groups = await store.groups(project_id, heads.versions)
    return {place: group.data for place, group in groups.items() if group.data != b"[]"}
