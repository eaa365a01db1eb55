from __future__ import annotations

from worker.code.documents.project import read_documents
from worker.code.documents.reading import read_document
from worker.code.documents.references import resolve_references
from worker.code.documents.results import DocumentFacts
from worker.graph.model import Edge, Node, NodeRef

ITEM = """active: true
derived: false
header: |
  Greeting
level: 1.10
links:
- REQ003: 35ed54323e3054c33ae5545fffdbbbf5
- REQ004
normative: true
ref: ''
references:
- path: src/greet.py
  type: file
reviewed: null
text: |
  The system shall greet.

  Politely.
"""


def read(path: str, text: str) -> DocumentFacts:
    facts = read_document(path, text)
    assert facts is not None
    return facts


def test_the_file_name_is_the_id_and_levels_are_text() -> None:
    facts = read("reqs/REQ001.yml", ITEM)
    requirement = facts.requirements[0]
    assert (facts.format, facts.spec_id) == ("doorstop", "reqs")
    assert (requirement.id, requirement.title, requirement.parent) == ("REQ001", "Greeting", "REQ003")
    assert requirement.text == "The system shall greet.\n\nPolitely."
    assert (requirement.modality, requirement.status) == ("must", "")
    assert dict(requirement.properties) == {
        "level": "1.10",
        "links": "REQ003, REQ004",
        "normative": "true",
        "derived": "false",
    }


def test_a_quoted_level_is_the_same_text() -> None:
    facts = read("reqs/REQ001.yml", ITEM.replace("1.10", "'2.10'"))
    assert dict(facts.requirements[0].properties)["level"] == "2.10"


def test_an_inactive_item_is_withdrawn() -> None:
    assert (
        read("reqs/REQ001.yml", ITEM.replace("active: true", "active: false")).requirements[0].status
        == "withdrawn"
    )


def test_an_item_in_markdown_has_its_fields_in_front_matter() -> None:
    text = (
        "---\nactive: true\nderived: false\nlevel: 1.10\nlinks: []\nnormative: true\n"
        "reviewed: x\n---\n# Greet\n\nThe system MUST greet.\n"
    )
    facts = read("reqs/REQ-greet.md", text)
    requirement = facts.requirements[0]
    assert (requirement.id, requirement.title, requirement.text) == (
        "REQ-greet",
        "Greet",
        "The system MUST greet.",
    )
    assert dict(requirement.properties)["level"] == "1.10"


def test_the_settings_of_a_folder_name_the_specification() -> None:
    documents = read_documents(
        {"reqs/.doorstop.yml": "settings:\n  digits: 3\n  prefix: REQ\n  sep: ''\n", "reqs/REQ001.yml": ITEM}
    )
    spec = next(node for node in documents.nodes if node.label == "Spec")
    assert (spec.id, spec.name, spec.path) == ("reqs", "REQ", "reqs/.doorstop.yml")


def test_a_file_that_an_item_names_traces_to_it() -> None:
    documents = read_documents({"reqs/REQ001.yml": ITEM})
    resolved = resolve_references(documents, [Node(label="File", id="src/greet.py")])
    assert resolved.edges == (
        Edge(NodeRef("File", "src/greet.py"), "TRACES_TO", NodeRef("RequirementItem", "REQ001")),
    )


def test_other_yaml_is_passed_over() -> None:
    assert read_document("ci.yml", "on: push\njobs:\n  active: x\n") is None
    assert read_document("x.yml", "level: 1\nname: x\n") is None
    assert read_document("x.yml", "active: [1, 2\nlevel: {") is None
    assert read_document("x.yml", "") is None
    assert read_document("x.yml", "level: " + "[" * 100_000) is None


def test_an_alias_bomb_stays_small() -> None:
    bomb = "level: &a [x, x, x, x, x, x, x, x, x, x]\nactive: true\nderived: false\n"
    bomb += "".join(
        f"k{n}: &{chr(98 + n)} [{', '.join('*' + chr(97 + n) for _ in range(10))}]\n" for n in range(12)
    )
    facts = read("reqs/R1.yml", bomb)
    assert facts.requirements[0].properties == (("derived", "false"),)
    assert [n.code for n in facts.notes] == ["unknown_format"]
