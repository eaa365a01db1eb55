"""Facts of the target files to the signals of the AST layer: what an agent should know before it edits them.

Five of each: requirement tags that need mending, public signatures, complexity hotspots, functions with
branch points (each of which a change has to address), public symbols without a requirement; calls of the
three foremost symbols. Foremost is what the request names, then what most others among the target files use,
then what stands at the top level, then the order of files and lines; tests come last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Literal

from schemas.codes import TaskType
from worker.code.branches import Branch, branches_of
from worker.code.facts import Definition
from worker.code.trace_lint import trace_lint, trace_statuses
from worker.providers.ast_view import Surroundings, TargetFiles, TargetView, path_of
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

SignalKind = Literal["trace_lint", "signature", "complexity", "branches", "missing_traces", "calls"]

GROUPS: Final[Mapping[SignalKind, str]] = {
    "trace_lint": "## Traces to mend before the work is done",
    "signature": "## Public API",
    "complexity": "## Complexity hotspots",
    "branches": "## Branch points",
    "missing_traces": "## Missing @traces",
    "calls": "## Calls",
}
NOTES_GROUP: Final = "## Not analysed"

_CHANGING: Final = "## Branch points (answer by number for each that the change touches)"
_TESTING: Final = "## Branch points (by number: cover each with a test, or say why not)"
_BRANCHES: Final[Mapping[TaskType, str]] = {
    "BUILD": _CHANGING,
    "REFACTOR": _CHANGING,
    "DEBUG": _CHANGING,
    "TEST": _TESTING,
}
"""Whoever changes or tests a function has to answer for each of its paths; whoever reads it has not."""

# What comes first, and is kept first when room is short. Whoever repairs or reviews needs the risky places,
# whoever builds needs what there is to call. Tags that lead nowhere come before all: there are few of them,
# and work that leaves them is not done.
_BUILD_ORDER: Final[Sequence[SignalKind]] = (
    *("trace_lint", "signature", "calls", "branches", "complexity", "missing_traces"),
)
_RISK_ORDER: Final[Sequence[SignalKind]] = (
    *("trace_lint", "complexity", "branches", "calls", "signature", "missing_traces"),
)
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


def write_signals(
    block: ContributionBuilder, targets: TargetFiles, *, task_type: TaskType, around: Surroundings
) -> None:
    """Add every group to the block; one that fails leaves the others as they are."""
    view = TargetView(targets, around)
    block.section("links", view.link)
    for priority, kind in enumerate(_ORDERS[task_type]):
        group = _Group(block, kind, heading=heading_of(kind, task_type), priority=priority)
        block.section(kind, partial(_WRITERS[kind], group, view))


def heading_of(kind: SignalKind, task_type: TaskType) -> str:
    """What stands above a signal's lines."""
    return _BRANCHES.get(task_type, GROUPS[kind]) if kind == "branches" else GROUPS[kind]


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


class _Group:
    """One signal's lines in the block."""

    def __init__(self, block: ContributionBuilder, kind: SignalKind, *, heading: str, priority: int) -> None:
        self._block = block
        self._kind: SignalKind = kind
        self._heading = heading
        self._priority = priority
        self._lines = 0

    def add(self, item: Definition, text: str, *, brief: str | None = None) -> None:
        """A line about `item`."""
        about = item.id if self._kind == "signature" else ""
        self.add_of(item.id, path_of(item), _lines(item), text, brief=brief, about=about)

    def add_of(
        self, symbol: str, path: str, location: str, text: str, *, brief: str | None = None, about: str = ""
    ) -> None:
        """A line about a symbol. The first lines of all groups come before the second ones of any."""
        self._block.add(
            f"code://{symbol}#{self._kind}",
            text,
            brief=brief,
            relevance=_RELEVANCE,
            rank=1 + self._lines * len(GROUPS) + self._priority,
            group=self._heading,
            depth=_SIGNAL_DEPTH,
            resource_uri=f"file://{path}",
            location=location,
            metadata={"symbol": symbol},
            about=about,
        )
        self._lines += 1

    def leave_out(self, items: Sequence[object]) -> None:
        """Count what is beyond the cap."""
        self._block.leave_out(len(items))


def _write_trace_lint(group: _Group, view: TargetView) -> None:
    if view.snapshot is None:
        found = trace_lint(view.modules)
    else:
        found = trace_lint(view.modules, status_of=trace_statuses(view.snapshot))
    for item in found.findings[:SIGNALS_PER_GROUP]:
        said = _shown(f"{item.tag} {item.requirement_id}".rstrip())
        problem = "no document defines it" if item.kind == "dangling" else "names no requirement yet"
        text = f"- {_shown(item.path)}:{item.line} {said}: {problem}"
        group.add_of(item.owner_id, item.path, f"L{item.line}", text)
    group.leave_out(range(len(found.findings[SIGNALS_PER_GROUP:]) + found.more))


def _write_signatures(group: _Group, view: TargetView) -> None:
    for item in view.public[:SIGNALS_PER_GROUP]:
        signature = cut(item.signature, max_chars=MAX_SIGNATURE_CHARS)
        group.add(item, f"- {path_of(item)}:{item.line} {signature}", brief=f"- {_shown(item.id)}")
    group.leave_out(view.public[SIGNALS_PER_GROUP:])


def _write_hotspots(group: _Group, view: TargetView) -> None:
    hotspots = [function for function in view.functions() if function.complexity >= COMPLEXITY_THRESHOLD]
    hotspots.sort(key=lambda function: (-function.complexity, function.id))
    for function in hotspots[:SIGNALS_PER_GROUP]:
        group.add(function, f"- {_shown(function.id)} ({_lines(function)}): complexity {function.complexity}")
    group.leave_out(hotspots[SIGNALS_PER_GROUP:])


def _write_branches(group: _Group, view: TargetView) -> None:
    branching = [function for function in view.functions() if function.branch_points]
    branching.sort(key=lambda item: (not view.is_in_play(item), -len(item.branch_points), item.id))
    for function in branching[:SIGNALS_PER_GROUP]:
        points = [_point(branch) for branch in branches_of(function)[:MAX_POINTS]]
        if len(function.branch_points) > MAX_POINTS:
            points.append(f"{len(function.branch_points) - MAX_POINTS} more")
        head = f"- {_shown(function.id)} ({_lines(function)})"
        brief = f"{head}: {len(function.branch_points)} branch points"
        group.add(function, f"{head}: {' · '.join(points)}", brief=brief)
    group.leave_out(branching[SIGNALS_PER_GROUP:])


def _point(branch: Branch) -> str:
    point = branch.point
    condition = cut(point.condition, max_chars=MAX_CONDITION_CHARS)
    lines = f"L{point.line}" + (f"-{point.end_line}" if point.end_line > point.line else "")
    said = f"{branch.label} {lines} {point.kind} {condition}".rstrip()
    return f"{said} → {point.leaves}" if point.leaves else said


def _write_missing_traces(group: _Group, view: TargetView) -> None:
    missing = view.untraced()
    for item in missing[:SIGNALS_PER_GROUP]:
        group.add(item, f"- {_shown(item.id)} ({_lines(item)})")
    group.leave_out(missing[SIGNALS_PER_GROUP:])


def _write_calls(group: _Group, view: TargetView) -> None:
    linked = [item for item in view.foremost if view.callees(item) or view.callers(item)]
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


_WRITERS: Final[Mapping[SignalKind, Callable[[_Group, TargetView], None]]] = {
    "trace_lint": _write_trace_lint,
    "signature": _write_signatures,
    "complexity": _write_hotspots,
    "branches": _write_branches,
    "missing_traces": _write_missing_traces,
    "calls": _write_calls,
}


def _some(names: Sequence[str], most: int) -> str:
    shown = [_shown(name) for name in names[:most]]
    if len(names) > most:
        shown.append(f"{len(names) - most} more")
    return ", ".join(shown)


def _shown(name: str) -> str:
    return cut(name, max_chars=MAX_NAME_CHARS)


def _lines(item: Definition) -> str:
    return f"L{item.start_line}-L{item.end_line}"
