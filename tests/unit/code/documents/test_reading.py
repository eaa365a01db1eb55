from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from worker.code.documents.project import join_documents, read_documents
from worker.code.documents.reading import MAX_DOCUMENT_CHARS, read_document, takes
from worker.code.documents.results import facts_from_bytes, facts_to_bytes

PATHS = [
    "specs/001-a/spec.md",
    ".kiro/specs/a/requirements.md",
    ".kiro/specs/a/bugfix.md",
    "openspec/specs/a/spec.md",
    "openspec/changes/c/specs/a/spec.md",
    "docs/requirements.md",
    "docs/decisions.md",
    "adr/0001-a.md",
    "reqs/REQ001.yml",
    "reqs/.doorstop.yml",
    "docs/a.rst",
    "docs/a.sdoc",
]
PIECES = st.sampled_from(
    [
        *(
            "\n",
            "\n\n",
            "\r\n",
            "  ",
            "\t",
            "- ",
            "1. ",
            "> ",
            "# ",
            "## ",
            "### ",
            "#### ",
            "|",
            "\\|",
            "---\n",
            "```",
            "~~~\n",
        ),
        *(
            "**FR-001**",
            "**",
            "~~",
            "`",
            "FR-001..003",
            "Requirement 1",
            "Requirement: A",
            "Scenario: B",
            "User Story 1",
        ),
        *(
            "ADDED Requirements\n",
            "RENAMED Requirements\n",
            "FROM: ",
            "TO: ",
            "Status",
            ": ",
            "Superseded by ",
            "ADR-0001",
        ),
        *(
            "Decision Log\n",
            "Decision",
            "D7: ",
            "2026-01-31",
            "<!--",
            "-->",
            "[x] ",
            "[a](b.md)",
            "SHALL",
            "NOT",
            "Q: a → A: b",
        ),
        *(
            ".. req:: T\n",
            "   :id: X\n",
            "::\n",
            "[REQUIREMENT]\n",
            "UID: A\n",
            "STATEMENT: >>>\n",
            "<<<\n",
            "[[SECTION]]\n",
        ),
        *(
            "active: true\n",
            "level: 1.10\n",
            "links: [",
            "&a ",
            "*a",
            "text: |\n",
            "\0",
            "\ufeff",
            "\ud800",
            "\u2028",
            "\x0c",
            "é需",
        ),
        *(
            "| ID | Text | Decision |\n|--|--|--|\n",
            "| D1 | FR-1 | x |\n",
            "#2",
            "US1.1",
            "AC-1",
            "1.1 WHEN x\n",
            "{req}",
            "Glossary\n",
        ),
    ]
)
TEXTS = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=40).map("".join))


@settings(max_examples=400, deadline=None)
@given(path=st.sampled_from(PATHS), text=TEXTS)
@example(path="docs/a.sdoc", text="[A]\nUID:\n")
def test_any_text_gives_a_result_whose_lines_are_in_the_file(path: str, text: str) -> None:
    facts = read_document(path, text)
    if facts is None:
        return
    lines = text.replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1
    for one in (*facts.requirements, *facts.decisions):
        assert 1 <= one.start_line <= one.end_line <= lines
    assert all(1 <= note.line <= lines for note in facts.notes)
    ids = [requirement.id for requirement in facts.requirements]
    assert len(ids) == len(set(ids))
    assert all(literal.split("#")[0].split("/")[0].split(".")[0] for literal in ids)
    assert facts_from_bytes(facts_to_bytes(facts)) == facts
    documents = join_documents([facts])
    assert len({node.ref for node in documents.nodes}) == len(documents.nodes)


@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_what_was_read_once_is_read_again_the_same(text: str) -> None:
    for path in PATHS[:8]:
        assert read_document(path, text) == read_document(path, text)


SECTION = "\n\n# Weather\n\nRain is likely, and nothing follows from it.\n\n- sun\n"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "specs/001-a/spec.md",
            "# A\n\n### User Story 1 - X\n\n1. **Given** a\n\n- **FR-001**: System MUST a\n",
        ),
        (
            ".kiro/specs/a/requirements.md",
            "# R\n\n### Requirement 1\n\n#### Acceptance Criteria\n\n1. THE x SHALL\n",
        ),
        (
            "openspec/specs/a/spec.md",
            "# A\n\n### Requirement: R\n\nSHALL\n\n#### Scenario: S\n\n- **THEN** x\n",
        ),
        ("docs/reqs.md", "# A\n\n### REQ-1: x\n\ny\n\n| ID | Text |\n|--|--|\n| REQ-2 | z |\n"),
        ("docs/DECISIONS.md", "# A\n\n## D1: x\n\ny\n\n## D2: x\n\ny\n"),
    ],
)
def test_an_unrelated_section_changes_nothing_else(path: str, text: str) -> None:
    before, after = read_document(path, text), read_document(path, text + SECTION)
    assert before is not None
    assert after is not None
    assert replace(after, line_count=before.line_count) == before


def test_only_names_with_a_known_suffix_are_read() -> None:
    assert [takes(name) for name in ("a.md", "A.MD", "a.yml", "a.rst", "a.sdoc", "a.py", "md")] == [
        *(True, True, True, True, True, False, False)
    ]
    assert read_document("a.py", "- **REQ-1**: x\n") is None


def test_a_file_that_is_too_large_gives_an_empty_result_with_a_note() -> None:
    facts = read_document("specs/001-a/spec.md", "x" * (MAX_DOCUMENT_CHARS + 1))
    assert facts is not None
    assert (facts.requirements, [note.code for note in facts.notes]) == ((), ["unknown_format"])


@pytest.mark.parametrize("path", PATHS)
def test_an_empty_file_holds_nothing(path: str) -> None:
    facts = read_document(path, "")
    assert facts is None or (facts.requirements, facts.decisions) == ((), ())


def test_bad_characters_are_replaced_and_the_rest_is_read() -> None:
    facts = read_document("docs/r.md", "\ufeff- **REQ-1**: a\0b\ud800c\r\n- **REQ-2**: d\r- **REQ-3**: e\n")
    assert facts is not None
    assert [(r.id, r.text) for r in facts.requirements] == [
        ("REQ-1", "a\ufffdb\ufffdc"),
        ("REQ-2", "d"),
        ("REQ-3", "e"),
    ]


@pytest.mark.parametrize(
    ("path", "text", "count"),
    [
        ("docs/r.md", "".join(f"- **REQ-{n}**: x\n" for n in range(10_000)), 10_000),
        ("docs/r.md", "- **REQ-1**: x\n" * 10_000, 10_000),
        ("docs/r.md", "- **REQ-1**: " + "x " * 500_000, 1),
        ("docs/r.md", "".join(f"{'  ' * n}- **REQ-{n}**: x\n" for n in range(40)), 40),
        ("docs/r.md", "".join(f"{'  ' * n}- **REQ-{n}**: x\n" for n in range(500)), 99),
        ("docs/r.md", "> " * 5_000 + "x\n\n- **REQ-1**: x\n", 1),
        ("docs/r.md", "```x\n- **REQ-1**: a\n" * 3_000, 3_000),
        ("docs/r.md", "<!--\n- **REQ-1**: a\n" * 3_000, 3_000),
        ("docs/a.sdoc", "[REQ]\n" + "STATEMENT: >>>\n" * 20_000 + "UID: A\n", 1),
        ("reqs/R1.yml", "active: true\nlevel: 1\ntext: x\nlinks: " + "[" * 60_000, 0),
    ],
)
def test_hostile_sizes_end_in_bounded_time(path: str, text: str, count: int) -> None:
    documents = read_documents({path: text})
    assert sum(node.label == "Requirement" for node in documents.nodes) == count
