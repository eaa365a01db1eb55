from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.graph import RELATIONS
from worker.graph.adjacency import BACKWARD, build_adjacency
from worker.graph.model import Edge, NodeRef

HUB = NodeRef("Function", "a.py::hub")
KINDS = st.integers(0, 2 * BACKWARD - 1)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 150), KINDS), max_size=300, unique=True), st.sets(KINDS))
def test_neighbours_come_in_order_of_kind_and_node_however_many_there_are(
    near: list[tuple[int, int]], kinds: set[int]
) -> None:
    refs = [NodeRef("Function", f"b.py::f{n:03}") for n in range(151)]
    numbers = {ref: n for n, ref in enumerate((HUB, *refs))}
    edges = [
        Edge(HUB, RELATIONS[kind], refs[n])
        if kind < BACKWARD
        else Edge(refs[n], RELATIONS[kind - BACKWARD], HUB)
        for n, kind in near
    ]
    expected = [n + 1 for kind, n in sorted((kind, n) for n, kind in near) if kind in kinds]
    assert build_adjacency(edges, numbers).of(0, kinds) == expected


@settings(max_examples=60)
@example([], {0, 3})
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200)), max_size=300),
    st.sets(st.integers(0, 203), max_size=5),
)
def test_half_edges_are_the_same_copied_run_by_run_or_place_by_place(
    pairs: list[tuple[int, int]], nodes: set[int]
) -> None:
    refs = [NodeRef("Function", f"b.py::f{n:03}") for n in range(204)]
    hub = ((0, n) for n in range(1, 204))
    edges = sorted({Edge(refs[a], "CALLS", refs[b]) for a, b in (*pairs, *hub) if a != b})
    adjacency = build_adjacency(edges, {ref: n for n, ref in enumerate(refs)})
    chosen = np.array(sorted(nodes), dtype=np.int64)
    starts = adjacency.starts.tolist()
    places = [place for n in chosen.tolist() for place in range(starts[n], starts[n + 1])]
    targets, kinds, weights, lengths = adjacency.half_edges(chosen)
    assert lengths.tolist() == [starts[n + 1] - starts[n] for n in chosen.tolist()]
    for found, array in (
        (targets, adjacency.targets),
        (kinds, adjacency.kinds),
        (weights, adjacency.weights),
    ):
        assert found.dtype == array.dtype
        assert found.tolist() == array[places].tolist()


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 5), KINDS, st.integers(0, 40)), max_size=200),
    st.sets(st.integers(0, 5), max_size=4),
    st.sets(KINDS),
    st.integers(0, 12),
)
def test_of_each_node_the_first_neighbours_are_near_and_the_others_counted(
    near: list[tuple[int, int, int]], nodes: set[int], kinds: set[int], at_most: int
) -> None:
    refs = [NodeRef("Function", f"b.py::f{n:03}") for n in range(41)]
    edges = sorted(
        {
            Edge(refs[a], RELATIONS[kind], refs[b])
            if kind < BACKWARD
            else Edge(refs[b], RELATIONS[kind - BACKWARD], refs[a])
            for a, kind, b in near
        }
    )
    adjacency = build_adjacency(edges, {ref: n for n, ref in enumerate(refs)})
    all_near = [adjacency.of(node, kinds) for node in sorted(nodes)]
    targets, left_out = adjacency.near(np.array(sorted(nodes), dtype=np.int64), kinds, at_most=at_most)
    assert sorted(targets.tolist()) == sorted(n for some in all_near for n in some[:at_most])
    assert left_out == sum(max(0, len(some) - at_most) for some in all_near)
