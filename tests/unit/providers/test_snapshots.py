"""Snapshots of graphs: loaded once a version, kept within bounds, fresh for whoever asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from worker.errors import StoreUnavailable
from worker.graph.links import names_in
from worker.graph.model import GraphChange, GraphContents, GraphHead, Node, NodeRef
from worker.graph.store import GraphChanging
from worker.providers.snapshots import Snapshots
from worker.providers.threads import SourceThreads
from worker.stores.sqlite_graph import SqliteGraphStore


def function(number: int) -> Node:
    return Node(
        label="Function", id=f"a.py::f{number}", name=f"f{number}", path="a.py", text="def f(): ...\n"
    )


class WatchedStore(SqliteGraphStore):
    """The real store, which counts loads and can be held up, or be away."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.loads = 0
        self.parts = 0
        self.loading = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self.is_away = False
        self.is_changing = False
        self.may_size = asyncio.Event()
        self.may_size.set()
        self.sizing = asyncio.Event()
        self.asked_while_changing = asyncio.Event()

    async def size_bytes(self, project_id: str) -> int:
        self.sizing.set()
        await self.may_size.wait()
        return await super().size_bytes(project_id)

    async def head(self, project_id: str) -> GraphHead | None:
        if self.is_away:
            raise StoreUnavailable("sqlite", "away")
        if self.is_changing:
            self.asked_while_changing.set()
            raise GraphChanging("sqlite")
        return await super().head(project_id)

    async def load(self, project_id: str) -> tuple[GraphHead, GraphContents] | None:
        self.loads += 1
        self.loading.set()
        await self.open.wait()
        return await super().load(project_id)

    async def neighbourhood(
        self,
        project_id: str,
        roots: Sequence[NodeRef],
        *,
        names: Sequence[str] = (),
        max_hops: int,
        max_nodes: int,
    ) -> tuple[GraphHead, GraphContents] | None:
        self.parts += 1
        return await super().neighbourhood(
            project_id, roots, names=names, max_hops=max_hops, max_nodes=max_nodes
        )

    async def write(self, project_id: str, count: int) -> GraphHead:
        head = await super().head(project_id)
        version = head.graph_version if head else 0
        change = GraphChange(upserted=tuple(function(n) for n in range(count)))
        return await self.apply(project_id, change, snapshot_id=f"v{version + 1}", expected_version=version)


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncGenerator[WatchedStore]:
    opened = WatchedStore(tmp_path / "graph.db")
    yield opened
    await opened.close()


def snapshots_of(store: WatchedStore, *, max_bytes: int = 10_000_000) -> Snapshots:
    return Snapshots(store, SourceThreads(), max_bytes=max_bytes)


async def test_a_project_that_was_never_indexed_has_none(store: WatchedStore) -> None:
    assert await snapshots_of(store).latest("shop", roots=()) is None


async def test_a_version_is_loaded_once_however_many_ask(store: WatchedStore) -> None:
    await store.write("shop", 3)
    snapshots = snapshots_of(store)
    found = await asyncio.gather(*(snapshots.latest("shop", roots=()) for _ in range(5)))
    assert store.loads == 1
    assert {snapshot.head.snapshot_id for snapshot in found if snapshot} == {"v1"}
    assert await snapshots.latest("shop", roots=()) is found[0]


async def test_a_new_version_is_loaded_and_takes_the_place_of_the_old_one(store: WatchedStore) -> None:
    await store.write("shop", 1)
    snapshots = snapshots_of(store)
    await snapshots.latest("shop", roots=())
    await store.write("shop", 2)
    found = await snapshots.latest("shop", roots=())
    assert found is not None
    assert (found.head.graph_version, len(found.nodes)) == (2, 2)


async def test_while_a_version_loads_the_one_before_is_given_unless_the_new_one_was_asked_for(
    store: WatchedStore,
) -> None:
    await store.write("shop", 1)
    snapshots = snapshots_of(store)
    await snapshots.latest("shop", roots=())
    await store.write("shop", 2)
    store.open.clear()
    stale = await snapshots.latest("shop", roots=())
    assert stale is not None
    assert stale.head.graph_version == 1
    fresh = asyncio.create_task(snapshots.latest("shop", roots=(), at_least_version=2))
    store.open.set()
    found = await fresh
    assert found is not None
    assert found.head.graph_version == 2
    assert store.loads == 2


async def test_loading_goes_on_when_who_waited_has_given_up(store: WatchedStore) -> None:
    await store.write("shop", 1)
    snapshots = snapshots_of(store)
    store.open.clear()
    waiting = asyncio.create_task(snapshots.latest("shop", roots=()))
    await store.loading.wait()
    waiting.cancel()
    await asyncio.wait({waiting})
    store.open.set()
    assert await snapshots.latest("shop", roots=()) is not None
    assert store.loads == 1


async def test_what_was_loaded_while_the_size_was_asked_for_is_not_loaded_again(store: WatchedStore) -> None:
    await store.write("shop", 1)
    snapshots = snapshots_of(store)
    store.open.clear()
    first = asyncio.create_task(snapshots.latest("shop", roots=()))
    await store.loading.wait()
    store.may_size.clear()
    store.sizing.clear()
    second = asyncio.create_task(snapshots.latest("shop", roots=()))
    await store.sizing.wait()
    store.open.set()
    loaded = await first
    store.may_size.set()
    assert await second is loaded
    assert store.loads == 1


async def test_a_version_that_was_asked_for_is_waited_for(store: WatchedStore) -> None:
    snapshots = snapshots_of(store)
    waiting = asyncio.create_task(snapshots.latest("shop", roots=(), at_least_version=2))
    await store.write("shop", 1)
    await store.write("shop", 2)
    found = await waiting
    assert found is not None
    assert found.head.graph_version == 2


async def test_a_graph_too_large_to_hold_is_read_around_the_roots(store: WatchedStore) -> None:
    await store.write("shop", 50)
    snapshots = snapshots_of(store, max_bytes=100)
    found = await snapshots.latest("shop", roots=[function(7).ref])
    assert found is not None
    assert [node.id for node in found.nodes] == ["a.py::f7"]
    assert (store.loads, store.parts) == (0, 1)


async def test_a_graph_too_large_to_hold_is_entered_by_names_too(store: WatchedStore) -> None:
    await store.write("shop", 50)
    snapshots = snapshots_of(store, max_bytes=100)
    names = names_in("Why does `f7` call shop.f9() and not f1, F8 or f99?")
    found = await snapshots.latest("shop", roots=[function(3).ref], names=names)
    assert found is not None
    assert [node.name for node in found.nodes] == ["f3", "f7", "f9"]


async def test_of_several_projects_the_one_used_longest_ago_is_let_go(store: WatchedStore) -> None:
    for project in ("a", "b"):
        await store.write(project, 5)
    first = await snapshots_of(store).latest("a", roots=())
    assert first is not None
    snapshots = snapshots_of(store, max_bytes=int(1.5 * first.size_bytes))
    store.loads = 0
    for project in ("a", "b", "b", "a"):
        await snapshots.latest(project, roots=())
    assert store.loads == 3


async def test_a_store_that_is_away_says_so_and_is_asked_again(store: WatchedStore) -> None:
    await store.write("shop", 1)
    snapshots = snapshots_of(store)
    store.is_away = True
    with pytest.raises(StoreUnavailable):
        await snapshots.latest("shop", roots=())
    await snapshots.preload(["shop"])  # what cannot be loaded now is no reason not to start
    store.is_away = False
    assert await snapshots.latest("shop", roots=()) is not None


async def test_a_start_loads_what_the_store_holds_as_far_as_there_is_room(store: WatchedStore) -> None:
    for project, count in (("a", 5), ("b", 500), ("c", 5)):
        await store.write(project, count)
    first = await snapshots_of(store).latest("a", roots=())
    assert first is not None
    snapshots = snapshots_of(store, max_bytes=4 * first.size_bytes)
    await snapshots.preload(["c"])
    await snapshots.preload_stored()
    store.loads = 0
    for project in ("a", "c"):
        assert await snapshots.latest(project, roots=()) is not None
    assert store.loads == 0
    store.is_away = True
    await snapshots.preload_stored()  # what cannot be loaded now is no reason not to start


async def test_while_a_graph_is_being_changed_the_one_before_is_given(store: WatchedStore) -> None:
    await store.write("shop", 1)
    snapshots = snapshots_of(store)
    store.is_changing = True
    with pytest.raises(StoreUnavailable):
        await snapshots.latest("shop", roots=())
    store.is_changing = False
    before = await snapshots.latest("shop", roots=())
    await store.write("shop", 2)
    store.is_changing = True
    for version in (0, 1):
        assert await snapshots.latest("shop", roots=(), at_least_version=version) is before
    store.asked_while_changing.clear()
    asked = asyncio.create_task(snapshots.latest("shop", roots=(), at_least_version=2))
    await store.asked_while_changing.wait()
    assert not asked.done()
    store.is_changing = False
    found = await asked
    assert found is not None
    assert found.head.graph_version == 2


async def test_purged_projects_are_let_go(store: WatchedStore) -> None:
    await store.write("shop", 1)
    snapshots = snapshots_of(store)
    await snapshots.latest("shop", roots=())
    await store.purge("shop")
    snapshots.forget("shop")
    assert await snapshots.latest("shop", roots=()) is None


async def test_a_project_that_another_process_purged_is_not_kept(store: WatchedStore) -> None:
    snapshots = Snapshots(store, SourceThreads(), max_bytes=10**9)
    await store.write("p", 1)
    assert await snapshots.latest("p", roots=()) is not None
    await store.purge("p")
    assert await snapshots.latest("p", roots=()) is None
    # Another graph of the same version and digest is not taken for the one before.
    await store.write("p", 2)
    loads = store.loads
    found = await snapshots.latest("p", roots=())
    assert found is not None
    assert store.loads == loads + 1
    await snapshots.close()


async def test_a_graph_that_was_made_anew_after_a_purge_takes_the_place_of_the_old_one(
    store: WatchedStore,
) -> None:
    for count in (1, 2, 3):
        await store.write("shop", count)
    snapshots = snapshots_of(store)
    old = await snapshots.latest("shop", roots=())
    assert old is not None
    assert old.head.graph_version == 3
    await store.purge("shop")
    await store.write("shop", 5)
    store.open.clear()
    asked = asyncio.create_task(snapshots.latest("shop", roots=()))
    store.open.set()
    found = await asked
    assert found is not None
    assert (found.head.graph_version, len(found.nodes)) == (1, 5)
    store.loads = 0
    assert await snapshots.latest("shop", roots=()) is found
    assert store.loads == 0
