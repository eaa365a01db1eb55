"""The target files as the AST layer looks at them: what is public, what the request names, who calls whom.

What the files say themselves comes first. What an index knows of the rest of the project is added to it: of
a target file it may be out of date, so of these it is not asked.
"""

from __future__ import annotations

import builtins
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from worker.code.facts import Class, Definition, Function, ModuleFacts, ParseProblem
from worker.code.neighbourhood import CallGraph, link_calls
from worker.code.sources import Refused
from worker.graph.model import NodeRef
from worker.graph.neighbours import CallNeighbours, Neighbour, call_neighbours
from worker.graph.snapshot import Snapshot

_BUILTINS: Final = frozenset(dir(builtins))
_NO_NEIGHBOURS: Final = CallNeighbours(callers=(), more_callers=0, callees=(), more_callees=0)
GUESSED: Final = "?"
"""After the id of a neighbour that is one of several readings."""


class LinkedFiles:
    """Who calls whom among the target files, and what of them is public: the same whatever the request."""

    def __init__(self, modules: Sequence[ModuleFacts], calls: CallGraph) -> None:
        """`calls` are among these modules."""
        self.calls = calls
        self._modules = modules
        self._parts: defaultdict[str, list[Definition]] = defaultdict(list)
        for module in modules:
            for item in (*module.classes, *module.functions):
                self._parts[symbol_id(item)].append(item)
                if item.class_id is not None:
                    self._parts[item.class_id].append(item)

    def parts(self, item: Definition) -> Sequence[Definition]:
        """What belongs to a symbol: its later namesakes (overloads, setters), and a class's methods."""
        return self._parts.get(item.id, ())

    @cached_property
    def public(self) -> list[Function | Class]:
        """Public symbols, the foremost first; namesakes are one."""
        ranked: list[tuple[tuple[bool, int, bool, int, int], Function | Class]] = []
        for index, module in enumerate(self._modules):
            is_test = is_test_path(module.path)
            for item in (*module.functions, *module.classes):
                if item.is_public and item.id == symbol_id(item):
                    uses = -len(self.callers(item))
                    ranked.append(((is_test, uses, item.class_id is not None, index, item.line), item))
        return [item for _, item in sorted(ranked, key=lambda entry: entry[0])]

    def callers(self, item: Definition) -> list[str]:
        """Ids of what calls the symbol or a part of it, from outside, sorted."""
        own = {part.id for part in self.parts(item)}
        return sorted({caller for target in own for caller in self.calls.callers.get(target, ())} - own)


@dataclass(frozen=True)
class TargetFiles:
    """The modules in the order in which they were named, and what was refused.

    What is made of them is made once, so they are worth keeping from request to request.
    """

    modules: tuple[ModuleFacts, ...]
    refused: tuple[Refused, ...]

    @cached_property
    def linked(self) -> LinkedFiles:
        """Who calls whom among them."""
        return LinkedFiles(self.modules, link_calls(self.modules))

    @cached_property
    def names(self) -> frozenset[str]:
        """What its definitions are called, alone and with what they stand in."""
        items = [item for module in self.modules for item in (*module.functions, *module.classes)]
        return frozenset([name for item in items for name in (item.name, item.qualname)])

    @property
    def unparsed(self) -> list[tuple[ModuleFacts, ParseProblem]]:
        """Modules without facts, and why."""
        return [(m, m.parse_problem) for m in self.modules if m.parse_problem is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is known beside the target files."""

    named: frozenset[str] = frozenset()
    """Names in the request that may be those of definitions."""
    snapshot: Snapshot | None = None
    folder: str = ""
    """Where the target files' paths start, below the root that the graph's paths start from."""


class TargetView:
    """For one rendering."""

    def __init__(self, targets: TargetFiles, around: Surroundings) -> None:
        """Nothing is linked yet."""
        self.modules = targets.modules
        self._targets = targets
        self._around = around
        self._linked: LinkedFiles | None = None
        self._neighbours: dict[str, CallNeighbours] = {}

    @property
    def snapshot(self) -> Snapshot | None:
        """The project's graph, where there is one."""
        return self._around.snapshot

    def link(self) -> None:
        """Find out who calls whom; where that fails there are no calls to show, and no order by use."""
        self._linked = self._targets.linked

    @cached_property
    def _files(self) -> LinkedFiles:
        return self._linked or LinkedFiles(self.modules, CallGraph({}, {}))

    def functions(self) -> Iterable[Function]:
        """Every function of every file."""
        return (function for module in self.modules for function in module.functions)

    def is_in_play(self, item: Definition) -> bool:
        """Whether the request names the definition."""
        return item.name in self._around.named or item.qualname in self._around.named

    @property
    def public(self) -> list[Function | Class]:
        """Public symbols, the foremost first; namesakes are one."""
        return self._files.public

    @cached_property
    def foremost(self) -> list[Function | Class]:
        """What the request names, by files and lines, public or not; then the other public symbols."""
        items = [item for module in self.modules for item in (*module.functions, *module.classes)]
        named = [item for item in items if self.is_in_play(item) and item.id == symbol_id(item)]
        chosen = {item.id for item in named}
        return [*named, *(item for item in self.public if item.id not in chosen)]

    def untraced(self) -> list[Function | Class]:
        """Public symbols outside tests for which no requirement is named, by class or file either."""
        traced = {module.path for module in self.modules if module.traces}
        traces = {item.id for module in self.modules for item in module.classes if item.traces}
        return [
            item
            for item in self.public
            if not is_test_path(path_of(item))
            and path_of(item) not in traced
            and item.class_id not in traces
            and not any(part.traces for part in self._files.parts(item) if part.qualname == item.qualname)
        ]

    def callers(self, item: Definition) -> list[str]:
        """Ids of what calls the symbol or a part of it, from outside: sorted, certain ones first."""
        known = dict.fromkeys(self._files.callers(item))
        return [*known, *self._elsewhere(self._around_of(item).callers, known)]

    def callees(self, item: Definition) -> list[str]:
        """What the symbol and its parts call: linked definitions by id, then others by name, each once.

        In source order; without Python's own functions, methods of unnamed values, and the symbol's parts.
        """
        parts = self._files.parts(item)
        own = {part.id for part in parts}
        calls = [call for part in parts for call in self._files.calls.callees.get(part.id, ())]
        linked = dict.fromkeys(call.id for call in calls if call.id is not None and call.id not in own)
        named = dict.fromkeys(call.name for call in calls if call.id is None)
        found = list(self._elsewhere(self._around_of(item).callees, linked))
        told = {_last_name(name.removesuffix(GUESSED)) for name in found}
        others = [
            name
            for name in named
            if name not in _BUILTINS and not name.startswith("?") and _last_name(name) not in told
        ]
        return [*linked, *found, *others]

    def _around_of(self, item: Definition) -> CallNeighbours:
        """Of a symbol, what the graph says."""
        snapshot = self._around.snapshot
        if snapshot is None:
            return _NO_NEIGHBOURS
        found = self._neighbours.get(item.id)
        if found is None:
            node_id = f"{self._around.folder}/{item.id}" if self._around.folder else item.id
            ref = NodeRef("Class" if isinstance(item, Class) else "Function", node_id)
            found = self._neighbours[item.id] = call_neighbours(snapshot, ref) or _NO_NEIGHBOURS
        return found

    def _elsewhere(self, neighbours: Iterable[Neighbour], known: Iterable[str]) -> Iterable[str]:
        """Ids of neighbours outside the target files, below the folder without it, guesses marked."""
        told = {*known}
        paths = {module.path for module in self.modules}
        prefix = f"{self._around.folder}/" if self._around.folder else ""
        for neighbour in neighbours:
            shown = neighbour.ref.id.removeprefix(prefix)
            if shown.rsplit("::", 1)[0] not in paths and shown not in told:
                yield shown if neighbour.resolution == "exact" else f"{shown}{GUESSED}"


def symbol_id(item: Definition) -> str:
    """The id of the first definition of that name in the file."""
    return f"{path_of(item)}::{item.qualname}"


def path_of(item: Definition) -> str:
    """The file that it stands in."""
    return item.id.rsplit("::", 1)[0]


def _last_name(name: str) -> str:
    return name.rsplit("::", 1)[-1].rsplit(".", 1)[-1]


def is_test_path(path: str) -> bool:
    """Whether the file is a test by its own name or a folder's."""
    *folders, name = path.split("/")
    return name.startswith("test_") or name.endswith("_test.py") or not {"test", "tests"}.isdisjoint(folders)
