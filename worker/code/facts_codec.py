"""A file's reading as bytes and back: what an index keeps, so that it need not read a file again.

Compressed JSON arrays, in an order of fields that the version stands for. Unlike a pickle it can hold nothing
but values: bytes that are not what was written here give None, never code. Equal readings give equal bytes.
"""

from __future__ import annotations

import json
from typing import Any, Final

import cramjam

from worker.code.facts import (
    BranchPoint,
    Call,
    Class,
    Definition,
    DefinitionFields,
    Function,
    Import,
    ModuleFacts,
    ParseProblem,
    Trace,
)
from worker.code.reading import FileReading
from worker.graph.model import Edge, Node, NodeRef

FORMAT: Final = 2
"""Raise it with any change to this module or to the fields of what it encodes."""

_LEVEL: Final = 1


def encode_reading(reading: FileReading) -> bytes:
    """The reading as bytes. O(n)."""
    row = [
        FORMAT,
        reading.path,
        reading.language,
        reading.status,
        reading.reason,
        [node_row(node) for node in reading.nodes],
        [[*e.source, e.relation, *e.target, e.resolution, e.candidates] for e in reading.edges],
        None if reading.facts is None else _module(reading.facts),
        reading.documents,
    ]
    # Escaped, because a docstring may spell half a surrogate pair, which UTF-8 cannot hold.
    return bytes(cramjam.zstd.compress(json.dumps(row, separators=(",", ":")).encode("ascii"), _LEVEL))


def decode_reading(encoded: bytes) -> FileReading | None:
    """The reading; None where the bytes are not one of this format."""
    try:
        row = json.loads(bytes(cramjam.zstd.decompress(encoded)))
        if row[0] != FORMAT:
            return None
        _, path, language, status, reason, nodes, edges, facts, documents = row
        return FileReading(
            path=path,
            language=language,
            status=status,
            reason=reason,
            nodes=tuple(read_node(node) for node in nodes),
            edges=tuple(
                Edge(NodeRef(a, b), relation, NodeRef(c, d), resolution, candidates)
                for a, b, relation, c, d, resolution, candidates in edges
            ),
            facts=None if facts is None else _read_module(facts),
            documents=tuple([(kind, text) for kind, text in documents]),
        )
    except (cramjam.DecompressionError, ValueError, TypeError, KeyError, IndexError):
        return None


def node_row(node: Node) -> list[Any]:
    """A node as a row of plain values."""
    return [
        node.label,
        node.id,
        node.name,
        node.path,
        node.start_line,
        node.end_line,
        node.signature,
        node.text,
        node.docstring_span,
        node.language,
        node.properties,
    ]


def read_node(row: list[Any]) -> Node:
    """The node of a row. Raises ValueError, TypeError or IndexError where it is none."""
    label, node_id, name, path, start, end, signature, text, span, language, properties = row
    return Node(
        label=label,
        id=node_id,
        name=name,
        path=path,
        start_line=start,
        end_line=end,
        signature=signature,
        text=text,
        docstring_span=(span[0], span[1]),
        language=language,
        properties=tuple([(key, value) for key, value in properties]),
    )


def _module(facts: ModuleFacts) -> list[Any]:
    problem = facts.parse_problem
    return [
        facts.path,
        facts.line_count,
        None if problem is None else [problem.kind, problem.line],
        facts.docstring_head,
        facts.docstring_lines,
        facts.exports,
        [
            [*_definition(f), f.is_async, f.complexity, [_branch(b) for b in f.branch_points]]
            for f in facts.functions
        ],
        [[*_definition(c), c.bases] for c in facts.classes],
        [[i.scope_id, i.local_name, i.module, i.name, i.level, i.line] for i in facts.imports],
        [[c.name, c.line] for c in facts.calls],
        sorted(facts.bound_names),
        [_trace(t) for t in facts.traces],
        [_trace(t) for t in facts.placeholders],
    ]


def _definition(item: Definition) -> list[Any]:
    return [
        item.id,
        item.qualname,
        item.name,
        item.scope_id,
        item.class_id,
        item.signature,
        item.decorators,
        item.start_line,
        item.line,
        item.end_line,
        item.is_public,
        item.docstring_head,
        item.docstring_lines,
        [[c.name, c.line] for c in item.calls],
        sorted(item.bound_names),
        [_trace(t) for t in item.traces],
    ]


def _branch(point: BranchPoint) -> list[Any]:
    return [point.line, point.kind, point.condition, point.body_line, point.end_line, point.leaves]


def _trace(trace: Trace) -> list[Any]:
    return [trace.requirement_id, trace.tag, trace.line]


def _read_module(row: list[Any]) -> ModuleFacts:
    (
        path,
        line_count,
        problem,
        docstring_head,
        docstring_lines,
        exports,
        functions,
        classes,
        imports,
        calls,
        bound_names,
        traces,
        placeholders,
    ) = row
    return ModuleFacts(
        path=path,
        line_count=line_count,
        parse_problem=None if problem is None else ParseProblem(*problem),
        docstring_head=docstring_head,
        docstring_lines=_pair(docstring_lines),
        exports=None if exports is None else tuple(exports),
        functions=tuple([_read_function(item) for item in functions]),
        classes=tuple([_read_class(item) for item in classes]),
        imports=tuple([Import(*item) for item in imports]),
        calls=tuple([Call(*item) for item in calls]),
        bound_names=frozenset(bound_names),
        traces=tuple([Trace(*item) for item in traces]),
        placeholders=tuple([Trace(*item) for item in placeholders]),
    )


def _read_function(row: list[Any]) -> Function:
    *shared, is_async, complexity, branches = row
    return Function(
        **_shared(*shared),
        is_async=is_async,
        complexity=complexity,
        branch_points=tuple([BranchPoint(*item) for item in branches]),
    )


def _read_class(row: list[Any]) -> Class:
    *shared, bases = row
    return Class(**_shared(*shared), bases=tuple(bases))


def _shared(  # noqa: PLR0917 - the fields of a row, in its order
    definition_id: str,
    qualname: str,
    name: str,
    scope_id: str,
    class_id: str | None,
    signature: str,
    decorators: list[str],
    start_line: int,
    line: int,
    end_line: int,
    is_public: bool,  # noqa: FBT001 - as above
    docstring_head: str,
    docstring_lines: list[int],
    calls: list[list[Any]],
    bound_names: list[str],
    traces: list[list[Any]],
) -> DefinitionFields:
    return {
        "id": definition_id,
        "qualname": qualname,
        "name": name,
        "scope_id": scope_id,
        "class_id": class_id,
        "signature": signature,
        "decorators": tuple(decorators),
        "start_line": start_line,
        "line": line,
        "end_line": end_line,
        "is_public": is_public,
        "docstring_head": docstring_head,
        "docstring_lines": _pair(docstring_lines),
        "calls": tuple([Call(*item) for item in calls]),
        "bound_names": frozenset(bound_names),
        "traces": tuple([Trace(*item) for item in traces]) if traces else (),
    }


def _pair(row: list[int]) -> tuple[int, int]:
    return (row[0], row[1])
