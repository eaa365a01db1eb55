"""CODEOWNERS: who answers for which file, by GitHub's rules.

The file is the first of `.github/CODEOWNERS`, `CODEOWNERS` and `docs/CODEOWNERS`. Its patterns are those of
gitignore, without negation and character ranges, and `folder/*` reaches only what stands directly in the
folder. The last line that matches a file counts alone; one without owners leaves the file to nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from worker.code.reading import FileReading
from worker.code.steps import Additions, CodeOutline
from worker.graph.model import Edge, Node

OWNER_FILES: Final = (".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS")
OWNERS: Final = "owners"
"""The kind of document that a CODEOWNERS file is."""

MAX_LINES: Final = 5_000
MAX_LINE_CHARS: Final = 1_000

_OWNER: Final = re.compile(r"@[\w.-]+(?:/[\w.-]+)?\Z|[^\s@]+@[^\s@]+\.[^\s@]+\Z")
_WORD: Final = re.compile(r"(?:\\.|[^\s\\])+")


@dataclass(frozen=True, slots=True)
class OwnerRule:
    """One line: which paths, and who owns them."""

    pattern: re.Pattern[str]
    owners: tuple[str, ...]


def read_owner_file(path: str, content: bytes) -> FileReading | None:
    """Keeps the text of a CODEOWNERS file for `link_owners`."""
    if path not in OWNER_FILES:
        return None
    text = content.decode("utf-8", "replace")
    return FileReading(path=path, documents=((OWNERS, text),))


def link_owners(documents: Mapping[str, str], code: CodeOutline) -> Additions:
    """Who owns each file of the graph. O(files times rules)."""
    path = next(path for path in OWNER_FILES if path in documents)
    rules = parse_owners(documents[path])
    nodes: dict[str, Node] = {}
    edges: list[Edge] = []
    for ref in code.refs:
        if ref.label != "File":
            continue
        for owner in owners_of(ref.id, rules):
            node = nodes.setdefault(owner, Node(label="Owner", id=owner, name=owner))
            edges.append(Edge(node.ref, "OWNS", ref))
    return Additions(list(nodes.values()), edges)


def parse_owners(text: str) -> tuple[OwnerRule, ...]:
    """The rules in order. A line that GitHub would not accept is passed over, as GitHub does."""
    rules: list[OwnerRule] = []
    for line in text.removeprefix("\ufeff").splitlines()[:MAX_LINES]:
        words: list[str] = _WORD.findall(line[:MAX_LINE_CHARS])
        for index, word in enumerate(words):
            if word.startswith("#"):
                del words[index:]
                break
        if not words or words[0].startswith(("!", "[")) or "[" in words[0]:
            continue
        owners = tuple(dict.fromkeys(words[1:]))
        if all(_OWNER.match(owner) for owner in owners):
            rules.append(OwnerRule(_pattern(words[0]), owners))
    return tuple(rules)


def owners_of(path: str, rules: Iterable[OwnerRule]) -> tuple[str, ...]:
    """Who owns the file, in the order of the line. O(rules)."""
    owners: tuple[str, ...] = ()
    for rule in rules:
        if rule.pattern.match(path):
            owners = rule.owners
    return owners


def _pattern(written: str) -> re.Pattern[str]:
    """The paths that a pattern means, as a regular expression for whole paths."""
    is_anchored = "/" in written.rstrip("/")
    body = written.strip("/")
    if not body:
        return re.compile(r"(?s:.*)\Z") if written == "/" else re.compile(r"(?!)")
    segments = body.split("/")
    groups = _groups(segments if is_anchored else ["**", *segments])
    if len(groups) > 1 and not groups[-1]:
        # A pattern that ends in `**` means all that is in the folder.
        groups[-1] = [None]
    pieces = ["/".join(map(_segment, groups[0]))]
    for index, group in enumerate(groups[1:], start=1):
        if pieces[-1] and index == 1 and groups[0]:
            pieces.append("/")
        text = "/".join(map(_segment, group))
        is_last = index == len(groups) - 1
        # Where a group first fits it may stay, unless it has to reach the end: so nothing is tried twice.
        pieces.append(f"(?:[^/]+/)*?{text}" if is_last else f"(?>(?:[^/]+/)*?{text}/)")
    if written.endswith("/"):
        pieces.append("/.+")
    elif segments[-1] != "**" and not (is_anchored and segments[-1] == "*"):
        # What names a folder means all that is in it.
        pieces.append("(?:/.+)?")
    return re.compile("(?s:" + "".join(pieces) + r")\Z")


def _groups(segments: Iterable[str]) -> list[list[str | None]]:
    """The runs of segments between one `**` and the next; the first is empty where `**` comes first."""
    groups: list[list[str | None]] = [[]]
    for segment in segments:
        if segment != "**":
            groups[-1].append(segment)
        elif len(groups) == 1 or groups[-1]:
            groups.append([])
    return groups


def _segment(segment: str | None) -> str:
    """One segment as a regular expression; None stands for any way down."""
    if segment is None:
        return ".+"
    literals = [""]
    index = 0
    while index < len(segment):
        character = segment[index]
        if character == "*":
            if literals[-1] or len(literals) == 1:
                literals.append("")
        elif character == "\\" and index + 1 < len(segment):
            index += 1
            literals[-1] += re.escape(segment[index])
        else:
            literals[-1] += "[^/]" if character == "?" else re.escape(character)
        index += 1
    first, *rest = literals
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>[^/]*?{literal})" for literal in middle) + "[^/]*" + last
