"""How dead letters look to a person and to a program."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from rich.table import Table

from schemas.wire import format_time
from worker.kafka.dead_letters import DeadLetter, Redriven

_MESSAGE_CHARS = 60


def as_row(letter: DeadLetter) -> dict[str, object]:
    """One line of `list --json`: everything but headers, body and traceback."""
    return {
        "id": letter.id,
        "code": letter.code,
        "message": letter.message,
        "project_id": letter.project_id,
        "request_id": letter.request_id,
        "generation": letter.generation,
        "attempts": letter.attempts,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": format_time(letter.timestamp),
        "size_bytes": len(letter.value),
        "is_cut": letter.is_cut,
    }


def as_document(letter: DeadLetter) -> dict[str, object]:
    """Everything; bytes that are not UTF-8 as base64, under a name that says so."""
    return {
        **as_row(letter),
        "traceback": letter.traceback,
        "headers": [{"name": name, **_spelled(value)} for name, value in letter.headers],
        "key": None if letter.key is None else _spelled(letter.key),
        "body": _spelled(letter.value),
    }


def letter_table(letters: Sequence[DeadLetter]) -> Table:
    """For a terminal."""
    columns = ("id", "topic", "code", "project", "request", "when", "bytes", "message")
    table = Table(*columns, box=None, pad_edge=False)
    for letter in letters:
        table.add_row(
            letter.id,
            letter.topic or "–",
            letter.code,
            letter.project_id or "–",
            letter.request_id or "–",
            format_time(letter.timestamp),
            str(len(letter.value)),
            letter.message[:_MESSAGE_CHARS],
        )
    table.caption = f"{len(letters)} dead letter{'' if len(letters) == 1 else 's'}"
    return table


def redriven_table(done: Sequence[Redriven], *, dry_run: bool) -> Table:
    """For a terminal: what went back, or would."""
    table = Table("id", "topic", "generation", "", box=None, pad_edge=False)
    for item in done:
        fate = item.skipped or ("would be published" if dry_run else "published")
        table.add_row(item.id, item.topic, str(item.generation), fate)
    return table


def _spelled(value: bytes) -> dict[str, str]:
    try:
        return {"text": value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
