from __future__ import annotations

from worker.code.facts import ModuleFacts
from worker.code.reading import FileReaders, FileReading, read_file, read_python
from worker.graph.model import Edge, Node, NodeRef


def tolerant(path: str, _content: bytes) -> FileReading | None:
    if not path.endswith(".py"):
        return None
    node = Node(label="Module", id=f"{path}::<module>", path=path)
    return FileReading(path=path, language="python", status="partly_parsed", nodes=(node,))


def requirements(path: str, _content: bytes) -> FileReading | None:
    node = Node(label="Requirement", id="REQ-1", path=path)
    return FileReading(path=path, nodes=(node,), documents=(("requirements", "REQ-1"),))


def refusing(path: str, _content: bytes) -> FileReading | None:
    return FileReading(path=path, status="failed", reason="refused")


def test_the_first_reader_that_can_read_a_file_reads_it() -> None:
    readers = FileReaders(first=(read_python, tolerant))
    assert read_file("a.py", b"x = 1\n", readers).status == "parsed"
    assert read_file("a.md", b"x\n", readers) == FileReading(path="a.md", language="markdown")


def test_where_a_later_reader_steps_in_the_reading_says_why() -> None:
    reading = read_file("a.py", b"def (\n", FileReaders(first=(read_python, tolerant)))
    assert (reading.status, reading.reason) == ("partly_parsed", "syntax at line 1")


def test_where_every_reader_fails_the_first_failure_counts() -> None:
    reading = read_file("a.py", b"def (\n", FileReaders(first=(read_python, refusing)))
    assert (reading.status, reading.reason) == ("failed", "syntax at line 1")
    assert [node.property("parse_error") for node in reading.nodes] == ["syntax at line 1"]


def test_further_readers_add_to_what_was_read() -> None:
    reading = read_file("a.py", b"def f(): pass\n", FileReaders(also=(requirements,)))
    assert [node.id for node in reading.nodes] == ["a.py::<module>", "a.py::f", "REQ-1"]
    assert reading.documents == (("requirements", "REQ-1"),)
    assert isinstance(reading.facts, ModuleFacts)


def test_the_file_defines_its_module() -> None:
    reading = read_file("a.py", b"", FileReaders())
    assert reading.edges == (Edge(NodeRef("File", "a.py"), "DEFINES", NodeRef("Module", "a.py::<module>")),)


def test_a_script_is_known_by_its_first_line() -> None:
    assert read_python("bin/tool", b"#!/usr/bin/env python3\nx = 1\n") is not None
    assert read_python("bin/tool", b"#!/bin/sh\npython\n") is None
    assert read_python("tool.sh", b"#!/usr/bin/env python3\n") is None
