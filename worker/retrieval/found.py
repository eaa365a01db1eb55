"""What a tool finds, and how that becomes a content within its budget. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from schemas.tools import MAX_NEAR, ToolErrorCode
from worker.budget.trimming import trim_to_budget
from worker.graph.model import Node
from worker.graph.rendering import deepest_text, fenced, label_of, one_line
from worker.ports import TokenCounter

MAX_CONTENT_CHARS: Final = 400_000
"""A reply is one record, and JSON may spell a character with several bytes."""
MAX_RECEIPT_NODES: Final = 200
_CHARS_A_TOKEN: Final = 16
"""More than any text of code or prose has; what lies beyond is not even looked at."""

Mask = Callable[[str], tuple[str, int]]
"""The text without its credentials, and how many there were."""


class ToolFailed(Exception):
    """The call cannot be served as it is; told to the caller as the result's error."""

    def __init__(self, code: ToolErrorCode, message: str, *, near: tuple[str, ...] = ()) -> None:
        """`near` are ids that may have been meant, the nearest first."""
        super().__init__(message)
        self.code: ToolErrorCode = code
        self.message = message
        self.near = near[:MAX_NEAR]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a content, and the node that it shows."""

    text: str
    node_id: str | None = None
    is_line: bool = False
    """Whether it follows another line without a blank one between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a tool found, the most wanted first."""

    pieces: tuple[Piece, ...]
    is_capped: bool = False
    """Whether a cap left something out already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A content that fits, and what it shows."""

    content: str
    tokens: int
    is_truncated: bool
    nodes: tuple[str, ...]
    texts: tuple[str, ...]
    """Of the nodes, those that more than a line was shown of."""
    masked: int


def write(found: Found, *, budget_tokens: int, counter: TokenCounter, mask: Mask) -> Written:
    """The pieces joined, as far as they fit: at most `budget_tokens`, cut as every text of the project is.

    A node counts as shown where more of its piece than the heading's line is left. Cost: one tokenisation of
    the result. Raises ToolFailed, `budget_too_small`, where not even the beginning fits.
    """
    limit = min(MAX_CONTENT_CHARS, _CHARS_A_TOKEN * budget_tokens)
    text, places, masked, is_whole = _joined(found.pieces, limit, mask)
    content = trim_to_budget(text, budget_tokens, counter)
    if text and not content:
        raise ToolFailed("budget_too_small", f"nothing fits into {budget_tokens} tokens")
    shown = [(piece, piece.node_id) for start, piece in places if start < len(content) and piece.node_id]
    return Written(
        content=content,
        tokens=counter.count(content),
        is_truncated=found.is_capped or not is_whole or content != text,
        nodes=tuple(dict.fromkeys([node for _, node in shown])),
        texts=tuple(dict.fromkeys([node for piece, node in shown if not piece.is_line])),
        masked=masked,
    )


def _joined(
    pieces: tuple[Piece, ...], limit_chars: int, mask: Mask
) -> tuple[str, list[tuple[int, Piece]], int, bool]:
    """Text of about `limit_chars`, and what is known of it.

    Where each node's piece goes on behind its first line, how many values were masked, and whether it is all.
    """
    texts: list[str] = []
    places: list[tuple[int, Piece]] = []
    length = masked = joined = 0
    previous: Piece | None = None
    for run in _runs(pieces, limit_chars):
        if length > limit_chars:
            break
        shown, count = _masked(run, limit_chars, mask)
        for piece, text in zip(run, shown, strict=True):
            is_next_line = piece.is_line and previous is not None and previous.is_line
            gap = "\n" if is_next_line else "\n\n" if texts else ""
            texts += (gap, text)
            previous = piece
            if piece.node_id is not None:
                places.append((length + len(gap) + text.find("\n") + 1, piece))
            length += len(gap) + len(text)
        masked += count
        joined += len(run)
    return "".join(texts)[:limit_chars], places, masked, joined == len(pieces) and length <= limit_chars


def _runs(pieces: Iterable[Piece], limit_chars: int) -> Iterator[tuple[Piece, ...]]:
    """Lines that follow one another together, up to about so many characters; all else for itself."""
    for is_line, group in groupby(pieces, key=lambda piece: piece.is_line):
        run: list[Piece] = []
        chars = 0
        for piece in group:
            run.append(piece)
            chars += len(piece.text)
            if not is_line or chars > limit_chars:
                yield tuple(run)
                run, chars = [], 0
        if run:
            yield tuple(run)


def _masked(run: Sequence[Piece], limit_chars: int, mask: Mask) -> tuple[list[str], int]:
    """The texts of the run without their credentials, and how many those were."""
    # Cut before it is masked: a file may be huge.
    texts = [piece.text[: limit_chars + 1] for piece in run]
    if len(run) > 1 and not any("\n" in text for text in texts):
        # Hundreds of lines take a third of the time together. A line break stays where it is, mostly.
        text, count = mask("\n".join(texts))
        lines = text.split("\n")
        if len(lines) == len(texts):
            return lines, count
    shown = [mask(text) for text in texts]
    return [text for text, _ in shown], sum(count for _, count in shown)


# --- Pieces ----------------------------------------------------------------------------------------------


def heading(node: Node, note: str = "") -> str:
    """One line that names the node, where it stands, and what the note says of it."""
    place = f" ({one_line(node.path)}:{node.start_line})" if node.path and node.start_line else ""
    name = label_of(node) if node.label in {"Function", "Class"} else f"{node.label} {one_line(node.id)}"
    kind = f"{node.label} " if node.label in {"Function", "Class"} else ""
    return f"## {kind}{name}{place}{f' · {note}' if note else ''}"


def source_piece(node: Node, note: str = "") -> Piece:
    """The node's own text below its heading."""
    deepest = deepest_text(node, keeps_docstring=True)
    title = heading(node, note)
    return Piece(text=title if deepest is None else f"{title}\n{fenced(deepest)}", node_id=node.id)


def line_piece(node: Node, lead: str) -> Piece:
    """One line: what leads to the node, its id, and its signature where it has one."""
    signature = f" `{one_line(node.signature)}`" if node.signature else ""
    title = f": {one_line(node.name)}" if node.label in _TITLED and node.name not in {"", node.id} else ""
    return Piece(
        text=f"- {lead}{node.label} {one_line(node.id)}{title}{signature}", node_id=node.id, is_line=True
    )


def unique(pieces: Iterator[Piece], limit: int) -> tuple[tuple[Piece, ...], bool]:
    """The first `limit` pieces, and whether there are more."""
    taken: list[Piece] = []
    for piece in pieces:
        if len(taken) == limit:
            return tuple(taken), True
        taken.append(piece)
    return tuple(taken), False


_TITLED: Final = frozenset({"Spec", "Requirement", "RequirementItem", "Decision"})
