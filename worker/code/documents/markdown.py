"""Markdown to a flat list of blocks with their lines: headings, paragraphs, list items, table rows, fences.

The tree is markdown-it's. Two of its rules are replaced, because plans and specifications are written by
people in a hurry: a fence, or a comment, that is open at the end of the file hides nothing (one stray line
would swallow all that follows), and HTML other than comments is text, so that `<details>` hides nothing
either. Link reference definitions are text as well.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, fence
from markdown_it.token import Token

from worker.code.documents.results import Note

BlockKind = Literal["heading", "paragraph", "item", "row", "fence"]

# A list in a list takes two levels; what nests deeper is not read.
_MAX_NESTING: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block, its inline markup as written, comments taken out. Lines count from 1, both ends included."""

    kind: BlockKind
    text: str
    start: int
    end: int
    level: int = 0
    """Of a heading 1 to 6; of all else how many lists it stands in, an item not counting its own."""
    marker: str = ""
    """Of an item of an ordered list its number as printed; of a fence its info string."""
    is_quoted: bool = False
    cells: tuple[str, ...] = ()
    header: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Markdown:
    """A file's lines and blocks. `lines[n - 1]` is line n."""

    lines: Sequence[str]
    blocks: Sequence[Block]
    front_matter: str = ""
    body_start: int = 1
    """The line after the front matter."""
    notes: tuple[Note, ...] = ()
    _section_ends: dict[int, int] = field(default_factory=dict[int, int], repr=False, compare=False)

    def section(self, index: int) -> range:
        """Indices of the blocks below the heading at `index`, up to the next of its level or higher."""
        if not self._section_ends:
            self._section_ends.update(_section_ends(self.blocks))
        return range(index + 1, self._section_ends[index])

    def last_line(self, index: int, section: range) -> int:
        """The last line of a section that begins at `index`, blank ones at its end aside."""
        return self.blocks[section[-1]].end if section else self.blocks[index].end

    def body(self) -> str:
        """All lines below the front matter, as written."""
        return self.source(self.body_start, len(self.lines))

    def source(self, first: int, last: int) -> str:
        """Lines `first` to `last` as written, without blank ones at either end."""
        return "\n".join(self.lines[first - 1 : last]).strip("\n").rstrip()


def clean(text: str) -> str:
    r"""The text as every parser here reads it: line ends `\\n`, no byte order mark, no NUL, no surrogate."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def parse_markdown(text: str) -> Markdown:
    """The blocks of a cleaned text. O(n) but for a factor of the nesting, which is bounded."""
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    front_lines = _front_matter_lines(lines)
    # Blank lines in its place keep the numbers of all others.
    body = "\n" * front_lines + "\n".join(lines[front_lines:]) + "\n"
    env: dict[str, object] = {}
    tokens = _parser().parse(body, env)
    return Markdown(
        lines=lines,
        blocks=tuple(_blocks(tokens, lines)),
        front_matter="\n".join(lines[1 : front_lines - 1]) if front_lines else "",
        body_start=front_lines + 1,
        notes=tuple(
            Note(code="open_fence", line=line + 1, detail=detail)
            for line, detail in sorted(_open(env).notes.items())
        ),
    )


def _front_matter_lines(lines: Sequence[str]) -> int:
    """How many lines the front matter has, its two rules included; 0 where there is none."""
    if not lines or lines[0].rstrip() != "---":
        return 0
    for number, line in enumerate(lines[1:], start=2):
        if line.rstrip() in {"---", "..."}:
            return number
    return 0


@dataclass(slots=True)
class _Open:
    """What was found to be open at the end of the text, so that it is searched for once."""

    fences: dict[str, int] = field(default_factory=dict[str, int])
    """Of each character the shortest run that nothing closes."""
    comment: bool = False
    notes: dict[int, str] = field(default_factory=dict[int, str])


def _open(env: dict[str, object]) -> _Open:
    found = env.setdefault("open", _Open())
    assert isinstance(found, _Open)  # noqa: S101 (nothing else writes this key)
    return found


def _fence(state: StateBlock, start: int, end: int, silent: bool) -> bool:  # noqa: FBT001 (markdown-it's rule)
    found = _open(state.env)  # pyright: ignore[reportArgumentType] (the dict that parse_markdown passes)
    position = state.bMarks[start] + state.tShift[start]
    marker = state.src[position : position + 1]
    run = state.skipCharsStr(position, marker) - position if marker in {"`", "~"} else 0
    if run >= found.fences.get(marker, run + 1):
        return False
    if silent or run == 0:
        return fence(state, start, end, silent)
    line, token_count = state.line, len(state.tokens)
    if not fence(state, start, end, silent):
        return False
    token = state.tokens[-1]
    is_closed = token.content.count("\n") < state.line - start - 1
    if is_closed or state.line < len(state.bMarks) - 1:
        return True
    del state.tokens[token_count:]
    state.line = line
    found.fences[marker] = run
    found.notes[start] = token.markup
    return False


def _comment(state: StateBlock, start: int, end: int, silent: bool) -> bool:  # noqa: FBT001 (markdown-it's rule)
    position = state.bMarks[start] + state.tShift[start]
    if not state.src.startswith("<!--", position) or state.is_code_block(start):
        return False
    found = _open(state.env)  # pyright: ignore[reportArgumentType] (the dict that parse_markdown passes)
    close = -1 if found.comment else state.src.find("-->", position)
    if close < 0:
        if not found.comment:
            found.notes[start] = "<!--"
        found.comment = True
        return False
    last = bisect_left(state.eMarks, close)
    if last >= end:
        return False
    if silent:
        return True
    state.line = last + 1
    token = state.push("html_comment", "", 0)
    token.map = [start, state.line]
    return True


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": _MAX_NESTING}).enable("table")
    parser.disable(["reference", "html_block", "inline"])
    parser.block.ruler.at("fence", _fence, {"alt": ["paragraph", "reference", "blockquote", "list"]})
    parser.block.ruler.before("heading", "comment", _comment, {"alt": ["paragraph", "blockquote"]})
    return parser


def _blocks(tokens: Sequence[Token], lines: Sequence[str]) -> Iterator[Block]:
    """The leaves of the tree, in order."""
    quotes = 0
    items: list[_OpenItem] = []
    header: tuple[str, ...] = ()
    for index, token in enumerate(tokens):
        match token.type:
            case "blockquote_open":
                quotes += 1
            case "blockquote_close":
                quotes -= 1
            case "list_item_open":
                items.append(_OpenItem(token, has_text=False))
                inner = tokens[index + 1]
                if inner.type != "paragraph_open":
                    items[-1].has_text = True
                    yield _item(token, "", lines, depth=len(items) - 1, quotes=quotes)
            case "list_item_close":
                items.pop()
            case "inline" if tokens[index - 1].type in {"heading_open", "paragraph_open"}:
                text = without_comments(token.content)
                if items and not items[-1].has_text:
                    items[-1].has_text = True
                    yield _item(items[-1].token, text, lines, depth=len(items) - 1, quotes=quotes)
                else:
                    yield _leaf(tokens[index - 1], text, depth=len(items), quotes=quotes)
            case "thead_open":
                header = _cells(tokens, index + 1)
            case "tr_open" if tokens[index - 1].type != "thead_open":
                cells = _cells(tokens, index)
                start, end = _span(token)
                yield Block(
                    kind="row",
                    text=" | ".join(cells),
                    start=start,
                    end=end,
                    level=len(items),
                    is_quoted=quotes > 0,
                    cells=cells,
                    header=header,
                )
            case "fence" | "code_block":
                start, end = _span(token)
                yield Block(
                    kind="fence",
                    text=token.content,
                    start=start,
                    end=end,
                    level=len(items),
                    marker=token.info.strip(),
                    is_quoted=quotes > 0,
                )
            case _:
                pass


@dataclass(slots=True)
class _OpenItem:
    token: Token
    has_text: bool


def _item(token: Token, text: str, lines: Sequence[str], *, depth: int, quotes: int) -> Block:
    start, end = _span(token)
    while end > start and not lines[end - 1].strip(" \t>"):
        end -= 1
    return Block(
        kind="item", text=text, start=start, end=end, level=depth, marker=token.info, is_quoted=quotes > 0
    )


def _leaf(opening: Token, text: str, *, depth: int, quotes: int) -> Block:
    start, end = _span(opening)
    is_heading = opening.type == "heading_open" and not depth and not quotes
    if is_heading and opening.markup == "-" and ("\n" in text or ":" in text):
        # A rule drawn directly below a paragraph, not an underlined title.
        is_heading = False
    if is_heading:
        return Block(kind="heading", text=text.strip(), start=start, end=end, level=int(opening.tag[1:]))
    return Block(kind="paragraph", text=text, start=start, end=end, level=depth, is_quoted=quotes > 0)


def _cells(tokens: Sequence[Token], index: int) -> tuple[str, ...]:
    cells: list[str] = []
    while tokens[index].type != "tr_close":
        if tokens[index].type == "inline":
            cells.append(without_comments(tokens[index].content).strip())
        index += 1
    return tuple(cells)


def _span(token: Token) -> tuple[int, int]:
    first, end = token.map or (0, 1)
    return first + 1, max(end, first + 1)


def without_comments(text: str) -> str:
    """The text without closed HTML comments; their line ends stay, so lines keep their numbers. O(n)."""
    if "<!--" not in text:
        return text
    kept: list[str] = []
    position = 0
    while (start := text.find("<!--", position)) >= 0:
        end = text.find("-->", start)
        if end < 0:
            break
        kept += (text[position:start], "\n" * text.count("\n", start, end))
        position = end + 3
    return "".join((*kept, text[position:]))


def _section_ends(blocks: Sequence[Block]) -> dict[int, int]:
    ends: dict[int, int] = {}
    open_headings: list[int] = []
    for index, block in enumerate(blocks):
        if block.kind == "heading":
            while open_headings and blocks[open_headings[-1]].level >= block.level:
                ends[open_headings.pop()] = index
            open_headings.append(index)
    return ends | dict.fromkeys(open_headings, len(blocks))
