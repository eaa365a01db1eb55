"""Which step is active, what comes next, and how progress is counted."""

from __future__ import annotations

import pytest

from worker.plans.reading import read_plan
from worker.plans.results import PlanDocument, Progress

KIRO = ".kiro/specs/a/tasks.md"
SPEC_KIT = "specs/001-a/tasks.md"


def kinds(document: PlanDocument) -> list[str]:
    return [note.kind for note in document.notes]


def test_the_first_open_required_leaf_is_active_and_the_two_after_it_are_next():
    document = read_plan(
        KIRO,
        "- [x] 1. A\n- [ ] 2. B\n  - [x] 2.1 C\n  - [ ]* 2.2 D\n  - [ ] 2.3 E\n"
        "- [ ] 3. F\n- [ ] 4. G\n- [ ] 5. H\n",
    )
    assert document.active == "2.3"
    assert document.next == ("3", "4")
    assert document.progress == Progress(done=2, closed=2, total=6)


def test_an_open_parent_of_closed_steps_counts_as_done():
    document = read_plan(KIRO, "- [ ] 1. A\n  - [x] 1.1 B\n- [ ] 2. C _Depends: 1_\n")
    assert document.active == "2"


def test_a_parent_with_nothing_but_optional_steps_stands_for_itself():
    document = read_plan(KIRO, "- [ ] 1. A\n  - [ ]* 1.1 B\n- [ ] 2. C\n")
    assert document.active == "1"
    assert document.progress.total == 2


def test_below_a_done_parent_nothing_is_chosen():
    document = read_plan(KIRO, "- [x] 1. A\n  - [ ] 1.1 B\n- [ ] 2. C\n")
    assert document.active == "2"
    assert kinds(document) == ["parent_done_children_open"]
    assert document.progress == Progress(done=0, closed=0, total=2)


def test_an_active_parent_is_stood_for_by_its_first_ready_step():
    document = read_plan(KIRO, "- [ ] 1. A\n- [-] 2. B\n  - [x] 2.1 C\n  - [ ] 2.2 D\n  - [ ] 2.3 E\n")
    assert document.active == "2.2"
    assert document.also_active == ()


def test_deferred_does_not_satisfy_a_dependency_and_skipped_does():
    text = (
        "- [ ] T001 A — DEFERRED\n- [x] T002 B (SKIPPED: x)\n- [ ] T003 C (depends on T001)\n"
        "- [ ] T004 D (depends on T002)\n"
    )
    assert read_plan(SPEC_KIT, text).active == "T004"


def test_an_unknown_dependency_is_kept_and_does_not_block():
    document = read_plan(SPEC_KIT, "- [ ] T001 A (depends on T999)\n")
    assert document.steps[0].unresolved == ("T999",)
    assert document.active == "T001"
    assert kinds(document) == ["unresolved"]


def test_a_cycle_blocks_nobody():
    document = read_plan(SPEC_KIT, "- [ ] T001 A (depends on T002)\n- [ ] T002 B (depends on T001)\n")
    assert document.active == "T001"
    assert document.steps[0].depends_on == ("T002",)
    assert [(note.kind, note.text) for note in document.notes] == [("dependency_cycle", "T001, T002")]


@pytest.mark.parametrize(
    ("written", "ids"),
    [
        ("depends on T001, T003", ("T001", "T003")),
        ("depends on T001-T003", ("T001", "T002", "T003")),
        ("depends on T001 through T002", ("T001", "T002")),
        ("after T002", ("T002",)),
        ("requires T003", ("T003",)),
        ("blocked by: T001 and T002", ("T001", "T002")),
    ],
)
def test_dependencies_are_read_from_brackets(written: str, ids: tuple[str, ...]):
    text = f"- [x] T001 A\n- [x] T002 B\n- [x] T003 C\n- [ ] T004 D ({written})\n"
    assert read_plan(SPEC_KIT, text).steps[-1].depends_on == ids


def test_a_number_in_prose_is_no_dependency():
    document = read_plan(KIRO, "- [ ] 1. A\n- [ ] 2. Requires Python 3.11 after 2024\n")
    assert document.steps[1].depends_on == ()
    assert document.steps[1].unresolved == ()


def test_a_range_whose_ends_differ_keeps_both_ends():
    document = read_plan(
        KIRO, "- [x] 1. A\n  - [x] 1.1 B\n- [ ] 2. C\n  - [ ] 2.4 D\n    - _Depends: 1.1-2.3_\n"
    )
    assert document.steps[-1].depends_on == ("1.1",)
    assert document.steps[-1].unresolved == ("2.3",)
    assert kinds(document) == ["range_unexpanded", "unresolved"]


def test_the_open_parallel_tasks_right_after_the_active_one_may_go_beside_it():
    text = (
        "## Phase 1\n- [x] T001 A\n- [ ] T002 [P] B\n- [ ] T003 [P] C\n- [x] T004 [P] D\n- [ ] T005 [P] E\n"
        "- [ ] T006 F\n- [ ] T007 [P] G\n## Phase 2\n- [ ] T008 [P] H\n"
    )
    document = read_plan(SPEC_KIT, text)
    assert document.active == "T002"
    assert document.parallel_with == ("T003", "T005")


def test_a_phase_waits_only_where_the_file_says_so():
    text = (
        "## Phase 1: Base\n- [!] T001 A\n## Phase 2: Core\n- [ ] T002 B\n## Phase 3: Docs\n- [ ] T003 C\n"
        "## Dependencies\n"
    )
    assert read_plan(SPEC_KIT, text).active == "T002"
    assert read_plan(SPEC_KIT, f"{text}- **Core (Phase 2)**: Depends on Phase 1\n").active == "T003"


@pytest.mark.parametrize(
    "front",
    [
        "---\ncurrent_task: T003\n---\n",
        "**Current task:** T003\n\n",
        "## Current Focus\nT003, then the rest\n\n",
    ],
)
def test_a_named_step_goes_before_the_first_ready_one(front: str):
    document = read_plan(SPEC_KIT, f"{front}## Phase 1\n- [ ] T001 A\n- [ ] T002 B\n- [ ] T003 C\n")
    assert document.active == "T003"


def test_a_named_phase_means_its_first_open_step():
    document = read_plan(
        "PLAN.md", "---\ncurrent_phase: 2\n---\n## Phase 1: A\n- [ ] a\n## Phase 2: B\n- [x] b\n- [ ] c\n"
    )
    assert document.active == document.steps[2].id


def test_a_box_below_the_current_focus_goes_before_earlier_ones():
    text = "# Plan\n## Later\n- [ ] T001 A\n## Current Focus\n- [x] T002 B\n- [ ] T003 C\n"
    assert read_plan("PLAN.md", text).active == "T003"


def test_a_named_step_that_is_closed_is_passed_over():
    document = read_plan(SPEC_KIT, "---\ncurrent_task: T001\n---\n- [x] T001 A\n- [ ] T002 B\n")
    assert document.active == "T002"


@pytest.mark.parametrize(
    ("path", "front"),
    [
        ("docs/archive/PLAN.md", ""),
        ("PLAN.md", "---\nstatus: superseded\n---\n"),
        ("PLAN.md", "**Status:** Superseded by NEW.md\n\n"),
    ],
)
def test_nothing_is_active_in_a_closed_document(path: str, front: str):
    document = read_plan(path, f"{front}- [ ] A\n- [ ] B\n")
    assert (document.is_closed, document.active, document.next) == (True, None, ())
    assert len(document.steps) == 2


def test_where_all_is_closed_nothing_is_active():
    document = read_plan("PLAN.md", "- [x] A\n- [x] B (SKIPPED: no)\n")
    assert document.active is None
    assert document.progress == Progress(done=1, closed=2, total=2)
