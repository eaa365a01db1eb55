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

MAX_STEPS: Final = 100
"""How many modules, or classes, one question may meet on its way; beyond that nothing is certain."""

MAX_BASES: Final = 64
"""Of a class with more the order is not worked out: that takes the square of their number."""

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
        self._bases: dict[str, tuple[tuple[Class, ...], bool]] = {}
        self._orders: dict[str, tuple[tuple[Class, ...], bool]] = {}
        self._members: dict[tuple[str, str], _Target | None] = {}
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
        target = self._find_target(name, module, within, inherited=True)
        return target if isinstance(target, Function | Class) else None

    def _find_target(
        self, name: str, module: ModuleFacts, within: Definition | None, *, inherited: bool
    ) -> _Target | None:
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
            target = self._attribute(target, attribute, inherited=inherited) if target else None
        if not attributes and root in {"self", "cls"}:
            # `cls()` makes an instance of the class or of one below it; `self()` calls `__call__`.
            return None
        return target

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

    def _attribute(self, target: _Target, name: str, *, inherited: bool) -> _Target | None:
        if isinstance(target, ModuleFacts):
            return self._member(target, name)
        if not isinstance(target, Class):
            return None
        return self._find(self._linearised(target) if inherited else (target,), name)

    def imported_modules(self, module: ModuleFacts) -> list[ModuleFacts]:
        """The modules that import statements anywhere in it name, as far as they are certain, in its order.

        Of `from package import name` that is the module `package.name` where there is one, else the package.
        """
        found: dict[str, ModuleFacts] = {}
        for item in module.imports:
            target = self._named_module(item, module)
            if target is not None and target is not module:
                found.setdefault(target.path, target)
        return list(found.values())

    def _named_module(self, item: Import, importer: ModuleFacts) -> ModuleFacts | None:
        if item.name is None:
            return self._files.find(item.module, importer=importer.path, level=0)
        source = self._files.find(item.module, importer=importer.path, level=item.level)
        if item.name == "*" or (source and (not _is_package(source) or self._is_bound(source, item.name))):
            return source
        below = f"{item.module}.{item.name}" if item.module else item.name
        return self._files.find(below, importer=importer.path, level=item.level) or source

    def readings(
        self, name: str, *, module: ModuleFacts, within: Definition | None = None
    ) -> tuple[Function | Class, ...]:
        """The definitions of a plain name that is defined more than once in the scope where it is found."""
        if "." in name:
            return ()
        scope = within
        while scope is not None:
            if (scope is within or isinstance(scope, Function)) and (
                name in scope.bound_names or self._binds(scope.id, name)
            ):
                return tuple(self._children.get((scope.id, name), ()))
            scope = self._definitions.get(scope.scope_id)
        return tuple(self._children.get((module.id, name), ()))

    def is_foreign(self, name: str, *, module: ModuleFacts, within: Definition | None = None) -> bool:
        """Whether the name's root is imported from a module that is not among these."""
        found = self._lookup(name.split(".", 1)[0], module, within)
        return isinstance(found, Import) and self._named_module(found, module) is None

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
        if owner.id not in self._orders:
            self._orders[owner.id] = self._order(owner, {})
        return self._orders[owner.id][0]

    def _order(
        self, owner: Class, seen: dict[str, tuple[tuple[Class, ...], bool]]
    ) -> tuple[tuple[Class, ...], bool]:
        """The order by C3, as Python's own, and whether nothing is missing at its end.

        `seen` is what the same question has met on its way: there a class stands alone until it is known,
        which ends a circle of bases. Only whole questions are kept, so that the answer does not depend on
        which class was asked for first.
        """
        if owner.id in seen:
            return seen[owner.id]
        seen[owner.id] = alone = ((owner,), False)
        if len(seen) > MAX_STEPS or len(owner.bases) > MAX_BASES:
            return alone
        classes, is_whole = self._resolved_bases(owner)
        orders = [self._order(parent, seen) for parent in classes]
        if not is_whole or (len(orders) > 1 and not all(whole for _, whole in orders)):
            return alone
        if len(orders) == 1:
            seen[owner.id] = ((owner, *(c for c in orders[0][0] if c.id != owner.id)), orders[0][1])
        else:
            merged = _merge([*(order for order, _ in orders), classes])
            seen[owner.id] = alone if merged is None else ((owner, *merged), True)
        return seen[owner.id]

    def lineage(self, owner: Class) -> tuple[Class, ...]:
        """The class, then what it inherits from, in method resolution order, as far as that is certain."""
        return self._linearised(owner)

    def bases_of(self, owner: Class) -> tuple[Class, ...]:
        """The classes that it names as bases, as far as they are certain, in its order."""
        return self._resolved_bases(owner)[0]

    def _resolved_bases(self, owner: Class) -> tuple[tuple[Class, ...], bool]:
        """The bases within the set that bring methods, and whether those are all that do."""
        if owner.id not in self._bases:
            module = self._modules[owner.id.rsplit("::", 1)[0]]
            around = self._definitions.get(owner.scope_id)
            names = [base for base in owner.bases if base not in _BARE_BASES]
            # Of a class on the way only its own members count: else the order of bases would ask for itself.
            found = [self._find_target(name, module, around, inherited=False) for name in names]
            classes = tuple(target for target in found if isinstance(target, Class))
            self._bases[owner.id] = classes, len(classes) == len(names)
        return self._bases[owner.id]

    # --- Imports -------------------------------------------------------------------------------------

    def _follow(
        self, item: Import, attributes: list[str], module: ModuleFacts
    ) -> tuple[_Target | None, list[str]]:
        """What an import binds, and which attributes are still to be looked up on it."""
        if item.name is not None:
            return self._imported(item, module, {}), attributes
        if item.local_name != item.module.split(".", 1)[0]:
            return self._files.find(item.module, importer=module.path, level=0), attributes
        # `import a.b` binds `a`: of `a.b.c.f` the longest part that is a module counts.
        parts = [item.local_name, *attributes]
        for length in range(len(parts), 0, -1):
            target = self._files.find(".".join(parts[:length]), importer=module.path, level=0)
            if target:
                return target, parts[length:]
        return None, []

    def _imported(
        self, item: Import, importer: ModuleFacts, seen: dict[tuple[str, str], _Target | None]
    ) -> _Target | None:
        """What `from module import name` binds: a member of the module, else a module below it."""
        name = item.name or ""
        source = self._files.find(item.module, importer=importer.path, level=item.level)
        found = self._member(source, name, seen) if source else None
        if found or (source and (not _is_package(source) or self._is_bound(source, name))):
            return found
        below = f"{item.module}.{name}" if item.module else name
        return self._files.find(below, importer=importer.path, level=item.level)

    def _member(
        self, module: ModuleFacts, name: str, seen: dict[tuple[str, str], _Target | None] | None = None
    ) -> _Target | None:
        """What the name is bound to in the module, its star imports included.

        `seen` is what the same question has met on its way, which ends circles of imports. Answers are kept
        for whole questions only: those met within a circle depend on where it was entered.
        """
        key = module.path, name
        if seen is not None:
            if key not in seen and len(seen) < MAX_STEPS:
                seen[key] = None
                seen[key] = self._member_within(module, name, seen)
            return seen.get(key)
        if key not in self._members:
            self._members[key] = self._member_within(module, name, {key: None})
        return self._members[key]

    def _member_within(
        self, module: ModuleFacts, name: str, seen: dict[tuple[str, str], _Target | None]
    ) -> _Target | None:
        if name in module.bound_names:
            return None
        found = self._only(module.id, name)
        if isinstance(found, Import):
            if found.name is None:
                return self._files.find(found.module, importer=module.path, level=0)
            return self._imported(found, module, seen)
        if found or self._binds(module.id, name) or name.startswith("_"):
            return found
        stars = {
            target.id: target
            for item in self._imports.get((module.id, "*"), ())
            if (source := self._files.find(item.module, importer=module.path, level=item.level))
            and (target := self._member(source, name, seen))
        }
        return next(iter(stars.values())) if len(stars) == 1 else None


class _FileIndex:
    """Finds the file of a module by its dotted name."""

    def __init__(self, modules: Mapping[str, ModuleFacts]) -> None:
        self._modules = modules
        self._by_dotted: defaultdict[tuple[str, ...], list[tuple[tuple[str, ...], str]]] = defaultdict(list)
        for path in sorted(modules):
            parts = _module_parts(path)
            if path != _preferred(path, modules):
                continue
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


def _preferred(path: str, modules: Mapping[str, ModuleFacts]) -> str:
    """Which of the files of one dotted name Python takes: the package, then the module, then a stub."""
    stem = "/".join(_module_parts(path))
    names = (f"{stem}/__init__.py", f"{stem}.py", f"{stem}/__init__.pyi", f"{stem}.pyi")
    return next((name for name in names if name in modules), path)


def _is_package(module: ModuleFacts) -> bool:
    return module.path.rsplit("/", 1)[-1] in {"__init__.py", "__init__.pyi"}


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
