"""Scaffolds are given to pytest itself, in a process of its own."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.unit.code.sources import functions
from worker.code.branch_tests import BranchTests, branch_tests, module_name
from worker.code.branches import NotSupported
from worker.code.reading import read_python

SHOP = """
import contextlib

class Cart:
    def __init__(self, items=()):
        if not items:
            raise ValueError(items)
        self.items = items

    @property
    def size(self):
        return 1 if self.items else 0

    @classmethod
    def of(cls, *items: "str", expected=None, **more):
        return cls(items) if items else None

    @staticmethod
    def check(Cart, /, choose):
        for one in choose:
            yield one

    @size.setter
    def size(self, value):
        if value: self.items = value

    async def load(self, result):
        if result == "\\"'\\\\":
            return 1

async def stream(pytest, *, instance):
    while pytest:
        yield instance

@contextlib.contextmanager
def opened(path):
    try:
        yield path
    except OSError:
        raise

def plain():
    if True:
        def inner(x):
            if x: return 1
        return inner
"""


def scaffolds(source: str, path: str = "src/shop/cart.py") -> dict[str, BranchTests | NotSupported]:
    reading = read_python(path, source.encode())
    assert reading is not None
    return {
        node.id.rpartition("::")[2]: branch_tests(node) for node in reading.nodes if node.label == "Function"
    }


def run(folder: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), "-c"]
    command += ["/dev/null", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=folder)
    return done.returncode, done.stdout


def test_a_scaffold_runs_as_unwritten_fails_the_gate_and_passes_once_it_is_written(tmp_path: Path) -> None:
    made = {name: found for name, found in scaffolds(SHOP).items() if isinstance(found, BranchTests)}
    tests = [test for found in made.values() for test in found.tests]
    assert len(tests) == 13
    for number, found in enumerate(made.values()):
        (tmp_path / f"test_{number}.py").write_text(found.text)
    code, said = run(tmp_path)
    assert (code, said.strip().splitlines()[-1].split(" in ")[0]) == (0, "13 xfailed")
    code, said = run(tmp_path, "--runxfail")
    assert (code, said.strip().splitlines()[-1].split(" in ")[0]) == (1, "13 failed")
    # Written by hand: what the scaffold left open is filled in, and nothing else.
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "cart.py").write_text(SHOP)
    init = made["Cart.__init__"].text.replace("choose('items')", "()", 1).replace("choose('items')", "(1,)")
    init = init.replace("choose('the exception of L7: if not items')", "ValueError")
    init = init.replace("choose('what holds where not: if not items')", "mock.ANY")
    init = init.replace("import pytest", "from unittest import mock\n\nimport pytest", 1)
    assert "choose('" not in init
    (tmp_path / "conftest.py").write_text("import sys\nsys.path.insert(0, __file__.rpartition('/')[0])\n")
    for number in range(len(made)):
        (tmp_path / f"test_{number}.py").unlink()
    (tmp_path / "test_init.py").write_text(init)
    code, said = run(tmp_path)
    assert code == 1, "written, it must lose its mark"
    (tmp_path / "test_init.py").write_text(init.replace("@unwritten\n", ""))
    code, said = run(tmp_path, "--runxfail")
    assert (code, said.strip().splitlines()[-1].split(" in ")[0]) == (0, "2 passed")


def test_each_kind_of_function_is_called_as_it_is_meant_to_be() -> None:
    calls = {
        "Cart.__init__": "    Cart(items)",
        "Cart.size": "result = instance.size",
        "Cart.size#2": "instance.size = expected",
        "Cart.of": "result = Cart.of(*items, expected=expected_, **more)",
        "Cart.check": "result = list(Cart.check(Cart_, choose_))",
        "Cart.load": "return await instance.load(result_)",
        "stream": "return [item async for item in stream(pytest_, instance=instance_)]",
        "opened": "    opened(path)",
        "plain": "result = plain()",
    }
    made = scaffolds(SHOP)
    for name, call in calls.items():
        found = made[name]
        assert isinstance(found, BranchTests)
        assert call in found.text
    assert made["plain.<locals>.inner"] == NotSupported(
        "plain.<locals>.inner stands inside plain: only a test of that can reach it"
    )


@settings(max_examples=30)
@given(functions())
def test_every_side_of_a_branch_has_one_test_that_begins_with_what_is_unwritten(source: str) -> None:
    found = scaffolds(source)["f"]
    assert isinstance(found, BranchTests)
    tree = ast.parse(found.text)
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name != "choose"]
    assert [node.name for node in tests] == [test.name for test in found.tests]
    assert len({node.name for node in tests}) == len(tests)
    for node in tests:
        assert ast.unparse(node.body[1]).startswith("expected = choose(")
        assert [ast.unparse(item) for item in node.decorator_list] == ["unwritten"]


def test_branches_that_ran_have_no_test_and_too_many_are_counted() -> None:
    source = "def f(a):\n" + "    if a == 1:\n        pass\n" * 50
    reading = read_python("m.py", source.encode())
    assert reading is not None
    node = next(node for node in reading.nodes if node.label == "Function")
    found = branch_tests(node, executed_lines={3, 5})
    assert isinstance(found, BranchTests)
    assert (found.tested, len(found.tests), found.more) == (2, 40, 58)
    assert found.tests[0].name == "test_f_b1_not_if_a_1"
    assert found.tests[2].branch_id == "m.py::f@b3"


ONE_SIDED = """def f(a):
    if a:
        return 1
    if not a:
        a += 1
    elif a > 1:
        a += 2
    for b in a:
        if b:
            continue
        a.pop()
        if b > 1: a.add(b)
    if a:
        return 2
    else:
        return 3
"""


@pytest.mark.parametrize(
    ("executed", "without_a_side"),
    [
        ((), set[int]()),
        # The first condition failed: its body leaves, and what stands below it has run.
        ((2, 4), {1}),
        # It held, and nothing below it has run.
        ((2, 3), set[int]()),
        # That the second held says nothing of the third, which was not asked.
        ((2, 4, 5, 8), {1}),
        # The third was asked and its lines were not run.
        ((2, 4, 6, 8), {1, 3}),
        # Within the loop: the first one's body goes on, and the line below it has run; the second's$
        # body stands on the line of its condition.
        ((8, 9, 11, 12), {5}),
        (range(1, 20), {1, 5}),
    ],
)
def test_the_side_without_lines_has_a_test_unless_lines_show_that_it_ran(
    executed: Collection[int], without_a_side: set[int]
) -> None:
    reading = read_python("m.py", f"# above\n@cached\n{ONE_SIDED}".encode())
    assert reading is not None
    node = next(node for node in reading.nodes if node.label == "Function")
    found = branch_tests(node, executed_lines={line + 2 for line in executed})
    assert isinstance(found, BranchTests)
    failing = [test.branch_id for test in found.tests if "_not_if" in test.name or "_not_elif" in test.name]
    labels = {1: "b1", 3: "b3", 5: "b5", 6: "b6"}
    assert failing == [f"m.py::f@{label}" for n, label in labels.items() if n not in without_a_side]
    assert found.tested + len(found.tests) == 12


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("src/shop/cart.py", "shop.cart"),
        ("shop/__init__.py", "shop"),
        ("lib.py", "lib"),
        ("my-tool/run.py", None),
        ("a/class.py", None),
    ],
)
def test_a_module_is_imported_by_the_name_that_its_path_gives(path: str, name: str | None) -> None:
    assert module_name(path) == name
    found = scaffolds("def f(a):\n    if a: pass\n", path)["f"]
    assert (f"from {name} import f" in found.text) if isinstance(found, BranchTests) else name is None


def test_what_cannot_be_scaffolded_says_why() -> None:
    reading = read_python("m.py", b"class A: ...\n")
    assert reading is not None
    assert isinstance(branch_tests(reading.nodes[1]), NotSupported)
