"""CODEOWNERS: who answers for which file, by GitHub's rules.

The file is the first of `.github/CODEOWNERS`, `CODEOWNERS` and `docs/CODEOWNERS`. Its patterns are those of
gitignore, without negation and character ranges, and `folder/*` reaches only what stands directly in the
folder. The last line that matches a file counts alone; one without owners leaves the file to nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from worker.code.reading import FileReading
from worker.graph.model import Edge, GraphContents, Node

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


def link_owners(documents: Mapping[str, str], code: GraphContents) -> tuple[Sequence[Node], Sequence[Edge]]:
    """Who owns each file of the graph. O(files times rules)."""
    path = next(path for path in OWNER_FILES if path in documents)
    rules = parse_owners(documents[path])
    nodes: dict[str, Node] = {}
    edges: list[Edge] = []
    for file in code.nodes:
        if file.label != "File":
            continue
        for owner in owners_of(file.id, rules):
            node = nodes.setdefault(owner, Node(label="Owner", id=owner, name=owner))
            edges.append(Edge(node.ref, "OWNS", file.ref))
    return list(nodes.values()), edges


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
    pieces: list[str] = [] if is_anchored else ["(?:[^/]+/)*"]
    for index, segment in enumerate(segments):
        is_last = index == len(segments) - 1
        if segment == "**":
            pieces.append("(?:.+)" if is_last else "(?:[^/]+/)*")
        else:
            pieces.append(_segment(segment) + ("" if is_last else "/"))
    if written.endswith("/"):
        pieces.append("/.+")
    elif segments[-1] != "**" and not (is_anchored and segments[-1] == "*"):
        # What names a folder means all that is in it.
        pieces.append("(?:/.+)?")
    return re.compile("(?s:" + "".join(pieces) + r")\Z")


def _segment(segment: str) -> str:
    pieces: list[str] = []
    index = 0
    while index < len(segment):
        character = segment[index]
        if character == "*":
            # A run of stars means what one does, and would make matching slow.
            while segment[index : index + 1] == "*":
                index += 1
            pieces.append("[^/]*+" if index == len(segment) else "[^/]*?")
            continue
        if character == "\\" and index + 1 < len(segment):
            index += 1
            character = segment[index]
            pieces.append(re.escape(character))
        else:
            pieces.append("[^/]" if character == "?" else re.escape(character))
        index += 1
    return "".join(pieces)
