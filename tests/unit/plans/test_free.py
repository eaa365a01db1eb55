"""Free plans: which of their many shapes holds the steps."""

from __future__ import annotations

import pytest

from worker.plans.reading import read_plan
from worker.plans.results import PlanDocument


def told(document: PlanDocument) -> list[tuple[str | None, str, str]]:
    return [(one.printed_id, one.title, one.status) for one in document.steps]


def test_boxes_go_before_all_else():
    text = "# Plan\n## Phase 1: A ✅\n| Task | Status |\n|---|---|\n| B | done |\n\n- [ ] C\n\n1. D\n"
    assert told(read_plan("PLAN.md", text)) == [(None, "C", "pending")]


def test_rows_of_a_table_with_a_status_are_steps_and_sums_are_none():
    text = (
        "| # | Milestone | Status | Depends on | Done when |\n|---|---|---|---|---|\n"
        "| M1 | Base | ✅ Complete | — | tests pass |\n| M2 | Core | In progress | M1 | |\n"
        "| M3 | Docs | | M1-M2 | read |\n| | Total | 3 | | |\n\n"
        "| Option | Pros | Cons |\n|---|---|---|\n| a | b | c |\n"
    )
    document = read_plan("PLAN.md", text)
    assert told(document) == [("M1", "Base", "done"), ("M2", "Core", "active"), ("M3", "Docs", "pending")]
    assert document.steps[2].depends_on == ("M1", "M2")
    assert document.steps[0].verify == ("tests pass",)
    assert document.active == "M2"


def test_a_box_may_stand_in_a_cell():
    text = "| Done | ID | What |\n|---|---|---|\n| [x] | T001 | a |\n| [ ] | T002 | b |\n"
    assert told(read_plan("PLAN.md", text)) == [("T001", "a", "done"), ("T002", "b", "pending")]


def test_ids_of_tasks_make_a_table_a_plan():
    text = (
        "| ID | Description | WP | Parallel |\n|---|---|---|---|\n"
        "| T001 | a | WP01 | yes |\n| T002 | b | WP01 | |\n"
    )
    document = read_plan("PLAN.md", text)
    assert [one.parallel for one in document.steps] == [True, False]


def test_a_table_that_compares_is_no_plan():
    document = read_plan("PLAN.md", "| Option | Pros |\n|---|---|\n| a | b |\n")
    assert document.format == "unknown_format"


def test_headings_with_status_and_fields_are_steps():
    text = (
        "# Plan\n**Goal:** ship it\n## Phase 1: Base ✅\n## Phase 2: Core — IN PROGRESS\n"
        "### Step 2.1: Parser\n**Goal:** read it\n**Files:** `a.py:3`\n**Actions:**\n- write\n- test\n"
        "**Verification:** run it\n**Expected output:** 3\n**Depends on:** Phase 1\n"
        "## Phase 3: Pages\n**Status:** blocked\n#### Acceptance criteria\n- [x] shows\n"
    )
    document = read_plan("PLAN.md", text)
    assert told(document) == [
        ("Phase 1", "Base", "done"),
        ("Phase 2", "Core", "active"),
        ("Step 2.1", "Parser", "pending"),
        ("Phase 3", "Pages", "blocked"),
    ]
    parser = document.steps[2]
    assert (parser.goal, parser.files, parser.actions) == ("read it", ("a.py",), ("write", "test"))
    assert (parser.verify, parser.expected, parser.depends_on) == (("run it",), "3", ("Phase 1",))
    assert (parser.parent, parser.group) == ("Phase 2", "Phase 2: Core")
    assert [(one.text, one.met, one.step) for one in document.criteria] == [("shows", True, "Phase 3")]
    assert document.goal == "ship it"
    assert document.active == "Step 2.1"


def test_numbered_headings_are_steps_only_where_one_has_a_status():
    assert told(read_plan("PLAN.md", "### 1. A ✅\n### 2. B\n")) == [
        ("1", "A", "done"),
        ("2", "B", "pending"),
    ]
    assert read_plan("GUIDE.md", "## 1. Intro\n## 2. More\n").format == "unknown_format"


def test_an_ordered_list_under_a_heading_that_speaks_of_a_plan_holds_steps():
    text = "# Paper\n## Background\n1. old\n## Next steps\n1. A in `a.py`\n   - how\n2. B — DEFERRED\n"
    document = read_plan("notes.md", text)
    assert told(document) == [("1", "A in `a.py`", "pending"), ("2", "B", "deferred")]
    assert (document.steps[0].files, document.steps[0].actions) == (("a.py",), ("how",))


def test_bullets_with_signs_are_steps_under_a_plan_heading_only():
    text = "## Features\n- ✅ fast\n## Roadmap\n- ✅ A\n- 🔄 B\n- C\n"
    assert told(read_plan("README.md", text)) == [
        (None, "A", "done"),
        (None, "B", "active"),
        (None, "C", "pending"),
    ]


def test_a_headings_status_holds_for_items_without_mark():
    text = "## Next steps ✅\n1. A\n2. B ⏳\n"
    assert [one.status for one in read_plan("PLAN.md", text).steps] == ["done", "pending"]


def test_front_matter_holds_where_no_mark_does():
    assert [one.status for one in read_plan("PLAN.md", "---\nstatus: done\n---\n## Phase 1: A\n").steps] == [
        "done"
    ]
    assert [one.status for one in read_plan("PLAN.md", "---\nstatus: done\n---\n- [ ] A\n").steps] == [
        "pending"
    ]


@pytest.mark.parametrize(
    "label", ["**Acceptance criteria:**", "### Acceptance Criteria", "## Definition of Done"]
)
def test_boxes_below_criteria_are_no_steps(label: str):
    document = read_plan("PLAN.md", f"# Plan\n## Phase 1\n- [ ] A\n\n{label}\n\n- [x] fast\n- [ ] small\n")
    assert [one.title for one in document.steps] == ["A"]
    assert [(one.text, one.met) for one in document.criteria] == [("fast", True), ("small", False)]


def test_criteria_inside_an_item_belong_to_it():
    document = read_plan("PLAN.md", "- [ ] A\n  - Acceptance criteria:\n    - [ ] fast\n- [ ] B\n")
    assert [one.title for one in document.steps] == ["A", "B"]
    assert document.criteria[0].step == document.steps[0].id
    assert document.steps[0].verify == ("fast",)


def test_a_file_of_nothing_but_a_checklist_is_a_plan():
    document = read_plan("release.md", "# Release\n## Checklist\n- [x] tag\n- [ ] push\n")
    assert [one.title for one in document.steps] == ["tag", "push"]


def test_a_wrapped_line_is_one_title_and_a_short_line_ends_it():
    text = (
        "- [ ] A title that is long enough to have been wrapped by its editor at\n  some column\n"
        "- [ ] Short\n  with a detail\n"
    )
    document = read_plan("PLAN.md", text)
    assert document.steps[0].title.endswith("at some column")
    assert (document.steps[1].title, document.steps[1].actions) == ("Short", ("with a detail",))


def test_a_derived_id_comes_from_the_titles_on_the_way():
    text = "## A\n- [ ] x\n- [ ] x\n## B\n- [ ] x\n  - [ ] y\n"
    first, second, other, below = (one.id for one in read_plan("PLAN.md", text).steps)
    assert second == f"{first}#2"
    assert len({first, other, below}) == 3
    marked = read_plan("PLAN.md", text.replace("- [ ] x", "- [x] x ✅").replace("## A", "## A ✅")).steps
    assert [one.id for one in marked] == [first, second, other, below]


def test_an_ordered_box_has_its_number_where_no_other_has_it():
    assert [one.printed_id for one in read_plan("PLAN.md", "1. [ ] A\n2. [ ] B (after 1)\n").steps] == [
        "1",
        "2",
    ]
    assert [one.printed_id for one in read_plan("PLAN.md", "1. [ ] A\n1. [ ] B\n").steps] == [None, None]


def test_ids_without_a_sign_count_where_several_share_their_letters():
    document = read_plan("PLAN.md", "- [ ] AB-1 one\n- [ ] AB-2 two\n- [ ] S3 bucket\n")
    assert told(document) == [
        ("AB-1", "one", "pending"),
        ("AB-2", "two", "pending"),
        (None, "S3 bucket", "pending"),
    ]


def test_on_a_board_the_headings_are_the_statuses():
    text = "# Board\n## In Progress\n- A\n## To Do\n- B\n  - detail\n## Done\n- D\n## Notes\n- E\n"
    document = read_plan("TODO.md", text)
    assert [(one.title, one.status) for one in document.steps] == [
        ("A", "active"),
        ("B", "pending"),
        ("D", "done"),
    ]


def test_a_quarter_or_a_priority_is_no_id():
    text = "| Milestone | Target | Status |\n|---|---|---|\n| Core | Q1 | done |\n| Sync | Q2 | |\n"
    assert told(read_plan("ROADMAP.md", text)) == [(None, "Core", "done"), (None, "Sync", "pending")]


def test_an_unknown_status_word_says_less_than_the_box():
    document = read_plan("PLAN.md", "- [x] A\n  - **状态**: 进行中\n")
    assert [one.status for one in document.steps] == ["done"]


@pytest.mark.parametrize(
    "stamp",
    [
        "2026-05-11 - ",
        "(2026-05-11 09:10Z) ",
        "**2026-05-11**: ",
        "[2026-05-11] ",
        "2026-05-11T09:10:00+09:00 — ",
        "2026-05-11 10:00 JST ",
    ],
)
def test_a_stamp_is_no_part_of_a_title(stamp: str):
    assert told(read_plan("TODO.md", f"- [ ] {stamp}Outline agreed\n")) == [
        (None, "Outline agreed", "pending")
    ]
    assert told(read_plan("TODO.md", f"## Next steps\n1. {stamp}Outline agreed\n"))[0][1] == "Outline agreed"


def test_a_lone_task_number_is_an_id():
    assert told(read_plan(None, "- [ ] T047 Dark theme — DEFERRED\n")) == [("T047", "Dark theme", "deferred")]


def test_of_two_title_columns_the_numbers_are_ids():
    text = "| Phase | Description | Status |\n|---|---|---|\n| 1 | A | ✅ |\n| 2 | B | ❌ |\n"
    assert told(read_plan("PLAN.md", text)) == [("1", "A", "done"), ("2", "B", "blocked")]


def test_a_name_with_underscores_is_no_bold_type():
    document = read_plan("PLAN.md", "- [ ] Add src/pkg/__init__.py and __call__() in __two__ _places_\n")
    assert document.steps[0].title == "Add src/pkg/__init__.py and __call__() in two places"
    assert document.steps[0].files == ("src/pkg/__init__.py",)


def test_a_heading_that_is_a_step_is_no_title():
    assert read_plan("PLAN.md", "---\ntitle: X\n---\n## Phase 1: A\n").title == "X"
    assert read_plan("PLAN.md", "# Move ✅\n## Phase 1: A\n").title == "Move"
