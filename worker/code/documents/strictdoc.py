"""StrictDoc's `.sdoc`: requirements as blocks of fields between section marks."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from worker.code.documents.naming import open_questions, with_unique_ids
from worker.code.documents.results import DocumentFacts, FileLink, Note, Requirement
from worker.code.documents.wording import fold_status, modality, one_line

_MARK: Final = re.compile(r"\[(?P<double>\[)?(?P<close>/)?(?P<name>[A-Z][A-Z0-9_]*)\]?\]\s*\Z")
_FIELD: Final = re.compile(r"(?P<name>[A-Z][A-Z0-9_]*):(?:\s+(?P<value>.*)|\s*)\Z", re.DOTALL)
_RELATION: Final = re.compile(r"\s*-?\s*(?P<name>TYPE|VALUE|ROLE)\s*:\s*(?P<value>.*)")
_NO_REQUIREMENT: Final = frozenset(
    {"DOCUMENT", "GRAMMAR", "SECTION", "FREETEXT", "TEXT", "DOCUMENT_FROM_FILE"}
)
_STATUSES: Final = {"Draft": "draft", "Active": "active", "Deleted": "withdrawn"}


@dataclass(slots=True)
class _Node:
    name: str
    start: int
    end: int
    fields: dict[str, str] = field(default_factory=dict[str, str])
    relations: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    parent: str = ""


def read_strictdoc(path: str, text: str) -> DocumentFacts:
    """Everything that an `.sdoc` file says. The specification is the file. O(n)."""
    lines = text.split("\n")
    notes: list[Note] = []
    nodes = list(_nodes(lines, notes))
    document = next((node for node in nodes if node.name == "DOCUMENT"), None)
    wanted = [node for node in nodes if node.name not in _NO_REQUIREMENT and node.fields.get("UID")]
    requirements = with_unique_ids(map(_requirement, wanted), notes)
    for requirement in requirements:
        notes += open_questions(requirement)
    if document is None and not requirements:
        notes.append(Note(code="unknown_format", line=1, detail="no document and no requirement"))
    return DocumentFacts(
        path=path,
        format="strictdoc",
        spec_id=path,
        title=one_line(document.fields.get("TITLE", "")) if document else "",
        line_count=len(lines),
        requirements=tuple(requirements),
        links=tuple(
            FileLink(requirement_id=requirement.id, path=value, line=node.start)
            for node, requirement in zip(wanted, requirements, strict=True)
            for kind, value in node.relations
            if kind == "File" and value
        ),
        notes=tuple(notes),
    )


def _requirement(node: _Node) -> Requirement:
    fields = node.fields
    text = fields.get("STATEMENT") or fields.get("CONTENT") or fields.get("BODY") or fields.get("TITLE", "")
    level, negated = modality(text)
    parents = [value for kind, value in node.relations if kind == "Parent"]
    raw = fields.get("STATUS", "")
    return Requirement(
        id=fields["UID"],
        title=one_line(fields.get("TITLE", "") or text),
        text=text,
        parent=parents[0] if parents else node.parent,
        status=_STATUSES.get(raw, fold_status(raw)) if raw else "",
        modality=level,
        negated=negated,
        start_line=node.start,
        end_line=node.end,
        properties=(("links", ", ".join(parents)),) if parents else (),
    )


def _nodes(lines: Sequence[str], notes: list[Note]) -> Iterator[_Node]:
    """The blocks in order. A `[[NAME]]` around others is their parent when it has a UID."""
    node: _Node | None = None
    around: list[_Node] = []
    closings = _Closings(lines)
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        mark = _MARK.match(line)
        if mark:
            if node:
                yield node
                node = None
            if mark["close"]:
                if around and around[-1].name == mark["name"]:
                    around.pop()
                continue
            parent = next((one.fields["UID"] for one in reversed(around[-4:]) if "UID" in one.fields), "")
            node = _Node(mark["name"], number, number, parent=parent)
            if mark["double"]:
                around.append(node)
            continue
        found = _FIELD.match(line) if node else None
        if node is None or found is None:
            if node and line.strip():
                _relation(node, line)
                node.end = number
            continue
        value = (found["value"] or "").strip()
        if value == ">>>":
            end = closings.after(number)
            if end is None:
                notes.append(Note(code="open_fence", line=number, detail=">>>"))
                value = ""
            else:
                value, number = "\n".join(lines[number:end]).strip("\n"), end + 1
        node.fields.setdefault(found["name"], value)
        node.end = number
    if node:
        yield node


class _Closings:
    """Finds the line that closes a text, in O(log n)."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._closings = [index for index, line in enumerate(lines) if line.strip() == "<<<"]
        self._blocks = [
            index
            for index, line in enumerate(lines[:-1])
            if line.startswith("[") and _MARK.match(line) and _FIELD.match(lines[index + 1])
        ]

    def after(self, index: int) -> int | None:
        """The first at or after `index`; None where a new block begins before it, or nothing closes."""
        closing = bisect_left(self._closings, index)
        block = bisect_left(self._blocks, index)
        if closing == len(self._closings):
            return None
        end = self._closings[closing]
        return end if block == len(self._blocks) or self._blocks[block] > end else None


def _relation(node: _Node, line: str) -> None:
    match = _RELATION.match(line)
    if match is None:
        return
    if match["name"] == "TYPE":
        node.relations.append((match["value"].strip(), ""))
    elif match["name"] == "VALUE" and node.relations:
        node.relations[-1] = (node.relations[-1][0], match["value"].strip())
