"""Which plan brings an older graph to the canon; carried out here on plain values, on Neo4j elsewhere."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.graph import LABEL_RULE_OF, LEGACY_LABELS, RELATION_RULE_OF, NodeLabel, store_key
from worker.graph.migration import (
    INDEXED_LABELS,
    End,
    ItemOf,
    MigrationPlan,
    MovedEdge,
    MovedNode,
    OldEdge,
    OldNode,
    plan_migration,
)


def node(number: int, label: str, **properties: str) -> OldNode:
    return OldNode(number=number, labels=(label,), properties=properties)


def ids(plan: MigrationPlan) -> dict[int, str]:
    return {moved.number: moved.id for moved in plan.nodes}


def reasons(plan: MigrationPlan) -> list[str]:
    return [unmoved.reason for unmoved in plan.unmoved]


FILE = node(1, "File", id="p:src/a.py")
MODULE = node(2, "Module", id="a.py", path="src/a.py", name="a")
CLASS = node(3, "Class", id="a.py::A", path="src/a.py", name="A")
METHOD = node(4, "Method", name="run", path="src/a.py")
TEST = node(5, "Function", id="tests/test_a.py::test_run", name="test_run")
REQUIREMENT = node(6, "Requirement", id="REQ-1", text="It runs.")


def test_ids_become_paths_and_qualified_names() -> None:
    plan = plan_migration("p", [FILE, MODULE, CLASS, METHOD, TEST], [OldEdge(1, 3, "HAS_METHOD", 4)])
    assert ids(plan) == {
        1: "src/a.py",
        2: "src/a.py::<module>",
        3: "src/a.py::A",
        4: "src/a.py::A.run",
        5: "tests/test_a.py::test_run",
    }
    method = plan.nodes[3]
    assert (method.label, method.old_label, method.class_id) == ("Function", "Method", "src/a.py::A")
    assert plan.edges == [MovedEdge(1, 3, "DEFINES", 4)]
    assert plan.counts["Method -> Function"] == plan.counts["HAS_METHOD -> DEFINES"] == 1
    assert plan.unmoved == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (OldEdge(1, 4, "TRACES", 6), MovedEdge(1, 4, "TRACES_TO", ItemOf(6))),
        (OldEdge(1, 4, "TRACES_TO", 6), MovedEdge(1, 4, "TRACES_TO", ItemOf(6))),
        (OldEdge(1, 4, "DEFINES_REQUIREMENT", 6), MovedEdge(1, 4, "TRACES_TO", ItemOf(6))),
        (OldEdge(1, 5, "TESTS", 4), MovedEdge(1, 4, "TESTED_BY", 5)),
        (OldEdge(1, 5, "TESTS", 6), MovedEdge(1, ItemOf(6), "TESTED_BY", 5)),
        (OldEdge(1, 2, "CONTAINS", 3), MovedEdge(1, 2, "DEFINES", 3)),
        (OldEdge(1, 1, "CONTAINS", 2), MovedEdge(1, 1, "DEFINES", 2)),
        (OldEdge(1, 1, "DEFINES", 3), MovedEdge(1, 2, "DEFINES", 3)),
        (OldEdge(1, 3, "INHERITS", 3), MovedEdge(1, 3, "INHERITS_FROM", 3)),
        (OldEdge(1, 7, "DEFINES_REQUIREMENT", 6), MovedEdge(1, 7, "DEFINES", 6)),
        (OldEdge(1, 1, "OWNED_BY", 8), MovedEdge(1, 8, "OWNS", 1)),
    ],
)
def test_each_old_relation_becomes_the_one_of_the_canon(old: OldEdge, new: MovedEdge) -> None:
    others = [node(7, "Spec", id="SPEC-1"), node(8, "Owner", id="@team")]
    plan = plan_migration("p", [FILE, MODULE, CLASS, METHOD, TEST, REQUIREMENT, *others], [old])
    assert [edge for edge in plan.edges if edge.old is not None] == [new]


def test_what_the_canon_has_keeps_its_place() -> None:
    edges = [OldEdge(1, 2, "DEFINES", 3), OldEdge(2, 4, "CALLS", 5), OldEdge(3, 4, "TESTED_BY", 5)]
    assert plan_migration("p", [MODULE, CLASS, METHOD, TEST], edges).edges == []


def test_a_requirement_gets_one_item_where_it_has_none() -> None:
    item = node(7, "RequirementItem", id="REQ-1")
    other = node(8, "RequirementItem", id="REQ-1.a")
    plan = plan_migration("p", [REQUIREMENT], [])
    assert [made.id for made in plan.items] == ["REQ-1"]
    assert plan.edges == [MovedEdge(None, 6, "DEFINES", ItemOf(6))]
    plan = plan_migration("p", [REQUIREMENT, item], [])
    assert (plan.items, plan.edges) == ([], [MovedEdge(None, 6, "DEFINES", 7)])
    plan = plan_migration("p", [REQUIREMENT, other], [OldEdge(1, 6, "CONTAINS", 8)])
    assert (plan.items, plan.edges) == ([], [MovedEdge(1, 6, "DEFINES", 8)])


def test_a_trace_to_a_requirement_of_several_items_stays_since_nobody_knows_which() -> None:
    items = [node(7, "RequirementItem", id="a"), node(8, "RequirementItem", id="b")]
    edges = [OldEdge(1, 6, "DEFINES", 7), OldEdge(2, 6, "DEFINES", 8), OldEdge(3, 5, "TRACES", 6)]
    plan = plan_migration("p", [TEST, REQUIREMENT, *items], edges)
    assert plan.edges == []
    assert plan.left == {"Function -TRACES-> Requirement": 1}


def test_a_bare_file_name_is_resolved_by_the_one_path_that_ends_so() -> None:
    bare = node(9, "Function", id="a.py::f", name="f")
    assert ids(plan_migration("p", [bare, FILE], []))[9] == "src/a.py::f"


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (
            [node(1, "File", id="x/a.py"), node(2, "File", id="y/a.py"), node(3, "Function", id="a.py::f")],
            "a.py may be any of x/a.py, y/a.py",
        ),
        ([node(1, "File", id="a.py")], "nothing says in which folder a.py lies"),
        ([node(1, "Function", name="f")], "nothing says in which file it is"),
        ([node(1, "Function", id="f", path="/root/a.py")], "its path is absolute: /root/a.py"),
        ([node(1, "Function", path="src/a.py")], "it has no name"),
        ([node(1, "Spec")], "it has no id"),
        (
            [OldNode(number=1, labels=("File", "Spec"), properties={"id": "a/b"})],
            "it has several labels of the canon: File, Spec",
        ),
        (
            [node(1, "File", id="x/a.py"), node(2, "File", path="x/a.py")],
            "another File has the id 'x/a.py' already",
        ),
    ],
)
def test_what_is_in_doubt_stays_and_is_said(nodes: list[OldNode], reason: str) -> None:
    assert reasons(plan_migration("p", nodes, [])) == [reason]


def test_what_has_no_place_in_the_canon_is_counted_and_stays() -> None:
    nodes = [TEST, node(1, "Parameter", name="x"), node(2, "ImportNode", name="os")]
    edges = [OldEdge(1, 5, "HAS_PARAMETER", 1), OldEdge(2, 5, "LIKES", 5), OldEdge(3, 5, "CALLS", 99)]
    plan = plan_migration("p", nodes, edges)
    assert plan.left == {
        "Parameter": 1,
        "ImportNode": 1,
        "Function -HAS_PARAMETER-> Parameter": 1,
        "Function -LIKES-> Function": 1,
        "Function -CALLS-> another project's": 1,
    }


def test_a_package_is_the_module_of_its_folder() -> None:
    plan = plan_migration("p", [node(1, "Package", name="pkg", path="src\\pkg")], [])
    assert ids(plan) == {1: "src/pkg/__init__.py::<module>"}


def test_state_gets_its_key_and_is_no_part_of_the_graph() -> None:
    plan = plan_migration("p", [node(1, "Volk", name="ada"), node(2, "Session", id="s")], [])
    assert ids(plan) == {1: "ada", 2: "s"}
    assert not INDEXED_LABELS & {"Volk", "Session", "Decision", "Message"}


def test_what_an_index_wrote_is_never_judged_again() -> None:
    written = OldNode(
        number=1,
        labels=("Function", "GraphNode"),
        properties={"id": "x.ts::f", "path": "elsewhere.ts", "project": "p", "key": "p:x.ts::f", "ref": "r"},
    )
    requirement = OldNode(
        number=2,
        labels=("GraphNode", "Requirement"),
        properties={"id": "R", "project": "p", "key": "p:R", "ref": "r2"},
    )
    assert plan_migration("p", [written, requirement], [], is_whole=True) == MigrationPlan()
    assert len(plan_migration("p", [written, requirement], []).items) == 1


# --- Any old graph -----------------------------------------------------------------------------------


def carried_out(
    project: str, nodes: Iterable[OldNode], edges: Iterable[OldEdge], plan: MigrationPlan
) -> tuple[list[OldNode], list[OldEdge]]:
    """The graph after the plan."""
    made = {old.number: old for old in nodes}
    for moved in plan.nodes:
        made[moved.number] = _moved(project, made[moved.number], moved)
    items: dict[int, int] = {}
    for item in plan.items:
        number = items[item.requirement] = max(made) + 1
        new = MovedNode(number=number, label="RequirementItem", id=item.id)
        made[number] = _moved(project, node(number, "RequirementItem"), new)

    def number_of(end: End) -> int:
        return items[end.requirement] if isinstance(end, ItemOf) else end

    replaced = {edge.old for edge in plan.edges}
    kept = {(old.source, old.type, old.target) for old in edges if old.number not in replaced}
    kept |= {(number_of(edge.source), edge.relation, number_of(edge.target)) for edge in plan.edges}
    return list(made.values()), [OldEdge(number, *ends) for number, ends in enumerate(sorted(kept))]


def _moved(project: str, old: OldNode, moved: MovedNode) -> OldNode:
    labels = {*old.labels, moved.label} - {moved.old_label}
    properties = dict(old.properties) | {
        "project": project,
        "key": store_key(project, moved.id),
        LABEL_RULE_OF[moved.label].key: moved.id,
    }
    if moved.label in INDEXED_LABELS:
        labels.add("GraphNode")
        properties["ref"] = "as the store says"
    properties |= {name: text for name in ("path", "class_id") if (text := getattr(moved, name))}
    return OldNode(number=old.number, labels=tuple(sorted(map(str, labels))), properties=properties)


old_ids = st.sampled_from(
    [
        "a.py",
        "src/a.py",
        "p:src/a.py",
        "a.py::f",
        "src/a.py::A.f",
        "src/a.py::A::f",
        "R-1",
        "f",
        "p:a.py::A",
        "",
    ]
)
paths = st.sampled_from(["", "src/a.py", "src\\a.py", "/abs/a.py", "./lib/b.py", "a.py", "src/pkg"])


def _old(label: str, **properties: str) -> tuple[str, dict[str, str]]:
    return label, {name: text for name, text in properties.items() if text}


old_nodes = st.builds(
    _old,
    st.sampled_from(
        [
            *LEGACY_LABELS,
            *("Project", "File", "Module", "Class", "Function"),
            *("Spec", "Requirement", "RequirementItem", "Volk"),
        ]
    ),
    id=old_ids,
    name=st.sampled_from(["", "f", "A", "a"]),
    path=paths,
    class_name=st.sampled_from(["", "A"]),
)
old_types = st.sampled_from(
    [
        *("TRACES", "TESTS", "HAS_METHOD", "CONTAINS", "DEFINES_REQUIREMENT", "DEFINES", "TRACES_TO"),
        *("TESTED_BY", "CALLS", "LIKES", "IMPORTS", "INHERITS"),
    ]
)


@settings(max_examples=150)
@given(st.lists(old_nodes, max_size=9), st.data())
def test_a_second_plan_is_empty_and_the_result_is_of_the_canon(
    made: list[tuple[str, dict[str, str]]], data: st.DataObject
) -> None:
    nodes = [node(number, label, **properties) for number, (label, properties) in enumerate(made)]
    numbers = st.integers(0, max(0, len(nodes) - 1))
    drawn: set[tuple[int, str, int]] = set()
    if nodes:
        drawn = data.draw(st.sets(st.tuples(numbers, old_types, numbers), max_size=12))
    edges = [OldEdge(number, *ends) for number, ends in enumerate(sorted(drawn))]
    plan = plan_migration("p", nodes, edges)
    after_nodes, after_edges = carried_out("p", nodes, edges, plan)
    again = plan_migration("p", after_nodes, after_edges)
    assert again.is_empty
    assert plan_migration("p", after_nodes, after_edges, is_whole=True).is_empty
    assert again.unmoved == plan.unmoved
    moved: dict[int, NodeLabel] = {change.number: change.label for change in plan.nodes}
    assert len({(moved[change.number], change.id) for change in plan.nodes}) == len(plan.nodes)
    for edge in plan.edges:
        labels = [
            "RequirementItem" if isinstance(end, ItemOf) else _label(after_nodes, end)
            for end in (edge.source, edge.target)
        ]
        assert tuple(labels) in RELATION_RULE_OF[edge.relation].joins


def _label(nodes: Iterable[OldNode], number: int) -> str:
    (labels,) = [old.labels for old in nodes if old.number == number]
    return next(label for label in labels if label in LABEL_RULE_OF)


@given(st.lists(old_nodes, max_size=7), st.randoms(use_true_random=False))
def test_the_order_in_which_a_store_gives_its_nodes_changes_nothing(
    made: list[tuple[str, dict[str, str]]], shuffler: random.Random
) -> None:
    nodes = [node(number, label, **properties) for number, (label, properties) in enumerate(made)]
    shuffled = list(nodes)
    shuffler.shuffle(shuffled)
    assert plan_migration("p", shuffled, []) == plan_migration("p", nodes, [])
