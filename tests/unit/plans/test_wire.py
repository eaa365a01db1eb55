"""What crosses the wire from a plan document."""

from __future__ import annotations

from worker.plans.hand_offs import read_hand_off
from worker.plans.reading import read_plan
from worker.plans.wire import to_handoff_data, to_plan
from worker.providers.plan import plan_window


def test_a_plan_carries_its_steps_and_the_active_one():
    document = read_plan(
        "PLAN.md", "# Plan\n- [x] A\n- [ ] B\n  - Files: `a.py`\n  - Verify: run it\n- [ ] C\n"
    )
    plan = to_plan(document, "p1", "PLAN.md")
    assert (plan.plan_id, plan.path, plan.text) == ("p1", "PLAN.md", None)
    assert [(one.id, one.title, one.status) for one in plan.steps] == [
        (one.id, one.title, one.status) for one in document.steps
    ]
    assert plan.current_step == document.active
    assert (plan.steps[1].files, plan.steps[1].verify) == (("a.py",), ("run it",))


def test_a_file_without_steps_is_carried_as_text():
    plan = to_plan(read_plan("PLAN.md", "Just words.\n"), "p1", None)
    assert (plan.text, plan.steps, plan.current_step) == ("Just words.\n", (), None)


def test_what_is_carried_is_valid_on_the_wire():
    document = read_plan("PLAN.md", "- [ ] a\0b\n- [ ] **T1**: c (depends on T1)\n- [?] odd\n")
    plan = to_plan(document, "p1", "PLAN.md")
    assert plan.model_validate_json(plan.model_dump_json()) == plan


def test_a_hand_off_says_what_was_left_how_it_is_verified_and_what_it_refers_to():
    text = (
        "# Handoff\n## Done\nParser (#7)\n## Not done\nThe guide\n## Next\nMend 3fa9c1d\n"
        "## How to verify\nOpen it\n"
    )
    document = read_hand_off("HANDOFF.md", text)
    assert document is not None
    assert to_handoff_data(document).alerts == (
        "Not done: The guide",
        "Verify: Open it",
        "Refers to: 3fa9c1d, #7",
    )
    many = read_hand_off("HANDOFF.md", text + "".join(f"- #{number}\n" for number in range(100, 140)))
    assert many is not None
    assert to_handoff_data(many).alerts[-1].endswith("#105, #106, #107 and 32 more")
    bare = read_hand_off("HANDOFF.md", "# Handoff\n## Done\nParser\n## Next\nGo on\n")
    assert bare is not None
    assert to_handoff_data(bare).alerts == ()


def test_the_window_is_drawn_around_the_active_step():
    document = read_plan(
        "specs/001-a/tasks.md",
        "- [x] T001 A\n- [x] T002 B\n- [ ] T003 C — DEFERRED\n- [ ] T004 D\n- [ ] T005 E\n",
    )
    plan = to_plan(document, "p1", None)
    window = plan_window(plan.steps, plan.current_step)
    assert [plan.steps[n].id for n in window.recent] == ["T001", "T002"]
    assert window.current is not None
    assert plan.steps[window.current].id == document.active == "T004"
    assert tuple(plan.steps[n].id for n in window.upcoming) == document.next == ("T005",)
