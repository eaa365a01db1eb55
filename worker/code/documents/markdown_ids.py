"""Requirements that Markdown defines by an id: in a heading, in bold at the start of a line, or in a table.

An id is mentioned in many places and defined in one: the place with a heading, else the one in bold, else a
table row with a text column. Rows of traceability tables, lists of ids and ids in prose are mentions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from worker.code.documents.ids import ID, is_requirement_id
from worker.code.documents.markdown import Block, Markdown
from worker.code.documents.naming import dedent, open_questions, with_unique_ids
from worker.code.documents.results import Note, Requirement, RequirementKind
from worker.code.documents.wording import (
    fold_status,
    modality,
    one_line,
    plain,
    status_in_text,
    status_of_mark,
)

_START: Final = re.compile(
    rf"(?:\[(?P<mark>[^\]\n])\]\*?\s+)?(?P<lead>[~*_`\[]*)(?P<id>{ID})(?P<rest>.*)", re.DOTALL
)
_NO_DEFINITION: Final = re.compile(
    r"[*_`~\]]*\s*(?:[,;/+&]|->|→|\.\.|…|[–〜~]\s*\d"
    r"|(?:and|or|to|through|is covered|are covered)\b|[–—-]\s*[*_`]*" + ID + ")"
)
_SEPARATOR: Final = re.compile(r"[\s:：.|—–-]*")
_ID_HEADERS: Final = frozenset(
    {"id", "req", "req id", "requirement id", "#", "no", "no.", "ref", "key", "编号", "番号"}
)
_TEXT_HEADERS: Final = (
    *("requirement", "description", "text", "statement", "title", "summary", "name", "criterion", "criteria"),
    *(
        "user story",
        "story",
        "acceptance",
        "definition",
        "detail",
        "需求",
        "描述",
        "説明",
        "要件",
        "descripción",
    ),
    *(
        "requisito",
        "descrição",
        "описание",
        "требование",
        "beschreibung",
        "anforderung",
        "요구사항",
        "설명",
        "mô tả",
    ),
)
_STATUS_HEADERS: Final = ("status", "state", "状态", "状態", "estado", "статус", "상태")
_MIN_PROSE_WORDS: Final = 4

_HEADING, _BOLD, _ROW = 0, 1, 2


@dataclass(frozen=True, slots=True)
class _Definition:
    strength: int
    id: str
    title: str
    text: str
    status: str
    mark: str
    start: int
    end: int
    parent: str
    own_lines: int = 1
    """How many lines its own paragraph, heading or row has."""


def kind_of(literal: str) -> RequirementKind:
    """What an id's last word says of it: `SC-1` a success measure, `AC-2` a criterion, `US-3` a story."""
    words = literal.rsplit(".", 1)[-1].split("-")
    word = words[-2] if "." in literal else words[0]
    kinds: dict[str, RequirementKind] = {"SC": "success", "AC": "criterion", "US": "story", "STORY": "story"}
    return kinds.get(word, "requirement")


def find_requirements(
    markdown: Markdown, *, plain_items: bool = False, any_id: bool = False
) -> tuple[list[Requirement], list[Note]]:
    """The definitions in document order, and the notes on them.

    With `plain_items` an id followed by a colon at the start of a list item defines without being bold; with
    `any_id` ids whose first word usually names something else (`BUG-1`) define too. O(n).
    """
    found = [
        definition
        for definition in _definitions(markdown, plain_items=plain_items)
        if any_id or is_requirement_id(definition.id)
    ]
    strongest: dict[str, int] = {}
    for definition in found:
        strongest[definition.id] = min(definition.strength, strongest.get(definition.id, _ROW))
    chosen = [definition for definition in found if definition.strength == strongest[definition.id]]
    notes: list[Note] = []
    for definition in chosen:
        notes += _mark_notes(definition)
    defined = {definition.id for definition in chosen}
    worded = _with_sections(markdown, chosen)
    requirements = with_unique_ids((_requirement(definition, defined) for definition in worded), notes)
    for requirement in requirements:
        notes += open_questions(requirement)
    return requirements, notes


def _requirement(definition: _Definition, defined: set[str]) -> Requirement:
    level, negated = modality(definition.text or definition.title)
    parent = definition.id.rsplit(".", 1)[0] if "." in definition.id else definition.parent
    kind = kind_of(definition.id)
    return Requirement(
        id=definition.id,
        kind=kind,
        title=definition.title,
        text=definition.text,
        parent=parent if parent in defined and parent != definition.id and kind == "criterion" else "",
        status=definition.status,
        modality=level,
        negated=negated,
        start_line=definition.start,
        end_line=definition.end,
    )


def _mark_notes(definition: _Definition) -> Iterator[Note]:
    status, is_guess = status_of_mark(definition.mark)
    if is_guess and status == definition.status:
        yield Note(code="mark_guess", line=definition.start, detail=definition.id)


def _definitions(markdown: Markdown, *, plain_items: bool) -> Iterator[_Definition]:
    """Every place that may define, weak ones included."""
    parent = ""
    parent_level = 7
    around: list[tuple[int, str]] = []
    prose_columns: dict[tuple[str, ...], int] = {}
    for index, block in enumerate(markdown.blocks):
        if block.is_quoted:
            continue
        if block.kind == "heading":
            definition = _from_heading(markdown, index)
            if definition is not None:
                if kind_of(definition.id) != "criterion":
                    parent, parent_level = definition.id, block.level
                yield definition
            elif block.level <= parent_level:
                parent, parent_level = "", 7
        elif block.kind in {"item", "paragraph"}:
            while around and around[-1][0] < block.start:
                around.pop()
            above = around[-1][1] if around else parent
            for definition in _from_line(markdown, index, parent=above, plain_items=plain_items):
                if block.kind == "item" and kind_of(definition.id) != "criterion":
                    around.append((block.end, definition.id))
                yield definition
        elif block.kind == "row":
            definition = _from_row(markdown.blocks, index, prose_columns, parent=parent)
            if definition is not None:
                yield definition


def _from_heading(markdown: Markdown, index: int) -> _Definition | None:
    block = markdown.blocks[index]
    match = _START.match(block.text)
    if match is None or _NO_DEFINITION.match(match["rest"]):
        return None
    rest = match["rest"].lstrip("*_`~]")
    # `## FR-1 and friends` is about an id; `## FR-1: text`, `## FR-1 (P1)` and `## FR-1` define it.
    if rest.strip() and not re.match(r"\s*[:：—–.(\[-]|\s+\S", rest):
        return None
    section = markdown.section(index)
    body_end = _own_end(markdown, index, section)
    title = one_line(_SEPARATOR.sub("", rest, count=1))
    status = _status_line(markdown.blocks, section) or status_in_text(rest)
    return _Definition(
        _HEADING, match["id"], title, "", status, "", block.start, max(body_end, block.end), ""
    )


def _with_sections(markdown: Markdown, chosen: Sequence[_Definition]) -> Iterator[_Definition]:
    """The definitions, each with the lines of its section or item that belong to no other."""
    for index, definition in enumerate(chosen):
        first, lines = definition.start + definition.own_lines, list[str]()
        following = index + 1
        while following < len(chosen) and chosen[following].start <= definition.end:
            lines += markdown.lines[first - 1 : chosen[following].start - 1]
            first = max(first, chosen[following].end + 1)
            following += 1
        lines += markdown.lines[first - 1 : definition.end]
        if definition.strength == _HEADING:
            text = "\n".join(lines).strip("\n").rstrip() or definition.title
        else:
            text = f"{definition.text}\n{dedent(lines)}".strip()
        yield replace(definition, text=text)


def _own_end(markdown: Markdown, index: int, section: range) -> int:
    """Where a heading's own text ends: before the next definition by heading below it."""
    for position in section:
        block = markdown.blocks[position]
        if block.kind == "heading" and _START.match(block.text):
            return markdown.blocks[position - 1].end
    return markdown.last_line(index, section)


def _status_line(blocks: Sequence[Block], section: range) -> str:
    """What a `Status:` line within a section's first blocks says."""
    for position in section[:12]:
        block = blocks[position]
        if block.kind == "heading":
            return ""
        for line in block.text.split("\n"):
            match = re.match(r"\s*[*_]*(?:Status|State)[*_]*\s*[:：][*_]*\s*(?P<status>.{1,200})", line)
            if match:
                return fold_status(match["status"])
    return ""


def _from_line(markdown: Markdown, index: int, *, parent: str, plain_items: bool) -> Iterator[_Definition]:
    block = markdown.blocks[index]
    if block.kind == "item":
        definition = _line(block.text, block.start, block.end, parent, plain_items=plain_items)
        if definition is not None:
            yield definition
        return
    # Lines of a paragraph may each hold one; what follows a definition belongs to it.
    lines = block.text.split("\n")
    starts = [n for n, line in enumerate(lines) if _line(line, 1, 1, parent, plain_items=False)]
    for position, first in enumerate(starts):
        last = starts[position + 1] if position + 1 < len(starts) else len(lines)
        text = "\n".join(lines[first:last])
        line = block.start + first
        definition = _line(text, line, line + last - first - 1, parent, plain_items=False)
        if definition is not None:
            yield definition


def _line(text: str, start: int, end: int, parent: str, *, plain_items: bool) -> _Definition | None:
    match = _START.match(text)
    if match is None or _NO_DEFINITION.match(match["rest"]):
        return None
    rest = match["rest"]
    is_labelled = plain_items and rest.lstrip("*_`~] ").startswith((":", "：", "—", "–"))
    if "**" not in match["lead"] and "__" not in match["lead"] and not is_labelled:
        return None
    wording = _SEPARATOR.sub("", rest.lstrip("*_`~]"), count=1)
    wording = re.sub(r"^[*_`]+\s*[:：—–.-]?\s*", "", wording)
    body = _balanced(wording).strip()
    if not body:
        return None
    struck = f"~~{wording}" if "~~" in match["lead"] else wording
    mark = match["mark"] or ""
    status = status_in_text(struck.split("\n\n", 1)[0]) or status_of_mark(mark)[0]
    return _Definition(
        _BOLD, match["id"], one_line(wording), body, status, mark, start, end, parent, text.count("\n") + 1
    )


def _balanced(wording: str) -> str:
    """The wording without closing marks whose opening ones stood before the id."""
    for mark in ("**", "~~"):
        if wording.count(mark) % 2:
            wording = wording.replace(mark, "", 1)
    return wording


def _from_row(
    blocks: Sequence[Block], index: int, prose_columns: dict[tuple[str, ...], int], *, parent: str
) -> _Definition | None:
    block = blocks[index]
    if not block.cells:
        return None
    id_column = _id_column(block)
    match = _START.match(block.cells[id_column]) if id_column is not None else None
    if match is None or id_column is None or match["rest"].strip("*_`~] :."):
        return None
    column = prose_columns.get(block.header)
    if column is None:
        column = prose_columns[block.header] = _text_column(blocks, index, id_column)
    if column < 0 or column == id_column or not block.cells[column]:
        return None
    text = block.cells[column]
    status = ""
    for header, cell in zip(block.header, block.cells, strict=True):
        if plain(header).lower() in _STATUS_HEADERS:
            status = fold_status(cell)
    status = status_in_text(text) or status
    return _Definition(_ROW, match["id"], one_line(text), text, status, "", block.start, block.end, parent)


def _id_column(block: Block) -> int | None:
    """The first of the first three cells that holds an id alone."""
    for column, cell in enumerate(block.cells[:3]):
        match = _START.match(cell)
        if match and not match["rest"].strip("*_`~] :."):
            return column
    return None


def _text_column(blocks: Sequence[Block], index: int, id_column: int) -> int:
    """The column that words the requirement: by its header, else by prose in its cells; -1 for none."""
    header = [plain(cell).lower() for cell in blocks[index].header]
    for wanted in _TEXT_HEADERS:
        for column, name in enumerate(header):
            if column != id_column and wanted in name and name not in _ID_HEADERS:
                return column
    if any(name in _STATUS_HEADERS or name in _ID_HEADERS for name in header) and header[id_column].isascii():
        known = header[id_column] in _ID_HEADERS or "req" in header[id_column]
        if known and all(name.isascii() for name in header):
            return -1
    best, best_words = -1, float(_MIN_PROSE_WORDS)
    rows = _table_rows(blocks, index)
    for column in range(len(header)):
        words = sum(_prose_words(row.cells[column]) for row in rows) / len(rows)
        if column != id_column and words >= best_words:
            best, best_words = column, words + 0.001
    return best


def _table_rows(blocks: Sequence[Block], index: int) -> Sequence[Block]:
    end = index
    while end < len(blocks) and end < index + 50 and blocks[end].header == blocks[index].header:
        end += 1
    return blocks[index:end]


def _prose_words(cell: str) -> int:
    """How many words a cell has that are no ids, paths or code; a CJK character counts as half a word."""
    words = [word for word in plain(cell).split() if not re.search(r"[`/_.]\w|\d", word)]
    wide = sum(1 for char in cell if ord(char) >= 0x2E80)  # noqa: PLR2004 (where CJK radicals begin)
    return len(words) + wide // 2
