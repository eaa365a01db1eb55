"""GitHub Spec Kit's `spec.md`: user stories with scenarios, requirements and success measures by id.

Stories are `US1`, their scenarios `US1.1` by the number printed; what was clarified is a list of decisions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from worker.code.documents import sections
from worker.code.documents.markdown import Block, Markdown
from worker.code.documents.markdown_ids import find_requirements
from worker.code.documents.naming import nested_text, open_questions, with_unique_ids
from worker.code.documents.results import Decision, DocumentFacts, Requirement
from worker.code.documents.wording import modality, one_line, plain, status_in_text

_STORY: Final = re.compile(
    r"(?:User Story|Story|用户故事|使用者故事|用戶故事|ユーザーストーリー|사용자 스토리|Historia de Usuario|"
    r"História de Usuário|Пользовательская история|Câu chuyện người dùng|Récit utilisateur)"
    r"\s*#?(?P<number>\d{1,6}[a-z]?)\b\s*[:：.—–-]?\s*(?P<title>.*)",
    re.IGNORECASE | re.DOTALL,
)
_PRIORITY: Final = re.compile(r"\s*[(（]\s*[^()（）\n]{0,30}?(?P<priority>P\d)\s*[)）]")
_LABEL_AT_END: Final = re.compile(r"(?:\A|\n)[ \t]*[*_]{2}[^*_\n]{1,80}[*_]{2}[ \t]*[:：]?[ \t]*\Z")
_GIVEN: Final = re.compile(
    r"[*_]{2}\s*(?:Given|When|Dado|假设|前提|주어진|Дано|假設|给定|給定)", re.IGNORECASE
)
_CLARIFICATIONS: Final = re.compile(
    r"(?:Clarifications?|澄清|明確化|Aclaraciones|Esclarecimentos|Уточнения)\b", re.IGNORECASE
)
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_QUESTION: Final = re.compile(
    r"Q[^:：\n]{0,8}[:：]\s*(?P<question>.*?)\s*(?:→|->|⇒|=>)\s*A\s*[:：]\s*(?P<answer>.*)", re.DOTALL
)
_CANDIDATE_FOLDER: Final = re.compile(r"(?:^|/)specs/(?P<slug>[^/]+)/spec\.md$")


def is_spec_kit(path: str, text: str) -> bool:
    """Whether it is a `spec.md` of Spec Kit: by its folder's number, or by what it says."""
    match = _CANDIDATE_FOLDER.search(path)
    if match and (re.match(r"\d{1,14}-", match["slug"]) or "/.specify/" in f"/{path}"):
        return True
    return path.rsplit("/", 1)[-1] == "spec.md" and (
        "**Feature Branch**" in text or re.search(r"^#{2,4} User Story \d", text, re.MULTILINE) is not None
    )


def read_spec_kit(path: str, markdown: Markdown) -> DocumentFacts:
    """Everything that a `spec.md` says. The specification is the folder. O(n)."""
    found, notes = find_requirements(markdown, plain_items=True, any_id=True)
    stories = with_unique_ids(_stories(markdown), notes)
    for story in stories:
        notes += open_questions(story)
    requirements = sorted((*found, *stories), key=lambda item: item.start_line)
    return DocumentFacts(
        path=path,
        format="spec_kit",
        spec_id=path.rpartition("/")[0] or path,
        title=sections.title(markdown),
        summary=sections.summary(markdown),
        status=sections.status(markdown),
        line_count=len(markdown.lines),
        requirements=tuple(requirements),
        decisions=tuple(_clarifications(markdown)),
        notes=(*markdown.notes, *notes),
    )


def _stories(markdown: Markdown) -> Iterator[Requirement]:
    for index, block in enumerate(markdown.blocks):
        match = _STORY.match(block.text) if block.kind == "heading" else None
        if match is None:
            continue
        story_id = f"US{match['number']}"
        section = markdown.section(index)
        scenarios = [position for position in section if _is_scenario(markdown.blocks[position])]
        first = markdown.blocks[scenarios[0]].start - 1 if scenarios else markdown.last_line(index, section)
        priority = _PRIORITY.search(match["title"])
        yield Requirement(
            id=story_id,
            kind="story",
            title=one_line(_PRIORITY.sub("", match["title"])),
            text=_LABEL_AT_END.sub("", markdown.source(block.end + 1, first)).rstrip(),
            status=status_in_text(match["title"]),
            start_line=block.start,
            end_line=max(block.end, markdown.last_line(index, section)),
            properties=(("priority", priority["priority"]),) if priority else (),
        )
        for ordinal, position in enumerate(scenarios, start=1):
            yield _scenario(markdown, position, story_id, ordinal)


def _is_scenario(block: Block) -> bool:
    if block.kind != "item" or block.level or block.is_quoted:
        return False
    return bool(block.marker) or _GIVEN.match(block.text) is not None


def _scenario(markdown: Markdown, position: int, story_id: str, ordinal: int) -> Requirement:
    block = markdown.blocks[position]
    text = f"{block.text}\n{nested_text(markdown, position)}".strip()
    level, negated = modality(text)
    return Requirement(
        id=f"{story_id}.{block.marker or ordinal}",
        kind="scenario",
        title=one_line(text),
        text=text,
        parent=story_id,
        status=status_in_text(block.text),
        modality=level,
        negated=negated,
        start_line=block.start,
        end_line=block.end,
    )


def _clarifications(markdown: Markdown) -> Iterator[Decision]:
    """`- Q: … → A: …` below "Clarifications", dated by the heading above."""
    for index, heading in enumerate(markdown.blocks):
        if heading.kind != "heading" or not _CLARIFICATIONS.match(heading.text):
            continue
        date = ""
        for position in markdown.section(index):
            block = markdown.blocks[position]
            if block.kind == "heading":
                found = _DATE.search(block.text)
                date = found[0] if found else date
            match = _QUESTION.match(block.text) if block.kind == "item" else None
            if match:
                yield Decision(
                    id="",
                    title=one_line(match["question"]),
                    text=f"{plain(match['question'])} → {plain(match['answer'])}",
                    status="accepted",
                    date=date,
                    applies_to_spec=True,
                    start_line=block.start,
                    end_line=block.end,
                )
