from __future__ import annotations

import ast
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.code.branches import NotSupported
from worker.code.contracts import contract_shape, contract_skeleton
from worker.code.shapes import Shape, shape_of, skeleton_diff
from worker.code.skeletons import Skeleton

DIAGRAM = """---
title: The shop
---
classDiagram
    direction LR
    %% what there is to buy
    Store <|-- SqlStore : keeps
    Cart "1" --> "many" Item
    namespace shop {
        class Cart {
            +items: list~Item~
            +int count
            +add(item: Item, count: int = 1) bool
            +of(str text)$ Cart
            +async load(key) dict[str, int]
            -check(*args, **more)*
        }
    }
    class Store {
        <<interface>>
        +get(key: str) bytes
    }
    Item : +str name
    class helpers {
        <<module>>
        +total(items: list~Item~, *, tax: float) float
    }
"""
SKELETON = """\
class Store(Protocol):

    def get(self, key: str) -> bytes:
        ...

class SqlStore(Store):
    ...

class Cart:
    items: list[Item]
    count: int

    def add(self, item: Item, count: int=1) -> bool:
        ...

    @staticmethod
    def of(text: str) -> Cart:
        ...

    async def load(self, key) -> dict[str, int]:
        ...

    @abstractmethod
    def check(self, *args, **more):
        ...

class Item:
    name: str

def total(items: list[Item], *, tax: float) -> float:
    ...
"""


def read(text: str) -> Skeleton:
    found = contract_skeleton(text)
    assert isinstance(found, Skeleton)
    return found


def test_a_class_diagram_is_the_skeleton_that_it_asks_for() -> None:
    made = read(DIAGRAM)
    assert made.text == SKELETON
    assert (made.unread, made.definitions) == ((), 10)


def test_code_that_keeps_to_the_contract_does_not_escape_and_other_code_is_named() -> None:
    contract = contract_shape(DIAGRAM)
    assert contract == contract_shape(SKELETON)
    kept = shape_of(
        SKELETON.replace("...\n", "return 1\n").replace(
            "class SqlStore(Store):\n    return 1", "class SqlStore(Store): pass"
        )
    )
    broken = shape_of(SKELETON.replace("count: int=1", "count: int=2").replace("def total", "def sums"))
    assert isinstance(contract, Shape)
    assert isinstance(kept, Shape)
    assert isinstance(broken, Shape)
    assert skeleton_diff(contract, kept).escapes == ()
    found = skeleton_diff(contract, broken).escapes
    assert [(e.kind, e.expected) for e in found] == [("signature", "Cart.add"), ("renamed", "total")]


@pytest.mark.parametrize("text", ["", "flowchart LR\n a --> b", "---\ntitle: x", "x" * 300_000])
def test_what_is_no_class_diagram_is_said(text: str) -> None:
    assert isinstance(contract_skeleton(text), NotSupported)


def test_lines_that_are_not_understood_are_given_back() -> None:
    made = read("classDiagram\nclass A {\n+9lives\n+def() x\n+f(a-b)\n+g(a: Foo Bar) x y\n}\n!!\n")
    assert made.unread == ("+9lives", "+def() x", "+f(a-b)", "!!")
    assert "def g(self, a: 'Foo Bar') -> 'x y':" in made.text


@settings(max_examples=60)
@given(
    st.lists(
        st.sampled_from([*DIAGRAM.split("\n"), "class A~T~", "A ..|> B", "}", "{", "A : f(("])
        | st.text(max_size=12)
    )
)
def test_any_diagram_gives_valid_python_or_a_reason(lines: list[str]) -> None:
    found = contract_skeleton("\n".join(["classDiagram", *lines]))
    if isinstance(found, Skeleton):
        ast.parse(found.text)
    else:
        assert found.reason


@pytest.mark.parametrize(
    "line", ["class {}\x00", "class A~{}\x00", "<<{}\x00", "x : {}(", "A <|{}", "x : {}\x00*"]
)
@pytest.mark.parametrize("unit", ["w", " ", "~", "- ", '"'])
def test_a_line_that_is_made_to_defeat_an_expression_is_given_back_at_once(line: str, unit: str) -> None:
    long = line.format(unit * (190_000 // len(unit)))
    started = time.process_time()
    found = contract_skeleton(f"classDiagram\nclass A\n{long}\n")
    assert time.process_time() - started < 2
    assert isinstance(found, NotSupported) or len(found.unread) == 1
