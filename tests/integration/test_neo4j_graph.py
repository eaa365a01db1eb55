"""What only the Neo4j graph store does: its schema, real labels, and what a lost or dying writer leaves."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, LiteralString, cast
from uuid import uuid4

import pytest
from neo4j import AsyncDriver

from tests.support.bolt_proxy import BoltProxy
from tests.support.graphs import EMPTY, chain, function_node, large_graph
from worker.code.indexing import index_files
from worker.errors import GraphConflict, StoreUnavailable
from worker.graph.ddl import ddl_name, get_all_ddl
from worker.graph.diff import diff_contents
from worker.graph.model import GraphChange, GraphContents, GraphHead, NodeRef
from worker.graph.store import GraphChanging
from worker.providers.snapshots import Snapshots
from worker.providers.threads import SourceThreads
from worker.stores import neo4j_schema
from worker.stores.neo4j_graph import Neo4jGraphStore
from worker.stores.neo4j_link import Neo4jLink
from worker.stores.neo4j_schema import apply_ddl

ROOT = Path(__file__).parents[2]
ROWS = 500
SOON_SECONDS = 5.0
Auth = tuple[str, str]
Kill = Callable[[str, int], Awaitable[None]]
Opens = Callable[..., Neo4jGraphStore]


@pytest.fixture
async def open_store() -> AsyncGenerator[Opens]:
    """Gives `open_store(url, auth, rows=, timeout_seconds=)`; closes all, also of a test that fails.

    A connection that nobody closed is a warning in whatever test runs when it is collected.
    """
    opened: list[Neo4jGraphStore] = []

    def made(url: str, auth: Auth, **more: Any) -> Neo4jGraphStore:
        opened.append(_open(url, auth, **more))
        return opened[-1]

    yield made
    for store in opened:
        await store.close()


@pytest.fixture
def store(open_store: Opens, neo4j_url: str, neo4j_auth: Auth) -> Neo4jGraphStore:
    return open_store(neo4j_url, neo4j_auth)


@pytest.fixture
async def project(store: Neo4jGraphStore) -> AsyncGenerator[str]:
    project_id = str(uuid4())
    yield project_id
    await store.purge(project_id)


@pytest.fixture
async def proxy(neo4j_url: str) -> AsyncGenerator[BoltProxy]:
    async with BoltProxy(neo4j_url) as made:
        yield made


def _open(url: str, auth: Auth, *, rows: int = ROWS, timeout_seconds: float = 20.0) -> Neo4jGraphStore:
    link = Neo4jLink(url, user=auth[0], password=auth[1])
    return Neo4jGraphStore(link, timeout_seconds=timeout_seconds, transaction_rows=rows)


async def _query(driver: AsyncDriver, statement: str, **parameters: Any) -> list[list[Any]]:
    found = await driver.execute_query(cast("LiteralString", statement), parameters)
    return [list(record.values()) for record in found.records]


async def _put(store: Neo4jGraphStore, project_id: str, graph: GraphContents) -> GraphHead:
    change = diff_contents(EMPTY, graph)
    return await store.apply(project_id, change, snapshot_id="s", expected_version=0)


def _renamed(graph: GraphContents, text: str) -> GraphChange:
    return GraphChange(upserted=tuple(function_node(node.id, text=text) for node in graph.nodes))


async def test_a_person_finds_functions_and_calls_under_their_own_names(
    store: Neo4jGraphStore, driver: AsyncDriver, project: str
) -> None:
    exact = chain("a.py::f", "b.py::g")
    (call,) = exact.edges
    guess = call._replace(source=call.target, target=call.source, resolution="guess", candidates=2)
    await _put(store, project, GraphContents(nodes=exact.nodes, edges=(call, guess)))
    found = await _query(
        driver,
        "MATCH (f:Function {project: $project})-[r:CALLS]->(g:Function)"
        " RETURN f.key, f.id, f.path, f.name, f.complexity, g.id, properties(r) ORDER BY f.id",
        project=project,
    )
    # A guess says that it is one; an exact call has nothing to say.
    said = {"resolution": "guess", "candidates": 2}
    assert found == [
        [f"{project}:a.py::f", "a.py::f", "a.py", "f", "1", "b.py::g", {}],
        [f"{project}:b.py::g", "b.py::g", "b.py", "g", "1", "a.py::f", said],
    ]


async def test_the_schema_is_all_online(driver: AsyncDriver, store: Neo4jGraphStore, project: str) -> None:
    names = {ddl_name(statement) for statement in get_all_ddl()}
    await _put(store, project, chain("a"))
    assert await _states(driver, names) == dict.fromkeys(names, "ONLINE")


async def test_the_schema_is_made_once_by_whoever_comes(
    driver: AsyncDriver,
    neo4j_url: str,
    neo4j_auth: Auth,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Names and labels of the test's own: others write under those of the canon meanwhile.
    ddl = [
        re.sub(r"(CONSTRAINT|INDEX) ", rf"\1 {namespace}_", statement).replace("(n:", f"(n:{namespace}_")
        for statement in get_all_ddl()[::12]
    ]
    monkeypatch.setattr(neo4j_schema, "get_all_ddl", lambda: ddl)
    names = {ddl_name(statement) for statement in ddl}
    async with AsyncExitStack() as stack:
        links = [Neo4jLink(neo4j_url, user=neo4j_auth[0], password=neo4j_auth[1]) for _ in range(3)]
        for link in links:
            stack.push_async_callback(link.close)
        made = await asyncio.gather(*(apply_ddl(link) for link in links))
        # Two that come at once may both take a statement's work for their own.
        assert {name for group in made for name in group} == names
        assert await apply_ddl(links[0]) == ()
    assert await _states(driver, names) == dict.fromkeys(names, "ONLINE")
    for statement in ddl:
        kind = "CONSTRAINT" if "CONSTRAINT" in statement else "INDEX"
        await _query(driver, f"DROP {kind} {ddl_name(statement)}")


async def _states(driver: AsyncDriver, names: set[str]) -> dict[str, str]:
    found = await _query(
        driver, "SHOW INDEXES YIELD name, state WHERE name IN $names RETURN name, state", names=[*names]
    )
    return dict(map(tuple, found))


async def test_two_nodes_of_a_label_cannot_share_a_key(
    store: Neo4jGraphStore, driver: AsyncDriver, project: str
) -> None:
    await _query(driver, "CREATE (:Function {key: $key})", key=f"{project}:a")
    with pytest.raises(StoreUnavailable, match=r"ConstraintError.*already exists"):
        await _put(store, project, chain("a"))
    await _query(driver, "MATCH (f:Function {key: $key}) DELETE f", key=f"{project}:a")
    assert await store.head(project) is None


async def test_what_others_keep_under_the_same_labels_is_neither_read_nor_forgotten(
    store: Neo4jGraphStore, driver: AsyncDriver, project: str
) -> None:
    await _put(store, project, chain("a", "b"))
    await _query(
        driver,
        "MATCH (a:Function {key: $key})"
        " CREATE (d:Decision {key: $other, project: $project, id: 'd'})-[:APPLIES_TO]->(a)"
        " CREATE (a)-[:LIKED_BY]->(:Volk {key: $other, project: $project})"
        " CREATE (a)-[:LIKED_BY]->(a)",
        key=f"{project}:a",
        other=f"{project}:d",
        project=project,
    )
    loaded = await store.load(project)
    assert loaded is not None
    assert loaded[1] == chain("a", "b")
    around = await store.neighbourhood(project, [NodeRef("Function", "a")], max_hops=3, max_nodes=9)
    assert around == loaded
    assert await store.purge(project) == 2
    left = await _query(
        driver, "MATCH (n:Decision|Volk {project: $project}) DETACH DELETE n RETURN count(*)", project=project
    )
    assert left == [[2]]


async def test_purge_leaves_nothing_of_the_project_anywhere(
    store: Neo4jGraphStore, driver: AsyncDriver, project: str
) -> None:
    graph = large_graph(1_200, 1_000, text="")
    change = diff_contents(EMPTY, graph)
    change = GraphChange(
        upserted=change.upserted, added_edges=change.added_edges, added_facts=(("d", b"fact"),)
    )
    await store.apply(project, change, snapshot_id="s", expected_version=0)
    assert await store.purge(project) == 1_200
    (left,) = await _query(
        driver,
        "MATCH (n) WHERE any(k IN keys(n) WHERE toStringOrNull(n[k]) CONTAINS $p) RETURN count(n)",
        p=project,
    )
    assert left == [0]


# --- Kills and cuts ----------------------------------------------------------------------------------

CHILD = """
import asyncio, json, sys
from tests.support.graphs import EMPTY, large_graph
from tests.integration.test_neo4j_graph import _open
from worker.graph.diff import diff_contents

url, auth, project, expected_version = json.loads(sys.argv[1])

async def main():
    store = _open(url, tuple(auth), rows=300)
    change = diff_contents(EMPTY, large_graph(6000, 0, text="new"))
    await store.apply(project, change, snapshot_id="s", expected_version=expected_version)

asyncio.run(main())
"""


@pytest.fixture
def kill_in_the_middle(driver: AsyncDriver, neo4j_url: str, neo4j_auth: Auth) -> Kill:
    """A process of its own changes the project, and dies when some of the change is committed."""

    async def kill(project: str, expected_version: int) -> None:
        argument = json.dumps([neo4j_url, neo4j_auth, project, expected_version])
        await _kill_in_the_middle(driver, project, argument)

    return kill


async def _kill_in_the_middle(driver: AsyncDriver, project: str, argument: str) -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, argument, cwd=ROOT)
    count = "MATCH (n:GraphNode {project: $project}) WHERE n.text = 'new' RETURN count(n)"
    while (await _query(driver, count, project=project))[0][0] < 300:
        assert child.returncode is None
    child.kill()
    await child.wait()
    ((written,),) = await _query(driver, count, project=project)
    assert 300 <= written < 6_000


@pytest.mark.parametrize("expected_version", [0, 1])
async def test_of_a_writer_killed_between_transactions_nobody_sees_anything_and_the_next_clears_up(
    store: Neo4jGraphStore, kill_in_the_middle: Kill, project: str, expected_version: int
) -> None:
    old = chain("old.py::a", "old.py::b")
    if expected_version:
        await _put(store, project, old)
    await kill_in_the_middle(project, expected_version)
    root = NodeRef("Function", "old.py::a")
    asked = await asyncio.gather(
        store.head(project),
        store.load(project),
        store.neighbourhood(project, [root], max_hops=1, max_nodes=9),
        return_exceptions=True,
    )
    # There was no graph before a first one, so there is none; but of what there was there is nothing else.
    assert {type(answer) for answer in asked} == {GraphChanging if expected_version else type(None)}
    assert await store.size_bytes(project) == 0
    with pytest.raises(GraphConflict) as caught:
        await store.apply(project, GraphChange(), snapshot_id="t", expected_version=1)
    assert caught.value.found_version == 0
    head = await _put(store, project, chain("c"))
    assert head.graph_version == expected_version + 1  # later than what was
    assert await store.load(project) == (head, chain("c"))
    assert await store.purge(project) == 1


async def test_what_a_killed_writer_left_can_be_purged(
    store: Neo4jGraphStore, driver: AsyncDriver, kill_in_the_middle: Kill, project: str
) -> None:
    await kill_in_the_middle(project, 0)
    assert await store.purge(project) >= 300
    assert await _query(driver, "MATCH (n {project: $project}) RETURN count(n)", project=project) == [[0]]


class CutLink(Neo4jLink):
    """A connection that is lost after so many more commits; None is for good ones."""

    commits_left: int | None = None

    async def write(self, work: Any, *, timeout_seconds: float) -> Any:
        if self.commits_left == 0:
            raise StoreUnavailable("neo4j", "cut")
        if self.commits_left is not None:
            self.commits_left -= 1
        return await super().write(work, timeout_seconds=timeout_seconds)


@pytest.fixture
async def cut_link(neo4j_url: str, neo4j_auth: Auth) -> AsyncGenerator[CutLink]:
    link = CutLink(neo4j_url, user=neo4j_auth[0], password=neo4j_auth[1])
    yield link
    await link.close()


async def test_wherever_an_index_is_cut_off_the_next_one_loses_no_file(
    cut_link: CutLink, store: Neo4jGraphStore, project: str
) -> None:
    cut = Neo4jGraphStore(cut_link, timeout_seconds=20.0, transaction_rows=9)
    files: dict[str, bytes | None] = {f"m{n}.py": f"def f{n}(): pass\n".encode() for n in range(5)}
    await index_files(cut, project, files)
    commits, was_changing, version = 0, 0, 1
    is_cut = True
    while is_cut:
        commits += 1
        is_cut = False
        # The second one takes over from the first, and is cut off in the middle of that.
        for name, left in (("new.py", commits), ("again.py", commits + 2)):
            cut_link.commits_left = left
            content = f"def g{commits}(): pass\n".encode()
            try:
                await index_files(cut, project, {name: content})
            except StoreUnavailable:
                is_cut = True
        cut_link.commits_left = None
        try:
            await store.head(project)
        except GraphChanging:
            was_changing += 1
        files["m0.py"] = f"def f{commits}(): pass\n".encode()
        report = await index_files(cut, project, {"m0.py": files["m0.py"]})
        assert report.not_whole == ()
        loaded = await store.load(project)
        assert loaded is not None
        assert loaded[0].graph_version > version
        version = loaded[0].graph_version
        names = {node.id for node in loaded[1].nodes if node.label == "Function"}
        assert {f"m{n}.py::f{n or commits}" for n in range(5)} <= names
        assert names <= {f"m{n}.py::f{n or commits}" for n in range(5)} | {
            f"{name}.py::g{n}" for name in ("new", "again") for n in range(1, commits + 1)
        }
    assert was_changing > 2


async def test_while_a_large_change_is_under_way_the_graph_before_is_used(
    cut_link: CutLink, store: Neo4jGraphStore, project: str
) -> None:
    held, late = (Snapshots(store, SourceThreads(), max_bytes=10**9) for _ in range(2))
    cut = Neo4jGraphStore(cut_link, timeout_seconds=20.0, transaction_rows=5)
    graph = large_graph(90, 0)
    await _put(cut, project, graph)
    before = await held.latest(project, roots=())
    assert before is not None
    cut_link.commits_left = 2
    with pytest.raises(StoreUnavailable, match="cut"):
        await cut.apply(project, _renamed(graph, "new"), snapshot_id="t", expected_version=1)
    assert await held.latest(project, roots=()) is before
    with pytest.raises(GraphChanging):
        await late.latest(project, roots=())
    await store.purge(project)
    assert await held.latest(project, roots=()) is None


async def test_a_purge_that_was_cut_off_leaves_nothing_for_an_index(cut_link: CutLink, project: str) -> None:
    store = Neo4jGraphStore(cut_link, timeout_seconds=20.0, transaction_rows=5)
    await index_files(store, project, {"a.py": b"def f(): pass\n"})
    cut_link.commits_left = 1
    with pytest.raises(StoreUnavailable):
        await store.purge(project)
    cut_link.commits_left = None
    assert await store.head(project) is None
    assert await store.load_facts(project) == {}
    await index_files(store, project, {"b.py": b"def g(): pass\n"})
    loaded = await store.load(project)
    assert loaded is not None
    assert {node.id for node in loaded[1].nodes if node.label == "File"} == {"b.py"}


async def test_a_change_cut_before_its_commit_leaves_the_graph_that_was(
    open_store: Opens, store: Neo4jGraphStore, proxy: BoltProxy, neo4j_auth: Auth, project: str
) -> None:
    graph = large_graph(300, 100, text="old")
    head = await _put(store, project, graph)
    writer = open_store(proxy.url, neo4j_auth)
    await writer.apply(project, GraphChange(), snapshot_id="s", expected_version=1)
    proxy.cut_at_commit, proxy.is_refusing_after_cut = "before", True
    with pytest.raises(StoreUnavailable):
        await writer.apply(project, _renamed(graph, "new"), snapshot_id="t", expected_version=2)
    assert proxy.was_cut.is_set()
    assert await store.load(project) == (GraphHead(graph_version=2, snapshot_id="s"), graph)
    proxy.accept_again()
    head = await writer.apply(project, _renamed(graph, "new"), snapshot_id="t", expected_version=2)
    assert head == GraphHead(graph_version=3, snapshot_id="t")


@pytest.mark.parametrize("rows", [ROWS, 40])
async def test_a_commit_whose_answer_is_lost_counts_once(
    open_store: Opens, store: Neo4jGraphStore, proxy: BoltProxy, neo4j_auth: Auth, project: str, *, rows: int
) -> None:
    graph = large_graph(100, 50, text="old")
    await _put(store, project, graph)
    writer = open_store(proxy.url, neo4j_auth, rows=rows)
    await writer.apply(project, GraphChange(), snapshot_id="s", expected_version=1)
    proxy.cut_at_commit = "after"
    head = await writer.apply(project, _renamed(graph, "new"), snapshot_id="t", expected_version=2)
    assert proxy.was_cut.is_set()
    assert head == GraphHead(graph_version=3, snapshot_id="t")
    loaded = await store.load(project)
    assert loaded is not None
    assert loaded[0] == head
    assert {node.text for node in loaded[1].nodes} == {"new"}
    assert loaded[1].edges == graph.edges


@pytest.mark.parametrize("rows", [5_000, 40])
async def test_a_first_commit_whose_answer_is_lost_writes_nothing_twice(
    open_store: Opens, store: Neo4jGraphStore, proxy: BoltProxy, neo4j_auth: Auth, project: str, *, rows: int
) -> None:
    graph = large_graph(100, 500, text="new")
    change = replace(diff_contents(EMPTY, graph), added_facts=(("d", b"fact"),))
    writer = open_store(proxy.url, neo4j_auth, rows=rows)
    await writer.apply(project, GraphChange(), snapshot_id="s", expected_version=0)
    for commits in range(8):
        await store.purge(project)
        proxy.cut_at_commit, proxy.commits_before_cut = "after", commits
        await writer.apply(project, change, snapshot_id="s", expected_version=0)
        assert await store.load(project) == (GraphHead(graph_version=1, snapshot_id="s"), graph)
        assert await store.load_facts(project) == {"d": b"fact"}
    assert proxy.was_cut.is_set()
    assert rows == 5_000 or proxy.cut_at_commit is None


async def test_a_first_change_of_a_project_that_holds_nodes_without_a_head_keeps_no_second_copy(
    store: Neo4jGraphStore, driver: AsyncDriver, project: str
) -> None:
    graph = large_graph(200, 250)
    await _put(store, project, graph)
    await _query(driver, "MATCH (h:GraphHead {project: $project}) DELETE h", project=project)
    head = await _put(store, project, graph)
    assert await store.load(project) == (head, graph)


# --- Outages -----------------------------------------------------------------------------------------


async def _expect_unavailable_soon(store: Neo4jGraphStore, reason: str) -> None:
    async with asyncio.timeout(SOON_SECONDS):
        results = await asyncio.gather(
            *(store.head(f"{n}") for n in range(10)),
            store.check(),
            store.neighbourhood("p", [NodeRef("Function", "a")], max_hops=1, max_nodes=9),
            return_exceptions=True,
        )
    assert {type(result) for result in results} == {StoreUnavailable}
    with pytest.raises(StoreUnavailable, match=reason):
        await store.head("p")


async def test_a_server_that_is_away_is_known_soon(open_store: Opens) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets the port
        store = open_store(f"bolt://127.0.0.1:{taken.getsockname()[1]}", ("u", "p"), timeout_seconds=1.5)
        await _expect_unavailable_soon(store, r"neo4j is unavailable: (ServiceUnavailable|no answer)")


async def test_a_server_that_accepts_and_never_answers_is_known_soon(open_store: Opens) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = open_store(f"bolt://127.0.0.1:{silent.getsockname()[1]}", ("u", "p"), timeout_seconds=1.5)
        await _expect_unavailable_soon(store, "neo4j is unavailable: ")


async def test_a_server_that_hangs_in_the_middle_is_known_soon_and_used_again(
    open_store: Opens, proxy: BoltProxy, neo4j_auth: Auth, project: str
) -> None:
    store = open_store(proxy.url, neo4j_auth, timeout_seconds=1.5)
    head = await _put(store, project, chain("a"))
    proxy.freeze()
    await _expect_unavailable_soon(store, "neo4j is unavailable: no answer within 1.5 s")
    proxy.thaw()
    assert await store.head(project) == head


async def test_a_wrong_password_says_so_without_trying_again(open_store: Opens, neo4j_url: str) -> None:
    store = open_store(neo4j_url, ("neo4j", "not-this-one"))
    with pytest.raises(StoreUnavailable, match="AuthError") as caught:
        await store.head("p")
    assert "not-this-one" not in str(caught.value)


async def test_a_closed_store_says_so(store: Neo4jGraphStore) -> None:
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.head("p")
