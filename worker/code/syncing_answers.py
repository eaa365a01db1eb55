"""What came of a sync, as bytes between the process that carried it out and the one that asked for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, cast

from worker.code.indexing import IndexReport
from worker.code.syncing import Overtaken
from worker.errors import InvalidRequest, NotSupported, Rejected, StoreUnavailable

_REPORT: Final = b"="
_ERROR: Final = b"!"
_REJECTIONS: Final[dict[str, type[Rejected]]] = {"invalid": InvalidRequest, "not_supported": NotSupported}


class SyncDefect(RuntimeError):
    """The process that syncs met a bug; the message is its traceback."""


def encode_report(report: IndexReport) -> bytes:
    """The report, compactly."""
    return _REPORT + _json({field.name: _plain(getattr(report, field.name)) for field in fields(report)})


def encode_error(error: Exception, trace_text: str) -> bytes:
    """What `decode_answer` gives for it: the same for what a sync may raise, else a SyncDefect."""
    match error:
        case Rejected():
            kind = next((name for name, known in _REJECTIONS.items() if type(error) is known), "defect")
            row = [error.message, error.details] if kind != "defect" else [trace_text]
        case StoreUnavailable():
            kind, row = "store", [error.store, str(error)]
        case Overtaken():
            kind, row = "overtaken", [str(error)]
        case _:
            kind, row = "defect", [trace_text]
    return _ERROR + _json([kind, *row])


def decode_answer(frame: bytes) -> IndexReport | Exception:
    """The report, or what the sync raised. Raises ValueError for a frame that is neither."""
    if frame.startswith(_ERROR):
        return _error(*json.loads(frame[1:]))
    if not frame.startswith(_REPORT):
        raise ValueError("no answer to a sync")
    row = json.loads(frame[1:])
    for name in ("not_whole", "skipped_paths"):
        row[name] = tuple([tuple(file) for file in row[name]])
    return IndexReport(**row)


def _error(kind: str, *row: Any) -> Exception:
    if kind == "store":
        store, message = row
        return StoreUnavailable(store, message.removeprefix(f"{store} is unavailable").removeprefix(": "))
    if kind == "overtaken":
        return Overtaken(*row)
    if kind in _REJECTIONS:
        message, details = row
        # Their own constructors would put the message together again.
        error = _REJECTIONS[kind].__new__(_REJECTIONS[kind])
        Rejected.__init__(error, message, **details)
        return error
    return SyncDefect(*row)


def _plain(value: object) -> object:
    # Counters and views among them, which are no plain mappings to everybody.
    return {**cast("Mapping[str, object]", value)} if isinstance(value, Mapping) else value


def _json(row: Any) -> bytes:
    # Escaped, so that whatever stands in a path or a traceback gets through.
    return json.dumps(row, separators=(",", ":"), default=str).encode("ascii")
