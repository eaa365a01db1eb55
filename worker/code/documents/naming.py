"""What parsers of requirements share: ids made unique within a file, open questions, an item's own lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from worker.code.documents.markdown import Markdown
from worker.code.documents.results import Note, Requirement

_OPEN_QUESTION: Final = re.compile(r"\[NEEDS CLARIFICATION:?\s*(?P<question>[^\]\n]{0,300})")


def with_unique_ids(requirements: Iterable[Requirement], notes: list[Note]) -> list[Requirement]:
    """The requirements in order, the second of an id with `#2`, its parts with it as their parent.

    Adds a note for each. O(n).
    """
    found = list(requirements)
    names = unique_ids(((item.id, item.start_line) for item in found), notes)
    latest: dict[str, str] = {}
    unique: list[Requirement] = []
    for item, name in zip(found, names, strict=True):
        latest[item.id] = name
        parent = latest.get(item.parent, item.parent)
        unique.append(replace(item, id=name, parent=parent))
    return unique


def unique_ids(ids: Iterable[tuple[str, int]], notes: list[Note]) -> list[str]:
    """Ids with their lines; the second of an id gets `#2`, and a note is added."""
    seen: Counter[str] = Counter()
    taken: set[str] = set()
    unique: list[str] = []
    for literal, line in ids:
        name = literal
        if literal in seen:
            notes.append(Note(code="duplicate_id", line=line, detail=literal))
        while name in taken or name == literal in seen:
            seen[literal] += 1
            name = f"{literal}#{seen[literal]}"
        seen.setdefault(literal, 1)
        taken.add(name)
        unique.append(name)
    return unique


def open_questions(requirement: Requirement) -> Iterator[Note]:
    """A note for each place that asks for clarification."""
    for match in _OPEN_QUESTION.finditer(requirement.text):
        line = requirement.start_line + requirement.text.count("\n", 0, match.start())
        detail = f"{requirement.id}: {match['question'].strip()}"
        yield Note(code="open_question", line=min(line, requirement.end_line), detail=detail)


def nested_text(markdown: Markdown, index: int) -> str:
    """An item's lines after its own paragraph, as written, without the indentation that they share."""
    block = markdown.blocks[index]
    first = block.start + block.text.count("\n") + 1
    return dedent(markdown.lines[first - 1 : block.end])


def dedent(lines: Sequence[str]) -> str:
    """The lines without the indentation that they share, and without blank ones at either end."""
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[indent:].rstrip() for line in lines).strip("\n")
