"""What a step waits for: ids in its text looked up among the steps, and cycles, which hold nobody up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from worker.plans.step_ids import listed_ids

_SURE: Final = r"depends?\s+on|depends|dependent\s+on|blocked\s+by|dependenc(?:y|ies)|waits?\s+for"
_PERHAPS: Final = r"after|requires?|needs?"
_KEYWORDS: Final = ("depend", "block", "wait", "after", "requir", "need")
"""One of them stands wherever the patterns below match, and is found much faster."""
_BRACKETED: Final = re.compile(
    rf"[(\[](?:[^()\[\]\n]{{0,120}}[;,]\s*)?(?:(?P<sure>{_SURE})|(?:{_PERHAPS}))\b\s*[:：]?\s*(?P<ids>[^()\[\]\n]{{1,300}})[)\]]",
    re.IGNORECASE,
)
_IN_PROSE: Final = re.compile(
    rf"(?<![\w-])(?:{_SURE}|{_PERHAPS})\b\s*[:：]?\s+(?P<ids>(?:(?:and|task|tasks|step|steps|phase)\s+|[#\w.,&+–-]*\d[\w.]*[,;]?\s*){{1,40}})",
    re.IGNORECASE,
)
_NONE: Final = re.compile(r"\W*(?:none|n/a|nothing|no dependencies|-|—)?\W*\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Wanted:
    """An id that a step depends on, as written."""

    id: str
    is_sure: bool
    """Whether it is a dependency even where no step has that id."""
    written: str = ""
    """How the file names it, where that is not the id itself."""


def wanted_in_title(text: str) -> Iterator[Wanted]:
    """The dependencies that a task's own line names: `(depends on T010)`, `(after 2.1)`, `requires T3`."""
    text = text[:4_000]
    lowered = text.lower()
    if not any(word in lowered for word in _KEYWORDS):
        return
    for match in _BRACKETED.finditer(text):
        for literal in listed_ids(match["ids"]).ids:
            yield Wanted(literal, match["sure"] is not None)
    for match in _IN_PROSE.finditer(_BRACKETED.sub(" ", text)):
        for literal in listed_ids(match["ids"]).ids:
            yield Wanted(literal, is_sure=False)


def wanted_in_field(text: str, unexpanded: list[str]) -> Iterator[Wanted]:
    """The dependencies that a field, or a column, names. Adds the ranges that do not expand."""
    if _NONE.match(text):
        return
    listed = listed_ids(text)
    unexpanded += listed.unexpanded
    for literal in listed.ids:
        yield Wanted(literal, is_sure=True)


class StepNames:
    """Which step an id means: the first that has it; else the one whose id it is in part or in other case."""

    def __init__(self, printed: Sequence[str | None]) -> None:
        self._exact: dict[str, int] = {}
        self._loose: dict[str, int] = {}
        for place, literal in enumerate(printed):
            if literal is not None:
                self._exact.setdefault(literal, place)
                self._loose.setdefault(literal.casefold(), place)
        self._words = {literal.rpartition(" ")[0].casefold() for literal in self._exact}
        numbers: dict[str, set[int]] = {}
        for literal, place in self._exact.items():
            number = literal.rpartition(" ")[2] if " " in literal else ""
            if number:
                numbers.setdefault(number.casefold(), set()).add(place)
        for number, places in numbers.items():
            if len(places) == 1:
                self._loose.setdefault(number, min(places))

    def find(self, literal: str) -> int | None:
        """The step's place; None where no step answers, or several do."""
        literal = literal.removeprefix("#")
        found = self._exact.get(literal)
        if found is None:
            found = self._loose.get(literal.casefold())
        word, _, number = literal.rpartition(" ")
        return self.find(number) if found is None and word and not self._has(word) else found

    def _has(self, word: str) -> bool:
        """Whether ids of this file begin with the word, so that a number alone means other steps."""
        return word.casefold() in self._words


def in_cycles(edges: Mapping[int, Sequence[int]]) -> Mapping[int, int]:
    """Of each node that lies on a cycle, the number of its group; all nodes of a group reach each other.

    Tarjan's algorithm, without recursion. O(nodes + edges).
    """
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    groups: dict[int, int] = {}
    for root in edges:
        if root in order:
            continue
        work: list[tuple[int, Iterator[int]]] = [(root, iter(edges.get(root, ())))]
        order[root] = lowest[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            target = next(targets, None)
            if target is None:
                work.pop()
                if work:
                    above = work[-1][0]
                    lowest[above] = min(lowest[above], lowest[node])
                if lowest[node] == order[node]:
                    _close_group(node, stack, on_stack, groups, edges)
            elif target not in order:
                order[target] = lowest[target] = len(order)
                stack.append(target)
                on_stack.add(target)
                work.append((target, iter(edges.get(target, ()))))
            elif target in on_stack:
                lowest[node] = min(lowest[node], order[target])
    return groups


def _close_group(
    root: int,
    stack: list[int],
    on_stack: set[int],
    groups: dict[int, int],
    edges: Mapping[int, Sequence[int]],
) -> None:
    members: list[int] = []
    while True:
        node = stack.pop()
        on_stack.discard(node)
        members.append(node)
        if node == root:
            break
    if len(members) > 1 or root in edges.get(root, ()):
        groups.update(dict.fromkeys(members, root))
