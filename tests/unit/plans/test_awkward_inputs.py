"""Inputs that plan files really hold and that are easily read wrong, each with the right reading."""

from __future__ import annotations

import json

import pytest

from worker.plans.reading import read_plan
from worker.plans.results import PlanDocument, PlanStep

SPEC_KIT = "specs/004-export/tasks.md"
KIRO = ".kiro/specs/billing/tasks.md"
OPENSPEC = "openspec/changes/add-export/tasks.md"


def step(document: PlanDocument, step_id: str) -> PlanStep:
    return next(one for one in document.steps if one.id == step_id)


def kinds(document: PlanDocument) -> list[str]:
    return [note.kind for note in document.notes]


def test_a_tag_in_the_notes_is_no_step():
    text = "# Tasks\n- [ ] T001 Make a folder\n\n## Notes\n- [P] tasks = different files, no dependencies\n"
    document = read_plan(SPEC_KIT, text)
    assert [one.id for one in document.steps] == ["T001"]
    assert not document.steps[0].parallel


def test_a_ticked_task_that_says_skipped_is_skipped_and_closed():
    document = read_plan(SPEC_KIT, "- [x] T031 Sign the installer (SKIPPED: no certificate)\n")
    assert step(document, "T031").status == "skipped"
    assert step(document, "T031").title == "Sign the installer"
    assert (document.progress.done, document.progress.closed, document.progress.total) == (0, 1, 1)
    assert document.active is None


def test_a_deferred_task_is_never_active():
    document = read_plan(SPEC_KIT, "- [ ] T047 Dark theme — DEFERRED\n")
    assert step(document, "T047").status == "deferred"
    assert document.active is None
    assert document.progress.closed == 0


def test_of_a_repeated_id_the_struck_one_is_skipped_and_the_second_has_a_number():
    text = "- [x] ~~T002 Vendor the parser~~\n- [ ] T002 **CHANGED**: write it by hand\n"
    document = read_plan(SPEC_KIT, text)
    assert [(one.id, one.printed_id, one.status) for one in document.steps] == [
        ("T002", "T002", "skipped"),
        ("T002#2", "T002", "pending"),
    ]
    assert document.steps[0].title == "Vendor the parser"
    assert document.active == "T002#2"
    assert kinds(document) == ["duplicate_id"]


@pytest.mark.parametrize("between", [" — ", "\n  ", "\n  - "])
def test_a_dash_in_the_box_is_active_for_kiro_and_deferred_by_words_elsewhere(between: str):
    kiro = read_plan(KIRO, "- [-] 12. Migrate users\n")
    assert step(kiro, "12").status == "active"
    assert kiro.active == "12"
    spec_kit = read_plan(
        SPEC_KIT, f"- [-] T012 Migrate users{between}deferred until the mobile phase\n- [ ] T013 Next\n"
    )
    assert step(spec_kit, "T012").status == "deferred"
    assert spec_kit.active == "T013"
    assert kinds(spec_kit) == []


def test_a_bare_dash_outside_kiro_is_a_guess():
    document = read_plan(SPEC_KIT, "- [-] T012 Migrate users\n- [~] T013 Move files\n")
    assert [one.status for one in document.steps] == ["skipped", "active"]
    assert kinds(document) == ["mark_guess", "mark_guess"]


def test_an_optional_task_below_a_done_one_is_not_active():
    document = read_plan(KIRO, "- [x] 3. Sync\n  - [ ]* 3.4 Property test\n")
    assert step(document, "3").status == "done"
    assert step(document, "3.4").status == "pending"
    assert step(document, "3.4").optional
    assert step(document, "3.4").parent == "3"
    assert document.active is None
    assert kinds(document) == []


def test_a_sign_inside_a_title_is_content():
    document = read_plan(KIRO, "- [x] 10. Shops\n  - [x] 10.1 Show ❌ in front of closed shops\n")
    assert step(document, "10.1").status == "done"
    assert step(document, "10.1").title == "Show ❌ in front of closed shops"


def test_a_longer_fence_hides_a_sample_plan_with_fences_in_it():
    text = (
        "### Task 1: Write the guide\n"
        "- [ ] **Step 1: Write a sample**\n\n"
        "````markdown\n### Task 9: Sample\n- [ ] **Step 1: No step**\n```\n- [ ] nor this\n```\n````\n"
    )
    document = read_plan("docs/superpowers/plans/2026-01-31-guide.md", text)
    assert [one.id for one in document.steps] == ["1", "1.1"]


def test_an_unclosed_fence_hides_nothing():
    lines = [f"- [ ] T00{n} Task {n}" for n in range(1, 10)]
    lines.insert(2, "  ```")
    document = read_plan(SPEC_KIT, "\n".join(lines))
    assert [one.id for one in document.steps] == [f"T00{n}" for n in range(1, 10)]
    assert [(note.kind, note.line) for note in document.notes] == [("open_fence", 3)]


def test_a_stamped_progress_line_that_is_open_is_the_active_one():
    text = (
        "# Outline\n\n## Purpose / Big Picture\n\nA user sees an outline.\n\n"
        "## Progress\n\n- [ ] 2026-05-11 - Outline agreed, no code yet\n\n## Decision Log\n\n(none)\n"
    )
    document = read_plan("plans/outline.md", text)
    assert document.format == "exec_plan"
    assert [(one.title, one.status) for one in document.steps] == [("Outline agreed, no code yet", "pending")]
    assert document.active == document.steps[0].id


def test_a_file_without_boxes_is_done_where_its_front_matter_says_so():
    text = (
        "---\nstatus: complete\n---\n# Tasks\n## 1. Parser\n"
        "### 1.1 Grammar\n**Files**: `a.py:12`\n### 1.2 Errors\n"
    )
    document = read_plan(OPENSPEC, text)
    assert [(one.id, one.title, one.status) for one in document.steps] == [
        ("1.1", "Grammar", "done"),
        ("1.2", "Errors", "done"),
    ]
    assert document.active is None


def test_an_own_mark_wins_over_the_heading_above():
    document = read_plan(OPENSPEC, "## Phase 1\n- [x] 1.1 Code\n## Phase 2 ✅\n- [ ] 2.3 Docs\n")
    assert step(document, "2.3").status == "pending"
    assert step(document, "2.3").group == "Phase 2"
    assert kinds(document) == ["status_conflict"]


def test_of_several_active_steps_the_first_deepest_is_active():
    text = (
        "- [ ] One\n  - Status: in-progress\n"
        "- [ ] Two\n  - [ ] Two a\n    - Status: in-progress\n- [/] Three\n"
    )
    document = read_plan("PLAN.md", text)
    titles = {one.id: one.title for one in document.steps}
    assert document.active is not None
    assert titles[document.active] == "Two a"
    assert [titles[other] for other in document.also_active] == ["One", "Three"]
    assert kinds(document) == []


def test_numbers_and_strings_are_the_same_ids_and_a_bare_number_names_a_sibling():
    tasks = [
        {
            "id": 4,
            "title": "Four",
            "status": "done",
            "subtasks": [{"id": "2", "title": "b", "status": "done"}],
        },
        {
            "id": "5",
            "title": "Five",
            "status": "in-progress",
            "subtasks": [
                {"id": "1", "title": "First", "status": "done"},
                {"id": 2, "title": "Second", "status": "pending", "dependencies": [1, "4.2", 9]},
            ],
        },
    ]
    document = read_plan(".taskmaster/tasks/tasks.json", json.dumps({"master": {"tasks": tasks}}))
    assert step(document, "5.2").depends_on == ("5.1", "4.2")
    assert step(document, "5.2").unresolved == ("9",)
    assert document.active == "5.2"
    assert kinds(document) == ["unresolved"]


def test_words_among_requirements_are_kept_and_missing_criteria_are_noted():
    requirements = (
        "# Requirements\n### Requirement 1: Invoices\n#### Acceptance Criteria\n"
        "1. WHEN a THEN THE shop SHALL b\n3. WHEN c THEN THE shop SHALL d\n"
    )
    document = read_plan(
        KIRO,
        "- [ ] 1. Invoices\n  - _Requirements: 1.1–1.3, All (audit)_\n",
        siblings={".kiro/specs/billing/requirements.md": requirements},
    )
    assert document.steps[0].requirements == ("1.1", "1.2", "1.3")
    assert document.steps[0].requirement_notes == ("All (audit)",)
    assert [(note.kind, note.text) for note in document.notes] == [("dangling_link", "1.2")]
