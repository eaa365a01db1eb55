"""The AST layer of a worker that does not see the files: what an index kept of them, said to be so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.memory_graph import MemoryGraphStore
from tests.unit.providers.frames import BUDGET, SCOPE, frame, texts
from tests.unit.providers.test_ast import SHOP
from worker.code.catalogue import KEY
from worker.code.indexing import IndexOptions, index_files
from worker.code.sources import SourceRoots
from worker.errors import StoreUnavailable, Unavailable
from worker.graph.model import GraphChange, GraphHead
from worker.graph.store import GraphChanging, GraphStore
from worker.ports import LayerContribution
from worker.providers.ast import INDEX_SOURCE, AstProvider
from worker.providers.indexed_modules import ModuleIndex
from worker.stores.sqlite_graph import SqliteGraphStore

PLAIN = IndexOptions(with_history=False, processes=1)
NAMED = [*SHOP, "shop/absent.py", "README.md"]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[GraphStore]:
    made = SqliteGraphStore(tmp_path / "graph.db")
    yield made
    await made.close()


async def put(store: GraphStore, files: dict[str, str], *, project_id: str = SCOPE.project_id) -> None:
    contents = {path: text.encode() for path, text in files.items()}
    await index_files(store, project_id, contents, options=PLAIN)


async def layer_of(
    index: ModuleIndex | None, *, named: list[str] = NAMED, roots: SourceRoots | None = None
) -> LayerContribution:
    provider = AstProvider(roots or SourceRoots({}), index=index)
    return await provider.provide(frame(payload={"files_created": named}), SCOPE, BUDGET)


async def test_the_same_files_give_the_same_signals_from_disk_and_from_the_index_which_says_so(
    store: GraphStore, tmp_path: Path
) -> None:
    for path, text in SHOP.items():
        target = tmp_path / "root" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    await put(store, SHOP)
    seen = await layer_of(None, roots=SourceRoots({SCOPE.project_id: (tmp_path / "root",)}))
    kept = await layer_of(ModuleIndex(store))
    assert kept.status == "ok"
    assert texts(kept) == texts(seen) != []
    assert kept.heading == f"{seen.heading}\nsource: {INDEX_SOURCE}"
    assert INDEX_SOURCE not in (seen.heading or "")


async def test_a_root_that_is_on_another_host_is_as_none(store: GraphStore, tmp_path: Path) -> None:
    await put(store, SHOP)
    elsewhere = SourceRoots({SCOPE.project_id: (tmp_path / "not-here",)})
    index = ModuleIndex(store)
    assert await layer_of(index, roots=elsewhere) == await layer_of(index)
    for without in (None, ModuleIndex(MemoryGraphStore())):
        with pytest.raises(Unavailable, match="root cannot be opened"):
            await layer_of(without, roots=elsewhere)


async def test_a_directory_that_is_not_below_the_root_here_is_looked_for_in_the_index(
    store: GraphStore, tmp_path: Path
) -> None:
    await put(store, {f"service/{path}": text for path, text in SHOP.items()})
    provider = AstProvider(SourceRoots({SCOPE.project_id: (tmp_path,)}), index=ModuleIndex(store))
    asked = frame(payload={"files_created": NAMED, "project_dir": "service"})
    layer = await provider.provide(asked, SCOPE, BUDGET)
    assert layer.status == "ok"
    assert any("service/shop/cart.py" in text for text in texts(layer))


async def test_without_root_and_index_the_layer_is_off_and_no_other_projects_files_are_seen(
    store: GraphStore,
) -> None:
    await put(store, SHOP, project_id="other")
    for index in (None, ModuleIndex(store)):
        layer = await layer_of(index)
        assert (layer.status, layer.reason) == ("off", "not_configured")


async def test_an_indexed_project_without_the_named_files_has_no_signals(store: GraphStore) -> None:
    await put(store, SHOP)
    layer = await layer_of(ModuleIndex(store), named=["shop/absent.py", "../shop/cart.py"])
    assert (layer.status, layer.reason, texts(layer)) == ("empty", "no_data", [])


async def test_a_file_that_was_read_in_part_makes_the_layer_partial(store: GraphStore) -> None:
    broken = "def pay(order):\n    return order\n\n\ndef half(:\n"
    await put(store, {**SHOP, "shop/broken.py": broken})
    layer = await layer_of(ModuleIndex(store), named=["shop/broken.py", *SHOP])
    assert (layer.status, layer.reason) == ("partial", "section_error")
    assert any("Cart" in text for text in texts(layer))


async def test_while_a_graph_is_being_changed_what_was_there_before_is_shown(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store, SHOP)
    index = ModuleIndex(store)
    await layer_of(index)
    await put(store, {path: text + "\n\nlater = 1\n" for path, text in SHOP.items()})
    before = await layer_of(ModuleIndex(store))

    async def changing(_: str) -> GraphHead | None:
        raise GraphChanging("sqlite")

    monkeypatch.setattr(store, "head", changing)
    # Whether this worker has asked before or not: what is kept says which files there are.
    assert await layer_of(index) == before
    assert await layer_of(ModuleIndex(store)) == before
    load_facts = store.load_facts

    async def half(project_id: str, keys: Collection[str] | None = None) -> Mapping[str, bytes]:
        return dict([*(await load_facts(project_id, keys)).items()][:1])

    monkeypatch.setattr(store, "load_facts", half)
    with pytest.raises(StoreUnavailable):
        await layer_of(index)


async def test_what_was_changed_is_what_is_shown(store: GraphStore) -> None:
    index = ModuleIndex(store)
    await put(store, {"a.py": "def old(x): ...\n"})
    assert any("old" in text for text in texts(await layer_of(index, named=["a.py"])))
    await put(store, {"a.py": "def new(x): ...\n"})
    shown = " ".join(texts(await layer_of(index, named=["a.py"])))
    assert "new" in shown
    assert "old" not in shown


async def test_a_graph_of_which_nothing_was_kept_is_as_none(store: GraphStore) -> None:
    await store.apply(SCOPE.project_id, GraphChange(), snapshot_id="s", expected_version=0)
    assert await ModuleIndex(store).find(SCOPE.project_id, ["a.py"]) is None


class Changing(MemoryGraphStore):
    """Another index comes between the question for the keys and that for what lies under them."""

    is_armed = False

    async def load_facts(self, project_id: str, keys: Collection[str] | None = None) -> Mapping[str, bytes]:
        if self.is_armed and keys is not None and KEY not in keys:
            self.is_armed = False
            await put(self, {"a.py": "def second(x): ...\n"})
        return await super().load_facts(project_id, keys)


async def test_what_changes_in_the_middle_is_asked_for_again() -> None:
    store = Changing()
    await put(store, {"a.py": "def first(x): ...\n"})
    store.is_armed = True
    found = await ModuleIndex(store).find(SCOPE.project_id, ["a.py"])
    assert found is not None
    assert [function.name for function in found.modules[0].functions] == ["second"]
    assert not store.is_armed


class Away(MemoryGraphStore):
    async def head(self, project_id: str) -> GraphHead | None:
        raise StoreUnavailable("neo4j")


async def test_a_store_that_is_away_is_what_the_layer_raises() -> None:
    with pytest.raises(StoreUnavailable):
        await layer_of(ModuleIndex(Away()))


async def test_many_ask_at_once_and_get_the_same(store: GraphStore) -> None:
    await put(store, SHOP)
    index = ModuleIndex(store)
    layers = await asyncio.gather(*(layer_of(index) for _ in range(5)))
    assert all(replace(layer) == layers[0] for layer in layers)
