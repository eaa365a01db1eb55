from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.memory_graph import MemoryGraphStore
from worker.code.indexing import (
    IndexCache,
    IndexOptions,
    IndexProgress,
    NothingIndexed,
    index_files,
    index_project,
)
from worker.code.reading import FileReaders, FileReading, read_python
from worker.errors import GraphConflict, Unavailable
from worker.graph.model import Edge, GraphContents, Node, NodeRef

PLAIN = IndexOptions(with_history=False)


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for path, content in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())


async def contents_of(store: MemoryGraphStore, project_id: str = "p") -> GraphContents:
    loaded = await store.load(project_id)
    assert loaded is not None
    return loaded[1]


def node(contents: GraphContents, label: str, node_id: str) -> Node:
    return next(n for n in contents.nodes if (n.label, n.id) == (label, node_id))


def edges(contents: GraphContents, relation: str) -> set[tuple[str, str]]:
    return {(e.source.id, e.target.id) for e in contents.edges if e.relation == relation}


# --- Incremental = full -----------------------------------------------------------------------------

PATHS = (
    *("a.py", "b.py", "pkg/__init__.py", "pkg/a.py", "pkg/b.py", "pkg/sub/__init__.py", "pkg/sub/a.py"),
    *("src/lib_x/__init__.py", "src/lib_x/a.py", "tests/test_a.py", "tests/test_b.py", "ns/a.py", "README.md"),
)
NAMES = ("f", "g", "run", "Base", "A", "helper")
LINES = st.sampled_from(
    [
        "from pkg import a",
        "from pkg.a import f",
        "from pkg.a import f as g",
        "from . import a",
        "from .a import *",
        "from .sub import A as Base",
        "from .. import b",
        "from .sub.a import run, helper",
        "import pkg.a",
        "import pkg.b as a",
        "import a",
        "from a import A",
        "from b import *",
        "from lib_x import f",
        "from lib_x.a import Base",
        "from ns import a",
        "from ns.a import g as helper",
        "import numpy as run",
        "f = 1",
        "class A: pass",
        "class A(Base):\n    def run(self):\n        self.helper()\n        super().run()",
        "class Base:\n    def helper(self):\n        return f()\n    def run(self): pass",
        "class Base(A):\n    g = 1\n    class Inner:\n        def f(self): pass",
        "class A(a.A, Base):\n    @staticmethod\n    def helper(): A.run()",
        "class TestA(unittest.TestCase):\n    def setUp(self): self.x = f()\n    def test_run(self): g()",
        "def f():\n    g()\n    a.f()\n    pkg.a.run()",
        "def f(x):\n    x.helper()\n    x.run()\n    A().run()",
        "def g():\n    # @traces REQ-1\n    A()\n    Base.helper()\n    f()",
        "@overload\ndef f(): ...",
        "if x:\n    def g(): f()\nelse:\n    def g(): run()",
        "def run():\n    def f(): g()\n    f()",
        "@pytest.fixture\ndef helper(): return A()",
        "def test_f(helper):\n    # @covers REQ-2\n    helper.run()",
        "def test_A():\n    b.f()\n    run()",
        "def broken(:",
        "async def helper(self): await run()",
    ]
)
SOURCES = st.lists(LINES, max_size=6).map(lambda lines: "\n".join([*lines, ""]).encode())
EDITS = st.lists(st.tuples(st.sampled_from(PATHS), st.none() | SOURCES | SOURCES | SOURCES), max_size=6)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(PATHS), SOURCES, max_size=9), st.lists(EDITS, min_size=1, max_size=3))
async def test_an_incremental_index_equals_a_full_one(
    first: dict[str, bytes], rounds: list[list[tuple[str, bytes | None]]]
) -> None:
    store, cached, cache = MemoryGraphStore(), MemoryGraphStore(), IndexCache()
    tree: dict[str, bytes] = {"always.py": b"def always(): pass\n", "gone.py": b"import a\na.f()\n"} | first
    await index_files(store, "p", tree, options=PLAIN)
    await index_files(cached, "p", tree, options=PLAIN, cache=cache)
    for edits in rounds:
        changes = dict(edits)
        tree = {path: text for path, text in (tree | changes).items() if text is not None}
        report = await index_files(store, "p", changes, options=PLAIN)
        await index_files(cached, "p", changes, options=PLAIN, cache=cache)
        full = MemoryGraphStore()
        expected = await index_files(full, "p", tree, options=PLAIN)
        assert await contents_of(store) == await contents_of(full)
        assert await contents_of(cached) == await contents_of(full)
        assert report.snapshot_id == expected.snapshot_id
        assert (report.exact_calls, report.guessed_calls, report.unresolved_calls) == (
            expected.exact_calls,
            expected.guessed_calls,
            expected.unresolved_calls,
        )
        assert (await store.load_facts("p")).keys() == (await full.load_facts("p")).keys()


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False))
async def test_a_tree_that_is_edited_on_disk_is_indexed_as_if_anew(
    tmp_path_factory: pytest.TempPathFactory, dice: random.Random
) -> None:
    root = tmp_path_factory.mktemp("tree")
    write(root, {f"pkg/m{n}.py": f"from pkg.m{n - 1} import f{n - 1}\ndef f{n}(): f{n - 1}()\n" for n in range(6)})
    store = MemoryGraphStore()
    await index_project(store, "p", root, options=PLAIN)
    for _ in range(4):
        files = sorted(root.rglob("*.py"))
        match dice.randrange(4):
            case 0:
                (root / f"new{dice.randrange(9)}.py").write_text("from pkg import m1\nm1.f1()\n")
            case 1 if len(files) > 1:
                dice.choice(files).unlink()
            case 2:
                dice.choice(files).rename(root / "pkg" / f"r{dice.randrange(9)}.py")
            case _:
                file = dice.choice(files)
                file.write_text(file.read_text() + f"def g{dice.randrange(9)}(): f1()\n")
        full = MemoryGraphStore()
        await index_project(store, "p", root, options=PLAIN)
        await index_project(full, "p", root, options=PLAIN)
        assert await contents_of(store) == await contents_of(full)
