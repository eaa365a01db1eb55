from __future__ import annotations

import pytest

from worker.code.documents.project import read_documents
from worker.code.documents.reading import read_document
from worker.code.documents.results import DocumentFacts


def read(text: str, path: str = "docs/notes.md") -> DocumentFacts:
    facts = read_document(path, text)
    assert facts is not None
    return facts


def test_headings_with_an_id_are_one_decision_each() -> None:
    text = (
        "# Design\n\n## D7: Use rows\n\n**Status:** Accepted\n\nBecause `a/b.py`.\n\n"
        "## D8 — Use columns\n\nSupersedes: D7\n\n### Why\n\nSpeed.\n\n## Other\n\nx\n"
    )
    assert [
        (d.id, d.title, d.status, d.supersedes, d.start_line, d.end_line) for d in read(text).decisions
    ] == [
        ("D7", "Use rows", "accepted", (), 3, 7),
        ("D8", "Use columns", "", ("D7",), 9, 15),
    ]
    assert [(r.kind, r.value) for r in read(text).decisions[0].applies_to] == [("path", "a/b.py")]


def test_one_in_a_list_supersedes_another() -> None:
    text = "# Decisions\n\n## D7: Use rows\n\nx\n\n## D8: Use columns\n\nSupersedes: D7\n"
    documents = read_documents({"docs/DECISIONS.md": text})
    assert [(e.source.id, e.relation, e.target.id) for e in documents.edges] == [("D8", "SUPERSEDES", "D7")]


def test_a_table_with_a_decision_column_is_one_decision_a_row() -> None:
    text = (
        "# Log\n\n| ID | Date | Decision | Status |\n|--|--|--|--|\n"
        "| D1 | 2026-01-01 | Use `x.py` | Accepted |\n"
        "| D2 | 2026-01-02 | Use rows \\| columns | Rejected |\n| D3 | | - | |\n"
    )
    assert [(d.id, d.title, d.date, d.status, d.start_line) for d in read(text).decisions] == [
        ("D1", "Use `x.py`", "2026-01-01", "accepted", 5),
        ("D2", "Use rows | columns", "2026-01-02", "rejected", 6),
    ]


def test_a_table_that_decides_nothing_is_none() -> None:
    assert read_document("docs/rules.md", "| Condition | Decision |\n|--|--|\n| rain | stay |\n") is None


def test_rows_of_an_index_are_none() -> None:
    text = "| ID | Decision | Status |\n|--|--|--|\n| 1 | [Rows](adr/0001-rows.md) | Accepted |\n"
    assert read_document("docs/records.md", text) is None


def test_bullets_of_a_decision_log() -> None:
    text = (
        "# Plan\n\n## Decision Log\n\n- Decision: Use rows.\n  Rationale: fast.\n"
        "  Date/Author: 2026-03-04 / Ann\n"
        "- Decision: Use one file / Rationale: small / Date/Author: 2026-03-05 / Bob\n"
        "- (2026-03-06 09:10Z) Chose the queue\n\n## Progress\n\n- [ ] Not a decision\n"
    )
    assert [(d.id, d.title, d.date, d.start_line, d.end_line) for d in read(text, "PLANS.md").decisions] == [
        ("", "Use rows.", "2026-03-04", 5, 7),
        ("", "Use one file", "2026-03-05", 8, 8),
        ("", "Chose the queue", "2026-03-06", 9, 9),
    ]


def test_a_bullets_title_is_its_first_sentence_and_its_text_all_of_it() -> None:
    decision = read("## Decisions\n\n- One pipeline. It is 1.5 times as fast.\n  Rejected: two.\n").decisions[
        0
    ]
    assert decision.title == "One pipeline."
    assert decision.text == "One pipeline. It is 1.5 times as fast.\nRejected: two."


def test_a_decision_without_an_id_is_named_by_a_digest_of_its_title() -> None:
    documents = read_documents({"PLANS.md": "## Decision Log\n\n- Use rows\n- Use rows\n"})
    assert [node.id for node in documents.nodes] == ["PLANS.md/d_65bc8e0ec0", "PLANS.md/d_65bc8e0ec0#2"]


def test_headings_below_a_list_of_decisions_are_one_each() -> None:
    text = (
        "# Design\n\n## Decisions\n\n### 1. Use Redis\n\nWhy.\n\n### Decision: Keep names\n\n"
        "ok\n\n## Risks\n\nx\n"
    )
    assert [
        (d.title, d.text, d.start_line, d.end_line)
        for d in read(text, "openspec/changes/x/design.md").decisions
    ] == [
        ("Use Redis", "Why.", 5, 7),
        ("Keep names", "ok", 9, 11),
    ]


def test_bold_ids_in_bullets_are_kept() -> None:
    text = "## Key decisions\n\n- **D1**: Use rows\n- **D2: Use columns** for speed\n"
    assert [(d.id, d.title) for d in read(text).decisions] == [
        ("D1", "Use rows"),
        ("D2", "Use columns for speed"),
    ]


def test_a_repeated_id_gets_a_suffix_and_a_note() -> None:
    facts = read("# Decisions\n\n## D1: A\n\nx\n\n## D1: B\n\ny\n")
    assert [d.id for d in facts.decisions] == ["D1", "D1#2"]
    assert [(n.code, n.line, n.detail) for n in facts.notes] == [("duplicate_id", 7, "D1")]


@pytest.mark.parametrize(
    "text",
    [
        "# Notes\n\nWe made decisions.\n\n- a\n",
        "```\n## Decisions\n- x\n```\n",
        "# Architecture Decision Records\n\n## Quick start\n\nx\n\n## News\n\ny\n",
        "# How we came to all our decisions\n\n## First\n\nx\n",
        "## What we think about decisions that others made\n\n- x\n",
        "## D1: the first day\n\nx\n",
        "- Decision: maybe\n",
        "> ## Decisions\n> - x\n",
    ],
)
def test_what_only_sounds_like_a_list_is_none(text: str) -> None:
    assert read_document("docs/notes.md", text) is None
