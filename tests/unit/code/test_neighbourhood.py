from __future__ import annotations

import random
from pathlib import Path

import pytest

from worker.code.extractor import extract
from worker.code.neighbourhood import Callee, CallGraph, link_calls

PROJECT = Path(__file__).parents[3]


def link(files: dict[str, str]) -> CallGraph:
    return link_calls([extract(path, source.encode()) for path, source in files.items()])


def edges(files: dict[str, str]) -> set[tuple[str, str]]:
    """Certain calls, as (caller, callee)."""
    return {
        (scope, call.id)
        for scope, calls in link(files).callees.items()
        for call in calls
        if call.id is not None
    }


def only_edge(files: dict[str, str]) -> tuple[str, str] | None:
    found = edges(files)
    assert len(found) <= 1
    return next(iter(found), None)


def test_a_call_is_kept_as_written_whether_it_is_linked_or_not() -> None:
    graph = link({"a.py": "def f():\n    g()\n    x.y()\n    g()\ndef g(): pass\n"})
    assert graph.callees["a.py::f"] == (
        Callee("g", 2, "a.py::g"),
        Callee("x.y", 3, None),
        Callee("g", 4, "a.py::g"),
    )
    assert graph.callers == {"a.py::g": ("a.py::f",)}


CERTAIN: dict[str, tuple[dict[str, str], tuple[str, str]]] = {
    "a class is called by its name": ({"a.py": "class A: pass\ndef f(): A()\n"}, ("a.py::f", "a.py::A")),
    "a nested function hides the module's": (
        {"a.py": "def g(): pass\ndef f():\n    def g(): pass\n    g()\n"},
        ("a.py::f", "a.py::f.<locals>.g"),
    ),
    "the last of overloads counts": (
        {"a.py": "@overload\ndef g(): ...\n@overload\ndef g(): ...\ndef g(): pass\ndef f(): g()\n"},
        ("a.py::f", "a.py::g#3"),
    ),
    "a method on self": (
        {"a.py": "class A:\n    def g(self): pass\n    def f(self): self.g()\n"},
        ("a.py::A.f", "a.py::A.g"),
    ),
    "self in a function inside a method": (
        {"a.py": "class A:\n    def g(self): pass\n    def f(self):\n        def h(): self.g()\n"},
        ("a.py::A.f.<locals>.h", "a.py::A.g"),
    ),
    "a class method on cls": (
        {"a.py": "class A:\n    def g(cls): pass\n    @classmethod\n    def f(cls): cls.g()\n"},
        ("a.py::A.f", "a.py::A.g"),
    ),
    "an inherited method": (
        {"a.py": "class A:\n    def g(self): pass\nclass B(A):\n    def f(self): self.g()\n"},
        ("a.py::B.f", "a.py::A.g"),
    ),
    "a method of a base in another file": (
        {
            "p/a.py": "class A:\n    def g(self): pass\n",
            "p/b.py": "from p import a\nclass B(a.A):\n    def f(self): self.g()\n",
        },
        ("p/b.py::B.f", "p/a.py::A.g"),
    ),
    "the next method of a diamond": (
        {
            "a.py": "class A:\n    def g(self): pass\nclass B(A): pass\nclass C(A):\n    def g(self): pass\n"
            "class D(B, C):\n    def f(self): self.g()\n"
        },
        ("a.py::D.f", "a.py::C.g"),
    ),
    "super in a method": (
        {"a.py": "class A(ABC):\n    def f(self): pass\nclass B(A):\n    def f(self): super().f()\n"},
        ("a.py::B.f", "a.py::A.f"),
    ),
    "a method of a named class": (
        {"a.py": "class A:\n    @staticmethod\n    def g(): pass\ndef f(): A.g()\n"},
        ("a.py::f", "a.py::A.g"),
    ),
    "a class body sees its own names": (
        {"a.py": "class A:\n    def g(): pass\n    x = g()\n"},
        ("a.py::A", "a.py::A.g"),
    ),
    "an absolute import": (
        {"p/a.py": "def g(): pass\n", "b.py": "from p.a import g as h\ndef f(): h()\n"},
        ("b.py::f", "p/a.py::g"),
    ),
    "an import below a source folder": (
        {"src/p/a.py": "def g(): pass\n", "tests/b.py": "import p.a\ndef f(): p.a.g()\n"},
        ("tests/b.py::f", "src/p/a.py::g"),
    ),
    "an import from a project in a folder": (
        {"back/p/a.py": "def g(): pass\n", "back/b.py": "from p.a import g\ndef f(): g()\n"},
        ("back/b.py::f", "back/p/a.py::g"),
    ),
    "a relative import": (
        {"p/q/a.py": "def g(): pass\n", "p/r/b.py": "from ..q.a import g\ndef f(): g()\n"},
        ("p/r/b.py::f", "p/q/a.py::g"),
    ),
    "a module from its package": (
        {"p/a.py": "def g(): pass\n", "p/b.py": "from . import a\ndef f(): a.g()\n"},
        ("p/b.py::f", "p/a.py::g"),
    ),
    "an import inside a function": (
        {"a.py": "def g(): pass\n", "b.py": "def f():\n    import a as m\n    m.g()\n"},
        ("b.py::f", "a.py::g"),
    ),
    "a re-export": (
        {
            "p/__init__.py": "from .a import g as h\n",
            "p/a.py": "from p.c import g\n",
            "p/c.py": "def g(): pass\n",
            "b.py": "import p\ndef f(): p.h()\n",
        },
        ("b.py::f", "p/c.py::g"),
    ),
    "a star import": (
        {
            "a.py": "def g(): pass\n",
            "b.py": "from a import *\nfrom c import *\n",
            "d.py": "import b\nb.g()\n",
        },
        ("d.py::<module>", "a.py::g"),
    ),
}


@pytest.mark.parametrize("name", CERTAIN)
def test_a_call_with_one_reading_is_linked(name: str) -> None:
    files, edge = CERTAIN[name]
    assert only_edge(files) == edge


UNCERTAIN: dict[str, dict[str, str]] = {
    "a parameter": {"a.py": "def g(): pass\ndef f(g): g()\n"},
    "a local variable": {"a.py": "def g(): pass\ndef f():\n    g = h\n    g()\n"},
    "a loop variable of a comprehension": {"a.py": "def g(): pass\ndef f(): [g() for g in x]\n"},
    "a lambda's parameter": {"a.py": "def g(): pass\ndef f(): return lambda g: g()\n"},
    "a name assigned again": {"a.py": "def g(): pass\ng = cache(g)\ndef f(): g()\n"},
    "a name that a function makes global": {
        "a.py": "def g(): pass\ndef h():\n    global g\n    g = 1\ndef f(): g()\n"
    },
    "two definitions": {"a.py": "if x:\n    def g(): pass\nelse:\n    def g(): pass\ndef f(): g()\n"},
    "a definition or an import": {
        "a.py": "try:\n    from b import g\nexcept E:\n    def g(): pass\ndef f(): g()\n"
    },
    "an attribute of a value": {"a.py": "class A:\n    def g(self): pass\ndef f(a): a.g()\n"},
    "a method from a function of its class": {
        "a.py": "class A:\n    def g(self): pass\n    def f(self): g()\n"
    },
    "a property": {"a.py": "class A:\n    @property\n    def g(self): pass\n    def f(self): self.g()\n"},
    "an attribute beside a method": {
        "a.py": "class A:\n    g = 1\n    def g(self): pass\n    def f(self): self.g()\n"
    },
    "self without a method": {"a.py": "class A:\n    def g(self): pass\ndef f(self): self.g()\n"},
    "self in a static method": {
        "a.py": "class A:\n    def g(self): pass\n    @staticmethod\n    def f(self): self.g()\n"
    },
    "a method that an unknown base may have before": {
        "a.py": "class A:\n    def g(self): pass\nclass B(Unknown, A):\n    def f(self): self.g()\n"
    },
    "bases in a circle": {"a.py": "class A(B):\n    def f(self): self.g()\nclass B(A): pass\n"},
    "bases without an order": {
        "a.py": "class A:\n    def g(self): 1\nclass B(A): 1\nclass C(A, B):\n    def f(self): self.g()\n"
    },
    "the standard library, named as a file beside": {
        "p/json.py": "def loads(): pass\n",
        "p/a.py": "import json\ndef f(): json.loads()\n",
    },
    "two files that a name may mean": {
        "src/p/a.py": "def g(): pass\n",
        "p/a.py": "def g(): pass\n",
        "b.py": "from p.a import g\ndef f(): g()\n",
    },
    "a name that a package assigns": {
        "p/__init__.py": "a = 1\n",
        "p/a.py": "def g(): pass\n",
        "b.py": "from p import a\ndef f(): a.g()\n",
    },
    "re-exports in a circle": {"a.py": "from b import g\n", "b.py": "from a import g\ndef f(): g()\n"},
    "two star imports": {
        "a.py": "def g(): pass\n",
        "b.py": "def g(): pass\n",
        "c.py": "from a import *\nfrom b import *\n",
        "d.py": "from c import g\ndef f(): g()\n",
    },
    "a relative import above the project": {"a.py": "def g(): pass\n", "b.py": "from ...a import g\ng()\n"},
    "the result of a call": {"a.py": "def g(): pass\ndef f(): h()()\n"},
}


@pytest.mark.parametrize("name", UNCERTAIN)
def test_a_call_with_several_readings_keeps_its_name_alone(name: str) -> None:
    assert only_edge(UNCERTAIN[name]) is None


def test_the_order_of_modules_changes_nothing() -> None:
    modules = [
        extract(str(path.relative_to(PROJECT)), path.read_bytes())
        for path in sorted((PROJECT / "worker" / "code").glob("*.py"))
    ]
    graph = link_calls(modules)
    shuffled = list(modules)
    random.Random(7).shuffle(shuffled)
    again = link_calls(shuffled)
    assert (dict(again.callees), dict(again.callers)) == (dict(graph.callees), dict(graph.callers))


def test_this_package_is_linked_as_it_is_written() -> None:
    modules = [
        extract(str(path.relative_to(PROJECT)), path.read_bytes())
        for path in sorted((PROJECT / "worker" / "code").glob("*.py"))
    ]
    graph = link_calls(modules)
    called = {call.id for call in graph.callees["worker/code/extractor.py::extract"]}
    assert {
        "worker/code/parsing.py::parse",
        "worker/code/walker.py::walk_module",
        "worker/code/facts.py::ModuleFacts",
        "worker/code/extractor.py::_traces",
    } <= called
    assert "worker/code/reading.py::read_python" in graph.callers["worker/code/extractor.py::extract"]


def test_modules_without_facts_are_passed_over() -> None:
    assert edges({"a.py": "def f(:", "b.py": "from a import f\nf()\n"}) == set()
