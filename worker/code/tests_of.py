"""Which tests exercise which code, by the conventions of pytest and unittest.

A test exercises what it calls for certain outside the tests, directly or through the fixtures, set-up methods
and helpers of its own module. Where its name is `test_<name>`, or its class `Test<Name>`, it is guessed to
test what is called so; so is the only method of a name that it calls on an object it does not say more of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from worker.code.facts import Class, Definition, Function, ModuleFacts
from worker.code.neighbourhood import NameResolver
from worker.graph.model import Edge, NodeRef
from worker.graph.paths import is_test_code, is_test_file

MAX_NAMESAKES: Final = 3
MAX_ID_CHARS: Final = 256
_SET_UPS: Final = frozenset(
    {"setUp", "setUpClass", "asyncSetUp", "setUpTestData", "setup_method", "setup_class", "setup"}
)


def is_usable_id(requirement_id: str) -> bool:
    """Whether what a tag names can be an id: on one line, printable, not too long."""
    return 0 < len(requirement_id) <= MAX_ID_CHARS and requirement_id.isprintable()


def tested_name(test_name: str) -> str:
    """The name that `test_<name>` or `Test<Name>` speaks of; empty for any other."""
    for prefix in ("test_", "Test"):
        if test_name.startswith(prefix):
            return test_name.removeprefix(prefix)
    return ""


class TestLinks:
    """Finds the tests of a module and what they exercise."""

    __test__ = False  # not a test itself, whatever its name

    def __init__(self, resolver: NameResolver, named: Mapping[str, Sequence[Definition]]) -> None:
        """`named` holds the definitions outside the tests by name, without local ones."""
        self._resolver = resolver
        self._named = named

    def link(
        self,
        facts: ModuleFacts,
        exact: Mapping[str, Sequence[Function | Class]],
        guessed: Mapping[str, Sequence[tuple[Function | Class, ...]]],
    ) -> Iterator[Edge]:
        """The TESTED_BY edges that the module's tests give; some may be given twice.

        `exact` and `guessed` are what is called, by the id of the scope that calls.
        """
        if not is_test_file(facts.path):
            return
        module = _TestModule(facts, self._resolver)
        for test in module.tests():
            target = NodeRef("Function", test.id)
            for requirement in test.traces:
                if is_usable_id(requirement.requirement_id):
                    yield Edge(NodeRef("RequirementItem", requirement.requirement_id), "TESTED_BY", target)
            for scope_id in module.reached(test, exact):
                for callee in exact.get(scope_id, ()):
                    if not is_test_code(_path(callee)):
                        yield Edge(_ref(callee), "TESTED_BY", target)
                for candidates in guessed.get(scope_id, ()):
                    if len(candidates) == 1:
                        yield Edge(_ref(candidates[0]), "TESTED_BY", target, "guess", 1)
            yield from self._namesakes(test.name, target, facts)
        for owner in module.test_classes():
            yield from self._namesakes(owner.name, NodeRef("Class", owner.id), facts)

    def _namesakes(self, test_name: str, target: NodeRef, facts: ModuleFacts) -> Iterator[Edge]:
        """What the test's name speaks of: of several, those that the test's module imports."""
        found = self._named.get(tested_name(test_name), ())
        if len(found) > 1:
            imported = {module.path for module in self._resolver.imported_modules(facts)}
            found = [item for item in found if _path(item) in imported]
        if len(found) <= MAX_NAMESAKES:
            for item in found:
                yield Edge(_ref(item), "TESTED_BY", target, "guess", len(found))


class _TestModule:
    """The tests of one module and what helps them."""

    def __init__(self, facts: ModuleFacts, resolver: NameResolver) -> None:
        self._facts = facts
        self._resolver = resolver
        self._classes = {item.id: item for item in facts.classes}
        self._fixtures = {
            item.name: item
            for item in facts.functions
            if any(name.rsplit(".", 1)[-1].removesuffix("()") == "fixture" for name in item.decorators)
        }
        self._inner: dict[str, list[Function]] = {}
        for item in facts.functions:
            self._inner.setdefault(item.scope_id, []).append(item)

    def test_classes(self) -> list[Class]:
        """In source order."""
        return [item for item in self._facts.classes if self._is_test_class(item)]

    def tests(self) -> list[Function]:
        """In source order."""
        test_classes = {item.id for item in self.test_classes()}
        return [
            item
            for item in self._facts.functions
            if item.name.startswith("test")
            and item.name not in self._fixtures
            and (item.scope_id == self._facts.id or item.class_id in test_classes)
        ]

    def _is_test_class(self, owner: Class) -> bool:
        if owner.name.startswith("Test"):
            return True
        return any(
            base.rsplit(".", 1)[-1].endswith("TestCase")
            for item in self._resolver.lineage(owner)
            for base in (item.name, *item.bases)
        )

    def reached(self, test: Function, exact: Mapping[str, Sequence[Function | Class]]) -> list[str]:
        """The scopes of this module that run with the test, itself first."""
        pending: list[Definition] = [test, *self._set_ups(test)]
        reached: dict[str, None] = {}
        while pending:
            item = pending.pop()
            if item.id in reached:
                continue
            reached[item.id] = None
            pending += self._inner.get(item.id, ()) if isinstance(item, Function) else ()
            pending += [self._fixtures[name] for name in sorted(item.bound_names & self._fixtures.keys())]
            pending += [callee for callee in exact.get(item.id, ()) if _path(callee) == self._facts.path]
        return list(reached)

    def _set_ups(self, test: Function) -> list[Function]:
        owner = self._classes.get(test.class_id or "")
        if owner is None:
            return []
        lineage = {item.id for item in self._resolver.lineage(owner)}
        return [f for f in self._facts.functions if f.name in _SET_UPS and f.class_id in lineage]


def _path(item: Definition) -> str:
    return item.id.split("::", 1)[0]


def _ref(item: Definition) -> NodeRef:
    return NodeRef("Class" if isinstance(item, Class) else "Function", item.id)
