"""Decisions: McCabe's complexity of a function, and the places where its control can go two ways.

Counted as `radon` counts, so that numbers can be compared: 1, and 1 for each `if`, `elif`, ternary, `for`,
`while`, `except`, `assert`, comprehension, `if` in one, `else` of a loop or `try`, operand of `and` or `or`
after the first, and `case`, less one where some case takes anything. Nested definitions, the inside of an
`assert` and a definition's head are not counted. The one deviation: `except*` counts as `except` does,
where radon 6 overlooks it.

Branch points are the same places but for the operands, which stand in the condition's text, and the
comprehensions themselves; an `else` of an `if` is shown, though it adds no complexity. Early ends are no
points of their own: each point says whether it returns, raises, or goes on with or out of a loop.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, Final

from worker.code.facts import BranchKind, Leaving
from worker.code.scopes import Scope
from worker.code.segments import shorten

MAX_CONDITION_CHARS: Final = 120

_LEAVING: Final[dict[type, Leaving]] = {
    ast.Return: "return",
    ast.Raise: "raise",
    ast.Continue: "continue",
    ast.Break: "break",
}


def _branch(
    scope: Scope,
    at: ast.stmt | ast.expr | ast.pattern | ast.ExceptHandler,
    kind: BranchKind,
    condition: ast.expr | ast.pattern | None,
    until: ast.expr | None = None,
    *,
    body: Sequence[ast.stmt] = (),
) -> None:
    if scope.is_function:
        text = "" if condition is None else scope.segments.of(condition, until)
        text = shorten(text, max_chars=MAX_CONDITION_CHARS)
        lines = _lines(body) if body else (at.lineno, at.end_lineno or at.lineno)
        scope.branches.append((at.lineno, at.col_offset, kind, text, *lines, _leaving(body)))


def _else(scope: Scope, after: ast.stmt | ast.ExceptHandler, orelse: list[ast.stmt]) -> None:
    if scope.is_function:
        line = scope.segments.find_else(after_line=after.end_lineno or 0, until_line=orelse[0].lineno)
        scope.branches.append((line, 0, "else", "", *_lines(orelse), _leaving(orelse)))


def _lines(body: Sequence[ast.stmt]) -> tuple[int, int]:
    return body[0].lineno, body[-1].end_lineno or body[-1].lineno


def _leaving(body: Sequence[ast.stmt]) -> Leaving:
    return _LEAVING.get(body[-1].__class__, "") if body else ""


def _is_elif(scope: Scope, node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and scope.segments.starts_with(
        "elif", line=node.lineno, column=node.col_offset
    )


def _on_if(scope: Scope, node: ast.If) -> None:
    scope.complexity += 1
    _branch(scope, node, "elif" if _is_elif(scope, node) else "if", node.test, body=node.body)
    if node.orelse and not _is_elif(scope, node.orelse[0]):
        _else(scope, node.body[-1], node.orelse)


def _on_ternary(scope: Scope, node: ast.IfExp) -> None:
    scope.complexity += 1
    _branch(scope, node.test, "ternary", node.test)


def _on_operands(scope: Scope, node: ast.BoolOp) -> None:
    scope.complexity += len(node.values) - 1


def _on_for(scope: Scope, node: ast.For | ast.AsyncFor) -> None:
    _branch(scope, node, "for", node.target, node.iter, body=node.body)
    _loop_ends(scope, node)


def _on_while(scope: Scope, node: ast.While) -> None:
    _branch(scope, node, "while", node.test, body=node.body)
    _loop_ends(scope, node)


def _loop_ends(scope: Scope, node: ast.For | ast.AsyncFor | ast.While) -> None:
    scope.complexity += 1 + bool(node.orelse)
    if node.orelse:
        _else(scope, node.body[-1], node.orelse)


def _on_try(scope: Scope, node: ast.Try | ast.TryStar) -> None:
    scope.complexity += len(node.handlers) + bool(node.orelse)
    if node.orelse:
        _else(scope, node.handlers[-1], node.orelse)


def _on_handler(scope: Scope, node: ast.ExceptHandler) -> None:
    if node.name is not None:
        scope.bound.add(node.name)
    _branch(scope, node, "except", node.type, body=node.body)


def _on_match(scope: Scope, node: ast.Match) -> None:
    takes_anything = any(
        isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None for case in node.cases
    )
    scope.complexity += len(node.cases) - takes_anything


def _on_case(scope: Scope, node: ast.match_case) -> None:
    _branch(scope, node.pattern, "case", node.pattern, node.guard, body=node.body)


def _on_comprehension(scope: Scope, node: ast.comprehension) -> None:
    scope.complexity += 1 + len(node.ifs)
    for test in node.ifs:
        _branch(scope, test, "comprehension if", test)


def _on_assert(scope: Scope, node: ast.Assert) -> None:
    scope.complexity += 1
    _branch(scope, node, "assert", node.test)
    scope.uncounted += [node.test, node.msg]


DECISIONS: Final[dict[type, Callable[[Scope, Any], None]]] = {
    ast.If: _on_if,
    ast.IfExp: _on_ternary,
    ast.BoolOp: _on_operands,
    ast.For: _on_for,
    ast.AsyncFor: _on_for,
    ast.While: _on_while,
    ast.Try: _on_try,
    ast.TryStar: _on_try,
    ast.ExceptHandler: _on_handler,
    ast.Match: _on_match,
    ast.match_case: _on_case,
    ast.comprehension: _on_comprehension,
    ast.Assert: _on_assert,
}
"""What to do on meeting a node of each kind, before its children are visited."""
