from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.memory_graph import MemoryGraphStore
from worker.code.catalogue import KEY
from worker.code.indexing import (
    MAX_ATTEMPTS,
    IndexCache,
    IndexOptions,
    IndexProgress,
    NothingIndexed,
    index_files,
    index_project,
)
from worker.code.reading import FileReaders, FileReading, read_python
from worker.code.steps import Additions, CodeOutline, ProjectStep
from worker.errors import GraphConflict, Unavailable
from worker.graph.model import Edge, GraphChange, GraphContents, GraphHead, Node, NodeRef
from worker.graph.store import GraphChanging
from worker.stores.sqlite_graph import SqliteGraphStore

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
    *(
        "src/lib_x/__init__.py",
        "src/lib_x/a.py",
        "tests/test_a.py",
        "tests/test_b.py",
        "ns/a.py",
        "README.md",
    ),
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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
        assert store.facts == full.facts
        assert cached.facts == full.facts


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False))
async def test_a_tree_that_is_edited_on_disk_is_indexed_as_if_anew(
    tmp_path_factory: pytest.TempPathFactory, dice: random.Random
) -> None:
    root = tmp_path_factory.mktemp("tree")
    write(
        root,
        {f"pkg/m{n}.py": f"from pkg.m{n - 1} import f{n - 1}\ndef f{n}(): f{n - 1}()\n" for n in range(6)},
    )
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


async def test_a_changed_body_costs_one_file_and_a_changed_name_those_that_use_it() -> None:
    files = {f"m{n}.py": b"from base import helper\ndef f(): helper()\n" for n in range(5)}
    files |= {f"other{n}.py": b"def g(): pass\n" for n in range(5)} | {"base.py": b"def helper(): pass\n"}
    store = MemoryGraphStore()
    first = await index_files(store, "p", files, options=PLAIN)
    body = await index_files(store, "p", {"base.py": b"def helper(): return 1\n"}, options=PLAIN)
    name = await index_files(store, "p", {"base.py": b"def renamed(): return 1\n"}, options=PLAIN)
    again = await index_files(store, "p", {"base.py": b"def renamed(): return 1\n"}, options=PLAIN)
    reports = (first, body, name, again)
    assert [report.files_read for report in reports] == [11, 1, 1, 0]
    assert [report.files_linked for report in reports] == [11, 1, 6, 0]
    assert [report.is_changed for report in reports] == [True, True, True, False]
    assert [report.graph_version for report in reports] == [1, 2, 3, 3]


async def test_a_file_with_the_same_stamp_is_not_read_again(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "def f(): pass\n", "b.py": "def g(): pass\n"})
    for path in ("a.py", "b.py"):
        os.utime(tmp_path / path, (1, 1))
    store = MemoryGraphStore()
    options = IndexOptions(with_history=False, unsettled_seconds=-1.0)
    await index_project(store, "p", tmp_path, options=options)
    # What could not be read any more is not missed.
    opened: list[str] = []
    hook_is_on = True

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if hook_is_on and event == "open":
            opened.append(str(arguments[0]))

    sys.addaudithook(hook)
    report = await index_project(store, "p", tmp_path, options=options)
    hook_is_on = False
    assert not report.is_changed
    assert not [name for name in opened if name.endswith((".py",))]


# --- What is there ------------------------------------------------------------------------------------


async def test_a_tree_becomes_a_graph(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "CODEOWNERS": "*.py @python\n",
            "app.py": "class A:\n    def run(self): pass\ndef main(): A()\n",
            "notes.txt": "words\n",
            "bad.py": "def (:\n",
        },
    )
    store = MemoryGraphStore()
    progress: list[IndexProgress] = []
    report = await index_project(store, "p", tmp_path, options=PLAIN, on_progress=progress.append)
    contents = await contents_of(store)
    assert report.files == {"parsed": 3, "failed": 1}
    assert report.not_whole == (("bad.py", "failed", "syntax at line 1"),)
    assert report.symbols == 5
    assert report.edges == {"CALLS": 1, "DEFINES": 11, "OWNS": 2}
    assert (report.exact_calls, report.guessed_calls, report.unresolved_calls) == (1, 0, 0)
    assert report.history_reason == ""
    assert set(report.seconds) == {"load", "scan", "read", "link", "store"}
    assert {step.phase for step in progress} == set(report.seconds)
    assert node(contents, "Module", "bad.py::<module>").property("parse_error") == "syntax at line 1"
    file = node(contents, "File", "app.py")
    assert (file.language, file.name, file.property("status")) == ("python", "app.py", "parsed")
    assert file.property("sha256") == hashlib.sha256((tmp_path / "app.py").read_bytes()).hexdigest()
    assert edges(contents, "OWNS") == {("@python", "app.py"), ("@python", "bad.py")}
    assert ("p", "app.py") in edges(contents, "DEFINES")


async def test_a_requirement_that_no_document_defines_dangles() -> None:
    store = MemoryGraphStore()
    await index_files(store, "p", {"a.py": b"def f():\n    # @traces REQ-7\n    pass\n"}, options=PLAIN)
    item = node(await contents_of(store), "RequirementItem", "REQ-7")
    assert item.property("status") == "dangling"


async def test_commits_touch_the_files_that_are_there(tmp_path: Path) -> None:
    environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_COMMITTER_DATE": "1700000000 +0000"}

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, env=environment)

    git("init", "-q")
    write(tmp_path, {"a.py": "def f(): pass\n", "gone.py": ""})
    git("add", "-A")
    git("commit", "-qm", "add both")
    (tmp_path / "gone.py").unlink()
    store = MemoryGraphStore()
    report = await index_project(store, "p", tmp_path)
    contents = await contents_of(store)
    commit = next(n for n in contents.nodes if n.label == "Commit")
    assert (commit.text, commit.property("committed_at")) == ("add both", "2023-11-14T22:13:20Z")
    assert edges(contents, "TOUCHES") == {(commit.id, "a.py")}
    file = node(contents, "File", "a.py")
    assert (file.property("updated_at"), file.property("churn")) == ("2023-11-14T22:13:20Z", "1")
    # Contents that come inline keep the history that is known, and a new commit is one more version.
    await index_files(store, "p", {"b.py": b"def g(): pass\n"})
    assert edges(await contents_of(store), "TOUCHES") == {(commit.id, "a.py")}
    (tmp_path / "b.py").write_text("def g(): pass\n")
    git("add", "-A")
    git("commit", "-qm", "add b")
    after = await index_project(store, "p", tmp_path)
    assert after.nodes["Commit"] == 2
    assert after.snapshot_id != report.snapshot_id


async def test_two_projects_with_the_same_files_do_not_meet() -> None:
    store = MemoryGraphStore()
    project = "0b6f0d0e-7c1c-4b39-9a4b-1f2d3c4b5a69"
    await index_files(store, project, {"a.py": b"def f(): pass\n"}, options=PLAIN)
    await index_files(store, "other", {"a.py": b"def f(): pass\n", "b.py": b"def g(): pass\n"}, options=PLAIN)
    assert [n.id for n in (await contents_of(store, project)).nodes if n.label == "File"] == ["a.py"]
    assert node(await contents_of(store, project), "Project", project).name == project


# --- Bad input ----------------------------------------------------------------------------------------

BAD: dict[str, tuple[bytes, str, str]] = {
    "pep695.py": (b"def f[T](x: T) -> T: return x\n", "failed", "syntax at line 1"),
    "halfway.py": (b"def ok(): pass\n\ndef broken(\n", "failed", "syntax at line 3"),
    "latin1.py": (b"x = '\xe9'\n", "failed", "encoding"),
    "latin1_declared.py": (b"# coding: latin-1\ndef caf\xe9(): pass\n", "parsed", ""),
    "bom.py": (b"\xef\xbb\xbfdef f(): pass\n", "parsed", ""),
    "nul.py": (b"x = 1\n\0\n", "failed", "nul_byte at line 2"),
    "utf16.py": ("def f(): pass\n".encode("utf-16"), "failed", "encoding"),
    "empty.py": (b"", "parsed", ""),
    "terms.py": (b"x = " + b" + ".join([b"1"] * 5_000) + b"\n", "failed", "too_complex"),
    "nested.py": (b"x = " + b"(" * 5_000 + b")" * 5_000 + b"\n", "failed", ""),
    "digits.py": (b"x = " + b"9" * 10_000 + b"\n", "failed", "syntax at line 1"),
    "no_codec.py": (b"# coding: nonsense\n", "failed", "encoding"),
    "surrogate.py": (b"class A:\n    '''\\ud800'''\n", "parsed", ""),
    "odd 'quote' `tick` \"x\".py": (b"def f(): pass\n", "parsed", ""),
    "case/Session.py": (b"class Session: pass\ndef session(): pass\n", "parsed", ""),
    "case/session.py": (b"class Session: pass\n", "parsed", ""),
    "redefined.py": (b"if x:\n    def f(): pass\nelse:\n    def f(): pass\n", "parsed", ""),
    "async_nested.py": (b"async def a():\n    async def b():\n        async def c(): pass\n", "parsed", ""),
    "same.py": (
        b"".join(
            b"class %s:\n    class Same:\n        def run(self): pass\n" % name
            for name in (b"Alpha", b"Beta")
        ),
        "parsed",
        "",
    ),
    "script": (b"#!/usr/bin/env python3\ndef f(): pass\n", "parsed", ""),
    "swallowed.py": (
        b"def before(): pass\n\ndef broken(:\n    x = = 2\n\ndef after(): pass\n",
        "failed",
        "syntax at line 3",
    ),
    "latin1_def.py": (b"# \xe9\ndef f(): pass\n", "failed", "encoding"),
    "wrongly_declared.py": (b"# coding: ascii\n# \xc3\xa9\ndef f(): pass\n", "failed", "encoding"),
    "nul_def.py": (b"def f():\n    return '\0'\n", "failed", "nul_byte at line 2"),
    "aliased.py": (
        (
            b"from functools import lru_cache as memo, wraps as w\nimport contextlib as c\n"
            b"@memo(maxsize=None)\ndef f(): pass\n\n@w(f)\n@c.contextmanager\nasync def g(): yield\n\n"
            b"class K:\n    @memo\n    def m(self): pass\n"
        ),
        "parsed",
        "",
    ),
    "quotes.py": (
        (
            b'def f():\n    """`f` is \'f\', "g" or ```\ndef no(): pass\n```."""\n'
            b"    return \"`'\", '`\"'\n\n"
            b"def g(x: 'K[\"`\"]' = '`'): pass\n"
        ),
        "parsed",
        "",
    ),
}
"""Content, and what the strict reader alone makes of it: status and reason, any where it is empty."""
TOLERATED = {
    "pep695.py": "syntax at line 1",
    "halfway.py": "syntax at line 3",
    "swallowed.py": "syntax at line 3",
    "latin1.py": "encoding, read as latin-1",
    "latin1_def.py": "encoding, read as latin-1",
    "wrongly_declared.py": "encoding, read as utf-8",
    "nul.py": "nul_byte at line 2, read as a blank",
    "nul_def.py": "nul_byte at line 2, read as a blank",
    "utf16.py": "encoding, read as utf-16",
    "no_codec.py": "encoding, read as utf-8",
}
"""What is read in part all the same, and the reason that the file then gives."""
TOLERATED_SYMBOLS = {
    "pep695.py::f",
    *("halfway.py::ok", "halfway.py::broken"),
    *("swallowed.py::before", "swallowed.py::broken", "swallowed.py::after"),
    *("latin1_def.py::f", "wrongly_declared.py::f", "nul_def.py::f", "utf16.py::f"),
}
EXPECTED_SYMBOLS = {
    "latin1_declared.py::caf\xe9",
    "bom.py::f",
    "surrogate.py::A",
    "odd 'quote' `tick` \"x\".py::f",
    "case/Session.py::Session",
    "case/Session.py::session",
    "case/session.py::Session",
    "redefined.py::f",
    "redefined.py::f#2",
    "async_nested.py::a",
    "async_nested.py::a.<locals>.b",
    "async_nested.py::a.<locals>.b.<locals>.c",
    *("same.py::Alpha", "same.py::Alpha.Same", "same.py::Alpha.Same.run"),
    *("same.py::Beta", "same.py::Beta.Same", "same.py::Beta.Same.run"),
    "script::f",
    *("aliased.py::f", "aliased.py::g", "aliased.py::K", "aliased.py::K.m"),
    *("quotes.py::f", "quotes.py::g"),
}


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("readers", [FileReaders(), IndexOptions().readers], ids=["strict", "default"])
async def test_every_bad_file_is_indexed_or_reported_with_its_reason(
    tmp_path: Path, processes: int, readers: FileReaders
) -> None:
    write(tmp_path, {path: content for path, (content, _, _) in BAD.items()})
    expected = {path: (status, reason) for path, (_, status, reason) in BAD.items()}
    symbols = EXPECTED_SYMBOLS
    if readers != FileReaders():
        expected |= {path: ("partly_parsed", reason) for path, reason in TOLERATED.items()}
        symbols = EXPECTED_SYMBOLS | TOLERATED_SYMBOLS
    store = SqliteGraphStore(tmp_path / "graph.db")
    options = IndexOptions(with_history=False, processes=processes, readers=readers)
    report = await index_project(store, "p", tmp_path, options=options)
    loaded = await store.load("p")
    await store.close()
    assert loaded is not None
    nodes = loaded[1].nodes
    found = {n.id: (n.property("status"), n.property("reason")) for n in nodes if n.label == "File"}
    for path, (status, reason) in expected.items():
        assert found[path][0] == status, path
        assert found[path][1] == reason or not reason, path
        assert bool(found[path][1]) == (status != "parsed"), path
        assert (path, status) in {(p, s) for p, s, _ in report.not_whole} or status == "parsed"
    assert {n.id for n in nodes if n.label in {"Class", "Function"}} == symbols
    assert {n.path for n in nodes if n.label == "Module"} == BAD.keys()
    failed = {path for path, (status, _) in expected.items() if status == "failed"}
    assert {n.path for n in nodes if n.property("parse_error")} == failed


FOREIGN: dict[str, tuple[str, set[str]]] = {
    "ticks.js": (
        (
            '/** `f` isn\'t "g". */\nexport function f() { return `it\'s ${g(`"`)} function no() {}`; }\n'
            "const o = { 'a `quoted` name': function () {}, \"it's\": () => 1 };\nclass K { 'm-n'() {} }\n"
        ),
        {"f", "K"},
    ),
    "ticks.ts": ("type T = `a${'b'}`;\nfunction f(x: \"`\" | '\"'): void {}\n", {"T", "f"}),
    "raw.go": (
        (
            "package p\n\n// F isn't `G`.\nfunc F() string { return `func No() {} \"'` }\n\n"
            'type T struct {\n\tA int `json:"a\'b"`\n}\n'
        ),
        {"F", "T"},
    ),
    "quotes.rs": (
        "fn f<'a>(x: &'a str) -> char { r#\"fn no() {}\"#; '\"' }\nfn r#type() {}\n",
        {"f", "r#type"},
    ),
    "quotes.java": (
        'class K {\n  String f() { return "`\'\\""; }\n  char g() { return \'"\'; }\n}\n',
        {"K", "K.f", "K.g"},
    ),
    "broken.js": ("function f() { return `open; }\nfunction g() {}\n", set()),
    "broken.java": ('class K { void f() { g("open); } }\n', set()),
}


@pytest.mark.parametrize("path", FOREIGN)
async def test_quotes_and_backticks_in_other_languages_cost_no_definition(path: str) -> None:
    content, names = FOREIGN[path]
    store = MemoryGraphStore()
    await index_files(store, "p", {"ok.py": b"def f(): pass\n", path: content.encode()}, options=PLAIN)
    contents = await contents_of(store)
    found = {
        n.id.partition("::")[2] for n in contents.nodes if n.path == path and n.label in {"Class", "Function"}
    }
    assert names <= found
    assert not any(name.rpartition(".")[2].lower() == "no" for name in found)
    file = node(contents, "File", path)
    if path.startswith("broken"):
        assert (file.property("status"), file.property("reason")) == ("partly_parsed", "syntax at line 1")
    else:
        assert file.property("status") == "parsed"


@pytest.mark.parametrize("decorator", ["@t()", "@d.traced()", "@t", "@d.traced"])
@pytest.mark.parametrize("also", ["", "def broken(:\n"])
async def test_a_decorator_is_called_where_it_stands_under_any_name_however_the_file_is_read(
    decorator: str, also: str
) -> None:
    store = MemoryGraphStore()
    use = f"from deco import traced as t\nimport deco as d\n\n{decorator}\ndef g(): pass\n\n{also}"
    files: dict[str, bytes | None] = {
        "deco.py": b"def traced(): return lambda f: f\n",
        "use.py": use.encode(),
    }
    await index_files(store, "p", files, options=PLAIN)
    contents = await contents_of(store)
    assert ("use.py::<module>", "deco.py::traced") in edges(contents, "CALLS")
    assert decorator in node(contents, "Function", "use.py::g").text


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(["a.py", "b.md", "c.ts"]), st.binary(max_size=300), min_size=1))
async def test_no_content_makes_an_index_raise(files: dict[str, bytes]) -> None:
    store = MemoryGraphStore()
    report = await index_files(store, "p", {"ok.py": b"def f(): pass\n"} | files, options=PLAIN)
    assert sum(report.files.values()) + sum(report.skipped.values()) == len(files) + 1


async def test_source_that_gives_no_symbol_is_an_error_and_the_graph_stays(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "def f(): pass\n"})
    store = MemoryGraphStore()
    await index_project(store, "p", tmp_path, options=PLAIN)
    write(tmp_path, {"a.py": "def (\n"})
    with pytest.raises(NothingIndexed, match=r"none of 1 source files gave a symbol; the first is a\.py"):
        await index_project(store, "p", tmp_path, options=PLAIN)
    assert node(await contents_of(store), "Function", "a.py::f")


async def test_an_empty_tree_does_not_empty_the_graph(tmp_path: Path) -> None:
    store = MemoryGraphStore()
    await index_files(store, "p", {"a.py": b"def f(): pass\n"}, options=PLAIN)
    with pytest.raises(NothingIndexed, match="no file"):
        await index_project(store, "p", tmp_path, options=PLAIN)
    with pytest.raises(Unavailable):
        await index_project(store, "p", tmp_path / "nowhere", options=PLAIN)
    assert node(await contents_of(store), "Function", "a.py::f")


async def test_the_last_file_can_be_deleted_by_name() -> None:
    store = MemoryGraphStore()
    await index_files(store, "p", {"a.py": b"def f(): pass\n"}, options=PLAIN)
    report = await index_files(store, "p", {"a.py": None, "never.py": None}, options=PLAIN)
    assert report.files == {}


@pytest.mark.parametrize(
    "path", ["", "/a.py", "../a.py", "a/../b.py", "a//b.py", "./a.py", "a\n.py", "\ud800.py"]
)
async def test_a_path_that_no_scan_would_give_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="not a relative path"):
        await index_files(MemoryGraphStore(), "p", {path: b""}, options=PLAIN)


# --- Writers that meet, and indexers that die -----------------------------------------------------------


class RacingStore(MemoryGraphStore):
    """Another writer is faster, a few times."""

    def __init__(self, *, races: int) -> None:
        super().__init__()
        self._races = races

    async def load(self, project_id: str) -> tuple[GraphHead, GraphContents] | None:
        loaded = await super().load(project_id)
        if self._races:
            self._races -= 1
            await index_files(self, project_id, {f"rival{self._races}.py": b"def r(): pass\n"}, options=PLAIN)
        return loaded


async def test_an_index_that_lost_a_race_starts_from_what_is_there_now() -> None:
    store = RacingStore(races=1)
    await index_files(store, "p", {"a.py": b"def f(): pass\n"}, options=PLAIN)
    files = {n.id for n in (await contents_of(store)).nodes if n.label == "File"}
    assert files == {"a.py", "rival0.py"}


async def test_an_index_that_loses_every_race_says_so() -> None:
    class Lost(MemoryGraphStore):
        async def apply(
            self, project_id: str, change: GraphChange, *, snapshot_id: str, expected_version: int
        ) -> GraphHead:
            self.applies += 1
            raise GraphConflict(project_id=project_id, expected_version=0, found_version=1)

    store = Lost()
    with pytest.raises(GraphConflict):
        await index_files(store, "p", {"a.py": b"def f(): pass\n"}, options=PLAIN)
    assert store.applies == MAX_ATTEMPTS


async def test_a_stale_cache_is_not_believed() -> None:
    store, cache = MemoryGraphStore(), IndexCache()
    await index_files(store, "p", {"a.py": b"def f(): pass\n"}, options=PLAIN, cache=cache)
    await index_files(store, "p", {"b.py": b"import a\na.f()\n"}, options=PLAIN)
    await index_files(store, "p", {"c.py": b"import a\na.f()\n"}, options=PLAIN, cache=cache)
    assert edges(await contents_of(store), "CALLS") == {
        ("b.py::<module>", "a.py::f"),
        ("c.py::<module>", "a.py::f"),
    }


async def test_facts_that_are_lost_or_spoilt_cost_a_reading_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "def f(): pass\n", "b.py": "import a\na.f()\n"})
    store = MemoryGraphStore()
    first = await index_project(store, "p", tmp_path, options=PLAIN)
    before = await contents_of(store)
    facts = store.facts["p"]
    for number, key in enumerate(sorted(facts)):
        facts[key] = (b"", b"not what it was", facts[key][:-3])[number % 3]
    again = await index_project(store, "p", tmp_path, options=PLAIN)
    assert again.files_read == 2
    assert again.snapshot_id == first.snapshot_id
    assert await contents_of(store) == before


def read_all_text(path: str, content: bytes) -> FileReading | None:
    return FileReading(path=path, language="text", documents=(("words", content.decode("utf-8", "replace")),))


def count_words(documents: Mapping[str, str], code: CodeOutline) -> Additions:
    files = {ref.id for ref in code.refs if ref.label == "File"}
    specs = [Node(label="Spec", id=path, text=str(len(text.split()))) for path, text in documents.items()]
    assert documents.keys() <= files
    return Additions(specs, [Edge(NodeRef("Project", "p"), "DEFINES", spec.ref) for spec in specs])


async def test_readers_and_steps_of_others_slot_in(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "def f(): pass\n", "a.md": "two words\n"})
    more = IndexOptions(
        with_history=False,
        readers=FileReaders(also=(read_all_text,)),
        steps=(ProjectStep("words", count_words),),
    )
    store = MemoryGraphStore()
    await index_project(store, "p", tmp_path, options=PLAIN)
    await index_project(store, "p", tmp_path, options=more)
    full = MemoryGraphStore()
    await index_project(full, "p", tmp_path, options=more)
    assert await contents_of(store) == await contents_of(full)
    assert node(await contents_of(store), "Spec", "a.md").text == "2"
    assert more.rules != PLAIN.rules


async def test_files_that_other_rules_read_stay_as_they_were_until_they_are_sent_again() -> None:
    store = MemoryGraphStore()
    files: dict[str, bytes | None] = {"a.py": b"def f(): pass\n", "b.py": b"from a import f\nf()\n"}
    await index_files(store, "p", files, options=PLAIN)
    other = IndexOptions(with_history=False, readers=FileReaders(first=(read_python,), also=(read_all_text,)))
    await index_files(store, "p", {"c.py": b"def g(): pass\n"}, options=other)
    contents = await contents_of(store)
    assert node(contents, "Function", "a.py::f")
    assert node(contents, "File", "a.py").property("status") == "stale"
    await index_files(store, "p", files, options=other)
    full = MemoryGraphStore()
    await index_files(full, "p", files | {"c.py": b"def g(): pass\n"}, options=other)
    assert await contents_of(store) == await contents_of(full)


class BrokenOffStore(MemoryGraphStore):
    """A store in which a large change can be left half written: of the graph only the facts are there."""

    def __init__(self) -> None:
        super().__init__()
        self.is_broken_off = False
        self.added: list[list[str]] = []

    async def head(self, project_id: str) -> GraphHead | None:
        if self.is_broken_off:
            raise GraphChanging("memory")
        return await super().head(project_id)

    async def load(self, project_id: str) -> tuple[GraphHead, GraphContents] | None:
        await self.head(project_id)
        return await super().load(project_id)

    async def apply(
        self, project_id: str, change: GraphChange, *, snapshot_id: str, expected_version: int
    ) -> GraphHead:
        self.added.append([key for key, _ in change.added_facts])
        if self.is_broken_off:
            self.is_broken_off = False
            facts = self.facts[project_id]
            await self.purge(project_id)
            self.facts[project_id] = facts
        return await super().apply(
            project_id, change, snapshot_id=snapshot_id, expected_version=expected_version
        )


async def indexed(files: Mapping[str, bytes | None], options: IndexOptions = PLAIN) -> GraphContents:
    """The graph of these files, made at once."""
    store = MemoryGraphStore()
    await index_files(store, "p", files, options=options)
    return await contents_of(store)


async def test_a_change_that_was_broken_off_costs_no_file_that_nobody_sends_again() -> None:
    store = BrokenOffStore()
    files: dict[str, bytes | None] = {f"m{n}.py": f"def f{n}(): pass\n".encode() for n in range(4)}
    files["m4.py"] = b"from m0 import f0\nf0()\n"
    for path, content in files.items():
        await index_files(store, "p", {path: content}, options=PLAIN)
    for change in ({"m5.py": b"def g(): pass\n"}, {"m0.py": b"def f0(): return 1\n"}, {"m3.py": None}):
        store.is_broken_off = True
        files |= change
        report = await index_files(store, "p", change, options=PLAIN)
        assert report.files_read == len([content for content in change.values() if content is not None])
        assert await contents_of(store) == await indexed(files)
    # And what was found again is kept for the next one.
    await index_files(store, "p", {"m1.py": None}, options=PLAIN)
    del files["m1.py"]
    assert await contents_of(store) == await indexed(files)


async def test_what_other_rules_read_outlives_changes_that_were_broken_off() -> None:
    store = BrokenOffStore()
    files: dict[str, bytes | None] = {"a.py": b"def f(): pass\n", "b.py": b"from a import f\nf()\n"}
    await index_files(store, "p", files, options=PLAIN)
    other = IndexOptions(with_history=False, readers=FileReaders(first=(read_python,), also=(read_all_text,)))
    for path in ("c.py", "d.py"):
        store.is_broken_off = True
        files[path] = b"def g(): pass\n"
        await index_files(store, "p", {path: files[path]}, options=other)
        contents = await contents_of(store)
        assert node(contents, "Function", "a.py::f")
        assert node(contents, "File", "a.py").property("status") == "stale"
    await index_files(store, "p", files, options=other)
    assert await contents_of(store) == await indexed(files, other)


async def test_a_tree_whose_change_was_broken_off_is_read_as_far_as_it_must_be(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "def f(): pass\n", "b.py": "import a\na.f()\n"})
    store = BrokenOffStore()
    other = IndexOptions(with_history=False, readers=FileReaders(first=(read_python,), also=(read_all_text,)))
    for options, files_read in ((PLAIN, 2), (PLAIN, 0), (other, 2)):
        report = await index_project(store, "p", tmp_path, options=options)
        assert report.files_read == files_read
        assert report.not_whole == ()
        store.is_broken_off = True


async def test_the_catalogue_is_stored_after_all_that_it_names() -> None:
    store = BrokenOffStore()
    for content in (b"def f(): pass\n", b"def g(): pass\n"):
        await index_files(store, "p", {"a.py": content}, options=PLAIN)
    assert [keys[-1] for keys in store.added] == [KEY, KEY]
    assert min(map(len, store.added)) > 2


async def test_an_indexer_that_is_killed_leaves_the_old_graph(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, {f"m{n}.py": "def f(): pass\n" * 50 for n in range(40)})
    database = tmp_path / "graph.db"
    store = SqliteGraphStore(database)
    await index_project(store, "p", root, options=PLAIN)
    before = await store.load("p")
    write(root, {f"m{n}.py": "def g(): pass\n" * 50 for n in range(40)})
    program = (
        "import asyncio, os, sqlite3, sys\nfrom pathlib import Path\n"
        "from worker.code.indexing import IndexOptions, index_project\n"
        "from worker.stores.sqlite_graph import SqliteGraphStore\nfrom worker.stores import sqlite_graph\n"
        "write = sqlite_graph._Writer.write\n"
        "def die(self, *arguments):\n    write(self, *arguments)\n    os.kill(os.getpid(), 9)\n"
        "sqlite_graph._Writer.write = die\n"
        "options = IndexOptions(with_history=False)\n"
        "store = SqliteGraphStore(Path(sys.argv[1]))\n"
        "asyncio.run(index_project(store, 'p', Path(sys.argv[2]), options=options))\n"
    )
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(database), str(root))
    assert await killed.wait() == -signal.SIGKILL
    assert await store.load("p") == before
    report = await index_project(store, "p", root, options=PLAIN)
    await store.close()
    assert report.graph_version == 2
    assert report.nodes["Function"] == 40 * 50
