"""Writes a selection as a pack file, exactly as `worker.graph.pack_file` reads it, within an exact budget.

The budget is that of the whole text, front matter and provenance lines included. It is counted part by part:
the packaged encodings split where two parts meet, so the sum is what the joined text has. Under any other
counter the joined text is counted too; should it have more than its parts, sections give way from the end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import yaml

from worker.graph.model import Node
from worker.graph.packing import Packed, PackedNode, TextSizes, lists_text, pack
from worker.graph.rendering import one_line, short_name
from worker.graph.selection import EmptyReason, Selection
from worker.graph.snapshot import Snapshot

PACK_VERSION: Final = "1"
MAX_FRAME_MENTIONS: Final = 3
SNAPSHOT_CHARS: Final = 16
"""Of the snapshot's id, as many as of the text's digest: the whole would take as much as a short function."""
_MAX_MENTION_CHARS: Final = 60
_SEPARATOR: Final = "\n\n"
_ID: Final = re.compile(r"[^\x00-\x20\x7f](?:[^\x00-\x1f\x7f]{0,1022}[^\x00-\x20\x7f])?")
_FIXED_POINT_ROUNDS: Final = 4
_USUAL_FIGURES_TOKENS: Final = 27

_REASONS: Final[Mapping[EmptyReason, str]] = {
    "graph_unavailable": "The graph could not be read, so nothing was selected.",
    "not_indexed": "The project has not been indexed, so nothing was selected.",
    "nothing_found": "Nothing in the graph bears on the request.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackHead:
    """What the front matter says beside the selection."""

    project_id: str
    requester: str
    encoding: str
    budget_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPack:
    """A pack file, and what it spent: the tokens of the whole text."""

    text: str
    spent_tokens: int
    packed: Packed | None
    """None where nothing was selected."""


def write_pack(selection: Selection, snapshot: Snapshot, head: PackHead, *, sizes: TextSizes) -> WrittenPack:
    """The pack of a selection. Never more tokens than the budget, unless even the empty pack has more.

    Same selection, snapshot and head, same bytes.
    """
    if selection.reason is not None:
        return write_empty_pack(head, reason=selection.reason, sizes=sizes, selection=selection)
    front = _FrontMatter.of(head, selection)
    room = max(0, head.budget_tokens - front.tokens(head.budget_tokens, sizes))
    packed = pack(selection, snapshot, SectionLines(sizes), budget_tokens=room, sizes=sizes)
    bodies, lists = list(packed.bodies), lists_text(packed)
    while True:
        body_tokens = _body_tokens(bodies, lists, sizes)
        text, spent = _spent(front, _join(bodies, lists), head.budget_tokens, sizes, body_tokens=body_tokens)
        if spent <= head.budget_tokens or not (bodies or lists):
            return WrittenPack(text=text, spent_tokens=spent, packed=packed)
        if lists:
            lists = ""
        else:
            bodies.pop()


def write_empty_pack(
    head: PackHead, *, reason: EmptyReason, sizes: TextSizes, selection: Selection | None = None
) -> WrittenPack:
    """A pack without sections that says why it has none. The sentence is left out where it does not fit."""
    front = _FrontMatter.of(head, selection, reason=reason)
    for body in (f"{_REASONS[reason]}\n", ""):
        body_tokens = sizes.counter.count(body)
        text, spent = _spent(front, body, head.budget_tokens, sizes, body_tokens=body_tokens)
        if spent <= head.budget_tokens:
            break
    return WrittenPack(text=text, spent_tokens=spent, packed=None)


class SectionLines:
    """The section of a pack file: heading, provenance line, fenced body. For one pack."""

    def __init__(self, sizes: TextSizes) -> None:
        """Count with `sizes`."""
        self._sizes = sizes
        self._figures_tokens = _USUAL_FIGURES_TOKENS

    def __call__(
        self, number: int, node: Node, *, template: str, rank: int, score: float, body: str, body_tokens: int
    ) -> tuple[str, int]:
        """The section, whose provenance line says what the section itself costs, that line included."""
        del number
        heading = f"## {node.label} {short_name(node)}\n"
        if not is_citable(node.id):
            # It would not read back as provenance; the code is shown all the same.
            return heading + body, self._sizes.of(heading) + body_tokens
        start = f"{heading}<!-- node: {node.id}"
        # Encodings split before a blank between two other characters, so the two parts add up.
        fixed_tokens = self._sizes.of(start) + body_tokens
        tokens = fixed_tokens + self._figures_tokens
        figures = ""
        for _ in range(_FIXED_POINT_ROUNDS):
            # The number stands in the text that it counts.
            figures = f" | template: {template} | rank: {rank} | score: {score:.6f} | tokens: {tokens} -->\n"
            self._figures_tokens = self._sizes.of_figures(figures)
            if fixed_tokens + self._figures_tokens == tokens:
                break
            tokens = fixed_tokens + self._figures_tokens
        return f"{start}{figures}{body}", tokens


def is_citable(node_id: str) -> bool:
    """Whether a provenance line can hold the id."""
    return _ID.fullmatch(node_id) is not None and "-->" not in node_id


def _join(bodies: list[PackedNode], lists: str) -> str:
    parts = [item.text for item in bodies]
    if lists:
        parts.append(lists)
    return _SEPARATOR.join(parts) + "\n" if parts else ""


def _body_tokens(bodies: list[PackedNode], lists: str, sizes: TextSizes) -> int:
    """Tokens of what `_join` gives back."""
    if not sizes.adds_up or not (bodies or lists):
        return sizes.counter.count(_join(bodies, lists))
    # A section ends with a fence and a blank line and begins with a "#", so encodings split between them.
    last = lists or bodies[-1].text
    before = bodies if lists else bodies[:-1]
    return sum(item.tokens for item in before) + sizes.counter.count(f"{last}\n")


def _spent(
    front: _FrontMatter, body: str, budget_tokens: int, sizes: TextSizes, *, body_tokens: int
) -> tuple[str, int]:
    """The whole text, whose front matter says what the whole text costs; and that number."""
    spent = budget_tokens
    for _ in range(_FIXED_POINT_ROUNDS):
        # Encodings split between the front matter and what follows, which begins with a "#" or a letter.
        counted = front.tokens(spent, sizes) + body_tokens
        if counted == spent:
            break
        spent = counted
    text = front.text(spent) + body
    if sizes.adds_up:
        return text, spent
    for _ in range(_FIXED_POINT_ROUNDS):
        text = front.text(spent) + body
        counted = sizes.counter.count(text)
        if counted == spent:
            break
        spent = counted
    return text, spent


@dataclass(frozen=True, slots=True)
class _FrontMatter:
    """The head of a pack file, around the number that says what the whole file costs."""

    before: str
    after: str
    _counted: dict[int, int] = field(default_factory=dict[int, int])
    """Its tokens by the digits of that number."""

    def tokens(self, spent_tokens: int, sizes: TextSizes) -> int:
        """Tokens of `text`."""
        if not sizes.groups_digits:
            return sizes.counter.count(self.text(spent_tokens))
        digits = len(str(spent_tokens))
        if digits not in self._counted:
            self._counted[digits] = sizes.counter.count(self.text(spent_tokens))
        return self._counted[digits]

    def text(self, spent_tokens: int) -> str:
        return f"{self.before}\nspent: {spent_tokens}\n{self.after}"

    @classmethod
    def of(
        cls, head: PackHead, selection: Selection | None, *, reason: EmptyReason | None = None
    ) -> _FrontMatter:
        fields: dict[str, object] = {"pack_version": PACK_VERSION, "project": head.project_id}
        if selection is not None:
            fields |= {
                "frame": {
                    "task_type": selection.template.name,
                    "requester": head.requester,
                    "text": selection.links.text_digest,
                    "entities": _mentions(selection),
                },
                "snapshot": selection.snapshot_id[:SNAPSHOT_CHARS],
                "ranking": selection.ranking,
                "relevance": selection.relevance,
            }
        else:
            fields["frame"] = {"requester": head.requester}
        fields |= {"encoding": head.encoding, "budget": head.budget_tokens, "spent": 0}
        if reason is not None:
            fields["reason"] = reason
        dump = cast("Any", yaml.dump)  # pyright: ignore[reportUnknownMemberType]  # PyYAML has no types
        written: str = dump(
            fields,
            Dumper=yaml.CSafeDumper,
            sort_keys=False,
            allow_unicode=True,
            width=10_000,
            default_flow_style=None,
        )
        # The last one: whatever a value above holds, below it there is at most the reason.
        before, _, after = f"---\n{written}---\n".rpartition("\nspent: 0\n")
        return cls(before, after)


def _mentions(selection: Selection) -> list[str]:
    """The strongest mentions, as written."""
    strongest = sorted(selection.entities, key=lambda link: (-link.strength, link.mention))
    return [one_line(link.mention)[:_MAX_MENTION_CHARS] for link in strongest[:MAX_FRAME_MENTIONS]]
