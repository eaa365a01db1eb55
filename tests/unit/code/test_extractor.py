from __future__ import annotations

import keyword
import pickle
import string
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.code.extractor import extract
from worker.code.facts import Call, Class, Function, Import, ModuleFacts, ParseProblem

STDLIB = Path(sysconfig.get_path("stdlib"))


def facts(source: str, path: str = "pkg/m.py") -> ModuleFacts:
    found = extract(path, source.encode())
    assert found.parse_problem is None
    return found


def function(source: str, qualname: str = "f") -> Function:
    [found] = [item for item in facts(source).functions if item.id == f"pkg/m.py::{qualname}"]
    return found


def class_(source: str, qualname: str = "A") -> Class:
    [found] = [item for item in facts(source).classes if item.id == f"pkg/m.py::{qualname}"]
    return found


def test_a_module_says_what_it_is() -> None:
    found = facts(
        '"""\n\n  What it is.\n\nMore.\n"""\nimport os\n__all__ = ["A"]\n__all__ += ("b",)\nrun()\n'
    )
    assert found.id == "pkg/m.py::<module>"
    assert (found.docstring_head, found.exports, found.line_count) == ("What it is.", ("A", "b"), 10)
    assert found.calls == (Call("run", 10),)
    assert found.bound_names == {"__all__"}


@pytest.mark.parametrize("source", ["__all__ = f()", "__all__ = [x]", "__all__ = ['a'] + b.__all__", "x = 1"])
def test_exports_that_are_more_than_a_list_of_strings_are_not_known(source: str) -> None:
    assert facts(source).exports is None


NESTED = """
class A:
    def m(self):
        def inner():
            class Local:
                def x(self): pass
        return inner
    class B:
        async def n(self): pass
def f(): pass
if True:
    def f(): pass
class A:
    def m(self): pass
"""


def test_ids_are_python_s_qualified_names_and_namesakes_are_numbered() -> None:
    found = facts(NESTED)
    assert [(item.id.removeprefix("pkg/m.py::"), item.line) for item in found.functions] == [
        ("A.m", 3),
        ("A.m.<locals>.inner", 4),
        ("A.m.<locals>.inner.<locals>.Local.x", 6),
        ("A.B.n", 9),
        ("f", 10),
        ("f#2", 12),
        ("A.m#2", 14),
    ]
    assert [item.id.removeprefix("pkg/m.py::") for item in found.classes] == [
        "A",
        "A.m.<locals>.inner.<locals>.Local",
        "A.B",
        "A#2",
    ]


def test_a_method_knows_its_class_and_everything_its_scope() -> None:
    scopes = {item.id.split("::")[1]: (item.scope_id, item.class_id) for item in facts(NESTED).functions}
    assert scopes["A.m"] == ("pkg/m.py::A", "pkg/m.py::A")
    assert scopes["A.m#2"] == ("pkg/m.py::A#2", "pkg/m.py::A#2")
    assert scopes["A.m.<locals>.inner"] == ("pkg/m.py::A.m", None)
    assert scopes["f"] == ("pkg/m.py::<module>", None)


def test_ids_of_one_module_are_unique() -> None:
    for path in sorted(STDLIB.glob("*.py"))[::10]:
        found = extract(path.name, path.read_bytes())
        ids = [item.id for item in (*found.functions, *found.classes)]
        assert len(ids) == len(set(ids)), path


def test_the_underscore_says_what_is_public() -> None:
    source = """
def f(): pass
def _f(): pass
class A:
    def m(self): pass
    def _m(self): pass
    def __init__(self): pass
    class B:
        def n(self): pass
class _A:
    def m(self): pass
def g():
    def h(): pass
"""
    found = facts(source)
    public = [item.qualname for item in (*found.classes, *found.functions) if item.is_public]
    assert public == ["A", "A.B", "f", "A.m", "A.B.n", "g"]


def test_exports_say_what_is_public_at_the_top_level() -> None:
    found = facts("__all__ = ['_f', 'A']\ndef f(): pass\ndef _f(): pass\nclass A:\n    def m(self): pass\n")
    assert [item.qualname for item in found.functions if item.is_public] == ["_f", "A.m"]


@pytest.mark.parametrize(
    ("head", "signature"),
    [
        ("def f():", "def f()"),
        ("async def f(self, *, a=1) -> None:", "async def f(self, *, a=1) -> None"),
        (
            "def f(a, b: int, /, c: str = 'x', *args: int, d, e: bool = True, **kw: Any):",
            "def f(a, b: int, /, c: str = 'x', *args: int, d, e: bool = True, **kw: Any)",
        ),
        (
            "def f(a,\n      b: dict[str,\n              int] = {},  # why\n      ):",
            "def f(a, b: dict[str, int] = {})",
        ),
        ("@app.get('/x', tags=[1])\n@cached\ndef f():", "@app.get() @cached def f()"),
        ("def f(a: 'List[é]' = 'é'):", "def f(a: 'List[é]' = 'é')"),
    ],
)
def test_a_signature_is_one_line(head: str, signature: str) -> None:
    assert function(f"{head}\n    pass\n").signature == signature


def test_long_annotations_defaults_and_parameter_lists_are_cut() -> None:
    default = function(f"def f(a={'x' * 5_000}): pass").signature
    assert default == f"def f(a={'x' * 31}…)"
    annotation = function(f"def f(a: {'x' * 5_000}): pass").signature
    assert annotation == f"def f(a: {'x' * 79}…)"
    many = function(f"def f({', '.join(f'a{n}' for n in range(50_000))}): pass").signature
    assert many.endswith("a22, a23, …)")


def test_a_class_signature_has_bases_and_keywords_and_bases_lose_their_brackets() -> None:
    found = class_("@d\nclass A(b.B[int], C, metaclass=M, **kw): pass")
    assert found.signature == "@d class A(b.B[int], C, metaclass=M, **kw)"
    assert found.bases == ("b.B", "C")
    assert class_("class A: pass").signature == "class A"


def test_lines_run_from_the_first_decorator_to_the_last_line() -> None:
    found = function("x = 1\n@a\n# why\n@b(\n    1,\n)\ndef f():\n    return (\n        1\n    )\n\ny = 2\n")
    assert (found.start_line, found.line, found.end_line) == (2, 7, 10)


def test_calls_are_named_as_written_with_the_line_of_the_name() -> None:
    source = """
def f():
    g(h(1))
    self.store.get("x").strip()
    items[0].run()
    "".join(x)
    (yield).close()
    (
        q.filter()
        .first()
    )
    super().f()
    await x.y()
    [k() for k in l()]
    (lambda z: z())(1)
"""
    assert [(call.name, call.line) for call in function(source).calls] == [
        ("g", 3),
        ("h", 3),
        ("self.store.get", 4),
        ("self.store.get().strip", 4),
        ("items[].run", 5),
        ("?.join", 6),
        ("?.close", 7),
        ("q.filter", 9),
        ("q.filter().first", 10),
        ("super", 12),
        ("super().f", 12),
        ("x.y", 13),
        ("k", 14),
        ("l", 14),
        ("z", 15),
        ("?", 15),
    ]


def test_what_stands_in_a_head_is_called_by_the_scope_around() -> None:
    source = "class A(base()):\n    @deco(1)\n    def f(self, a: Field(x()) = default()) -> r(): pass\n"
    assert [call.name for call in function(source, "A.f").calls] == []
    assert [call.name for call in class_(source).calls] == ["deco", "Field", "x", "default", "r"]
    assert [call.name for call in facts(source).calls] == ["base"]


def test_a_chain_of_any_length_has_a_name_of_bounded_length() -> None:
    calls = function("def f():\n    a" + ".b()" * 300 + "\n").calls
    assert len(calls) == 300
    assert max(len(call.name) for call in calls) < 100
    assert calls[-1].name.startswith("?")


def test_bound_names_are_what_a_scope_assigns_and_no_definition_or_import() -> None:
    source = """
def f(a, *b, c=1, **d):
    import os
    def g(): pass
    e = 1
    for i, (j, k) in a: pass
    with a as l: pass
    try: pass
    except E as m: pass
    [n for n in a]
    (o := 1)
    match a:
        case {"x": p, **q}: pass
        case [*r]: pass
        case A(s=1) as t: pass
    lambda u: u
    v: int = 1
    w += 1
    del x
    y.z = 1
    global aa
    aa = 1
"""
    found = facts(source)
    assert found.functions[0].bound_names == set("abcdeijklmnopqrtuvwx")
    assert found.bound_names == {"aa"}


def test_imports_say_what_they_bind_and_where() -> None:
    source = """
import a.b
import a.b as ab, c
from . import d
from ..e.f import g as h
from i import *
def f():
    from j import k
"""
    module = "pkg/m.py::<module>"
    assert facts(source).imports == (
        Import(module, "a", "a.b", None, 0, 2),
        Import(module, "ab", "a.b", None, 0, 3),
        Import(module, "c", "c", None, 0, 3),
        Import(module, "d", "", "d", 1, 4),
        Import(module, "h", "e.f", "g", 2, 5),
        Import(module, "*", "i", "*", 0, 6),
        Import("pkg/m.py::f", "k", "j", "k", 0, 8),
    )


def test_identifiers_are_neither_folded_nor_shortened() -> None:
    found = facts("def Größe_𝔸__x(): pass\ndef größe_A__x(): pass\n")
    # The language itself reads an identifier in its NFKC form.
    assert [item.name for item in found.functions] == ["Größe_A__x", "größe_A__x"]


# --- Content that is no module ---


@pytest.mark.parametrize(
    ("content", "problem", "line_count"),
    [
        (b"def f(:\n", ParseProblem("syntax", 1), 1),
        (b"x = '\xe9'", ParseProblem("encoding", 0), 1),
        (b"x = 1\n\0\n", ParseProblem("nul_byte", 2), 2),
        (b"x = 1" + b" + 1" * 5_000, ParseProblem("too_complex", 0), 1),
    ],
)
def test_what_cannot_be_parsed_gives_a_module_with_its_problem(
    content: bytes, problem: ParseProblem, line_count: int
) -> None:
    assert extract("a.py", content) == ModuleFacts(path="a.py", line_count=line_count, parse_problem=problem)


def test_an_empty_file_is_a_module_without_anything() -> None:
    assert extract("a.py", b"") == ModuleFacts(path="a.py", line_count=0)


@settings(max_examples=300)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_any_bytes_give_facts(content: bytes) -> None:
    found = extract("a.py", content)
    assert found.path == "a.py"
    assert found == extract("a.py", content)


NAMES = st.text(string.ascii_letters + "_é", min_size=1, max_size=5).filter(
    lambda n: not keyword.iskeyword(n)
)
CONDITIONS = st.sampled_from(
    ["a", "a and b", "not (a or b)", "f(x)", "x := g()", "[i for i in a if i]", "'é'"]
)
NESTING = ("if", "for", "try", "match", "def", "class")


def indent(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


@st.composite
def blocks(draw: st.DrawFn, depth: int = 0) -> list[str]:
    kinds = ["pass", "call", "assert", *(NESTING if depth < 3 else ())]
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(kinds))
        inner = (
            indent(draw(blocks(depth + 1))) if kind in {"if", "for", "try", "match", "def", "class"} else []
        )
        condition = draw(CONDITIONS)
        match kind:
            case "if":
                lines += [f"if ({condition}):", *inner, "else:", *inner]
            case "for":
                lines += ["for é in a:", *inner]
            case "try":
                lines += ["try:", *inner, "except E:", *inner]
            case "match":
                lines += ["match a:", "    case 1 if a:", *indent(inner)]
            case "def":
                lines += ["@d", f"def {draw(NAMES)}(a, b=({condition})):", *inner]
            case "class":
                lines += [f"class {draw(NAMES)}(B):", *inner]
            case "call":
                lines.append(f"{draw(NAMES)}.x({condition})")
            case _:
                lines.append("pass" if kind == "pass" else f"assert ({condition})")
    return lines


@settings(max_examples=150)
@given(lines=blocks())
def test_generated_modules_hold_their_invariants(lines: list[str]) -> None:
    found = extract("a.py", ("\n".join(lines) + "\n").encode())
    assert found.parse_problem is None
    definitions = [*found.functions, *found.classes]
    by_id = {item.id: item for item in definitions}
    assert len(by_id) == len(definitions) == sum("def " in line or "class " in line for line in lines)
    for item in definitions:
        assert lines[item.line - 1].strip().startswith(("def ", "class "))
        assert 1 <= item.start_line <= item.line <= item.end_line <= found.line_count
        assert "\n" not in item.signature
        around = by_id.get(item.scope_id)
        assert around is None or around.start_line < item.start_line <= item.end_line <= around.end_line
        assert all(item.start_line <= call.line <= item.end_line for call in item.calls)
    for item in found.functions:
        points = [point.line for point in item.branch_points]
        assert points == sorted(points)
        assert all(item.line <= line <= item.end_line for line in points)
        assert item.complexity >= 1 + sum(point.kind != "else" for point in item.branch_points)


def test_line_ends_of_any_kind_give_the_same_facts() -> None:
    source = "# REQ-1\ndef f(a):\n    '''Doc.\n\n    @traces REQ-2\n    '''\n    if a:\n        g()\n"
    unix = extract("a.py", source.encode())
    assert unix.functions[0].traces
    assert extract("a.py", source.replace("\n", "\r\n").encode()) == unix


def test_facts_can_cross_to_another_process() -> None:
    found = extract("a.py", Path(extract.__code__.co_filename).read_bytes())
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301  # our own bytes


def test_every_module_of_the_standard_library_gives_facts_or_a_problem() -> None:
    odd = {"bad_coding.py", "bad_coding2.py", "badsyntax_3131.py", "badsyntax_pep3120.py"}
    paths = sorted((STDLIB / "test").rglob("*.py"))
    for path in paths[::25] + [path for path in paths if path.name in odd]:
        found = extract(path.name, path.read_bytes())
        assert (found.parse_problem is not None) == (path.name in odd), path
