"""Who calls whom among a set of modules, from their facts alone.

A call is linked to a definition only where the source leaves one reading: the name is bound once in the scope
where Python would find it, or leads there through imports, classes and their bases within the set. All else
keeps the name as written, with no id; a guess never looks like a fact. What a method calls on `self` is read
as if its own class were meant: a class below it may override that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from worker.code.facts import Call, Class, Definition, Function, Import, ModuleFacts

SOURCE_FOLDERS: Final = frozenset({"src", "lib", "python"})
"""Folders that packages lie in without being packages themselves."""

MAX_REEXPORTS: Final = 16

_OVERLOADS: Final = frozenset({"overload", "typing.overload", "t.overload", "typing_extensions.overload"})
# They bring no methods that a program calls by name.
_BARE_BASES: Final = frozenset(
    {"object", "ABC", "abc.ABC", "Generic", "typing.Generic", "Protocol", "typing.Protocol"}
)
_NOT_CALLED: Final = frozenset({"property", "cached_property", "functools.cached_property"})

_Target = Function | Class | ModuleFacts


@dataclass(frozen=True, slots=True)
class Callee:
    """What a call names. `id` is the definition's where that is certain, else None."""

    name: str
    line: int
    id: str | None


@dataclass(frozen=True, slots=True)
class CallGraph:
    """Calls by the id of the function, class body or module that they stand in, and back.

    `callees` are in source order, one for each call. `callers` are sorted ids, each once, of certain calls.
    """

    callees: Mapping[str, tuple[Callee, ...]]
    callers: Mapping[str, tuple[str, ...]]


def link_calls(modules: Sequence[ModuleFacts]) -> CallGraph:
    """Link every call in the modules. Their order does not matter. O(calls) but for long chains of bases."""
    resolver = NameResolver(modules)
    callees: dict[str, tuple[Callee, ...]] = {}
    callers: defaultdict[str, set[str]] = defaultdict(set)
    for module in modules:
        bodies: list[tuple[str, Definition | None, tuple[Call, ...]]] = [(module.id, None, module.calls)]
        bodies += [(item.id, item, item.calls) for item in (*module.functions, *module.classes)]
        for scope_id, definition, calls in bodies:
            linked: list[Callee] = []
            for call in calls:
                target = resolver.resolve(call.name, module=module, within=definition)
                linked.append(Callee(call.name, call.line, target.id if target else None))
                if target:
                    callers[target.id].add(scope_id)
            callees[scope_id] = tuple(linked)
    return CallGraph(callees, {target: tuple(sorted(ids)) for target, ids in callers.items()})


class NameResolver:
    """Finds what a written name means, among the definitions of some modules."""

    def __init__(self, modules: Iterable[ModuleFacts]) -> None:
        """Index the modules; their paths are unique."""
        self._modules = {module.path: module for module in modules}
        self._files = _FileIndex(self._modules)
        self._definitions: dict[str, Function | Class] = {}
        self._children: defaultdict[tuple[str, str], list[Function | Class]] = defaultdict(list)
        self._imports: defaultdict[tuple[str, str], list[Import]] = defaultdict(list)
        self._known: dict[tuple[str, str], Function | Class | None] = {}
        self._orders: dict[str, tuple[tuple[Class, ...], bool]] = {}
        for module in self._modules.values():
            for item in (*module.functions, *module.classes):
                self._definitions[item.id] = item
                self._children[item.scope_id, item.name].append(item)
            for item in module.imports:
                self._imports[item.scope_id, item.local_name].append(item)

    def resolve(
        self, name: str, *, module: ModuleFacts, within: Definition | None = None
    ) -> Function | Class | None:
        """The definition that `name` means in the body of `within`, or of the module, if that is certain."""
        key = (within.id if within else module.id, name)
        if key not in self._known:
            self._known[key] = self._resolve(name, module, within)
        return self._known[key]

    def _resolve(self, name: str, module: ModuleFacts, within: Definition | None) -> Function | Class | None:
        root, *attributes = name.split(".")
        if root == "super()" and len(attributes) == 1:
            owner = self._enclosing_class(within)
            return self._find(self._linearised(owner)[1:], attributes[0]) if owner else None
        if "(" in name or "[" in name or "?" in name:
            return None
        if root in {"self", "cls"}:
            owner = self._enclosing_class(within, parameter=root)
            target: _Target | None = owner
        else:
            found = self._lookup(root, module, within)
            if isinstance(found, Import):
                target, attributes = self._follow(found, attributes, module)
            else:
                target = found
        for attribute in attributes:
            target = self._attribute(target, attribute) if target else None
        if not attributes and root in {"self", "cls"}:
            # `cls()` makes an instance of the class or of one below it; `self()` calls `__call__`.
            return None
        return target if isinstance(target, Function | Class) else None

    def _is_bound(self, module: ModuleFacts, name: str) -> bool:
        return name in module.bound_names or self._binds(module.id, name)

    def _lookup(
        self, name: str, module: ModuleFacts, within: Definition | None
    ) -> Function | Class | Import | None:
        """What the name is bound to in the innermost scope that binds it; None where that is uncertain."""
        scope = within
        while scope is not None:
            # A class body sees its own names, the functions in it do not.
            if scope is within or isinstance(scope, Function):
                if name in scope.bound_names:
                    return None
                if self._binds(scope.id, name):
                    return self._only(scope.id, name)
            scope = self._definitions.get(scope.scope_id)
        return None if name in module.bound_names else self._only(module.id, name)

    def _binds(self, scope_id: str, name: str) -> bool:
        return (scope_id, name) in self._children or (scope_id, name) in self._imports

    def _only(self, scope_id: str, name: str) -> Function | Class | Import | None:
        definitions = self._children.get((scope_id, name), [])
        imports = self._imports.get((scope_id, name), [])
        if definitions and not imports:
            return _single(definitions)
        return imports[0] if len(imports) == 1 and not definitions else None

    def _enclosing_class(self, within: Definition | None, *, parameter: str | None = None) -> Class | None:
        """The class of the method around a body; of the one that has `parameter`, where that is given."""
        scope = within
        while isinstance(scope, Function):
            if scope.class_id is not None and (parameter is None or parameter in scope.bound_names):
                owner = self._definitions.get(scope.class_id)
                is_bound = "staticmethod" not in scope.decorators
                return owner if is_bound and isinstance(owner, Class) else None
            if parameter is not None and parameter in scope.bound_names:
                return None
            scope = self._definitions.get(scope.scope_id)
        return None

    def _attribute(self, target: _Target, name: str) -> _Target | None:
        if isinstance(target, ModuleFacts):
            return self._member(target, name, 0)
        return self._find(self._linearised(target), name) if isinstance(target, Class) else None

    # --- Classes -------------------------------------------------------------------------------------

    def _find(self, classes: Iterable[Class], name: str) -> Function | Class | None:
        """The attribute of the first class that has it, where that is something to be called."""
        for owner in classes:
            if name in owner.bound_names:
                return None
            if self._binds(owner.id, name):
                found = self._only(owner.id, name)
                if isinstance(found, Function | Class) and not _NOT_CALLED & set(found.decorators):
                    return found
                return None
        return None

    def _linearised(self, owner: Class) -> tuple[Class, ...]:
        """The class and its bases in method resolution order, as far as that is certain."""
        known = self._orders.get(owner.id)
        if known is None:
            # Until it is known the class stands alone, which ends a circle of bases.
            self._orders[owner.id] = ((owner,), False)
            known = self._orders[owner.id] = self._order(owner)
        return known[0]

    def _order(self, owner: Class) -> tuple[tuple[Class, ...], bool]:
        """The order by C3, as Python's own, and whether nothing is missing at its end."""
        module = self._modules[owner.id.rsplit("::", 1)[0]]
        around = self._definitions.get(owner.scope_id)
        bases = [base for base in owner.bases if base not in _BARE_BASES]
        parents = [self.resolve(base, module=module, within=around) for base in bases]
        classes = [parent for parent in parents if isinstance(parent, Class)]
        orders = [(self._linearised(parent), self._orders[parent.id][1]) for parent in classes]
        if len(classes) < len(bases) or (len(bases) > 1 and not all(is_whole for _, is_whole in orders)):
            return (owner,), False
        if len(orders) == 1:
            return (owner, *orders[0][0]), orders[0][1]
        merged = _merge([*(order for order, _ in orders), tuple(classes)])
        return ((owner,), False) if merged is None else ((owner, *merged), True)

    # --- Imports -------------------------------------------------------------------------------------

    def _follow(
        self, item: Import, attributes: list[str], module: ModuleFacts
    ) -> tuple[_Target | None, list[str]]:
        """What an import binds, and which attributes are still to be looked up on it."""
        if item.name is not None:
            return self._imported(item, module, 0), attributes
        if item.local_name != item.module.split(".", 1)[0]:
            return self._files.find(item.module, importer=module.path, level=0), attributes
        # `import a.b` binds `a`: of `a.b.c.f` the longest part that is a module counts.
        parts = [item.local_name, *attributes]
        for length in range(len(parts), 0, -1):
            target = self._files.find(".".join(parts[:length]), importer=module.path, level=0)
            if target:
                return target, parts[length:]
        return None, []

    def _imported(self, item: Import, importer: ModuleFacts, depth: int) -> _Target | None:
        """What `from module import name` binds: a member of the module, else a module below it."""
        name = item.name or ""
        source = self._files.find(item.module, importer=importer.path, level=item.level)
        found = self._member(source, name, depth) if source else None
        if found or (source and (not _is_package(source) or self._is_bound(source, name))):
            return found
        below = f"{item.module}.{name}" if item.module else name
        return self._files.find(below, importer=importer.path, level=item.level)

    def _member(self, module: ModuleFacts, name: str, depth: int) -> _Target | None:
        if name in module.bound_names or depth > MAX_REEXPORTS:
            return None
        found = self._only(module.id, name)
        if isinstance(found, Import):
            if found.name is None:
                return self._files.find(found.module, importer=module.path, level=0)
            return self._imported(found, module, depth + 1)
        if found or self._binds(module.id, name):
            return found
        stars = {
            target.id: target
            for item in self._imports.get((module.id, "*"), ())
            if (source := self._files.find(item.module, importer=module.path, level=item.level))
            and not name.startswith("_")
            and (target := self._member(source, name, depth + 1))
        }
        return next(iter(stars.values())) if len(stars) == 1 else None


class _FileIndex:
    """Finds the file of a module by its dotted name."""

    def __init__(self, modules: Mapping[str, ModuleFacts]) -> None:
        self._modules = modules
        self._by_dotted: defaultdict[tuple[str, ...], list[tuple[tuple[str, ...], str]]] = defaultdict(list)
        for path in sorted(modules):
            parts = _module_parts(path)
            for start in range(len(parts)):
                self._by_dotted[parts[start:]].append((parts[:start], path))

    def find(self, dotted: str, *, importer: str, level: int) -> ModuleFacts | None:
        """The only module that the name can mean, or None.

        An absolute name counts from the project's root or a source folder; one of several parts from any
        folder that the importer lies in, too.
        """
        names = tuple(dotted.split(".")) if dotted else ()
        folder = tuple(importer.split("/")[:-1])
        if level > 0:
            if level - 1 > len(folder):
                return None
            wanted = folder[: len(folder) - level + 1] + names
            paths = {path for before, path in self._by_dotted.get(wanted, ()) if not before}
        else:
            paths = {
                path
                for before, path in self._by_dotted.get(names, ())
                if not before
                or before[-1] in SOURCE_FOLDERS
                or (len(names) > 1 and folder[: len(before)] == before)
            }
        return self._modules[paths.pop()] if len(paths) == 1 else None


def _module_parts(path: str) -> tuple[str, ...]:
    *folders, file = path.split("/")
    stem = file.rsplit(".", 1)[0]
    return tuple(folders) if stem == "__init__" else (*folders, stem)


def _is_package(module: ModuleFacts) -> bool:
    return module.path.rsplit("/", 1)[-1] == "__init__.py"


def _merge(orders: list[tuple[Class, ...]]) -> list[Class] | None:
    """One order that keeps all of them; None where they contradict each other."""
    merged: list[Class] = []
    pending = [order for order in orders if order]
    while pending:
        later = {item.id for order in pending for item in order[1:]}
        head = next((order[0] for order in pending if order[0].id not in later), None)
        if head is None:
            return None
        merged.append(head)
        pending = [order[1:] if order[0].id == head.id else order for order in pending]
        pending = [order for order in pending if order]
    return merged


def _single(definitions: Sequence[Function | Class]) -> Function | Class | None:
    """The definition that counts: the only one, or the last after nothing but overloads."""
    last = definitions[-1]
    is_alone = all(_OVERLOADS & set(item.decorators) for item in definitions if item is not last)
    return last if is_alone else None
