"""The shape of Python source, and where another source escapes from it.

A shape is what others depend on: which functions and classes there are and where, how they are called, what
they inherit and are decorated with. A skeleton is a shape written down, so it serves as a contract: the
difference between it and the code that was made names each structural escape.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from worker.code.branches import NotSupported
from worker.code.facts import ParseProblem
from worker.code.parsing import Source, parse
from worker.code.scopes import DefinitionNode
from worker.code.skeletons import definitions_in, skeleton, skeleton_tree

EscapeKind = Literal[
    "removed", "added", "renamed", "moved", "kind", "async", "signature", "bases", "decorators"
]

MAX_SOURCE_CHARS: Final = 2_000_000

_Key = Callable[["ShapeItem"], Hashable | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeItem:
    """One function or class that can be reached from outside."""

    qualname: str
    """The second of a name has `#2`, and so on."""
    name: str
    scope: str
    """Qualified name of the class that it stands in; empty at the top level."""
    kind: Literal["function", "class"]
    is_async: bool
    parameters: str
    """As Python itself writes them; empty for a class."""
    returns: str
    bases: tuple[str, ...]
    """Keywords (`metaclass=…`) among them."""
    decorators: tuple[str, ...]
    body_digest: str
    """Of a body that does something; empty for one that is `...` alone."""
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """All definitions of a source, in source order."""

    items: tuple[ShapeItem, ...]
    is_partly_parsed: bool = False
    unread: tuple[str, ...] = ()
    """Qualified names of definitions that are there and cannot be read: nothing is said of them."""


@dataclass(frozen=True, slots=True)
class Escape:
    """One way in which the actual source has another shape than was expected."""

    kind: EscapeKind
    expected: str
    """Qualified name; empty for what was added."""
    actual: str
    """Qualified name; empty for what was removed."""
    detail: str
    """What was expected and what is there, where that is more than the names."""
    line: int
    """In the actual source; 0 for what was removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkeletonDiff:
    """The escapes, in the order of the expected shape, then what was added, by lines."""

    escapes: tuple[Escape, ...]
    unjudged: tuple[str, ...]
    """Qualified names of which one side cannot be read, sorted."""


def shape_of(text: str) -> Shape | NotSupported:
    """The shape of a Python source, whole or skeleton. O(n).

    One with syntax errors is read by the tolerant reader. Annotations and defaults that are too long to be
    shown in a skeleton count as `...` on both sides.
    """
    if len(text) > MAX_SOURCE_CHARS:
        return NotSupported(f"more than {MAX_SOURCE_CHARS} characters")
    source = parse(text.encode("utf-8", "surrogatepass"))
    if isinstance(source, ParseProblem):
        return _loose_shape(text)
    # Of the same definitions in the same order, what the skeleton has not: lines and bodies.
    items = [
        replace(item, line=node.lineno, body_digest=_body_digest(node))
        for item, node in zip(_heads(source), _nodes(source.body), strict=True)
    ]
    return Shape(items=tuple(items))


def _heads(source: Source) -> list[ShapeItem]:
    try:
        return [*_items(skeleton_tree(source), "")]
    except (ValueError, RecursionError):
        # As in a skeleton, what cannot be written back stands as `...`.
        return [*_items(skeleton_tree(source, is_careful=True), "")]


def _loose_shape(text: str) -> Shape | NotSupported:
    """The shape of a source with syntax errors: that of its skeleton, which has none."""
    heads = skeleton(text)
    if isinstance(heads, NotSupported):
        return heads
    written = parse(heads.text.encode("utf-8", "surrogatepass"))
    if isinstance(written, ParseProblem):
        return NotSupported(f"cannot be read: {written.kind}")
    return Shape(
        items=tuple(_items(written.body, "")), is_partly_parsed=heads.is_partly_parsed, unread=heads.unread
    )


def skeleton_diff(expected: Shape, actual: Shape) -> SkeletonDiff:
    """Where the actual shape escapes from the expected one. O(n log n); of equal shapes, nothing.

    What is missing in one place and surplus in another is renamed (same class or module, same head) or moved
    (same name and head) where there is one such reading only; of a class that was removed or added its
    members are not listed. A body tells two candidates apart where both sides have one.
    """
    return _Comparison(expected, actual).result()


class _Comparison:
    def __init__(self, expected: Shape, actual: Shape) -> None:
        self._expected = {item.qualname: item for item in expected.items}
        self._actual = {item.qualname: item for item in actual.items}
        self._unread = {*expected.unread, *actual.unread}
        self._pairs: dict[str, str] = {name: name for name in self._expected if name in self._actual}
        self._how: dict[str, EscapeKind] = {}

    def result(self) -> SkeletonDiff:
        self._pair_classes()
        self._pair(lambda item: (item.scope, *_head(item)), "renamed")
        self._pair(lambda item: (item.name, *_head(item)), "moved")
        escapes = [escape for item in self._expected.values() for escape in self._escapes(item)]
        taken = {*self._pairs.values()}
        added = [
            item for name, item in self._actual.items() if name not in taken and name not in self._unread
        ]
        names = {item.qualname for item in added}
        escapes += [
            Escape("added", "", item.qualname, written(item), item.line)
            for item in added
            if item.scope not in names
        ]
        return SkeletonDiff(escapes=tuple(escapes), unjudged=tuple(sorted(self._unread)))

    def _pair_classes(self) -> None:
        """Classes by their members first, so that members are then looked for in the renamed class."""
        members = (_members(self._expected.values()), _members(self._actual.values()))
        for how in ("renamed", "moved"):

            def key(item: ShapeItem, side: int, how: str = how) -> Hashable | None:
                inside = members[side].get(item.qualname)
                if item.kind != "class" or not inside:
                    return None
                return (item.scope if how == "renamed" else item.name, inside)

            for old, new in self._unique(lambda item: key(item, 0), lambda item: key(item, 1)):
                self._take(old, new, "renamed" if how == "renamed" else "moved")
                for name, item in self._expected.items():
                    inside = f"{new}.{item.name}"
                    if item.scope == old and name not in self._pairs and inside in self._actual:
                        self._pairs[name] = inside

    def _pair(self, key: _Key, how: EscapeKind) -> None:
        def of_function(item: ShapeItem) -> Hashable | None:
            return key(item) if item.kind == "function" and _has_substance(item) else None

        for old, new in self._unique(of_function, of_function):
            self._take(old, new, how)

    def _take(self, old: str, new: str, how: EscapeKind) -> None:
        self._pairs[old] = new
        self._how[old] = how

    def _unique(self, expected_key: _Key, actual_key: _Key) -> list[tuple[str, str]]:
        """What is missing and what is surplus with equal keys, one of each; bodies tell more apart."""
        taken = {*self._pairs.values()}
        missing = [item for name, item in self._expected.items() if name not in self._pairs]
        surplus = [item for name, item in self._actual.items() if name not in taken]
        found: list[tuple[str, str]] = []
        for with_body in (True, False):
            old = _by_key(missing, expected_key, with_body=with_body)
            new = _by_key(surplus, actual_key, with_body=with_body)
            for value, items in old.items():
                others = new.get(value, [])
                if len(items) == len(others) == 1 and _may_be_one(items[0], others[0]):
                    found.append((items[0].qualname, others[0].qualname))
            known = {name for pair in found for name in pair}
            missing = [item for item in missing if item.qualname not in known]
            surplus = [item for item in surplus if item.qualname not in known]
        return found

    def _escapes(self, item: ShapeItem) -> Iterator[Escape]:
        if item.qualname in self._unread:
            return
        new = self._pairs.get(item.qualname)
        if new is None:
            around = self._expected.get(item.scope)
            if around is None or around.qualname in self._pairs:
                yield Escape("removed", item.qualname, "", written(item), 0)
            return
        actual = self._actual[new]
        if item.qualname in self._how:
            yield Escape(self._how[item.qualname], item.qualname, new, "", actual.line)
        for kind, before, after in _differences(item, actual):
            yield Escape(kind, item.qualname, new, f"{before} → {after}", actual.line)


def written(item: ShapeItem) -> str:
    """The head on one line, without decorators."""
    if item.kind == "class":
        return f"class {item.name}({', '.join(item.bases)})" if item.bases else f"class {item.name}"
    result = f" -> {item.returns}" if item.returns else ""
    return f"{'async ' if item.is_async else ''}def {item.name}({item.parameters}){result}"


def _differences(old: ShapeItem, new: ShapeItem) -> Iterator[tuple[EscapeKind, str, str]]:
    if old.kind != new.kind:
        yield "kind", old.kind, new.kind
        return
    if old.is_async != new.is_async:
        yield "async", "async" if old.is_async else "sync", "async" if new.is_async else "sync"
    if (old.parameters, old.returns) != (new.parameters, new.returns):
        yield "signature", written(old), written(new)
    if old.bases != new.bases:
        yield "bases", f"({', '.join(old.bases)})", f"({', '.join(new.bases)})"
    if old.decorators != new.decorators:
        yield "decorators", " ".join(old.decorators) or "none", " ".join(new.decorators) or "none"


def _nodes(body: Iterable[ast.stmt]) -> Iterator[DefinitionNode]:
    """The definitions that a skeleton has, in its order. Classes nest no deeper than Python's indentation."""
    for node in definitions_in(body):
        if isinstance(node, DefinitionNode):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _nodes(node.body)


def _items(body: Iterable[ast.stmt], scope: str) -> Iterator[ShapeItem]:
    seen = Counter[str]()
    for node in body:
        if not isinstance(node, DefinitionNode):
            continue
        seen[node.name] += 1
        name = node.name if seen[node.name] == 1 else f"{node.name}#{seen[node.name]}"
        qualname = f"{scope}.{name}" if scope else name
        yield _item(node, qualname, scope)
        if isinstance(node, ast.ClassDef):
            yield from _items(node.body, qualname)


def _item(node: DefinitionNode, qualname: str, scope: str) -> ShapeItem:
    is_class = isinstance(node, ast.ClassDef)
    bases: list[str] = []
    if isinstance(node, ast.ClassDef):
        bases = [ast.unparse(base) for base in node.bases]
        for keyword in node.keywords:
            value = ast.unparse(keyword.value)
            bases.append(f"{keyword.arg}={value}" if keyword.arg else f"**{value}")
    return ShapeItem(
        qualname=qualname,
        name=node.name,
        scope=scope,
        kind="class" if is_class else "function",
        is_async=isinstance(node, ast.AsyncFunctionDef),
        parameters="" if isinstance(node, ast.ClassDef) else ast.unparse(node.args),
        returns="" if isinstance(node, ast.ClassDef) or node.returns is None else ast.unparse(node.returns),
        bases=tuple(bases),
        decorators=tuple(f"@{ast.unparse(decorator)}" for decorator in node.decorator_list),
        body_digest="",
        line=0,
    )


def _body_digest(node: DefinitionNode) -> str:
    """Of what a function does; empty where that is nothing, and for a class, which is its members."""
    if isinstance(node, ast.ClassDef):
        return ""
    does = [item for item in node.body if not (isinstance(item, ast.Expr) and _is_constant(item.value))]
    if not does:
        return ""
    digest = hashlib.sha256()
    for statement in does:
        try:
            digest.update(ast.dump(statement).encode("utf-8", "surrogatepass"))
        except RecursionError:
            digest.update(b"\0")
    return digest.hexdigest()


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def _head(item: ShapeItem) -> tuple[Hashable, ...]:
    return (item.is_async, item.parameters, item.returns, item.decorators)


def _has_substance(item: ShapeItem) -> bool:
    """Whether a head says enough to be known again by it: any two `def f(self)` look alike."""
    names = [name.strip() for name in item.parameters.split(",")]
    return bool(item.body_digest) or len([name for name in names if name not in {"", "self", "cls"}]) > 0


def _members(items: Iterable[ShapeItem]) -> Mapping[str, frozenset[Hashable]]:
    found: defaultdict[str, set[Hashable]] = defaultdict(set)
    for item in items:
        if item.scope:
            found[item.scope].add((item.name, item.kind, *_head(item)))
    return {scope: frozenset(names) for scope, names in found.items()}


def _by_key(items: Iterable[ShapeItem], key: _Key, *, with_body: bool) -> Mapping[Hashable, list[ShapeItem]]:
    found: defaultdict[Hashable, list[ShapeItem]] = defaultdict(list)
    for item in items:
        value = key(item)
        if value is not None and (item.body_digest or not with_body):
            found[(value, item.body_digest) if with_body else value].append(item)
    return found


def _may_be_one(old: ShapeItem, new: ShapeItem) -> bool:
    """Whether nothing speaks against it: two bodies that differ do."""
    return not old.body_digest or not new.body_digest or old.body_digest == new.body_digest
