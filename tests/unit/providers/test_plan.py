from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.session import Goal, Plan, SessionContext, Step
from tests.unit.providers.frames import BUDGET, SCOPE, frame, pins, texts
from worker.providers.contribution import layer_text
from worker.providers.plan import PlanProvider, build_plan, plan_window, render_plan_context

STEPS: list[dict[str, Any]] = [
    {"id": "T1", "title": "Read the code", "status": "done", "summary": "Read it. All of it."},
    {"id": "T2", "title": "Write the trim", "status": "done"},
    {"id": "T3", "title": "Old idea", "status": "skipped"},
    {"id": "T4", "title": "Count windows", "status": "done", "summary": "Windows are\ncounted"},
    {"id": "T5", "title": "Bench", "status": "done"},
    {
        "id": "T6",
        "title": "Fences",
        "status": "active",
        "goal": "A cut fence is\nclosed",
        "actions": ["Find open fences", "Close them"],
        "verify": ["pytest -k fence"],
        "expected": "green",
        "depends_on": ["T2"],
        "requirements": ["REQ-1"],
        "files": ["worker/budget/fences.py"],
    },
    {"id": "T7", "title": "Docs", "status": "pending"},
    {"id": "T8", "title": "Someday", "status": "deferred"},
    {"id": "T9", "title": "Nice to have", "optional": True},
    {"id": "T10", "title": "Release", "status": "blocked"},
    {"id": "T11", "title": "Party"},
]
GOAL: dict[str, Any] = {"id": "G", "statement": "Trim\nwell", "tasks": STEPS, "current_step": "T4"}
WINDOW = """# PLAN WINDOW
Goal: Trim well
Progress: 4/10 done, 1 skipped
## Current step
T6 Fences (active)
Goal: A cut fence is closed
Actions:
- Find open fences
- Close them
Verification:
- pytest -k fence
Expected: green
Requirements: REQ-1
Files: worker/budget/fences.py
## Recently done
- T2 Write the trim
- T4 Count windows: Windows are counted
- T5 Bench
## Next
- T7 Docs
- T10 Release"""


def goal(**fields: Any) -> Goal:
    return Goal.model_validate({"statement": "g"} | fields)


def steps(*statuses: str, **fields: Any) -> list[Step]:
    return [
        Step.model_validate({"id": f"S{n}", "title": f"step {n}", "status": status} | fields)
        for n, status in enumerate(statuses)
    ]


def test_the_window_shows_the_current_step_in_full_and_its_surroundings() -> None:
    assert render_plan_context(goal(**GOAL)) == WINDOW


def test_a_session_a_goal_and_a_plan_are_read_alike() -> None:
    assert render_plan_context(SessionContext(goal=goal(**GOAL))) == WINDOW
    plan = Plan.model_validate({"plan_id": "P", "path": "PLAN.md", "steps": STEPS, "current_step": "T4"})
    assert render_plan_context(plan) == WINDOW.replace("Goal: Trim well", "Plan: P (PLAN.md)", 1)


@pytest.mark.parametrize("context", [None, SessionContext(), goal(), SessionContext(goal=goal(tasks=[]))])
def test_without_goal_or_tasks_there_is_no_text(context: SessionContext | Goal | None) -> None:
    assert render_plan_context(context) == ""


@pytest.mark.parametrize("max_lines", [-1, 0, 1])
def test_a_cap_that_leaves_only_the_heading_leaves_nothing(max_lines: int) -> None:
    assert render_plan_context(goal(**GOAL), max_lines) == ""


def test_the_cap_acts_on_all_but_the_current_step() -> None:
    lines = render_plan_context(goal(**GOAL), max_lines=2).split("\n")
    assert lines == ["# PLAN WINDOW", *WINDOW.split("\n")[3:14]]
    lines = render_plan_context(goal(**GOAL), max_lines=16).split("\n")
    assert lines[1:3] == ["Goal: Trim well", "Progress: 4/10 done, 1 skipped"]
    assert "## Recently done" in lines
    assert lines[-1] == "- T5 Bench"
    assert "## Next" not in lines


def test_the_floor_of_the_current_step_is_goal_and_actions() -> None:
    assert pins(build_plan(None, goal(**GOAL))) == [
        "T6 Fences (active)\nGoal: A cut fence is closed\nActions:\n- Find open fences\n- Close them"
    ]


def test_lines_of_the_floor_are_short_however_long_the_step_is() -> None:
    step = {"title": "t" * 10_000, "goal": "g " * 500_000, "actions": ["a" * 1_000_000]}
    contribution = build_plan(None, goal(tasks=[step]))
    assert [len(line) for line in pins(contribution)[0].split("\n")] == [301, 300, 8, 301]
    assert len(texts(contribution)[2]) > 2_000_000


@pytest.mark.parametrize(
    ("statuses", "pointer", "current"),
    [
        (("pending", "pending"), None, 0),
        (("done", "pending"), None, 1),
        (("done", "done", "pending"), "S0", 2),
        (("pending", "done", "pending"), "S1", 2),
        (("pending", "pending"), "S1", 1),
        (("done", "skipped", "blocked"), "S0", 2),
        (("deferred", "review"), "S0", 1),
        (("pending", "unknown"), "S1", 1),
        (("done", "done"), "S1", None),
        (("pending", "done"), "S1", 0),
        (("deferred", "pending", "done"), "S2", 1),
        (("pending", "active"), None, 1),
        (("pending", "active"), "S0", 0),
        (("pending", "active"), "gone", 1),
        (("deferred", "deferred"), None, None),
        ((), None, None),
    ],
)
def test_the_current_step_is_the_first_not_done_from_the_pointer_on(
    statuses: tuple[str, ...], pointer: str | None, current: int | None
) -> None:
    assert plan_window(steps(*statuses), pointer).current == current


def test_optional_steps_are_taken_only_when_named() -> None:
    some = [*steps("pending", "pending", optional=True), Step(id="T", title="t")]
    assert plan_window(some, None).current == 2
    assert plan_window(some, "S1").current == 1
    assert plan_window(some, None).total == 1


def test_a_step_with_steps_below_it_is_stood_for_by_them() -> None:
    some = [
        Step(id="1", title="phase"),
        Step(id="1.1", title="a", status="done", parent="1"),
        Step(id="1.2", title="b", parent="1"),
        Step(id="2", title="closed phase", status="done"),
        Step(id="2.1", title="left open", parent="2"),
        Step(id="2.1.1", title="deeper", parent="2.1"),
        Step(id="3", title="c"),
    ]
    window = plan_window(some, None)
    assert (window.current, window.upcoming, window.recent) == (2, (6,), (1,))
    assert (window.done, window.total) == (1, 4)
    assert plan_window(some, "1").current == 2
    assert plan_window(some, "2.1").current == 6


def test_older_done_steps_are_shown_where_the_current_one_depends_on_them() -> None:
    some = steps("done", "done", "done", "done", "done", "done", "pending")
    some[6] = some[6].model_copy(update={"depends_on": ("S1", "S5", "nowhere")})
    some[1] = some[1].model_copy(update={"depends_on": ("S0", "S6")})
    window = plan_window(some, None)
    assert (window.linked, window.recent) == ((0, 1), (3, 4, 5))
    text = render_plan_context(goal(tasks=some))
    assert "## Done earlier, needed now\n- S0 step 0\n- S1 step 1\n## Recently done\n- S3" in text


def test_a_finished_plan_has_no_current_and_no_next_step() -> None:
    assert render_plan_context(goal(tasks=steps("done", "done"))).split("\n") == [
        "# PLAN WINDOW",
        "Goal: g",
        "Progress: 2/2 done",
        "## Recently done",
        "- S0 step 0",
        "- S1 step 1",
    ]


def test_done_steps_are_told_in_one_sentence() -> None:
    step = Step(id="A", title="Do\nit", status="done", summary="First.\nSecond. " + "x" * 10_000)
    assert texts(build_plan(None, goal(tasks=[step])))[-1] == "- A Do it: First."


def test_repeated_ids_mean_the_first_and_keep_their_nodes_apart() -> None:
    some = [
        Step(id="A", title="one", status="done"),
        Step(id="A", title="two", status="done"),
        Step(title="x"),
    ]
    nodes = [f.node for f in build_plan(Plan(plan_id="P", steps=tuple(some)), None).fragments]
    assert nodes == ["plan://P", "plan://P/progress", "plan://P/3", "plan://P/A", "plan://P/A#2"]


async def test_a_plan_wins_over_the_tasks_of_the_goal() -> None:
    request = frame(
        session={"goal": GOAL}, plan={"plan_id": "P", "steps": [{"id": "X", "title": "From the plan"}]}
    )
    contribution = await PlanProvider().provide(request, SCOPE, BUDGET)
    assert layer_text(contribution).split("\n") == [
        "# PLAN WINDOW",
        "Goal: Trim well",
        "Progress: 0/1 done",
        "## Current step",
        "X From the plan (pending)",
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"session": {}},
        {"session": {"goal": {"statement": "g"}}},
        {"plan": {"plan_id": "P"}, "session": {"goal": GOAL}},
    ],
)
async def test_a_request_without_steps_has_an_empty_window(fields: dict[str, Any]) -> None:
    contribution = await PlanProvider().provide(frame(**fields), SCOPE, BUDGET)
    assert (contribution.status, contribution.reason) == ("empty", "no_data")


async def test_the_provider_shows_what_the_function_shows() -> None:
    contribution = await PlanProvider().provide(frame(session={"goal": GOAL}), SCOPE, BUDGET)
    assert layer_text(contribution) == WINDOW


_STATUSES = ("pending", "done", "skipped", "deferred", "active", "blocked", "review", "unknown")
_STEPS = st.lists(
    st.builds(
        Step,
        id=st.none() | st.integers(0, 8).map(str),
        title=st.just("t"),
        status=st.sampled_from(
            ["pending", "done", "skipped", "deferred", "active", "blocked", "review", "unknown"]
        ),
        optional=st.booleans(),
        parent=st.none() | st.integers(0, 8).map(str),
        depends_on=st.lists(st.integers(0, 9).map(str), max_size=2).map(tuple),
    ),
    max_size=10,
)


@settings(max_examples=200)
@given(_STEPS, st.none() | st.integers(0, 9).map(str))
def test_any_plan_has_a_sound_window(some: list[Step], pointer: str | None) -> None:
    window = plan_window(some, pointer)
    assert window.done + window.skipped <= window.total <= len(some)
    assert all(some[n].status == "done" for n in (*window.recent, *window.linked))
    assert not set(window.recent) & set(window.linked)
    if window.current is None:
        assert window.upcoming == ()
        return
    assert some[window.current].status not in {"done", "skipped", "deferred"}
    assert all(n > window.current and not some[n].optional for n in window.upcoming)
    contribution = build_plan(None, goal(tasks=some, current_step=pointer))
    assert len(pins(contribution)) == 1


def test_a_plan_of_ten_thousand_deep_steps_takes_bounded_time() -> None:
    some = [
        Step(
            id=str(n),
            title="t",
            parent=str(n - 1) if n % 40 else None,
            depends_on=(str(n - 1), str(n - 2)),
            status="done" if n < 9_000 else "pending",
        )
        for n in range(10_000)
    ]
    started = time.process_time()
    contribution = build_plan(None, goal(tasks=some))
    assert time.process_time() - started < 3
    assert layer_text(contribution).count("\n") < 25
    assert contribution.capped > 0
