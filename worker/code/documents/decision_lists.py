"""Many decisions in one file: headings `D7: …`, tables with a Decision column, bullets of a decision log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from worker.code.documents.decision_words import DATE, STATUS_LABELS, read_status, references, targets
from worker.code.documents.markdown import Block, Markdown
from worker.code.documents.naming import nested_text, unique_ids
from worker.code.documents.results import Decision, Note, Reference
from worker.code.documents.wording import one_line, plain

_HEADING: Final = re.compile(
    r"[*_`\[~]*(?P<id>(?:D|DEC|AD|ADR|DR|DD|KD|ADL)-?\d{1,6}[a-z]?)\b"
    r"[*_`\]~]*\s*(?:[:：.—–-]|\s)[*_]*\s*(?P<title>\S.*)",
    re.DOTALL,
)
_LIST_TITLE: Final = re.compile(
    r"\bdecisions\b|\bdecision (?:log|register)|决策|決定事項|решения"
    r"|decisiones|decisões|entscheidungen",
    re.IGNORECASE,
)
_DECISION_COLUMN: Final = frozenset(
    {"decision", "决策", "決定", "решение", "decisión", "decisão", "entscheidung"}
)
_SENTENCE: Final = re.compile(r"(?<=[^\W\d]{2}[.!?])\s+(?=\S)|(?<=[。！？])")
_MAX_TITLE_WORDS: Final = 6
_MAX_PAGE_TITLE_WORDS: Final = 3
_LOG_COLUMNS: Final = frozenset({"id", "#", "no", "no.", "date", "status", "when", "decided"})
_LABELLED: Final = re.compile(
    r"[*_]*Decision(?:\s*#?\d{1,4})?[*_]*\s*[:：][*_]*\s*(?P<title>.+)", re.IGNORECASE | re.DOTALL
)
_PART: Final = re.compile(
    r"(?:^|\n|\s/\s)\s*(?:[-*]\s+)?[*_]*(?P<name>Rationale|Date(?:/Author)?|Author|Status|Why|Alternatives)[*_]*\s*[:：]",
    re.IGNORECASE,
)
_STAMP: Final = re.compile(
    r"[*_(\[`]*\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?"
    r"\s?(?:Z|[A-Z]{2,4}|[+-]\d{2}:?\d{2})?)?[*_)\]`]*\s*[:：—–|-]*\s*"
)
_SUB_HEADING: Final = re.compile(
    r"(?:Decision\s*(?:#?\d{1,4})?\s*[:：.—–-]\s*|\d{1,4}[.)]\s*)", re.IGNORECASE
)
_STATUS: Final = re.compile(
    rf"\s*(?:[-*>]\s*)*[*_]*(?:{STATUS_LABELS})[*_]*\s*[:：][*_]*\s*(?P<value>.+)", re.IGNORECASE
)
_FIELD: Final = re.compile(
    r"\s*(?:[-*>]\s*)*[*_]*(?P<name>Supersedes|Superseded[ _-]?by)[*_]*\s*[:：][*_]*\s*(?P<value>.+)",
    re.IGNORECASE,
)
_TOUCHES: Final = re.compile(
    r"\s*(?:[-*>]\s*)*[*_]*(?:Touches|Affects|Applies to|Files|Implementation)[*_]*\s*[:：]", re.IGNORECASE
)


def may_hold_decisions(text: str) -> bool:
    """False where a text surely lists none."""
    return (
        _LIST_TITLE.search(text) is not None
        or "ecision" in text
        or re.search(r"^#+ D\d", text, re.MULTILINE) is not None
    )


def find_decisions(path: str, markdown: Markdown) -> tuple[list[Decision], list[Note]]:
    """The decisions that the file lists, in document order, and the notes on them. O(n)."""
    lists = _list_sections(path, markdown)
    notes: list[Note] = []
    found: dict[int, Decision] = {}
    headed = [
        index
        for index, block in enumerate(markdown.blocks)
        if block.kind == "heading" and _HEADING.match(block.text)
    ]
    for index in headed:
        match = _HEADING.match(markdown.blocks[index].text)
        if match and (len(headed) > 1 or not re.match(r"D\d", match["id"]) or index in lists.inside):
            found[index] = _section_decision(markdown, index, match["id"], match["title"])
    covered = {position for index in found for position in markdown.section(index)}
    for index, block in enumerate(markdown.blocks):
        if index in covered or index in found or block.is_quoted:
            continue
        decision = None
        if block.kind == "heading" and index in lists.headings:
            title = _SUB_HEADING.sub("", plain(block.text), count=1)
            decision = _section_decision(markdown, index, "", title)
            covered.update(markdown.section(index))
        elif block.kind == "row":
            decision = _from_row(block, is_listed=index in lists.inside)
        elif block.kind == "item" and not block.level:
            decision = _from_item(markdown, index, is_listed=index in lists.items)
        if decision is not None:
            found[index] = decision
    folder = path.rpartition("/")[0]
    ordered = [_with_references(found[index], folder, notes) for index in sorted(found)]
    names = iter(unique_ids(((one.id, one.start_line) for one in ordered if one.id), notes))
    return [replace(one, id=next(names)) if one.id else one for one in ordered], notes


@dataclass(frozen=True, slots=True)
class _Lists:
    inside: frozenset[int]
    """Blocks below a heading that announces decisions, or of a file whose name does."""
    headings: frozenset[int]
    """Of them, headings that are one decision each."""
    items: frozenset[int]
    """Of them, list items that are one decision each."""


def _list_sections(path: str, markdown: Markdown) -> _Lists:
    inside: set[int] = set()
    headings: set[int] = set()
    items: set[int] = set()
    if "decision" in path.rpartition("/")[2].lower():
        inside.update(range(len(markdown.blocks)))
    end = 0
    for index, block in enumerate(markdown.blocks):
        if index < end or block.kind != "heading" or not _announces_decisions(block):
            continue
        section = markdown.section(index)
        below = [position for position in section if markdown.blocks[position].kind == "heading"]
        if block.level == 1 and any(_announces_decisions(markdown.blocks[position]) for position in below):
            # The document's title; what lists the decisions is a heading further down.
            continue
        end = section.stop
        inside.update(section)
        top = min((markdown.blocks[position].level for position in below), default=0)
        if below:
            headings.update(position for position in below if markdown.blocks[position].level == top)
        else:
            items.update(position for position in section if markdown.blocks[position].kind == "item")
    return _Lists(frozenset(inside), frozenset(headings), frozenset(items))


def _announces_decisions(heading: Block) -> bool:
    """Whether a heading lists what was decided; one that is a sentence, or names a whole page, does not."""
    text = plain(heading.text)
    most = _MAX_PAGE_TITLE_WORDS if heading.level == 1 else _MAX_TITLE_WORDS
    return _LIST_TITLE.search(text) is not None and len(text.split()) <= most


def _section_decision(markdown: Markdown, index: int, literal: str, title: str) -> Decision:
    block = markdown.blocks[index]
    last = markdown.last_line(index, markdown.section(index))
    text = markdown.source(block.end + 1, last)
    return _decision(literal, title, text, block.start, max(block.end, last))


def _from_row(block: Block, *, is_listed: bool) -> Decision | None:
    names = [plain(cell).lower() for cell in block.header]
    column = next((n for n, name in enumerate(names) if name in _DECISION_COLUMN), -1)
    if column < 0 or not block.cells[column].strip(" -—_") or not (is_listed or _LOG_COLUMNS & set(names)):
        return None
    cells = dict(zip(names, block.cells, strict=False))
    literal = next(
        (plain(cells[name]).strip("`") for name in ("id", "#", "no", "no.", "adr") if name in cells), ""
    )
    link = re.match(r"\[[^\]]*\]\([^)]*\.md\)", block.cells[column])
    if link or any(".md)" in cell for cell in block.cells):
        # A row of an index; the record speaks for itself.
        return None
    decision = _decision(literal, block.cells[column], block.text, block.start, block.end)
    status = read_status(cells.get("status", ""))
    date = DATE.search(cells.get("date", ""))
    return replace(
        decision,
        status=status.status or decision.status,
        raw_status=cells.get("status", ""),
        date=date[0] if date else decision.date,
    )


def _from_item(markdown: Markdown, index: int, *, is_listed: bool) -> Decision | None:
    block = markdown.blocks[index]
    text = f"{block.text}\n{nested_text(markdown, index)}".strip()
    stamp = _STAMP.match(text)
    body = text[stamp.end() :] if stamp else text
    labelled = _LABELLED.match(body)
    if not labelled and not is_listed:
        return None
    named = _HEADING.match(body)
    title = (
        labelled["title"] if labelled else (named["title"] if named else _SENTENCE.split(body, maxsplit=1)[0])
    )
    literal = named["id"] if named and not labelled else ""
    if labelled and not is_listed and not _PART.search(text):
        return None
    if not title.strip():
        return None
    decision = _decision(literal, title, text, block.start, block.end)
    date = DATE.search(stamp[0]) if stamp else None
    return replace(decision, date=date[0]) if date else decision


def _decision(literal: str, title: str, text: str, start: int, end: int) -> Decision:
    part = _PART.search(title)
    short = re.sub(r"\A[*_]+|[*_]+\Z", "", title[: part.start()] if part else title).strip()
    first = short.split("\n\n", 1)[0]
    raw, supersedes, superseded_by = "", list[str](), list[str]()
    for line in text.split("\n"):
        status = _STATUS.match(line)
        field = _FIELD.match(line)
        if status and not raw:
            raw = one_line(status["value"])
        if field:
            chosen = supersedes if field["name"].lower() == "supersedes" else superseded_by
            chosen += targets(field["value"])
    words = read_status(raw)
    stamp = _STAMP.match(title)
    date = DATE.search(stamp[0] if stamp else "") or DATE.search(_date_part(text))
    return Decision(
        id=literal,
        title=one_line(first[stamp.end() :] if stamp and stamp.end() < len(first) else first),
        text=text or short,
        status=words.status,
        raw_status=raw,
        date=date[0] if date else "",
        supersedes=tuple(dict.fromkeys((*words.supersedes, *supersedes))),
        superseded_by=tuple(dict.fromkeys((*words.superseded_by, *superseded_by))),
        start_line=start,
        end_line=end,
    )


def _date_part(text: str) -> str:
    match = re.search(r"\bDate(?:/Author)?[*_]*\s*[:：][^\n]{0,80}", text, re.IGNORECASE)
    return match[0] if match else ""


def _with_references(decision: Decision, folder: str, notes: list[Note]) -> Decision:
    lines: Sequence[str] = f"{decision.title}\n{decision.text}".split("\n")
    found = dict.fromkeys(_references(lines, decision, folder, notes))
    return replace(decision, applies_to=tuple(found))


def _references(
    lines: Sequence[str], decision: Decision, folder: str, notes: list[Note]
) -> Iterator[Reference]:
    for line in lines:
        is_list = _TOUCHES.match(line) is not None
        for reference, unexpanded in references(
            [(decision.start_line, line)], folder=folder, is_list=is_list
        ):
            if unexpanded:
                notes.append(Note(code="range_unexpanded", line=decision.start_line, detail=unexpanded))
            elif reference.value:
                yield reference
