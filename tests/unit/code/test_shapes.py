"""Skeletons, and the difference of two shapes."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given, settings

from tests.unit.code.sources import modules, text_of
from worker.code.branches import NotSupported
from worker.code.shapes import Escape, Shape, shape_of, skeleton_diff
from worker.code.skeletons import Skeleton, skeleton

EXPECTED = """
class Cart(Base):
    def add(self, item: str) -> int: return 1
    async def load(self): ...
    @property
    def size(self): return 1

def total(items, tax=1): return sum(items) + tax

def parse(text, *, strict): return text

class Old:
    def keep(self, a): return a
    def drop(self): return 0

def gone(): return 0
"""
ACTUAL = """
class Cart(Base, Mixin):
    def add(self, item: bytes) -> int: return 1
    def load(self): ...
    def size(self): return 1
    def parse(text, *, strict): return text

def sum_up(items, tax=1): return sum(items) + tax

class New:
    def keep(self, a): return a
    def drop(self): return 0

def extra(): return 3
"""


def shape(text: str) -> Shape:
    found = shape_of(text)
    assert isinstance(found, Shape)
    return found


def written(text: str, qualname: str | None = None, language: str = "python") -> Skeleton:
    found = skeleton(text, language=language, qualname=qualname)
    assert isinstance(found, Skeleton)
    return found


def escapes(expected: str, actual: str) -> tuple[Escape, ...]:
    return skeleton_diff(shape(expected), shape(actual)).escapes


@settings(max_examples=40)
@given(modules())
def test_a_skeleton_is_python_again_with_the_same_shape_and_is_its_own_skeleton(lines: list[str]) -> None:
    source = text_of(lines)
    made = written(source)
    ast.parse(made.text)
    assert written(made.text).text == made.text
    assert skeleton_diff(shape(made.text), shape(source)).escapes == ()
    assert "inner" not in made.text


@settings(max_examples=25)
@given(modules())
def test_a_shape_does_not_escape_from_itself_and_what_is_taken_away_is_named(lines: list[str]) -> None:
    whole = shape(text_of(lines))
    assert skeleton_diff(whole, whole).escapes == ()
    for item in whole.items:
        without = Shape(
            items=tuple(
                i for i in whole.items if i != item and not f"{i.qualname}.".startswith(f"{item.qualname}.")
            )
        )
        [found] = [e for e in skeleton_diff(whole, without).escapes if e.kind != "moved"]
        assert (found.kind, found.expected) == ("removed", item.qualname)


@settings(max_examples=15)
@given(modules())
def test_the_tolerant_reader_gives_valid_skeletons_of_broken_source(lines: list[str]) -> None:
    made = written(text_of([*lines, "def broken(a:", "    return (", "", "def whole(b): return 1"]))
    ast.parse(made.text)
    assert made.is_partly_parsed
    assert "def whole(b):" in made.text


def test_each_structural_escape_is_named() -> None:
    found = [(e.kind, e.expected, e.actual, e.detail) for e in escapes(EXPECTED, ACTUAL)]
    assert found == [
        ("bases", "Cart", "Cart", "(Base) → (Base, Mixin)"),
        (
            "signature",
            "Cart.add",
            "Cart.add",
            "def add(self, item: str) -> int → def add(self, item: bytes) -> int",
        ),
        ("async", "Cart.load", "Cart.load", "async → sync"),
        ("decorators", "Cart.size", "Cart.size", "@property → none"),
        ("renamed", "total", "sum_up", ""),
        ("moved", "parse", "Cart.parse", ""),
        ("renamed", "Old", "New", ""),
        ("removed", "gone", "", "def gone()"),
        ("added", "", "extra", "def extra()"),
    ]


def test_two_that_might_be_the_renamed_one_are_not_guessed_at() -> None:
    assert [e.kind for e in escapes("def f(a, b): ...\n", "def g(a, b): ...\ndef h(a, b): ...\n")] == [
        "removed",
        "added",
        "added",
    ]
    assert [e.kind for e in escapes("def f(a): return 1\n", "def g(a): return 2\n")] == ["removed", "added"]
    assert [e.kind for e in escapes("def f(): ...\n", "def g(): ...\n")] == ["removed", "added"]


def test_a_definition_that_cannot_be_read_is_not_said_to_be_removed() -> None:
    found = skeleton_diff(shape("def f(a): ...\ndef g(b): ...\n"), shape("def f(a = (: 3\ndef g(b): ...\n"))
    assert found.escapes == ()
    assert found.unjudged == ("f",)


def test_of_one_definition_the_skeleton_is_its_own() -> None:
    assert written(EXPECTED, "Cart.add").text == "def add(self, item: str) -> int:\n    ...\n"
    assert skeleton(EXPECTED, qualname="Cart.nothing") == NotSupported(
        "no definition Cart.nothing that can be reached from outside"
    )


def test_long_values_and_bodies_are_left_out() -> None:
    text = f"class A:\n    x: int = {'1 + ' * 50}1\n    def f(self, a={'9' * 100}):\n"
    text += "        '''One.\n\n        Two.'''\n        return 1\n"
    assert written(text).text == (
        'class A:\n    x: int = ...\n\n    def f(self, a=...):\n        """One."""\n        ...\n'
    )


def test_other_languages_have_outlines_and_unknown_ones_say_so() -> None:
    source = "type S struct {}\nfunc (s *S) Get(a int) string { return x }\nfunc Top() {}\n"
    assert written(source, language="go").text.splitlines()[-1] == "func Top()"
    assert skeleton("SELECT", language="sql") == NotSupported("no parser for sql")


@pytest.mark.parametrize(
    "source",
    [
        "x = 1\n" * 3 + "if a: pass\n" + "elif b:\n    def f(a): ...\n" * 3_000,
        "class A:\n" + "    def f(self, a, b): return 1\n" * 3_000,
        "def f(a=" + "-" * 2_000 + "1): ...\n",
        "def f(a): ...\ndef f(a: '" + "x" * 100_000 + "'): ...\n",
        "'\\ud800'\ndef f():\n    '''\\ud800'''\n",
    ],
)
def test_hostile_source_costs_little_and_gives_a_valid_skeleton(source: str) -> None:
    ast.parse(written(source).text)
    whole = shape(source)
    assert skeleton_diff(whole, whole).escapes == ()
