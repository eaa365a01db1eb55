"""Any other text as chunks: Markdown below its headings, everything else at its blank lines.

Chunks of a file are disjoint, in order, and together all its lines but blank ones at their ends, up to caps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from markdown_it import MarkdownIt

from worker.code.segments import fold, shorten
from worker.graph.model import Edge, Node, NodeRef

MAX_CHUNK_LINES: Final = 60
"""A longer run of lines is cut, at a blank line where there is one in its second half."""

MAX_CHUNK_CHARS: Final = 6_000
MAX_CHUNKS: Final = 2_000
"""Of one file; what comes after is left out."""

_MAX_NAME_CHARS: Final = 80
_MARKDOWN: Final = MarkdownIt("commonmark")


def chunk_nodes(path: str, text: str, language: str) -> tuple[list[Node], list[Edge], str]:
    """The file's chunks, the DEFINES edges from it to them, and what is missing. O(n).

    Empty where nothing is. `text` has newlines as line ends. A line longer than a chunk may be is cut short
    in it.
    """
    lines = text.split("\n")
    headings = _headings(text) if language == "markdown" else {}
    file = NodeRef("File", path)
    nodes: list[Node] = []
    missing: list[str] = []
    for start, end in _spans(lines, headings):
        if len(nodes) == MAX_CHUNKS:
            missing.append(f"no more than {MAX_CHUNKS} chunks, left out from line {start + 1} on")
            break
        content = "\n".join(lines[start:end])
        if len(content) > MAX_CHUNK_CHARS:
            # One line: what has several is cut between them.
            content = content[:MAX_CHUNK_CHARS]
            missing.append(f"line {start + 1} cut after {MAX_CHUNK_CHARS} characters")
        nodes.append(
            Node(
                label="Chunk",
                id=f"{path}::L{start + 1}",
                name=_name(lines, start, headings),
                path=path,
                start_line=start + 1,
                end_line=end,
                text=content + "\n",
                language=language,
            )
        )
    return nodes, [Edge(file, "DEFINES", node.ref) for node in nodes], _told(missing)


def _told(missing: Sequence[str]) -> str:
    """The first of what is missing, and how much more is."""
    more = len(missing) - 1
    return "".join(missing[:1]) + (f", and {more} more" if more > 0 else "")


def _headings(text: str) -> dict[int, str]:
    """The text of each heading by the index of its line, whatever fences and quotes stand around."""
    tokens = _MARKDOWN.parse(text)
    return {
        token.map[0]: fold(tokens[index + 1].content)
        for index, token in enumerate(tokens)
        if token.type == "heading_open" and token.map and token.level == 0
    }


def _spans(lines: Sequence[str], headings: dict[int, str]) -> Iterator[tuple[int, int]]:
    """Begin and end of each chunk, blank lines at its ends left out."""
    bounds = [*sorted(headings.keys() | {0}), len(lines)]
    for section_start, section_end in pairwise(bounds):
        start = section_start
        while start < section_end:
            end = _cut(lines, start, section_end)
            first, last = start, end
            while first < last and not lines[first].strip():
                first += 1
            while last > first and not lines[last - 1].strip():
                last -= 1
            if first < last:
                yield first, last
            start = end


def _cut(lines: Sequence[str], start: int, limit: int) -> int:
    """Where the chunk from `start` ends."""
    end, chars = start, 0
    while end < limit and end - start < MAX_CHUNK_LINES:
        chars += len(lines[end]) + 1
        if chars > MAX_CHUNK_CHARS and end > start:
            break
        end += 1
    if end == limit:
        return end
    for at in range(end - 1, start + (end - start) // 2, -1):
        if not lines[at].strip():
            return at + 1
    return end


def _name(lines: Sequence[str], start: int, headings: dict[int, str]) -> str:
    """The heading at or above the chunk, else its first line."""
    above = [at for at in headings if at <= start]
    name = headings[max(above)] if above else fold(lines[start])
    return shorten(name, max_chars=_MAX_NAME_CHARS)
