"""Requirement tags that somebody has to see to: those that lead nowhere, and those that are not filled in.

Work that claims to satisfy a requirement is not done while one of its tags dangles or is a placeholder.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from schemas.graph import NodeLabel
from worker.code.assembling import DANGLING
from worker.code.facts import Class, Function, ModuleFacts, Trace
from worker.graph.model import Node, NodeRef
from worker.graph.snapshot import Snapshot

TraceStatus = Literal["defined", "dangling", "unknown"]
"""Of an id: whether a document defines it, none does, or that cannot be told."""

MAX_FINDINGS: Final = 100

_DUMMY: Final = re.compile(r".*-0+(?:\.[A-Z]+-0+)?\Z")
_REQUIREMENTS: Final[tuple[NodeLabel, ...]] = ("Requirement", "RequirementItem", "Spec")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFinding:
    """One tag, and what is wrong with it. Sorts as it is listed."""

    path: str
    line: int
    kind: Literal["dangling", "placeholder"]
    tag: str
    requirement_id: str
    """What stands after the tag; empty where nothing does."""
    owner_id: str
    """The innermost definition that the tag stands in, or is bound to, else the module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLint:
    """All findings of some modules, in order of their paths and lines."""

    findings: tuple[TraceFinding, ...]
    """The first `MAX_FINDINGS`."""
    more: int
    checked: int
    """How many tags were looked at."""
    unjudged: tuple[str, ...]
    """Ids of which it cannot be told whether a document defines them, sorted."""


def trace_lint(
    modules: Iterable[ModuleFacts], *, status_of: Callable[[str], TraceStatus] = lambda _: "unknown"
) -> TraceLint:
    """The tags in these modules that are placeholders, or name what no document defines. O(tags log tags).

    Without `status_of` only placeholders can be found, and every id is unjudged.
    """
    statuses: dict[str, TraceStatus] = {}
    findings: list[TraceFinding] = []
    checked = 0
    for module in modules:
        for owner_id, trace in _traces(module):
            checked += 1
            status = statuses.get(trace.requirement_id)
            if status is None:
                status = statuses[trace.requirement_id] = status_of(trace.requirement_id)
            if status == "dangling":
                findings.append(_finding(module, trace, "dangling", owner_id))
            elif status == "unknown" and _DUMMY.match(trace.requirement_id):
                findings.append(_finding(module, trace, "placeholder", owner_id))
        for trace in module.placeholders:
            checked += 1
            findings.append(_finding(module, trace, "placeholder", _owner(module, trace.line)))
    findings.sort(key=lambda f: (f.path, f.line, f.requirement_id, f.owner_id))
    unjudged = {name for name, status in statuses.items() if status == "unknown" and not _DUMMY.match(name)}
    return TraceLint(
        findings=tuple(findings[:MAX_FINDINGS]),
        more=len(findings[MAX_FINDINGS:]),
        checked=checked,
        unjudged=tuple(sorted(unjudged)),
    )


def trace_statuses(snapshot: Snapshot) -> Callable[[str], TraceStatus]:
    """By id, whether the project's documents define it; a whole graph with documents knows of every one.

    O(log n) a known id; one that no node has costs a look at all requirements.
    """
    items = [*_requirements(snapshot)]

    def status_of(requirement_id: str) -> TraceStatus:
        nodes = [snapshot.nodes[number] for number in snapshot.names.exact(requirement_id)]
        named = [node for node in nodes if node.label in _REQUIREMENTS]
        if any(node.property("status") != DANGLING for node in named):
            return "defined"
        inside = re.compile(rf"(?<![\w-]){re.escape(requirement_id)}(?![\w-])")
        if any(inside.search(node.id) or inside.search(node.name) for node in items):
            return "defined"
        # Without any document every id would dangle, and around some roots only some of them are there.
        return "dangling" if items and (named or not snapshot.is_part) else "unknown"

    return status_of


def _requirements(snapshot: Snapshot) -> Iterator[Node]:
    for label in _REQUIREMENTS:
        place = bisect_left(snapshot.nodes, NodeRef(label, ""), key=lambda node: node.ref)
        while place < len(snapshot.nodes) and snapshot.nodes[place].label == label:
            if snapshot.nodes[place].property("status") != DANGLING:
                yield snapshot.nodes[place]
            place += 1


def _traces(module: ModuleFacts) -> Iterator[tuple[str, Trace]]:
    for trace in module.traces:
        yield module.id, trace
    for item in (*module.functions, *module.classes):
        for trace in item.traces:
            yield item.id, trace


def _finding(
    module: ModuleFacts, trace: Trace, kind: Literal["dangling", "placeholder"], owner_id: str
) -> TraceFinding:
    return TraceFinding(
        path=module.path,
        line=trace.line,
        kind=kind,
        tag=trace.tag,
        requirement_id=trace.requirement_id,
        owner_id=owner_id,
    )


def _owner(module: ModuleFacts, line: int) -> str:
    around: Mapping[str, Function | Class] = {
        item.id: item
        for item in (*module.functions, *module.classes)
        if item.start_line <= line <= item.end_line
    }
    innermost = min(
        around.values(), key=lambda item: (item.end_line - item.start_line, item.id), default=None
    )
    return module.id if innermost is None else innermost.id
