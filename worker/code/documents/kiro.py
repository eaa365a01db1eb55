"""Kiro's `requirements.md` and `bugfix.md`: numbered requirements with numbered acceptance criteria.

A requirement's id is its number, a criterion's `N.k` by the number printed. What stands in the glossary is
no requirement. Headings may be in any language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from worker.code.documents import sections
from worker.code.documents.markdown import Block, Markdown
from worker.code.documents.naming import nested_text, open_questions, with_unique_ids
from worker.code.documents.results import DocumentFacts, Note, Requirement
from worker.code.documents.wording import modality, one_line, plain, status_in_text

_WORDS: Final = (
    r"(?:Non-Functional\s+)?Requirements?|Requisito|Requerimiento|Exigence|Anforderung|Требование|Yêu cầu|"
    r"需求|要求|要件|요구\s?사항|Wymaganie"
)
_KNOWN: Final = re.compile(
    rf"(?:{_WORDS})\s*#?(?P<number>[A-Z]{{0,4}}-?\d{{1,6}}(?:\.\d{{1,6}})*)(?![\w-])\s*[:：.—–-]?\s*(?P<title>.*)",
    re.IGNORECASE | re.DOTALL,
)
_ANY_NUMBERED: Final = re.compile(
    r"[^\W\d]+(?:\s[^\W\d]+)?\s*#?(?P<number>\d{1,6})\s*(?:[:：.—–-]\s*(?P<title>.*)|\Z)", re.DOTALL
)
_ACCEPTANCE: Final = re.compile(
    r"acceptance|criteri|критери|验收|驗收|受け入れ|受入|인수|수락|tiêu chí|akzeptanz|kryteri", re.IGNORECASE
)
_GLOSSARY: Final = re.compile(
    r"(?:\d+\.\s*)?"
    r"(?:Glossary|Glosario|Glossário|Glossaire|Glossar|Глоссарий|术语|術語|用語|용어|Thuật ngữ|Słownik)",
    re.IGNORECASE,
)
_STORY: Final = re.compile(r"\s*[*_]{2}[^*_\n]{1,40}[*_]{2}")
_DOTTED: Final = re.compile(
    r"[*_`]*(?P<group>\d{1,6})\.(?P<number>\d{1,6})[.)]?[*_`]*[:.]?\s+(?P<text>.+)", re.DOTALL
)
_EARS: Final = (
    ("event", r"(?:AND\s+)?WHEN\b"),
    ("unwanted", r"IF\b"),
    ("state", r"WHILE\b"),
    ("feature", r"WHERE\b"),
    ("ubiquitous", r"(?:THE|ALL|EACH|EVERY)\b.*\bSHALL\b"),
)
_PATTERNS: Final = tuple((name, re.compile(pattern, re.DOTALL)) for name, pattern in _EARS)
_PATH: Final = re.compile(r"(?:^|/)\.kiro/specs/(?:[^/]+/)+(?P<name>requirements|bugfix)\.md$")


def is_kiro(path: str) -> bool:
    """Whether it is a requirements or bug fix document of Kiro, by its place."""
    return _PATH.search(path) is not None


def read_kiro(path: str, markdown: Markdown) -> DocumentFacts:
    """Everything that it says. The specification is the folder. O(n)."""
    notes: list[Note] = []
    blocks = markdown.blocks
    found = list(_requirements(markdown, _KNOWN))
    if not found and path.endswith("/requirements.md"):
        found = list(_requirements(markdown, _ANY_NUMBERED))
    if not found:
        found = list(_bug_groups(markdown))
    requirements = with_unique_ids(found, notes)
    for requirement in requirements:
        notes += open_questions(requirement)
    if blocks and not requirements:
        notes.append(Note(code="unknown_format", line=1, detail="no numbered requirement"))
    return DocumentFacts(
        path=path,
        format="kiro",
        spec_id=path.rpartition("/")[0],
        title=sections.title(markdown),
        summary=sections.summary(markdown),
        status=sections.status(markdown),
        line_count=len(markdown.lines),
        requirements=tuple(requirements),
        notes=(*markdown.notes, *notes),
    )


def ears_pattern(text: str) -> str:
    """Which of the five EARS patterns a criterion follows, or the empty string."""
    words = plain(text)
    return next((name for name, pattern in _PATTERNS if pattern.match(words)), "")


def _requirements(markdown: Markdown, form: re.Pattern[str]) -> Iterator[Requirement]:
    glossary = _glossary(markdown)
    for index, block in enumerate(markdown.blocks):
        if block.kind != "heading" or index in glossary:
            continue
        match = form.match(plain(block.text))
        if match is None:
            continue
        section = _own_section(markdown, index, form)
        number = match["number"]
        items = _criteria_items(markdown.blocks, section)
        first = markdown.blocks[items[0]].start - 1 if items else markdown.last_line(index, section)
        text = markdown.source(block.end + 1, _before_heading(markdown, section, first))
        level, negated = modality(text)
        yield Requirement(
            id=number,
            title=one_line(match["title"] or "") or one_line(block.text),
            text=text,
            status=status_in_text(match["title"] or ""),
            modality=level,
            negated=negated,
            start_line=block.start,
            end_line=max(block.end, markdown.last_line(index, section)),
        )
        for position in items:
            yield _criterion(markdown, position, number)


def _own_section(markdown: Markdown, index: int, form: re.Pattern[str]) -> range:
    """A requirement's blocks, up to the next requirement of whatever level."""
    section = markdown.section(index)
    for position in section:
        block = markdown.blocks[position]
        if block.kind == "heading" and form.match(plain(block.text)):
            return range(section.start, position)
    return section


def _before_heading(markdown: Markdown, section: range, last: int) -> int:
    """The line before the heading, or label, that stands directly above line `last`."""
    for position in section:
        block = markdown.blocks[position]
        is_label = block.kind == "paragraph" and len(block.text) < 80 and _ACCEPTANCE.search(block.text)  # noqa: PLR2004 (a label is short)
        if block.start <= last and (block.kind == "heading" or is_label):
            return block.start - 1
    return last


def _criteria_items(blocks: Sequence[Block], section: range) -> list[int]:
    """The ordered items below the acceptance heading or label; where none is known, all of them."""
    known: list[int] = []
    every: list[int] = []
    is_acceptance = False
    for position in section:
        block = blocks[position]
        if block.kind == "heading":
            is_acceptance = _ACCEPTANCE.search(block.text) is not None
        elif block.kind == "paragraph" and not block.level and _STORY.match(block.text):
            is_acceptance = is_acceptance or _ACCEPTANCE.search(block.text) is not None
        elif block.kind == "item" and not block.level and not block.is_quoted:
            if not block.marker and not _DOTTED.match(block.text):
                continue
            every.append(position)
            known += [position] if is_acceptance else []
    return known or every


def _criterion(markdown: Markdown, position: int, number: str) -> Requirement:
    block = markdown.blocks[position]
    dotted = _DOTTED.match(block.text)
    text = dotted["text"] if dotted else block.text
    text = f"{text}\n{nested_text(markdown, position)}".strip()
    literal = f"{dotted['group']}.{dotted['number']}" if dotted else f"{number}.{block.marker}"
    return _worded(literal, number, text, block.start, block.end)


def _worded(literal: str, parent: str, text: str, start: int, end: int) -> Requirement:
    level, negated = modality(text)
    pattern = ears_pattern(text)
    return Requirement(
        id=literal,
        kind="criterion",
        title=one_line(text),
        text=text,
        parent=parent,
        status=status_in_text(text),
        modality=level,
        negated=negated,
        start_line=start,
        end_line=end,
        properties=(("pattern", pattern),) if pattern else (),
    )


def _glossary(markdown: Markdown) -> set[int]:
    inside: set[int] = set()
    for index, block in enumerate(markdown.blocks):
        if index not in inside and block.kind == "heading" and _GLOSSARY.match(plain(block.text)):
            inside.update((index, *markdown.section(index)))
    return inside


@dataclass(slots=True)
class _Group:
    title: str
    start: int
    end: int
    criteria: list[Requirement]


def _bug_groups(markdown: Markdown) -> Iterator[Requirement]:
    """`1.1 WHEN …` below "Current Behavior" and the like: one requirement for each heading's number."""
    groups: dict[str, _Group] = {}
    heading, heading_line = "", 1
    for index, block in enumerate(markdown.blocks):
        if block.kind == "heading":
            heading, heading_line = one_line(block.text), block.start
            continue
        if block.is_quoted or block.level or block.kind not in {"paragraph", "item"}:
            continue
        for start, text in _dotted_lines(block):
            match = _DOTTED.match(text)
            if match is None:
                continue
            end, wording = start + text.count("\n"), match["text"]
            if block.kind == "item":
                end, wording = block.end, f"{wording}\n{nested_text(markdown, index)}".strip()
            group = groups.setdefault(match["group"], _Group(heading, heading_line, end, []))
            group.end = max(group.end, end)
            literal = f"{match['group']}.{match['number']}"
            group.criteria.append(_worded(literal, match["group"], wording, start, end))
    for number, group in groups.items():
        yield Requirement(
            id=number, title=group.title, text=group.title, start_line=group.start, end_line=group.end
        )
        yield from group.criteria


def _dotted_lines(block: Block) -> Iterator[tuple[int, str]]:
    """A paragraph's lines, those that continue a numbered one joined to it."""
    start, held = block.start, list[str]()
    for number, line in enumerate(block.text.split("\n"), start=block.start):
        if held and _DOTTED.match(line):
            yield start, "\n".join(held)
            held = []
        if not held:
            start = number
        held.append(line)
    yield start, "\n".join(held)
