"""What events come to: rules that every store shares, so that they are shown without one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.state_events import BODIES, START, expected, record, records
from worker.memory.thread_state import ThreadState
from worker.state.folding import (
    LAST_COUNTS,
    MAX_EARLIER_DECISIONS,
    MAX_RUNTIME_EVENTS,
    MAX_USES,
    UNORDERED,
    EntityState,
    fold_anew,
    fold_on,
)
from worker.state.merging import plan_changes
from worker.state.records import StateRecord, microseconds
from worker.state.store import Place
from worker.state.view import (
    Entity,
    artifacts_of,
    decode_group,
    plan_of,
    session_of,
    signals_of,
    uses_of,
)


def known(*events: StateRecord, group: Any, thread: str = "t1") -> tuple[Entity, ...]:
    """What a group holds after these events."""
    return decode_group(expected(list(events)).get(Place(thread, group), b"[]"))


def decisions(*events: StateRecord) -> list[str]:
    session = session_of(known(*events, group="session"), known(*events, group="session", thread=""))
    assert session is not None
    assert session.handoff is not None
    return [one.title for one in session.handoff.decisions]


# --- Decisions ---------------------------------------------------------------------------------------


def test_what_an_earlier_hand_off_decided_stays_decided() -> None:
    told = [
        record("e1", "hand_off", {"decisions": ["one", "two"], "alerts": ["old"]}, at=1),
        record("e2", "decision", {"id": "d", "title": "three"}, at=2),
        record("e3", "hand_off", {"decisions": ["four", "one"], "key_files": ["a.py"]}, at=3),
        record("e4", "hand_off", {"blockers": ["stuck"]}, at=4),
        record("e5", "hand_off", {"decisions": ["of all"]}, at=0, thread=None),
    ]
    assert decisions(*told) == ["of all", "two", "three", "four", "one"]
    session = session_of(known(*told, group="session"), ())
    assert session is not None
    assert session.handoff is not None
    assert (session.handoff.alerts, session.handoff.key_files) == ((), ())
    assert [one.text for one in session.handoff.blockers] == ["stuck"]


def test_decisions_of_a_file_outlive_the_hand_off_that_brought_them() -> None:
    text = "# Handoff\n\n## Decisions\n- Deadlines are absolute\n\n## Next steps\n- Stop early\n"
    told = [record("e1", "hand_off", {"text": text}, at=1), record("e2", "hand_off", {}, at=2)]
    assert decisions(*told) == ["Deadlines are absolute"]


def test_earlier_decisions_are_bounded_and_the_newest_stay() -> None:
    told = [record(f"e{n:04}", "hand_off", {"decisions": [f"d{n}"]}, at=n) for n in range(200)]
    assert decisions(*told) == [f"d{n}" for n in range(199 - MAX_EARLIER_DECISIONS, 200)]


# --- Goals and plans ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["done", "cancelled", "Completed"])
def test_a_goal_that_ended_before_it_was_set_never_begins(status: str) -> None:
    told = [
        record("e1", "goal_updated", {"id": "g", "status": status}, at=1),
        record("e2", "goal_set", {"id": "g", "statement": "too late"}, at=2),
    ]
    assert session_of(known(*told, group="session"), ()) is None
    told[0] = record("e1", "goal_updated", {"id": "g", "status": "active"}, at=1)
    session = session_of(known(*told, group="session"), ())
    assert session is not None
    assert session.goal is not None


def pointer(*steps: tuple[str, str]) -> str | None:
    told = [record("e0", "plan_set", {"plan_id": "p", "steps": [{"id": "1", "title": "a"}]}, at=0)]
    told += [
        record(f"s{n}", "step_advanced", {"plan_id": "p", "step_id": step, "status": status}, at=n)
        for n, (step, status) in enumerate(steps, start=1)
    ]
    plan = plan_of(known(*told, group="plan"), (), None)
    assert plan is not None
    return plan.pointer


def test_a_step_that_somebody_is_at_stays_current_while_others_end_beside_it() -> None:
    assert pointer(("3", "active"), ("5", "done")) == "3"
    assert pointer(("3", "active"), ("5", "active"), ("6", "blocked")) == "5"
    assert pointer(("3", "active"), ("3", "done")) == "3"
    assert pointer(("3", "done"), ("5", "done")) == "5"


# --- Times -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("year", ["0001", "1600", "2300", "9999"])
@pytest.mark.parametrize("kind", sorted(BODIES))
@settings(max_examples=1)
@given(data=st.data())
def test_a_time_that_json_cannot_carry_is_the_nearest_that_it_can(
    kind: str, year: str, data: st.DataObject
) -> None:
    when = START.replace(year=int(year))
    seconds = (when - START) / timedelta(seconds=1)
    told = record("e1", kind, data.draw(BODIES[kind]), at=seconds, received=seconds)
    assert abs(told.at_us) == 2**53 - 1
    assert expected([told])


def test_an_artifact_from_the_future_is_as_old_as_its_event() -> None:
    body = {"stage": "s", "type": "t", "content": "c"}
    told = [
        record("e1", "artifact", {**body, "id": "wrong", "occurred_at": "2099-01-01T00:00:00Z"}, at=1),
        record("e2", "artifact", {**body, "id": "old", "occurred_at": "2020-01-01T00:00:00Z"}, at=2),
        record("e3", "artifact", {**body, "id": "plain"}, at=3),
    ]
    found = artifacts_of(known(*told, group="artifacts"), ())
    assert [(one.id, one.occurred_at) for one in found] == [
        ("old", START.replace(year=2020, month=1, day=1, hour=0)),
        ("wrong", START + timedelta(seconds=1)),
        ("plain", START + timedelta(seconds=3)),
    ]


# --- What happened at run time -----------------------------------------------------------------------


def test_run_time_is_kept_in_short_and_bounded_whatever_events_say() -> None:
    told = [
        record(f"e{n:05}", "tool_call", {"tool": "t", "summary": "x" * 10_000, "files": [f"{n}.py"]}, at=n)
        for n in range(2 * MAX_RUNTIME_EVENTS)
    ]
    held = expected(told)[Place("t1", "signals")]
    assert len(held) < 100 * MAX_RUNTIME_EVENTS
    now = START + timedelta(seconds=1_000)
    signals = signals_of(decode_group(held), (), as_of=now, keep=timedelta(days=1))
    assert signals.files[0] == "399.py"
    assert len(signals.files) == MAX_RUNTIME_EVENTS


def test_of_many_failing_tests_the_newest_are_named_and_the_others_counted() -> None:
    told = [
        record(f"e{n:02}", "test_result", {"test_id": f"t{n}", "status": "failed"}, at=n) for n in range(33)
    ]
    signals = signals_of(known(*told, group="signals"), (), as_of=START, keep=timedelta(days=1))
    assert [one.id for one in signals.failing_tests] == [f"t{n}" for n in range(32, 12, -1)]
    assert signals.more_failing_tests == 13


def test_what_an_earlier_version_kept_of_run_time_is_folded_anew_and_breaks_no_reading() -> None:
    event = record("e1", "tool_call", {"tool": "t", "files": ["new.py"]}, at=1)
    old = {"events": [{"at_us": 0, "event": "tool_call", "body": {"files": ["old.py"], "status": "ok"}}]}
    stored = EntityState(document=old, last=record("e0", "tool_call", {"tool": "t"}, at=0).order)
    changes = plan_changes([event], stored={}, states={event.entity: stored})
    assert changes.to_refold == {event.entity}
    entity = Entity(kind="runtime", id="", document=old)
    assert signals_of([entity], (), as_of=START, keep=timedelta(days=9_999)).files == ()


# --- Uses --------------------------------------------------------------------------------------------


def test_a_use_is_an_event_that_refers_to_the_thing() -> None:
    told = [
        record("e1", "message", {"role": "u", "content": "As m1 says.", "refers_to": ["m1", "m2"]}, at=5),
        record("e2", "message", {"role": "u", "content": "As m1 said.", "refers_to": ["m1"]}, at=3),
        record("e3", "memory", {"id": "m3", "text": "See m2.", "refers_to": ["m2"]}, at=9),
        record("e4", "tool_call", {"tool": "t", "refers_to": ["a"]}, at=4),
        record("e5", "gateway_event", {"name": "n", "refers_to": ["ключ"]}, at=4),
    ]
    groups = [known(*told, group=group) for group in ("messages", "memory", "signals")]
    used = [uses_of(group) for group in groups]
    at = [microseconds(START + timedelta(seconds=n)) for n in range(10)]
    assert used == [{"m1": at[5], "m2": at[5]}, {"m2": at[9]}, {"a": at[4], "ключ": at[4]}]


@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(24)), cut=st.integers(1, 23))
def test_uses_are_bounded_and_do_not_depend_on_the_order_of_messages(order: list[int], cut: int) -> None:
    told = [
        record(
            f"e{n:02}",
            "message",
            {"role": "u", "content": "x", "refers_to": [f"m{(n * 61 + k) % 1_300}" for k in range(100)]},
            at=n * 7 % 24,
        )
        for n in range(24)
    ]
    whole = fold_anew(None, told)
    parts = fold_on(fold_on(None, [told[n] for n in order[:cut]]), [told[n] for n in order[cut:]])
    assert whole is not None
    assert parts.document == whole.document
    assert len(whole.document["used"]) == MAX_USES


# --- Late events cost what they change -----------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    events=st.lists(records(), min_size=2, max_size=14, unique_by=lambda one: one.event_id), data=st.data()
)
def test_what_comes_late_and_needs_no_folding_anew_is_right_without(
    events: list[StateRecord], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(events) - 1))
    before: dict[Any, list[StateRecord]] = {}
    for one in sorted(events[:cut], key=lambda one: one.order):
        before.setdefault(one.entity, []).append(one)
    states = {key: state for key, told in before.items() if (state := fold_anew(None, told)) is not None}
    changes = plan_changes(events[cut:], stored={}, states=states)
    assert not any(key.kind in UNORDERED | LAST_COUNTS for key in changes.to_refold)
    for key in {one.entity for one in events} - changes.to_refold:
        told = sorted((one for one in events if one.entity == key), key=lambda one: one.order)
        whole = fold_anew(None, told)
        assert whole is not None
        assert changes.folded.get(key, states.get(key)) == whole


@pytest.mark.parametrize(("at", "is_moved"), [(5, False), (None, True), (400, True)])
def test_an_event_seen_earlier_than_was_known_moves_nothing_but_what_has_no_time_of_its_own(
    *, at: float | None, is_moved: bool
) -> None:
    body = {"role": "u", "content": "We decided."}
    stored, again = (record("e", "message", body, at=at, received=seen) for seen in (90, 20))
    states = {stored.entity: fold_on(None, [stored])}
    changes = plan_changes([again], stored={"e": stored}, states=states)
    assert [one.received_us for one in changes.rows] == [again.received_us]
    assert bool(changes.to_refold) == bool(changes.applied.touched) == is_moved
    assert changes.applied.repeated == 1


def test_a_thread_that_is_led_on_is_the_one_that_is_read_anew() -> None:
    told = [record(f"e{n}", "message", {"role": "u", "content": f"We decided {n}."}, at=n) for n in range(40)]
    led: EntityState | None = None
    for one in told:
        led = fold_on(led, [one])
        # As a store gives it back: equal, and not the same.
        document = {"thread": led.document["thread"][:1] + led.document["thread"][1:]}
        led = EntityState(document=document, last=led.last)
    assert led is not None
    again = ThreadState.from_bytes(led.document["thread"].encode())
    assert again.to_bytes().decode() == led.document["thread"]
    assert fold_on(None, told).document == led.document
