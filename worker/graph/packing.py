"""Greedy packing of a selection under an exact token budget.

In rank order each node is taken whole if it still fits, else skipped, and later smaller ones are tried. A
share of the budget is kept for the bare names of the next candidates, a file's path once above them: a name
costs some five tokens and tells the reader what else there is to ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from worker.budget.vocabulary import PACKAGED
from worker.graph.model import Node
from worker.graph.rendering import deepest_text, fenced, one_line, short_name
from worker.graph.selection import SIZE_PENALTY, Selection
from worker.graph.snapshot import Snapshot
from worker.ports import TokenCounter

NAMES_SHARE: Final = 0.06
TIGHT_TOKENS: Final = 4_000
"""With less room, lines that are all comment give way to further functions: some twelfth of all code."""
MAX_NAME_TOKENS: Final = 12
MAX_NAMES: Final = 400
MAX_TRIED: Final = 60
"""Bodies that did not fit, after which the rest is left to the names."""

NAMES_HEADING: Final = "## Related, by name only"
CHANGES_HEADING: Final = "## Recent changes"
PATTERNS_HEADING: Final = "## Similar patterns"

_MAX_LISTED: Final = 3
_MAX_LINE_CHARS: Final = 100
_ZEROS: Final = str.maketrans("123456789", "000000000")
_MAX_NAMES_MISSED: Final = 24
"""Names that did not fit, one after the other, after which no other is tried."""
_CHARS_A_TOKEN: Final = 6
"""A body with more characters than this for each token of the room is taken not to fit, and is not counted:
code has three to four. What is left out so must not depend on what was counted before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A node that is shown in full."""

    text: str
    """As it reads in a file, without the blank line that separates it from the next."""
    shown: str
    """As it reads in a prompt, below the heading of its file."""
    file_heading: str
    """The line above all sections of its file in a prompt; empty where it stands for itself."""
    tokens: int
    """In the layout that is paid for, with the line that ends it and the label that it gets, but without the
    heading of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedNode:
    """A node that is shown in full: its place in the ranking, and its section."""

    number: int
    rank: int
    score: float
    node: Node
    template: str
    section: Section


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A file, and the nodes in it that are only named."""

    path: str
    numbers: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What fits of a selection."""

    bodies: tuple[PackedNode, ...]
    names: tuple[NamedFile, ...]
    """In order of the best node of each file."""
    changes: tuple[str, ...]
    """Lines about recent commits."""
    patterns: tuple[str, ...]
    """Lines about classes of the same family."""
    skipped: int
    """Nodes better than the worst that is shown in full, left out for their size."""
    tokens: int
    """What all of it costs, part by part; a joined text has no more, in the encodings that come packaged."""


class SectionWriter(Protocol):
    """Writes the sections of one pack and says what they cost in one layout."""

    least_tokens: int
    """With less room there is no point in trying another section."""
    ending: str
    """What ends a body, counted with it."""

    def section(
        self, node: Node, *, template: str, rank: int, score: float, body: str, body_tokens: int
    ) -> Section:
        """The section of a node. `body` is fenced; `body_tokens` are its own with `ending`."""
        ...

    def file_tokens(self, file_heading: str) -> int:
        """What the heading of a file costs, once, with the line's end."""
        ...


class TextSizes:
    """Tokens of what comes again with every request, for one snapshot and encoding.

    A memo of a pure function: what is remembered changes no result. Holds a name and a few integers a node.
    """

    def __init__(self, counter: TokenCounter) -> None:
        """Count with `counter`."""
        self.counter = counter
        self.groups_digits = counter.name in PACKAGED
        """Whether numbers are cut into groups of up to three digits, each of them one token."""
        self.adds_up = counter.exact and self.groups_digits
        """Whether texts cut before a line that begins with no blank or slash have the tokens of the whole."""
        self._names: dict[int, tuple[str, int] | None] = {}
        self._bodies: dict[tuple[int, bool, bool, str], tuple[int, int | None]] = {}
        self._texts: dict[str, int] = {}

    def body(
        self,
        number: int,
        node: Node,
        *,
        keeps_docstring: bool,
        keeps_comments: bool,
        ending: str,
        limit_tokens: int,
    ) -> tuple[str, int] | None:
        """A node's fenced body and its tokens, those of what ends it included.

        None where it has none or is too long for the limit.
        """
        key = (number, keeps_docstring, keeps_comments, ending)
        chars, tokens = self._bodies.get(key, (0, None))
        if chars > limit_tokens * _CHARS_A_TOKEN or (tokens is not None and tokens > limit_tokens):
            return None
        body = deepest_text(node, keeps_docstring=keeps_docstring, keeps_comments=keeps_comments)
        if body is None:
            return None
        text = fenced(body)
        if tokens is None:
            is_hopeless = len(text) > limit_tokens * _CHARS_A_TOKEN
            tokens = None if is_hopeless else self.counter.count(text + ending)
            self._bodies[key] = (len(text), tokens)
        return None if tokens is None or tokens > limit_tokens else (text, tokens)

    def of(self, text: str) -> int:
        """Tokens of a short text that comes often: a name, a path, the beginning of a provenance line."""
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = self.counter.count(text)
        return known

    def of_figures(self, text: str) -> int:
        """Tokens of a short text that differs from others of its kind in ASCII digits alone."""
        return self.of(text.translate(_ZEROS)) if self.groups_digits else self.counter.count(text)

    def name(self, number: int, node: Node) -> tuple[str, int] | None:
        """A node's name and its tokens in a list of names, or None where a list cannot hold it."""
        if number not in self._names:
            named = None
            if node.label != "Module" and node.path and node.path.isprintable():
                name = short_name(node)
                tokens = self.counter.count(f", {name}")
                if tokens <= MAX_NAME_TOKENS + 1:
                    named = (name, tokens)
            self._names[number] = named
        return self._names[number]


def pack(
    selection: Selection,
    snapshot: Snapshot,
    writer: SectionWriter,
    *,
    budget_tokens: int,
    sizes: TextSizes,
    names_share: float = NAMES_SHARE,
) -> Packed:
    """Fill `budget_tokens`, of which `names_share` is kept for names and lists.

    Greedy in rank order. A larger budget drops a node only where a better one has come to fit, or where it
    is no longer tight and comments come back. O(nodes tried), and counting what was not counted before.
    """
    reserve = int(budget_tokens * names_share)
    room = _Room(budget_tokens - reserve)
    keeps_comments = selection.template.keeps_docstrings or budget_tokens >= TIGHT_TOKENS
    bodies, rest, skipped = _bodies(selection, snapshot, writer, room, sizes, keeps_comments=keeps_comments)
    room.left += reserve
    changes = _lines(snapshot, selection.changes, room, sizes, heading=CHANGES_HEADING, line_of=_change_line)
    patterns = _lines(
        snapshot, selection.patterns, room, sizes, heading=PATTERNS_HEADING, line_of=_pattern_line
    )
    return Packed(
        bodies=tuple(bodies),
        changes=changes,
        patterns=patterns,
        names=_names(snapshot, _by_evidence(selection, snapshot, rest), room, sizes),
        skipped=skipped,
        tokens=budget_tokens - room.left,
    )


def lists_of(packed: Packed) -> list[str]:
    """What stands below the bodies, each list with its heading; those that are empty are left out."""
    parts: list[str] = []
    if packed.changes:
        parts.append("\n".join((CHANGES_HEADING, *packed.changes)))
    if packed.patterns:
        parts.append("\n".join((PATTERNS_HEADING, *packed.patterns)))
    if packed.names:
        lines = (f"{file.path}: {', '.join(file.names)}" for file in packed.names)
        parts.append("\n".join((NAMES_HEADING, *lines)))
    return parts


@dataclass(slots=True)
class _Room:
    left: int

    def take(self, tokens: int) -> bool:
        """Spend if there is enough."""
        if tokens > self.left:
            return False
        self.left -= tokens
        return True


def _bodies(
    selection: Selection,
    snapshot: Snapshot,
    writer: SectionWriter,
    room: _Room,
    sizes: TextSizes,
    *,
    keeps_comments: bool,
) -> tuple[list[PackedNode], list[tuple[int, float]], int]:
    """The nodes that fit in full, the others with their scores, and how many better ones were skipped."""
    bodies: list[PackedNode] = []
    rest: list[tuple[int, float]] = []
    files: set[str] = set()
    misses = skipped = 0
    for rank, (number, score) in enumerate(selection.ranked):
        if room.left < writer.least_tokens or misses >= MAX_TRIED:
            rest += selection.ranked[rank : rank + MAX_NAMES]
            break
        node = snapshot.nodes[number]
        section = None
        if node.label != "Module":
            found = sizes.body(
                number,
                node,
                keeps_docstring=selection.template.keeps_docstrings,
                keeps_comments=keeps_comments,
                ending=writer.ending,
                limit_tokens=room.left,
            )
            section = found and writer.section(
                node,
                template=selection.template_of(number),
                rank=rank,
                score=score,
                body=found[0],
                body_tokens=found[1],
            )
        if section is not None:
            is_first = section.file_heading not in files
            tokens = section.tokens + (writer.file_tokens(section.file_heading) if is_first else 0)
            if room.take(tokens):
                skipped = misses
                files.add(section.file_heading)
                bodies.append(
                    PackedNode(
                        number=number,
                        rank=rank,
                        score=score,
                        node=node,
                        template=selection.template_of(number),
                        section=section,
                    )
                )
                continue
        misses += node.label != "Module"
        rest.append((number, score))
    return bodies, rest, skipped


def _by_evidence(selection: Selection, snapshot: Snapshot, rest: Sequence[tuple[int, float]]) -> list[int]:
    """The nodes in the order of what speaks for them; equals as ranked.

    A name costs the same whatever the size of its body, so what the ranking took off for that is given back.
    """
    if selection.ranking == "hop":
        return [number for number, _ in rest]
    numbers = np.array([number for number, _ in rest], dtype=np.int64)
    sizes = snapshot.documents.log_sizes[snapshot.document_of_node[numbers]]
    evidence = np.round(np.array([score for _, score in rest]) + SIZE_PENALTY * sizes, 6)
    return numbers[np.argsort(-evidence, kind="stable")].tolist()


def _names(snapshot: Snapshot, rest: Iterable[int], room: _Room, sizes: TextSizes) -> tuple[NamedFile, ...]:
    """The next candidates by file, as many as fit."""
    by_path: dict[str, list[tuple[int, str]]] = {}
    heading = sizes.of(f"{NAMES_HEADING}\n") + sizes.of("\n\n")
    if not room.take(heading):
        return ()
    missed = 0
    for _, number in zip(range(MAX_NAMES), rest, strict=False):
        node = snapshot.nodes[number]
        named = sizes.name(number, node)
        if named is None:
            continue
        name, tokens = named
        if node.path not in by_path:
            # One more than the parts have: the line's end may merge with what stands before it.
            tokens += sizes.of(f"{node.path}: \n") + 1
        if room.take(tokens):
            by_path.setdefault(node.path, []).append((number, name))
            missed = 0
            continue
        missed += 1
        if missed > _MAX_NAMES_MISSED:
            break
    if not by_path:
        room.left += heading
    return tuple(
        NamedFile(path=path, numbers=tuple(n for n, _ in named), names=tuple(name for _, name in named))
        for path, named in by_path.items()
    )


def _lines(
    snapshot: Snapshot,
    numbers: Sequence[int],
    room: _Room,
    sizes: TextSizes,
    *,
    heading: str,
    line_of: Callable[[Node], str],
) -> tuple[str, ...]:
    """At most three lines, as far as a sixth of the room allows."""
    allowed = room.left // 6
    lines: list[str] = []
    tokens = sizes.of(f"{heading}\n") + sizes.of("\n\n")
    for number in numbers[:_MAX_LISTED]:
        line = line_of(snapshot.nodes[number])
        tokens += sizes.of(f"{line}\n")
        if tokens > allowed or not room.take(tokens):
            break
        allowed -= tokens
        tokens = 0
        lines.append(line)
    return tuple(lines)


def _change_line(node: Node) -> str:
    return f"- {one_line(node.id)[:10]} {one_line(node.name)[:_MAX_LINE_CHARS]}"


def _pattern_line(node: Node) -> str:
    return f"- {one_line(node.id)[:_MAX_LINE_CHARS]}"
