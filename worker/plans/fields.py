"""What stands below a step: labelled fields (`_Requirements: 1.2_`, `**Files:**`) and plain lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from worker.code.documents.ids import is_requirement_id, read_ids
from worker.plans.outline import Entry, Outline
from worker.plans.paths import listed_paths, paths_in
from worker.plans.titles import title_of

FieldName = Literal[
    "status",
    "depends_on",
    "files",
    "goal",
    "verify",
    "expected",
    "requirements",
    "actions",
    "summary",
    "none",
]

_LABELS: Final[dict[FieldName, str]] = {
    "status": "status|state|current status|状态|狀態|状態|статус|estado|상태",
    "depends_on": "depends|depends on|dependencies|dependency|blocked by|requires|after|needs",
    "files": (
        "files|file|create|creates|modify|modifies|paths|leverage|touches|files to create|files to modify"
        "|files touched|key files|affected files|delete"
    ),
    "goal": "goal|goals|objective|purpose|why",
    "verify": (
        "verify|verification|validation|acceptance|acceptance criteria|success criteria|done when"
        "|definition of done|run|independent test|checkpoint|test strategy|how to verify|ac"
        "|test|tests|testing"
        "|exit criteria|validate|check"
    ),
    "expected": "expected|expected output|expected result|expected outcome|expect|output",
    "requirements": "requirements|requirement|reqs|validates|covers|implements|satisfies|traces|refs",
    "actions": "actions|action|steps|what|do|tasks|details|description|prompt",
    "summary": "result|outcome|summary|done",
    "none": "boundary|priority|estimate|effort|owner|assignee|size|interfaces|consumes|produces",
}
_NAMES: Final[Mapping[str, FieldName]] = {
    name: known for known, names in _LABELS.items() for name in names.split("|")
}
_FENCED: Final[frozenset[FieldName]] = frozenset({"verify", "expected"})
"""Fields whose content often stands in a fence."""
_EMPHASISED: Final = re.compile(
    r"(?<!\w)_(?P<name>[A-Za-z][\w ]{0,30}):\s*(?P<value>[^\n]{1,2000}?)_(?!\w)"
    r"|\*\*(?P<bold>[A-Za-z][\w ]{0,30}):\s*(?P<bold_value>[^*\n]{1,2000})\*\*"
)
_LABEL: Final = re.compile(
    r"[*_`]*(?P<name>[^\W\d_][\w /&'-]{0,40}?)[*_`]*\s*[:：]\s*[*_`]*(?=\s|\Z|[`\[(])\s*(?P<value>.*)\Z",
    re.DOTALL,
)
_PROPERTY: Final = re.compile(r"property \d", re.IGNORECASE)
_REQUIREMENT_WORD: Final = re.compile(r"\A(?:requirements?|reqs?\.?)\s+", re.IGNORECASE)
_PART: Final = re.compile(r"[,;](?![^()]*\))")
_WHOLE: Final = re.compile(r"(?P<first>\d{1,6})(?:\s*[-–—]\s*(?P<last>\d{1,6}))?\Z")
_CITED: Final = re.compile(r"(?:FR|NFR|REQ|SC|AC|UR|SR|BR|R)-[A-Z0-9.-]*\d[a-z]?")
_CITED_START: Final = re.compile(r"\b(?:FR|NFR|REQ|SC|AC|UR|SR|BR|R)-")
_MAX_RANGE: Final = 500
_MAX_LINE_CHARS: Final = 2_000


@dataclass(slots=True)
class Details:
    """What the lines below a step say."""

    status: str = ""
    dependencies: list[str] = field(default_factory=list[str])
    """Lists of ids, as written."""
    files: list[str] = field(default_factory=list[str])
    goal: str = ""
    verify: list[str] = field(default_factory=list[str])
    expected: list[str] = field(default_factory=list[str])
    requirements: list[str] = field(default_factory=list[str])
    requirement_notes: list[str] = field(default_factory=list[str])
    unexpanded: list[str] = field(default_factory=list[str])
    actions: list[str] = field(default_factory=list[str])
    summary: list[str] = field(default_factory=list[str])
    lines: list[str] = field(default_factory=list[str])
    """All of them, for marks that the text explains."""

    def add(self, name: FieldName, value: str) -> None:
        """Put a field's value, or a line of it, where it belongs."""
        text = title_of(value)
        if not text and name != "requirements":
            return
        match name:
            case "status":
                self.status = self.status or value
            case "depends_on":
                self.dependencies.append(value)
            case "files":
                self.files += listed_paths(value)
            case "goal":
                self.goal = f"{self.goal} {text}".strip()
            case "requirements":
                ids, notes, unexpanded = requirement_ids(value)
                self.requirements += ids
                self.requirement_notes += notes
                self.unexpanded += unexpanded
            case "none":
                pass
            case _:
                getattr(self, name).append(text)


def read_details(outline: Outline, places: Iterator[int]) -> Details:
    """The fields and lines at these places, in order. O(n)."""
    details = Details()
    label: FieldName | None = None
    label_indent = -1
    for place in places:
        entry = outline.entries[place]
        if entry.kind == "fence" and entry.fence is not None:
            if label is not None and label in _FENCED:
                details.add(label, entry.fence.body[:_MAX_LINE_CHARS])
            continue
        if entry.kind not in {"text", "item"}:
            continue
        text = entry.text[:_MAX_LINE_CHARS]
        details.lines.append(text)
        if label is not None and _ends_label(entry, label_indent):
            label = None
        opened = read_line(details, text, label)
        if opened is not None:
            label, label_indent = opened, entry.indent + (entry.kind == "item")
    return details


def _ends_label(entry: Entry, label_indent: int) -> bool:
    """Whether an entry lies outside a list that a label above it opened."""
    return entry.indent < label_indent or (entry.kind == "text" and entry.is_after_blank)


def read_line(details: Details, text: str, label: FieldName | None) -> FieldName | None:
    """Read one line, which stands below an open `label` or none. The label that it opens itself, if any."""
    emphasised = list(_emphasised_fields(text))
    if emphasised:
        for known, value in emphasised:
            details.add(known, value)
        properties = _EMPHASISED.sub(_keep_property, text).strip(" ·-")
        if _PROPERTY.search(properties):
            details.verify.append(title_of(properties))
        return None
    match = _LABEL.match(text)
    name = field_name(match["name"]) if match else None
    if match and name:
        if name == "verify" and match["name"].lower().startswith("test") and paths_in(match["value"]):
            details.files += listed_paths(match["value"])
            return None
        if match["value"].strip("*_ "):
            details.add(name, match["value"])
            return name if name in {"goal", "verify", "expected"} else None
        return name
    if match and _PROPERTY.match(match["name"] + match["value"]):
        details.verify.append(title_of(text))
        return None
    if label == "files" and not paths_in(text) and " " in text.strip():
        details.actions.append(title_of(text))
        return None
    details.add(label or "actions", text)
    if label is None:
        details.files += paths_in(text)
    return None


def _emphasised_fields(text: str) -> Iterator[tuple[FieldName, str]]:
    for match in _EMPHASISED.finditer(text):
        known = _NAMES.get((match["name"] or match["bold"]).strip().lower())
        if known is not None:
            yield known, match["value"] or match["bold_value"]


def _keep_property(match: re.Match[str]) -> str:
    return match[0] if _PROPERTY.match(match["name"] or match["bold"]) else ""


def split_fields(text: str) -> tuple[str, Details]:
    """A line without the fields that stand in italics or bold type in it, and what those say."""
    details = Details()

    def take(match: re.Match[str]) -> str:
        name = _NAMES.get((match["name"] or match["bold"]).strip().lower())
        if name is None:
            return match[0]
        details.add(name, match["value"] or match["bold_value"])
        return ""

    return _EMPHASISED.sub(take, text).strip(), details


def field_name(label: str) -> FieldName | None:
    """The field that a label names, markup, case and a remark in brackets aside."""
    folded = re.sub(r"\s*\([^()]*\)\Z", "", label.strip("*_` ")).strip().lower()
    return _NAMES.get(folded)


def labelled(text: str) -> tuple[FieldName, str] | None:
    """The field and value of a labelled line; None for any other."""
    match = _LABEL.match(text[:_MAX_LINE_CHARS])
    name = field_name(match["name"]) if match else None
    return (name, match["value"].strip()) if match and name else None


def requirement_ids(text: str) -> tuple[list[str], list[str], list[str]]:
    """The ids in a list of requirements, ranges expanded; what names none; ranges that do not expand."""
    ids: list[str] = []
    notes: list[str] = []
    unexpanded: list[str] = []
    for part in _PART.split(_REQUIREMENT_WORD.sub("", text.strip().strip("*_[]. "))):
        word = _REQUIREMENT_WORD.sub("", part.strip())
        remark = re.search(r"\s*(\([^()]*\))\s*\Z", word)
        bare = word[: remark.start()].strip() if remark else word
        whole = _WHOLE.match(bare)
        if whole:
            ids += _whole_numbers(whole, unexpanded)
            notes += [remark[1].strip("()")] if remark else []
            continue
        found, odd = read_ids(bare)
        ids += found
        unexpanded += odd
        if not found and word:
            notes.append(title_of(word))
        elif remark:
            notes.append(remark[1].strip("()"))
    return list(dict.fromkeys(ids)), notes, unexpanded


def _whole_numbers(match: re.Match[str], unexpanded: list[str]) -> list[str]:
    if match["last"] is None:
        return [match["first"]]
    first, last = int(match["first"]), int(match["last"])
    if first < last < first + _MAX_RANGE:
        return [str(number) for number in range(first, last + 1)]
    unexpanded.append(match[0])
    return [match["first"], match["last"]]


def cited_requirements(text: str) -> tuple[str, ...]:
    """Ids that a title cites, where their letters leave no doubt that they name requirements."""
    if not _CITED_START.search(text):
        return ()
    ids, _ = read_ids(text[:_MAX_LINE_CHARS])
    return tuple(literal for literal in ids if _CITED.fullmatch(literal) and is_requirement_id(literal))
