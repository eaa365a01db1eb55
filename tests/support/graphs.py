"""Graphs for tests: random ones within the canon, and one as large as is asked for."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import strategies as st

from schemas.graph import RELATION_RULES, RELATIONS, NodeLabel, Relation
from worker.graph.diff import EdgeRef
from worker.graph.model import Edge, GraphContents, Node, NodeRef
from worker.graph.store import MAX_NAMED

HOSTILE_IDS = (
    "a.py::it's",
    'a.py::"quoted"',
    "a.py::`ticked` {braces} $dollar \\back",
    "a.py::line\nbreak\ttab\x00nul",
    "a.py::\U0001f600",
    "a.py::\uff5e",
    "a.py::é::ü",
    ":",
    "a:b::c:",
    "8a6e0804-2bd0-4672-b79d-d97027f9071a",
    "') DETACH DELETE n //",
    "x" * 9_000,
    " ",
)
LABELS: tuple[NodeLabel, ...] = ("Project", "File", "Module", "Class", "Function", "RequirementItem", "Volk")
JOINS: tuple[tuple[NodeLabel, Relation, NodeLabel], ...] = tuple(
    sorted(
        (source, rule.relation, target)
        for rule in RELATION_RULES
        for source, target in rule.joins
        if source in LABELS and target in LABELS
    )
)
EMPTY = GraphContents(nodes=(), edges=())

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ids = st.sampled_from(HOSTILE_IDS) | st.sampled_from(["a", "b", "c", "d"])
property_names = st.sampled_from(["class_id", "is_local", "text", "id", "", "Weird name`", "ref", "é"])
properties = st.dictionaries(property_names, texts, max_size=4).map(lambda made: tuple(sorted(made.items())))


@st.composite
def nodes(draw: st.DrawFn, ref: NodeRef) -> Node:
    numbers = st.integers(0, 2**40)
    return Node(
        label=ref.label,
        id=ref.id,
        name=draw(texts),
        path=draw(texts),
        start_line=draw(numbers),
        end_line=draw(numbers),
        signature=draw(texts),
        text=draw(texts),
        docstring_span=(draw(numbers), draw(numbers)),
        language=draw(texts),
        properties=draw(properties),
    )


@st.composite
def contents(draw: st.DrawFn, *, max_nodes: int = 10) -> GraphContents:
    """Any graph that the canon allows, loops and cycles included."""
    refs = draw(st.lists(st.builds(NodeRef, st.sampled_from(LABELS), ids), max_size=max_nodes, unique=True))
    made = [draw(nodes(ref)) for ref in sorted(refs)]
    possible: list[EdgeRef] = [
        (source, relation, target)
        for source in refs
        for target in refs
        for relation in RELATIONS
        if (source.label, relation, target.label) in JOINS
    ]
    chosen = draw(st.lists(st.sampled_from(possible), unique=True, max_size=15)) if possible else []
    edges = [
        Edge(*ends, draw(st.sampled_from(["exact", "guess"])), draw(st.integers(1, 5))) for ends in chosen
    ]
    return GraphContents(nodes=tuple(made), edges=tuple(sorted(edges)))


def large_graph(functions: int, edges: int, *, text: str = "x = 1\n" * 40) -> GraphContents:
    """Functions that call each other at random, the same for the same numbers."""
    choose = random.Random(functions)
    refs = [NodeRef("Function", f"src/package/module_{n % 97}.py::function_{n}") for n in range(functions)]
    made = {
        (source, target)
        for source, target in zip(choose.choices(refs, k=edges), choose.choices(refs, k=edges), strict=True)
    }
    return GraphContents(
        nodes=tuple(function_node(ref.id, text=text) for ref in sorted(refs)),
        edges=tuple(sorted(Edge(source, "CALLS", target) for source, target in made)),
    )


def function_node(node_id: str, *, text: str = "") -> Node:
    path, _, qualname = node_id.partition("::")
    return Node(
        label="Function",
        id=node_id,
        name=qualname,
        path=path,
        start_line=1,
        end_line=1 + text.count("\n"),
        signature=f"def {qualname}()",
        text=text,
        language="python",
        properties=(("complexity", "1"), ("qualname", qualname)),
    )


def chain(*names: str) -> GraphContents:
    """Functions that call each other in a row."""
    refs = [NodeRef("Function", name) for name in names]
    edges = [Edge(source, "CALLS", target) for source, target in pairwise(refs)]
    return GraphContents(
        nodes=tuple(function_node(name) for name in sorted(set(names))), edges=tuple(sorted(set(edges)))
    )


def neighbourhood_of(
    graph: GraphContents,
    roots: Sequence[NodeRef],
    *,
    names: Sequence[str] = (),
    max_hops: int,
    max_nodes: int,
) -> GraphContents:
    """What a store has to give, the plain way."""
    entries = {node.ref for node in graph.nodes}.intersection(roots)
    for name in names:
        named = {
            node.ref
            for node in graph.nodes
            if node.name
            and node.name == name.split(".")[-1]
            and ("." not in name or node.id.endswith((f"::{name}", f".{name}")))
        }
        if len(named) <= MAX_NAMED:
            entries |= named
    ring = sorted(entries)[: max(0, max_nodes)]
    seen = set(ring)
    for _ in range(max_hops):
        reached = frozenset(ring)
        beside = {edge.target for edge in graph.edges if edge.source in reached}
        beside |= {edge.source for edge in graph.edges if edge.target in reached}
        ring = sorted(beside - seen)[: max_nodes - len(seen)] if len(seen) < max_nodes else []
        seen |= set(ring)
    return GraphContents(
        nodes=tuple(node for node in graph.nodes if node.ref in seen),
        edges=tuple(edge for edge in graph.edges if edge.source in seen and edge.target in seen),
    )
