"""Each format's own shapes."""

from __future__ import annotations

import json

import pytest

from worker.plans.reading import detect, read_plan
from worker.plans.results import PlanDocument, PlanStep


def step(document: PlanDocument, step_id: str) -> PlanStep:
    return next(one for one in document.steps if one.id == step_id)


def titles(document: PlanDocument) -> list[str]:
    return [one.title for one in document.steps]


SPEC_KIT = """# Tasks: Export

## Format: `[ID] [P?] [Story] Description`

| Phase | State |
|---|---|
| Setup | ✅ Complete |

## Phase 3: User Story 1 - Export a report (Priority: P1) 🎯 MVP

**Goal**: A report leaves the system. **Independent Test**: open the file.

### Tests for User Story 1 ⚠️

- [X] T010 [P] [US1] Contract test in tests/contract/test_export.py
- [ ] T011 [US1+US3] [P] Reader, see `src/export/reader.py:12-30`

### Implementation for User Story 1

- [ ] T012 [US1] Writer in src/export/csv.py (depends on T010)
  - keep the header row
- [ ] T020a [Setup] Add FR-001 and FR-002 to the guide

**Checkpoint**: the file opens.

## Parallel Example: User Story 1

- [ ] T010 launched together

## Success

- [ ] SC-001: exports take less than two seconds
"""


def test_spec_kit_tasks_have_tags_story_files_and_the_slots_of_their_phase():
    document = read_plan("specs/004-export/tasks.md", SPEC_KIT)
    assert document.format == "spec_kit"
    assert [one.id for one in document.steps] == ["T010", "T011", "T012", "T020a"]
    reader = step(document, "T011")
    assert (reader.parallel, reader.requirements, reader.files) == (
        True,
        ("US1", "US3"),
        ("src/export/reader.py",),
    )
    writer = step(document, "T012")
    assert writer.group == "Phase 3: User Story 1 - Export a report (Priority: P1) 🎯 MVP"
    assert writer.goal == "A report leaves the system."
    assert writer.verify == ("open the file.", "the file opens.")
    assert writer.actions == ("keep the header row",)
    assert writer.depends_on == ("T010",)
    assert step(document, "T020a").requirements == ("FR-001", "FR-002")
    assert [(one.id, one.text) for one in document.criteria] == [
        ("SC-001", "exports take less than two seconds")
    ]
    assert document.active == "T011"


def test_spec_kits_plan_holds_no_steps():
    document = read_plan(
        "specs/004-export/plan.md", "# Plan\n## Phase 0: Research\n1. Look around\n- [ ] T001 x\n"
    )
    assert (document.format, document.steps, document.text) == ("spec_kit", (), "")


def test_kiro_takes_depth_from_ids_and_reads_fields():
    text = """# Implementation Plan: Billing

## Tasks

- [x] 1. Storage layer
- [x] 1.1 Schema for invoices
  - Unique key on tenant and number
  - _Requirements: 1.1, 2.3-2.5_
- [ ]* 1.2 Property test: numbers never repeat
  - **Property 3: uniqueness** · **Validates: Requirements 2.3**
- [~] 2. Sync
  - [~] 2.1 Queue
    - _Leverage: src/queue.py_
    - Files: src/a.py, b.ts
    - _Depends: 1_

## Notes

- [ ] an idea for later
"""
    document = read_plan(".kiro/specs/billing/tasks.md", text)
    assert [(one.id, one.parent) for one in document.steps] == [
        ("1", None),
        ("1.1", "1"),
        ("1.2", "1"),
        ("2", None),
        ("2.1", "2"),
    ]
    assert step(document, "1.1").requirements == ("1.1", "2.3", "2.4", "2.5")
    assert step(document, "1.1").actions == ("Unique key on tenant and number",)
    assert step(document, "1.2").optional
    assert step(document, "1.2").verify == ("Property 3: uniqueness",)
    assert step(document, "1.2").requirements == ("2.3",)
    assert step(document, "2.1").files == ("src/queue.py", "src/a.py", "b.ts")
    assert step(document, "2.1").depends_on == ("1",)
    assert document.active == "2.1"
    assert [one.text for one in document.criteria] == ["an idea for later"]


@pytest.mark.parametrize("waves", [[["1"], ["2", "3"]], [{"tasks": ["1"]}, {"tasks": ["2", "3"]}]])
def test_a_wave_waits_for_the_one_before(waves: list[object]):
    graph = json.dumps({"waves": waves})
    document = read_plan(
        ".kiro/specs/a/tasks.md",
        f"- [ ] 2. B\n- [ ] 3. C\n- [ ] 1. A\n## Task Dependency Graph\n```json\n{graph}\n```\n",
    )
    assert step(document, "3").depends_on == ("1",)
    assert document.active == "1"


def test_openspec_groups_tasks_and_takes_its_goal_from_the_proposal():
    document = read_plan(
        "openspec/changes/add-export/tasks.md",
        "## 2. Parser\n- [x] 2.1 Grammar\n  - [ ] 2.1.1 Errors\n"
        "## 5. Verification\n- [ ] 5.1 Run all\n- [ ] loose\n",
        siblings={
            "openspec/changes/add-export/proposal.md": "## Why\n\nPeople want files.\n\n## Impact\nx\n"
        },
    )
    assert document.goal == "People want files."
    assert [(one.printed_id, one.group, one.parent) for one in document.steps] == [
        ("2.1", "2. Parser", None),
        ("2.1.1", "2. Parser", "2.1"),
        ("5.1", "5. Verification", None),
        (None, "5. Verification", None),
    ]


def test_in_openspecs_archive_everything_is_closed():
    document = read_plan(
        "openspec/changes/archive/2026-01-31-add-export/tasks.md", "## 1. A\n- [x] 1.1 B\n- [ ] 1.2 C\n"
    )
    assert document.active is None
    assert [one.status for one in document.steps] == ["done", "skipped"]
    assert (document.progress.done, document.progress.closed) == (1, 2)


def test_openspecs_proposal_has_a_goal_and_no_steps():
    document = read_plan(
        "openspec/changes/a/proposal.md", "# Change\n## Why\nIt is slow.\n## What Changes\n- [ ] x\n"
    )
    assert (document.goal, document.steps) == ("It is slow.", ())


TASK_MASTER = {
    "master": {
        "tasks": [
            {"id": 1, "title": "Base", "status": "completed", "priority": "high"},
            {"id": 2, "title": "Slow", "status": "pending", "priority": "low", "dependencies": [1]},
            {"id": "3", "title": "Fast", "status": "pending", "priority": "high", "dependencies": ["1"]},
            {"id": 4, "title": "Off", "status": "cancelled", "testStrategy": "Look\nat it"},
        ]
    },
    "next": {
        "tasks": [
            {"id": 1, "title": "Other", "status": "in-progress", "description": "why", "details": "- a\n- b"}
        ]
    },
}


def test_task_master_takes_the_ready_task_of_the_highest_priority():
    document = read_plan(".taskmaster/tasks/tasks.json", json.dumps(TASK_MASTER))
    assert (document.format, document.title, document.active) == ("task_master", "master", "3")
    assert [one.status for one in document.steps] == ["done", "pending", "pending", "skipped"]
    assert step(document, "4").verify == ("Look", "at it")


def test_task_master_reads_the_tag_that_the_state_file_names():
    document = read_plan(
        ".taskmaster/tasks/tasks.json",
        json.dumps(TASK_MASTER, indent=1),
        siblings={".taskmaster/state.json": '{"currentTag": "next"}'},
    )
    assert document.title == "next"
    assert document.steps[0].goal == "why"
    assert document.steps[0].actions == ("a", "b")
    assert document.steps[0].line > 1
    assert document.active == "1"


def test_task_master_reads_the_older_form_without_tags():
    document = read_plan("tasks.json", '{"tasks": [{"id": 1, "title": "A", "status": "todo"}]}')
    assert [(one.id, one.status) for one in document.steps] == [("1", "pending")]


DATED = """# Export Implementation Plan

> **For agents:** follow it.

**Goal:** Reports as files.

**Architecture:** A writer.

## Global Constraints
- No network

### Task 1: Writer

**Files:**
- Create: `src/writer.py`
- Modify: `src/app.py:10-20`
- Test: `tests/test_writer.py`

- [ ] **Step 1: Write the failing test**

```python
### Task 7: no heading
- [ ] **Step 9: no step**
```

Run: `pytest tests/test_writer.py`
Expected: FAIL, no module

- [ ] **Step 2: Implement it in `src/writer.py`**

## Task 3b: Reader

- [ ] **Step 1: Write it**
"""


def test_dated_plans_number_steps_by_task_and_read_run_and_expected():
    document = read_plan("docs/superpowers/plans/2026-01-31-export.md", DATED)
    assert document.format == "dated_plan"
    assert document.goal == "Reports as files."
    assert [(one.id, one.parent) for one in document.steps] == [
        ("1", None),
        ("1.1", "1"),
        ("1.2", "1"),
        ("3b", None),
        ("3b.1", "3b"),
    ]
    assert step(document, "1").files == ("src/writer.py", "src/app.py", "tests/test_writer.py")
    assert step(document, "1.1").verify == ("`pytest tests/test_writer.py`",)
    assert step(document, "1.1").expected == "FAIL, no module"
    assert step(document, "1.1").title == "Write the failing test"
    assert step(document, "1.2").files == ("src/writer.py",)
    assert document.active == "1.1"
    assert document.next == ("1.2", "3b.1")
    assert document.progress.total == 3


def test_exec_plans_strip_stamps_and_read_decisions():
    text = """# Faster export

## Purpose / Big Picture

Exports take a second.

## Progress

- [x] (2026-03-04 09:10Z) Measured.
- [x] 2026-03-04 10:00 JST Found the slow loop.
- [x] [2026-03-05] Wrote a test.
- [ ] (YYYY-MM-DD) Rewrite it (done: reader; remaining: writer)
- [ ] 2026-03-06T10:00:00+09:00 - Measure again

## Surprises & Discoveries

- [ ] no step

## Decision Log

- Decision: Keep the format
  Rationale: readers exist
  Date/Author: 2026-03-04 / A

## Validation and Acceptance

Run the benchmark.
"""
    document = read_plan("plans/faster.md", text)
    assert document.format == "exec_plan"
    assert document.goal == "Exports take a second."
    assert titles(document) == [
        "Measured.",
        "Found the slow loop.",
        "Wrote a test.",
        "Rewrite it",
        "Measure again",
    ]
    assert [one.status for one in document.steps] == ["done", "done", "done", "active", "pending"]
    assert document.steps[3].actions == ("writer",)
    assert document.steps[4].verify == ("Run the benchmark.",)
    assert document.active == document.steps[3].id
    assert [(one.title, one.date) for one in document.decisions] == [("Keep the format", "2026-03-04")]


BACKLOG = """---
id: BACK-42
title: "Export"
status: To do
dependencies: [task-24, BACK-99]
modified_files: [src/a.py:3]
milestone: v2
---
## Description
<!-- SECTION:DESCRIPTION:BEGIN -->
Why it matters.
<!-- SECTION:DESCRIPTION:END -->
## Acceptance Criteria
<!-- AC:BEGIN -->
- [x] #1 opens
- [ ] #2 closes
<!-- AC:END -->
## Implementation Plan
1. Look
2. Build
"""


def test_a_backlog_file_is_one_step_and_its_boxes_are_criteria():
    path = "backlog/tasks/back-42 - Export.md"
    document = read_plan(path, BACKLOG)
    assert document.format == "backlog"
    assert [(one.id, one.title, one.status, one.group) for one in document.steps] == [
        ("BACK-42", "Export", "pending", "v2")
    ]
    assert [(one.id, one.text, one.met, one.step) for one in document.criteria] == [
        ("#1", "opens", True, "BACK-42"),
        ("#2", "closes", False, "BACK-42"),
    ]
    assert document.steps[0].verify == ("opens", "closes")
    assert document.steps[0].actions == ("Look", "Build")
    assert document.steps[0].goal == "Why it matters."
    assert document.steps[0].files == ("src/a.py",)
    assert document.steps[0].unresolved == ("task-24", "BACK-99")


def test_other_backlog_tasks_are_steps_too_and_a_former_prefix_is_matched_by_number():
    siblings = {
        "backlog/tasks/back-24 - Old.md": "---\nid: BACK-24\ntitle: Old\nstatus: Fertig\n---\n",
        "backlog/tasks/back-42.1 - Part.md": "---\nid: BACK-42.1\ntitle: Part\nstatus: Laufend\n---\n",
        "backlog/config.yml": 'statuses: ["Offen", "Laufend", "Fertig"]\n',
    }
    document = read_plan("backlog/tasks/back-42 - Export.md", BACKLOG, siblings=siblings)
    assert [(one.id, one.status, one.parent) for one in document.steps] == [
        ("BACK-24", "done", None),
        ("BACK-42", "pending", None),
        ("BACK-42.1", "active", "BACK-42"),
    ]
    assert step(document, "BACK-42").depends_on == ("BACK-24",)
    assert document.active == "BACK-42.1"


def test_gsd_follows_the_state_file_over_the_roadmap():
    roadmap = (
        "# Roadmap\n## Phases\n- [x] **Phase 1: Setup** - base\n- [ ] **Phase 2: Core** - heart\n"
        "- [ ] **Phase 3: Pages** - face\n## Phase Details\n### Phase 3: Pages\nPlans:\n"
        "- [ ] 03-01-PLAN.md — shell\n- [ ] 03-02-PLAN.md — pages\n"
    )
    siblings = {
        ".planning/STATE.md": (
            "---\nstatus: executing\n---\n# State\n## Current Position\n\nPhase: 3 of 6\nPlan: 2 of 4\n"
        ),
        ".planning/phases/03-pages/03-01-SUMMARY.md": "# Done\n",
    }
    document = read_plan(".planning/ROADMAP.md", roadmap, siblings=siblings)
    assert [(one.id, one.status) for one in document.steps] == [
        ("Phase 1", "done"),
        ("Phase 2", "done"),
        ("Phase 3", "pending"),
        ("03-01", "done"),
        ("03-02", "pending"),
    ]
    assert document.active == "03-02"
    assert [note.kind for note in document.notes] == ["status_conflict"]


def test_a_gsd_plan_has_tagged_tasks_and_a_summary_closes_it():
    text = (
        "---\nfiles_modified: [src/a.ts]\nrequirements: [AUTH-01]\n---\n<objective>\nPages\n</objective>\n"
        '<task type="auto">\n  <name>Task 1: Page</name>\n  <files>src/page.ts</files>\n'
        "  <action>Do it</action>\n"
        "  <verify>npm test</verify>\n  <done>It shows</done>\n</task>\n"
        '<task type="checkpoint:human-verify">\n  <what-built>Page</what-built>\n</task>\n'
    )
    path = ".planning/phases/03-pages/03-02-PLAN.md"
    document = read_plan(path, text)
    first = document.steps[0]
    assert (document.goal, first.id, first.title) == ("Pages", "1", "Page")
    assert (first.files, first.actions, first.verify) == (("src/page.ts",), ("Do it",), ("npm test",))
    assert (first.expected, first.requirements) == ("It shows", ("AUTH-01",))
    assert document.steps[1].title == "checkpoint:human-verify"
    closed = read_plan(path, text, siblings={".planning/phases/03-pages/03-02-SUMMARY.md": "done"})
    assert [one.status for one in closed.steps] == ["done", "done"]


def test_a_memory_bank_works_on_its_focus_and_then_on_the_next_steps():
    text = (
        "# Active\n## Current Focus\n- ✅ Parser\n- Printer\n"
        "## Recent Changes\n- ✅ x\n## Next Steps\n1. Docs\n2. Ship\n"
    )
    document = read_plan("memory-bank/activeContext.md", text)
    assert document.format == "memory_bank"
    assert titles(document) == ["Parser", "Printer", "Docs", "Ship"]
    assert document.active == document.steps[1].id
    done = read_plan("memory-bank/activeContext.md", text.replace("- Printer", "- Printer ✅"))
    assert done.active == done.steps[2].id


@pytest.mark.parametrize(
    ("text", "plan_format"),
    [
        ("# Implementation Plan\n- [ ] 1. A\n  - _Requirements: 1.1_\n", "kiro"),
        ("## Phase 1: Setup\n- [ ] T001 A\n", "spec_kit"),
        ("## 1. Setup\n- [ ] 1.1 A\n", "openspec"),
        ("### Task 1: A\n- [ ] **Step 1: B**\n", "dated_plan"),
        ("## Progress\n- [ ] A\n## Decision Log\n", "exec_plan"),
        ("---\nid: a\n---\n<!-- AC:BEGIN -->\n- [ ] #1 x\n", "backlog"),
        ('<task type="auto"><action>a</action></task>', "gsd"),
        ("# Plan\n- [ ] A\n", "free"),
    ],
)
def test_without_a_path_the_content_tells_the_format(text: str, plan_format: str):
    assert detect("", text) == plan_format


def test_a_dated_task_without_steps_is_a_step_itself():
    document = read_plan(
        "plans/2026-01-31-a.md", "### Task 1: A ✅\n### Task 2: B\n**Files:**\n- Modify: `a.py`\n"
    )
    assert [(one.id, one.status) for one in document.steps] == [("1", "done"), ("2", "pending")]
    assert document.steps[1].files == ("a.py",)
    assert document.active == "2"


def test_gsd_tasks_may_stand_below_headings():
    text = "### Task 1: A\n<action>do</action>\n<verify>look</verify>\n### Task 2: B\n<files>b.ts</files>\n"
    document = read_plan(".planning/phases/01-a/01-01-PLAN.md", text)
    assert [(one.id, one.title, one.actions, one.verify, one.files) for one in document.steps] == [
        ("1", "A", ("do",), ("look",), ()),
        ("2", "B", (), (), ("b.ts",)),
    ]
    assert read_plan(".planning/ROADMAP.md", "</task>\n").format == "unknown_format"


@pytest.mark.parametrize(
    "path", [".kiro/specs/a/tasks.md", "specs/001-a/tasks.md", "openspec/changes/a/tasks.md"]
)
def test_a_plan_of_another_shape_in_a_known_place_is_read_all_the_same(path: str):
    text = "# Tasks\n| ID | Description | WP |\n|---|---|---|\n| T001 | a | WP01 |\n"
    assert [one.id for one in read_plan(path, text).steps] == ["T001"]
    prose = read_plan(path, "# Tasks\n\nAsk Bo.\n")
    assert (prose.format, prose.text) == ("unknown_format", "# Tasks\n\nAsk Bo.\n")


def test_a_list_of_requirements_is_no_plan():
    document = read_plan(".planning/REQUIREMENTS.md", "- [x] **AUTH-01**: log in\n")
    assert (document.format, document.steps) == ("gsd", ())


def test_numbered_groups_in_a_file_of_another_name_are_a_free_plan():
    document = read_plan("PLAN.md", "## 1. Setup\n- [x] 1.1 A\n- [ ] 1.2 B\n")
    assert (document.format, document.active) == ("free", "1.2")


def test_a_wave_that_names_unknown_tasks_is_no_reason_for_notes():
    graph = '{"waves": [["1", "9"], ["2"]]}'
    text = f"- [ ] 1. A\n- [ ] 2. B\n## Task Dependency Graph\n```json\n{graph}\n```\n"
    document = read_plan(".kiro/specs/a/tasks.md", text)
    assert (document.steps[1].depends_on, document.notes) == (("1",), ())
