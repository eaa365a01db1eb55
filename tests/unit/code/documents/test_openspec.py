from __future__ import annotations

from worker.code.documents.project import read_documents
from worker.code.documents.reading import read_document
from worker.code.documents.results import DocumentFacts
from worker.graph.model import NodeRef

TRUTH = """# pay Specification

## Purpose

Money moves.

## Requirements

### Requirement: Charge a card

The system SHALL charge the card.

#### Scenario: Valid card

- **WHEN** the card is valid
- **THEN** it is charged

#### Scenario: Expired card

- **GIVEN** an expired card
- **THEN** it MUST NOT be charged

### Requirement: REQ-PAY-4 — Refund

The system MUST refund.
"""

DELTA = """# Delta

## ADDED Requirements

### Requirement: Split a payment

The system SHALL split.

### Scenario: Two cards

- **WHEN** two cards
- **THEN** two charges

## MODIFIED Requirements

### Requirement: Charge a card

The system SHALL charge the card once.

#### Scenario: Valid card

- **THEN** it is charged once

## REMOVED Requirements

### Requirement: REQ-PAY-4 — Refund

**Reason**: moved
**Migration**: use the desk

## RENAMED Requirements

- FROM: `### Requirement: Charge a card`
- TO: `### Requirement: Charge any card`
"""

TRUTH_PATH = "openspec/specs/pay/spec.md"
DELTA_PATH = "openspec/changes/add-split/specs/pay/spec.md"


def read(text: str, path: str = TRUTH_PATH) -> DocumentFacts:
    facts = read_document(path, text)
    assert facts is not None
    return facts


def test_a_requirement_is_its_name_and_an_id_inside_an_alias() -> None:
    facts = read(TRUTH)
    assert [(r.id, r.kind, r.parent, r.aliases) for r in facts.requirements] == [
        ("Charge a card", "requirement", "", ()),
        ("Charge a card/Valid card", "scenario", "Charge a card", ()),
        ("Charge a card/Expired card", "scenario", "Charge a card", ()),
        ("REQ-PAY-4 — Refund", "requirement", "", ("REQ-PAY-4",)),
    ]


def test_the_first_paragraph_is_the_text_and_says_how_binding_it_is() -> None:
    charge, valid, expired, _ = read(TRUTH).requirements
    assert (charge.text, charge.modality) == ("The system SHALL charge the card.", "must")
    assert (charge.start_line, charge.end_line) == (9, 21)
    assert valid.text == "- **WHEN** the card is valid\n- **THEN** it is charged"
    assert (valid.modality, expired.modality, expired.negated) == ("none", "must", True)


def test_the_specification_is_the_folder_and_its_purpose_its_summary() -> None:
    facts = read(TRUTH)
    assert (facts.spec_id, facts.title, facts.summary) == (
        "openspec/specs/pay",
        "pay Specification",
        "Money moves.",
    )


def test_a_delta_says_what_changes() -> None:
    assert [(r.id, r.change, r.renamed_from) for r in read(DELTA, DELTA_PATH).requirements] == [
        ("Split a payment", "added", ""),
        ("Split a payment/Two cards", "added", ""),
        ("Charge a card", "modified", ""),
        ("Charge a card/Valid card", "modified", ""),
        ("REQ-PAY-4 — Refund", "removed", ""),
        ("Charge any card", "renamed", "Charge a card"),
    ]


def test_a_removed_requirement_has_its_reason() -> None:
    removed = next(r for r in read(DELTA, DELTA_PATH).requirements if r.change == "removed")
    assert removed.text == "**Reason**: moved\n**Migration**: use the desk"


def test_removals_in_a_list_are_read() -> None:
    text = "## REMOVED Requirements\n\n- `### Requirement: Old`\n- `### Requirement: Older`\n"
    assert [(r.id, r.change) for r in read(text, DELTA_PATH).requirements] == [
        ("Old", "removed"),
        ("Older", "removed"),
    ]


def test_a_scenario_one_level_up_belongs_to_the_requirement_above() -> None:
    scenario = next(r for r in read(DELTA, DELTA_PATH).requirements if r.kind == "scenario")
    assert (scenario.id, scenario.parent) == ("Split a payment/Two cards", "Split a payment")
    added = read(DELTA, DELTA_PATH).requirements[0]
    assert (added.text, added.start_line, added.end_line) == ("The system SHALL split.", 5, 12)


def test_a_requirement_heading_one_level_up_is_read() -> None:
    text = "# X\n\n## Requirement: High\n\nIt SHALL be.\n\n### Scenario: S\n\n- **THEN** x\n"
    assert [r.id for r in read(text).requirements] == ["High", "High/S"]


def test_headings_inside_fences_are_documentation() -> None:
    text = (
        "## Requirements\n\n```markdown\n### Requirement: Sample\n```\n\n### Requirement: Real\n\nIt SHALL.\n"
    )
    assert [r.id for r in read(text).requirements] == ["Real"]


def test_names_are_case_sensitive() -> None:
    text = "### Requirement: Login\n\nSHALL a\n\n### Requirement: login\n\nSHALL b\n"
    facts = read(text)
    assert ([r.id for r in facts.requirements], facts.notes) == (["Login", "login"], ())


def test_an_open_change_leaves_the_names_of_what_holds_today() -> None:
    documents = read_documents({TRUTH_PATH: TRUTH, DELTA_PATH: DELTA})
    requirements = [node for node in documents.nodes if node.label == "Requirement"]
    assert [node.id for node in requirements] == [
        "Charge a card",
        "REQ-PAY-4 — Refund",
        "Split a payment",
        "openspec/changes/add-split/specs/pay/Charge a card",
        "openspec/changes/add-split/specs/pay/Charge any card",
        "openspec/changes/add-split/specs/pay/REQ-PAY-4 — Refund",
    ]
    assert requirements[0].text == "The system SHALL charge the card."
    assert requirements[3].text == "The system SHALL charge the card once."
    assert requirements[3].property("change") == "modified"
    assert documents.items_for("REQ-PAY-4") == ("REQ-PAY-4 — Refund",)
    assert documents.requirements_for("Charge a card") == (NodeRef("Requirement", "Charge a card"),)


def test_a_change_to_what_is_not_there_is_noted() -> None:
    documents = read_documents({DELTA_PATH: DELTA})
    assert [(n.code, n.detail) for n in documents.notes] == [
        ("dangling_link", "Charge a card"),
        ("dangling_link", "REQ-PAY-4 — Refund"),
        ("dangling_link", "Charge a card"),
    ]
    assert documents.items_for("Charge a card") == ("Charge a card/Valid card",)


def test_archived_changes_are_history_and_give_no_nodes() -> None:
    path = "openspec/changes/archive/2026-01-31-add-split/specs/pay/spec.md"
    assert read(DELTA, path).is_archived
    documents = read_documents({TRUTH_PATH: TRUTH, path: DELTA})
    assert documents.paths == (path, TRUTH_PATH)
    assert [node.id for node in documents.nodes if node.label == "Spec"] == ["openspec/specs/pay"]


def test_a_project_inside_a_larger_tree_is_found() -> None:
    truth = f"apps/shop/{TRUTH_PATH}"
    documents = read_documents({truth: TRUTH, f"apps/shop/{DELTA_PATH}": DELTA})
    assert documents.notes == ()
    assert documents.requirements_for("Charge a card") == (NodeRef("Requirement", "Charge a card"),)
