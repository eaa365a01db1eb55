from __future__ import annotations

from worker.code.documents.reading import read_document
from worker.code.documents.results import DocumentFacts

DOCUMENT = """[DOCUMENT]
TITLE: Rover

[GRAMMAR]
ELEMENTS:
- TAG: LOW_REQ
  FIELDS:
  - TITLE: UID
    TYPE: String
    REQUIRED: True

[[SECTION]]
UID: SEC-1
TITLE: Driving

[LOW_REQ]
UID: LLR-1
STATUS: Draft
TITLE: Stop
STATEMENT: >>>
The rover shall stop.

UID: this is text
<<<
RATIONALE: safety
RELATIONS:
- TYPE: Parent
  VALUE: HLR-1
- TYPE: Parent
  VALUE: HLR-2
- TYPE: File
  VALUE: src/stop.c

[REQUIREMENT]
TITLE: without an id
STATEMENT: no

[REQUIREMENT]
UID: name_only
STATEMENT: The rover SHOULD wait.

[[/SECTION]]
"""


def read(text: str) -> DocumentFacts:
    facts = read_document("docs/rover.sdoc", text)
    assert facts is not None
    return facts


def test_blocks_with_a_uid_are_requirements_whatever_their_tag() -> None:
    facts = read(DOCUMENT)
    assert (facts.spec_id, facts.title) == ("docs/rover.sdoc", "Rover")
    assert [(r.id, r.title, r.text, r.status, r.modality) for r in facts.requirements] == [
        ("LLR-1", "Stop", "The rover shall stop.\n\nUID: this is text", "draft", "must"),
        ("name_only", "The rover SHOULD wait.", "The rover SHOULD wait.", "", "should"),
    ]


def test_relations_give_the_parent_and_the_files() -> None:
    facts = read(DOCUMENT)
    assert facts.requirements[0].parent == "HLR-1"
    assert facts.requirements[0].properties == (("links", "HLR-1, HLR-2"),)
    assert [(link.requirement_id, link.path) for link in facts.links] == [("LLR-1", "src/stop.c")]
    assert (facts.requirements[0].start_line, facts.requirements[0].end_line) == (16, 32)


def test_a_text_that_nothing_closes_does_not_swallow_the_next_block() -> None:
    text = "[REQUIREMENT]\nUID: A\nSTATEMENT: >>>\nfoo\n\n[REQUIREMENT]\nUID: B\nSTATEMENT: bar\n"
    facts = read(text)
    assert [r.id for r in facts.requirements] == ["A", "B"]
    assert [(n.code, n.line) for n in facts.notes] == [("open_fence", 3)]


def test_a_composite_requirement_is_the_parent_of_those_in_it() -> None:
    text = (
        "[DOCUMENT]\nTITLE: T\n\n[[REQUIREMENT]]\nUID: A\n\n[REQUIREMENT]\nUID: B\n\n"
        "[[/REQUIREMENT]]\n\n[REQUIREMENT]\nUID: C\n"
    )
    assert [(r.id, r.parent) for r in read(text).requirements] == [("A", ""), ("B", "A"), ("C", "")]


def test_a_file_that_is_none_says_so() -> None:
    facts = read("hello\n")
    assert (facts.requirements, [n.code for n in facts.notes]) == ((), ["unknown_format"])
