"""Greedy packing of a selection under an exact token budget.

In rank order each node is taken whole if it still fits, else skipped, and later smaller ones are tried. A
share of the budget is kept for the bare names of the next candidates, a file's path once above them: a name
costs some five tokens and tells the reader what else there is to ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from worker.graph.model import Node
from worker.graph.rendering import deepest_text, fenced, one_line, short_name
from worker.graph.selection import Selected, Selection
from worker.graph.snapshot import Snapshot
from worker.ports import TokenCounter

NAMES_SHARE: Final = 0.08
MAX_NAME_TOKENS: Final = 12
MAX_NAMES: Final = 400
MAX_TRIED: Final = 300
"""Bodies looked at that did not fit, before the rest is left to the names."""
_LEAST_SECTION_TOKENS: Final = 20
_MAX_LISTED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedNode:
    """A node that is shown in full: its place in the ranking, its section and what that costs."""

    selected: Selected
    rank: int
    node: Node
    text: str
    """As the section reads, without the blank line that separates it from the next."""
    tokens: int
    """With that blank line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedNode:
    """A node that is only named."""

    selected: Selected
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What fits of a selection."""

    bodies: tuple[PackedNode, ...]
    names: tuple[tuple[str, tuple[NamedNode, ...]], ...]
    """By file, in order of the best of each, the nodes that are only named."""
    changes: tuple[str, ...]
    """Lines about recent commits."""
    patterns: tuple[str, ...]
    """Lines about classes of the same family."""
    skipped: int
    """Nodes better than the worst that is shown in full, left out for their size."""
    tokens: int
    """About what all of it costs, the frame around it included: never less than the joined text has."""


class SectionWriter(Protocol):
    """How a node's section reads, and what it costs."""

    def __call__(
        self, selected: Selected, rank: int, node: Node, *, body: str, body_tokens: int
    ) -> tuple[str, int]:
        """The section's text, and its tokens with the blank line that separates it from the next.

        `body` is fenced; `body_tokens` are its own with that blank line.
        """
        ...


class TextSizes:
    """Tokens of what comes again with every request, for one snapshot and encoding.

    A memo of a pure function: what is remembered changes no result. Holds a few integers a node.
    """

    def __init__(self, counter: TokenCounter) -> None:
        """Count with `counter`."""
        self.counter = counter
        self._bodies: dict[tuple[int, bool], int] = {}
        self._names: dict[int, int] = {}

    def body(
        self, number: int, node: Node, *, keeps_docstring: bool, limit_tokens: int
    ) -> tuple[str, int] | None:
        """A node's fenced body and its tokens, or None where it has none or takes more than the limit.

        A body above the limit is counted no further than to it.
        """
        key = (number, keeps_docstring)
        tokens = self._bodies.get(key)
        if tokens is not None and tokens > limit_tokens:
            return None
        body = deepest_text(node, keeps_docstring=keeps_docstring)
        if body is None:
            return None
        text = fenced(body)
        if tokens is None:
            tokens = self.counter.count_up_to(f"{text}\n\n", limit_tokens)
            if tokens > limit_tokens:
                return None
            self._bodies[key] = tokens
        return text, tokens

    def name(self, number: int, name: str) -> int:
        """Tokens of a node's bare name in a list."""
        known = self._names.get(number)
        if known is None:
            known = self._names[number] = self.counter.count(f", {name}")
        return known


def pack(
    selection: Selection,
    snapshot: Snapshot,
    write: SectionWriter,
    *,
    budget_tokens: int,
    sizes: TextSizes,
    names_share: float = NAMES_SHARE,
) -> Packed:
    """Fill `budget_tokens`, of which `names_share` is kept for names and lists.

    Greedy in rank order. A larger budget drops a node only where a better one has come to fit. O(nodes
    tried), and counting what was not counted before.
    """
    reserve = int(budget_tokens * names_share)
    room = _Room(max(0, budget_tokens - reserve))
    bodies: list[PackedNode] = []
    rest: list[Selected] = []
    misses = skipped = 0
    keeps_docstring = selection.template.keeps_docstrings
    for rank, item in enumerate(selection.selected):
        node = snapshot.nodes[item.number]
        if room.left < _LEAST_SECTION_TOKENS or misses >= MAX_TRIED or node.label == "Module":
            rest.append(item)
            continue
        found = sizes.body(item.number, node, keeps_docstring=keeps_docstring, limit_tokens=room.left)
        if found is not None:
            text, tokens = write(item, rank, node, body=found[0], body_tokens=found[1])
            if room.take(tokens):
                skipped = misses
                bodies.append(PackedNode(selected=item, rank=rank, node=node, text=text, tokens=tokens))
                continue
        misses += 1
        rest.append(item)
    room.left += min(reserve, budget_tokens)
    changes = _lines(snapshot, selection.changes, room, sizes, _change_line)
    patterns = _lines(snapshot, selection.patterns, room, sizes, _pattern_line)
    names = _names(snapshot, rest, room, sizes)
    return Packed(
        bodies=tuple(bodies),
        names=names,
        changes=changes,
        patterns=patterns,
        skipped=skipped,
        tokens=budget_tokens - room.left,
    )


@dataclass(slots=True)
class _Room:
    left: int

    def take(self, tokens: int) -> bool:
        """Spend if there is enough."""
        if tokens > self.left:
            return False
        self.left -= tokens
        return True


def _names(
    snapshot: Snapshot, rest: Iterable[Selected], room: _Room, sizes: TextSizes
) -> tuple[tuple[str, tuple[NamedNode, ...]], ...]:
    """The next candidates by file, as many as fit."""
    by_path: dict[str, list[NamedNode]] = {}
    heading = sizes.counter.count(f"{NAMES_HEADING}\n\n")
    if not room.take(heading):
        return ()
    for _, item in zip(range(MAX_NAMES), rest, strict=False):
        node = snapshot.nodes[item.number]
        if node.label == "Module" or not is_plain(node.path):
            continue
        name = short_name(node)
        tokens = sizes.name(item.number, name)
        if tokens > MAX_NAME_TOKENS + 1:
            continue
        path_tokens = 0
        if node.path not in by_path:
            path_tokens = sizes.counter.count(f"{node.path}: \n") + 1
        if not room.take(tokens + path_tokens):
            if room.left < _LEAST_NAME_TOKENS:
                break
            continue
        by_path.setdefault(node.path, []).append(NamedNode(selected=item, name=name))
    if not by_path:
        room.left += heading
    return tuple((path, tuple(named)) for path, named in by_path.items())


NAMES_HEADING: Final = "## Related, by name only"
CHANGES_HEADING: Final = "## Recent changes"
PATTERNS_HEADING: Final = "## Similar patterns"
_LEAST_NAME_TOKENS: Final = 3
_MAX_LINE_CHARS: Final = 100


def is_plain(path: str) -> bool:
    """Whether a path stands on one line as it is."""
    return bool(path) and path.isprintable()


def names_text(packed: Packed) -> str:
    """The lists below the bodies; empty where there are none."""
    parts: list[str] = []
    if packed.changes:
        parts.append("\n".join((CHANGES_HEADING, *packed.changes)))
    if packed.patterns:
        parts.append("\n".join((PATTERNS_HEADING, *packed.patterns)))
    if packed.names:
        lines = (f"{path}: {', '.join(n.name for n in named)}" for path, named in packed.names)
        parts.append("\n".join((NAMES_HEADING, *lines)))
    return "\n\n".join(parts)


def _lines(
    snapshot: Snapshot,
    numbers: Sequence[int],
    room: _Room,
    sizes: TextSizes,
    line_of: Callable[[Node], str],
) -> tuple[str, ...]:
    """At most three lines, none of them long, as far as a third of the room allows."""
    room_for_lines = room.left // 3
    lines: list[str] = []
    heading = _HEADING_TOKENS
    for number in numbers[:_MAX_LISTED]:
        line = line_of(snapshot.nodes[number])
        tokens = sizes.counter.count(f"{line}\n") + heading
        if tokens > room_for_lines or not room.take(tokens):
            break
        room_for_lines -= tokens
        heading = 0
        lines.append(line)
    return tuple(lines)


_HEADING_TOKENS: Final = 8


def _change_line(node: Node) -> str:
    return f"- {one_line(node.id)[:10]} {one_line(node.name)[:_MAX_LINE_CHARS]}"


def _pattern_line(node: Node) -> str:
    return f"- {one_line(node.id)[:_MAX_LINE_CHARS]}"
