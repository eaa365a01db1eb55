from __future__ import annotations

from hypothesis import given, settings

from tests.support.graphs import contents
from tests.unit.graph.graphs import HEAD, edge, function, snapshot_of
from worker.graph.model import GraphContents, NodeRef
from worker.graph.neighbours import call_neighbours
from worker.graph.snapshot import build_snapshot

F, G, H = (function("a.py", name) for name in ("f", "g", "h"))


def test_certain_neighbours_come_before_guesses_and_say_where_they_stand() -> None:
    other = function("b.py", "other")
    snapshot = snapshot_of(
        [F, G, H, other],
        [
            edge(G, "CALLS", F, candidates=2),
            edge(H, "CALLS", F),
            edge(F, "CALLS", other),
            edge(F, "CALLS", F),
        ],
    )
    found = call_neighbours(snapshot, F.ref)
    assert found is not None
    assert [(n.ref.id, n.resolution) for n in found.callers] == [
        ("a.py::f", "exact"),
        ("a.py::h", "exact"),
        ("a.py::g", "guess"),
    ]
    assert [(n.ref.id, n.place) for n in found.callees] == [("a.py::f", "a.py:1"), ("b.py::other", "b.py:1")]


def test_a_class_has_the_neighbours_of_its_methods_but_not_what_it_calls_of_its_own() -> None:
    owner = function("a.py", "A", label="Class")
    one, two = function("a.py", "A.one"), function("a.py", "A.two")
    edges = [edge(owner, "DEFINES", one), edge(owner, "DEFINES", two), edge(one, "CALLS", two)]
    snapshot = snapshot_of([owner, one, two, F], [*edges, edge(F, "CALLS", one), edge(two, "CALLS", F)])
    found = call_neighbours(snapshot, owner.ref)
    assert found is not None
    assert [n.ref for n in found.callers] == [F.ref]
    assert [n.ref for n in found.callees] == [F.ref]


def test_of_many_the_first_are_given_and_the_others_counted() -> None:
    callers = [function("b.py", f"f{n:03}") for n in range(300)]
    snapshot = snapshot_of([F, *callers], [edge(caller, "CALLS", F) for caller in callers])
    found = call_neighbours(snapshot, F.ref, most=7)
    assert found is not None
    assert [n.ref for n in found.callers] == [caller.ref for caller in callers[:7]]
    assert (found.more_callers, found.callees, found.more_callees) == (293, (), 0)


def test_what_is_not_in_the_graph_has_none() -> None:
    assert call_neighbours(snapshot_of([F]), NodeRef("Function", "a.py::absent")) is None


@settings(max_examples=40)
@given(contents())
def test_neighbours_are_what_the_edges_say(graph: GraphContents) -> None:
    snapshot = build_snapshot(HEAD, graph)
    calls = [e for e in graph.edges if e.relation == "CALLS"]
    for node in graph.nodes:
        if node.label != "Class":
            found = call_neighbours(snapshot, node.ref)
            assert found is not None
            assert sorted(n.ref for n in found.callers) == sorted(
                e.source for e in calls if e.target == node.ref
            )
            assert sorted(n.ref for n in found.callees) == sorted(
                e.target for e in calls if e.source == node.ref
            )
