"""A difference, applied, gives what it is the difference to."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.graphs import EMPTY, chain, contents, function_node, large_graph
from worker.graph.diff import applied, check_change, diff_contents, outside_ends
from worker.graph.model import Edge, GraphChange, GraphContents, NodeRef


@settings(max_examples=40)
@given(contents(), contents())
def test_the_difference_makes_the_new_of_the_old(old: GraphContents, new: GraphContents) -> None:
    change = diff_contents(old, new)
    assert applied(old, change) == new
    assert change.is_empty == (old == new)


@settings(max_examples=25)
@given(contents(), contents())
def test_a_difference_says_nothing_twice_and_nothing_that_is_so_already(
    old: GraphContents, new: GraphContents
) -> None:
    change = diff_contents(old, new)
    assert not set(change.upserted) & set(old.nodes)
    assert set(change.removed) <= {node.ref for node in old.nodes}
    assert not set(change.added_edges) & set(old.edges)
    assert set(change.removed_edges) <= set(old.edges)
    removed = set(change.removed)
    assert not any({edge.source, edge.target} & removed for edge in change.removed_edges)
    assert not {edge[:3] for edge in change.removed_edges} & {edge[:3] for edge in change.added_edges}


@settings(max_examples=20)
@given(contents(), contents())
def test_applying_a_change_twice_is_applying_it_once(old: GraphContents, new: GraphContents) -> None:
    change = diff_contents(old, new)
    assert applied(applied(old, change), change) == new


@settings(max_examples=20)
@given(contents())
def test_every_random_graph_is_within_the_canon(graph: GraphContents) -> None:
    check_change(diff_contents(EMPTY, graph))
    assert diff_contents(graph, graph) == GraphChange()


def test_an_edge_falls_with_either_node() -> None:
    change = GraphChange(removed=(NodeRef("Function", "b"),))
    assert applied(chain("a", "b", "c"), change) == GraphContents(
        nodes=(function_node("a"), function_node("c")), edges=()
    )


def test_a_guess_that_became_exact_is_one_edge() -> None:
    refs = NodeRef("Function", "a"), NodeRef("Function", "b")
    guess = Edge(refs[0], "CALLS", refs[1], "guess", 3)
    old = GraphContents(nodes=chain("a", "b").nodes, edges=(guess,))
    change = diff_contents(old, chain("a", "b"))
    assert change == GraphChange(added_edges=chain("a", "b").edges)
    assert applied(old, change) == chain("a", "b")


def test_a_node_removed_and_written_again_has_lost_its_edges() -> None:
    change = GraphChange(removed=(NodeRef("Function", "b"),), upserted=(function_node("b"),))
    assert applied(chain("a", "b"), change).edges == ()


@given(st.sampled_from(["b", "zz"]))
def test_an_edge_to_what_is_not_there_is_refused(name: str) -> None:
    change = GraphChange(removed=(NodeRef("Function", "b"),), added_edges=chain("a", name).edges)
    with pytest.raises(ValueError, match="which the graph does not hold"):
        applied(chain("a", "b"), change)


def test_outside_ends_are_those_that_the_change_does_not_write() -> None:
    change = GraphChange(upserted=(function_node("b"),), added_edges=chain("c", "b", "a").edges)
    assert outside_ends(change) == [NodeRef("Function", "a"), NodeRef("Function", "c")]


def test_unsorted_properties_are_refused() -> None:
    node = function_node("a")
    for pairs in ((("b", ""), ("a", "")), (("a", "1"), ("a", "2"))):
        bad = type(node)(label="Function", id="a", properties=pairs)
        with pytest.raises(ValueError, match="not sorted by name, each once"):
            check_change(GraphChange(upserted=(bad,)))


def test_a_large_graph_differs_from_itself_in_nothing() -> None:
    graph = large_graph(2_000, 8_000)
    assert diff_contents(graph, graph).is_empty
