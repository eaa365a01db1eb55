from __future__ import annotations

import pytest

from worker.code.documents.reading import read_document
from worker.code.documents.results import DocumentFacts

PATH = "docs/requirements.md"


def read(text: str, path: str = PATH) -> DocumentFacts:
    facts = read_document(path, text)
    assert facts is not None
    return facts


@pytest.mark.parametrize(
    ("text", "literal", "wording"),
    [
        ("- **REQ-AUTH-001**: The system MUST ask\n", "REQ-AUTH-001", "The system MUST ask"),
        ("- **REQ-AUTH-001:** The system MUST ask\n", "REQ-AUTH-001", "The system MUST ask"),
        ("- **REQ-1 — Ask** first\n", "REQ-1", "Ask first"),
        ("* __REQ-1__ The system asks\n", "REQ-1", "The system asks"),
        ("1. **REQ-1a**: ask\n", "REQ-1a", "ask"),
        ("**REQ-1**: The system asks\n", "REQ-1", "The system asks"),
        ("### REQ-2: Title\n\nThe system asks\n", "REQ-2", "The system asks"),
        ("### REQ-2\n\nThe system asks\n", "REQ-2", "The system asks"),
        ("### REQ-2 Title alone\n", "REQ-2", "Title alone"),
        ("| ID | Text |\n|--|--|\n| REQ-123 | ask |\n", "REQ-123", "ask"),
        ("| **ID** | Description |\n|--|--|\n| **REQ-123** | ask |\n", "REQ-123", "ask"),
        ("| # | ID | 描述 |\n|--|--|--|\n| 1 | `REQ-1` | 系统应询问 |\n", "REQ-1", "系统应询问"),
        (
            "| Kod | Opis wymagania |\n|--|--|\n| REQ-1 | system pyta o nazwę zawsze |\n",
            "REQ-1",
            "system pyta o nazwę zawsze",
        ),
    ],
)
def test_a_definition_is_found(text: str, literal: str, wording: str) -> None:
    assert [(r.id, r.text) for r in read(text).requirements] == [(literal, wording)]


@pytest.mark.parametrize(
    "text",
    [
        "See REQ-1 and REQ-2.\n",
        "- **REQ-1**, **REQ-2**: both\n",
        "- **REQ-1** and **REQ-2** hold\n",
        "- **REQ-1** through **REQ-4**\n",
        "- **REQ-1**–**REQ-4**: all\n",
        "- **REQ-1** → `a.py`\n",
        "- REQ-1: not bold\n",
        "| Requirement | Test |\n|--|--|\n| REQ-1 | test_a |\n",
        "| REQ | Code | Status |\n|--|--|--|\n| REQ-1 | `src/a.py` | done |\n",
        "- **ISO-8601**: dates\n- **UTF-8**: text\n",
        "### ADR-1: Use rows\n",
        "- **BUG-12**: fixed\n",
        "> - **REQ-1**: quoted\n",
        "<!-- **REQ-1**: hidden -->\n",
        "```\n### REQ-1: sample\n```\n",
        "    **REQ-1**: indented sample\n",
        "- **req-1**: no capitals\n",
    ],
)
def test_a_mention_is_no_definition(text: str) -> None:
    facts = read_document(PATH, text)
    assert facts is None or facts.requirements == ()


def test_a_heading_defines_and_rows_and_bold_mentions_of_its_id_refer() -> None:
    text = (
        "# Spec\n\n| ID | Title |\n|--|--|\n| REQ-1 | First one |\n| REQ-2 | Second one |\n\n"
        "### REQ-1: First\n\nIt MUST.\n\n## Tracing\n\n- **REQ-1**: covered by test_a\n"
    )
    facts = read(text)
    assert [(r.id, r.start_line, r.title) for r in facts.requirements] == [
        ("REQ-2", 6, "Second one"),
        ("REQ-1", 8, "First"),
    ]
    assert facts.notes == ()


def test_a_criterion_belongs_to_the_requirement_in_its_id_or_above_it() -> None:
    text = (
        "### REQ-005: Pay\n\nMUST pay.\n\n- **REQ-005.AC-05**: paid\n- **AC-06**: receipt\n\n"
        "### REQ-006: Other\n\n- **AC-07**: x\n\n## Notes\n\n- **AC-08**: of none\n"
    )
    assert [(r.id, r.kind, r.parent) for r in read(text).requirements] == [
        ("REQ-005", "requirement", ""),
        ("REQ-005.AC-05", "criterion", "REQ-005"),
        ("AC-06", "criterion", "REQ-005"),
        ("REQ-006", "requirement", ""),
        ("AC-07", "criterion", "REQ-006"),
        ("AC-08", "criterion", ""),
    ]


def test_a_criterion_in_the_item_of_a_requirement_is_its_part_and_no_line_counts_twice() -> None:
    text = "- **REQ-1**:\n  pays\n  - **AC-1**: on time\n  - in full\n- **AC-2**: of none\n"
    assert [(r.id, r.parent, r.text) for r in read(text).requirements] == [
        ("REQ-1", "", "pays\n- in full"),
        ("AC-1", "REQ-1", "on time"),
        ("AC-2", "", "of none"),
    ]


def test_a_headings_text_leaves_out_what_others_define_in_it() -> None:
    text = "### REQ-1: A\n\nBefore.\n\n- **AC-1**: x\n  more\n\nAfter.\n\n#### REQ-2: B\n\nInner.\n"
    found = {r.id: (r.text, r.start_line, r.end_line) for r in read(text).requirements}
    assert found == {
        "REQ-1": ("Before.\n\n\nAfter.", 1, 8),
        "AC-1": ("x\nmore", 5, 6),
        "REQ-2": ("Inner.", 10, 12),
    }


@pytest.mark.parametrize(
    ("line", "status", "notes"),
    [
        ("- [x] **AUTH-01**: ask", "done", []),
        ("- [X] **AUTH-01**: ask", "done", []),
        ("- [ ] **AUTH-01**: ask", "pending", []),
        ("- [ ] **AUTH-01**: ask — DEFERRED", "deferred", []),
        ("- [x] **AUTH-01**: ask (SKIPPED: no certificate)", "skipped", []),
        ("- [x] ~~**AUTH-01**: ask~~", "skipped", []),
        ("- [-] **AUTH-01**: ask", "skipped", ["mark_guess"]),
        ("- [~] **AUTH-01**: ask", "active", ["mark_guess"]),
        ("- [/] **AUTH-01**: ask", "active", []),
        ("- [!] **AUTH-01**: ask", "blocked", []),
        ("- **AUTH-01**: show removed - deferred items too", "", []),
        ("- **AUTH-01**: ask", "", []),
    ],
)
def test_the_status_is_read_from_words_before_marks(line: str, status: str, notes: list[str]) -> None:
    facts = read(line + "\n")
    assert (facts.requirements[0].status, [n.code for n in facts.notes]) == (status, notes)


def test_the_status_column_is_read_and_unknown_words_stay_as_they_are() -> None:
    text = (
        "| ID | Text | Status |\n|--|--|--|\n| REQ-1 | one | ✅ Complete |\n| REQ-2 | two | In-Progress |\n"
        "| REQ-3 | three | 已完成 |\n| REQ-4 | four | waits for legal |\n| REQ-5 | five | ❌ |\n"
    )
    assert [r.status for r in read(text).requirements] == [
        "done",
        "active",
        "done",
        "waits for legal",
        "blocked",
    ]


def test_a_sign_in_a_sentence_is_content() -> None:
    assert read("- **REQ-1**: show ❌ in front of closed shops\n").requirements[0].status == ""


def test_a_status_line_below_a_heading_counts() -> None:
    assert read("### REQ-2: T\n\n**Status:** Done\n\nText.\n").requirements[0].status == "done"


def test_the_second_of_an_id_gets_a_suffix_and_a_note() -> None:
    facts = read("- **REQ-1**: a\n- **REQ-1**: b\n")
    assert [(r.id, r.text) for r in facts.requirements] == [("REQ-1", "a"), ("REQ-1#2", "b")]
    assert [(n.code, n.line, n.detail) for n in facts.notes] == [("duplicate_id", 2, "REQ-1")]


def test_ids_never_fold() -> None:
    assert [r.id for r in read("- **REQ-1**: a\n- **REQ-01**: b\n- **REQ-1a**: c\n").requirements] == [
        "REQ-1",
        "REQ-01",
        "REQ-1a",
    ]


def test_two_definitions_in_one_paragraph_are_two() -> None:
    assert [
        (r.id, r.text, r.start_line) for r in read("Intro\n**REQ-1**: a\nmore\n**REQ-2**: b\n").requirements
    ] == [
        ("REQ-1", "a\nmore", 2),
        ("REQ-2", "b", 4),
    ]


def test_the_specification_is_the_file() -> None:
    facts = read("# Rules\n\nWhat must hold.\n\n- **REQ-1**: a\n")
    assert (facts.format, facts.spec_id, facts.title, facts.summary) == (
        "markdown",
        PATH,
        "Rules",
        "What must hold.",
    )


@pytest.mark.parametrize("path", ["CHANGELOG.md", "TODO.md", "docs/plan.md", "openspec/changes/x/tasks.md"])
def test_change_logs_and_plans_define_nothing(path: str) -> None:
    assert read_document(path, "- **REQ-1**: a\n") is None


def test_a_rule_below_a_paragraph_makes_no_heading_of_it() -> None:
    assert [r.id for r in read("**REQ-1**: a\n---\n**REQ-2**: b\n").requirements] == ["REQ-1", "REQ-2"]
