"""Names to edges: what each file imports, calls, inherits from, traces to and tests, among all files.

An edge is exact where the source leaves one reading. A call of an attribute whose object is unknown is a
guess among the methods of that name, where they are few; it says so, and among how many. Linking one file
looks at the others only through names, so a file need not be linked again while none of the names that
stand in it has changed (`affected`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from worker.code.facts import Call, Class, Definition, Function, ModuleFacts
from worker.code.loose_linking import LooseLinker
from worker.code.neighbourhood import NameResolver
from worker.code.nodes import LANGUAGE
from worker.code.reading import FileReading
from worker.code.tests_of import TestLinks, is_usable_id
from worker.graph.model import Edge, NodeRef
from worker.graph.paths import is_test_code

MAX_CANDIDATES: Final = 5
"""Where more classes have a method of the name, the name says nothing."""

_BUILTIN_METHODS: Final = frozenset(
    name
    for kind in (str, bytes, bytearray, list, dict, set, frozenset, tuple, int, float, range, BaseException)
    for name in dir(kind)
)
"""What is called on an unknown object is most often one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLinks:
    """The edges that one file gives, sorted, and how its calls came out."""

    edges: tuple[Edge, ...]
    exact_calls: int = 0
    guessed_calls: int = 0
    unresolved_calls: int = 0


class Linker:
    """Links files one by one; the result for one does not depend on which were linked before."""

    def __init__(self, readings: Mapping[str, FileReading]) -> None:
        """Index the names of all files. O(definitions)."""
        self._readings = readings
        self._modules = {
            path: reading.facts
            for path, reading in readings.items()
            if reading.facts is not None and reading.language == LANGUAGE
        }
        self._resolver = NameResolver(self._modules[path] for path in sorted(self._modules))
        self._methods: defaultdict[str, list[Function]] = defaultdict(list)
        named: defaultdict[str, list[Definition]] = defaultdict(list)
        for path in sorted(self._modules):
            is_test = is_test_code(path)
            for item in (*self._modules[path].functions, *self._modules[path].classes):
                if is_test or "<locals>" in item.qualname:
                    continue
                named[item.name].append(item)
                if isinstance(item, Function) and item.class_id is not None:
                    self._methods[item.name].append(item)
        self._tests = TestLinks(self._resolver, named)
        self._loose = LooseLinker(readings)

    def link(self, path: str) -> FileLinks:
        """The edges of one file. O(its calls)."""
        reading = self._readings[path]
        facts = reading.facts
        if facts is None or reading.status == "failed":
            return FileLinks(edges=())
        edges = _Edges()
        if reading.language != LANGUAGE:
            return self._loosely_linked(reading.language, facts, edges)
        calls = self._link_calls(facts, edges, is_certain=reading.status == "parsed")
        module = NodeRef("Module", facts.id)
        for target in self._resolver.imported_modules(facts):
            edges.add(Edge(module, "IMPORTS", NodeRef("Module", target.id)))
        for owner in facts.classes:
            for base in self._resolver.bases_of(owner):
                edges.add(Edge(ref_of(owner), "INHERITS_FROM", ref_of(base)))
        _link_traces(facts, module, edges)
        for edge in self._tests.link(facts, calls.exact, calls.guessed):
            edges.add(edge)
        return FileLinks(
            edges=edges.sorted(),
            exact_calls=calls.exact_count,
            guessed_calls=calls.guessed_count,
            unresolved_calls=calls.unresolved_count,
        )

    def _loosely_linked(self, language: str, facts: ModuleFacts, edges: _Edges) -> FileLinks:
        guessed, unresolved = self._loose.link(facts, language, edges.add)
        _link_traces(facts, NodeRef("Module", facts.id), edges)
        return FileLinks(edges=edges.sorted(), guessed_calls=guessed, unresolved_calls=unresolved)

    def _link_calls(self, facts: ModuleFacts, edges: _Edges, *, is_certain: bool) -> _Calls:
        result = _Calls()
        bodies: list[tuple[NodeRef, Definition | None, tuple[Call, ...]]] = [
            (NodeRef("Module", facts.id), None, facts.calls)
        ]
        bodies += [(ref_of(item), item, item.calls) for item in (*facts.functions, *facts.classes)]
        for source, within, calls in bodies:
            for call in calls:
                target = self._resolver.resolve(call.name, module=facts, within=within)
                if target is not None and not is_certain:
                    # Of a file that was read in part nobody knows what else binds the name.
                    result.guessed_count += 1
                    result.guessed[source.id].append((target,))
                    edges.add(Edge(source, "CALLS", ref_of(target), "guess", 1))
                elif target is not None:
                    result.exact_count += 1
                    result.exact[source.id].append(target)
                    edges.add(Edge(source, "CALLS", ref_of(target)))
                elif guesses := self._guesses(call.name, facts, within):
                    result.guessed_count += 1
                    result.guessed[source.id].append(guesses)
                    for guess in guesses:
                        edges.add(Edge(source, "CALLS", ref_of(guess), "guess", len(guesses)))
                else:
                    result.unresolved_count += 1
        return result

    def _guesses(
        self, name: str, facts: ModuleFacts, within: Definition | None
    ) -> tuple[Function | Class, ...]:
        """What the called name may mean; empty where that is anybody's guess."""
        root, _, method = name.rpartition(".")
        if not root:
            readings = self._resolver.readings(name, module=facts, within=within)
            return readings if 1 < len(readings) <= MAX_CANDIDATES else ()
        if method in _BUILTIN_METHODS or root == "super()" or root.endswith("?"):
            return ()
        found = self._methods.get(method, ())
        if not 0 < len(found) <= MAX_CANDIDATES:
            return ()
        if self._resolver.is_foreign(root, module=facts, within=within):
            return ()
        return tuple(found)


class _Calls:
    """How the calls of one file came out, by the scope that they stand in."""

    def __init__(self) -> None:
        self.exact: defaultdict[str, list[Function | Class]] = defaultdict(list)
        self.guessed: defaultdict[str, list[tuple[Function | Class, ...]]] = defaultdict(list)
        self.exact_count = self.guessed_count = self.unresolved_count = 0


class _Edges:
    """Edges, each pair of nodes and relation once: an exact one before a guess, fewer candidates first."""

    def __init__(self) -> None:
        self._found: dict[tuple[NodeRef, str, NodeRef], Edge] = {}

    def add(self, edge: Edge) -> None:
        key = edge[:3]
        known = self._found.get(key)
        if known is None or edge[3:] < known[3:]:  # "exact" sorts before "guess"
            self._found[key] = edge

    def sorted(self) -> tuple[Edge, ...]:
        return tuple(sorted(self._found.values()))


def ref_of(item: Definition) -> NodeRef:
    """The node of a definition."""
    return NodeRef("Class" if isinstance(item, Class) else "Function", item.id)


def _link_traces(facts: ModuleFacts, module: NodeRef, edges: _Edges) -> None:
    for owner, traces in [(module, facts.traces), *((ref_of(i), i.traces) for i in _definitions(facts))]:
        for trace in traces:
            if is_usable_id(trace.requirement_id):
                edges.add(Edge(owner, "TRACES_TO", NodeRef("RequirementItem", trace.requirement_id)))


def _definitions(facts: ModuleFacts) -> Iterable[Definition]:
    return (*facts.functions, *facts.classes)
