from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.code.linking import FileLinks, Linker
from worker.code.reading import FileReaders, read_file
from worker.graph.model import Edge


def link(files: dict[str, str]) -> dict[str, FileLinks]:
    readings = {path: read_file(path, text.encode(), FileReaders()) for path, text in files.items()}
    linker = Linker(readings)
    return {path: linker.link(path) for path in files}


def edges(files: dict[str, str], relation: str) -> list[tuple[str, str]]:
    """Exact edges as pairs of ids."""
    return [
        (e.source.id, e.target.id) for e in _all(files) if e.relation == relation and e.resolution == "exact"
    ]


def guesses(files: dict[str, str], relation: str) -> list[tuple[str, str, int]]:
    found = [e for e in _all(files) if e.relation == relation and e.resolution == "guess"]
    return [(e.source.id, e.target.id, e.candidates) for e in found]


def _all(files: dict[str, str]) -> list[Edge]:
    return [edge for links in link(files).values() for edge in links.edges]


# --- Imports ------------------------------------------------------------------------------------------


def test_an_import_leads_to_the_module_that_it_names() -> None:
    files = {
        "pkg/__init__.py": "from .impl import helper\n",
        "pkg/impl.py": "def helper(): pass\n",
        "pkg/sub/deep.py": "from .. import impl\nfrom ..impl import helper\n",
        "app.py": (
            "import pkg.impl\nfrom pkg import impl\nfrom pkg import helper\nfrom pkg import *\nimport os\n"
        ),
    }
    assert edges(files, "IMPORTS") == [
        ("pkg/__init__.py::<module>", "pkg/impl.py::<module>"),
        ("pkg/sub/deep.py::<module>", "pkg/impl.py::<module>"),
        ("app.py::<module>", "pkg/__init__.py::<module>"),
        ("app.py::<module>", "pkg/impl.py::<module>"),
    ]


def test_imports_are_found_in_a_src_layout_and_in_namespace_packages() -> None:
    files = {
        "src/lib/core.py": "def f(): pass\n",
        "ns/part/a.py": "from ns.part import b\nfrom lib.core import f\nf()\n",
        "ns/part/b.py": "",
    }
    assert edges(files, "IMPORTS") == [
        ("ns/part/a.py::<module>", "ns/part/b.py::<module>"),
        ("ns/part/a.py::<module>", "src/lib/core.py::<module>"),
    ]
    assert edges(files, "CALLS") == [("ns/part/a.py::<module>", "src/lib/core.py::f")]


def test_circular_imports_and_star_imports_in_a_circle_end() -> None:
    names = [f"m{n}" for n in range(30)]
    files = {f"p/{name}.py": "\n".join(f"from .{other} import *" for other in names) for name in names}
    files["p/m7.py"] += "\ndef target(): pass\n"
    files["q.py"] = "from p.m0 import target\ntarget()\nfrom p.m3 import missing\nmissing()\n"
    assert edges({"a.py": "import b\nb.f()\n", "b.py": "import a\ndef f(): a.g()\n"}, "IMPORTS") == [
        ("a.py::<module>", "b.py::<module>"),
        ("b.py::<module>", "a.py::<module>"),
    ]
    assert edges(files, "CALLS") == [("q.py::<module>", "p/m7.py::target")]


def test_long_chains_of_imports_and_bases_end_without_a_deep_stack() -> None:
    files = {f"m{n}.py": f"from m{n + 1} import f\nfrom m{n + 1} import *\n" for n in range(2_000)}
    files["m2000.py"] = "def f(): pass\n"
    files["use.py"] = "from m1990 import f\nfrom m0 import f as far\nf()\nfar()\n"
    assert edges(files, "CALLS") == [("use.py::<module>", "m2000.py::f")]
    classes = "class C0:\n    def f(self): pass\n"
    classes += "".join(f"class C{n}(C{n - 1}): pass\n" for n in range(1, 2_000))
    classes += "class Wide(" + ", ".join(f"C{n}" for n in range(2_000)) + "): pass\n"
    classes += "C5.f()\nC1999.f()\nWide.f()\n"
    assert edges({"c.py": classes}, "CALLS") == [("c.py::<module>", "c.py::C0.f")]


def test_a_package_comes_before_a_module_and_a_module_before_its_stub() -> None:
    files = {
        "a/__init__.py": "def f(): pass\n",
        "a.py": "def f(): pass\n",
        "b.py": "def g(): pass\n",
        "b.pyi": "def g(): ...\n",
        "use.py": "import a, b\na.f()\nb.g()\n",
    }
    assert edges(files, "CALLS") == [
        ("use.py::<module>", "a/__init__.py::f"),
        ("use.py::<module>", "b.py::g"),
    ]


# --- Classes ------------------------------------------------------------------------------------------


def test_bases_are_followed_through_imports_and_aliases() -> None:
    files = {
        "base.py": "class Root: pass\nclass Mixin: pass\n",
        "use.py": (
            "import base as b\nfrom base import Mixin as M\n"
            "class A(b.Root, M, Exception): pass\nclass B(A[int]): pass\n"
        ),
    }
    assert edges(files, "INHERITS_FROM") == [
        ("use.py::A", "base.py::Mixin"),
        ("use.py::A", "base.py::Root"),
        ("use.py::B", "use.py::A"),
    ]


def test_bases_in_a_circle_end_and_do_not_depend_on_who_asks_first() -> None:
    text = (
        "class A(C):\n    def f(self): self.g()\n"
        "class B(A):\n    def g(self): self.h()\n"
        "class C(B):\n    def h(self): self.f()\n"
    )
    readings = {"a.py": read_file("a.py", text.encode(), FileReaders())}
    first = Linker(readings).link("a.py")
    linker = Linker(readings)
    assert linker.link("a.py") == linker.link("a.py") == first


# --- Calls --------------------------------------------------------------------------------------------


def test_an_unknown_object_gives_guesses_that_say_among_how_many() -> None:
    files = {
        "a.py": "class A:\n    def save(self): pass\nclass B:\n    def save(self): pass\n",
        "use.py": "def f(x):\n    x.save()\n    x.get()\n    x.nothing()\n",
    }
    assert edges(files, "CALLS") == []
    assert guesses(files, "CALLS") == [("use.py::f", "a.py::A.save", 2), ("use.py::f", "a.py::B.save", 2)]
    assert link(files)["use.py"].guessed_calls == 1
    assert link(files)["use.py"].unresolved_calls == 2


def test_a_name_that_too_many_classes_have_says_nothing() -> None:
    files = {
        "a.py": "".join(f"class C{n}:\n    def save(self): pass\n" for n in range(6)),
        "use.py": "def f(x): x.save()\n",
    }
    assert guesses(files, "CALLS") == []


def test_a_call_on_a_foreign_module_is_no_guess() -> None:
    files = {
        "a.py": "class A:\n    def array(self): pass\n",
        "use.py": (
            "import numpy as np\nfrom torch import nn\n"
            "def f(x):\n    np.array()\n    nn.array()\n    x.array()\n"
        ),
    }
    assert guesses(files, "CALLS") == [("use.py::f", "a.py::A.array", 1)]
    assert link(files)["use.py"].unresolved_calls == 2


def test_a_conditional_redefinition_gives_a_guess_for_each_definition() -> None:
    files = {"a.py": "if x:\n    def f(): pass\nelse:\n    def f(): pass\ndef g(): f()\n"}
    assert guesses(files, "CALLS") == [("a.py::g", "a.py::f", 2), ("a.py::g", "a.py::f#2", 2)]


def test_methods_of_one_name_in_two_classes_are_kept_apart() -> None:
    files = {
        "a.py": (
            "class Alpha:\n    class Same:\n        def run(self): self.one()\n        def one(self): pass\n"
            "class Beta:\n    class Same:\n        def run(self): self.one()\n        def one(self): pass\n"
        )
    }
    assert edges(files, "CALLS") == [
        ("a.py::Alpha.Same.run", "a.py::Alpha.Same.one"),
        ("a.py::Beta.Same.run", "a.py::Beta.Same.one"),
    ]


def test_a_class_and_a_function_that_differ_in_case_are_two() -> None:
    files = {"a.py": "class Session: pass\ndef session(): return Session()\ndef f(): session()\n"}
    assert edges(files, "CALLS") == [("a.py::f", "a.py::session"), ("a.py::session", "a.py::Session")]


def test_an_exact_call_hides_a_guess_of_the_same_target() -> None:
    files = {"a.py": "class A:\n    def save(self): pass\ndef f(x):\n    x.save()\n    A.save(x)\n"}
    assert edges(files, "CALLS") == [("a.py::f", "a.py::A.save")]
    assert guesses(files, "CALLS") == []


# --- Traces and tests ---------------------------------------------------------------------------------


def test_traces_lead_from_the_definition_that_holds_the_tag() -> None:
    files = {"a.py": "# @traces REQ-9\n\nimport os\n\n\ndef f():\n    # @traces REQ-1, REQ-2\n    pass\n"}
    assert edges(files, "TRACES_TO") == [
        ("a.py::f", "REQ-1"),
        ("a.py::f", "REQ-2"),
        ("a.py::<module>", "REQ-9"),
    ]


def test_a_requirement_mark_that_can_be_no_id_is_left_out() -> None:
    files = {
        "test_a.py": "import pytest\n"
        "@pytest.mark.requirement('\\ud800', 'a\\nb', '', 'x' * 2, 'A-1')\ndef test_f(): pass\n"
    }
    assert edges(files, "TRACES_TO") == [("test_a.py::test_f", "A-1")]
    assert edges(files, "TESTED_BY") == [("A-1", "test_a.py::test_f")]


CODE = "class Store:\n    def save(self): pass\ndef load(): pass\ndef parse(): pass\n"


def test_code_is_tested_by_what_calls_it_directly_or_through_fixtures_and_helpers() -> None:
    files = {
        "app/code.py": CODE,
        "tests/test_code.py": (
            "import pytest\nfrom app.code import Store, load, parse\n"
            "@pytest.fixture\ndef store(): return Store()\n"
            "def helper(): return load()\n"
            "def test_one(store):\n    helper()\n"
            "def test_two():\n    def inner(): parse()\n    inner()\n"
        ),
    }
    assert edges(files, "TESTED_BY") == [
        ("app/code.py::Store", "tests/test_code.py::test_one"),
        ("app/code.py::load", "tests/test_code.py::test_one"),
        ("app/code.py::parse", "tests/test_code.py::test_two"),
    ]


def test_unittest_classes_and_their_set_up_are_tests() -> None:
    files = {
        "app/code.py": CODE,
        "app/tests.py": (
            "import unittest\nfrom app.code import load, parse\n"
            "class Base(unittest.TestCase):\n    def setUp(self): load()\n"
            "class Cases(Base):\n    def test_it(self): parse()\n    def helper(self): pass\n"
            "class NoTest:\n    def test_it(self): parse()\n"
        ),
    }
    assert edges(files, "TESTED_BY") == [
        ("app/code.py::load", "app/tests.py::Cases.test_it"),
        ("app/code.py::parse", "app/tests.py::Cases.test_it"),
    ]


def test_a_name_alone_makes_a_guess_and_of_several_those_that_are_imported_count() -> None:
    files = {
        "a.py": "def parse(): pass\nclass Store: pass\n",
        "b.py": "def parse(): pass\n",
        "test_a.py": "import a\ndef test_parse(): pass\nclass TestStore: pass\ndef test_nothing(): pass\n",
    }
    assert guesses(files, "TESTED_BY") == [
        ("a.py::Store", "test_a.py::TestStore", 1),
        ("a.py::parse", "test_a.py::test_parse", 1),
    ]


def test_the_only_method_of_a_name_that_a_test_calls_is_a_guess() -> None:
    files = {
        "a.py": CODE,
        "test_a.py": "def test_it(thing):\n    thing.save()\n",
    }
    assert guesses(files, "TESTED_BY") == [("a.py::Store.save", "test_a.py::test_it", 1)]


def test_what_serves_tests_is_not_tested() -> None:
    files = {
        "tests/support.py": "def build(): pass\n",
        "tests/test_a.py": "from tests.support import build\ndef test_build(): build()\n",
    }
    assert edges(files, "TESTED_BY") == guesses(files, "TESTED_BY") == []


# --- Any input ----------------------------------------------------------------------------------------

LINES = st.sampled_from(
    [
        *("import a", "from . import b", "from .a import *", "from ... import x", "class A(A): pass"),
        *("class B(A, A): pass", "class A(B.C): pass", "def f(): f()", "A.f()", "self.f()", "super().f()"),
        *("class A:\n    class A(A):\n        def f(self): A.A.f()", "def f(f): f.f()", "f()()[0].f()"),
        *("from a import a as b", "import a.b.a", "global f", "lambda f: f()", "a.b.a.f()"),
    ]
)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["a.py", "b.py", "a/__init__.py", "a/b.py", "a/a.py", "test_a.py", "x/a.pyi"]),
        st.lists(LINES, max_size=6).map("\n".join),
        max_size=6,
    )
)
def test_links_are_the_same_in_whatever_order_files_are_linked(files: dict[str, str]) -> None:
    readings = {path: read_file(path, text.encode(), FileReaders()) for path, text in files.items()}
    forward, backward = Linker(readings), Linker(dict(reversed(readings.items())))
    first = {path: forward.link(path) for path in files}
    assert {path: backward.link(path) for path in reversed(files)} == first
    for links in first.values():
        assert list(links.edges) == sorted(links.edges)
        assert len({edge[:3] for edge in links.edges}) == len(links.edges)
