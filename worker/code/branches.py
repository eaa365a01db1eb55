"""Branch points of one function by number, so that a prompt, an answer and a test can name the same one.

A branch's id is `<function id>@b<number>`, numbered in source order. It holds as long as no branch point is
added above it in the function: short enough to be repeated by whoever answers for each.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from worker.code.extractor import extract
from worker.code.facts import BranchPoint, Function, ModuleFacts
from worker.code.grammars import GRAMMAR_OF, PYTHON
from worker.code.tolerant import extract_tolerant
from worker.graph.model import Node

MAX_BRANCHES: Final = 200
"""That one answer lists; more are counted."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch point and what it is called by."""

    id: str
    number: int
    """From 1, in source order."""
    point: BranchPoint

    @property
    def label(self) -> str:
        """`b<number>`, unique in its function."""
        return f"b{self.number}"


@dataclass(frozen=True, slots=True)
class NotSupported:
    """What cannot be told, and why; never to be mistaken for "there is none"."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """The branch points of one function."""

    complexity: int
    branches: tuple[Branch, ...]
    """The first `MAX_BRANCHES`."""
    more: int
    is_partly_parsed: bool
    """Whether the function has syntax errors: what stands at them may be missing."""


def branches_of(function: Function) -> tuple[Branch, ...]:
    """Every branch point of the function, in source order."""
    return tuple(
        Branch(id=f"{function.id}@b{number}", number=number, point=point)
        for number, point in enumerate(function.branch_points, start=1)
    )


def untested_branches(branches: Sequence[Branch], executed_lines: Collection[int]) -> tuple[Branch, ...]:
    """Those of whose own lines none was executed, as line coverage has it, in source order.

    What stands on the line of its condition cannot be told apart from it and counts as executed with it.
    """
    lines = frozenset(executed_lines)
    return tuple(
        branch
        for branch in branches
        if lines.isdisjoint(range(branch.point.body_line, branch.point.end_line + 1))
    )


def read_branches_of(node: Node) -> Branches | NotSupported:
    """The branch points of a function as a graph holds it, lines as in its file. O(length of its text)."""
    function = function_of(node)
    if isinstance(function, NotSupported):
        return function
    facts, found = function
    branches = branches_of(found)
    return Branches(
        complexity=found.complexity,
        branches=branches[:MAX_BRANCHES],
        more=len(branches[MAX_BRANCHES:]),
        is_partly_parsed=facts.parse_problem is not None,
    )


def function_of(node: Node) -> tuple[ModuleFacts, Function] | NotSupported:
    """The facts of a function as a graph holds it, read from its text alone; the module is that text's.

    Ids and lines of branch points are the node's own; nothing else in the function is moved.
    """
    if node.label != "Function":
        return NotSupported(f"{node.label} {node.id} is no function")
    facts = facts_of_text(node)
    if isinstance(facts, NotSupported):
        return facts
    named = [item for item in facts.functions if item.name == node.name]
    if not named:
        return NotSupported(f"{node.id} cannot be read apart from its file")
    offset = node.start_line - 1 - _wrapping_lines(node.text)
    points = tuple(
        replace(p, line=p.line + offset, body_line=p.body_line + offset, end_line=p.end_line + offset)
        for p in named[0].branch_points
    )
    return facts, replace(named[0], id=node.id, branch_points=points)


def facts_of_text(node: Node) -> ModuleFacts | NotSupported:
    """The facts of a node's own text, read as a module of its own, lines from 1 (see `wrapped`)."""
    text = wrapped(node.text)
    if node.language == "python":
        facts = extract(node.path, text.encode("utf-8", "surrogatepass"))
        problem = facts.parse_problem
        return facts if problem is None else extract_tolerant(node.path, text, PYTHON, problem=problem)
    grammar = GRAMMAR_OF.get(node.language)
    if grammar is None:
        return NotSupported(f"no parser for {node.language or 'a file without a known language'}")
    return extract_tolerant(node.path, node.text, grammar)


def wrapped(text: str) -> str:
    """Code that stands indented, below a line that it may stand below."""
    return f"if True:\n{text}" if _wrapping_lines(text) else text


def _wrapping_lines(text: str) -> int:
    return int(text[:1] in {" ", "\t"})
