"""What every graph store promises, on each product that implements it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.graphs import (
    EMPTY,
    HOSTILE_IDS,
    chain,
    contents,
    function_node,
    large_graph,
    neighbourhood_of,
)
from tests.support.memory_graph import MemoryGraphStore
from worker.errors import GraphConflict
from worker.graph.diff import applied, diff_contents
from worker.graph.model import Edge, GraphChange, GraphContents, GraphHead, Node, NodeRef
from worker.graph.store import MAX_NAMED, GraphChanging, GraphStore
from worker.stores.neo4j_graph import Neo4jGraphStore
from worker.stores.neo4j_link import Neo4jLink
from worker.stores.sqlite_graph import SqliteGraphStore

Open = Callable[[], GraphStore]

NEO4J = pytest.param("neo4j", marks=pytest.mark.services)
STEPS = pytest.param("neo4j in steps", marks=pytest.mark.services)


@pytest.fixture(params=["memory", "sqlite", NEO4J, STEPS])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Open]:
    """Opens the product under test, each time as another process would; closes them all."""
    stores: list[GraphStore] = []
    shared = MemoryGraphStore()

    def open_store() -> GraphStore:
        if request.param == "memory":
            # One process is all it is for, so every opening is the same store.
            stores.append(shared)
        elif request.param == "sqlite":
            stores.append(SqliteGraphStore(tmp_path / "var" / "graph.db"))
        else:
            user, password = request.getfixturevalue("neo4j_auth")
            link = Neo4jLink(request.getfixturevalue("neo4j_url"), user=user, password=password)
            # In steps of two, every change but the smallest takes several transactions.
            size = 2 if request.param == "neo4j in steps" else 5_000
            stores.append(Neo4jGraphStore(link, timeout_seconds=20.0, transaction_rows=size))
        return stores[-1]

    yield open_store
    for store in stores:
        await store.close()


@pytest.fixture
def store(opened: Open) -> GraphStore:
    return opened()


@pytest.fixture
async def project(opened: Open) -> AsyncGenerator[str]:
    """A project that nobody else uses."""
    project_id = str(uuid4())
    yield project_id
    await opened().purge(project_id)


# Each example writes to the real product, and all may use one store: it is what they share that is hunted.
few = settings(
    max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def whole(graph: GraphContents) -> GraphChange:
    return diff_contents(EMPTY, graph)


async def put(store: GraphStore, project_id: str, graph: GraphContents) -> GraphHead:
    await store.purge(project_id)
    return await store.apply(project_id, whole(graph), snapshot_id="s", expected_version=0)


async def loaded(store: GraphStore, project_id: str) -> GraphContents:
    found = await store.load(project_id)
    assert found is not None
    return found[1]


async def test_projects_with_a_graph_are_listed_by_id_until_they_are_purged(
    store: GraphStore, project: str
) -> None:
    names = [f"{project}.{n}" for n in (2, 1)]
    for name in names:
        await put(store, name, GraphContents(nodes=(Node(label="Project", id=name),), edges=()))
    listed = await store.projects(max_projects=100_000)
    assert [name for name in listed if name in names] == sorted(names)
    assert listed == sorted(listed)
    assert len(await store.projects(max_projects=1)) == 1
    for name in names:
        await store.purge(name)
    assert not set(names) & set(await store.projects(max_projects=100_000))


async def test_a_project_that_was_never_indexed_has_no_graph(store: GraphStore, project: str) -> None:
    root = NodeRef("Function", "a")
    assert await store.head(project) is None
    assert await store.load(project) is None
    assert await store.neighbourhood(project, [root], max_hops=1, max_nodes=9) is None
    assert await store.size_bytes(project) == 0
    assert await store.load_facts(project) == {}
    assert await store.purge(project) == 0


@few
@given(first=contents(), second=contents())
async def test_what_is_applied_is_what_is_loaded(
    store: GraphStore, project: str, first: GraphContents, second: GraphContents
) -> None:
    head = await put(store, project, first)
    assert head == GraphHead(graph_version=1, snapshot_id="s")
    assert await store.load(project) == (head, first)
    change = diff_contents(first, second)
    head = await store.apply(project, change, snapshot_id="t", expected_version=1)
    assert head == GraphHead(graph_version=2, snapshot_id="t")
    assert await store.load(project) == (head, second)
    assert await store.head(project) == head


@few
@given(graph=contents(), other=contents(), data=st.data())
async def test_a_change_does_what_the_model_of_it_says(
    store: GraphStore, project: str, graph: GraphContents, other: GraphContents, data: st.DataObject
) -> None:
    held = [node.ref for node in graph.nodes]
    new = [node.ref for node in other.nodes]
    some = st.lists(st.sampled_from([*held, NodeRef("File", "absent")]), unique=True)
    removed = data.draw(some)
    removed_edges = data.draw(st.lists(st.sampled_from(graph.edges), unique=True)) if graph.edges else []
    change = GraphChange(
        upserted=other.nodes,
        removed=tuple(removed),
        added_edges=tuple(edge for edge in other.edges if {edge.source, edge.target} <= set(new)),
        removed_edges=(*removed_edges, *other.edges[:1]),
    )
    await put(store, project, graph)
    await store.apply(project, change, snapshot_id="t", expected_version=1)
    assert await loaded(store, project) == applied(graph, change)


@few
@given(graph=contents(max_nodes=14), caps=st.tuples(st.integers(0, 3), st.integers(0, 8)), data=st.data())
async def test_the_neighbourhood_is_the_rings_around_the_roots_up_to_the_caps(
    store: GraphStore, project: str, graph: GraphContents, caps: tuple[int, int], data: st.DataObject
) -> None:
    hops, cap = caps
    refs = [NodeRef("Function", "absent"), *(node.ref for node in graph.nodes)]
    roots = data.draw(st.lists(st.sampled_from(refs), max_size=3))
    head = await put(store, project, graph)
    found = await store.neighbourhood(project, roots, max_hops=hops, max_nodes=cap)
    assert found == (head, neighbourhood_of(graph, roots, max_hops=hops, max_nodes=cap))


NAMES = ("f", "run", "Job.run", "g.py", "é")


@st.composite
def named_contents(draw: st.DrawFn) -> GraphContents:
    """Functions, methods and files whose names and ids look alike."""
    ids = st.sampled_from(
        ["a.py::f", "a.py::Job.run", "b.py::Job.run", "b.py::Old.Job.run", "b.py::Jobs.run", "run"]
    )
    refs = draw(st.lists(st.builds(NodeRef, st.sampled_from(["Class", "Function"]), ids), unique=True))
    return GraphContents(
        nodes=tuple(
            Node(label=ref.label, id=ref.id, name=draw(st.sampled_from(NAMES))) for ref in sorted(refs)
        ),
        edges=(),
    )


@few
@given(
    graph=named_contents(),
    names=st.lists(st.sampled_from([*NAMES, "Jobs.run", ".run", ""])),
    cap=st.integers(0, 5),
)
async def test_the_neighbourhood_is_entered_by_names_as_by_ids(
    store: GraphStore, project: str, graph: GraphContents, names: list[str], cap: int
) -> None:
    head = await put(store, project, graph)
    roots = [NodeRef("Function", "run")]
    found = await store.neighbourhood(project, roots, names=names, max_hops=1, max_nodes=cap)
    assert found == (head, neighbourhood_of(graph, roots, names=names, max_hops=1, max_nodes=cap))


async def test_a_name_that_too_many_bear_enters_nowhere_and_no_other_project_is_entered(
    store: GraphStore, project: str
) -> None:
    def called_run(count: int) -> GraphContents:
        nodes = [Node(label="Function", id=f"m.py::C{n:03}.run", name="run") for n in range(count)]
        return GraphContents(nodes=tuple(nodes), edges=())

    other = f"{project}.b"
    await put(store, other, chain("run"))
    for count, expected in ((MAX_NAMED, MAX_NAMED), (MAX_NAMED + 1, 0)):
        await put(store, project, called_run(count))
        found = await store.neighbourhood(project, [], names=["run"], max_hops=0, max_nodes=999)
        assert found is not None
        assert len(found[1].nodes) == expected
        found = await store.neighbourhood(project, [], names=["C007.run"], max_hops=0, max_nodes=999)
        assert found is not None
        assert [node.id for node in found[1].nodes] == ["m.py::C007.run"]
    await store.purge(other)


async def test_a_cycle_ends_and_comes_whole(store: GraphStore, project: str) -> None:
    ring = chain("a", "b", "c", "a")
    head = await put(store, project, ring)
    root = NodeRef("Function", "a")
    assert await store.neighbourhood(project, [root], max_hops=99, max_nodes=99) == (head, ring)


async def test_a_ring_over_the_cap_is_taken_in_order_of_code_points(store: GraphStore, project: str) -> None:
    names = ["\U0001f600", "\uff5e", "é", "z", "Z", "_"]
    hub = GraphContents(
        nodes=tuple(function_node(name) for name in sorted(["hub", *names])),
        edges=tuple(
            sorted(Edge(NodeRef("Function", "hub"), "CALLS", NodeRef("Function", name)) for name in names)
        ),
    )
    await put(store, project, hub)
    for cap in range(1, 8):
        found = await store.neighbourhood(project, [NodeRef("Function", "hub")], max_hops=1, max_nodes=cap)
        assert found is not None
        assert {node.id for node in found[1].nodes} == {"hub", *sorted(names)[: cap - 1]}


async def test_every_hostile_id_is_kept_as_it_is_and_joined_to_its_own(
    store: GraphStore, project: str
) -> None:
    star = GraphContents(
        nodes=tuple(function_node(name, text=name) for name in sorted(HOSTILE_IDS)),
        edges=tuple(
            sorted(
                Edge(NodeRef("Function", HOSTILE_IDS[0]), "CALLS", NodeRef("Function", name))
                for name in HOSTILE_IDS
            )
        ),
    )
    await put(store, project, star)
    assert await loaded(store, project) == star
    for name in HOSTILE_IDS:
        found = await store.neighbourhood(project, [NodeRef("Function", name)], max_hops=0, max_nodes=9)
        assert found is not None
        assert [node.id for node in found[1].nodes] == [name]


async def test_two_very_long_ids_that_begin_alike_stay_two(store: GraphStore, project: str) -> None:
    pair = GraphContents(
        nodes=tuple(function_node("x" * 5_000 + end) for end in ("1", "2")),
        edges=(
            Edge(NodeRef("Function", "x" * 5_000 + "1"), "CALLS", NodeRef("Function", "x" * 5_000 + "2")),
        ),
    )
    await put(store, project, pair)
    assert await loaded(store, project) == pair


async def test_a_lone_surrogate_is_refused_and_nothing_changed(store: GraphStore, project: str) -> None:
    head = await put(store, project, chain("a"))
    bad = GraphChange(upserted=(function_node("\ud800"),))
    with pytest.raises(ValueError, match="surrogates not allowed"):
        await store.apply(project, bad, snapshot_id="t", expected_version=1)
    assert await store.load(project) == (head, chain("a"))


async def test_empty_texts_and_words_for_truth_come_back_as_texts(store: GraphStore, project: str) -> None:
    kept = (("empty", ""), ("false", "false"), ("nothing", "None"), ("one", "1"), ("true", "True"))
    graph = GraphContents(nodes=(Node(label="File", id="a", properties=kept),), edges=())
    await put(store, project, graph)
    assert await loaded(store, project) == graph


async def test_one_id_under_two_labels_is_two_nodes(store: GraphStore, project: str) -> None:
    graph = GraphContents(nodes=(Node(label="Class", id="a"), Node(label="Function", id="a")), edges=())
    await put(store, project, graph)
    assert await loaded(store, project) == graph


async def test_two_projects_with_the_same_ids_never_meet(
    opened: Open, store: GraphStore, project: str
) -> None:
    other = f"{project}.b"
    mine, theirs = chain("a", "b"), chain("b", "a", "c")
    facts = (("d", b"theirs"),)
    await put(store, project, mine)
    await put(store, other, theirs)
    await store.apply(other, GraphChange(added_facts=facts), snapshot_id="t", expected_version=1)
    assert await loaded(store, project) == mine
    assert await loaded(store, other) == theirs
    assert await store.load_facts(project) == {}
    around = await store.neighbourhood(project, [NodeRef("Function", "a")], max_hops=9, max_nodes=9)
    assert around is not None
    assert around[1] == mine
    assert await store.purge(project) == 2
    assert await store.head(project) is None
    assert await opened().load(other) == (GraphHead(graph_version=2, snapshot_id="t"), theirs)
    assert await store.load_facts(other) == dict(facts)
    await store.purge(other)


async def test_of_writers_at_once_one_is_first_and_the_others_conflict(opened: Open, project: str) -> None:
    stores = [opened() for _ in range(3)]
    await put(stores[0], project, chain("a", "b"))
    changes = [GraphChange(upserted=(function_node("a", text=f"{n}"),)) for n in range(3)]
    results = await asyncio.gather(
        *(
            store.apply(project, change, snapshot_id=f"{n}", expected_version=1)
            for n, (store, change) in enumerate(zip(stores, changes, strict=True))
        ),
        return_exceptions=True,
    )
    (winner,) = [result for result in results if isinstance(result, GraphHead)]
    losers = [result for result in results if isinstance(result, GraphConflict)]
    assert [loser.found_version for loser in losers] == [2, 2]
    assert winner.graph_version == 2
    assert await stores[0].head(project) == winner
    assert (await loaded(stores[1], project)).nodes[0].text == winner.snapshot_id


async def test_a_change_for_another_version_changes_nothing(store: GraphStore, project: str) -> None:
    head = await put(store, project, chain("a"))
    for wrong in (0, 2):
        with pytest.raises(GraphConflict) as caught:
            await store.apply(project, whole(chain("b", "c")), snapshot_id="t", expected_version=wrong)
        assert caught.value.found_version == 1
    assert await store.load(project) == (head, chain("a"))
    with pytest.raises(GraphConflict):
        await store.apply(f"{project}.never", whole(chain("b")), snapshot_id="t", expected_version=1)
    assert await store.head(f"{project}.never") is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (GraphChange(added_edges=chain("a", "zz").edges), "which the graph does not hold"),
        (
            GraphChange(added_edges=(Edge(NodeRef("Function", "a"), "IMPORTS", NodeRef("Function", "a")),)),
            "the canon has no Function -IMPORTS-> Function",
        ),
        (GraphChange(upserted=(function_node("b"), function_node("b"))), "written twice"),
        (
            GraphChange(removed=(NodeRef("Function", "a"),), added_edges=chain("a", "a").edges),
            "which the graph does not hold",
        ),
        (GraphChange(upserted=(Node(label="Method", id="m"),)), "no labels of the canon: Method"),  # pyright: ignore[reportArgumentType]  # that is what is refused
    ],
)
async def test_a_change_off_the_canon_is_refused_whole(
    store: GraphStore, project: str, change: GraphChange, reason: str
) -> None:
    head = await put(store, project, chain("a"))
    with pytest.raises(ValueError, match=reason):
        await store.apply(project, change, snapshot_id="t", expected_version=1)
    assert await store.load(project) == (head, chain("a"))


async def test_facts_are_kept_by_digest_and_dropped_by_name(store: GraphStore, project: str) -> None:
    facts = (("d1", b"\x00\xff"), ("d2", b""), ("d3", b"3" * 100_000))
    change = GraphChange(upserted=chain("a").nodes, added_facts=facts)
    await store.apply(project, change, snapshot_id="s", expected_version=0)
    assert await store.load_facts(project) == dict(facts)
    assert await store.load_facts(project, ["d3", "d1", "absent"]) == {
        "d1": b"\x00\xff",
        "d3": b"3" * 100_000,
    }
    assert await store.load_facts(project, []) == {}
    assert await store.load_facts("nobody", ["d1"]) == {}
    change = GraphChange(removed_facts=("d1", "absent"), added_facts=(("d2", b"new"),))
    head = await store.apply(project, change, snapshot_id="t", expected_version=1)
    assert head.graph_version == 2
    assert await store.load_facts(project) == {"d2": b"new", "d3": b"3" * 100_000}
    await store.purge(project)
    assert await store.load_facts(project) == {}


async def test_the_size_grows_and_shrinks_with_the_text(store: GraphStore, project: str) -> None:
    await put(store, project, chain("a", "b"))
    small = await store.size_bytes(project)
    change = GraphChange(upserted=(function_node("a", text="x" * 10_000),))
    await store.apply(project, change, snapshot_id="t", expected_version=1)
    assert await store.size_bytes(project) == small + 10_000
    change = GraphChange(removed=(NodeRef("Function", "a"),))
    await store.apply(project, change, snapshot_id="t", expected_version=2)
    assert 0 < await store.size_bytes(project) < small


async def test_an_empty_graph_is_a_graph(store: GraphStore, project: str) -> None:
    head = await store.apply(project, GraphChange(), snapshot_id="s", expected_version=0)
    assert await store.load(project) == (head, EMPTY)


async def test_after_a_purge_the_project_begins_anew(store: GraphStore, project: str) -> None:
    await put(store, project, chain("a", "b"))
    assert await store.purge(project) == 2
    head = await store.apply(project, whole(chain("a")), snapshot_id="s", expected_version=0)
    assert head.graph_version == 1
    assert await loaded(store, project) == chain("a")


async def test_a_reader_beside_writers_sees_only_whole_graphs(opened: Open, project: str) -> None:
    # Each version has its number on every node, so half of a change would show two numbers.
    names = [f"n{n:03}" for n in range(60)]

    def version(number: int) -> GraphContents:
        return GraphContents(
            nodes=tuple(function_node(name, text=f"{number}") for name in names), edges=chain(*names).edges
        )

    writer, reader = opened(), opened()
    await put(writer, project, version(1))
    is_done = asyncio.Event()

    async def write() -> None:
        for number in range(1, 8):
            change = diff_contents(version(number), version(number + 1))
            await writer.apply(project, change, snapshot_id="s", expected_version=number)
        is_done.set()

    async def read() -> set[int]:
        seen: set[int] = set()
        root = NodeRef("Function", "n030")
        while not is_done.is_set():
            for ask in (
                partial(reader.load, project),
                partial(reader.neighbourhood, project, [root], max_hops=99, max_nodes=99),
            ):
                with suppress(GraphChanging):
                    found = await ask()
                    assert found is not None
                    head, graph = found
                    assert {node.text for node in graph.nodes} == {f"{head.graph_version}"}
                    assert len(graph.nodes) == 60
                    seen.add(head.graph_version)
        return seen

    seen, _ = await asyncio.gather(read(), write())
    assert seen <= set(range(1, 9))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("opened", ["sqlite", NEO4J], indirect=True)
async def test_twenty_thousand_nodes_come_back_as_they_were(store: GraphStore, project: str) -> None:
    graph = large_graph(20_000, 20_000, text="x = 1\n")
    await put(store, project, graph)
    assert await loaded(store, project) == graph
    assert await store.purge(project) == 20_000


async def test_a_store_that_can_write_says_so(store: GraphStore) -> None:
    await store.check()
    await store.close()
    await store.close()


async def test_of_first_writers_at_once_one_makes_the_graph_and_the_others_conflict(
    opened: Open, project: str
) -> None:
    graphs = [chain(*(f"{writer}.py::{n}" for n in range(6))) for writer in "abc"]
    stores = [opened() for _ in graphs]
    results = await asyncio.gather(
        *(
            store.apply(project, whole(graph), snapshot_id="s", expected_version=0)
            for store, graph in zip(stores, graphs, strict=True)
        ),
        return_exceptions=True,
    )
    (winner,) = [n for n, result in enumerate(results) if isinstance(result, GraphHead)]
    assert sum(isinstance(result, GraphConflict) for result in results) == 2
    assert await loaded(stores[0], project) == graphs[winner]
