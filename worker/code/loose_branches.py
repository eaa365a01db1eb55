"""Branch points read off the trees of the tolerant reader, in whatever language they are written."""

from __future__ import annotations

from typing import Final

from tree_sitter import Node

from worker.code.complexity import MAX_CONDITION_CHARS
from worker.code.facts import BranchKind, BranchPoint
from worker.code.grammars import BRANCHES, LEAVING
from worker.code.segments import fold, shorten

_CONDITIONS: Final = ("condition", "value", "pattern", "argument", "parameter", "right")
"""Fields that say what decides, in the order in which they are looked for."""

_IFS: Final = frozenset({"if_statement", "if_expression"})
_HEAD_KINDS: Final = frozenset({"for", "case", "except", "comprehension if", "assert"})
"""Of these all that stands in the head decides."""

_HEAD_ENDS: Final = frozenset({":", "=>", "->"})
_MAX_SLICE_BYTES: Final = 1_000
_MAX_WRAPPERS: Final = 4
_MAX_HEAD_CHILDREN: Final = 12
_PYTHON_TERNARY: Final = 3
"""Value, test, other value: the grammar of Python gives them no names."""

_WRAPPERS: Final = frozenset(
    {"expression_statement", "block", "statement_block", "statement_list", "else_clause", "case_block"}
)


def read_branches(node: Node) -> list[BranchPoint]:
    """The branch points that a node is: none, one, or two where an `else` is no node of its own.

    Conditions are as written. O(1) but for the number of statements in the body.
    """
    kind = BRANCHES.get(node.type)
    if kind is None or not node.is_named:
        return []
    if kind == "else" and any(child.type in _IFS for child in node.children):
        return []
    if node.type == "if_clause" and node.parent is not None and node.parent.type == "case_clause":
        return []  # a guard, which is part of its case
    if kind == "if" and _continues_if(node):
        kind = "elif"
    if node.type == "conditional_expression" and len(node.named_children) == _PYTHON_TERNARY:
        test = node.named_children[1]
        return [_point(test, kind, None, _text(test, test.start_byte, test.end_byte))]
    body = _body(node)
    found = [_point(node, kind, body, _condition(node, kind, body))]
    other = node.child_by_field_name("alternative") if node.type in _IFS else None
    if other is not None and other.type not in _IFS and other.type not in BRANCHES:
        found.append(_point(other, "else", other, ""))
    return found


def _continues_if(node: Node) -> bool:
    parent = node.parent
    if parent is None:
        return False
    return parent.type == "else_clause" or (
        parent.type in _IFS and parent.child_by_field_name("alternative") == node
    )


def _body(node: Node) -> Node | None:
    for name in ("consequence", "body"):
        found = node.child_by_field_name(name)
        if found is not None and "ternary" not in node.type:
            return found
    last = node.named_children[-1] if node.named_children else None
    return last if last is not None and last.type.endswith(("block", "body")) else None


def _point(node: Node, kind: BranchKind, body: Node | None, condition: str) -> BranchPoint:
    lines = node if body is None else body
    first, end = lines.start_point.row + 1, lines.end_point
    return BranchPoint(
        line=node.start_point.row + 1,
        kind=kind,
        condition=condition,
        body_line=first,
        end_line=max(first, end.row + (end.column > 0)),
        leaves="" if body is None else LEAVING.get(_last_type(body), ""),
    )


def _condition(node: Node, kind: BranchKind, body: Node | None) -> str:
    if kind == "else":
        return ""
    named = next((found for name in _CONDITIONS if (found := node.child_by_field_name(name))), None)
    if named is not None and kind not in _HEAD_KINDS:
        return _text(node, named.start_byte, named.end_byte)
    start = node.start_byte
    if node.children and not node.children[0].is_named:
        start = node.children[0].end_byte
    end = _head_end(node, body) if kind in {"case", "except"} else _before(node, body)
    text = _text(node, start, end).strip(": {=>").strip()
    # Python's own reader has no name for what was caught.
    return text.partition(" as ")[0] if node.type == "except_clause" else text


def _head_end(node: Node, body: Node | None) -> int:
    """Where the head of a branch ends: at its colon or arrow, a comment, or the body."""
    end = _before(node, body)
    for child in node.children[1:_MAX_HEAD_CHILDREN]:
        is_end = child.type in _HEAD_ENDS or "comment" in child.type
        if is_end and child.start_byte < end:
            return child.start_byte
    return end


def _before(node: Node, body: Node | None) -> int:
    return node.end_byte if body is None else body.start_byte


def _text(node: Node, start: int, end: int) -> str:
    content = node.text or b""
    begin = start - node.start_byte
    piece = content[begin : min(end - node.start_byte, begin + _MAX_SLICE_BYTES)]
    return shorten(fold(piece.decode("utf-8", "replace")), max_chars=MAX_CONDITION_CHARS)


def _last_type(body: Node) -> str:
    """The kind of the last statement; what a statement only wraps is looked into."""
    found = body
    for _ in range(_MAX_WRAPPERS):
        inner = [child for child in found.named_children if "comment" not in child.type]
        if found.type in LEAVING or not inner:
            break
        found = inner[-1]
        if found.type not in _WRAPPERS:
            break
    return found.type
