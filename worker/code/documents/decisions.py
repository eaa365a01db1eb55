"""Architecture decision records: one decision a file, as Nygard or MADR have it or with lines of fields.

A record is known by its folder or name and by what it says. Templates, indexes and READMEs are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from worker.code.documents.decision_words import (
    DATE,
    STATUS_LABELS,
    number_of,
    read_status,
    references,
    targets,
)
from worker.code.documents.markdown import Markdown
from worker.code.documents.results import Decision, DocumentFacts, Note, Reference
from worker.code.documents.text_yaml import load_front_matter, text_of, texts_of
from worker.code.documents.wording import one_line, plain

_FOLDER: Final = re.compile(
    r"(?:^|/)(?:adrs?|decisions|decision[-_]records?|architecture[-_]decisions?(?:[-_]records?)?|madr)/",
    re.IGNORECASE,
)
_RECORD_NAME: Final = re.compile(
    r"(?P<id>(?:M?ADR|DEC)[-_]?\d{1,6})(?![^\W_])|(?P<number>\d{3,6})[-_.]", re.IGNORECASE
)
_NO_RECORD: Final = re.compile(
    r"(?:readme|_?index|toc|summary|contents|overview|log|about|guide|contributing|changelog)$|template|example",
    re.IGNORECASE,
)
_TEMPLATES: Final = re.compile(r"(?:^|/)templates?/", re.IGNORECASE)
_TITLE: Final = re.compile(
    r"(?:(?P<id>(?:M?ADR|DEC|AD|RFC)[ _-]?#?\d{1,6})|(?:Record\s+)?#?(?P<number>\d{1,6})(?=[.):：]))"
    r"[.):：]?\s*[:：—–-]*\s*",
    re.IGNORECASE,
)
_STATUS_HEADING: Final = re.compile(
    rf"(?:\d+\.\s*)?(?:{STATUS_LABELS})\s*[:：]?\s*(?P<rest>.*)\Z", re.IGNORECASE
)
_SECTION_HEADINGS: Final = re.compile(
    r"(?:\d+\.\s*)?(?P<name>context|decision|consequences|considered options|rationale|alternatives|"
    r"контекст|решение|последствия|背景|决策|決定|结果|影響|contexto|decisión|decisão|kontext|entscheidung)\b",
    re.IGNORECASE,
)
_FIELD: Final = re.compile(
    rf"\s*(?:[-*>|]\s*)*[*_]*(?P<name>{STATUS_LABELS}|Date|Дата|日期|日付|Fecha|Datum|Supersedes|Replaces|"
    r"Superseded[ _-]?by|Replaced[ _-]?by|Touches|Affects|Affected(?: files| code)?|Applies[ _-]to|"
    r"Implementation|"
    r"Files|Code)[*_]*\s*[:：][*_]*[ \t]*(?P<value>.*)\Z",
    re.IGNORECASE,
)
TOUCHED: Final = re.compile(
    r"(?:\d+\.\s*)?(?:touches|touched|affects|affected|applies[ _-]to|implementation|files|code|scope)\b",
    re.IGNORECASE,
)
_MIN_SECTIONS: Final = 2


@dataclass(slots=True)
class _Fields:
    """What the lines and sections of a record say, beside its front matter."""

    status: str = ""
    status_line: int = 0
    date: str = ""
    supersedes: list[str] = field(default_factory=list[str])
    superseded_by: list[str] = field(default_factory=list[str])


def is_index(path: str) -> bool:
    """Whether it stands among decision records without being one: a README, an index, a template."""
    if _TEMPLATES.search(path):
        return True
    stem = path.rpartition("/")[2].rsplit(".", 1)[0]
    return _NO_RECORD.search(stem) is not None and (
        _FOLDER.search(path) is not None or "template" in stem.lower()
    )


def read_record(path: str, markdown: Markdown) -> DocumentFacts | None:
    """The record's one decision; None where the file is no record. O(n)."""
    folder, _, name = path.rpartition("/")
    stem = name.rsplit(".", 1)[0]
    named = _RECORD_NAME.match(stem)
    if _NO_RECORD.search(stem):
        return None
    front: Mapping[str, object] = load_front_matter(markdown.front_matter)
    fields = _fields(markdown)
    if not _is_record(path, markdown, front, fields, is_numbered=named is not None):
        return None
    title, title_id, title_number = _title(markdown, front)
    notes = list(markdown.notes)
    status = _Status(front, fields, notes)
    found = list(_applies_to(markdown, folder, notes))
    number = title_number or number_of(title_id) or (number_of(named[0]) if named else "")
    decision = Decision(
        id=text_of(front.get("id")) or title_id or (named["id"] or "" if named else ""),
        title=title or stem,
        text=markdown.body(),
        status=status.word,
        raw_status=status.raw,
        date=_date(front, fields),
        supersedes=status.supersedes,
        superseded_by=status.superseded_by,
        applies_to=tuple(dict.fromkeys(found)),
        number=number,
        start_line=1,
        end_line=max(len(markdown.lines), 1),
    )
    return DocumentFacts(
        path=path,
        format="adr",
        title=decision.title,
        line_count=len(markdown.lines),
        decisions=(decision,),
        notes=tuple(notes),
    )


def _is_record(
    path: str, markdown: Markdown, front: Mapping[str, object], fields: _Fields, *, is_numbered: bool
) -> bool:
    sections = {
        match["name"].lower()
        for block in markdown.blocks
        if block.kind == "heading" and (match := _SECTION_HEADINGS.match(plain(block.text)))
    }
    has_status = bool(fields.status or text_of(front.get("status")))
    if _FOLDER.search(path):
        return bool(markdown.blocks) and (is_numbered or has_status or "decision" in sections)
    by_name = is_numbered and path.rpartition("/")[2][:1] in "aAmMdD"
    return (by_name and bool(markdown.blocks)) or (
        has_status and "decision" in sections and len(sections) >= _MIN_SECTIONS
    )


class _Status:
    """The status of all that speaks of it: front matter first, the rest kept beside it."""

    def __init__(self, front: Mapping[str, object], fields: _Fields, notes: list[Note]) -> None:
        above, below = read_status(text_of(front.get("status"))), read_status(fields.status)
        if above.status and below.status and above.status != below.status:
            detail = f"{one_line(text_of(front.get('status')))} / {one_line(fields.status)}"
            notes.append(Note(code="status_conflict", line=max(fields.status_line, 1), detail=detail))
        self.word = above.status or below.status
        self.raw = one_line(text_of(front.get("status")) or fields.status)
        supersedes = [*above.supersedes, *below.supersedes, *fields.supersedes]
        superseded_by = [*above.superseded_by, *below.superseded_by, *fields.superseded_by]
        for key, values in front.items():
            name = key.lower().replace("-", "_").replace(" ", "_")
            chosen = {"supersedes": supersedes, "replaces": supersedes, "replaced_by": superseded_by}
            chosen["superseded_by"] = superseded_by
            if name in chosen:
                for value in texts_of(values):
                    chosen[name] += targets(value)
        self.supersedes = tuple(dict.fromkeys(supersedes))
        self.superseded_by = tuple(dict.fromkeys(superseded_by))


def _title(markdown: Markdown, front: Mapping[str, object]) -> tuple[str, str, str]:
    """Title without its number, the id that it begins with, and its number."""
    heading = next((block.text for block in markdown.blocks if block.kind == "heading"), "")
    text = one_line(heading or text_of(front.get("title")))
    match = _TITLE.match(text)
    if match is None:
        return text, "", ""
    number = (match["number"] or "").lstrip("0")
    return text[match.end() :] or text, match["id"] or "", number


def _date(front: Mapping[str, object], fields: _Fields) -> str:
    for text in (text_of(front.get("date")), fields.date, fields.status):
        found = DATE.search(text)
        if found:
            return found[0]
    return text_of(front.get("date")) or fields.date


def _fields(markdown: Markdown) -> _Fields:
    """The first status, by line or by section, the date, and the supersession lines above the last field."""
    fields = _Fields()
    for index, block in enumerate(markdown.blocks):
        if block.kind == "heading":
            match = _STATUS_HEADING.match(plain(block.text))
            if match and not fields.status:
                section = markdown.section(index)
                body = markdown.source(block.end + 1, markdown.last_line(index, section)) if section else ""
                fields.status = match["rest"].strip() or _first_field(body) or body.strip()
                fields.status_line = block.start
            continue
        if block.kind == "fence":
            continue
        lines = (
            [" : ".join(row) for row in (block.header, block.cells)]
            if block.cells
            else block.text.split("\n")
        )
        for number, line in enumerate(lines, start=block.start):
            match = _FIELD.match(line)
            if match:
                _set_field(fields, match["name"].lower(), match["value"], number)
    return fields


def _first_field(body: str) -> str:
    """The value where a status section repeats the label: `Status: Accepted`."""
    match = _FIELD.match(body.strip().split("\n", 1)[0])
    return match["value"] if match and re.fullmatch(STATUS_LABELS, match["name"], re.IGNORECASE) else ""


def _set_field(fields: _Fields, name: str, value: str, line: int) -> None:
    value = value.strip().strip("|").strip()
    if re.fullmatch(STATUS_LABELS, name, re.IGNORECASE):
        if not fields.status:
            fields.status, fields.status_line = value, line
    elif name in {"date", "дата", "日期", "日付", "fecha", "datum"}:
        fields.date = fields.date or value
    elif name in {"supersedes", "replaces"}:
        fields.supersedes += targets(value.strip("[]") if "](" not in value else value)
    elif name.startswith(("superseded", "replaced")):
        fields.superseded_by += targets(value.strip("[]") if "](" not in value else value)


def _applies_to(markdown: Markdown, folder: str, notes: list[Note]) -> Iterator[Reference]:
    is_list = False
    label_level = -1
    for block in markdown.blocks:
        if block.kind == "heading":
            is_list, label_level = TOUCHED.match(plain(block.text)) is not None, -1
            continue
        if block.kind == "fence":
            continue
        lines = block.text.split("\n")
        field_match = _FIELD.match(lines[0])
        is_label = field_match is not None and TOUCHED.match(field_match["name"]) is not None
        if is_label:
            label_level = block.level
        elif block.kind == "paragraph" or (block.kind == "item" and field_match):
            label_level = -1
        in_list = is_list or is_label or (label_level >= 0 and block.kind == "item")
        numbered = enumerate(lines, start=block.start)
        for reference, unexpanded in references(numbered, folder=folder, is_list=in_list):
            if unexpanded:
                notes.append(Note(code="range_unexpanded", line=reference.line, detail=unexpanded))
            elif reference.value:
                yield reference
