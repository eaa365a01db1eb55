"""The editable pack: Markdown with one section per node, which a person may cut by deleting sections.

    ---
    pack_version: 1
    project: shop
    ---
    ## Function retry
    <!-- node: src/net.py::retry | template: BUILD | rank: 0 | score: 0.910000 | tokens: 42 -->
    ```python
    def retry(): ...
    ```

Only a `---` at the very first byte starts front matter. A section's node line says what the section may be
cited as; without a valid one the section is plain text. Whatever sections are deleted, the rest reads as
before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NoReturn, cast

import yaml

from worker.errors import InvalidRequest

MAX_FRONT_MATTER_CHARS: Final = 32_768
MAX_FRONT_MATTER_DEPTH: Final = 32
PACK_MAJOR_VERSION: Final = "1"

_FRONT_MATTER_START: Final = re.compile(r"---[ \t]*\r?\n")
_FRONT_MATTER_END: Final = re.compile(r"^---[ \t]*\r?$", re.MULTILINE)
_HEADING: Final = re.compile(r"## (?P<kind>\S+)[ \t]+(?P<name>\S.*)")
_NODE: Final = re.compile(
    r"<!-- node: (?P<node>[^\x00-\x20\x7f](?:[^\x00-\x1f\x7f]{0,1022}[^\x00-\x20\x7f])?)"
    r" \| template: (?P<template>[A-Za-z0-9_.:-]{1,64})"
    r" \| rank: (?P<rank>\d{1,9})"
    r" \| score: (?P<score>-?\d{1,9}\.\d{6})"
    r" \| tokens: (?P<tokens>\d{1,9}) -->",
    re.ASCII,
)
_FENCE: Final = re.compile(r" {0,3}(?P<run>`{3,}|~{3,})(?P<rest>.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackNode:
    """The provenance of a section, as its node line states it."""

    node_id: str
    kind: str
    name: str
    template: str
    rank: int
    score: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSection:
    """One section, or the text above the first."""

    text: str
    """As it stands in the file, without blank lines at its end."""
    node: PackNode | None
    """None where the section is plain text: it can be shown, not cited."""
    body: str
    """What stands below the node line; the text where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFile:
    """A pack, read and checked. Scalars of the front matter are text: nothing is guessed from their looks."""

    front_matter: Mapping[str, object]
    sections: tuple[PackSection, ...]


def parse_pack(text: str, *, project_id: str) -> PackFile:
    """The pack, for use in `project_id`. O(length).

    Raises InvalidRequest, naming the line, where the front matter is malformed, too large or too deep, or
    uses anchors; and where it names another project or another version. A pack without front matter
    belongs to whoever hands it in.
    """
    front_matter, body = _split_front_matter(text)
    version, project = front_matter.get("pack_version"), front_matter.get("project")
    if version is not None and str(version).split(".", 1)[0] != PACK_MAJOR_VERSION:
        msg = f"pack: version {version!r} is not known; known: {PACK_MAJOR_VERSION}"
        raise InvalidRequest(msg, field="pack")
    if project is not None and project != project_id:
        raise InvalidRequest("pack: it was made for another project", field="pack")
    return PackFile(front_matter=front_matter, sections=tuple(_split_sections(body)))


# --- Sections ----------------------------------------------------------------------------------------


def _split_sections(body: str) -> Iterator[PackSection]:
    lines = body.split("\n")
    starts = [0, *_section_starts(lines), len(lines)]
    for start, end in pairwise(starts):
        section = lines[start:end]
        while section and not section[-1].strip():
            section.pop()
        if section:
            text, node = "\n".join(section).rstrip("\r"), _read_node(section)
            yield PackSection(text=text, node=node, body=text if node is None else _below_node(section))


def _section_starts(lines: Sequence[str]) -> Iterator[int]:
    """Lines that start a section: those with `## ` in front that stand in no closed fence."""
    longest_closer = _longest_closers(lines)
    fence = ""
    for number, line in enumerate(lines):
        if not fence and line.startswith("## "):
            yield number
            continue
        match = _FENCE.match(line)
        if match is None:
            continue
        run, rest = match["run"], match["rest"].strip()
        if fence:
            if run[0] == fence[0] and len(run) >= len(fence) and not rest:
                fence = ""
        elif "`" not in rest or run[0] == "~":
            # A fence that nothing closes is none: one stray line must not swallow all later sections.
            fence = run if longest_closer[run[0]][number + 1] >= len(run) else ""


def _longest_closers(lines: Sequence[str]) -> Mapping[str, Sequence[int]]:
    """By fence character: the longest closing line from each line on."""
    longest: dict[str, list[int]] = {mark: [0] * (len(lines) + 1) for mark in "`~"}
    for number in range(len(lines) - 1, -1, -1):
        for lengths in longest.values():
            lengths[number] = lengths[number + 1]
        match = _FENCE.match(lines[number])
        if match is not None and not match["rest"].strip():
            lengths = longest[match["run"][0]]
            lengths[number] = max(lengths[number], len(match["run"]))
    return longest


def _read_node(section: Sequence[str]) -> PackNode | None:
    heading = _HEADING.fullmatch(section[0].rstrip())
    below = next((line.strip() for line in section[1:] if line.strip()), "")
    node = _NODE.fullmatch(below)
    if heading is None or node is None or "-->" in node["node"]:
        return None
    return PackNode(
        node_id=node["node"],
        kind=heading["kind"],
        name=heading["name"],
        template=node["template"],
        rank=int(node["rank"]),
        score=float(node["score"]),
        tokens=int(node["tokens"]),
    )


def _below_node(section: Sequence[str]) -> str:
    """What follows the section's node line, which is the first below its heading that is not blank."""
    line = next(number for number, text in enumerate(section) if number and text.strip())
    return "\n".join(section[line + 1 :]).rstrip("\r")


# --- Front matter ------------------------------------------------------------------------------------


def _split_front_matter(text: str) -> tuple[dict[str, object], str]:
    start = _FRONT_MATTER_START.match(text)
    if start is None:
        return {}, text
    end = _FRONT_MATTER_END.search(text, start.end())
    if end is None:
        _refuse("it has no closing ---", line=1)
    block = text[start.end() : end.start()]
    if len(block) > MAX_FRONT_MATTER_CHARS:
        _refuse(f"it is longer than {MAX_FRONT_MATTER_CHARS} characters", line=1)
    return _FrontMatter(block).read(), text[end.end() :].removeprefix("\n")


@dataclass(slots=True)
class _FrontMatter:
    """Builds plain values from the parser's events, so that nothing is built before it was looked at.

    Neither anchors nor tags have any effect: the first are refused (a few lines of them can stand for
    gigabytes), the second ignored. Every scalar stays text, so project `0123` is not the number 83.
    """

    block: str
    _events: Iterator[Any] = field(init=False)

    def __post_init__(self) -> None:
        parse = cast("Any", yaml.parse)  # pyright: ignore[reportUnknownMemberType]  # PyYAML has no types
        self._events = parse(self.block, Loader=yaml.CBaseLoader)

    def read(self) -> dict[str, object]:
        """The mapping. Raises InvalidRequest."""
        try:
            return self._read_document()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            _refuse(error.problem or "malformed", line=mark.line + 2 if mark is not None else 1)
        except (yaml.YAMLError, ValueError):
            _refuse("it holds characters that YAML does not allow", line=1)

    def _read_document(self) -> dict[str, object]:
        next(self._events)  # the stream's start
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return {}
        # Event by event: the parser takes seconds over thousands of open brackets, a depth too far is seen
        # at once.
        value = self._read_value(next(self._events), depth=0)
        if not isinstance(value, dict):
            _refuse("it is no mapping", line=2)
        next(self._events)  # the document's end
        if not isinstance(after := next(self._events), yaml.StreamEndEvent):
            _refuse("it holds more than one document", line=_line(after))
        return cast("dict[str, object]", value)

    def _read_value(self, event: Any, *, depth: int) -> object:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            _refuse("anchors and aliases are not read", line=_line(event))
        if depth > MAX_FRONT_MATTER_DEPTH:
            _refuse(f"it is nested deeper than {MAX_FRONT_MATTER_DEPTH}", line=_line(event))
        if isinstance(event, yaml.ScalarEvent):
            return cast("str", event.value)
        if isinstance(event, yaml.SequenceStartEvent):
            return list(self._read_items(depth))
        return self._read_mapping(depth)

    def _read_items(self, depth: int) -> Iterator[object]:
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            yield self._read_value(event, depth=depth + 1)

    def _read_mapping(self, depth: int) -> dict[str, object]:
        mapping: dict[str, object] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._read_value(event, depth=depth + 1)
            if not isinstance(key, str) or key in mapping:
                _refuse("a key is no text, or stands twice", line=_line(event))
            mapping[key] = self._read_value(next(self._events), depth=depth + 1)
        return mapping


def _line(event: Any) -> int:
    """The line in the file: the parser counts from 0, and the block starts on line 2."""
    return int(event.start_mark.line) + 2


def _refuse(problem: str, *, line: int) -> NoReturn:
    msg = f"pack: front matter, line {line}: {problem}"
    raise InvalidRequest(msg, field="pack", line=line)
