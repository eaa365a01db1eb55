"""What is collected in one scope (a module, class or function body) before anything is named."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from worker.code.facts import MODULE_QUALNAME, BranchKind, Leaving, Trace
from worker.code.segments import Segments

DefinitionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(slots=True, eq=False)
class Scope:
    """A scope and what was met in it. Lists are in no order; each item begins with its line and column."""

    node: DefinitionNode | None
    """None for the module."""
    parent: Scope | None
    segments: Segments
    qualname: str = MODULE_QUALNAME
    start_line: int = 0
    """The first decorator's, or that of `def` or `class`; 0 for the module."""
    end_line: int = 0
    column: int = 0
    is_function: bool = False
    decorators: tuple[str, ...] = ()
    complexity: int = 1
    branches: list[tuple[int, int, BranchKind, str, int, int, Leaving]] = field(
        default_factory=list[tuple[int, int, BranchKind, str, int, int, Leaving]]
    )
    """Line, column, kind, condition, first and last line of the body, how that ends."""
    calls: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    imports: list[tuple[int, int, str, str, str | None, int]] = field(
        default_factory=list[tuple[int, int, str, str, str | None, int]]
    )
    """Line, column, local name, module, name, level."""
    bound: set[str] = field(default_factory=set[str])
    elsewhere: set[str] = field(default_factory=set[str])
    """Names that `global` or `nonlocal` says are another scope's."""
    marks: list[Trace] = field(default_factory=list[Trace])
    """Requirements that decorators name."""
    children: list[Scope] = field(default_factory=list["Scope"])
    uncounted: list[Any] = field(default_factory=list[Any])
    """Nodes whose calls are this scope's, and whose decisions are nobody's."""

    def __post_init__(self) -> None:
        node, parent = self.node, self.parent
        if node is None or parent is None:
            return
        self.is_function = not isinstance(node, ast.ClassDef)
        decorators = node.decorator_list
        self.start_line = min(decorators[0].lineno, node.lineno) if decorators else node.lineno
        self.end_line = node.end_lineno or node.lineno
        self.column = node.col_offset
        if parent.node is None:
            self.qualname = node.name
        else:
            inside = "<locals>." if parent.is_function else ""
            self.qualname = f"{parent.qualname}.{inside}{node.name}"


def all_args(args: ast.arguments) -> Iterator[ast.arg]:
    """Every parameter, in source order but for `*args`, which comes before keyword-only ones anyway."""
    yield from args.posonlyargs
    yield from args.args
    if args.vararg:
        yield args.vararg
    yield from args.kwonlyargs
    if args.kwarg:
        yield args.kwarg
