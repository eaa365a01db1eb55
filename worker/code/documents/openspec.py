"""OpenSpec's capability specifications, and the deltas by which a change proposes to alter them.

A requirement's name is its identity, case-sensitive; an id inside the name is an alias. Scenarios belong to
the requirement above them, whatever the level of their heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from worker.code.documents import sections
from worker.code.documents.ids import ID
from worker.code.documents.markdown import Markdown
from worker.code.documents.naming import open_questions, with_unique_ids
from worker.code.documents.results import Change, DocumentFacts, Note, Requirement
from worker.code.documents.wording import modality, one_line, plain, status_in_text

_PATH: Final = re.compile(
    r"(?:^|.*/)openspec/(?:changes/(?P<archive>archive/)?(?P<change>[^/]+)/)?specs/(?P<capability>.+)/spec\.md"
)
_DELTA: Final = re.compile(r"(?P<change>ADDED|MODIFIED|REMOVED|RENAMED)\s+Requirements", re.IGNORECASE)
_REQUIREMENT: Final = re.compile(r"Requirement\s*[:：]\s*(?P<name>.+)", re.IGNORECASE | re.DOTALL)
_SCENARIO: Final = re.compile(r"Scenario(?:\s*\d{1,4})?\s*[:：]\s*(?P<name>.+)", re.IGNORECASE | re.DOTALL)
_QUOTED: Final = re.compile(r"[`\s]*#{0,6}\s*Requirement\s*[:：]\s*(?P<name>[^`\n]+)", re.IGNORECASE)
_RENAME: Final = re.compile(
    r"[*_\s]*(?P<side>FROM|TO)[*_\s]*[:：][*_\s]*(?P<rest>.+)", re.IGNORECASE | re.DOTALL
)
_ID_IN_NAME: Final = re.compile(rf"(?<![\w-]){ID}")
_CHANGES: Final[dict[str, Change]] = {
    "ADDED": "added",
    "MODIFIED": "modified",
    "REMOVED": "removed",
    "RENAMED": "renamed",
}


def is_openspec(path: str) -> bool:
    """Whether it is a capability's specification or a change's delta, by its place."""
    return _PATH.fullmatch(path) is not None


def read_openspec(path: str, markdown: Markdown) -> DocumentFacts:
    """Everything that it says. The specification is the folder, of a delta that in the change. O(n)."""
    place = _PATH.fullmatch(path)
    notes: list[Note] = []
    found = list(_requirements(markdown))
    if not found and markdown.blocks:
        notes.append(Note(code="unknown_format", line=1, detail="no requirement heading"))
    requirements = with_unique_ids(found, notes)
    for requirement in requirements:
        notes += open_questions(requirement)
    return DocumentFacts(
        path=path,
        format="openspec",
        spec_id=path.removesuffix("/spec.md"),
        title=sections.title(markdown),
        summary=_purpose(markdown) or sections.summary(markdown),
        status=sections.status(markdown),
        is_archived=bool(place and place["archive"]),
        line_count=len(markdown.lines),
        requirements=tuple(requirements),
        notes=(*markdown.notes, *notes),
    )


def truth_of(spec_id: str) -> str:
    """The specification that a delta's folder alters; the empty string for one that is no delta."""
    place = _PATH.fullmatch(f"{spec_id}/spec.md")
    if place is None or not place["change"]:
        return ""
    return f"{spec_id[: spec_id.index('openspec/changes/')]}openspec/specs/{place['capability']}"


def _purpose(markdown: Markdown) -> str:
    for index, block in enumerate(markdown.blocks):
        if block.kind == "heading" and plain(block.text).lower() == "purpose":
            text = markdown.source(block.end + 1, markdown.last_line(index, markdown.section(index)))
            return text[: sections.MAX_SUMMARY_CHARS]
    return ""


@dataclass(slots=True)
class _State:
    change: Change = ""
    delta_level: int = 0
    requirement: str = ""
    renamed_from: str = ""


def _requirements(markdown: Markdown) -> Iterator[Requirement]:
    state = _State()
    for index, block in enumerate(markdown.blocks):
        if block.is_quoted:
            continue
        if block.kind == "heading":
            yield from _from_heading(markdown, index, state)
        elif block.kind in {"item", "paragraph"} and state.change == "renamed":
            yield from _renamed(block.text, block.start, state)
        elif block.kind == "item" and state.change == "removed" and not state.requirement:
            match = _QUOTED.match(block.text)
            if match:
                name = match["name"].strip()
                yield _named(name, "", block.start, block.end, state)


def _from_heading(markdown: Markdown, index: int, state: _State) -> Iterator[Requirement]:
    block = markdown.blocks[index]
    heading = plain(block.text)
    delta = _DELTA.match(heading)
    requirement = _REQUIREMENT.match(heading)
    scenario = _SCENARIO.match(heading)
    if delta:
        state.change, state.delta_level = _CHANGES[delta["change"].upper()], block.level
        state.requirement = state.renamed_from = ""
    elif requirement:
        name = " ".join(requirement["name"].split())
        section_end = _text_end(markdown, index)
        state.requirement = name
        text = markdown.source(block.end + 1, section_end)
        yield _named(name, text, block.start, max(block.end, _block_end(markdown, index)), state)
    elif scenario and state.requirement:
        end = _text_end(markdown, index)
        text = markdown.source(block.end + 1, end)
        name = " ".join(scenario["name"].split())
        level, negated = modality(text)
        yield Requirement(
            id=f"{state.requirement}/{name}",
            kind="scenario",
            title=one_line(name),
            text=text,
            parent=state.requirement,
            status=status_in_text(name),
            modality=level,
            negated=negated,
            change=state.change,
            start_line=block.start,
            end_line=max(block.end, end),
        )
    elif block.level <= max(state.delta_level, 2):
        state.requirement = ""
        if block.level <= state.delta_level:
            state.change = ""


def _named(name: str, text: str, start: int, end: int, state: _State) -> Requirement:
    level, negated = modality(text)
    aliases = tuple(dict.fromkeys(match[0] for match in _ID_IN_NAME.finditer(name) if match[0] != name))
    return Requirement(
        id=name,
        title=one_line(name),
        text=text,
        status=status_in_text(name),
        modality=level,
        negated=negated,
        change=state.change,
        renamed_from=state.renamed_from,
        aliases=aliases,
        start_line=start,
        end_line=end,
    )


def _text_end(markdown: Markdown, index: int) -> int:
    """The last line before the next requirement, scenario or delta heading, or the section's end."""
    section = markdown.section(index)
    for position in section:
        block = markdown.blocks[position]
        if block.kind == "heading" and _is_own_heading(plain(block.text)):
            return markdown.blocks[position - 1].end
    return markdown.last_line(index, section)


def _block_end(markdown: Markdown, index: int) -> int:
    """The last line of a requirement with its scenarios, even those whose heading is as high as its own."""
    end = markdown.last_line(index, markdown.section(index))
    position = markdown.section(index).stop
    while position < len(markdown.blocks):
        block = markdown.blocks[position]
        if block.kind != "heading" or not _SCENARIO.match(plain(block.text)):
            break
        section = markdown.section(position)
        end, position = markdown.last_line(position, section), section.stop
    return end


def _is_own_heading(heading: str) -> bool:
    return any(form.match(heading) for form in (_REQUIREMENT, _SCENARIO, _DELTA))


def _renamed(text: str, start: int, state: _State) -> Iterator[Requirement]:
    """`FROM:` and `TO:` lines, each quoting a heading."""
    for number, line in enumerate(text.split("\n"), start=start):
        match = _RENAME.match(line)
        name = _QUOTED.match(match["rest"]) if match else None
        if match is None:
            continue
        value = (name["name"] if name else match["rest"].strip("` ")).strip()
        if match["side"].upper() == "FROM":
            state.renamed_from = value
        elif state.renamed_from:
            yield _named(value, "", number, number, state)
            state.renamed_from = ""
