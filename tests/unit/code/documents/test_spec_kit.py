from __future__ import annotations

import pytest

from worker.code.documents.reading import read_document
from worker.code.documents.results import DocumentFacts

PATH = "specs/001-export/spec.md"

EXPORT = """# Feature Specification: Export

**Feature Branch**: `001-export`
**Status**: Draft

## User Scenarios & Testing

### User Story 1 - Export a report (Priority: P1)

As a user I export.

**Why this priority**: needed.

**Acceptance Scenarios**:

1. **Given** a report, **When** I export, **Then** a file is there
2. **Given** no report, **When** I export, **Then** I am told

### User Story 2 - Share (Priority: P2)

As a user I share.

**Acceptance Scenarios**:

1. **Given** a file, **When** I share, **Then** it is seen

## Requirements

### Functional Requirements

- **FR-001**: System MUST export [NEEDS CLARIFICATION: which formats?]
- **FR-002**: System MUST NOT keep copies
- ~~**FR-003**: System MUST print~~ — **Deferred to v2**
- **FR-003a**: System MAY preview

| ID | Requirement | Priority |
|----|-------------|----------|
| FR-04 | System SHOULD take `a \\| b` | P0 |

## Success Criteria

- **SC-001**: 90 % of exports in 1 s

## Clarifications

### Session 2026-01-31

- Q: Which formats? → A: CSV alone
- Q: Where is it kept? → A: nowhere
"""


def read(text: str, path: str = PATH) -> DocumentFacts:
    facts = read_document(path, text)
    assert facts is not None
    return facts


def test_stories_scenarios_requirements_and_measures_are_found_in_order() -> None:
    assert [(r.id, r.kind, r.parent) for r in read(EXPORT).requirements] == [
        ("US1", "story", ""),
        ("US1.1", "scenario", "US1"),
        ("US1.2", "scenario", "US1"),
        ("US2", "story", ""),
        ("US2.1", "scenario", "US2"),
        ("FR-001", "requirement", ""),
        ("FR-002", "requirement", ""),
        ("FR-003", "requirement", ""),
        ("FR-003a", "requirement", ""),
        ("FR-04", "requirement", ""),
        ("SC-001", "success", ""),
    ]


def test_the_specification_is_the_folder_with_its_title_and_status() -> None:
    facts = read(EXPORT)
    assert (facts.format, facts.spec_id, facts.title, facts.status) == (
        "spec_kit",
        "specs/001-export",
        "Export",
        "Draft",
    )


def test_a_story_has_its_title_priority_and_words() -> None:
    story = read(EXPORT).requirements[0]
    assert story.title == "Export a report"
    assert story.properties == (("priority", "P1"),)
    assert story.text == "As a user I export.\n\n**Why this priority**: needed."
    assert (story.start_line, story.end_line) == (8, 17)


def test_modality_and_negation_are_read() -> None:
    found = {r.id: (r.modality, r.negated) for r in read(EXPORT).requirements}
    assert found["FR-001"] == ("must", False)
    assert found["FR-002"] == ("must", True)
    assert found["FR-003a"] == ("may", False)
    assert found["FR-04"] == ("should", False)
    assert found["SC-001"] == ("none", False)


def test_a_deferred_requirement_can_still_be_cited() -> None:
    requirement = next(r for r in read(EXPORT).requirements if r.id == "FR-003")
    assert requirement.status == "deferred"
    assert requirement.text == "System MUST print — **Deferred to v2**"


def test_an_escaped_bar_stays_in_its_cell() -> None:
    requirement = next(r for r in read(EXPORT).requirements if r.id == "FR-04")
    assert requirement.text == "System SHOULD take `a | b`"
    assert (requirement.start_line, requirement.end_line) == (38, 38)


def test_a_need_for_clarification_is_a_note() -> None:
    assert [(n.code, n.line, n.detail) for n in read(EXPORT).notes] == [
        ("open_question", 31, "FR-001: which formats?")
    ]


def test_clarifications_are_decisions_of_their_session() -> None:
    assert [(d.title, d.text, d.date, d.status, d.applies_to_spec) for d in read(EXPORT).decisions] == [
        ("Which formats?", "Which formats? → CSV alone", "2026-01-31", "accepted", True),
        ("Where is it kept?", "Where is it kept? → nowhere", "2026-01-31", "accepted", True),
    ]


@pytest.mark.parametrize(
    ("heading", "title"),
    [
        ("### 用户故事 1 - 导出报告（优先级: P1）", "导出报告"),
        ("### ユーザーストーリー 1 - 出力する (優先度: P1)", "出力する"),
        ("### Historia de Usuario 1 - Exportar (Prioridad: P1)", "Exportar"),
        ("### User Story 1: Export", "Export"),
    ],
)
def test_stories_are_found_in_other_languages(heading: str, title: str) -> None:
    facts = read(f"# X\n\n{heading}\n\nText.\n\n1. **假设** 甲 **当** 乙 **那么** 丙\n")
    assert [(r.id, r.title) for r in facts.requirements if r.kind == "story"] == [("US1", title)]
    assert [r.id for r in facts.requirements if r.kind == "scenario"] == ["US1.1"]


def test_a_repeated_id_keeps_its_second_place_and_the_first_its_name() -> None:
    facts = read("- **FR-001**: System MUST a\n- **FR-001**: System MUST b\n- **FR-001**: System MUST c\n")
    assert [(r.id, r.text) for r in facts.requirements] == [
        ("FR-001", "System MUST a"),
        ("FR-001#2", "System MUST b"),
        ("FR-001#3", "System MUST c"),
    ]
    assert [(n.code, n.line) for n in facts.notes] == [("duplicate_id", 2), ("duplicate_id", 3)]


def test_a_repeated_story_keeps_its_own_scenarios() -> None:
    story = "### User Story 1 - {}\n\n1. **Given** {}, **Then** x\n\n"
    facts = read(story.format("A", "a") + story.format("B", "b"))
    assert [(r.id, r.parent) for r in facts.requirements] == [
        ("US1", ""),
        ("US1.1", "US1"),
        ("US1#2", ""),
        ("US1.1#2", "US1#2"),
    ]


def test_hidden_and_quoted_samples_define_nothing_and_details_hide_nothing() -> None:
    text = (
        "<!-- - **FR-001**: sample\n\n- **FR-002**: sample -->\n\n> - **FR-003**: quoted\n\n"
        "```\n- **FR-004**: fenced\n```\n\n"
        "<details>\n<summary>More</summary>\n\n- **FR-005**: System MUST x\n\n</details>\n"
    )
    assert [r.id for r in read(text).requirements] == ["FR-005"]


def test_windows_line_ends_a_byte_order_mark_and_front_matter_change_nothing() -> None:
    text = "---\nfeature: x\n---\n" + EXPORT
    marked = "\ufeff" + text.replace("\n", "\r\n")
    assert read(marked) == read(text)
    assert [r.id for r in read(text).requirements] == [r.id for r in read(EXPORT).requirements]


def test_ids_without_bold_define_in_a_specification() -> None:
    assert [r.id for r in read("- FR-001: System MUST a\n- see FR-002: not this\n").requirements] == [
        "FR-001"
    ]


def test_a_specification_elsewhere_is_known_by_what_it_says() -> None:
    facts = read("# F\n\n**Feature Branch**: `x`\n\n- **FR-001**: System MUST a\n", "features/x/spec.md")
    assert (facts.format, facts.spec_id) == ("spec_kit", "features/x")


@pytest.mark.parametrize("name", ["plan.md", "research.md", "checklists/requirements.md", "tasks.md"])
def test_the_other_files_of_a_specification_define_no_requirements(name: str) -> None:
    assert read_document(f"specs/001-export/{name}", "- **FR-001**: covered by the writer\n") is None
