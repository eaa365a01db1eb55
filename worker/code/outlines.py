"""What linking needs to know of a file that did not change: its names, without what stands in its bodies.

Outlines are kept on shelves, a few dozen values in all, so that an index reads them at once and writes only
the shelves of the files that changed.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from worker.code.catalogue import SPOILT, pack, unpack
from worker.code.facts import Class, DefinitionFields, Function, Import, ModuleFacts, ParseProblem
from worker.code.reading import FileReading
from worker.graph.model import FileStatus, NodeRef

FORMAT: Final = 2
_SHELVES: Final = 32
_KEY: Final = "outlines:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """One file, as the others see it."""

    path: str
    language: str
    status: FileStatus
    facts: ModuleFacts | None
    """Of its definitions names, kinds, scopes, bases and decorators alone can be relied on, and which names
    are bound in them of classes and what is around classes: nothing else is seen from outside."""
    called: str
    """The names that it calls, as written, each once, a line each."""
    refs: tuple[NodeRef, ...]
    """Its nodes, but for the file itself."""
    has_symbols: bool
    """Whether any module, class or function in it could be read."""

    @property
    def reading(self) -> FileReading:
        """As a reading with nothing but names, for linking other files to it."""
        return FileReading(path=self.path, language=self.language, status=self.status, facts=self.facts)


def outline_of(reading: FileReading) -> Outline:
    """The outline of a file. O(n)."""
    facts = reading.facts
    called: set[str] = set()
    if facts is not None:
        for calls in (facts.calls, *[item.calls for item in (*facts.functions, *facts.classes)]):
            called.update([call.name for call in calls])
    return Outline(
        path=reading.path,
        language=reading.language,
        status=reading.status,
        facts=facts,
        called="\n".join(sorted(called)),
        refs=tuple([node.ref for node in reading.nodes]),
        has_symbols=any(
            node.label in {"Module", "Class", "Function"} and not node.property("parse_error")
            for node in reading.nodes
        ),
    )


def shelf_of(path: str) -> str:
    """The key of the shelf that a file's outline is kept on."""
    number = int.from_bytes(hashlib.sha256(path.encode("utf-8", "surrogatepass")).digest()[:4]) % _SHELVES
    return f"{_KEY}{number:02}"


def encode_shelves(outlines: Iterable[Outline]) -> dict[str, bytes]:
    """The shelves that these outlines fill, by key. Equal outlines give equal bytes. O(n)."""
    rows: defaultdict[str, list[list[Any]]] = defaultdict(list)
    for outline in sorted(outlines, key=lambda outline: outline.path):
        rows[shelf_of(outline.path)].append(_row(outline))
    return {key: pack([FORMAT, rows[key]]) for key in sorted(rows)}


def digest_shelf(shelf: bytes) -> str:
    """By which the catalogue knows the shelves that belong to it."""
    return hashlib.sha256(shelf).hexdigest()[:16]


def decode_shelves(facts: Mapping[str, bytes], shelves: Mapping[str, str]) -> dict[str, Outline] | None:
    """The outlines by path, of the shelves of these keys and digests; None where any is not what it was."""
    outlines: dict[str, Outline] = {}
    try:
        for key, digest in shelves.items():
            shelf = facts[key]
            if digest_shelf(shelf) != digest:
                return None
            number, rows = unpack(shelf)
            if number != FORMAT:
                return None
            for row in rows:
                outline = _read(row)
                outlines[outline.path] = outline
    except SPOILT:
        return None
    return outlines


def _row(outline: Outline) -> list[Any]:
    facts = outline.facts
    return [
        outline.path,
        outline.language,
        outline.status,
        outline.has_symbols,
        outline.called,
        outline.refs,
        None if facts is None else _facts_row(facts),
    ]


def _facts_row(facts: ModuleFacts) -> list[Any]:
    around = _around_classes(facts)
    return [
        facts.path,
        facts.parse_problem is not None,
        [
            _definition_row(item, sorted(item.bound_names) if item.id in around else ())
            for item in facts.functions
        ],
        [[*_definition_row(item, sorted(item.bound_names)), item.bases] for item in facts.classes],
        [[i.scope_id, i.local_name, i.module, i.name, i.level] for i in facts.imports],
        sorted(facts.bound_names),
    ]


def _around_classes(facts: ModuleFacts) -> set[str]:
    """The functions that a class stands in, by id: its bases are looked up among what is bound there."""
    functions = {item.id: item for item in facts.functions}
    around: set[str] = set()
    for owner in facts.classes:
        scope_id = owner.scope_id
        while scope_id not in around and (function := functions.get(scope_id)) is not None:
            around.add(scope_id)
            scope_id = function.scope_id
    return around


def _definition_row(item: Function | Class, bound_names: Sequence[str]) -> list[Any]:
    return [
        item.id,
        item.qualname,
        item.name,
        item.scope_id,
        item.class_id is not None,
        item.decorators,
        bound_names,
    ]


def _read(row: list[Any]) -> Outline:
    path, language, status, has_symbols, called, refs, facts = row
    return Outline(
        path=path,
        language=language,
        status=status,
        facts=None if facts is None else _read_facts(facts),
        called=called,
        refs=tuple([NodeRef(label, node_id) for label, node_id in refs]),
        has_symbols=has_symbols,
    )


def _read_facts(row: list[Any]) -> ModuleFacts:
    path, has_problem, functions, classes, imports, bound_names = row
    return ModuleFacts(
        path=path,
        line_count=0,
        parse_problem=ParseProblem("syntax", 0) if has_problem else None,
        functions=tuple([_read_function(item) for item in functions]),
        classes=tuple([Class(**_read_definition(item), bases=tuple(bases)) for *item, bases in classes]),
        imports=tuple([Import(*item, line=0) for item in imports]),
        bound_names=frozenset(bound_names),
    )


def _read_function(row: list[Any]) -> Function:
    return Function(**_read_definition(row), is_async=False, complexity=0, branch_points=())


def _read_definition(row: list[Any]) -> DefinitionFields:
    definition_id, qualname, name, scope_id, is_in_class, decorators, bound_names = row
    return {
        "id": definition_id,
        "qualname": qualname,
        "name": name,
        "scope_id": scope_id,
        "class_id": scope_id if is_in_class else None,
        "signature": "",
        "decorators": tuple(decorators),
        "start_line": 0,
        "line": 0,
        "end_line": 0,
        "is_public": False,
        "docstring_head": "",
        "docstring_lines": (0, 0),
        "calls": (),
        "bound_names": frozenset(bound_names),
        "traces": (),
    }
