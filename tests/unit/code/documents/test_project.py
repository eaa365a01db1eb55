from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.graph import RELATION_RULE_OF
from worker.code.documents.project import join_documents, read_documents
from worker.code.documents.reading import read_document
from worker.code.documents.references import resolve_references
from worker.code.documents.results import facts_from_bytes, facts_to_bytes
from worker.graph.model import Edge, Node, NodeRef, Resolution

KIRO = "### Requirement 1: {}\n\n#### Acceptance Criteria\n\n1. THE x SHALL a\n2. THE x SHALL b\n"
A, B = "specs/001-a/spec.md", "specs/002-b/spec.md"

TREE = {
    A: "# A\n\n- **FR-001**: System MUST a\n- **FR-002**: System MUST c\n",
    B: "# B\n\n- **FR-001**: System MUST b\n\n## Clarifications\n\n- Q: Which? → A: this\n",
    ".kiro/specs/x/requirements.md": KIRO.format("X"),
    "docs/adr/0001-rows.md": "# ADR-0001: Rows\n\nStatus: Superseded by 2\n\n`src/a.py`, `run()`, FR-002",
    "docs/adr/0002-columns.md": "# ADR-0002: Columns\n\nStatus: Accepted\n\n`src/gone.py`, `walk()`, FR-001",
    "src/a.py": "def run(): ...\n",
    "README.md": "# Hello\n",
}


def test_only_files_that_say_something_are_taken() -> None:
    assert read_documents(TREE).paths == (
        ".kiro/specs/x/requirements.md",
        "docs/adr/0001-rows.md",
        "docs/adr/0002-columns.md",
        A,
        B,
    )


def test_an_id_is_literal_where_one_specification_uses_it_and_qualified_where_more_do() -> None:
    nodes = read_documents(TREE).nodes
    assert [node.id for node in nodes if node.label == "Requirement"] == [
        "1",
        "FR-002",
        "specs/001-a/FR-001",
        "specs/002-b/FR-001",
    ]
    assert [node.id for node in nodes if node.label == "RequirementItem"] == [
        "1.1",
        "1.2",
        "FR-002",
        "specs/001-a/FR-001",
        "specs/002-b/FR-001",
    ]
    qualified = next(node for node in nodes if node.id == "specs/002-b/FR-001")
    assert (qualified.property("literal"), qualified.text, qualified.path) == ("FR-001", "System MUST b", B)


def test_an_ambiguous_id_means_all_of_its_items_and_a_requirements_id_its_criteria() -> None:
    documents = read_documents(TREE)
    assert documents.items_for("FR-001") == ("specs/001-a/FR-001", "specs/002-b/FR-001")
    assert documents.items_for("FR-001", within="specs/002-b/tasks.md") == ("specs/002-b/FR-001",)
    assert documents.items_for("FR-001", within="src/a.py") == ("specs/001-a/FR-001", "specs/002-b/FR-001")
    assert documents.items_for("specs/001-a/FR-001") == ("specs/001-a/FR-001",)
    assert documents.items_for("1") == ("1.1", "1.2")
    assert documents.items_for("1.2") == ("1.2",)
    assert documents.items_for("fr-001") == ()


def test_the_nodes_say_where_they_stand_and_what_they_are() -> None:
    nodes = {node.ref: node for node in read_documents(TREE).nodes}
    assert nodes[NodeRef("RequirementItem", "1.1")] == Node(
        label="RequirementItem",
        id="1.1",
        name="THE x SHALL a",
        path=".kiro/specs/x/requirements.md",
        start_line=5,
        end_line=5,
        text="THE x SHALL a",
        language="markdown",
        properties=(("kind", "criterion"), ("modality", "must"), ("pattern", "ubiquitous")),
    )
    assert nodes[NodeRef("Spec", "specs/001-a")].name == "A"


def test_specifications_define_requirements_and_requirements_items() -> None:
    edges = [edge for edge in read_documents(TREE).edges if edge.relation == "DEFINES"]
    requirement, item = NodeRef("Requirement", "1"), NodeRef("RequirementItem", "1.1")
    assert Edge(NodeRef("Spec", ".kiro/specs/x"), "DEFINES", requirement) in edges
    assert Edge(requirement, "DEFINES", item) in edges
    assert Edge(NodeRef("Requirement", "FR-002"), "DEFINES", NodeRef("RequirementItem", "FR-002")) in edges
    assert len(edges) == 9


def test_references_are_looked_up_in_the_graph_and_what_is_not_there_is_counted() -> None:
    documents = read_documents(TREE)
    code = [
        Node(label="File", id="src/a.py"),
        Node(label="Function", id="src/a.py::run"),
        Node(label="Function", id="src/a.py::walk"),
        Node(label="Function", id="src/b.py::Tree.walk"),
    ]
    resolved = resolve_references(documents, [*code, *documents.nodes])
    rows, columns = NodeRef("Decision", "ADR-0001"), NodeRef("Decision", "ADR-0002")
    assert resolved.edges == (
        Edge(rows, "APPLIES_TO", NodeRef("File", "src/a.py")),
        Edge(rows, "APPLIES_TO", NodeRef("Function", "src/a.py::run"), "guess", 1),
        Edge(rows, "APPLIES_TO", NodeRef("Requirement", "FR-002")),
        Edge(columns, "APPLIES_TO", NodeRef("Requirement", "specs/001-a/FR-001"), "guess", 2),
        Edge(columns, "APPLIES_TO", NodeRef("Requirement", "specs/002-b/FR-001"), "guess", 2),
    )
    assert [(one.reference.reference.value, one.candidates) for one in resolved.unresolved] == [
        ("src/gone.py", 0),
        ("walk", 2),
    ]


@pytest.mark.parametrize(
    ("reference", "target", "resolution"),
    [
        ("`Tree.walk()`", NodeRef("Function", "p/s/b.py::Tree.walk"), "guess"),
        ("`s/b.py::Tree.walk`", NodeRef("Function", "p/s/b.py::Tree.walk"), "exact"),
        ("`../s/b.py`", NodeRef("File", "p/s/b.py"), "exact"),
        ("`s/b.py:12`", NodeRef("File", "p/s/b.py"), "guess"),
    ],
)
def test_paths_are_taken_from_the_nearest_folder_and_names_by_their_end(
    reference: str, target: NodeRef, resolution: Resolution
) -> None:
    documents = read_documents({"p/adr/1.md": f"# ADR-1: X\n\nStatus: Accepted\n\n{reference}\n"})
    code = [Node(label="File", id="p/s/b.py"), Node(label="Function", id="p/s/b.py::Tree.walk")]
    assert resolve_references(documents, code).edges == (
        Edge(NodeRef("Decision", "ADR-1"), "APPLIES_TO", target, resolution),
    )


def test_the_same_id_in_two_files_of_one_specification_stays_two() -> None:
    documents = read_documents(
        {
            ".kiro/specs/x/bugfix.md": KIRO.format("Bug"),
            ".kiro/specs/x/requirements.md": KIRO.format("Feature"),
        }
    )
    found = {node.id: node.path for node in documents.nodes if node.label != "Spec"}
    assert found["1"] == found["1.1"] == ".kiro/specs/x/bugfix.md"
    assert found["1#2"] == found["1.1#2"] == ".kiro/specs/x/requirements.md"
    assert [(n.code, n.path, n.detail) for n in documents.notes] == [
        ("duplicate_id", ".kiro/specs/x/requirements.md", "1"),
        ("duplicate_id", ".kiro/specs/x/requirements.md", "1.1"),
        ("duplicate_id", ".kiro/specs/x/requirements.md", "1.2"),
    ]
    assert (
        Edge(NodeRef("Requirement", "1#2"), "DEFINES", NodeRef("RequirementItem", "1.1#2")) in documents.edges
    )


def test_facts_that_were_kept_are_the_facts_that_were_read() -> None:
    for path, text in TREE.items():
        facts = read_document(path, text)
        if facts is not None:
            assert facts_from_bytes(facts_to_bytes(facts)) == facts


def test_every_edge_is_one_of_the_canon_between_two_nodes() -> None:
    documents = read_documents(TREE)
    refs = {node.ref for node in documents.nodes}
    for edge in documents.edges:
        assert {edge.source, edge.target} <= refs
        assert (edge.source.label, edge.target.label) in RELATION_RULE_OF[edge.relation].joins


_IDS = st.sampled_from(["FR-001", "FR-1", "fr-001", "FR-001a", "AC-1", "REQ-1", "REQ-1.AC-1"])
_LINES = st.builds(
    "{}**{}**: System MUST {}".format,
    st.sampled_from(["- ", "  - ", "### ", ""]),
    _IDS,
    st.text("ab", max_size=3),
)
_TEXTS = st.lists(_LINES, max_size=6).map("\n".join)
_PATHS = st.sampled_from([A, B, "docs/a.md", "docs/b.md", "openspec/specs/x/spec.md", "adr/0001-a.md"])
_TREES = st.dictionaries(_PATHS, _TEXTS, max_size=4)


@settings(max_examples=60, deadline=None)
@given(tree=_TREES, seed=st.integers(0, 1_000))
def test_the_order_of_the_files_changes_nothing(tree: dict[str, str], seed: int) -> None:
    items = list(tree.items())
    random.Random(seed).shuffle(items)
    assert read_documents(dict(items)) == read_documents(tree)


@settings(max_examples=60, deadline=None)
@given(tree=_TREES)
def test_nodes_are_distinct_edges_join_them_and_every_definition_has_an_item(tree: dict[str, str]) -> None:
    facts = [one for path, text in tree.items() if (one := read_document(path, text))]
    documents = join_documents(facts)
    refs = [node.ref for node in documents.nodes]
    assert len(refs) == len(set(refs))
    assert {end for edge in documents.edges for end in (edge.source, edge.target)} <= set(refs)
    for one in facts:
        for requirement in one.requirements:
            items = documents.items_for(requirement.id.removesuffix("#2"))
            assert items
            assert all(NodeRef("RequirementItem", item) in refs for item in items)
