"""One module's source to facts: parse, walk, then name and bind what was found.

A pure function of path and content, so an index, a prompt and a tool all see the same module, and what was
extracted once can be kept under the content's digest.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence

from worker.code.facts import (
    MAX_DOCSTRING_CHARS,
    MODULE_QUALNAME,
    BranchPoint,
    Call,
    Class,
    DefinitionFields,
    Function,
    Import,
    ModuleFacts,
    ParseProblem,
    Trace,
)
from worker.code.parsing import Source, parse
from worker.code.scopes import DefinitionNode, Scope
from worker.code.segments import Segments, first_line, shorten
from worker.code.signatures import class_signature, function_signature, written_name
from worker.code.traces import MODULE, Docstring, Span, find_placeholders, find_traces, may_hold_tags
from worker.code.walker import walk_module


def extract(path: str, content: bytes) -> ModuleFacts:
    """The facts of the module at `path`. Gives a result for any content, raises for none.

    O(n), about 25 ms for a thousand lines, two thirds of it in the parser. Content that cannot be read gives
    facts with a `parse_problem`.
    """
    source = parse(content)
    line_count = content.count(b"\n") + (bool(content) and not content.endswith(b"\n"))
    if isinstance(source, ParseProblem):
        return ModuleFacts(path=path, line_count=line_count, parse_problem=source)
    segments = Segments(source.lines)
    module, *definitions = walk_module(source.body, segments)
    exports = _exports(source.body)
    names = _Names(path, module, definitions, exports)
    traces = _traces(source, definitions)
    facts = [
        _definition(scope, scope.node, names, traces.get(index, ()))
        for index, scope in enumerate(definitions)
        if scope.node is not None
    ]
    return ModuleFacts(
        path=path,
        line_count=line_count,
        docstring_head=_docstring_head(source.body),
        docstring_lines=_docstring_lines(source.body),
        exports=exports,
        functions=tuple(item for item in facts if isinstance(item, Function)),
        classes=tuple(item for item in facts if isinstance(item, Class)),
        imports=tuple(
            Import(names.ids[scope], local_name, imported, name, level, line)
            for scope in (module, *definitions)
            for line, _, local_name, imported, name, level in sorted(scope.imports, key=lambda i: i[:2])
        ),
        calls=_calls(module),
        bound_names=frozenset(module.bound),
        traces=traces.get(MODULE, ()),
        placeholders=_placeholders(source, definitions),
    )


class _Names:
    """Ids of all scopes, and which of them others are meant to use."""

    def __init__(
        self, path: str, module: Scope, definitions: Sequence[Scope], exports: tuple[str, ...] | None
    ) -> None:
        self.ids = {module: f"{path}::{MODULE_QUALNAME}"}
        self.public: set[Scope] = set()
        seen = Counter[str]()
        for scope in definitions:
            seen[scope.qualname] += 1
            number = seen[scope.qualname]
            self.ids[scope] = f"{path}::{scope.qualname}" + (f"#{number}" if number > 1 else "")
            if self._is_public(scope, exports):
                self.public.add(scope)

    def _is_public(self, scope: Scope, exports: tuple[str, ...] | None) -> bool:
        """`__all__` decides where there is one, else the underscore; nothing in a function is public."""
        node, parent = scope.node, scope.parent
        if node is None or parent is None or parent.is_function:
            return False
        if parent.node is None and exports is not None:
            return node.name in exports
        return not node.name.startswith("_") and (parent.node is None or parent in self.public)


def _definition(
    scope: Scope, node: DefinitionNode, names: _Names, traces: tuple[Trace, ...]
) -> Function | Class:
    scope_id = names.ids[scope.parent] if scope.parent else ""
    in_class = scope.parent is not None and isinstance(scope.parent.node, ast.ClassDef)
    common: DefinitionFields = {
        "id": names.ids[scope],
        "qualname": scope.qualname,
        "name": node.name,
        "scope_id": scope_id,
        "class_id": scope_id if in_class else None,
        "signature": class_signature(node, scope.decorators, scope.segments)
        if isinstance(node, ast.ClassDef)
        else function_signature(node, scope.decorators, scope.segments),
        "decorators": scope.decorators,
        "start_line": scope.start_line,
        "line": node.lineno,
        "end_line": scope.end_line,
        "is_public": scope in names.public,
        "docstring_head": _docstring_head(node.body),
        "docstring_lines": _docstring_lines(node.body),
        "calls": _calls(scope),
        "bound_names": frozenset(scope.bound),
        "traces": traces,
    }
    if isinstance(node, ast.ClassDef):
        return Class(
            **common,
            bases=tuple(written_name(base).removesuffix("[]") for base in node.bases),
        )
    return Function(
        **common,
        is_async=isinstance(node, ast.AsyncFunctionDef),
        complexity=scope.complexity,
        branch_points=tuple(
            BranchPoint(line, kind, condition, body_line, end_line, leaves)
            for line, _, kind, condition, body_line, end_line, leaves in sorted(scope.branches)
        ),
    )


def _calls(scope: Scope) -> tuple[Call, ...]:
    return tuple(Call(name, line) for line, _, name in sorted(scope.calls))


def _traces(source: Source, definitions: Sequence[Scope]) -> Mapping[int, tuple[Trace, ...]]:
    """By index of the definition, or `MODULE`: in source order, each requirement once."""
    found = [(index, mark) for index, scope in enumerate(definitions) for mark in scope.marks]
    if may_hold_tags(source.text):
        found += _tags(source, definitions)
    by_owner: dict[int, dict[str, Trace]] = {}
    for owner, trace in sorted(found, key=lambda item: item[1].line):
        by_owner.setdefault(owner, {}).setdefault(trace.requirement_id, trace)
    return {owner: tuple(traces.values()) for owner, traces in by_owner.items()}


def _tags(source: Source, definitions: Sequence[Scope]) -> list[tuple[int, Trace]]:
    indexes = {scope: index for index, scope in enumerate(definitions)}
    spans: list[Span] = []
    docstrings = [_docstring(MODULE, source.body)]
    for index, scope in enumerate(definitions):
        parent = indexes.get(scope.parent, MODULE) if scope.parent else MODULE
        spans.append(Span(scope.start_line, scope.end_line, scope.column, parent))
        docstrings.append(_docstring(index, scope.node.body if scope.node else ()))
    return find_traces(source, spans, (item for item in docstrings if item is not None))


def _placeholders(source: Source, definitions: Sequence[Scope]) -> tuple[Trace, ...]:
    if not may_hold_tags(source.text):
        return ()
    bodies = (source.body, *[scope.node.body for scope in definitions if scope.node])
    docstrings = [_docstring(MODULE, body) for body in bodies]
    return tuple(find_placeholders(source, (item for item in docstrings if item is not None)))


def _docstring(owner: int, body: Sequence[ast.stmt]) -> Docstring | None:
    match body:
        case [ast.Expr(value=ast.Constant(value=str(text), lineno=line, col_offset=column)), *_]:
            return Docstring(owner, line, column, text)
        case _:
            return None


def _docstring_head(body: Sequence[ast.stmt]) -> str:
    docstring = _docstring(MODULE, body)
    return shorten(first_line(docstring.text), max_chars=MAX_DOCSTRING_CHARS) if docstring else ""


def _docstring_lines(body: Sequence[ast.stmt]) -> tuple[int, int]:
    if _docstring(MODULE, body) is None:
        return (0, 0)
    return (body[0].lineno, body[0].end_lineno or body[0].lineno)


def _exports(body: Sequence[ast.stmt]) -> tuple[str, ...] | None:
    """The names in `__all__`; None where there is none, or where it is more than lists of strings."""
    names: list[str] | None = None
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                names = []
            case ast.AnnAssign(target=ast.Name(id="__all__"), value=value):
                names = []
            case ast.AugAssign(target=ast.Name(id="__all__"), value=value) if names is not None:
                pass
            case _:
                continue
        strings = _strings(value)
        if strings is None:
            return None
        names += strings
    return None if names is None else tuple(names)


def _strings(node: ast.expr | None) -> list[str] | None:
    """The strings in a list or tuple display; None where it is anything else."""
    if not isinstance(node, ast.List | ast.Tuple):
        return None
    strings = [e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    return strings if len(strings) == len(node.elts) else None
