from __future__ import annotations

import json
from pathlib import Path

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.code.facts_codec import FORMAT, decode_reading, encode_reading
from worker.code.reading import FileReaders, FileReading, read_file
from worker.graph.model import Edge, Node, NodeRef

SOURCES = sorted(Path("worker").rglob("*.py"))

texts = st.text(max_size=20)
nodes = st.builds(
    Node,
    label=st.sampled_from(["Module", "Function", "Requirement"]),
    id=texts,
    name=texts,
    path=texts,
    start_line=st.integers(0, 99),
    end_line=st.integers(0, 99),
    signature=texts,
    text=texts,
    docstring_span=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    language=texts,
    properties=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
)
refs = st.builds(NodeRef, st.sampled_from(["File", "Function"]), texts)
edges = st.builds(
    Edge,
    refs,
    st.sampled_from(["CALLS", "DEFINES"]),
    refs,
    st.sampled_from(["exact", "guess"]),
    st.integers(1, 5),
)


@pytest.mark.parametrize("path", SOURCES[:: max(1, len(SOURCES) // 20)], ids=str)
def test_what_is_read_from_real_source_comes_back(path: Path) -> None:
    reading = read_file(str(path), path.read_bytes(), FileReaders())
    assert decode_reading(encode_reading(reading)) == reading


@given(
    st.builds(
        FileReading,
        path=texts,
        language=texts,
        status=st.sampled_from(["parsed", "failed"]),
        reason=texts,
        nodes=st.lists(nodes, max_size=3).map(tuple),
        edges=st.lists(edges, max_size=3).map(tuple),
        documents=st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
    )
)
def test_any_reading_comes_back_the_same(reading: FileReading) -> None:
    assert decode_reading(encode_reading(reading)) == reading


@given(st.binary(max_size=200))
def test_any_source_comes_back_the_same(content: bytes) -> None:
    reading = read_file("a.py", content, FileReaders())
    assert decode_reading(encode_reading(reading)) == reading


def test_half_a_surrogate_pair_comes_back() -> None:
    reading = read_file("a.py", b"'''\\ud800'''\ndef f(): pass\n", FileReaders())
    assert reading.facts is not None
    assert reading.facts.docstring_head == "\\ud800" or "\ud800" in reading.facts.docstring_head
    assert decode_reading(encode_reading(reading)) == reading


NONE: list[str] = []


def packed(row: object) -> bytes:
    return bytes(cramjam.zstd.compress(json.dumps(row).encode()))


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"no zstd",
        packed(NONE),
        packed({"format": FORMAT}),
        packed("x"),
        packed(None),
        packed([FORMAT]),
        packed([FORMAT + 1, "a.py", "", "parsed", "", NONE, NONE, None, NONE]),
        packed([FORMAT, "a.py", "", "parsed", "", [["File"]], NONE, None, NONE]),
        packed([FORMAT, "a.py", "", "parsed", "", NONE, NONE, [1, 2], NONE]),
        bytes(cramjam.zstd.compress(b"{")),
        encode_reading(FileReading(path="a.py"))[:-4],
    ],
)
def test_what_is_no_reading_gives_none(encoded: bytes) -> None:
    assert decode_reading(encoded) is None


@given(st.binary(max_size=100))
def test_no_bytes_make_it_raise(encoded: bytes) -> None:
    decode_reading(encoded)
    decode_reading(bytes(cramjam.zstd.compress(encoded)))
