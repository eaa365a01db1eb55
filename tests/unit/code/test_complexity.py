from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from radon.visitors import ComplexityVisitor

from worker.code.extractor import extract

STDLIB = Path(sysconfig.get_path("stdlib"))
PROJECT = Path(__file__).parents[3]


def by_radon(content: bytes) -> dict[tuple[int, str], int]:
    """Complexity by line of `def` and name, closures and methods included."""

    def functions(items: list[Any]) -> Iterator[Any]:
        for item in items:
            yield item
            yield from functions(item.closures)

    def methods(classes: list[Any]) -> Iterator[Any]:
        for item in classes:
            yield from functions(item.methods)
            yield from methods(item.inner_classes)

    visitor: Any = ComplexityVisitor.from_code(content)  # pyright: ignore[reportUnknownMemberType]  # untyped
    found = [*functions(visitor.functions), *methods(visitor.classes)]
    return {(item.lineno, item.name): item.complexity for item in found}


def by_us(content: bytes) -> dict[tuple[int, str], int]:
    return {(item.line, item.name): item.complexity for item in extract("m.py", content).functions}


def assert_equal_on(paths: list[Path]) -> None:
    compared = 0
    for path in paths:
        content = path.read_bytes()
        ours = by_us(content)
        # Radon looks into no class that stands in a function or under a condition.
        for key, complexity in by_radon(content).items():
            assert (path, key, ours[key]) == (path, key, complexity)
            compared += 1
    assert compared > 300


def test_it_is_what_radon_says_of_this_project() -> None:
    assert_equal_on(sorted((PROJECT / "worker").rglob("*.py")) + sorted((PROJECT / "schemas").rglob("*.py")))


def test_it_is_what_radon_says_of_the_standard_library() -> None:
    tests = sorted((STDLIB / "test").glob("test_[dgp]*.py"))[::3]
    assert_equal_on(sorted(STDLIB.glob("*.py"))[::6] + sorted((STDLIB / "asyncio").glob("*.py")) + tests)


def complexity(body: str) -> int:
    [function] = [f for f in extract("m.py", f"def f():\n{body}\n".encode()).functions if f.name == "f"]
    return function.complexity


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("    pass", 1),
        ("    if a:\n        pass\n    elif b:\n        pass\n    else:\n        pass", 3),
        ("    return a if b else c", 2),
        ("    return a and b or c", 3),
        ("    for x in y:\n        pass\n    else:\n        pass", 3),
        ("    while a:\n        pass", 2),
        (
            "    try:\n        a\n    except A:\n        b\n    except B:\n        c\n    else:\n        d",
            4,
        ),
        ("    assert a and b", 2),
        ("    return [x for x in y if x if z]", 4),
        ("    match a:\n        case 1:\n            pass\n        case [2]:\n            pass", 3),
        ("    match a:\n        case 1:\n            pass\n        case _:\n            pass", 2),
        ("    def g():\n        if a:\n            pass", 1),
        ("    class A:\n        def g(self):\n            if a:\n                pass", 1),
        ("    return lambda: a if b else c", 2),
        ("    def g(x=a if b else c):\n        pass", 1),
        ("    @d(a or b)\n    def g():\n        pass", 1),
        # Radon 6 does not know it.
        ("    try:\n        pass\n    except* A:\n        pass\n    else:\n        pass", 3),
    ],
)
def test_each_decision_counts_as_stated(body: str, expected: int) -> None:
    assert complexity(body) == expected


def points(source: str) -> list[tuple[int, str, str]]:
    function = extract("m.py", source.encode()).functions[0]
    return [(point.line, point.kind, point.condition) for point in function.branch_points]


def test_branch_points_name_every_path_in_source_order() -> None:
    source = """
def f(a, b):
    if a > 0 and b:
        pass
    elif not a: x = 1
    # why

    else:
        if b: return 2
    for i, j in b:
        pass
    else: pass
    while (n := a()) is not None:
        break
    try:
        pass
    except (OSError, ValueError) as e:
        raise
    except KeyError:
        pass
    except:
        pass
    else:
        pass
    finally:
        pass
    assert a, "no"
    match a:
        case [1, *rest] if rest:
            pass
        case {"k": v} | v:
            pass
    return [x for x in a if x] if b else {}
"""
    assert points(source) == [
        (3, "if", "a > 0 and b"),
        (5, "elif", "not a"),
        (8, "else", ""),
        (9, "if", "b"),
        (10, "for", "i, j in b"),
        (12, "else", ""),
        (13, "while", "(n := a()) is not None"),
        (17, "except", "(OSError, ValueError)"),
        (19, "except", "KeyError"),
        (21, "except", ""),
        (23, "else", ""),
        (27, "assert", "a"),
        (29, "case", "[1, *rest] if rest"),
        (31, "case", '{"k": v} | v'),
        (33, "comprehension if", "x"),
        (33, "ternary", "b"),
    ]


def test_a_condition_over_several_lines_is_folded_and_loses_its_comments() -> None:
    assert points("def f():\n    if (a\n        and   b):\n        pass\n") == [(2, "if", "a and b")]
    assert points("def f():\n    if (a  # first\n        and b):\n        pass\n") == [(2, "if", "a and b")]
    assert points("def f():\n    if a == '#' and (\n        b):\n        pass\n") == [
        (2, "if", "a == '#' and b")
    ]


def test_a_long_condition_is_cut_between_graphemes() -> None:
    family = "👩‍👩‍👧‍👦"
    [(_, _, condition)] = points(f"def f():\n    if x == '{family * 40}':\n        pass\n")
    assert len(condition) <= 120
    assert condition.startswith(f"x == '{family}")
    assert condition.rstrip("…").endswith(family)


def test_conditions_of_a_huge_line_take_linear_time() -> None:
    line = "    x = (" + "'é' if é else 'è', " * 20_000 + ")"
    assert len(points(f"def f():\n{line}\n")) == 20_000
