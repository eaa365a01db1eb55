"""A plan file opened once: its outline, its legend, its title and goal, the groups and criteria in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from schemas.codes import StepStatus
from worker.code.documents.decision_lists import find_decisions, may_hold_decisions
from worker.code.documents.results import Decision
from worker.code.documents.text_yaml import text_of
from worker.code.documents.wording import plain
from worker.plans.fields import labelled
from worker.plans.legends import Legend, read_legend
from worker.plans.outline import Entry, Outline, read_outline
from worker.plans.results import PlanNote
from worker.plans.source import Source, read_source
from worker.plans.statuses import SaidStatus, exact_status, said_status, without_status
from worker.plans.titles import title_of

_WORK_HEADING: Final = re.compile(
    r"[\W_]*(?:(?:phase|step|task|milestone|day|week|sprint|stage|iteration|fase|etapa|etappe|étape"
    r"|фаза|этап|giai đoạn"
    r"|work package)(?:\s*#?\s*\d|\s+(?-i:[IVX]{1,4}|[A-Z])\b)"
    r"|(?:阶段|階段|第|フェーズ|ステップ|步骤|단계)\s*\d"
    r"|\d{1,3}(?:\.\d{1,3})*[a-z]?[.):：\s]"
    r"|(?:M|WP|P|T)-?\d{1,4}\b)",
    re.IGNORECASE,
)
_CRITERIA: Final = re.compile(
    r"\b(?:acceptance|success|exit|completion|quality)\s+(?:criteria|criterion|gates?|checks?|measures|metrics|tests?)\b"
    r"|\bdefinition\s+of\s+(?:done|ready)\b|\bdone\s+(?:when|criteria)\b|\A\W*(?:pre-?requisites?|criteria)\b|\bchecklist\b"
    r"|验收标准|驗收標準|受け入れ基準|受入基準|인수 기준|критерии"
    r"|critérios de|criterios de|critères|akzeptanzkriterien|tiêu chí",
    re.IGNORECASE,
)
_GOAL_HEADING: Final = re.compile(
    r"\W*(?:\d+[.)]\s*)?(?:goals?|objectives?|purpose|purpose / big picture|overview|summary|why"
    r"|mission|目标|目標|目的|цель|objetivo|ziel)\W*\Z",
    re.IGNORECASE,
)
_MAX_GOAL_CHARS: Final = 1_000
_MAX_LABEL_CHARS: Final = 120


@dataclass(slots=True)
class PlanText:
    """What all parsers of Markdown plans begin with."""

    path: str
    outline: Outline
    legend: Legend
    notes: list[PlanNote]
    _groups: dict[int, tuple[str | None, tuple[str, ...]]] = field(
        default_factory=dict[int, tuple[str | None, tuple[str, ...]]]
    )

    _said: dict[int, SaidStatus | None] = field(default_factory=dict[int, SaidStatus | None])

    @property
    def entries(self) -> Sequence[Entry]:
        """The outline's entries."""
        return self.outline.entries

    @property
    def source(self) -> Source:
        """The file's lines."""
        return self.outline.source

    def title(self) -> str:
        """The first heading without status words, unless it is a step; else the front matter's title."""
        heading = next((entry for entry in self.entries if entry.kind == "heading"), None)
        if heading is None or is_work_heading(heading.text):
            return title_of(text_of(self.source.front.get("title")))
        return title_of(without_status(heading.text))

    def goal(self) -> str:
        """What a `Goal:` line says above the first work heading, else a goal section's first paragraph."""
        for place, entry in enumerate(self.entries):
            if entry.kind == "heading" and is_work_heading(entry.text):
                break
            found = labelled(entry.text) if entry.kind in {"text", "item"} and entry.parent is None else None
            if found and found[0] == "goal" and found[1]:
                return self.paragraph(place, found[1])
        for place, entry in enumerate(self.entries):
            if entry.kind == "heading" and _GOAL_HEADING.match(plain(entry.text)):
                below = next(
                    (p for p in self.outline.below(place) if self.entries[p].kind != "heading"), None
                )
                if below is not None and self.entries[below].kind in {"text", "item"}:
                    return self.paragraph(below, self.entries[below].text)
        return text_of(self.source.front.get("goal"))

    def paragraph(self, place: int, text: str) -> str:
        """A text with the lines that go on with it."""
        lines = [text]
        for following in range(place + 1, min(place + 20, len(self.entries))):
            entry = self.entries[following]
            if entry.kind != "text" or entry.is_after_blank or labelled(entry.text):
                break
            lines.append(entry.text)
        return title_of(" ".join(lines)[:_MAX_GOAL_CHARS])

    def group(self, place: int) -> tuple[str | None, tuple[str, ...]]:
        """The nearest work heading above an entry, else the nearest below the title; and all headings above.

        Both without status words.
        """
        section = self.entries[place].section
        if section is None:
            return None, ()
        if section not in self._groups:
            names = [self.heading_name(above) for above in (section, *self.outline.headings_above(section))]
            work = (
                name
                for name, above in zip(names, (section, *self.outline.headings_above(section)), strict=True)
                if is_work_heading(self.entries[above].text)
            )
            nearest = names[0] if self.entries[section].level > 1 else None
            self._groups[section] = (next(work, nearest), tuple(reversed(names)))
        return self._groups[section]

    def heading_name(self, place: int) -> str:
        """A heading without status words."""
        return title_of(without_status(self.entries[place].text))

    def said_above(self, place: int) -> SaidStatus | None:
        """The status that the nearest heading above an entry, or one above that, bears."""
        section = self.entries[place].section
        if section is None:
            return None
        if section not in self._said:
            own = said_by_heading(self.entries[section].text)
            self._said[section] = own or self.said_above(section)
        return self._said[section]

    def heading_status(self, place: int) -> StepStatus | None:
        """What holds for an entry that has no mark of its own."""
        said = self.said_above(place)
        return said.status if said is not None else None

    def decisions(self) -> tuple[Decision, ...]:
        """The decisions that the file lists."""
        if not may_hold_decisions(self.source.text):
            return ()
        return tuple(find_decisions(self.path, self.source.parse())[0])

    def criteria_scope(self) -> list[bool]:
        """Of each entry whether it stands below "Acceptance criteria", "Checklist" and the like. O(n).

        A heading, a bold label or an item may say so; the title of the whole file does not.
        """
        title = next(places_of(self.entries, "heading"), -1)
        scope: list[bool] = []
        opens: list[bool] = []
        label: tuple[int | None, int] | None = None
        for place, entry in enumerate(self.entries):
            above = entry.parent if entry.parent is not None else entry.section
            is_inside = above is not None and opens[above]
            match entry.kind:
                case "heading":
                    label = None
                    is_title = entry.level == 1 and place == title
                    opens.append(is_inside or (not is_title and is_criteria_heading(entry.text)))
                case "text":
                    if _is_label(entry.text):
                        label = (entry.parent, entry.indent) if is_criteria_heading(entry.text) else None
                    elif entry.is_after_blank and entry.parent is None:
                        label = None
                    opens.append(is_inside)
                case _:
                    is_labelled = label is not None and label[0] == entry.parent and entry.indent >= label[1]
                    is_inside = is_inside or is_labelled
                    is_label = entry.mark is None and _is_label(entry.text)
                    opens.append(is_inside or (is_label and is_criteria_heading(entry.text)))
            scope.append(is_inside)
        return scope


def open_plan(path: str, text: str) -> PlanText:
    """A Markdown plan, read as far as all formats go the same way. O(n)."""
    source = read_source(text)
    outline = read_outline(source)
    return PlanText(path, outline, read_legend(outline), list(source.notes))


def is_work_heading(text: str) -> bool:
    """Whether a heading stands for work: Phase, Step, Task, Milestone and a number, or a number alone."""
    return _WORK_HEADING.match(plain(text[:_MAX_LABEL_CHARS])) is not None


def said_by_heading(text: str) -> SaidStatus | None:
    """The status that a heading bears, or is, as on a board of "To Do", "In Progress" and "Done"."""
    said = said_status(text, is_heading=True)
    if said is None:
        status = exact_status(plain(text))
        return SaidStatus(status, text, "") if status is not None else None
    return said


def is_criteria_heading(text: str) -> bool:
    """Whether a heading or label announces criteria."""
    return _CRITERIA.search(text[:_MAX_LABEL_CHARS]) is not None


def _is_label(text: str) -> bool:
    short = text[: _MAX_LABEL_CHARS + 1]
    return len(short) <= _MAX_LABEL_CHARS and (
        short.rstrip("*_ ").endswith((":", "："))
        or re.match(r"[*_]{2}[^*_]+[*_]{2}\s*[:：]?\s*\Z", short) is not None
    )


def places_of(entries: Sequence[Entry], kind: str) -> Iterator[int]:
    """Where entries of a kind stand."""
    return (place for place, entry in enumerate(entries) if entry.kind == kind)
