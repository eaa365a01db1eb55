"""What holds for every text, however odd."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.plan_documents import PATHS, check_document
from worker.plans.hand_offs import read_hand_off
from worker.plans.reading import read_plan
from worker.plans.wire import to_handoff_data, to_plan

PIECES = (
    *(
        "- [ ] ",
        "- [x] ",
        "- [-] ",
        "- [~] ",
        "- [/] ",
        "* [X] ",
        "1. ",
        "2) ",
        "- ",
        "  ",
        "\t",
        "    ",
        "- [ ]* ",
    ),
    *("T001 ", "T002 ", "1.1 ", "1. ", "2.1 ", "[P] ", "[US1] ", "**Step 1: a** ", "Task 1: ", "Phase 2 "),
    *("(depends on T001, T002)", "(after 1.1)", "requires T002", "Depends on: 1-3", "Blocked by: 2.1–2.9"),
    *(
        " — DEFERRED",
        "(SKIPPED: x)",
        "✅",
        "~~old~~",
        "IN PROGRESS",
        "(blocked)",
        "Status: active",
        "Status: done",
    ),
    *("# ", "## ", "### ", "## Phase 1: a ✅", "## Progress", "## Decision Log", "## Acceptance criteria"),
    *(
        "## Legend",
        "- [S] skipped",
        "`[~]` = deferred",
        "```",
        "````",
        "~~~",
        "<!--",
        "-->",
        "> ",
        "---",
        "***",
    ),
    *(
        "| Task | Status |",
        "|---|---|",
        "| a | done |",
        "| [x] | T001 |",
        "\\|",
        "_Requirements: 1.1–1.3, All_",
    ),
    *(
        "**Files:** `a.py:3`",
        "**Goal:** win",
        "Next steps",
        "## Next",
        '<task type="auto"><name>a</name></task>',
    ),
    *(
        "\0",
        "\ufeff",
        "\u00a0",
        "\ud800",
        "x",
        "é",
        "需求",
        "Current Focus",
        "[NEEDS CLARIFICATION: why]",
        "{",
        "}",
    ),
)
LINES = st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=6).map("".join)
TEXTS = st.lists(LINES, max_size=25).flatmap(
    lambda lines: st.sampled_from(["\n", "\r\n", "\n\n", "\r"]).map(lambda e: e.join(lines))
)


@given(st.sampled_from(PATHS), TEXTS)
@settings(max_examples=100, deadline=None)
def test_every_text_gives_a_document_whose_parts_agree(path: str | None, text: str):
    document = read_plan(path, text)
    check_document(document, is_named="current" in text.lower())
    assert read_plan(path, text) == document
    plan = to_plan(document, "p", path)
    assert plan.model_validate_json(plan.model_dump_json()) == plan


@given(st.text(max_size=400))
@settings(max_examples=40, deadline=None)
def test_text_that_is_no_plan_never_raises(text: str):
    check_document(read_plan("notes.md", text))
    read_hand_off("HANDOFF.md", text)


@given(TEXTS)
@settings(max_examples=40, deadline=None)
def test_every_text_gives_a_hand_off_or_none(text: str):
    document = read_hand_off("HANDOFF.md", f"## Done\n{text}\n## Next\n{text}")
    if document is not None:
        data = to_handoff_data(document)
        assert data.model_validate_json(data.model_dump_json()) == data


@given(
    st.lists(st.tuples(st.sampled_from(" x/-~!"), st.sampled_from("abc"), st.integers(0, 2)), max_size=15),
    st.data(),
)
@settings(max_examples=40, deadline=None)
def test_a_derived_id_does_not_change_with_marks_or_other_steps(
    rows: list[tuple[str, str, int]], data: st.DataObject
):
    def written(kept: list[tuple[str, str, int]]) -> str:
        return "# Plan\n" + "".join(f"- [{mark}] {word * 3} {n}\n" for mark, word, n in kept)

    before = read_plan("PLAN.md", written(rows))
    marks = data.draw(st.lists(st.sampled_from(" x/!"), min_size=len(rows), max_size=len(rows)))
    changed = [(mark, word, n) for mark, (_, word, n) in zip(marks, rows, strict=True)]
    after = read_plan("PLAN.md", written([*changed, (" ", "z", 9)]))
    assert [one.id for one in after.steps[: len(rows)]] == [one.id for one in before.steps]


SHAPES: dict[str, Callable[[int], str]] = {
    "tasks": lambda n: "".join(f"- [ ] T{i:05} [P] do {i} (depends on T{i - 1:05})\n" for i in range(n)),
    "nested": lambda n: "".join("  " * (i % 40) + f"- [ ] level {i}\n" for i in range(n)),
    "headings": lambda n: "".join(f"{'#' * (1 + i % 6)} Phase {i}: a ✅\nsome text\n" for i in range(n)),
    "table": lambda n: "| Task | Status |\n|---|---|\n" + "| a \\| b | done |\n" * n,
    "dated": lambda n: "".join(f"## Task {i}: a\n- [ ] **Step 1: b**\nRun: `x`\n" for i in range(n)),
    "fences": lambda n: "- [ ] a\n```\n" * n,
    "comments": lambda n: "- [ ] a <!-- b\n" * n,
    "legends": lambda n: "Legend:\n- [ ] a\n" * n,
    "wrapped": lambda n: "- [ ] " + "words to wrap over the line and " * 3 + "\n  more text" * n,
    "focus": lambda n: "Current focus: a\n\n- [ ] abcd\n" * n,
    "tagged": lambda n: '<task type="auto"><name>a</name><action>b</action></task>\n' * n,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_twice_the_text_takes_about_twice_the_calls(shape: str):
    small, large = (_calls(SHAPES[shape](n)) for n in (150, 300))
    assert large <= 2.4 * small


def _calls(text: str) -> int:
    """How many functions are called; unlike a time it is the same on every machine."""
    count = 0

    def see(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        del frame, argument
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        read_plan("PLAN.md", text)
    finally:
        sys.setprofile(before)
    return count
