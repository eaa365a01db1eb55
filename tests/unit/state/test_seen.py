"""What a thread sees where it and its project as a whole tell of the same things."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.session import SessionContext
from tests.support.state_events import START, expected, record
from worker.state.records import Group, StateRecord
from worker.state.store import Place
from worker.state.view import Entity, StoredPlan, decode_group, plan_of, session_of, signals_of


def told_of(events: list[StateRecord], group: Group, thread: str) -> tuple[Entity, ...]:
    return decode_group(expected(events).get(Place(thread, group), b"[]"))


def plan_from(events: list[StateRecord], thread: str = "t1", plan_id: str | None = None) -> StoredPlan | None:
    return plan_of(told_of(events, "plan", thread), told_of(events, "plan", ""), plan_id)


def session_from(events: list[StateRecord], thread: str = "t1") -> SessionContext | None:
    return session_of(told_of(events, "session", thread), told_of(events, "session", ""))


def plan(
    event_id: str = "p", *, at: float = 0, thread: str | None = None, title: str = "one", **more: str
) -> StateRecord:
    steps = [{"id": str(number), "title": title} for number in range(1, 5)]
    return record(event_id, "plan_set", {"plan_id": "p", "steps": steps, **more}, at=at, thread=thread)


def advance(
    step_id: str, status: str = "done", *, at: float, thread: str | None = "t1", **more: str
) -> StateRecord:
    body = {"plan_id": "p", "step_id": step_id, "status": status, **more}
    return record(f"s{step_id}-{at}-{thread}", "step_advanced", body, at=at, thread=thread)


def goal(event_id: str, kind: str, at: float, thread: str | None, **body: str) -> StateRecord:
    return record(event_id, kind, {"id": "g", **body}, at=at, thread=thread)


# --- Plans -------------------------------------------------------------------------------------------


def test_a_thread_advances_a_plan_of_its_project_for_itself_alone() -> None:
    events = [plan(), advance("1", at=1, summary="Done here."), advance("2", "active", at=2)]
    seen, others = plan_from(events), plan_from(events, "t2")
    assert seen is not None
    assert (seen.statuses, seen.pointer) == ({"1": "done", "2": "active"}, "2")
    assert seen.summaries == {"1": "Done here."}
    assert others is not None
    assert (others.statuses, others.pointer) == ({}, None)


def test_what_the_project_says_later_of_a_step_counts() -> None:
    events = [plan(), advance("1", "blocked", at=1), advance("1", at=2, thread=None), advance("2", at=3)]
    seen = plan_from(events)
    assert seen is not None
    assert (seen.statuses, seen.pointer) == ({"1": "done", "2": "done"}, "2")


def test_a_step_that_the_project_is_at_stays_current() -> None:
    seen = plan_from([plan(), advance("3", "active", at=1, thread=None), advance("1", at=2)])
    assert seen is not None
    assert seen.pointer == "3"


def test_a_plan_that_has_changed_counts_against_what_the_thread_said_before_and_a_repeat_does_not() -> None:
    events = [plan(), advance("1", at=1), plan("again", at=2)]
    seen = plan_from(events)
    assert seen is not None
    assert seen.statuses == {"1": "done"}
    seen = plan_from([*events, plan("changed", at=3, title="two")])
    assert seen is not None
    assert (seen.statuses, seen.pointer) == ({}, None)


def test_a_plan_that_a_thread_has_ended_is_current_for_the_others() -> None:
    events = [plan(), advance("4", at=1, plan_status="completed")]
    assert plan_from(events) is None
    named = plan_from(events, plan_id="p")
    assert named is not None
    assert named.is_ended
    others = plan_from(events, "t2")
    assert others is not None
    assert not others.is_ended


def test_a_plan_that_the_thread_has_set_is_its_own_and_the_projects_events_advance_it() -> None:
    events = [plan(title="all"), plan("own", thread="t1", title="mine"), advance("1", at=1, thread=None)]
    seen = plan_from(events)
    assert seen is not None
    assert [step.title for step in seen.plan.steps][:1] == ["mine"]
    assert seen.statuses == {}  # the project has a plan of its own under this id
    seen = plan_from(events[1:])
    assert seen is not None
    assert seen.statuses == {"1": "done"}


def test_the_summary_of_a_step_is_the_one_told_last() -> None:
    events = [
        plan(),
        advance("1", at=1, summary="the thread's"),
        advance("1", at=2, thread=None, summary="the project's"),
        advance("1", at=3),
        advance("2", at=4, summary="the thread's"),
        advance("2", at=5, thread=None),
    ]
    seen = plan_from(events)
    assert seen is not None
    assert seen.summaries == {"1": "the project's", "2": "the thread's"}


@pytest.mark.parametrize("ends", [plan("end", at=3, status="completed"), None])
def test_what_was_told_before_a_plan_ended_counts_and_what_was_told_after_it_does_not(
    ends: StateRecord | None,
) -> None:
    ends = ends or advance("4", at=3, thread=None, plan_status="completed")
    before, after = advance("1", at=1), advance("2", at=5)
    seen = plan_from([plan(), before, ends, after], plan_id="p")
    assert seen is not None
    assert seen.is_ended
    assert seen.statuses == ({"1": "done"} if ends.kind == "plan_set" else {"1": "done", "4": "done"})


def test_what_the_project_tells_of_a_plan_that_the_thread_has_ended_does_not_count_for_the_thread() -> None:
    events = [
        plan(),
        advance("4", at=2, plan_status="completed"),
        advance("1", at=3, thread=None, summary="Too late."),
    ]
    seen = plan_from(events, plan_id="p")
    assert seen is not None
    assert (seen.statuses, seen.pointer, seen.summaries) == ({"4": "done"}, "4", {})
    others = plan_from(events, "t2")
    assert others is not None
    assert others.statuses == {"1": "done"}


_statuses = st.sampled_from(["done", "active", "blocked"])
_more = st.sampled_from([{}, {}, {"summary": "s"}, {"plan_status": "completed"}])
_advances = st.tuples(st.just("advance"), st.sampled_from("123"), _statuses, _more)
_sets = st.tuples(
    st.just("set"), st.sampled_from("ab"), st.none(), st.sampled_from(["active"] * 3 + ["completed"])
)
_stories = st.lists(st.tuples(st.booleans(), _advances | _sets), max_size=10)


def _story(drawn: list[tuple[bool, tuple[str, str, Any, Any]]]) -> list[StateRecord]:
    """Plans are the project's, and steps are advanced by it or by the thread.

    After the end no plan is set, and nobody tells of a step again: what that takes the place of is lost.
    """
    events = [plan()]
    told: set[tuple[bool, str]] = set()
    is_ended = False
    for at, (is_threads, (what, name, status, more)) in enumerate(drawn, start=1):
        if is_ended and (what == "set" or (is_threads, name) in told):
            continue
        if what == "set":
            events.append(plan(f"p{at}", at=at, title=name, status=more))
            is_ended = more == "completed"
        else:
            named = {**more, "summary": f"at {at}"} if "summary" in more else more
            events.append(advance(name, status, at=at, thread="t1" if is_threads else None, **named))
            told.add((is_threads, name))
            is_ended = is_ended or "plan_status" in more
    return events


@settings(max_examples=200, deadline=None)
@given(drawn=_stories)
def test_a_plan_comes_to_what_it_would_if_all_had_been_told_in_one_place(drawn: Any) -> None:
    events = _story(drawn)
    seen, whole = (
        plan_from(told, plan_id="p") for told in (events, [replace(one, thread_id="") for one in events])
    )
    assert seen is not None
    assert whole is not None
    assert (seen.plan, seen.statuses, seen.summaries) == (whole.plan, whole.statuses, whole.summaries)
    assert seen.is_ended == whole.is_ended
    if not (whole.is_ended or any(one.kind == "step_advanced" and not one.thread_id for one in events)):
        assert seen.pointer == whole.pointer


# --- Goals, work, sessions, tests --------------------------------------------------------------------


def test_a_goal_of_the_project_that_a_thread_has_ended_is_active_for_the_others() -> None:
    events = [
        goal("g", "goal_set", 0, None, statement="For all"),
        goal("u", "goal_updated", 1, "t1", status="done"),
    ]
    assert session_from(events) is None
    others = session_from(events, "t2")
    assert others is not None
    assert others.goal is not None


_updates = st.fixed_dictionaries(
    {}, optional={"statement": st.sampled_from("xyz"), "current_step": st.just("1")}
)


@settings(max_examples=100, deadline=None)
@given(drawn=st.lists(st.tuples(st.sampled_from(["t1", None]), st.booleans(), _updates), max_size=8))
def test_a_goal_comes_to_what_it_would_if_all_had_been_told_in_one_place(drawn: Any) -> None:
    events = [goal("g", "goal_set", 0, None, statement="first")]
    for at, (thread, is_set, body) in enumerate(drawn, start=1):
        if is_set:
            events.append(goal(f"g{at}", "goal_set", at, None, **{"statement": "again", **body}))
        else:
            events.append(goal(f"g{at}", "goal_updated", at, thread, **body))
    assert session_from(events) == session_from([replace(one, thread_id="") for one in events])


def work(event_id: str, state: str, at: float, thread: str | None) -> StateRecord:
    return record(event_id, "work_item", {"id": "w", "title": event_id, "state": state}, at=at, thread=thread)


@pytest.mark.parametrize(
    ("events", "titles"),
    [
        ([work("all", "pending", 0, None), work("closed", "done", 1, "t1")], []),
        ([work("all", "pending", 2, None), work("closed", "done", 1, "t1")], []),
        ([work("own", "pending", 0, "t1"), work("closed", "done", 1, None)], []),
        ([work("all", "pending", 0, None), work("own", "pending", 1, "t1")], ["own"]),
        ([work("all", "pending", 1, None), work("own", "pending", 0, "t1")], ["all"]),
        ([work("all", "pending", 1, None), work("own", "pending", 1, "t1")], ["own"]),
    ],
)
def test_work_is_shown_once_as_it_was_told_last_and_what_has_ended_is_not(
    events: list[StateRecord], titles: list[str]
) -> None:
    session = session_from(events)
    shown = [] if session is None else [item.title for item in session.work_items]
    assert shown == titles


def test_a_session_of_the_project_that_the_thread_has_closed_is_not_active() -> None:
    opened = record("o", "session_opened", {"session_id": "s", "title": "Design"}, at=0, thread=None)
    closed = record("c", "session_closed", {"session_id": "s"}, at=1)
    session = session_from([opened])
    assert session is not None
    assert session.project.active_session == "Design"
    assert session_from([opened, closed]) is None


def test_what_a_session_was_told_of_stays_where_the_other_tells_of_it_again() -> None:
    def opened(session_id: str, at: float, thread: str | None, **more: str) -> StateRecord:
        return record(
            f"{session_id}{at}", "session_opened", {"session_id": session_id, **more}, at=at, thread=thread
        )

    told = [opened("s", 0, None, title="Design"), opened("s", 2, "t1")]
    session = session_from(told)
    assert session is not None
    assert session.project.active_session == "Design"
    # It was opened when it was opened first: another one has been opened since.
    session = session_from([*told, opened("later", 1, "t1")])
    assert session is not None
    assert session.project.active_session == "later"


@pytest.mark.parametrize(("passed_at", "failing"), [(5, []), (-5, ["t"])])
@pytest.mark.parametrize("thread", ["t1", None])
def test_a_test_fails_as_it_was_told_last(thread: str | None, passed_at: float, failing: list[str]) -> None:
    other = None if thread else "t1"
    events = [
        record("f", "test_result", {"test_id": "t", "status": "failed"}, at=0, thread=thread),
        record("p", "test_result", {"test_id": "t", "status": "passed"}, at=passed_at, thread=other),
    ]
    groups = [told_of(events, "signals", one) for one in ("t1", "")]
    signals = signals_of(*groups, as_of=START, keep=timedelta(days=1))
    assert [one.id for one in signals.failing_tests] == failing
