"""Steps that are rows of a table with a status column, or with ids of tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from worker.code.documents.wording import plain
from worker.plans.dependencies import wanted_in_field
from worker.plans.drafts import StepDraft
from worker.plans.fields import requirement_ids
from worker.plans.marks import read_mark
from worker.plans.outline import Entry
from worker.plans.paths import listed_paths
from worker.plans.plan_text import PlanText
from worker.plans.pointers import file_status
from worker.plans.results import PlanNote
from worker.plans.titles import split_task, title_of

_COLUMNS: Final[dict[str, str]] = {
    name: known
    for known, names in {
        "title": "task|item|step|feature|description|title|work|what|deliverable|name|milestone"
        "|phase|action|tasks|goal",
        "id": "id|#|no.|no|nr|task id|number|№|ref",
        "status": "status|state|done|done?|progress|✅|complete|completed",
        "depends_on": "depends on|depends|dependencies|blocked by|deps|requires|after|dependency",
        "verify": "acceptance|done when|verification|acceptance criteria|verify|test|tests"
        "|validation|exit criteria",
        "files": "file|files|paths|module",
        "requirements": "requirements|requirement|reqs|req",
        "parallel": "parallel|[p]",
        "notes": "notes|note|comment|comments|details",
    }.items()
    for name in names.split("|")
}
_TASK_ID: Final = re.compile(r"(?:[A-Z]{1,8}[-_.]?\d{1,6}(?:\.\d{1,4})*[a-z]?|\d{1,4}(?:\.\d{1,4})+[a-z]?)\Z")
_NUMBER: Final = re.compile(r"(?:[A-Z]{0,4}-?)\d{1,4}(?:\.\d{1,4})*[a-z]?\Z")
_BOX: Final = re.compile(r"`?\[(?P<mark>[^\[\]]?)\]`?\Z")
_SUM: Final = re.compile(r"\W*(?:total|totals|sum|summe|overall|합계|合计|合計|итого)\b", re.IGNORECASE)
_YES: Final = frozenset({"yes", "y", "true", "x", "✓", "✔", "✅", "[p]", "p"})


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where the columns of a table stand; absent ones are missing."""

    places: dict[str, int]
    box: int | None

    def text(self, cells: Sequence[str], name: str) -> str:
        place = self.places.get(name)
        return cells[place].strip() if place is not None and place < len(cells) else ""


def table_steps(plan: PlanText, notes: list[PlanNote]) -> list[StepDraft]:
    """A step for each row of each table that is a plan. O(n).

    Rows of sums are none, and neither are tables that compare or explain: a plan's table has a status column,
    a box, or ids of tasks.
    """
    steps: list[StepDraft] = []
    for rows in _tables(plan):
        columns = _columns_of([plan.entries[place] for place in rows])
        if columns is not None:
            found = (_row_step(plan, place, columns, notes) for place in rows)
            steps += (step for step in found if step is not None)
    return steps


def _tables(plan: PlanText) -> Iterator[list[int]]:
    """Rows that stand below the same head, without the legend's."""
    rows: list[int] = []
    for place, entry in enumerate(plan.entries):
        if entry.block is None or place in plan.legend.places:
            continue
        if rows and not _goes_on(plan.entries[rows[-1]], entry):
            yield rows
            rows = []
        rows.append(place)
    if rows:
        yield rows


def _goes_on(before: Entry, entry: Entry) -> bool:
    assert before.block is not None  # noqa: S101 (rows have blocks)
    assert entry.block is not None  # noqa: S101 (as above)
    return entry.block.start == before.block.end + 1 and entry.block.header == before.block.header


def _columns_of(rows: Sequence[Entry]) -> _Columns | None:
    block = rows[0].block
    if block is None:
        return None
    cells = [row.block.cells for row in rows if row.block is not None]
    places: dict[str, int] = {}
    for place, name in enumerate(block.header):
        known = _COLUMNS.get(plain(name).strip().lower())
        if known == "title" and "id" not in places and "title" in places:
            # "Phase 1 | Set up": the first of two titles is a number.
            first = places["title"]
            if all(first < len(c) and _NUMBER.match(plain(c[first])) for c in cells):
                places["id"] = places.pop("title")
        if known is not None:
            places.setdefault(known, place)
    boxes = (n for n in range(len(block.header)) if all(n < len(c) and _BOX.match(c[n]) for c in cells))
    box = next(boxes, None)
    if "id" not in places and box is not None:
        # Behind a box stands the id, whatever its column is called.
        with_ids = (
            n
            for n in range(len(block.header))
            if n not in places.values() and all(n < len(c) and _TASK_ID.match(plain(c[n])) for c in cells)
        )
        places.update(("id", n) for n in islice(with_ids, 1))
    if "title" not in places:
        others = (n for n in range(len(block.header)) if n not in places.values() and n != box)
        first = next(others, None)
        if first is None:
            return None
        places["title"] = first
    has_ids = "id" in places and any(
        _TASK_ID.match(plain(c[places["id"]])) for c in cells if places["id"] < len(c)
    )
    return _Columns(places, box) if "status" in places or box is not None or has_ids else None


def _row_step(plan: PlanText, place: int, columns: _Columns, notes: list[PlanNote]) -> StepDraft | None:
    entry = plan.entries[place]
    cells = entry.block.cells if entry.block is not None else ()
    text = columns.text(cells, "title").replace("\\|", "|")
    literal = title_of(columns.text(cells, "id")).strip("`[]") or None
    if (
        not plain(text).strip(" -—")
        or _SUM.match(plain(text))
        or (literal is not None and _SUM.match(literal))
    ):
        return None
    parts = split_task(text)
    if literal is None and parts.leading is not None and parts.leading.is_marked_off:
        word = parts.leading.word
        literal = f"{word.capitalize()} {parts.leading.id}" if word else parts.leading.id
        text = parts.rest
    group, path = plan.group(place)
    step = StepDraft(
        title="",
        line=entry.line,
        printed_id=literal,
        group=group,
        group_path=path,
        section=entry.section,
        parallel=plain(columns.text(cells, "parallel")).lower() in _YES,
    )
    box = _BOX.match(cells[columns.box]) if columns.box is not None else None
    status = columns.text(cells, "status")
    in_status = _BOX.match(status)
    mark = box["mark"] or " " if box else in_status["mark"] or " " if in_status else None
    reading = read_mark(
        mark,
        text,
        legend=plan.legend,
        field="" if in_status else status,
        inherited=plan.heading_status(place) or file_status(plan),
    )
    step.title = title_of(reading.title) or title_of(text)
    step.mark(reading, notes)
    step.take_title(text)
    _take_cells(step, columns, cells, notes)
    return step


def _take_cells(step: StepDraft, columns: _Columns, cells: Sequence[str], notes: list[PlanNote]) -> None:
    unexpanded: list[str] = []
    step.wanted += wanted_in_field(columns.text(cells, "depends_on"), unexpanded)
    requirements, remarks, odd = requirement_ids(columns.text(cells, "requirements"))
    step.requirements += requirements
    step.requirement_notes += remarks
    step.files += listed_paths(columns.text(cells, "files"))
    verify = title_of(columns.text(cells, "verify"))
    step.verify += [verify] if verify.strip("-—") else []
    remark = title_of(columns.text(cells, "notes"))
    step.actions += [remark] if remark.strip("-—") else []
    notes += (PlanNote(kind="range_unexpanded", line=step.line, text=text) for text in (*unexpanded, *odd))
