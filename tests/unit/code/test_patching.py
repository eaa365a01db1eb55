"""What an index may look at where little has changed, and what it does where what was kept is lost."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.memory_graph import MemoryGraphStore
from worker.code.catalogue import KEY
from worker.code.indexing import IndexCache, IndexOptions, index_files, index_project
from worker.code.reading import FileReaders, FileReading
from worker.code.steps import Additions, CodeOutline, ProjectStep
from worker.graph.model import Edge, GraphContents, GraphHead, Node, NodeRef

SETTLED = IndexOptions(with_history=False, unsettled_seconds=-60.0)
FILES = {f"m{n}.py": f"from base import helper\ndef f{n}(): helper()\n".encode() for n in range(30)}
TREE = FILES | {
    "base.py": b"def helper(): pass\n",
    "spec.md": b"- **REQ-1**: It MUST help.\n",
    "t.py": b"def g():\n    # @traces REQ-1\n    pass\n",
}


class Asked(MemoryGraphStore):
    """Notes what is asked for; the graph, and all facts at once, are not to be had while it is `strict`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_strict = False
        self.keys: list[str] = []

    async def load(self, project_id: str) -> tuple[GraphHead, GraphContents] | None:
        assert not self.is_strict, "the graph is loaded"
        return await super().load(project_id)

    async def load_facts(self, project_id: str, keys: Collection[str] | None = None) -> Mapping[str, bytes]:
        assert keys is not None or not self.is_strict, "all facts are loaded"
        self.keys += keys or []
        return await super().load_facts(project_id, keys)

    def kinds(self) -> dict[str, int]:
        """How many keys of each kind were asked for since the last time."""
        found = [key.split(":")[0] for key in self.keys if not key.startswith("outlines:")]
        self.keys.clear()
        return {kind: found.count(kind) for kind in found}


def write(root: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        (root / path).write_bytes(content)


async def test_an_unchanged_tree_costs_the_catalogue_and_a_scan(tmp_path: Path) -> None:
    write(tmp_path, TREE)
    store = Asked()
    first = await index_project(store, "p", tmp_path, options=SETTLED)
    store.is_strict = True
    store.kinds()
    again = await index_project(store, "p", tmp_path, options=SETTLED)
    assert store.kinds() == {KEY: 1}
    assert set(again.seconds) == {"load", "scan"}
    assert (again.is_changed, again.files_read, again.files_linked) == (False, 0, 0)
    assert (again.graph_version, again.snapshot_id) == (first.graph_version, first.snapshot_id)
    assert (again.files, again.nodes, again.edges) == (first.files, first.nodes, first.edges)
    assert (again.exact_calls, again.not_whole) == (first.exact_calls, first.not_whole)
    assert store.applies == 1


async def test_a_file_that_was_only_touched_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, TREE)
    store = Asked()
    await index_project(store, "p", tmp_path, options=SETTLED)
    store.is_strict = True
    os.utime(tmp_path / "base.py", (1, 1))
    assert not (await index_project(store, "p", tmp_path, options=SETTLED)).is_changed


async def test_a_changed_body_costs_what_is_kept_of_its_own_file() -> None:
    store = Asked()
    await index_files(store, "p", TREE, options=SETTLED)
    store.is_strict = True
    store.kinds()
    await index_files(store, "p", {"base.py": b"def helper(): return 1\n"}, options=SETTLED)
    assert store.kinds() == {KEY: 1, "history": 1, "reading": 1, "links": 1}


async def test_a_changed_name_costs_what_is_kept_of_those_that_name_it() -> None:
    store = Asked()
    await index_files(store, "p", TREE | {"x.py": b"def f(): other()\n"}, options=SETTLED)
    store.is_strict = True
    store.kinds()
    report = await index_files(store, "p", {"base.py": b"def renamed(): pass\n"}, options=SETTLED)
    assert report.files_linked == 31
    found = store.kinds()
    assert (found["links"], found["reading"]) == (
        31,
        31 + 1,
    )  # the document is read, too: nodes came and went


async def test_what_a_process_keeps_need_not_be_asked_for() -> None:
    store, cache = Asked(), IndexCache()
    await index_files(store, "p", TREE, options=SETTLED, cache=cache)
    store.is_strict = True
    store.kinds()
    await index_files(store, "p", {"base.py": b"def helper(): return 1\n"}, options=SETTLED, cache=cache)
    assert store.kinds() == {"reading": 1, "links": 1}


@settings(max_examples=40, deadline=None)
@given(st.data())
async def test_whatever_is_lost_or_spoilt_the_result_is_the_same(data: st.DataObject) -> None:
    store, whole = MemoryGraphStore(), MemoryGraphStore()
    tree = {path: TREE[path] for path in ("base.py", "m0.py", "spec.md", "t.py")}
    await index_files(store, "p", tree, options=SETTLED)
    facts = store.facts["p"]
    for key in data.draw(st.lists(st.sampled_from(sorted(facts)), max_size=4, unique=True)):
        spoil = data.draw(st.sampled_from(["lost", "empty", "short", "other"]))
        if spoil == "lost":
            del facts[key]
        else:
            facts[key] = {"empty": b"", "short": facts[key][:-2], "other": b"not what it was"}[spoil]
    changed = {"base.py": data.draw(st.sampled_from([b"def renamed(): pass\n", b"def helper(): return 1\n"]))}
    # The contents are sent again, as a scan finds them again.
    await index_files(store, "p", tree | changed, options=SETTLED)
    await index_files(whole, "p", tree | changed, options=SETTLED)
    loaded, expected = await store.load("p"), await whole.load("p")
    assert loaded is not None
    assert expected is not None
    assert loaded[1] == expected[1]
    assert loaded[0].snapshot_id == expected[0].snapshot_id


async def test_what_was_lost_is_kept_again(tmp_path: Path) -> None:
    write(tmp_path, TREE)
    store = MemoryGraphStore()
    await index_project(store, "p", tmp_path, options=SETTLED)
    kept = dict(store.facts["p"])
    del store.facts["p"][KEY]
    report = await index_project(store, "p", tmp_path, options=SETTLED)
    assert not report.is_changed
    assert store.facts["p"] == kept


def read_words(path: str, content: bytes) -> FileReading | None:
    node = Node(label="Chunk", id=f"{path}::L1", path=path, text=content.decode())
    edge = Edge(NodeRef("File", path), "DEFINES", node.ref)
    return FileReading(path=path, nodes=(node,), edges=(edge,), documents=(("words", content.decode()),))


def join_code(documents: Mapping[str, str], code: CodeOutline) -> Additions:
    first, last = sorted(ref for ref in code.refs if ref.label == "File")[:: max(1, len(documents) - 1)][:2]
    return Additions(edges=[Edge(first, "DEFINES", NodeRef("Chunk", f"{last.id}::L1"))])


async def test_a_step_that_joins_two_nodes_of_the_code_is_refused() -> None:
    options = IndexOptions(
        with_history=False,
        readers=FileReaders(first=(read_words,)),
        steps=(ProjectStep("words", join_code),),
    )
    with pytest.raises(ValueError, match="between two nodes of the code"):
        await index_files(MemoryGraphStore(), "p", {"a.txt": b"a", "b.txt": b"b"}, options=options)
