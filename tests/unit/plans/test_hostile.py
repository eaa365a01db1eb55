"""Files that no one writes on purpose: each gives a result, in bounded time, and nothing of it is lost."""

from __future__ import annotations

import json

import pytest

from worker.plans.reading import MAX_PLAN_CHARS, read_plan
from worker.plans.wire import to_plan


def test_ten_thousand_steps_are_read():
    text = "".join(f"- [{'x' if n < 9_000 else ' '}] T{n:05} Task\n" for n in range(10_000))
    document = read_plan("specs/001-a/tasks.md", text)
    assert (document.progress.done, document.progress.total) == (9_000, 10_000)
    assert document.active == "T09000"


def test_steps_nested_forty_deep_are_a_chain():
    document = read_plan("PLAN.md", "".join("  " * n + f"- [ ] level {n}\n" for n in range(40)))
    assert [one.parent for one in document.steps] == [None, *(one.id for one in document.steps[:-1])]
    assert document.active == document.steps[-1].id


@pytest.mark.parametrize(
    "piece", ["a", "`", "*", "[", "(", "~~", " — ", "✅", "**a:** ", "_a: ", "1.1-", "(done ", "T1, "]
)
def test_a_line_of_a_megabyte_is_one_step(piece: str):
    line = piece * (1_000_000 // len(piece))
    document = read_plan("PLAN.md", f"- [ ] Task {line}\n- [ ] Next\n")
    assert len(document.steps) == 2
    assert len(document.steps[0].title) <= 500


def test_characters_that_the_wire_refuses_are_replaced():
    document = read_plan("PLAN.md", "- [ ] a\0b \ud800c\n")
    assert document.steps[0].title == "a\ufffdb \ufffdc"


def test_line_ends_may_be_mixed():
    document = read_plan("PLAN.md", "\ufeff- [ ] a\r\n- [x] b\r- [ ] c\n")
    assert [(one.title, one.line) for one in document.steps] == [("a", 1), ("b", 2), ("c", 3)]


def test_an_escaped_bar_does_not_end_a_cell():
    document = read_plan("PLAN.md", "| Task | Status |\n|---|---|\n| a \\| b | done |\n")
    assert [(one.title, one.status) for one in document.steps] == [("a | b", "done")]


def test_a_tab_before_a_bullet_is_depth():
    document = read_plan("PLAN.md", "- [ ] a\n\t- [ ] b\n\t\t- [x] c\n- [ ] d\n")
    ids = {one.title: one.id for one in document.steps}
    assert [one.parent for one in document.steps] == [None, ids["a"], ids["b"], None]


def test_four_blanks_below_a_heading_are_no_code():
    document = read_plan("PLAN.md", "# Plan\n\n    - [ ] a\n      - [ ] b\n")
    assert [one.title for one in document.steps] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "why"), [("", "empty"), (" \n\t\n", "empty"), ("# Hello\n\nWorld.\n", "no steps")]
)
def test_a_file_without_steps_keeps_its_text_and_a_note(text: str, why: str):
    document = read_plan("PLAN.md", text)
    assert document.format == "unknown_format"
    assert document.text == text
    assert [(note.kind, note.text) for note in document.notes] == [("unknown_format", why)]


def test_a_file_beyond_the_limit_is_kept_as_text():
    document = read_plan("PLAN.md", "x" * (MAX_PLAN_CHARS + 1))
    assert document.format == "unknown_format"
    assert len(document.text) == MAX_PLAN_CHARS + 1


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        '{"a":' * 50_000,
        "{}",
        '{"tasks": 3}',
        '{"version": "2.0.0", "tasks": [{"label": "b"}]}',
        "null",
        '{"a": {"tasks": [1, 2]}}',
    ],
)
def test_json_that_is_no_task_list_is_unknown(text: str):
    assert read_plan(".taskmaster/tasks/tasks.json", text).format == "unknown_format"


def test_ranges_of_dependencies_stay_bounded():
    text = "".join(
        f"- [ ] T{n:04} a (depends on T0000-T0099, T0100-T0199, T0200-T0299)\n" for n in range(400)
    )
    document = read_plan("specs/001-a/tasks.md", text)
    assert max(len(one.depends_on) for one in document.steps) == 200


def test_comments_and_quotes_hide_tasks_and_details_do_not():
    text = (
        "<!-- - [ ] sample -->\n<!--\n- [ ] sample\n-->\n> - [ ] quoted\n"
        "<details>\n\n- [ ] real\n</details>\n"
        "- [ ] strip `<!--` from text\n- [ ] last <!-- open\n"
    )
    document = read_plan("PLAN.md", text)
    assert [one.title for one in document.steps] == ["real", "strip `<!--` from text", "last <!-- open"]


def test_two_rules_around_a_part_of_the_plan_are_no_front_matter():
    document = read_plan("PLAN.md", "---\n- [ ] a\n---\n- [ ] b\n")
    assert [one.title for one in document.steps] == ["a", "b"]


def test_deep_json_and_odd_values_are_read():
    tasks = [
        {"id": True, "title": "a", "status": "pending", "dependencies": "3"},
        {"id": 1.0, "title": None, "status": ["x"], "subtasks": {"id": 1}},
        {"id": "x" * 999, "title": "c\ud800", "status": "done", "subtasks": [3, {"id": "1", "title": "d"}]},
        {"id": "y\ud800", "title": "e", "status": "\ud800", "acceptanceCriteria": ["\ud800", 3]},
    ]
    document = read_plan("tasks.json", json.dumps({"\ud800": {"tasks": tasks}}))
    assert [one.title for one in document.steps] == ["a", "", "c\ufffd", "d", "e"]
    assert len({one.id for one in document.steps}) == 5
    to_plan(document, "p", None).model_dump_json()
    assert all(len(one.id) <= 256 for one in document.steps)
