"""Incremental = full, with all readers: other languages, half-written Python, requirements and decisions."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import worker
from tests.support.hash_seeds import outputs
from tests.support.memory_graph import MemoryGraphStore
from worker.code.affected import affected_paths
from worker.code.indexing import IndexOptions, index_files
from worker.code.outlines import Outline, outline_of
from worker.code.readers import READERS, STEPS
from worker.code.reading import read_file

ALL = IndexOptions(with_history=False, readers=READERS, steps=STEPS)
PATHS = (
    *("a.py", "pkg/__init__.py", "pkg/a.py", "tests/test_a.py", "b.ts", "lib/index.ts", "lib/b.ts", "e.js"),
    *("c.go", "d/c.go", "J.java", "docs/spec.md", "docs/adr/0001-a.md", "docs/adr/0002-b.md", "CODEOWNERS"),
)
LINES = st.sampled_from(
    [
        "import { run } from './lib'",
        "import x from '../b'",
        "export function run() { helper(); }",
        "class A extends Base { save() { this.run(); run() } }",
        "export class Base { helper() { return new A() } }",
        "package main",
        "func run() { helper() }",
        "func (a *A) save() { run() }",
        'import "d"',
        "class J extends Base { void run() { helper(); } }",
        "from pkg import a",
        "from pkg.a import run",
        "from . import *",
        "def run(): helper()",
        "def helper():\n    # @traces REQ-1\n    x.save()",
        "class A[T]:\n    def save(self): run()",
        "def broken(",
        "class Base: pass",
        "class C(Base): pass",
        "- **REQ-1**: The system MUST run.",
        "### REQ-2: helper",
        "# 1. Use runs",
        "## Status\n\nSuperseded by [2. B](0002-b.md)",
        "Applies to `pkg/a.py` and `run()`",
        "// @traces REQ-1, REQ-2",
        "*.py @py",
        "",
    ]
)
OF_THIS_INDEX: dict[str, Any] = {
    "graph_version": 0,
    "is_changed": True,
    "skipped": {},
    "files_read": 0,
    "files_linked": 0,
    "seconds": {},
}
TEXTS = st.lists(LINES, max_size=6).map(lambda lines: "\n".join([*lines, ""]).encode())
EDITS = st.lists(st.tuples(st.sampled_from(PATHS), st.none() | TEXTS | TEXTS | TEXTS), max_size=5)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(PATHS), TEXTS, max_size=9), st.lists(EDITS, min_size=1, max_size=2))
async def test_an_incremental_index_of_any_text_equals_a_full_one(
    first: dict[str, bytes], rounds: list[list[tuple[str, bytes | None]]]
) -> None:
    store = MemoryGraphStore()
    tree = {"always.py": b"def always(): pass\n"} | first
    await index_files(store, "p", tree, options=ALL)
    for edits in rounds:
        changes = dict(edits)
        tree = {path: text for path, text in (tree | changes).items() if text is not None}
        report = await index_files(store, "p", changes, options=ALL)
        full = MemoryGraphStore()
        expected = await index_files(full, "p", tree, options=ALL)
        incremental, anew = await store.load("p"), await full.load("p")
        assert incremental is not None
        assert anew is not None
        assert incremental[1] == anew[1]
        assert store.facts == full.facts
        assert incremental[0].snapshot_id == anew[0].snapshot_id
        assert replace(report, **OF_THIS_INDEX) == replace(expected, **OF_THIS_INDEX)


GRAPH_DIGEST = """
import asyncio, hashlib, pathlib, sys
from tests.support.memory_graph import MemoryGraphStore
from worker.code.indexing import IndexOptions, index_project
from worker.code.readers import READERS, STEPS

async def main():
    store = MemoryGraphStore()
    # Without stamps, which tell of the moment and not of the tree.
    options = IndexOptions(readers=READERS, steps=STEPS, with_history=False, unsettled_seconds=1e9)
    await index_project(store, "p", pathlib.Path(sys.argv[1]), options=options)
    kept = sorted(store.facts["p"].items())
    print(hashlib.sha256(repr((await store.load("p"), kept)).encode()).hexdigest())

asyncio.run(main())
"""


@pytest.mark.timeout(180)
def test_graph_and_facts_are_the_same_under_every_hash_seed(tmp_path: Path) -> None:
    shutil.copytree(Path(worker.__file__).parent / "budget", tmp_path / "src" / "worker" / "budget")
    (tmp_path / "CODEOWNERS").write_text("*.py @b @a\n")
    (tmp_path / "spec.md").write_text("- **REQ-1**: The system MUST run, see `worker/budget/ledger.py`.\n")
    assert len(outputs(["-c", GRAPH_DIGEST, str(tmp_path)])) == 1


def outlined(files: dict[str, str]) -> dict[str, Outline]:
    return {path: outline_of(read_file(path, text.encode(), READERS)) for path, text in files.items()}


def affected(old: dict[str, str], new: dict[str, str]) -> frozenset[str] | None:
    changed = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
    return affected_paths(outlined(old), outlined(new), changed=changed)


TREE = {
    "base.py": "def f(): pass\ndef other(): pass\n",
    "alias.py": "from base import f as g\n",
    "far.py": "import alias\nalias.g()\n",
    "none.py": "def unrelated(): quite_other()\n",
}


def test_a_changed_body_affects_its_own_file_alone() -> None:
    assert affected(TREE, TREE | {"base.py": "def f(): return 1\ndef other(): pass\n"}) == {"base.py"}


def test_a_changed_name_affects_whoever_names_it_also_under_another_name() -> None:
    changed = TREE | {"base.py": "f = 1\ndef other(): pass\n"}
    assert affected(TREE, changed) == {"base.py", "alias.py", "far.py"}


def test_a_file_that_comes_or_goes_affects_whoever_names_it_or_what_is_in_it() -> None:
    added = TREE | {"quite_other.py": "def quite_other(): pass\n"}
    assert affected(TREE, added) == {"quite_other.py", "none.py"}
    assert affected(added, TREE) == {"none.py"}


def test_a_changed_base_affects_everything() -> None:
    classes = TREE | {"c.py": "class A(B): pass\n"}
    assert affected(classes, classes | {"c.py": "class A(C): pass\n"}) is None


def test_a_star_import_of_a_module_that_comes_affects_everything() -> None:
    stars = TREE | {"s.py": "from new import *\n"}
    assert affected(stars, stars | {"new.py": "def f(): pass\n"}) is None


def test_text_without_names_affects_itself_alone() -> None:
    notes = TREE | {"notes.md": "one\n"}
    assert affected(notes, notes | {"notes.md": "two\n"}) == {"notes.md"}
