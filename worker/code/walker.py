"""One pass over a module's syntax tree: each node is met once, in the scope that it belongs to.

A stack takes the place of recursion, so no nesting is too deep. Definitions are walked after the scope
that they stand in; their decorators, defaults, annotations and bases are that scope's.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from worker.code.complexity import DECISIONS
from worker.code.facts import Trace
from worker.code.scopes import DefinitionNode, Scope, all_args
from worker.code.segments import Segments
from worker.code.signatures import written_name


def walk_module(body: Sequence[ast.stmt], segments: Segments) -> list[Scope]:
    """Every scope of a module, the module's first, then definitions by line and column. O(n log n)."""
    module = Scope(None, None, segments)
    _walk(module, body)
    scopes = list(module.children)
    for scope in scopes:  # grows while it is walked
        if scope.node is not None:
            if not isinstance(scope.node, ast.ClassDef):
                scope.bound.update(arg.arg for arg in all_args(scope.node.args))
            _walk(scope, scope.node.body)
            scopes += scope.children
    for scope in scopes:
        # A nonlocal name is counted as the module's, too: that only makes a name less certain.
        module.bound |= scope.bound & scope.elsewhere
        scope.bound -= scope.elsewhere
    return [module, *sorted(scopes, key=lambda scope: (scope.start_line, scope.column))]


def _walk(scope: Scope, body: Iterable[ast.stmt]) -> None:
    _visit(scope, list(body))
    complexity, branches = scope.complexity, len(scope.branches)
    while scope.uncounted:
        nodes, scope.uncounted = scope.uncounted, []
        _visit(scope, nodes)
    scope.complexity = complexity
    del scope.branches[branches:]


def _visit(scope: Scope, stack: list[Any]) -> None:
    """Meet the nodes on the stack and all below them: the hot loop, about five nodes a line of source."""
    pop, push, extend, bind = stack.pop, stack.append, stack.extend, scope.bound.add
    while stack:
        node = pop()
        kind = node.__class__
        if kind is ast.Name:
            if node.ctx.__class__ is not ast.Load:
                bind(node.id)
            continue
        handle = _HANDLERS.get(kind)
        if handle is not None:
            handle(scope, node)
        for field in _CHILDREN[kind]:
            child = getattr(node, field)
            if child.__class__ is list:
                extend(child)
            elif child is not None:
                push(child)


def _on_call(scope: Scope, node: ast.Call) -> None:
    function = node.func
    name = function.id if isinstance(function, ast.Name) else written_name(function)
    # Where the called name ends: in a chain over several lines each call has a line of its own.
    scope.calls.append((function.end_lineno or 0, function.end_col_offset or 0, name))


def _on_definition(scope: Scope, node: DefinitionNode) -> None:
    definition = Scope(node, scope, scope.segments)
    scope.children.append(definition)
    scope.uncounted += node.decorator_list
    if isinstance(node, ast.ClassDef):
        scope.uncounted += [*node.bases, *node.keywords]
    else:
        scope.uncounted += [*node.args.defaults, *node.args.kw_defaults, node.returns]
        scope.uncounted += [arg.annotation for arg in all_args(node.args)]
    if node.decorator_list:
        definition.decorators = tuple(written_name(decorator) for decorator in node.decorator_list)
        for decorator, name in zip(node.decorator_list, definition.decorators, strict=True):
            # A decorator without brackets is called with the definition; one with them is met as a call.
            if not isinstance(decorator, ast.Call):
                scope.calls.append((decorator.end_lineno or 0, decorator.end_col_offset or 0, name))
        definition.marks = [mark for decorator in node.decorator_list for mark in _marks(decorator)]


def _marks(decorator: ast.expr) -> Iterator[Trace]:
    """What `@pytest.mark.requirement("A-1", "A-2")` names."""
    match decorator:
        case ast.Call(
            func=ast.Attribute(value=ast.Attribute(attr="mark"), attr="requirement"), args=arguments
        ):
            for argument in arguments:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield Trace(argument.value, "@pytest.mark.requirement", argument.lineno)
        case _:
            return


def _on_import(scope: Scope, node: ast.Import) -> None:
    for alias in node.names:
        local_name = alias.asname or alias.name.split(".", 1)[0]
        scope.imports.append((alias.lineno, alias.col_offset, local_name, alias.name, None, 0))


def _on_import_from(scope: Scope, node: ast.ImportFrom) -> None:
    for alias in node.names:
        local_name = alias.asname or alias.name
        scope.imports.append(
            (alias.lineno, alias.col_offset, local_name, node.module or "", alias.name, node.level)
        )


def _on_elsewhere(scope: Scope, node: ast.Global | ast.Nonlocal) -> None:
    scope.elsewhere.update(node.names)


def _on_named_pattern(scope: Scope, node: ast.MatchAs | ast.MatchStar) -> None:
    if node.name is not None:
        scope.bound.add(node.name)


def _on_mapping_pattern(scope: Scope, node: ast.MatchMapping) -> None:
    if node.rest is not None:
        scope.bound.add(node.rest)


def _on_lambda_arg(scope: Scope, node: ast.arg) -> None:
    # A lambda's calls are taken for the function's, so its names must be, too.
    scope.bound.add(node.arg)


_HANDLERS: Final[dict[type, Callable[[Scope, Any], None]]] = DECISIONS | {
    ast.Call: _on_call,
    ast.FunctionDef: _on_definition,
    ast.AsyncFunctionDef: _on_definition,
    ast.ClassDef: _on_definition,
    ast.Import: _on_import,
    ast.ImportFrom: _on_import_from,
    ast.Global: _on_elsewhere,
    ast.Nonlocal: _on_elsewhere,
    ast.MatchAs: _on_named_pattern,
    ast.MatchStar: _on_named_pattern,
    ast.MatchMapping: _on_mapping_pattern,
    ast.arg: _on_lambda_arg,
}

# Fields that hold no nodes, or operators only.
_LEAVES: Final = frozenset(
    {"arg", "attr", "conversion", "ctx", "id", "is_async", "kind", "kwd_attrs", "level", "module", "name"}
    | {"names", "op", "ops", "rest", "simple", "tag", "type_comment", "type_ignores"}
)
# Kinds whose handlers take them apart, or that have nothing inside.
_WHOLE: Final = frozenset(
    {ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assert, ast.Constant, ast.MatchSingleton}
)


def _children_by_kind() -> dict[type, tuple[str, ...]]:
    # A list of nodes may hold None: the key of `**` in a dict display.
    children: dict[type, tuple[str, ...]] = {type(None): ()}
    for kind in vars(ast).values():
        if isinstance(kind, type) and issubclass(kind, ast.AST):
            fields = tuple(field for field in kind._fields if field not in _LEAVES)
            children[kind] = () if kind in _WHOLE else fields
    return children


_CHILDREN: Final = _children_by_kind()
