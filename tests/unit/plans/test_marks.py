"""What marks, legends, fields and words say of a step, and which of them goes first."""

from __future__ import annotations

import pytest

from schemas.codes import StepStatus
from worker.plans.reading import read_plan
from worker.plans.statuses import said_status, status_of_word, without_status


@pytest.mark.parametrize(
    ("mark", "status"),
    [
        (" ", "pending"),
        ("x", "done"),
        ("X", "done"),
        ("/", "active"),
        (">", "active"),
        ("!", "blocked"),
        ("v", "done"),
        ("√", "done"),
        ("✓", "done"),
    ],
)
def test_a_mark_without_further_words_is_read_by_the_table(mark: str, status: StepStatus):
    document = read_plan("PLAN.md", f"- [{mark}] Write\n")
    assert [(one.status, one.raw.mark) for one in document.steps] == [(status, mark)]
    assert document.notes == ()


@pytest.mark.parametrize("letter", ["S", "P", "D", "1"])
def test_a_letter_is_no_mark_without_a_legend(letter: str):
    document = read_plan("PLAN.md", f"- [ ] Write\n- [{letter}] Read\n")
    assert [one.title for one in document.steps] == ["Write"]


@pytest.mark.parametrize(
    "legend",
    [
        "## Legend\n- [ ] open\n- [S] skipped by choice\n- [~] in progress\n- [-] = postponed\n",
        "Legend: `[ ]` open, `[S]` skipped, `[~]` in progress, `[-]` postponed\n",
        "**Legend:**\n- `[S]` — skipped\n- `[~]` — in progress\n- `[-]` — postponed\n",
        "| Mark | Means |\n|---|---|\n| `[S]` | Skipped |\n| `[~]` | In progress |\n| `[-]` | Postponed |\n",
        "Status:\n- [S] Skipped\n- [~] In progress\n- [-] Postponed\n",
    ],
)
def test_a_legend_binds_the_whole_file_and_holds_no_steps(legend: str):
    document = read_plan(
        "PLAN.md", f"# Plan\n{legend}\n## Tasks\n- [S] One\n- [~] Two\n- [-] Three\n- [ ] Four\n"
    )
    assert [(one.title, one.status) for one in document.steps] == [
        ("One", "skipped"),
        ("Two", "active"),
        ("Three", "deferred"),
        ("Four", "pending"),
    ]
    assert document.notes == ()


def test_a_legend_without_a_known_word_falls_through_to_the_table():
    document = read_plan(
        "PLAN.md", "## Legend\n- [x] hooray\n- [!] needs thought\n\n## Tasks\n- [x] One\n- [!] Two\n"
    )
    assert [one.status for one in document.steps] == ["done", "blocked"]


def test_a_list_of_tasks_below_status_is_no_legend():
    document = read_plan("PLAN.md", "## Status\n- [x] Parser\n- [ ] Printer\n")
    assert [one.title for one in document.steps] == ["Parser", "Printer"]


def test_a_field_goes_before_words_and_mark():
    document = read_plan(
        "PLAN.md", "- [ ] Write — DEFERRED\n  - **Status:** blocked\n- [x] Read\n  Status: skipped\n"
    )
    assert [(one.status, one.raw.words) for one in document.steps] == [
        ("blocked", "blocked"),
        ("skipped", "skipped"),
    ]


@pytest.mark.parametrize(
    ("text", "status", "title"),
    [
        ("Write (SKIPPED: no time)", "skipped", "Write"),
        ("Write (deferred until May)", "deferred", "Write"),
        ("Write — DEFERRED", "deferred", "Write"),
        ("Write — DEFERRED to v2", "deferred", "Write"),
        ("Write [BLOCKED by legal]", "blocked", "Write"),
        ("Write — **done**", "done", "Write"),
        ("Write ✅", "done", "Write"),
        ("Write ⏸️", "deferred", "Write"),
        ("Write 🚧 WIP", "active", "Write"),
        ("Write (in review)", "review", "Write"),
        ("Write - WON'T DO", "skipped", "Write"),
        ("**CANCELLED** Write", "skipped", "Write"),
        ("BLOCKED: Write", "blocked", "Write"),
        ("⏸ Write", "deferred", "Write"),
        ("~~Write~~", "skipped", "Write"),
        ("Write (done: a; remaining: b)", "active", "Write"),
    ],
)
def test_a_word_in_status_position_speaks(text: str, status: StepStatus, title: str):
    said = said_status(text)
    assert said is not None
    assert (said.status, said.rest) == (status, title)


@pytest.mark.parametrize(
    "text",
    [
        "Show ❌ in front of closed shops",
        "TODO list component",
        "OPEN API client",
        "Fix the form - DONE button misaligned",
        "Switch (active/open)",
        "**CHANGED**: write it by hand",
        "Handle cancelled orders",
        "~~Old~~ new way",
        "Warn ⚠ on overflow",
        "Add the done state",
    ],
)
def test_a_status_word_that_is_content_does_not_speak(text: str):
    assert said_status(text) is None


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        ("✅ Complete", "done"),
        ("Done (2026-01-31)", "done"),
        ("In-Progress", "active"),
        ("IN_PROGRESS", "active"),
        ("Partial", "active"),
        ("🟡 Blocked on review", "blocked"),
        ("Not started", "pending"),
        ("To do", "pending"),
        ("❌", "blocked"),
        ("N/A", "skipped"),
        ("Won't do", "skipped"),
        ("Blocked by 2.1", "blocked"),
        ("已完成", "unknown"),
        ("GOTOWE", "unknown"),
        ("", None),
        ("—", None),
    ],
)
def test_an_explicit_status_is_read_by_its_words(raw: str, status: StepStatus | None):
    assert status_of_word(raw) == status


def test_an_unknown_status_keeps_its_words_and_is_never_active():
    document = read_plan("PLAN.md", "| Task | Status |\n|---|---|\n| Write | 進行中 |\n| Read | To do |\n")
    assert [(one.status, one.raw.words) for one in document.steps] == [
        ("unknown", "進行中"),
        ("pending", "To do"),
    ]
    assert document.active == document.steps[1].id


def test_words_that_contradict_the_box_are_noted():
    document = read_plan("PLAN.md", "- [x] Write — IN PROGRESS\n- [ ] Read ✅\n")
    assert [one.status for one in document.steps] == ["active", "done"]
    assert [note.kind for note in document.notes] == ["status_conflict"]


def test_a_struck_id_skips_its_task():
    document = read_plan("specs/001-a/tasks.md", "- [x] ~~T018~~ folded into T017\n")
    assert [(one.id, one.title, one.status, one.raw.words) for one in document.steps] == [
        ("T018", "folded into T017", "skipped", "~~T018~~")
    ]


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("Phase 2: API ✅", "Phase 2: API"),
        ("3. Parser — IN PROGRESS", "3. Parser"),
        ("Phase 2 — ✅ Complete (2026-01-01)", "Phase 2"),
        ("Phase 2 ✅ COMPLETE", "Phase 2"),
        ("✅ Phase 1", "Phase 1"),
        ("Phase 3 (done)", "Phase 3"),
        ("Build the DONE list", "Build the DONE list"),
    ],
)
def test_a_group_is_named_without_its_status(heading: str, name: str):
    assert without_status(heading) == name
