"""Writes a selection as a pack file, exactly as `worker.graph.pack_file` reads it, within an exact budget.

The budget is that of the whole file, or of what a prompt shows of it, as the head says. It is counted part by
part: the packaged encodings split where two parts meet, so the sum is what the joined text has. Under any
other counter the joined text is counted too; should it have more than its parts, the worst sections give way.

The front matter says where a cap left something out: `mentions: partly` in the frame where some were not
looked up, or not in all their readings; `truncated`, how many edges and nodes were not walked;
`graph: partly` where the whole was too large to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from worker.graph.front_matter import Frame, Scalar, front_matter
from worker.graph.packing import Packed, PackedNode, SectionWriter, TextSizes, lists_of, pack
from worker.graph.rendering import one_line
from worker.graph.sections import (
    LINE_END,
    SEPARATOR,
    FileSections,
    Layout,
    MaskedSections,
    PromptSections,
    by_file,
)
from worker.graph.selection import EmptyReason, Selection
from worker.graph.snapshot import Snapshot

PACK_VERSION: Final = "1"
MAX_FRAME_MENTIONS: Final = 3
SNAPSHOT_CHARS: Final = 16
"""Of the snapshot's id, as many as of the text's digest: the whole would take as much as a short function."""
NOTES_HEADING: Final = "## Not in this pack"
_MAX_MENTION_CHARS: Final = 60
_FIXED_POINT_ROUNDS: Final = 4

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
    layout: Layout = "file"
    """What the budget is spent on."""
    label_tokens: int = 0
    """What a prompt adds to a section, so that it can be cited; a file adds nothing."""
    notes: tuple[str, ...] = ()
    """What a file says that it lacks, a line each, below its sections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPack:
    """A pack file, and what it spent: the tokens of the whole text, or of what a prompt shows of it."""

    text: str
    spent_tokens: int
    packed: Packed | None
    """None where nothing was selected."""


def write_pack(
    selection: Selection,
    snapshot: Snapshot,
    head: PackHead,
    *,
    sizes: TextSizes,
    mask: Callable[[str], str] | None = None,
) -> WrittenPack:
    """The pack of a selection. Never more tokens than the budget, unless even the empty pack has more.

    What it shows of the project's text goes through `mask` first, for a file that somebody reads as it is.
    Same selection, snapshot, head and mask, same bytes.
    """
    if selection.reason is not None:
        return write_empty_pack(
            head, reason=selection.reason, sizes=sizes, selection=selection, is_part=snapshot.is_part
        )
    front = _FrontMatter.of(head, selection, is_part=snapshot.is_part)
    notes = [_notes(head)] if head.notes and head.layout == "file" else []
    if head.layout == "prompt":
        room, writer = head.budget_tokens, PromptSections(sizes, label_tokens=head.label_tokens)
    else:
        room, writer = head.budget_tokens - front.tokens(head.budget_tokens, sizes), FileSections(sizes)
        room -= sum(sizes.counter.count(note + SEPARATOR) for note in notes)
    shown = writer if mask is None else MaskedSections(writer, mask, sizes)
    packed = pack(selection, snapshot, shown, budget_tokens=max(0, room), sizes=sizes)
    bodies, lists = list(packed.bodies), [*notes, *lists_of(packed)]
    if mask is not None:
        lists = [mask(text) for text in lists]
    while True:
        body = _file_body(bodies, lists)
        if head.layout == "prompt":
            spent = _prompt_tokens(bodies, lists, writer, sizes, label_tokens=head.label_tokens)
            text = front.text(spent) + body
        else:
            body_tokens = _file_tokens(bodies, lists, sizes)
            text, spent = _spent(front, body, head.budget_tokens, sizes, body_tokens=body_tokens)
        if spent <= head.budget_tokens or not (bodies or lists):
            return WrittenPack(text=text, spent_tokens=spent, packed=packed)
        (lists or bodies).pop()


def write_empty_pack(
    head: PackHead,
    *,
    reason: EmptyReason,
    sizes: TextSizes,
    selection: Selection | None = None,
    is_part: bool = False,
) -> WrittenPack:
    """A pack without sections that says why it has none. What does not fit of that is left out."""
    front = _FrontMatter.of(head, selection, reason=reason, is_part=is_part)
    sentence = f"{_REASONS[reason]}\n"
    whole = f"{sentence}\n{_notes(head)}\n" if head.notes else sentence
    for body in (whole, sentence, ""):
        body_tokens = sizes.counter.count(body)
        if head.layout == "prompt":
            text, spent = front.text(body_tokens) + body, body_tokens
        else:
            text, spent = _spent(front, body, head.budget_tokens, sizes, body_tokens=body_tokens)
        if spent <= head.budget_tokens:
            break
    return WrittenPack(text=text, spent_tokens=spent, packed=None)


def _notes(head: PackHead) -> str:
    return "\n".join((NOTES_HEADING, *(f"- {one_line(note)}" for note in head.notes)))


def _file_body(bodies: Sequence[PackedNode], lists: Sequence[str]) -> str:
    sections = [section.text for section in by_file([item.section for item in bodies])]
    parts = [*sections, *lists]
    return SEPARATOR.join(parts) + "\n" if parts else ""


def _prompt_body(bodies: Sequence[PackedNode], lists: Sequence[str]) -> str:
    lines: list[str] = []
    heading = ""
    for section in by_file([item.section for item in bodies]):
        if section.file_heading and section.file_heading != heading:
            lines.append(section.file_heading)
        heading = section.file_heading
        lines.append(section.shown)
    return "".join(line + LINE_END for line in (*lines, *lists))


def _file_tokens(bodies: Sequence[PackedNode], lists: Sequence[str], sizes: TextSizes) -> int:
    """Tokens of `_file_body`."""
    if not sizes.adds_up or not (bodies or lists):
        return sizes.counter.count(_file_body(bodies, lists))
    # A section ends with a fence and a blank line and begins with a "#", so encodings split between them.
    sections = by_file([item.section for item in bodies])
    last = SEPARATOR.join(lists) or sections.pop().text
    return sum(section.tokens for section in sections) + sizes.counter.count(f"{last}\n")


def _prompt_tokens(
    bodies: Sequence[PackedNode],
    lists: Sequence[str],
    writer: SectionWriter,
    sizes: TextSizes,
    *,
    label_tokens: int,
) -> int:
    """Tokens of `_prompt_body`, and of the labels that its sections get."""
    if not sizes.adds_up:
        return sizes.counter.count(_prompt_body(bodies, lists)) + label_tokens * len(bodies)
    headings = {item.section.file_heading for item in bodies}
    return (
        sum(item.section.tokens for item in bodies)
        + sum(map(writer.file_tokens, sorted(headings)))
        + sizes.counter.count("".join(part + LINE_END for part in lists))
    )


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
        cls,
        head: PackHead,
        selection: Selection | None,
        *,
        reason: EmptyReason | None = None,
        is_part: bool = False,
    ) -> _FrontMatter:
        fields: dict[str, Scalar | Frame] = {"pack_version": PACK_VERSION, "project": head.project_id}
        if selection is not None:
            fields |= {
                "frame": _frame(head, selection),
                "snapshot": selection.snapshot_id[:SNAPSHOT_CHARS],
                "ranking": selection.ranking,
                "relevance": selection.relevance,
            }
        else:
            fields["frame"] = {"requester": head.requester}
        if is_part:
            fields["graph"] = "partly"
        if selection is not None and selection.truncated:
            fields["truncated"] = selection.truncated
        if head.layout != "file":
            fields["layout"] = head.layout
        fields |= {"encoding": head.encoding, "budget": head.budget_tokens, "spent": 0}
        if reason is not None:
            fields["reason"] = reason
        # The last one: whatever a value above holds, below it there is at most the reason.
        before, _, after = f"---\n{front_matter(fields)}---\n".rpartition("\nspent: 0\n")
        return cls(before, after)


def _frame(head: PackHead, selection: Selection) -> Frame:
    frame: dict[str, str | list[str]] = {
        "task_type": selection.template.name,
        "requester": head.requester,
        "text": selection.links.text_digest,
        "entities": _mentions(selection),
    }
    return {**frame, "mentions": "partly"} if selection.links.is_truncated else frame


def _mentions(selection: Selection) -> list[str]:
    """The strongest mentions, as written."""
    strongest = sorted(selection.entities, key=lambda link: (-link.strength, link.mention))
    return [one_line(link.mention)[:_MAX_MENTION_CHARS] for link in strongest[:MAX_FRAME_MENTIONS]]
