"""A file's own explanation of its marks: "Legend", "Status", "Key" with a list, a line or a table below."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from schemas.codes import StepStatus
from worker.code.documents.wording import plain
from worker.plans.outline import Entry, Outline, letter_box
from worker.plans.statuses import status_in_legend, status_of_word

_SURE: Final = re.compile(
    r"(?:(?:status|task|check ?box|mark(?:er)?|symbol|progress|icon)s?\s+)?"
    r"(?:legend|key|notation|symbols|marks|markers|legende|leyenda|légende|图例|圖例|凡例|범례|легенда"
    r"|chú thích|legenda)"
    r"\s*(?:[:：(—–-]|\Z)",
    re.IGNORECASE,
)
_PERHAPS: Final = re.compile(
    r"(?:task\s+)?status(?:es)?\s*(?:legend|key|values|markers|codes)?\s*[:：]?\s*\Z", re.IGNORECASE
)
_WORDS: Final = (
    *(
        "legend",
        "key",
        "notation",
        "symbols",
        "marks",
        "markers",
        "leyenda",
        "légende",
        "图例",
        "圖例",
        "凡例",
    ),
    *("범례", "легенда", "chú thích", "status"),
)
"""One of them stands wherever the two above match, and is found much faster."""
_LABEL_CHARS: Final = 60
_SEPARATOR: Final = r"\s*(?:[=:：→–—-]+>?|\bmeans\b)\s*"
_EXPLAINED: Final = re.compile(
    rf"`?\[(?P<mark>[^\[\]\n])\]`?{_SEPARATOR}(?P<text>\S.*)\Z"
    rf"|(?P<sign>[^\w\s\[\](){{}}`*_.,:;=|/\\<>\"'-])\ufe0f?{_SEPARATOR}(?P<meaning>\S.*)\Z"
)
_INLINE: Final = re.compile(r"`?\[(?P<mark>[^\[\]\n])\]`?\s*[=:：→–—-]*\s*(?P<text>[^,;|·\[\]`\n]{1,80})")
_BOX_CELL: Final = re.compile(r"`?\[(?P<mark>[^\[\]\n])\]`?\Z")
_MARK_COLUMNS: Final = frozenset(
    {"mark", "marker", "symbol", "box", "checkbox", "icon", "status", "legend", "key", "sign", ""}
)
_MEANING_COLUMNS: Final = frozenset(
    {"meaning", "status", "description", "state", "explanation", "means", "definition"}
)
_BACKTICKED: Final = re.compile(r"`\[(?P<mark>[^\[\]\n])\]`(?:" + _SEPARATOR + r"|\s+)(?P<text>\S.*)\Z")
_MAX_WORDS: Final = 12


@dataclass(frozen=True, slots=True)
class Legend:
    """What a file's marks mean, and which places of the outline explain them and are no steps."""

    meanings: Mapping[str, StepStatus | None]
    """None where the explanation holds no known word; the mark is a mark all the same."""
    places: frozenset[int]

    def status(self, mark: str) -> StepStatus | None:
        """What the legend says of a mark. None where it is silent."""
        return self.meanings.get(_fold(mark))

    def is_mark(self, letter: str) -> bool:
        """Whether the legend makes a mark of a letter."""
        return letter in self.meanings


def read_legend(outline: Outline) -> Legend:
    """The legend of a file, empty where it has none. The first explanation of a mark counts. O(n)."""
    places: set[int] = set()
    explained: list[tuple[str, str]] = []
    for place, entry in enumerate(outline.entries):
        is_sure = _announces(entry, _SURE)
        if place in places or not (is_sure or _announces(entry, _PERHAPS)):
            continue
        pairs = [(match["mark"], match["text"]) for match in _INLINE.finditer(entry.text)] if is_sure else []
        found = _run(outline, place, is_sure=is_sure)
        explained += (*pairs, *found.values())
        places.update(found, [place] if pairs else [])
    for found in (_table_rows(outline), _backticked(outline)):
        explained += found.values()
        places.update(found)
    meanings: dict[str, StepStatus | None] = {}
    for mark, text in explained:
        meanings.setdefault(_fold(mark), status_in_legend(text))
    return Legend(meanings, frozenset(places))


def _fold(mark: str) -> str:
    return mark.replace("\ufe0f", "").strip() or " "


def _announces(entry: Entry, pattern: re.Pattern[str]) -> bool:
    if entry.mark is not None or entry.kind not in {"heading", "text", "item"}:
        return False
    start = entry.text[:_LABEL_CHARS].lower()
    return any(word in start for word in _WORDS) and bool(pattern.match(plain(entry.text[:200])))


def _run(outline: Outline, place: int, *, is_sure: bool) -> dict[int, tuple[str, str]]:
    """The items right below a label or heading, where they explain a mark each."""
    found: dict[int, tuple[str, str]] = {}
    has_separator = True
    label = outline.entries[place]
    for below in range(place + 1, len(outline.entries)):
        entry = outline.entries[below]
        if entry.kind == "text" and is_sure and not found and label.kind == "heading":
            continue
        if entry.kind != "item" and not (is_sure and entry.kind == "text" and _EXPLAINED.match(entry.text)):
            break
        explained = _explained(entry)
        if explained is None:
            break
        mark, text, separated = explained
        has_separator = has_separator and separated
        known = status_in_legend(text) if separated else status_of_word(text)
        if not is_sure and known in {None, "unknown"}:
            break
        found[below] = (mark, text)
    marks = [mark for mark, _ in found.values()]
    if len(set(marks)) < len(marks) or (len(marks) < 2 and not has_separator):  # noqa: PLR2004 (one explains nothing)
        return {}
    return found


def _explained(entry: Entry) -> tuple[str, str, bool] | None:
    """The mark that an entry explains, the explanation, and whether a sign stands between them."""
    match = _EXPLAINED.match(entry.text)
    if match:
        return match["mark"] or match["sign"], match["text"] or match["meaning"], True
    mark, text = (entry.mark, entry.text) if entry.mark is not None else letter_box(entry.text)
    if mark is None or len(text.split()) > _MAX_WORDS:
        return None
    separated = re.match(r"[=:：→–—-]", text) is not None
    return mark, text, separated


def _table_rows(outline: Outline) -> dict[int, tuple[str, str]]:
    """Rows of a table of two or three columns: marks in the first, what they mean in the second."""
    found: dict[int, tuple[str, str]] = {}
    for place, entry in enumerate(outline.entries):
        block = entry.block
        if block is None or len(block.header) not in {2, 3}:
            continue
        names = [plain(name).lower() for name in block.header[:2]]
        cell = _BOX_CELL.match(block.cells[0])
        if names[0] in _MARK_COLUMNS and names[1] in _MEANING_COLUMNS and cell:
            found[place] = (cell["mark"], block.cells[1])
    return found


def _backticked(outline: Outline) -> dict[int, tuple[str, str]]:
    """A list of at least two marks in back-ticks, whatever stands above it."""
    found: dict[int, tuple[str, str]] = {}
    for place, entry in enumerate(outline.entries):
        if entry.kind == "item":
            match = _BACKTICKED.match(_as_written(outline, entry))
            if match and len(match["text"].split()) <= _MAX_WORDS:
                found[place] = (match["mark"], match["text"])
    return found if len({mark for mark, _ in found.values()}) > 1 else {}


def _as_written(outline: Outline, entry: Entry) -> str:
    return re.sub(r"\A\s*(?:[-*+•]|\d{1,9}[.)])\s+", "", outline.source.visible[entry.line - 1][:500])
