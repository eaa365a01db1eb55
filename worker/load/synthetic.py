"""Records whose texts are replaced, so that real traffic can be shared.

What stays is what makes the work the same: the shape of the JSON, the contract's own field names and
vocabularies (kinds, statuses, layers, encodings, the models and subjects of the settings), numbers where the
contract has some, times, partitions, and the length and shape of each text. Ids become stable pseudonyms, the
same wherever an id occurs; paths keep their depth and a well-known extension. Names that the contract does
not have at their place are replaced, too, and so is all that lies below them, or in an object that it leaves
to the caller. A body that is no JSON object stays none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import PurePosixPath
from typing import Any, Final, cast, get_args

from schemas.codes import IncludePart, Ranking, Relevance, Requester, TaskType
from schemas.request import REQUESTED_ENCODINGS
from schemas.session import read_step_status
from schemas.times import parse_time
from schemas.tools import TOOL_NAMES
from worker.load.headers import CORRELATION_ID, GENERATION, KIND, read_generation
from worker.load.places import REQUEST, UNKNOWN, Place
from worker.load.recording import RecordedRecord
from worker.load.synthetic_text import TextReplacer

_ID: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f]{1,256}")
_PROJECT_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_VERSION: Final = re.compile(r"\d{1,3}(\.\d{1,3}){0,3}")
_NUMBER: Final = re.compile(r"-?\d{1,9}(\.\d{1,6})?")
_PSEUDONYM_BYTES: Final = 10
_MAX_EXACT_INTEGER: Final = 2**53 - 1
_SHORTEST_STEM: Final = 6

_VOCABULARIES: Final[Mapping[str, frozenset[str]]] = {
    "kind": frozenset({"request"}),
    "requester": frozenset(get_args(Requester)),
    "task_type": frozenset(get_args(TaskType)),
    "encoding": frozenset(REQUESTED_ENCODINGS),
    "ranking": frozenset(get_args(Ranking)),
    "relevance": frozenset(get_args(Relevance)),
    "include": frozenset(get_args(IncludePart)),
    "required_tools": frozenset(TOOL_NAMES),
    "strategy": frozenset({"layered", "relevance", "recency", "tiered"}),
    "priority": frozenset({"critical", "high", "medium", "low", *(f"P{number}" for number in range(6))}),
    "state": frozenset({"pending", "open", "deferred", "active", "in_progress", "blocked", "done"}),
    "test_state": frozenset({"green", "red", "passing", "failing", "unknown"}),
}
_ID_FIELDS: Final = """
request_id project_id thread_id plan_id artifact_id id volk current_step parent depends_on requirements focus
applies_to event_ids must_cite required_tools
"""
_PATH_FIELDS: Final = "path file_path files files_created key_files project_dir"
_TIME_FIELDS: Final = "expires_at as_of occurred_at timestamp created_at"
_PACK_NUMBERS: Final = frozenset({"pack_version", "budget", "spent"})
_PACK_NAMES: Final = _PACK_NUMBERS | {"project", "frame", "snapshot", "ranking", "relevance", "encoding"}
_KNOWN_EXTENSIONS: Final = """
.c .cc .cfg .cpp .cs .css .csv .go .h .hpp .html .ini .java .js .json .jsx .kt .lock .log .md .php .proto .py
.pyi .rb .rs .rst .sh .sql .svg .swift .toml .ts .tsx .txt .xml .yaml .yml
"""
_IDS: Final = frozenset(_ID_FIELDS.split())
_PATHS: Final = frozenset(_PATH_FIELDS.split())
_TIMES: Final = frozenset(_TIME_FIELDS.split())
_EXTENSIONS: Final = frozenset(_KNOWN_EXTENSIONS.split())
_PACK_PARTS: Final = re.compile(
    r"(?P<front>\A---[ \t]*\r?\n.*?^---[ \t]*\r?$)"
    r"|^<!-- node: (?P<node>.+?) \| template: (?P<template>.+?)"
    r"(?P<numbers> \| rank: \d{1,9} \| score: -?\d{1,9}\.\d{6} \| tokens: \d{1,9} -->)",
    re.MULTILINE | re.DOTALL,
)
_FRONT_LINE: Final = re.compile(
    r"^(?P<indent>[ \t]*)(?P<name>\w+):[ \t]*(?P<value>.*?)[ \t\r]*$", re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What names of the settings are no secret, and must stay for a request to be served."""

    models: frozenset[str]
    subjects: frozenset[str]


class Synthesizer:
    """Replaces what records say, under one secret; the same in gives the same out."""

    def __init__(self, *, secret: bytes, vocabulary: Vocabulary) -> None:
        """Forget the `secret`, at most 64 bytes, and nobody can try whether a guess is the original."""
        self._replacer = TextReplacer(secret)
        self._kept = {**_VOCABULARIES, "model": vocabulary.models, "subject": vocabulary.subjects}

    def record(self, record: RecordedRecord) -> RecordedRecord:
        """The record with its texts, ids, key and headers replaced; partition and time stay."""
        return replace(
            record,
            key=None if record.key is None else self._key(record.key),
            value=None if record.value is None else self.body(record.value),
            headers=tuple(written for name, value in record.headers for written in self._header(name, value)),
        )

    def body(self, body: bytes) -> bytes:
        """The body with everything replaced that is not the contract's own."""
        try:
            fields: object = json.loads(body)
            # What is nested too deep to be followed here is refused by every worker.
            made = self._object(REQUEST, cast("dict[str, Any]", fields)) if isinstance(fields, dict) else None
        except (ValueError, RecursionError):
            return self._opaque(body)
        if made is None:
            return self._opaque(body)
        return json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")

    def pseudonym(self, original: str) -> str:
        """An id in the place of an id: the same for the same one, another for another."""
        return "id-" + self._replacer.digest(original)[:_PSEUDONYM_BYTES].hex()

    # --- JSON ------------------------------------------------------------------------------------

    def _object(self, place: Place, fields: Mapping[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, value in fields.items():
            is_known = name in place.fields
            shown = name if is_known else self._replacer.text(name)
            if shown in made or (shown in place.fields and not is_known):
                shown = self.pseudonym(name)
            made[shown] = self._value(place.fields.get(name, UNKNOWN), value)
        return made

    def _value(self, place: Place, value: object) -> object:
        if isinstance(value, dict):
            return self._object(place, cast("dict[str, Any]", value))
        if isinstance(value, list):
            return [self._value(place.item or UNKNOWN, item) for item in cast("list[object]", value)]
        if isinstance(value, str):
            return self._string(place.name, value)
        if isinstance(value, int | float) and not isinstance(value, bool) and not place.is_numeric:
            return self._number(value)
        return value

    def _string(self, name: str, value: str) -> str:
        if value in self._kept.get(name, ()):
            return value
        if name in _IDS:
            return self._id(value, _PROJECT_ID if name == "project_id" else _ID)
        if name in _PATHS:
            return self._path(value)
        if self._is_kept(name, value):
            return value
        return self._pack(value) if name == "pack" else self._replacer.text(value)

    def _is_kept(self, name: str, value: str) -> bool:
        if name == "status":
            return read_step_status(value) != "unknown"
        if name in _TIMES:
            return _reads(parse_time, value)
        return name == "schema_version" and _VERSION.fullmatch(value) is not None

    def _id(self, value: str, form: re.Pattern[str]) -> str:
        # One that is no id must stay none: the record was a rejection for it.
        return self.pseudonym(value) if form.fullmatch(value) else self._replacer.text(value)

    def _path(self, path: str) -> str:
        """As deep as before; steps like `..` and a well-known extension stay."""
        return "/".join(self._path_step(step) for step in path.split("/"))

    def _path_step(self, step: str) -> str:
        if step in {"", ".", ".."} or _ID.fullmatch(step) is None:
            return self._replacer.text(step)
        suffix = PurePosixPath(step).suffix
        suffix = suffix if suffix in _EXTENSIONS else ""
        stem = self._replacer.digest(step).hex().translate(_HEX_TO_LETTERS)
        return stem[: max(_SHORTEST_STEM, len(step) - len(suffix))] + suffix

    def _number(self, value: float) -> float:
        """Another number with as many digits; 1 where a request that holds it would be refused for it."""
        written = json.dumps(value)
        made = cast("float", json.loads(re.sub(r"\d+", lambda m: self._digits(m[0]), written)))
        return made if _is_carried(made) or not _is_carried(value) else 1

    def _digits(self, digits: str) -> str:
        replaced = self._replacer.text(digits)
        return replaced if len(replaced) == 1 or replaced[0] != "0" else "1" + replaced[1:]

    # --- Packs -----------------------------------------------------------------------------------

    def _pack(self, pack: str) -> str:
        """A pack stays one: front matter, headings, node lines, fences."""
        made: list[str] = []
        at = 0
        for part in _PACK_PARTS.finditer(pack):
            made.append(self._replacer.text(pack[at : part.start()]))
            made.append(self._front_matter(part["front"]) if part["front"] else self._node_line(part))
            at = part.end()
        return "".join(made) + self._replacer.text(pack[at:])

    def _front_matter(self, block: str) -> str:
        lines = block.splitlines(keepends=True)
        return lines[0] + "".join(self._front_line(line) for line in lines[1:-1]) + lines[-1]

    def _front_line(self, line: str) -> str:
        found = _FRONT_LINE.match(line)
        if found is None:
            return self._replacer.text(line)
        name, value = found["name"], found["value"]
        end = line[len(line.rstrip("\r\n")) :]
        if name == "project":
            value = self._id(value.strip("'\""), _PROJECT_ID)
        elif not self._is_kept_in_front(found):
            value = self._replacer.text(value)
        shown = name if name in _PACK_NAMES else self._replacer.text(name)
        return f"{found['indent']}{shown}: {value}".rstrip(" ") + end

    def _is_kept_in_front(self, line: re.Match[str]) -> bool:
        name, value = line["name"], line["value"]
        is_own_number = name in _PACK_NUMBERS and not line["indent"] and _NUMBER.fullmatch(value)
        return bool(is_own_number) or value in self._kept.get(name, ())

    def _node_line(self, part: re.Match[str]) -> str:
        template = part["template"]
        shown = template if template in get_args(TaskType) else self._replacer.text(template)
        return f"<!-- node: {self._id(part['node'], _ID)} | template: {shown}{part['numbers']}"

    # --- Records ---------------------------------------------------------------------------------

    def _key(self, key: bytes) -> bytes:
        """`project` or `project#thread`, part by part, so that it still says the same of the body."""
        try:
            project, mark, thread = key.decode().partition("#")
        except UnicodeDecodeError:
            return self._opaque(key)
        return (self.pseudonym(project) + mark + (self.pseudonym(thread) if thread else "")).encode()

    def _header(self, name: str, value: bytes) -> list[tuple[str, bytes]]:
        """What a header becomes: none where it says where to answer, or in whose trace."""
        if name == KIND:
            return [(name, value if value == b"request" else b"other")]
        if name == GENERATION:
            return [(name, value if read_generation(value) is not None else b"-")]
        if name == CORRELATION_ID:
            return [(name, self.pseudonym(value.decode("utf-8", "backslashreplace")).encode())]
        return []

    def _opaque(self, data: bytes) -> bytes:
        """As many bytes; UTF-8 where they were, and no JSON object where they were none."""
        try:
            return self._replacer.text(data.decode()).encode()
        except UnicodeDecodeError:
            made = self._replacer.text(data.decode("latin-1")).encode("latin-1")
        return made if not _reads(bytes.decode, made) else made[:-1] + b"\xff"


_HEX_TO_LETTERS: Final = str.maketrans("0123456789", "ghijklmnop")


def _is_carried(number: float) -> bool:
    """Whether canonical JSON has a form for it."""
    return abs(number) <= _MAX_EXACT_INTEGER if isinstance(number, int) else isfinite(number)


def _reads(read: Callable[[Any], object], value: object) -> bool:
    try:
        read(value)
    except ValueError:
        return False
    return True
