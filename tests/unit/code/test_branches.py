from __future__ import annotations

import ast
import time

import pytest
from hypothesis import given, settings

from tests.unit.code.sources import functions
from worker.code.branches import (
    MAX_BRANCHES,
    Branches,
    NotSupported,
    branches_of,
    read_branches_of,
    untested_branches,
)
from worker.code.extractor import extract
from worker.code.facts import Function
from worker.code.grammars import GRAMMAR_OF, PYTHON
from worker.code.readers import READERS
from worker.code.reading import read_file
from worker.code.stored_source import source_of_nodes
from worker.code.tolerant import extract_tolerant
from worker.graph.model import Node

_ONE = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.match_case, ast.Assert)


def first(source: str) -> Function:
    return extract("m.py", source.encode()).functions[0]


def node_of(source: str, name: str, path: str = "m.py") -> Node:
    reading = read_file(path, source.encode(), READERS)
    return next(node for node in reading.nodes if node.name == name)


def expected_points(source: str) -> int:
    """Counted by `ast.walk` alone: every decision, and every `else` that is not an `elif`."""
    total = 0
    for node in ast.walk(ast.parse(source)):
        total += isinstance(node, _ONE)
        total += len(node.ifs) if isinstance(node, ast.comprehension) else 0
        if isinstance(node, ast.For | ast.While | ast.Try):
            total += bool(node.orelse)
        if isinstance(node, ast.If) and node.orelse:
            line = source.split("\n")[node.orelse[0].lineno - 1].lstrip()
            total += not (isinstance(node.orelse[0], ast.If) and line.startswith("elif"))
    return total


@settings(max_examples=40)
@given(functions())
def test_every_branch_is_found_exactly_once_within_its_own_lines(source: str) -> None:
    function = first(source)
    branches = branches_of(function)
    assert len(branches) == len({branch.id for branch in branches}) == expected_points(source)
    for branch in branches:
        point = branch.point
        assert function.line <= point.line <= point.body_line <= point.end_line <= function.end_line
        if point.leaves:
            last = source.split("\n")[point.end_line - 1].strip()
            assert last.startswith(point.leaves)


@settings(max_examples=25)
@given(functions())
def test_the_tolerant_reader_finds_the_same_branches(source: str) -> None:
    strict = first(source).branch_points
    tolerant = extract_tolerant("m.py", source, PYTHON).functions[0].branch_points
    assert sorted(tolerant, key=repr) == sorted(strict, key=repr)


@settings(max_examples=20)
@given(functions())
def test_a_function_in_a_graph_has_the_branches_of_its_file_at_the_lines_of_its_file(source: str) -> None:
    indented = "".join(f"    {line}\n" if line else "\n" for line in source.split("\n")[:-1])
    text = f'"""Doc."""\n\nclass A:\n    x = 1\n\n{indented}\n    y = 2\n'
    read = read_branches_of(node_of(text, "f"))
    assert isinstance(read, Branches)
    [function] = extract("m.py", text.encode()).functions
    branches = branches_of(function)
    assert read.branches == branches[:MAX_BRANCHES]
    assert (read.more, read.complexity) == (max(0, len(branches) - MAX_BRANCHES), function.complexity)
    reading = read_file("m.py", text.encode(), READERS)
    assert source_of_nodes(reading.nodes) == text


def test_a_branch_is_untested_where_no_line_of_it_was_executed() -> None:
    branches = branches_of(first("def f(a):\n    if a:\n        b()\n        c()\n    else:\n        d()\n"))
    assert [branch.label for branch in untested_branches(branches, {1, 2, 6})] == ["b1"]
    assert [branch.label for branch in untested_branches(branches, {4})] == ["b2"]
    assert untested_branches(branches, ()) == branches


def test_half_written_code_has_the_branches_that_can_be_read() -> None:
    source = "def f(a):\n    if a > 1:\n        return 2\n    g(\n\ndef h(b):\n    while b: b()\n"
    broken, whole = (read_branches_of(node_of(source, name)) for name in ("f", "h"))
    assert isinstance(broken, Branches)
    assert isinstance(whole, Branches)
    assert broken.is_partly_parsed
    assert [(b.point.line, b.point.kind, b.point.leaves) for b in broken.branches] == [(2, "if", "return")]
    assert [b.point.condition for b in whole.branches] == ["b"]


FOREIGN = {
    "javascript": """function f(a) { if (a) { return 1 } else if (b) {} else { throw e }
        for (const x of y) {}
        switch (a) { case 1: break; default: z() }
        try {} catch (e) {}
        return a ? 1 : 2 }""",
    "go": """package p
        func f(a int) { if a > 1 { return } else if b {} else { c() }
        for i := range x {}
        switch a { case 1: break
        default: z() } }""",
    "java": """class A { int f(int a) { if (a > 1) { return 1; } else if (b) {} else { throw e; }
        for (X x : y) {}
        switch (a) { case 1: break; default: z(); }
        try {} catch (E e) {}
        return a > 1 ? 1 : 2; } }""",
    "rust": """fn f(a: i32) { if a > 1 { return; } else if b {} else { c() }
        for x in y {}
        match a { 1 => 2, _ => 3 } }""",
}


@pytest.mark.parametrize("language", FOREIGN)
def test_other_languages_have_branches_too(language: str) -> None:
    [function] = extract_tolerant("x", FOREIGN[language], GRAMMAR_OF[language]).functions
    kinds = [point.kind for point in function.branch_points]
    assert kinds[:6] == ["if", "elif", "else", "for", "case", "case"]
    assert kinds[6:] in (["except", "ternary"], [])
    assert "a" in function.branch_points[0].condition
    assert function.branch_points[0].leaves == "return"


def test_what_has_no_branches_to_read_says_why() -> None:
    assert read_branches_of(node_of("class A: ...\n", "A")) == NotSupported("Class m.py::A is no function")
    text = Node(label="Function", id="a.sql::f", name="f", path="a.sql", language="sql", text="SELECT")
    assert read_branches_of(text) == NotSupported("no parser for sql")


def test_five_thousand_branches_take_no_more_than_their_number() -> None:
    def seconds(source: str) -> float:
        begins = time.process_time()
        read = read_branches_of(node_of(source, "f"))
        assert isinstance(read, Branches)
        assert len(read.branches) + read.more == source.count("if ")
        assert len(read.branches) == 200
        return time.process_time() - begins

    flat = "def f(a):\n" + "    if a: a()\n"
    small, large = (seconds(flat + "    if a == 1: return\n" * n) for n in (1_000, 5_000))
    assert large < 20 * small + 0.5
