"""The readers together: what each kind of file becomes in the graph of a project."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.code.indexing import IndexOptions, IndexReport, index_files
from worker.code.readers import READERS
from worker.code.reading import read_file
from worker.graph.model import Edge, GraphContents, Node, NodeRef
from worker.stores.sqlite_graph import SqliteGraphStore

FILES = {
    "pkg/strict.py": (
        "def plain():\n    return 1\n\ndef old():\n    # @traces REQ-7, FR-001\n    return plain()\n"
    ),
    "pkg/newer.py": (
        "from pkg.strict import plain\ntype Pair[T] = tuple[T, T]\n\n"
        "def first[T](pair: Pair[T]) -> T:\n    return plain(pair)\n"
    ),
    "pkg/half.py": "def kept():\n    return 1\n\ndef broken(:\n",
    "pkg/latin.py": "x = '\xe9'\n",
    "web/app.ts": "// @traces REQ-7\nexport function start() { stop(); }\nfunction stop() {}\n",
    "docs/guide.md": "# Guide\n\nHow to start.\n\n## More\n\nEnd.\n",
    "db/tables.sql": "CREATE TABLE a (x int);\n",
    "specs/001-pay/spec.md": (
        "# Feature: Pay\n\n## Requirements\n\n- **FR-001**: It MUST pay.\n- **FR-002**: It MUST refund.\n"
    ),
    "specs/002-ship/spec.md": "# Feature: Ship\n\n## Requirements\n\n- **FR-001**: System MUST ship.\n",
    "docs/requirements.md": "- **REQ-7**: It starts at once.\n",
    "docs/adr/0001-queues.md": (
        "# 1. Use queues\n\n## Status\n\nAccepted\n\n## Decision\n\nSee `pkg/strict.py`.\n"
    ),
}

TEXT = (
    "# one\n\ndef caf\xe9():\n    return {\n        1: '\xe9 two'}\n\n"
    "class K:\n    def m(self):\n        return caf\xe9()\n"
)


class Indexed:
    """A graph by node id."""

    def __init__(self, report: IndexReport, contents: GraphContents) -> None:
        self.report = report
        self.nodes: dict[str, Node] = {f"{node.label} {node.id}": node for node in contents.nodes}
        self.edges = set(contents.edges)

    def targets(self, source: str, relation: str) -> set[tuple[str, str, int]]:
        return {
            (edge.target.id, edge.resolution, edge.candidates)
            for edge in self.edges
            if edge.source.id == source and edge.relation == relation
        }


@pytest_asyncio.fixture
async def graph(tmp_path: Path) -> Indexed:
    store = SqliteGraphStore(tmp_path / "graph.db")
    files: dict[str, bytes | None] = {path: text.encode() for path, text in FILES.items()}
    files["pkg/latin.py"] = FILES["pkg/latin.py"].encode("latin-1")
    report = await index_files(store, "shop", files, options=IndexOptions(with_history=False))
    loaded = await store.load("shop")
    await store.close()
    assert loaded is not None
    return Indexed(report, loaded[1])


async def test_what_the_strict_parser_refuses_is_read_as_far_as_it_goes(graph: Indexed) -> None:
    assert {path: status for path, status, _ in graph.report.not_whole} == {
        "pkg/half.py": "partly_parsed",
        "pkg/latin.py": "partly_parsed",
        "pkg/newer.py": "partly_parsed",
    }
    assert "Function pkg/newer.py::first" in graph.nodes
    assert "Function pkg/half.py::kept" in graph.nodes
    assert graph.nodes["File pkg/latin.py"].property("reason") == "encoding, read as latin-1"
    assert graph.nodes["Module pkg/latin.py::<module>"].text == "x = '\xe9'\n"


async def test_calls_of_what_was_read_so_are_guesses(graph: Indexed) -> None:
    assert graph.targets("pkg/newer.py::first", "CALLS") == {("pkg/strict.py::plain", "guess", 1)}
    assert graph.targets("pkg/strict.py::old", "CALLS") == {("pkg/strict.py::plain", "exact", 1)}


async def test_other_languages_have_symbols_and_all_other_text_has_chunks(graph: Indexed) -> None:
    start = graph.nodes["Function web/app.ts::start"]
    assert start.language == "typescript"
    assert graph.targets("web/app.ts::start", "CALLS") == {("web/app.ts::stop", "guess", 1)}
    assert graph.nodes["Chunk docs/guide.md::L5"].name == "More"
    assert graph.nodes["Chunk db/tables.sql::L1"].text == "CREATE TABLE a (x int);\n"


async def test_tags_lead_to_the_items_that_documents_define(graph: Indexed) -> None:
    assert graph.targets("web/app.ts::start", "TRACES_TO") == {("REQ-7", "exact", 1)}
    assert graph.targets("pkg/strict.py::old", "TRACES_TO") == {
        ("REQ-7", "exact", 1),
        ("specs/001-pay/FR-001", "guess", 2),
        ("specs/002-ship/FR-001", "guess", 2),
    }
    assert "RequirementItem FR-001" not in graph.nodes
    assert graph.nodes["RequirementItem REQ-7"].text


async def test_decisions_apply_to_the_files_that_they_name(graph: Indexed) -> None:
    [decision] = [node for name, node in graph.nodes.items() if name.startswith("Decision ")]
    assert (
        Edge(NodeRef("Decision", decision.id), "APPLIES_TO", NodeRef("File", "pkg/strict.py")) in graph.edges
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (TEXT.encode("latin-1"), "encoding, read as latin-1"),
        (b"\xef\xbb\xbf" + TEXT.encode("latin-1"), "encoding, read as latin-1"),
        (TEXT.replace("# one", "# coding: ascii").encode("latin-1"), "encoding, read as latin-1"),
        (TEXT.replace("# one", "# coding: ascii").encode(), "encoding, read as utf-8"),
        (TEXT.replace("# one", "# coding: utf-16").encode(), "encoding, read as utf-8"),
        (TEXT.replace("# one", "# coding: nonsense").encode(), "encoding, read as utf-8"),
        (TEXT.encode("utf-16"), "encoding, read as utf-16"),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "encoding, read as utf-16"),
        (TEXT.encode("utf-16") + b"\0", "encoding, read as utf-16"),
        (TEXT.encode("utf-32"), "encoding, read as utf-32"),
        (TEXT.replace("# one", "# \0").encode(), "nul_byte at line 1, read as a blank"),
        (TEXT.replace("two", "t\0o").replace("\n", "\r\n").encode(), "nul_byte at line 5, read as a blank"),
        (TEXT.replace("two", "t\0o").replace("\n", "\r").encode(), "nul_byte at line 5, read as a blank"),
        (
            TEXT.replace("# one", "# coding: cp1252 \0").encode("cp1252"),
            "nul_byte at line 1, read as a blank",
        ),
    ],
)
def test_bytes_that_python_refuses_keep_symbols_and_lines(content: bytes, reason: str) -> None:
    reading = read_file("a.py", content, READERS)
    assert (reading.status, reading.reason) == ("partly_parsed", reason)
    spans = {node.name: (node.start_line, node.end_line) for node in reading.nodes}
    assert {"caf\xe9": (3, 5), "m": (8, 9)}.items() <= spans.items()


@pytest.mark.parametrize("suffix", ["js", "go", "rs", "java", "ts"])
def test_bytes_of_other_languages_are_read_by_the_same_rules(suffix: str) -> None:
    text = {
        "js": "// \xe9\nfunction f() {}\n",
        "ts": "// \xe9\nfunction f(): void {}\n",
        "go": "package p // \xe9\nfunc f() {}\n",
        "rs": "// \xe9\nfn f() {}\n",
        "java": "class f { // \xe9\n}\n",
    }[suffix]
    for content, reason in (
        (text.encode(), ""),
        (text.encode("latin-1"), "encoding, read as latin-1"),
        (text.encode("utf-16"), "encoding, read as utf-16"),
        (text.encode() + b"\0", "nul_byte at line 3, read as a blank"),
    ):
        reading = read_file(f"a.{suffix}", content, READERS)
        assert (reading.status, reading.reason) == ("partly_parsed" if reason else "parsed", reason)
        assert "f" in {node.name for node in reading.nodes}
        assert not any("\0" in node.text for node in reading.nodes)


@settings(max_examples=60)
@given(st.binary(max_size=60), st.binary(max_size=60), st.sampled_from(["a.py", "a.js"]))
def test_no_byte_costs_a_definition_its_place(above: bytes, inside: bytes, path: str) -> None:
    """In comments, so that what the bytes mean is nobody's syntax."""
    above, inside = (part.translate(None, b"\r\n\\") for part in (above, inside))
    mark, code = (b"#", b"def f():\n    return 1 ") if path == "a.py" else (b"//", b"function f() {\n    } ")
    reading = read_file(path, b"x = 1\n" + mark + above + b"\n\n" + code + mark + inside + b"\n", READERS)
    assert reading.status != "failed"
    assert [(node.end_line) for node in reading.nodes if node.name == "f"] == [5]


async def test_a_broken_script_without_a_suffix_is_read_as_far_as_it_goes() -> None:
    reading = read_file("run", b"#!/usr/bin/env python3\ndef f():\n    pass\ndef g(:\n", READERS)
    assert (reading.status, reading.language, reading.reason) == (
        "partly_parsed",
        "python",
        "syntax at line 4",
    )
    assert {"f", "g"} <= {node.name for node in reading.nodes}
