from __future__ import annotations

from worker.code.documents.reading import read_document
from worker.code.documents.results import DocumentFacts

PATH = ".kiro/specs/billing/requirements.md"

BILLS = """# Requirements Document

## Introduction

Bills are kept.

## Glossary

- **Store**: keeps bills
1. WHEN in the glossary THEN it SHALL be no requirement

## Requirements

### Requirement 1: Storage

**User Story:** As a clerk, I want bills kept, so that I find them.

#### Acceptance Criteria

1. WHEN a bill arrives THEN THE Store SHALL keep it
   - with its number
2. IF it is broken THEN THE Store SHALL NOT keep it
AND SHALL say so

### Requirement 2

**User Story:** As an auditor, I want a log.

#### Acceptance Criteria

1. WHILE the audit runs THE Log SHALL grow
2. WHERE the region is EU THE Log SHOULD mask names
3. THE Log SHALL be readable
"""


def read(text: str, path: str = PATH) -> DocumentFacts:
    facts = read_document(path, text)
    assert facts is not None
    return facts


def ids(text: str, path: str = PATH) -> list[str]:
    return [requirement.id for requirement in read(text, path).requirements]


def test_a_criterion_is_named_by_its_requirement_and_the_printed_number() -> None:
    assert ids(BILLS) == ["1", "1.1", "1.2", "2", "2.1", "2.2", "2.3"]


def test_criteria_are_parts_of_their_requirement() -> None:
    assert [(r.id, r.kind, r.parent) for r in read(BILLS).requirements[:3]] == [
        ("1", "requirement", ""),
        ("1.1", "criterion", "1"),
        ("1.2", "criterion", "1"),
    ]


def test_a_requirements_text_is_its_user_story_and_a_criterions_its_lines() -> None:
    first, criterion, *_ = read(BILLS).requirements
    assert first.title == "Storage"
    assert first.text == "**User Story:** As a clerk, I want bills kept, so that I find them."
    assert (first.start_line, first.end_line) == (14, 23)
    assert criterion.text == "WHEN a bill arrives THEN THE Store SHALL keep it\n- with its number"
    assert (criterion.start_line, criterion.end_line) == (20, 21)


def test_each_criterion_has_its_ears_pattern_and_its_modality() -> None:
    found = {
        r.id: (dict(r.properties).get("pattern"), r.modality, r.negated) for r in read(BILLS).requirements
    }
    assert found["1.1"] == ("event", "must", False)
    assert found["2.1"] == ("state", "must", False)
    assert found["2.2"] == ("feature", "should", False)
    assert found["2.3"] == ("ubiquitous", "must", False)
    assert found["1.2"][0] == "unwanted"


def test_shall_not_is_negated() -> None:
    text = "### Requirement 1\n\n#### Acceptance Criteria\n\n1. THE Store SHALL NOT forget\n"
    criterion = read(text).requirements[1]
    assert (criterion.modality, criterion.negated) == ("must", True)


def test_the_specification_is_the_folder_and_a_forms_own_title_names_nothing() -> None:
    facts = read(BILLS)
    assert (facts.format, facts.spec_id, facts.title) == ("kiro", ".kiro/specs/billing", "")
    assert facts.summary == "Bills are kept."


def test_localised_headings_are_read() -> None:
    text = (
        "# 需求\n\n### 需求 1\n\n**用户故事:** 我\n\n#### 验收标准\n\n1. WHEN 甲 THEN 系统 SHALL 乙\n"
        "2. 系统 SHALL 丙\n"
    )
    assert ids(text) == ["1", "1.1", "1.2"]


def test_headings_of_an_unknown_language_are_read_by_their_number() -> None:
    text = (
        "### Mahitaji 1: Hifadhi\n\n#### Vigezo\n\n1. THE Store SHALL keep\n\n"
        "### Mahitaji 2\n\n1. THE Log SHALL grow\n"
    )
    assert ids(text) == ["1", "1.1", "2", "2.1"]


def test_lists_outside_the_acceptance_section_are_no_criteria() -> None:
    text = (
        "### Requirement 3: X\n\n1. first think\n\n#### Acceptance Criteria\n\n1. THE X SHALL be\n\n"
        "#### Notes\n\n1. a remark\n"
    )
    assert ids(text) == ["3", "3.1"]


def test_a_label_in_bold_stands_for_the_heading() -> None:
    text = "### Requirement 4\n\n**Acceptance Criteria:**\n\n1. THE X SHALL be\n2. THE Y SHALL be\n"
    facts = read(text)
    assert [r.id for r in facts.requirements] == ["4", "4.1", "4.2"]
    assert facts.requirements[0].text == ""


def test_a_printed_number_that_comes_twice_gets_a_suffix_and_a_note() -> None:
    text = "### Requirement 1\n\n#### Acceptance Criteria\n\n1. THE X SHALL a\n\ntext\n\n1. THE X SHALL b\n"
    facts = read(text)
    assert [r.id for r in facts.requirements] == ["1", "1.1", "1.1#2"]
    assert [(n.code, n.line, n.detail) for n in facts.notes] == [("duplicate_id", 9, "1.1")]


def test_numbers_keep_their_gaps() -> None:
    text = "### Requirement 7\n\n#### Acceptance Criteria\n\n3. THE X SHALL a\n5. THE X SHALL b\n"
    # Ordered lists count on from their first number: Markdown shows 3 and 4, the file says 3 and 5.
    assert ids(text) == ["7", "7.3", "7.5"]


def test_a_fence_hides_its_headings() -> None:
    text = (
        "````\n### Requirement 9\n```\n1. THE X SHALL a\n```\n````\n### Requirement 1\n\n1. THE X SHALL b\n"
    )
    assert ids(text) == ["1", "1.1"]


def test_a_fence_that_nothing_closes_hides_nothing() -> None:
    text = "### Requirement 1\n\n1. THE X SHALL a\n\n```\n\n### Requirement 2\n\n1. THE X SHALL b\n"
    facts = read(text)
    assert [r.id for r in facts.requirements] == ["1", "1.1", "2", "2.1"]
    assert [(n.code, n.line) for n in facts.notes] == [("open_fence", 5)]


def test_bug_fix_documents_have_a_requirement_for_each_group() -> None:
    text = (
        "# Bugfix Requirements Document\n\n## Bug Analysis\n\n### Current Behavior (Defect)\n\n"
        "1.1 WHEN x THEN the system crashes\n1.2 WHEN y THEN the system hangs\n\n"
        "### Expected Behavior (Correct)\n\n2.1 WHEN x THEN the system SHALL answer\n\n"
        "### Unchanged Behavior (Regression Prevention)\n\n"
        "3.1 WHEN z THEN the system SHALL CONTINUE TO answer\n"
    )
    facts = read(text, ".kiro/specs/crash/bugfix.md")
    assert [(r.id, r.parent, r.start_line) for r in facts.requirements] == [
        ("1", "", 5),
        ("1.1", "1", 7),
        ("1.2", "1", 8),
        ("2", "", 10),
        ("2.1", "2", 12),
        ("3", "", 14),
        ("3.1", "3", 16),
    ]
    assert facts.requirements[3].title == "Expected Behavior (Correct)"
    assert facts.requirements[4].modality == "must"


def test_a_document_without_numbered_requirements_says_so() -> None:
    facts = read("# Requirements Document\n\nTo be written.\n")
    assert facts.requirements == ()
    assert [n.code for n in facts.notes] == ["unknown_format"]


def test_an_empty_document_is_a_result() -> None:
    assert read("").requirements == ()


def test_a_subfolder_of_finished_specifications_is_read_too() -> None:
    facts = read(BILLS, ".kiro/specs/_completed_/billing/requirements.md")
    assert facts.spec_id == ".kiro/specs/_completed_/billing"
