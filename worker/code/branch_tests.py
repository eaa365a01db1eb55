"""Scaffolds for tests: of one function a file for pytest with a test for each branch that nothing has run.

An `if` without an `else` has two: where its condition holds, and where it does not.

A scaffold says what is to be written and cannot be mistaken for a test that passes. Each test is marked as
expected to fail for being unwritten, strictly: as it stands it counts as `xfailed`; a written one that passes
below its mark fails the run until the mark goes; and `pytest --runxfail` fails for each that is unwritten,
which is the gate for work that has to cover its branches. Nothing of the code under test is imported or run
before the test is written.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from worker.code.branches import Branch, NotSupported, branches_of, function_of, untested_branches, wrapped
from worker.code.facts import ParseProblem
from worker.code.neighbourhood import SOURCE_FOLDERS
from worker.code.parsing import parse
from worker.code.scopes import all_args
from worker.code.segments import fold, shorten
from worker.graph.model import Node

MAX_TESTS: Final = 40
"""In one scaffold; further branches are counted."""

_MAX_SLUG_CHARS: Final = 40
_MAX_SAID_CHARS: Final = 200
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9]+")
_OWN_NAMES: Final = frozenset(
    {"pytest", "asyncio", "unwritten", "Unwritten", "choose", "expected", "result", "instance", "run", "Any"}
)
_PROPERTIES: Final = frozenset({"property", "cached_property"})
_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

_HEAD: Final = '''\
{docstring}

from __future__ import annotations

{imports}

class Unwritten(Exception):
    """Raised where a test still lacks a value."""


unwritten = pytest.mark.xfail(raises=Unwritten, strict=True, reason="not written yet")


def choose(what: str) -> Any:
    """Stand for a value that whoever writes the test decides on."""
    raise Unwritten(what)
'''


@dataclass(frozen=True, slots=True)
class BranchTest:
    """One test, and the branch that it is for."""

    name: str
    branch_id: str
    """The same for both sides of an `if` without `else`."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One way that control can go at a branch point."""

    branch: Branch
    holds: bool = True
    """False where it is the side of an `if` that has no lines of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchTests:
    """A scaffold."""

    path: str
    """Where it may be put; nothing is written there."""
    text: str
    """Empty where there is no branch to test."""
    tests: tuple[BranchTest, ...]
    tested: int
    """Sides of branches that were left out because something has run them."""
    more: int
    """Sides beyond the cap."""


def branch_tests(node: Node, *, executed_lines: Collection[int] = ()) -> BranchTests | NotSupported:
    """A scaffold for the branches of a Python function, as a graph holds it, of which no line was executed.

    `executed_lines` are of the function's file, as coverage counts them; without any, no branch counts as
    tested. That a condition without `else` failed shows where its own lines were not executed, or leave the
    block and those below were; else lines do not tell, and it gets its test. O(length of the function).
    """
    if node.language != "python":
        return NotSupported("tests are written for Python alone")
    found = function_of(node)
    if isinstance(found, NotSupported):
        return found
    qualname = node.property("qualname") or node.id.rpartition("::")[2]
    target = _target(node, qualname)
    if isinstance(target, NotSupported):
        return target
    sides, wanted = _sides(branches_of(found[1]), target.one_sided(node), frozenset(executed_lines))
    shown = wanted[:MAX_TESTS]
    names = [_test_name(node.name, side) for side in shown]
    texts = [target.test(name, side) for name, side in zip(names, shown, strict=True)]
    head = _HEAD.format(docstring=_quoted(_docstring(node.id)), imports=target.imports)
    module = re.sub(r"\W", "_", node.path.rpartition("/")[2].partition(".")[0])
    return BranchTests(
        path=f"tests/test_{module}_{node.name}_branches.py",
        text="\n\n".join([head, *texts]) if texts else "",
        tests=tuple(BranchTest(name, side.branch.id) for name, side in zip(names, shown, strict=True)),
        tested=sides - len(wanted),
        more=len(wanted) - len(shown),
    )


def _sides(
    branches: Sequence[Branch], one_sided: Mapping[int, int | None], executed_lines: frozenset[int]
) -> tuple[int, list[_Side]]:
    """How many sides the branches have, and those that nothing is known to have run, in source order.

    `one_sided` says of the line of each `if` without `else` which line follows it in its block.
    """
    untested = frozenset(branch.number for branch in untested_branches(branches, executed_lines))
    count = len(branches)
    wanted: list[_Side] = []
    for branch in branches:
        point = branch.point
        if branch.number in untested:
            wanted.append(_Side(branch))
        if point.kind not in {"if", "elif"} or point.line not in one_sided:
            continue
        count += 1
        below = one_sided[point.line]
        is_condition_run = point.line in executed_lines
        if branch.number in untested:
            has_failed = is_condition_run and point.body_line > point.line
        else:
            has_failed = bool(point.leaves) and below in executed_lines
        if not has_failed:
            wanted.append(_Side(branch, holds=False))
    return count, wanted


def module_name(path: str) -> str | None:
    """The name by which a file is imported, a source folder in front taken off; None where it has none."""
    parts = re.sub(r"\.py[iw]?\Z", "", path).split("/")
    if len(parts) > 1 and parts[0] in SOURCE_FOLDERS:
        parts = parts[1:]
    if len(parts) > 1 and parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts) if all(_is_name(part) for part in parts) else None


def _is_name(part: str) -> bool:
    return part.isidentifier() and not keyword.iskeyword(part)


def _target(node: Node, qualname: str) -> _Target | NotSupported:
    outer, is_local, _ = qualname.partition(".<locals>.")
    if is_local:
        return NotSupported(f"{qualname} stands inside {outer}: only a test of that can reach it")
    module = module_name(node.path)
    if module is None:
        return NotSupported(f"{node.path} cannot be imported by a name")
    source = parse(wrapped(node.text).encode("utf-8", "surrogatepass"))
    if isinstance(source, ParseProblem):
        return NotSupported(f"{node.id} has a {source.kind} error")
    definition = next((item for item in _statements(source.body) if isinstance(item, _FunctionNode)), None)
    if definition is None:
        return NotSupported(f"{node.id} cannot be read apart from its file")
    owner = qualname.partition("#")[0].rpartition(".")[0]
    return _Target(definition, module, owner)


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield from statement.body if isinstance(statement, ast.If) else (statement,)


class _Target:
    """The function under test, and how a test calls it."""

    def __init__(self, definition: _FunctionNode, module: str, owner: str) -> None:
        """`owner` is the class that it is a method of, with those around it; empty for a plain function."""
        self._definition = definition
        self._module = module
        self._owner = owner
        self._decorators = {_last_name(item) for item in definition.decorator_list}
        # Of a generator that is decorated with anything else, the decorator says what a call gives.
        is_own = self._decorators <= {"staticmethod", "classmethod"}
        self._is_drained = is_own and any(_yields(definition.body))

    @property
    def imports(self) -> str:
        """What the scaffold imports at its head."""
        lines = ["from typing import Any", "", "import pytest"]
        is_async = isinstance(self._definition, ast.AsyncFunctionDef)
        return "\n".join((["import asyncio"] if is_async else []) + lines) + "\n"

    def one_sided(self, node: Node) -> Mapping[int, int | None]:
        """By the line of each `if` or `elif` without `else`, in the node's file: the line that follows it.

        None where it is the last in its block.
        """
        offset = node.start_line - self._first_line()
        found: dict[int, int | None] = {}
        blocks: list[Sequence[ast.stmt]] = [self._definition.body]
        while blocks:
            block = blocks.pop()
            for place, statement in enumerate(block):
                if isinstance(statement, _FunctionNode | ast.ClassDef):
                    continue
                below = block[place + 1].lineno + offset if place + 1 < len(block) else None
                for end in _ends_of_chain(statement):
                    # As the inner block of its chain it is met again.
                    found.setdefault(end.lineno + offset, below)
                blocks += _blocks_in(statement)
        return found

    def _first_line(self) -> int:
        return min([self._definition.lineno, *(item.lineno for item in self._definition.decorator_list)])

    def test(self, name: str, side: _Side) -> str:
        """The test of one side of a branch. Its first statement raises Unwritten."""
        branch, point = side.branch, side.branch.point
        lines = f"L{point.line}" + (f"-{point.end_line}" if point.end_line > point.line else "")
        said = f"{point.kind} {point.condition}".strip()
        if not side.holds:
            ends, holds, raises = ", where it does not hold", "what holds where not", False
        else:
            raises = point.leaves == "raise"
            ends = f", which ends in {point.leaves}" if point.leaves else ""
            holds = f"the exception of L{point.end_line}" if raises else "what then holds"
        body = [
            _quoted(f"{branch.label}, {lines}: `{said}`{ends}."),
            f"expected = choose({_literal(f'{holds}: {said}')})",
            *self._arrange(),
            *self._act(raises=raises),
        ]
        return "\n".join(["@unwritten", f"def {name}() -> None:", *(f"    {line}" for line in body)]) + "\n"

    def _arrange(self) -> Iterator[str]:
        for arg in self._parameters():
            yield f"{self._local(arg.arg)} = choose({_literal(self._said(arg))})"
        top = self._owner.partition(".")[0] or self._definition.name
        yield f"from {self._module} import {top}  # noqa: PLC0415"
        if self._needs_instance():
            yield f"instance: {self._owner} = choose({_literal(f'an instance of {self._owner}')})"

    def _act(self, *, raises: bool) -> Iterator[str]:
        call = self._call()
        if call.endswith("= expected"):
            yield call
            return
        if isinstance(self._definition, ast.AsyncFunctionDef):
            yield "async def run() -> Any:"
            drained = f"[item async for item in {call}]"
            yield f"    return {drained if self._is_drained else f'await {call}'}"
            call = "asyncio.run(run())"
        elif self._is_drained:
            call = f"list({call})"
        if raises:
            yield "with pytest.raises(expected):"
            yield f"    {call}"
        else:
            yield f"result = {call}"
            yield "assert result == expected"

    def _call(self) -> str:
        name = self._definition.name
        if not self._owner:
            return f"{name}({self._arguments()})"
        if name == "__init__":
            return f"{self._owner}({self._arguments()})"
        if not self._needs_instance():
            return f"{self._owner}.{name}({self._arguments()})"
        if self._decorators & _PROPERTIES:
            return f"instance.{name}"
        if "setter" in self._decorators:
            return f"instance.{name} = expected"
        return f"instance.{name}({self._arguments()})"

    def _needs_instance(self) -> bool:
        is_bound_to_class = not self._decorators.isdisjoint({"classmethod", "staticmethod"})
        name = self._definition.name
        return bool(self._owner) and not is_bound_to_class and name not in {"__init__", "__new__"}

    def _parameters(self) -> list[ast.arg]:
        """Those that a test passes: all but what a method is bound to."""
        args = self._definition.args
        everything = list(all_args(args))
        is_bound = self._owner and "staticmethod" not in self._decorators
        if is_bound and everything and (args.posonlyargs or args.args):
            everything = everything[1:]
        is_unnamed = self._decorators & (_PROPERTIES | {"setter", "deleter"})
        return [] if is_unnamed else everything

    def _arguments(self) -> str:
        args = self._definition.args
        by_name = {id(arg) for arg in args.kwonlyargs}
        passed: list[str] = []
        for arg in self._parameters():
            local = self._local(arg.arg)
            if arg is args.vararg:
                passed.append(f"*{local}")
            elif arg is args.kwarg:
                passed.append(f"**{local}")
            else:
                passed.append(f"{arg.arg}={local}" if id(arg) in by_name else local)
        return ", ".join(passed)

    def _local(self, name: str) -> str:
        taken = _OWN_NAMES | {self._definition.name, self._owner.partition(".")[0]}
        while name in taken:
            name += "_"
        return name

    def _said(self, arg: ast.arg) -> str:
        if arg.annotation is None:
            return arg.arg
        try:
            annotation = ast.unparse(arg.annotation)
        except (ValueError, RecursionError):
            return arg.arg
        return f"{arg.arg}: {annotation}"


def _ends_of_chain(statement: ast.stmt) -> Iterator[ast.If]:
    """The last `if` or `elif` of a chain, where no `else` follows it."""
    while isinstance(statement, ast.If):
        if not statement.orelse:
            yield statement
            return
        # An `else` with nothing but an `if` in it reads the same to the parser; its chain ends alike.
        if len(statement.orelse) > 1:
            return
        statement = statement.orelse[0]


def _blocks_in(statement: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(statement, name, None):
            yield block
    for held in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield held.body


def _yields(body: Sequence[ast.stmt]) -> Iterator[bool]:
    """True for each `yield` of the function's own."""
    stack: list[ast.AST] = [*body]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            yield True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            stack += ast.iter_child_nodes(node)


def _last_name(decorator: ast.expr) -> str:
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _test_name(function: str, side: _Side) -> str:
    branch = side.branch
    said = f"{'' if side.holds else 'not '}{branch.point.kind} {branch.point.condition}"
    slug = _NOT_IN_NAMES.sub("_", said)[:_MAX_SLUG_CHARS].strip("_").lower()
    return f"test_{function}_{branch.label}_{slug}"


def _docstring(function_id: str) -> str:
    return (
        f"Tests for branches of {function_id} that nothing has run yet, one each. To write one, replace "
        "every choose(...) and remove its mark; pytest --runxfail fails while any is unwritten."
    )


def _quoted(text: str) -> str:
    """The text as a docstring."""
    folded = fold(text.encode("utf-8", "replace").decode())
    return repr(folded) if {"\\", '"'} & {*folded} or not folded.isprintable() else f'"""{folded}"""'


def _literal(text: str) -> str:
    """The text as a string literal on one line, cut."""
    folded = fold(text.encode("utf-8", "replace").decode())
    return repr(shorten(folded, max_chars=_MAX_SAID_CHARS))
