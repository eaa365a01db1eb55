"""Parameters that have no annotation, and those that their function never looks at.

A parameter is reported as dead only where the source leaves little doubt: stubs, overloads and abstract
methods have none, a name that begins with an underscore or is deleted says itself that it is not used, and
whatever reads its locals as a whole uses all. In a class with bases a method may be bound to the parameters
of the one that it overrides: these are said to be uncertain.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from worker.code.branches import NotSupported
from worker.code.facts import ParseProblem
from worker.code.parsing import parse
from worker.code.scopes import all_args
from worker.code.skeletons import definitions_in

MAX_REPORTS: Final = 2_000

_WHOLE_LOCALS: Final = frozenset({"locals", "vars", "eval", "exec", "dir"})
_NO_BODY: Final = frozenset({"overload", "abstractmethod"})
_ROOT_BASES: Final = frozenset({"object", "Generic", "Protocol", "ABC"})
_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterReport:
    """What is amiss with the parameters of one function."""

    qualname: str
    line: int
    untyped: tuple[str, ...]
    """In order of the signature; `self` and `cls` need no type. `return` where the result has none."""
    dead: tuple[str, ...]
    """In order of the signature."""
    is_certain: bool
    """False where the method may have its parameters from a class above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterReports:
    """The functions of a source with something amiss, in source order."""

    reports: tuple[ParameterReport, ...]
    """The first `MAX_REPORTS`."""
    more: int
    functions: int
    """How many were looked at."""


def report_parameters(text: str, *, language: str = "python") -> ParameterReports | NotSupported:
    """The untyped and dead parameters of a Python source. O(n) but for the nesting of functions.

    Not supported: other languages, and a source with syntax errors, of which nobody can say what it uses.
    """
    if language != "python":
        return NotSupported("parameters are read of Python alone")
    source = parse(text.encode("utf-8", "surrogatepass"))
    if isinstance(source, ParseProblem):
        return NotSupported(f"{source.kind} error" + (f" at line {source.line}" if source.line else ""))
    found = [_report(*item) for item in _functions(source.body)]
    reports = [report for report in found if report.untyped or report.dead]
    return ParameterReports(
        reports=tuple(reports[:MAX_REPORTS]), more=len(reports[MAX_REPORTS:]), functions=len(found)
    )


def _functions(body: Sequence[ast.stmt]) -> Iterator[tuple[_FunctionNode, str, ast.ClassDef | None]]:
    """Every function with its qualified name and the class that it is a method of."""
    stack: list[tuple[Sequence[ast.stmt], str, ast.ClassDef | None]] = [(body, "", None)]
    while stack:
        statements, prefix, owner = stack.pop()
        inner: list[tuple[Sequence[ast.stmt], str, ast.ClassDef | None]] = []
        for node in definitions_in(statements):
            if isinstance(node, ast.ClassDef):
                inner.append((node.body, f"{prefix}{node.name}.", node))
            elif isinstance(node, _FunctionNode):
                yield node, f"{prefix}{node.name}", owner
                inner.append((node.body, f"{prefix}{node.name}.<locals>.", None))
        stack += inner[::-1]


def _report(node: _FunctionNode, qualname: str, owner: ast.ClassDef | None) -> ParameterReport:
    decorators = {_last_name(item) for item in node.decorator_list}
    everything = list(all_args(node.args))
    is_bound = owner is not None and "staticmethod" not in decorators
    own = everything[1:] if is_bound and (node.args.posonlyargs or node.args.args) else everything
    untyped = [arg.arg for arg in own if arg.annotation is None]
    if node.returns is None and node.name != "__init__":
        untyped.append("return")
    dead: tuple[str, ...] = ()
    if not _is_stub(node) and decorators.isdisjoint(_NO_BODY):
        used = _used_names(node)
        dead = tuple(arg.arg for arg in own if not arg.arg.startswith("_") and arg.arg not in used)
        if not used.isdisjoint(_WHOLE_LOCALS):
            dead = ()
    is_dunder = node.name.startswith("__") and node.name.endswith("__") and node.name != "__init__"
    has_bases = owner is not None and any(_last_name(base) not in _ROOT_BASES for base in owner.bases)
    return ParameterReport(
        qualname=qualname,
        line=node.lineno,
        untyped=tuple(untyped),
        dead=dead,
        is_certain=not (has_bases or (owner is not None and is_dunder)),
    )


def _is_stub(node: _FunctionNode) -> bool:
    """Whether the body does nothing, or gives the same whatever it is called with."""
    for item in node.body:
        match item:
            case ast.Pass() | ast.Raise() | ast.Return(value=None | ast.Constant()):
                continue
            case ast.Expr(value=ast.Constant()):
                continue
            case _:
                return False
    return True


def _used_names(node: _FunctionNode) -> set[str]:
    """Every name that the body reads or deletes, nested definitions included: too many, never too few."""
    used: set[str] = set()
    stack: list[ast.AST] = [*node.body]
    while stack:
        inner = stack.pop()
        if isinstance(inner, ast.Name):
            if not isinstance(inner.ctx, ast.Store):
                used.add(inner.id)
        elif isinstance(inner, ast.AugAssign) and isinstance(inner.target, ast.Name):
            used.add(inner.target.id)
        stack += ast.iter_child_nodes(inner)
    return used


def _last_name(node: ast.expr) -> str:
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""
