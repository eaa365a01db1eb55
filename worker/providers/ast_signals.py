"""Facts of the target files to the signals of the AST layer: what an agent should know before it edits them.

Five of each: public signatures, complexity hotspots, functions with branch points (each of which a change
has to address), public symbols without a requirement; calls of the three foremost public symbols. Foremost
is what most others among the target files use, then what stands at the top level, then the order of files
and lines; tests come last.
"""

from __future__ import annotations

import builtins
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final, Literal

from schemas.codes import TaskType
from worker.code.facts import BranchPoint, Class, Definition, Function, ModuleFacts, ParseProblem
from worker.code.neighbourhood import CallGraph, link_calls
from worker.code.sources import Refused
from worker.providers.contribution import ContributionBuilder
from worker.providers.text import cut

SIGNALS_PER_GROUP: Final = 5
CALL_SUMMARIES: Final = 3
COMPLEXITY_THRESHOLD: Final = 5
"""A function this complex, or more so, is a hotspot."""

MAX_SIGNATURE_CHARS: Final = 300
MAX_POINTS: Final = 10
MAX_CONDITION_CHARS: Final = 60
MAX_CALLEES: Final = 8
MAX_CALLERS: Final = 5
MAX_NAME_CHARS: Final = 120

_SIGNAL_DEPTH: Final = 3
"""A line about a symbol: more than its name, far from its body."""

_RELEVANCE: Final = 0.5
_BUILTINS: Final = frozenset(dir(builtins))

SignalKind = Literal["signature", "complexity", "branches", "missing_traces", "calls"]

GROUPS: Final[Mapping[SignalKind, str]] = {
    "signature": "## Public API",
    "complexity": "## Complexity hotspots",
    "branches": "## Branch points",
    "missing_traces": "## Missing @traces",
    "calls": "## Calls",
}
NOTES_GROUP: Final = "## Not analysed"

# What is kept first when room is short. Whoever repairs or reviews needs the risky places, whoever builds
# needs what there is to call.
_BUILD_ORDER: Final[Sequence[SignalKind]] = ("signature", "calls", "branches", "complexity", "missing_traces")
_RISK_ORDER: Final[Sequence[SignalKind]] = ("complexity", "branches", "calls", "signature", "missing_traces")
_ORDERS: Final[Mapping[TaskType, Sequence[SignalKind]]] = {
    "BUILD": _BUILD_ORDER,
    "REFACTOR": _BUILD_ORDER,
    "DOCUMENT": _BUILD_ORDER,
    "DEBUG": _RISK_ORDER,
    "TEST": _RISK_ORDER,
    "REVIEW": _RISK_ORDER,
}
_PROBLEMS: Final = {
    "encoding": "not text in its encoding",
    "nul_byte": "NUL byte",
    "syntax": "syntax error",
    "too_complex": "nested or repeated beyond what the parser takes",
}


@dataclass(frozen=True, slots=True)
class TargetFiles:
    """The modules in the order in which they were named, and what was refused."""

    modules: tuple[ModuleFacts, ...]
    refused: tuple[Refused, ...]

    @property
    def unparsed(self) -> list[tuple[ModuleFacts, ParseProblem]]:
        """Modules without facts, and why."""
        return [(m, m.parse_problem) for m in self.modules if m.parse_problem is not None]


def write_signals(block: ContributionBuilder, targets: TargetFiles, *, task_type: TaskType) -> None:
    """Add every group to the block; one that fails leaves the others as they are."""
    view = _View(targets.modules)
    block.section("links", view.link)
    for kind, write in _WRITERS.items():
        group = _Group(block, kind, priority=_ORDERS[task_type].index(kind))
        block.section(kind, partial(write, group, view))


def write_notes(block: ContributionBuilder, targets: TargetFiles) -> None:
    """Add what could not be read or parsed, so that silence about a file is no praise of it."""
    notes = [(refused.path, refused.reason) for refused in targets.refused]
    for module, problem in targets.unparsed:
        place = f", line {problem.line}" if problem.line else ""
        notes.append((module.path, f"{_PROBLEMS[problem.kind]}{place}"))
    for path, reason in notes[:SIGNALS_PER_GROUP]:
        shown = cut(path, max_chars=MAX_NAME_CHARS)
        block.add(
            f"code://{path}#not_analysed",
            f"- {shown}: {reason}",
            relevance=_RELEVANCE,
            rank=0,
            group=NOTES_GROUP,
            depth=_SIGNAL_DEPTH,
            resource_uri=f"file://{path}",
        )
    block.leave_out(len(notes[SIGNALS_PER_GROUP:]))


class _View:
    """The target files as the sections look at them."""

    def __init__(self, modules: Sequence[ModuleFacts]) -> None:
        self._modules = modules
        self._graph = CallGraph({}, {})
        self._parts: defaultdict[str, list[Definition]] = defaultdict(list)
        """What belongs to a symbol: its later namesakes (overloads, setters), and a class's methods."""
        for module in modules:
            for item in (*module.classes, *module.functions):
                self._parts[_symbol_id(item)].append(item)
                if item.class_id is not None:
                    self._parts[item.class_id].append(item)

    def link(self) -> None:
        """Find out who calls whom; where that fails there are no calls to show, and no order by use."""
        self._graph = link_calls(self._modules)

    def functions(self) -> Iterable[Function]:
        """Every function of every file."""
        return (function for module in self._modules for function in module.functions)

    @cached_property
    def public(self) -> list[Function | Class]:
        """Public symbols, the foremost first; namesakes are one."""
        ranked: list[tuple[tuple[bool, int, bool, int, int], Function | Class]] = []
        for index, module in enumerate(self._modules):
            is_test = is_test_path(module.path)
            for item in (*module.functions, *module.classes):
                if item.is_public and item.id == _symbol_id(item):
                    uses = -len(self.callers(item))
                    ranked.append(((is_test, uses, item.class_id is not None, index, item.line), item))
        return [item for _, item in sorted(ranked, key=lambda entry: entry[0])]

    def untraced(self) -> list[Function | Class]:
        """Public symbols outside tests for which no requirement is named, by class or file either."""
        traced = {module.path for module in self._modules if module.traces}
        traces = {item.id for module in self._modules for item in module.classes if item.traces}
        return [
            item
            for item in self.public
            if not is_test_path(_path(item))
            and _path(item) not in traced
            and item.class_id not in traces
            and not any(part.traces for part in self._parts[item.id] if part.qualname == item.qualname)
        ]

    def callers(self, item: Definition) -> list[str]:
        """Ids of what calls the symbol or a part of it, from outside; sorted."""
        own = {part.id for part in self._parts[item.id]}
        return sorted({caller for target in own for caller in self._graph.callers.get(target, ())} - own)

    def callees(self, item: Definition) -> list[str]:
        """What the symbol and its parts call: linked definitions by id, then others by name, each once.

        In source order; without Python's own functions, methods of unnamed values, and the symbol's parts.
        """
        own = {part.id for part in self._parts[item.id]}
        calls = [call for part in self._parts[item.id] for call in self._graph.callees.get(part.id, ())]
        linked = dict.fromkeys(call.id for call in calls if call.id is not None and call.id not in own)
        named = dict.fromkeys(call.name for call in calls if call.id is None)
        return [*linked, *(name for name in named if name not in _BUILTINS and not name.startswith("?"))]


class _Group:
    """One signal's lines in the block."""

    def __init__(self, block: ContributionBuilder, kind: SignalKind, *, priority: int) -> None:
        self._block = block
        self._kind: SignalKind = kind
        self._priority = priority
        self._lines = 0

    def add(self, item: Definition, text: str, *, brief: str | None = None) -> None:
        """A line about `item`. The first lines of all groups come before the second ones of any."""
        path = _path(item)
        self._block.add(
            f"code://{item.id}#{self._kind}",
            text,
            brief=brief,
            relevance=_RELEVANCE,
            rank=1 + self._lines * len(GROUPS) + self._priority,
            group=GROUPS[self._kind],
            depth=_SIGNAL_DEPTH,
            resource_uri=f"file://{path}",
            location=_lines(item),
            metadata={"symbol": item.id},
            about=item.id if self._kind == "signature" else "",
        )
        self._lines += 1

    def leave_out(self, items: Sequence[object]) -> None:
        """Count what is beyond the cap."""
        self._block.leave_out(len(items))


def _write_signatures(group: _Group, view: _View) -> None:
    for item in view.public[:SIGNALS_PER_GROUP]:
        signature = cut(item.signature, max_chars=MAX_SIGNATURE_CHARS)
        group.add(item, f"- {_path(item)}:{item.line} {signature}", brief=f"- {_shown(item.id)}")
    group.leave_out(view.public[SIGNALS_PER_GROUP:])


def _write_hotspots(group: _Group, view: _View) -> None:
    hotspots = [function for function in view.functions() if function.complexity >= COMPLEXITY_THRESHOLD]
    hotspots.sort(key=lambda function: (-function.complexity, function.id))
    for function in hotspots[:SIGNALS_PER_GROUP]:
        group.add(function, f"- {_shown(function.id)} ({_lines(function)}): complexity {function.complexity}")
    group.leave_out(hotspots[SIGNALS_PER_GROUP:])


def _write_branches(group: _Group, view: _View) -> None:
    branching = [function for function in view.functions() if function.branch_points]
    branching.sort(key=lambda function: (-len(function.branch_points), function.id))
    for function in branching[:SIGNALS_PER_GROUP]:
        points = [_point(point) for point in function.branch_points[:MAX_POINTS]]
        if len(function.branch_points) > MAX_POINTS:
            points.append(f"{len(function.branch_points) - MAX_POINTS} more")
        head = f"- {_shown(function.id)} ({_lines(function)})"
        brief = f"{head}: {len(function.branch_points)} branch points"
        group.add(function, f"{head}: {' · '.join(points)}", brief=brief)
    group.leave_out(branching[SIGNALS_PER_GROUP:])


def _point(point: BranchPoint) -> str:
    condition = cut(point.condition, max_chars=MAX_CONDITION_CHARS)
    return f"L{point.line} {point.kind} {condition}".rstrip()


def _write_missing_traces(group: _Group, view: _View) -> None:
    missing = view.untraced()
    for item in missing[:SIGNALS_PER_GROUP]:
        group.add(item, f"- {_shown(item.id)} ({_lines(item)})")
    group.leave_out(missing[SIGNALS_PER_GROUP:])


def _write_calls(group: _Group, view: _View) -> None:
    linked = [item for item in view.public if view.callees(item) or view.callers(item)]
    for item in linked[:CALL_SUMMARIES]:
        callees, callers = view.callees(item), view.callers(item)
        clauses = [f"- {_shown(item.id)} ({_lines(item)})"]
        if callees:
            clauses.append(f"calls {_some(callees, MAX_CALLEES)}")
        if callers:
            clauses.append(f"used by {_some(callers, MAX_CALLERS)}")
        brief = f"{clauses[0]} calls {len(callees)}, used by {len(callers)}"
        group.add(item, f"{clauses[0]} {' · '.join(clauses[1:])}", brief=brief)
    group.leave_out(linked[CALL_SUMMARIES:])


_WRITERS: Final[Mapping[SignalKind, Callable[[_Group, _View], None]]] = {
    "signature": _write_signatures,
    "complexity": _write_hotspots,
    "branches": _write_branches,
    "missing_traces": _write_missing_traces,
    "calls": _write_calls,
}
"""In the order of the text."""


def _some(names: Sequence[str], most: int) -> str:
    shown = [_shown(name) for name in names[:most]]
    if len(names) > most:
        shown.append(f"{len(names) - most} more")
    return ", ".join(shown)


def _shown(name: str) -> str:
    return cut(name, max_chars=MAX_NAME_CHARS)


def _symbol_id(item: Definition) -> str:
    """The id of the first definition of that name in the file."""
    return f"{_path(item)}::{item.qualname}"


def _path(item: Definition) -> str:
    return item.id.rsplit("::", 1)[0]


def _lines(item: Definition) -> str:
    return f"L{item.start_line}-L{item.end_line}"


def is_test_path(path: str) -> bool:
    """Whether the file is a test by its own name or a folder's."""
    *folders, name = path.split("/")
    return name.startswith("test_") or name.endswith("_test.py") or not {"test", "tests"}.isdisjoint(folders)
