"""Hand-off files: seven slots under headings of many wordings, then commands and verification."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from worker.code.documents.text_yaml import text_of
from worker.code.documents.wording import plain
from worker.plans.fields import labelled
from worker.plans.outline import Entry
from worker.plans.paths import paths_in
from worker.plans.plan_text import PlanText, open_plan
from worker.plans.results import HandOffDocument, PlanNote
from worker.plans.titles import title_of

Slot = Literal[
    "state", "goal", "done", "not_done", "next", "blockers", "decisions", "files", "commands", "verification"
]

MIN_SLOTS: Final = 2
MAX_ENTRIES: Final = 500
"""Of one slot."""
MAX_HAND_OFF_CHARS: Final = 1_000_000
"""Of a longer file the rest is not read."""

_WORDS: Final[tuple[tuple[Slot, str], ...]] = (
    (
        "not_done",
        (
            r"\bnot (?:yet )?(?:done|completed?|finished|started)\b|\bwhat(?:'s| is) left\b"
            r"|\bremaining\b|\bincomplete\b|\bunfinished\b"
            r"|未完成|未着手|не сделано|no hecho|não feito"
        ),
    ),
    (
        "verification",
        r"\bverif|\bvalidat|\bhow to (?:test|check)|\btest (?:status|results?)\b|验证|検証|проверк",
    ),
    (
        "commands",
        r"\bcommands?\b|\bhow to run\b|\brun(?:ning)? it\b|\bquick ?start\b|命令|コマンド|команд",
    ),
    (
        "files",
        (
            r"\b(?:key|important|relevant|changed|modified|touched) files?\b|\bfiles?\b"
            r"|\bread (?:these )?first\b|\breading order\b"
            r"|\bwhere things are\b|文件|ファイル|файл|archivos|arquivos"
        ),
    ),
    ("decisions", r"\bdecisions?\b|\bdecided\b|决策|決定|решени|decisiones|decisões|entscheidung"),
    (
        "blockers",
        (
            r"\bblock(?:ers?|ed|ing)\b|\brisks?\b|\bgotchas?\b|\bconstraints?\b"
            r"|\bknown (?:issues?|problems?|bugs?)\b|\bpitfalls?\b"
            r"|\bwarnings?\b|\bcaveats?\b|\bopen (?:questions|issues|problems)\b|\bwatch out\b|阻塞"
            r"|风险|リスク|課題|注意|проблем|риск|bloqueos|riesgos|riscos"
        ),
    ),
    (
        "next",
        (
            r"\bnext\b|\bstart here\b|\bpick up here\b|\bto-?do\b|\bresume\b"
            r"|\bcontinue (?:here|from|with)\b"
            r"|下一步|次の|次に|次のステップ|дальше|следующ"
            r"|próximos?|siguientes?|nächste|다음"
        ),
    ),
    (
        "done",
        (
            r"\bdone\b|\bcompleted?\b|\bfinished\b|\baccomplish"
            r"|\bwhat (?:was|has been|i) (?:did|done|built|changed)\b|\bwhat changed\b"
            r"|\bshipped\b|\bchanges made\b|已完成|完了|実施|сделано|hecho|feito|erledigt|완료"
        ),
    ),
    ("goal", r"\bgoals?\b|\bobjectives?\b|\bmission\b|\bpurpose\b|目标|目標|目的|цель|objetivo|ziel\b"),
    (
        "state",
        (
            r"\bstate\b|\bstatus\b|\bin progress\b|\bactive work\b"
            r"|\bwhere (?:we|things|it) (?:are|stands?)\b|\bsnapshot\b"
            r"|\bcontext\b|\bsummary\b|\btl;?dr\b|状态|現状|現在|состояни|estado|stand\b|상태"
        ),
    ),
)
"""What headings say, in the order in which they are tried: "not done" before "done"."""

_SLOTS: Final[tuple[tuple[Slot, re.Pattern[str]], ...]] = tuple(
    (slot, re.compile(pattern, re.IGNORECASE)) for slot, pattern in _WORDS
)
_NAMES: Final[frozenset[Slot]] = frozenset(
    {"state", "goal", "done", "not_done", "next", "blockers", "decisions", "files"}
)
_PREVIOUS: Final = re.compile(
    r"\W*(?:previous|earlier|older|prior|past|archive[d]?|history|旧|以前|предыдущ|anterior)\b", re.IGNORECASE
)
_EMPTY: Final = re.compile(
    r"\W*(?:none|n/a|nothing(?: \w+){0,4}|no (?:blockers?|risks?|known issues?|open questions"
    r"|decisions?)(?: \w+){0,3}|keine|нет|无|なし|ninguno|-)?\W*\Z",
    re.IGNORECASE,
)
_COMMIT: Final = re.compile(r"(?<![\w/.#-])(?=[0-9a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}(?![\w/-]|\.\w)")
_PULL: Final = re.compile(r"(?:\bPR\s*#?|\bpull/|(?<![\w&])#)(?P<number>\d{1,6})\b", re.IGNORECASE)
_MAX_HEADING_CHARS: Final = 120


@dataclass(slots=True)
class _Found:
    slots: dict[Slot, list[str]] = field(default_factory=dict[Slot, list[str]])
    paths: list[str] = field(default_factory=list[str])

    def add(self, slot: Slot, text: str) -> None:
        held = self.slots.setdefault(slot, [])
        value = title_of(text)
        if value and not _EMPTY.match(value) and len(held) < MAX_ENTRIES:
            held.append(value)


def read_hand_off(path: str, text: str) -> HandOffDocument | None:
    """What a hand-off file says; None where fewer than two of its slots have a heading or a label.

    Of a file that keeps older blocks below, the first is current. A slot that says "none" is empty. Never
    raises. O(n).
    """
    plan = open_plan(path, text[:MAX_HAND_OFF_CHARS])
    end = _end_of_current(plan)
    found = _read_slots(plan, end)
    if len(found.slots.keys() & _NAMES) < MIN_SLOTS:
        return None
    whole = "\n".join(plan.source.visible[: plan.entries[end].line - 1 if end < len(plan.entries) else None])
    slots = {slot: tuple(values) for slot, values in found.slots.items()}
    files = _files(found)
    return HandOffDocument(
        title=plan.title(),
        state=slots.get("state", ()),
        goal=slots.get("goal", ()),
        done=slots.get("done", ()),
        not_done=slots.get("not_done", ()),
        next=slots.get("next", ()),
        blockers=slots.get("blockers", ()),
        decisions=slots.get("decisions", ()),
        files=files,
        commands=slots.get("commands", ()),
        verification=slots.get("verification", ()),
        commits=tuple(dict.fromkeys(_COMMIT.findall(whole))),
        pull_requests=tuple(dict.fromkeys(f"#{match['number']}" for match in _PULL.finditer(whole))),
        supersedes=text_of(plan.source.front.get("supersedes")) or None,
        notes=tuple(PlanNote(kind=note.kind, line=note.line, text=note.text) for note in plan.notes),
    )


def _end_of_current(plan: PlanText) -> int:
    """Where the first of several blocks ends: at a heading that says "previous", or a second title alike."""
    headings = [place for place, entry in enumerate(plan.entries) if entry.kind == "heading"]
    for place in headings[1:]:
        entry = plan.entries[place]
        if _PREVIOUS.match(plain(entry.text)) and slot_of(_PREVIOUS.sub("", entry.text)) is None:
            return place
        if (
            entry.level == 1
            and re.search(r"hand-?off|session", entry.text, re.IGNORECASE)
            and place > headings[0]
        ):
            return place
    return len(plan.entries)


def slot_of(heading: str) -> Slot | None:
    """The slot that a heading or label names; None for others."""
    text = plain(heading[:_MAX_HEADING_CHARS])
    return next((slot for slot, pattern in _SLOTS if pattern.search(text)), None)


def _read_slots(plan: PlanText, end: int) -> _Found:
    found = _Found()
    title = next((place for place, entry in enumerate(plan.entries) if entry.kind == "heading"), -1)
    slot: Slot | None = None
    sections: dict[int, Slot | None] = {}
    for place in range(end):
        entry = plan.entries[place]
        if entry.kind == "heading":
            above = sections.get(entry.section) if entry.section is not None else None
            slot = sections[place] = (
                None if place == title and entry.level == 1 else slot_of(entry.text) or above
            )
            if slot is not None:
                found.slots.setdefault(slot, [])
                if slot == above and slot_of(entry.text) is None:
                    found.add(slot, entry.text)
            continue
        slot = _read_entry(plan, place, slot, found)
    return found


def _read_entry(plan: PlanText, place: int, slot: Slot | None, found: _Found) -> Slot | None:
    """Put an entry where it belongs; the slot that holds for what follows."""
    entry = plan.entries[place]
    label = _label(entry)
    if label is not None:
        slot, value = label
        found.slots.setdefault(slot, [])
        if value:
            found.add(slot, value)
        return slot
    if slot is None:
        return None
    match entry.kind:
        case "fence" if entry.fence is not None and slot in {"commands", "verification", "next"}:
            target: Slot = "verification" if slot == "verification" else "commands"
            for line in entry.fence.body.split("\n"):
                if line.strip() and not line.lstrip().startswith("#"):
                    found.add(target, line.strip().removeprefix("$ "))
        case "item":
            _add_item(entry, slot, found)
        case "row" if entry.block is not None:
            found.add(slot, " — ".join(cell for cell in entry.block.cells if cell))
        case "text":
            _add_text(plan, place, slot, found)
        case _:
            pass
    return slot


def _add_item(entry: Entry, slot: Slot, found: _Found) -> None:
    """An item of its own; in "next" and "done" its box decides which of the two it is."""
    if entry.mark in {"x", "X"} and slot in {"next", "not_done"}:
        found.add("done", entry.text)
    elif entry.mark == " " and slot == "done":
        found.add("not_done", entry.text)
    else:
        found.add(slot, entry.text)


def _add_text(plan: PlanText, place: int, slot: Slot, found: _Found) -> None:
    """A line that goes on with the one above belongs to it."""
    entry = plan.entries[place]
    held = found.slots.setdefault(slot, [])
    before = plan.entries[place - 1] if place else None
    if held and not entry.is_after_blank and before is not None and before.kind in {"text", "item"}:
        held[-1] = f"{held[-1]} {title_of(entry.text)}"[:2_000]
    else:
        found.add(slot, entry.text)


_LABEL: Final = re.compile(
    r"[*_]{2}(?P<name>[^*_\n]{2,60}?)\s*[:：]?[*_]{2}\s*[:：]?\s*(?P<value>.*)\Z", re.DOTALL
)


_PLAIN_LABEL: Final = re.compile(
    r"(?P<name>(?:current )?(?:state|status)|goal|done|completed|not done|remaining|next(?: steps?| tasks?)?"
    r"|to-?do|blockers?|risks?|gotchas|decisions?|(?:key )?files|commands?)\s*[:：]\s*(?P<value>.*)\Z",
    re.IGNORECASE | re.DOTALL,
)


def _label(entry: Entry) -> tuple[Slot, str] | None:
    """A label that names a slot, bold or one of the usual words, in a line or a top-level item."""
    if entry.kind not in {"text", "item"} or entry.parent is not None or entry.mark is not None:
        return None
    match = _PLAIN_LABEL.match(entry.text)
    if match is None:
        match = _LABEL.match(entry.text)
        if match is None or not (":" in entry.text or "：" in entry.text or not match["value"]):
            return None
    slot = slot_of(match["name"])
    return (slot, match["value"].strip()) if slot is not None else None


def _files(found: _Found) -> tuple[str, ...]:
    """Paths where an entry names some, else the entry as it is."""
    named: list[str] = []
    for entry in found.slots.get("files", []):
        named += paths_in(entry) or _bare(entry)
    return tuple(dict.fromkeys(named))


def _bare(entry: str) -> Iterator[str]:
    words = entry.split(maxsplit=1)
    name = labelled(entry)
    yield words[0] if words and name is None and "." in words[0].strip(".") else entry
