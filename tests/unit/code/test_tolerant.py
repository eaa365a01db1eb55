"""Other languages, and Python that does not parse: what can still be read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.code.facts import ModuleFacts, ParseProblem
from worker.code.grammars import GRAMMAR_OF, GRAMMARS, PYTHON, Grammar
from worker.code.nodes import module_nodes
from worker.code.tolerant import extract_tolerant


def read(language: str, text: str) -> ModuleFacts:
    return extract_tolerant(f"a.{language}", text, PYTHON if language == "python" else GRAMMAR_OF[language])


def names(facts: ModuleFacts) -> dict[str, str]:
    items = (*facts.functions, *facts.classes)
    return {item.id.split("::")[1]: item.signature for item in sorted(items, key=lambda i: (i.line, i.id))}


def calls(facts: ModuleFacts, name: str) -> list[str]:
    return [call.name for item in facts.functions if item.qualname == name for call in item.calls]


PYTHON_312 = '''\
type Pair[T] = tuple[T, T]

@cache
def first[T](pair: Pair[T]) -> T:
    """The first of two.

    @traces REQ-1
    """
    return pair.take(0)

class Store[T](Base, m.Mixin, metaclass=Meta):
    async def put(self, item: T) -> None:
        def check(): return item
        await self.save(check())
'''


def test_newer_python_keeps_symbols_signatures_and_calls() -> None:
    facts = read("python", PYTHON_312)
    assert names(facts) == {
        "first": "@cache def first[T](pair: Pair[T]) -> T",
        "Store": "class Store[T](Base, m.Mixin, metaclass=Meta)",
        "Store.put": "async def put(self, item: T) -> None",
        "Store.put.<locals>.check": "def check()",
    }
    first = facts.functions[0]
    assert (first.start_line, first.line, first.end_line, first.docstring_lines) == (3, 4, 9, (5, 8))
    assert first.docstring_head == "The first of two."
    assert [trace.requirement_id for trace in first.traces] == ["REQ-1"]
    assert calls(facts, "first") == ["pair.take"]
    assert calls(facts, "Store.put") == ["self.save", "check"]
    assert facts.classes[0].bases == ("Base", "m.Mixin")
    assert facts.functions[1].class_id == "a.python::Store"


def test_a_syntax_error_half_way_costs_what_stands_there() -> None:
    facts = read("python", "def a():\n    return b()\n\ndef broken(:\n    pass\n\ndef c():\n    return d()\n")
    assert facts.parse_problem == ParseProblem("syntax", 4)
    assert {"a", "c"} <= names(facts).keys()
    assert calls(facts, "c") == ["d"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import a.b\n", [("a.b", "a.b", None, 0)]),
        ("import a as x, b\n", [("x", "a", None, 0), ("b", "b", None, 0)]),
        ("from ..m import (f as g, h)\n", [("g", "..m", "f", 2), ("h", "..m", "h", 2)]),
        ("from . import x\n", [("x", ".", "x", 1)]),
    ],
)
def test_python_imports(text: str, expected: list[tuple[str, str, str | None, int]]) -> None:
    found = read("python", text).imports
    assert [(i.local_name, i.module, i.name, i.level) for i in found] == expected


TYPESCRIPT = """\
import Main, { a as b, type C } from "./x";
import * as ns from "lib/util";

/** Runs it.
 *  @traces REQ-7 */
export const run = async (p: C): Promise<void> => { b.c(p); new D<T>(); };

export default abstract class Kit<T> extends Base<T> implements One, ns.Two {
  // @traces REQ-8
  private go(): void { this.stop(); if (x && y) { z(); } }
  abstract stop(): void;
}
interface I { m(x: number): void }
enum E { A }
namespace N { export function h() {} }
"""


def test_typescript() -> None:
    facts = read("typescript", TYPESCRIPT)
    assert list(names(facts)) == ["run", "Kit", "Kit.go", "Kit.stop", "I", "I.m", "E", "N", "N.h"]
    assert calls(facts, "run") == ["b.c", "D"]
    assert calls(facts, "Kit.go") == ["this.stop", "z"]
    run, go = facts.functions[0], facts.functions[1]
    assert (run.start_line, run.end_line, run.docstring_lines, run.is_async) == (4, 6, (4, 5), True)
    assert run.docstring_head == "Runs it."
    assert [t.requirement_id for t in run.traces] == ["REQ-7"]
    assert [t.requirement_id for t in go.traces] == ["REQ-8"]
    assert go.complexity == 3
    assert facts.classes[0].bases == ("Base", "One", "ns.Two")
    assert [(i.local_name, i.module, i.name) for i in facts.imports] == [
        ("b", "./x", "a"),
        ("C", "./x", "C"),
        ("Main", "./x", None),
        ("ns", "lib/util", None),
    ]


def test_javascript_functions_are_named_by_what_they_are_assigned_to() -> None:
    facts = read(
        "javascript",
        "const f = () => g();\nmodule.exports.z = function () { y(); };\n"
        "class K { static p = () => 1; m() {} }\nconst o = { key: function () {} };\n"
        "[1].map(x => q(x));\nfunction* gen() {}\n",
    )
    assert list(names(facts)) == ["f", "z", "K", "K.m", "K.p", "key", "gen"]
    assert "q" in [call.name for call in facts.calls]


def test_go_methods_belong_to_their_receiver() -> None:
    facts = read(
        "go",
        'package p\nimport (\n\t"fmt"\n\tu "x/y"\n)\n\n// Store keeps.\ntype Store[T any] struct{ n int }\n\n'
        "func (s *Store[T]) Put(a T) error {\n\tfmt.Println(a)\n\treturn s.save()\n}\n\nfunc New() {}\n",
    )
    assert list(names(facts)) == ["Store", "Store.Put", "New"]
    assert facts.functions[0].class_id == "a.go::Store"
    assert calls(facts, "Store.Put") == ["fmt.Println", "s.save"]
    assert facts.classes[0].start_line == 7
    assert [(i.local_name, i.module) for i in facts.imports] == [("fmt", "fmt"), ("u", "x/y")]


def test_java() -> None:
    facts = read(
        "java",
        "package p;\nimport a.b.C;\n/** Doc. */\npublic class K extends B implements I {\n"
        "  @Override\n  public void m() { this.n(); C.d(); new E(); }\n  K() {}\n  record R(int x) {}\n}\n",
    )
    assert list(names(facts)) == ["K", "K.m", "K.K", "K.R"]
    assert facts.functions[0].start_line == 5
    assert calls(facts, "K.m") == ["this.n", "C.d", "E"]
    assert facts.classes[0].bases == ("B", "I")
    assert [(i.local_name, i.module, i.name) for i in facts.imports] == [("C", "a.b", "C")]


def test_rust_members_of_an_impl_belong_to_its_type() -> None:
    facts = read(
        "rust",
        "use a::b::{C, d};\n/// Keeps.\npub struct S { x: i32 }\nimpl<T> Tr for S {\n"
        "    fn m(&self) { self.k(); a::f(); log!(x) }\n}\ntrait Tr { fn m(&self); }\nmod q { fn z() {} }\n",
    )
    assert list(names(facts)) == ["S", "S.m", "Tr", "Tr.m", "q", "q.z"]
    assert facts.functions[0].class_id == "a.rust::S"
    assert calls(facts, "S.m") == ["self.k", "a::f", "log"]
    assert [(i.local_name, i.module, i.name) for i in facts.imports] == [("C", "a.b", "C"), ("d", "a.b", "d")]


def test_the_second_definition_of_a_name_gets_a_number() -> None:
    facts = read("javascript", "function f() { return 1 }\nfunction f() { return 2 }\n")
    assert [item.id for item in facts.functions] == ["a.javascript::f", "a.javascript::f#2"]


PIECES = st.sampled_from(
    [
        *(
            "class A",
            "{",
            "}",
            "(",
            ")",
            "def f",
            ":",
            "\n",
            "    ",
            "fn g",
            "func (s *S) h",
            "=> {",
            '"',
            "'",
        ),
        *("`", "// note\n", "/* x", "*/", "# REQ-1\n", "import a.b", "é", "𝕏", "\u2028", "@d", "type T "),
        *("x.y()", "\t"),
    ]
)


@settings(max_examples=150)
@given(
    st.sampled_from([PYTHON, *GRAMMARS]), st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=60)
)
def test_any_text_gives_facts_with_distinct_ids_and_lines_that_exist(grammar: Grammar, text: str) -> None:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    facts = extract_tolerant("a", text, grammar)
    items = (*facts.functions, *facts.classes)
    assert len({item.id for item in items}) == len(items)
    assert all(1 <= item.start_line <= item.line <= max(item.end_line, item.line) for item in items)
    assert all(item.end_line <= text.count("\n") + 1 for item in items)
    known = {facts.id, *(item.id for item in items)}
    assert all(item.scope_id in known for item in items)
    nodes, _ = module_nodes(facts, text)
    assert len(nodes) == len(items) + 1


@pytest.mark.parametrize("grammar", [PYTHON, *GRAMMARS], ids=lambda g: g.language)
def test_deep_nesting_and_long_lines_end(grammar: Grammar) -> None:
    for text in ("(" * 20_000, "{" * 20_000, "a." * 20_000, "x" * 200_000, "\n" * 100_000):
        extract_tolerant("a", text, grammar)
