"""Whether every Cypher statement of a code base keeps to the canon: its labels, relations and keys.

Statements are found in the string constants of Python sources, f-strings and sums of strings included, and in
`*.cypher` files. Where a program puts a label or relation into a statement, its type must say that it comes
from the canon: a parameter annotated `NodeLabel`, a loop over `LABELS`. Docstrings are prose.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from schemas.graph import (
    BOOKKEEPING_KEYS,
    LABEL_RULE_OF,
    LABELS,
    LEGACY_LABELS,
    LEGACY_RELATION_RULES,
    RELATIONS,
)
from worker.graph.cypher import Use, is_cypher, uses

FindingKind = Literal["label", "relation", "key", "source"]

# Tests plant what is wrong on purpose; the others are not this project's code.
SKIPPED_FOLDERS: Final = frozenset({"tests", "test", "node_modules", "build", "dist", "venv", "__pycache__"})
_KEY_LIKE: Final = frozenset(
    {"id", "slug", "alias", "session_id", "project_id", "node_id", "uid", "uuid", "basename"}
)
_OWN_KEYS: Final = frozenset(rule.key for rule in LABEL_RULE_OF.values())
_UNIQUE: Final = "key"

# What a hole may hold, by how its type is written.
_LABEL_HOLE: Final = "\0label\0"
_RELATION_HOLE: Final = "\0relation\0"
_KEY_HOLE: Final = "\0key\0"
_UNKNOWN_HOLE: Final = "\0unknown\0"
_TYPES: Final[Mapping[str, str]] = {
    "NodeLabel": _LABEL_HOLE,
    "BookkeepingLabel": _LABEL_HOLE,
    "LegacyLabel": _LABEL_HOLE,
    "Relation": _RELATION_HOLE,
    "LegacyRelation": _RELATION_HOLE,
    "KeyName": _KEY_HOLE,
    "BookkeepingKey": _KEY_HOLE,
}
_TABLES: Final[Mapping[str, str]] = {
    "LABELS": _LABEL_HOLE,
    "BOOKKEEPING_KEYS": _LABEL_HOLE,
    "LEGACY_LABELS": _LABEL_HOLE,
    "RELATIONS": _RELATION_HOLE,
}
_FIELDS: Final[Mapping[tuple[str, str], str]] = {
    ("LabelRule", "label"): _LABEL_HOLE,
    ("LabelRule", "key"): _KEY_HOLE,
    ("RelationRule", "relation"): _RELATION_HOLE,
    ("LegacyRelationRule", "name"): _RELATION_HOLE,
    ("LegacyRelationRule", "relation"): _RELATION_HOLE,
}
# Parsing takes nearly all of the time, and most files have none of these.
_WORDS: Final = re.compile(r"-\s*\[|\bapoc\.|\b(?:FOR|ON)\s*\(|\b(?i:match|merge|create)\b")
_FORMAT_HOLE: Final = re.compile(r"\{\w*(?:![rsa])?(?::[^{}]*)?\}|%\(?\w*\)?s")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """One stray from the canon. Sorts by place."""

    path: str
    """Relative to the root that was checked, with `/`."""
    line: int
    kind: FindingKind
    name: str
    message: str


def check_sources(root: Path) -> list[Finding]:
    """Every stray below `root`, sorted by path and line; empty where all keeps to the canon.

    Links are not followed; hidden folders and `SKIPPED_FOLDERS` are passed over. A file that cannot be read,
    or that speaks of Cypher and cannot be parsed, is a finding of its own, since nobody knows what it says.
    Linear in the size of the sources.
    """
    findings: set[Finding] = set()
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        try:
            text = path.read_bytes().decode()
            statements = list(_python_statements(text) if path.suffix == ".py" else [(1, text)])
        except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError) as error:
            message = f"cannot be read: {type(error).__name__}: {error}"
            findings.add(Finding(path=name, line=1, kind="source", name=path.name, message=message))
            continue
        findings.update(
            Finding(
                path=name,
                line=line + statement.count("\n", 0, use.offset),
                kind=use.kind,
                name=_shown(use.name),
                message=message,
            )
            for line, statement in statements
            for use in uses(statement)
            if (message := _stray(use))
        )
    return sorted(findings)


def check_statement(statement: str) -> list[str]:
    """What is wrong with one Cypher statement, in words, in the order of the text."""
    return [message for use in uses(statement) if (message := _stray(use))]


# --- Judging -----------------------------------------------------------------------------------------


def _stray(use: Use) -> str:
    """What is wrong with it, in words; empty where nothing is."""
    judge = {"label": _label_stray, "relation": _relation_stray, "key": _key_stray}[use.kind]
    return _shown(judge(use))


def _shown(text: str) -> str:
    return text.replace("\0", "")


def _label_stray(use: Use) -> str:
    if use.name in LABEL_RULE_OF or use.name in BOOKKEEPING_KEYS or use.name == _LABEL_HOLE:
        return ""
    if "\0" in use.name or use.name == "$":
        return "a label comes from outside the canon's table: use a NodeLabel"
    instead = next((label for old, label in LEGACY_LABELS.items() if old == use.name), None)
    return f"no label of the canon: {use.name}{f'; it says {instead}' if instead else ''}"


def _relation_stray(use: Use) -> str:
    if use.name in RELATIONS or use.name == _RELATION_HOLE:
        return ""
    if "\0" in use.name or use.name == "$":
        return "a relation comes from outside the canon's table: use a Relation"
    known = [rule for rule in LEGACY_RELATION_RULES if rule.name == use.name]
    instead = " or ".join(rule.relation + (" reversed" if rule.is_reversed else "") for rule in known)
    return f"no relation of the canon: {use.name}{f'; it says {instead}' if instead else ''}"


def _key_stray(use: Use) -> str:
    """Whether a pattern names nodes by what is no key of theirs.

    A MERGE must say the unique key, else two projects meet in one node, and nothing but what belongs to the
    identity. A MATCH may ask for other properties, but for no other label's key. A property of what a store
    keeps for itself may be any key: the node has a label of the canon beside that one.
    """
    if use.name == _KEY_HOLE:
        return ""
    if not use.labels:
        return f"a MERGE by {use.name} names no label" if use.clause == "MERGE" else ""
    for label in use.labels:
        unique, own = _keys_of(label)
        if use.clause == "REQUIRE":
            if use.name != unique:
                return f"{label} is unique by {unique}, not by {use.name}"
        elif use.clause == "MERGE":
            if use.name not in {unique, own, "project"}:
                return f"{use.name} is no key of {label}; its keys are {unique} and {own}"
            if unique not in use.keys:
                return f"a MERGE of {label} without {unique} lets two projects meet"
        elif use.is_property and label in BOOKKEEPING_KEYS and use.name in _OWN_KEYS:
            continue
        elif use.name in _KEY_LIKE - {unique, own}:
            return f"{use.name} is no key of {label}; its keys are {unique} and {own}"
    return ""


def _keys_of(label: str) -> tuple[str, str]:
    """The unique key in the store, and the key within the project."""
    for bookkeeping, key in BOOKKEEPING_KEYS.items():
        if bookkeeping == label:
            return key, key
    return _UNIQUE, next((LABEL_RULE_OF[known].key for known in LABELS if known == label), "id")


# --- Finding -----------------------------------------------------------------------------------------


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in SKIPPED_FOLDERS
        )
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix in {".py", ".cypher"} and path.is_file() and not path.is_symlink():
                yield path


def _python_statements(source: str) -> Iterator[tuple[int, str]]:
    """First line and text of every string that reads as Cypher."""
    if _WORDS.search(source) is None:
        return
    tree = ast.parse(source)
    texts = _Texts(tree)
    for line, text in texts.all():
        if is_cypher(text):
            yield line, text


class _Texts:
    """The strings of one module, with what is put into them as far as the module says."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._constants = {
            target.id: value
            for statement in tree.body
            for target, value in _assigned(statement)
            if isinstance(target, ast.Name)
        }

    def all(self) -> Iterator[tuple[int, str]]:
        for node in ast.walk(self._tree):
            parent = self._parents.get(node)
            if isinstance(parent, ast.List | ast.Tuple):  # what is joined
                parent = self._parents.get(parent)
            if isinstance(parent, ast.Expr) or (parent is not None and self._is_text(parent)):
                continue
            if self._is_text(node):
                assert isinstance(node, ast.expr)  # noqa: S101  # `_is_text` says so, which a checker cannot see
                yield node.lineno, self._text(node, seen=frozenset())

    def _is_text(self, node: ast.AST) -> bool:
        match node:
            case ast.Constant(value=str() | bytes()) | ast.JoinedStr():
                return True
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._is_text(left) or self._is_text(right)
            case ast.BinOp(left=left, op=ast.Mod()):
                return self._is_text(left)
            case ast.Call(func=ast.Attribute(value=value, attr="format")):
                return self._is_text(value)
            case ast.Call(
                func=ast.Attribute(value=ast.Constant(value=str()), attr="join"),
                args=[ast.List(elts=parts) | ast.Tuple(elts=parts)],
            ):
                return any(map(self._is_text, parts))
            case ast.FormattedValue():
                return True
            case _:
                return False

    def _text(self, node: ast.expr, *, seen: frozenset[str]) -> str:
        match node:
            case ast.Constant(value=str() as text):
                return text
            case ast.Constant(value=bytes() as encoded):
                return encoded.decode(errors="replace")
            case ast.JoinedStr(values=values):
                return "".join(self._text(value, seen=seen) for value in values)
            case ast.FormattedValue(value=value):
                return self._text(value, seen=seen)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._text(left, seen=seen) + self._text(right, seen=seen)
            case ast.BinOp(left=left, op=ast.Mod()):
                return _FORMAT_HOLE.sub(_UNKNOWN_HOLE, self._text(left, seen=seen))
            case ast.Call(func=ast.Attribute(value=value, attr="format")) if self._is_text(value):
                return _FORMAT_HOLE.sub(_UNKNOWN_HOLE, self._text(value, seen=seen))
            case ast.Call(
                func=ast.Attribute(value=ast.Constant(value=str() as between), attr="join"),
                args=[ast.List(elts=parts) | ast.Tuple(elts=parts)],
            ):
                return between.join([self._text(part, seen=seen) for part in parts])
            case ast.Name(id=name) if name in self._constants and name not in seen:
                if hole := self._hole(node):
                    return hole
                return self._text(self._constants[name], seen=seen | {name})
            case _:
                return self._hole(node) or _UNKNOWN_HOLE

    def _hole(self, node: ast.expr) -> str:
        """Which names of the canon the expression can give; empty where it may be anything."""
        match node:
            case ast.Name(id=name):
                return next(filter(None, (_bound(name, scope) for scope in self._scopes(node))), "")
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                for scope in self._scopes(node):
                    for argument in _arguments(scope):
                        if argument.arg == name and argument.annotation is not None:
                            return _FIELDS.get((ast.unparse(argument.annotation), attribute), "")
                return ""
            case ast.Call(func=ast.Attribute(value=ast.Constant(value="|"), attr="join"), args=[names]):
                return self._hole(names)
            case ast.GeneratorExp(elt=ast.expr() as item):
                return self._hole(item)
            case _:
                return ""

    def _scopes(self, node: ast.AST) -> Iterator[ast.AST]:
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent


def _assigned(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    match statement:
        case ast.Assign(targets=targets, value=value):
            yield from ((target, value) for target in targets)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value
        case _:
            return


def _arguments(scope: ast.AST) -> list[ast.arg]:
    if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    return [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]


def _bound(name: str, scope: ast.AST) -> str:
    """What the scope says the name holds: by an annotation, or by a loop over a table of the canon."""
    for argument in _arguments(scope):
        if argument.arg == name and argument.annotation is not None:
            annotation = ast.unparse(argument.annotation)
            plain = re.sub(
                r"^(?:Sequence|Iterable|Collection|tuple|list)\[(\w+)(?:, \.\.\.)?\]$", r"\1", annotation
            )
            return _TYPES.get(plain, _UNKNOWN_HOLE)
    loops: list[tuple[ast.expr, ast.expr]] = []
    if isinstance(scope, ast.For):
        loops = [(scope.target, scope.iter)]
    elif isinstance(scope, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        loops = [(generator.target, generator.iter) for generator in scope.generators]
    for target, source in loops:
        if isinstance(target, ast.Name) and target.id == name:
            table = source.id if isinstance(source, ast.Name) else ""
            return _TABLES.get(table, _UNKNOWN_HOLE)
    return ""
