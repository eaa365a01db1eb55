"""Requirement tags in comments and docstrings, and the definitions that they bind to.

Read: `@traces`, `@implements`, `@covers`, `@spec` with ids after them, `Implements:` and `Covers:` likewise,
StrictDoc's `@relation(IDS, scope=…)`, OpenFastTrace's `[impl->req~name~1]`, and a comment that is nothing
but requirement ids. A tag above a definition binds to it, one inside a definition to the innermost, any
other to the module. Strings that are no docstrings, fences, doctests, literal blocks and quoted tags are
sample text: what they say is no trace.

A tag may also stand there without an id, or with something in its place that is still to be replaced (`TBD`,
`REQ-XXX`). Such placeholders are read apart: they lead nowhere, and somebody has to see to them.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from worker.code.facts import Trace
from worker.code.parsing import STRING_OR_COMMENT, Source

MODULE: Final = -1
"""The owner of what stands in no definition."""

MAX_RANGE: Final = 500
"""A longer range is given by its two ends."""

_HINTS: Final = (
    "@traces",
    "@implements",
    "@covers",
    "@spec",
    "@relation",
    "Implements:",
    "Covers:",
    "REQ-",
    "FR-",
)
_LINK_HINT: Final = re.compile(r"->\w+~")
_ID: Final = r"[A-Z][A-Z0-9]*(?:-[A-Z0-9]+)*-\d+[a-z]?(?:\.[A-Z][A-Z0-9]*-\d+)?(?![\w-])"
_ITEM: Final = re.compile(
    rf"(?P<first>{_ID})(?:"
    rf"(?:\s*(?:\.\.\.?|[…–〜~～])\s*|\s+(?:through|thru|to)\s+)(?P<last>{_ID})"
    r"|\s*(?:\.\.\.?|[…–〜～])\s*(?P<number>\d{1,9})(?![\w-])"
    r")?"
)
_SEPARATOR: Final = re.compile(r"[ \t]*[,;+&][ \t]*(?:\n[ \t]*)?(?:and[ \t]+)?|[ \t]+and[ \t]+|[ \t]+")
_NUMBER: Final = re.compile(r"(?P<prefix>.*-)(?P<digits>\d{1,9})\Z")
_TAG: Final = re.compile(
    r"(?<![^\s(\[{*,;:#-])(?:"
    r"(?P<tag>@(?:traces|implements|covers|spec))\b:?[ \t]*"
    r"|(?P<label>Implements|Covers):[ \t]*"
    r"|@relation\((?P<relation>[^()\n]*)\)"
    r"|\[(?P<origin>\w+)->(?P<target>\w+~[\w.-]+~\d+)\]"
    r")"
)
_BARE: Final = re.compile(r"(?=(?:REQ|N?FR)-)")
_PLACEHOLDER: Final = re.compile(
    r"[<\[({]?(?:"
    r"(?:[A-Z][A-Z0-9]*-)*(?i:TODO|TBD|TBC|TBA|FIXME|X{2,}|N{2,}|\?+|#+|\.{3}|…)(?![\w-])"
    r"|(?:[A-Z][A-Z0-9]*-)+(?:<[^<>\s]{0,40}>|(?![\w<]))"
    r"|<[^<>\s]{1,40}>"
    r")[>\])}]?"
)
"""What stands for an id that is not known yet; the last two forms are a prefix without number, and `<ID>`."""
_RELATION_ID: Final = re.compile(r"[\w.~-]+")
_FENCE: Final = re.compile(r"\s*(?:`{3,}|~{3,})")


@dataclass(frozen=True, slots=True)
class Span:
    """Where a definition stands: its first line (decorators included), its last, and its column."""

    start_line: int
    end_line: int
    column: int
    parent: int
    """Index of the definition around it, or `MODULE`."""


@dataclass(frozen=True, slots=True)
class Docstring:
    """A docstring's text, the line and column where it starts, and whose it is."""

    owner: int
    line: int
    column: int
    text: str


@dataclass(frozen=True, slots=True)
class _Comment:
    line: int
    column: int
    text: str
    is_alone: bool


def may_hold_tags(text: str) -> bool:
    """False where a source surely has no tag in a comment or docstring."""
    return any(hint in text for hint in _HINTS) or ("~" in text and bool(_LINK_HINT.search(text)))


def find_traces(
    source: Source, spans: Sequence[Span], docstrings: Iterable[Docstring]
) -> list[tuple[int, Trace]]:
    """The traces, each with its owner's index in `spans`. `spans` are sorted by first line.

    O(n). Ask `may_hold_tags` first, which costs next to nothing.
    """
    found: list[tuple[int, Trace]] = []
    for docstring in docstrings:
        for trace, is_of_file in read_tags(docstring.text, docstring.line, column=docstring.column):
            found.append((MODULE if is_of_file else docstring.owner, trace))
    binder = _Binder(source, spans)
    for block in _blocks(_comments(source)):
        text = "\n".join(comment.text for comment in block)
        if traces := list(read_tags(text, block[0].line)):
            owner = binder.owner(block[-1])
            found += [(MODULE if is_of_file else owner, trace) for trace, is_of_file in traces]
    return found


def find_placeholders(source: Source, docstrings: Iterable[Docstring]) -> list[Trace]:
    """The tags that name no requirement yet, by line. O(n). Ask `may_hold_tags` first."""
    found: list[Trace] = []
    for docstring in docstrings:
        found += read_placeholders(docstring.text, docstring.line, column=docstring.column)
    for block in _blocks(_comments(source)):
        found += read_placeholders("\n".join(comment.text for comment in block), block[0].line)
    return sorted(found, key=lambda trace: trace.line)


def read_placeholders(text: str, line: int, *, column: int | None = None) -> Iterator[Trace]:
    """The tags in a text that starts at `line` with a placeholder for an id, or with nothing after them.

    Nothing counts only where the tag begins its line: in a sentence the tag is what is spoken of.
    """
    offset = 0
    for number, (content, is_sample) in enumerate(_without_samples(text, column=column or 0)):
        end = offset + len(content)
        for match in () if is_sample else _TAG.finditer(text, offset, end):
            if match["tag"] is None or _ITEM.match(text, match.end()):
                continue
            instead = _PLACEHOLDER.match(text, match.end(), end)
            is_bare = not text[match.end() : end].strip() and not text[offset : match.start()].strip(" \t*#")
            if instead is not None or is_bare:
                yield Trace(instead[0] if instead else "", match["tag"], line + number)
        offset = end + 1


def expand_ids(text: str, start: int = 0) -> tuple[list[str], int]:
    """The ids in a list that begins at `start`, ranges expanded, and where the list ends.

    Separated by commas, blanks, `+` or "and"; what comes after the last id is prose. A range whose ends
    share no prefix, or that is too long, is given by its ends.
    """
    ids: list[str] = []
    position = start
    while item := _ITEM.match(text, position):
        ids += _expand(item)
        position = item.end()
        separator = _SEPARATOR.match(text, position)
        if separator is None or not _ITEM.match(text, separator.end()):
            break
        position = separator.end()
    return ids, position


def _expand(item: re.Match[str]) -> list[str]:
    first, last, number = item["first"], item["last"], item["number"]
    if last is None and number is None:
        return [first]
    low = _NUMBER.match(first)
    high = _NUMBER.match(last) if last else None
    if low is None or (last and (high is None or high["prefix"] != low["prefix"])):
        return [first, last] if last else [first]
    start, end = int(low["digits"]), int(high["digits"] if high else number)
    if not start < end < start + MAX_RANGE:
        return [first, last] if last else [first]
    width = len(low["digits"])
    return [f"{low['prefix']}{value:0{width}d}" for value in range(start, end + 1)]


def read_tags(text: str, line: int, *, column: int | None = None) -> Iterator[tuple[Trace, bool]]:
    """The traces in a text that starts at `line`, and whether each is the whole file's.

    A docstring has a column, a comment has none, and may be a bare list of ids.
    """
    offset = 0
    for number, (content, is_sample) in enumerate(_without_samples(text, column=column or 0)):
        if not is_sample:
            for match in _TAG.finditer(text, offset, offset + len(content)):
                tag, ids = _tagged(match, text)
                is_of_file = "scope=file" in (match["relation"] or "")
                for requirement_id in ids:
                    yield Trace(requirement_id, tag, line + number), is_of_file
            start = offset + len(content) - len(content.lstrip())
            if column is None and _BARE.match(text, start):
                ids, end = expand_ids(text, start)
                if _ends_list(text, end):
                    for requirement_id in ids:
                        yield Trace(requirement_id, "#", line + number), False
        offset += len(content) + 1


def _tagged(match: re.Match[str], text: str) -> tuple[str, list[str]]:
    if match["relation"] is not None:
        arguments = (argument.strip() for argument in match["relation"].split(","))
        return "@relation", [a for a in arguments if _RELATION_ID.fullmatch(a)]
    if match["target"] is not None:
        return match["origin"], [match["target"]]
    ids, _ = expand_ids(text, match.end())
    return match["tag"] or match["label"], ids


def _ends_list(text: str, position: int) -> bool:
    """Whether a bare list of ids is all there is, but for a remark set off by a colon or dash."""
    rest = text[position : position + 3]
    return not rest.strip() or rest[0] in ":\n" or rest[:3] in {" - ", " – ", " — "}


def _without_samples(text: str, *, column: int) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is sample text: in a fence, a doctest, or indented below a `::`.

    `column` is where the first line starts, the others having their indentation with them.
    """
    fence = ""
    literal_indent = -1
    for number, line in enumerate(text.split("\n")):
        content = line.strip()
        indent = len(line) - len(line.lstrip()) + (0 if number else column)
        mark = _FENCE.match(line)
        if fence:
            if content.startswith(fence) and not content.strip(fence[0]):
                fence = ""
            yield line, True
        elif mark:
            fence = mark[0].strip()
            yield line, True
        elif literal_indent >= 0 and (not content or indent > literal_indent):
            yield line, True
        else:
            literal_indent = indent if content.endswith("::") else -1
            yield line, content.startswith((">>>", "... "))


def _comments(source: Source) -> Iterator[_Comment]:
    """Every comment, without its `#`."""
    line, scanned = 1, 0
    for match in STRING_OR_COMMENT.finditer(source.text):
        start = match.start()
        if source.text[start] != "#":
            continue
        line += source.text.count("\n", scanned, start)
        scanned = start
        column = start - (source.text.rfind("\n", 0, start) + 1)
        before = source.lines[line - 1][:column]
        yield _Comment(line, column, match[0].lstrip("#:!").rstrip(), not before.strip())


def _blocks(comments: Iterable[_Comment]) -> Iterator[list[_Comment]]:
    """Comments that stand below one another in one column are one text."""
    block: list[_Comment] = []
    for comment in comments:
        previous = block[-1] if block else None
        continues = (
            previous is not None
            and previous.is_alone
            and comment.is_alone
            and comment.line == previous.line + 1
            and comment.column == previous.column
        )
        if not continues and block:
            yield block
            block = []
        block.append(comment)
    if block:
        yield block


class _Binder:
    """Finds what a comment belongs to."""

    def __init__(self, source: Source, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._starts = [span.start_line for span in spans]
        self._source = source
        self._code_above: list[int] | None = None

    def owner(self, comment: _Comment) -> int:
        """The definition below the comment, else the innermost around it, else `MODULE`."""
        if comment.is_alone:
            # Of definitions that share a line the outermost comes first.
            below = bisect_left(self._starts, comment.line + 1)
            if below < len(self._starts) and self._starts[below] == comment.line + 1:
                return below
        index = bisect_right(self._starts, comment.line) - 1
        while index != MODULE and not self._holds(self._spans[index], comment):
            index = self._spans[index].parent
        return index

    def _holds(self, span: Span, comment: _Comment) -> bool:
        if comment.line <= span.end_line:
            return True
        # A comment below the last statement is still in the body when it is indented like it.
        return (
            comment.is_alone
            and comment.column > span.column
            and self._last_code_above(comment.line) <= span.end_line
        )

    def _last_code_above(self, line: int) -> int:
        if self._code_above is None:
            last = 0
            self._code_above = [0]
            for number, text in enumerate(self._source.lines, start=1):
                self._code_above.append(last)
                content = text.lstrip()
                if content and not content.startswith("#"):
                    last = number
        return self._code_above[line]
