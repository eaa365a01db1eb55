"""A module's facts as a stream of short JSON texts and back, for a pipe between two processes.

Reading JSON holds the interpreter's lock from the first character to the last, so no text may be long: a
module is cut into rows, a definition into its head and runs of what it lists. Unlike a pickle, the stream
can hold nothing but values: whatever arrives, it never becomes code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from worker.code.facts import (
    BranchPoint,
    Call,
    Class,
    Definition,
    Function,
    Import,
    ModuleFacts,
    ParseProblem,
    Trace,
)

TEXT_CHARS: Final = 64_000
"""A text ends with the row that takes it past this: about a millisecond to read."""

_RUN: Final = 500
"""Items of a list in one row."""

_Row = tuple[str, list[Any]]

_HEAD: Final = (
    *("id", "qualname", "name", "scope_id", "class_id", "signature", "decorators", "start_line", "line"),
    *("end_line", "is_public", "docstring_head", "docstring_lines"),
)
_FUNCTION_HEAD: Final = (*_HEAD, "is_async", "complexity")
_CLASS_HEAD: Final = (*_HEAD, "bases")
_MODULE_HEAD: Final = ("path", "line_count", "docstring_head", "docstring_lines", "exports")

_ITEMS: Final[dict[str, Callable[..., object]]] = {
    "calls": Call,
    "traces": Trace,
    "placeholders": Trace,
    "imports": Import,
    "branch_points": BranchPoint,
}
"""Fields that list values, by the type of the values; each has the fields of its row."""

_MODULE_LISTS: Final = ("bound_names", "calls", "traces", "placeholders", "imports")
_FUNCTION_LISTS: Final = ("bound_names", "calls", "traces", "branch_points")
_CLASS_LISTS: Final = ("bound_names", "calls", "traces")
_TUPLES: Final = frozenset({"decorators", "bases", "exports", "docstring_lines"})


def encode_facts(facts: ModuleFacts) -> Iterator[bytes]:
    """The facts as texts, which are to be decoded in this order. O(n)."""
    text: list[str] = []
    size = 0
    for row in _rows(facts):
        # Escaped, because a docstring may spell half a surrogate pair, which UTF-8 cannot hold.
        text.append(json.dumps(row, separators=(",", ":")))
        size += len(text[-1])
        if size >= TEXT_CHARS:
            yield _joined(text)
            text, size = [], 0
    if text:
        yield _joined(text)


def decode_facts(texts: Iterable[bytes]) -> ModuleFacts:
    """The facts whose texts these are. O(n); gives way to other threads between rows.

    Raises ValueError where they are none.
    """
    reader = _Reader()
    try:
        for text in texts:
            for kind, values in json.loads(text):
                reader.take(kind, values)
        return reader.finish()
    except (TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        msg = "not the facts of a module"
        raise ValueError(msg) from error


def _joined(rows: list[str]) -> bytes:
    return f"[{','.join(rows)}]".encode("ascii")


def _rows(facts: ModuleFacts) -> Iterator[_Row]:
    problem = facts.parse_problem
    yield "module", [getattr(facts, name) for name in _MODULE_HEAD]
    if problem is not None:
        yield "problem", [problem.kind, problem.line]
    yield from _list_rows(facts, _MODULE_LISTS)
    for function in facts.functions:
        yield "function", [getattr(function, name) for name in _FUNCTION_HEAD]
        yield from _list_rows(function, _FUNCTION_LISTS)
    for item in facts.classes:
        yield "class", [getattr(item, name) for name in _CLASS_HEAD]
        yield from _list_rows(item, _CLASS_LISTS)


def _list_rows(owner: Definition | ModuleFacts, names: Iterable[str]) -> Iterator[_Row]:
    for name in names:
        values: Any = getattr(owner, name)
        if name == "bound_names":
            items: list[Any] = sorted(values)
        else:
            items = [[getattr(value, part) for part in value.__slots__] for value in values]
        for start in range(0, len(items), _RUN):
            yield name, items[start : start + _RUN]


class _Reader:
    """Builds the facts row by row: what is listed belongs to the head that came last."""

    def __init__(self) -> None:
        self._module: dict[str, Any] = {}
        self._functions: list[Function] = []
        self._classes: list[Class] = []
        self._kind = ""
        self._fields: dict[str, Any] = {}

    def take(self, kind: str, values: list[Any]) -> None:
        match kind:
            case "module":
                self._begin(kind, _MODULE_HEAD, _MODULE_LISTS, values)
                self._fields["parse_problem"] = None
            case "function":
                self._begin(kind, _FUNCTION_HEAD, _FUNCTION_LISTS, values)
            case "class":
                self._begin(kind, _CLASS_HEAD, _CLASS_LISTS, values)
            case "problem":
                self._fields["parse_problem"] = ParseProblem(*values)
            case "bound_names":
                self._fields[kind] += values
            case _:
                make = _ITEMS[kind]
                self._fields[kind] += [make(*value) for value in values]

    def _begin(self, kind: str, head: tuple[str, ...], lists: tuple[str, ...], values: list[Any]) -> None:
        self._end()
        self._kind = kind
        self._fields = dict(zip(head, values, strict=True))
        for name in _TUPLES & self._fields.keys():
            if self._fields[name] is not None:
                self._fields[name] = tuple(self._fields[name])
        for name in lists:
            self._fields[name] = []

    def _end(self) -> None:
        made: dict[str, Any] = {
            name: tuple(value) if value.__class__ is list else value for name, value in self._fields.items()
        }
        if made:
            made["bound_names"] = frozenset(made["bound_names"])
        match self._kind:
            case "module":
                self._module = made
            case "function":
                self._functions.append(Function(**made))
            case "class":
                self._classes.append(Class(**made))
            case _:
                return

    def finish(self) -> ModuleFacts:
        self._end()
        return ModuleFacts(**self._module, functions=tuple(self._functions), classes=tuple(self._classes))
