"""What a recorded request becomes when it is published again. Pure.

Every id gets the run in front of it, so that a replay asks anew instead of getting what the outcome store
holds; `expires_at` moves with the time of publication; `as_of` becomes the recorded timestamp where the
request left it open, so that the answer is judged by the same instant whenever it is replayed. Headers that
belong to the caller of then (where to answer, its trace) are left out, and the correlation id is the run's:
nobody else is to get answers that he did not ask for. With kept ids nothing but `expires_at` changes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, cast

from schemas.times import format_time, parse_time, time_of_record
from worker.decoding import read_ids
from worker.load.headers import CORRELATION_ID, REPLY_TO, TRACE_HEADERS, first_header, generation_of
from worker.load.recording import RecordedRecord

_MAX_ID_CHARS: Final = 256
_REMEMBERED_IDS: Final = 100_000
_PLAIN_BYTES: Final = 65_536
_ID: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,256}")
_PROJECT_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_REQUEST_ID_TOKEN: Final = re.compile(rb'("request_id"[ \t\r\n]*:[ \t\r\n]*)"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestKey:
    """What an outcome belongs to."""

    project_id: str
    request_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One record as it will be published, and what must be known of it to judge its answer."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    identity: RequestKey | None
    """None where the ids cannot be read from it: it is answered without an outcome."""
    correlation_id: bytes | None
    user_message: str | None
    asked: Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request says of its budget; None where it leaves that to the settings."""

    model: str | None = None
    encoding: str | None = None
    total_tokens: int | None = None
    client_overhead_tokens: int = 0
    """No setting stands in for it."""


class Rewriter:
    """Makes recorded requests those of one run."""

    def __init__(self, *, run: str, keep_ids: bool) -> None:
        """`run` is what stands in front of the ids, with a colon between."""
        self._run = run
        self._keep_ids = keep_ids
        self._first_ms: OrderedDict[bytes, int] = OrderedDict()

    @property
    def id_prefix(self) -> str:
        """With what every id of this run begins; empty where ids are kept."""
        return "" if self._keep_ids else f"{self._run}:"

    def new_id(self, request_id: str) -> str:
        """The id that replaces one; a digest of it where both together would be too long for an id."""
        made = self.id_prefix + request_id
        if len(made) <= _MAX_ID_CHARS:
            return made
        return self.id_prefix + hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).hexdigest()

    def rewrite(self, record: RecordedRecord, *, number: int, publish_at: datetime) -> Outgoing:
        """The record to publish as the `number`th of the run, at `publish_at`; call it in their order.

        Costs one reading and one writing of the body's JSON.
        """
        fields = _parse(record.value)
        value, headers = record.value, record.headers
        if fields is None:
            if value is not None and not self._keep_ids:
                value = self._rename_in_bytes(value)
        else:
            changed = _shift_expiry(fields, publish_at - time_of_record(record.timestamp_ms))
            if not self._keep_ids:
                changed |= self._rename(fields)
                changed |= self._set_as_of(fields, record)
            value = _encode(fields) if changed else value
        if not self._keep_ids:
            headers = self._own_headers(headers, number)
        return _outgoing(replace(record, value=value, headers=headers), fields)

    def _rename(self, fields: dict[str, Any]) -> bool:
        request_id = fields.get("request_id")
        if isinstance(request_id, str) and request_id:
            fields["request_id"] = self.new_id(request_id)
            parent = fields.get("parent")
            if isinstance(parent, dict):
                parent = cast("dict[str, Any]", parent)
                if isinstance(parent.get("request_id"), str):
                    fields["parent"] = parent | {"request_id": self.new_id(parent["request_id"])}
            return True
        return False

    def _rename_in_bytes(self, value: bytes) -> bytes:
        """The same for a body that is no JSON, as far as the worker will still find an id in it."""
        request_id, _ = read_ids(value)
        if request_id is None:
            return value
        new = json.dumps(self.new_id(request_id)).encode()
        return _REQUEST_ID_TOKEN.sub(lambda found: found[1] + new, value, count=1)

    def _set_as_of(self, fields: dict[str, Any], record: RecordedRecord) -> bool:
        """Fill `as_of` where it is absent.

        A request that was sent twice must mean the same twice, so both get the time of the first: as long as
        no more than 100,000 others lie between, which is what is remembered.
        """
        if fields.get("as_of") is not None:
            return False
        ids = json.dumps([fields.get("project_id"), fields.get("request_id")])
        identity = hashlib.blake2b(ids.encode(), digest_size=16).digest()
        first_ms = self._first_ms.setdefault(identity, record.timestamp_ms)
        self._first_ms.move_to_end(identity)
        if len(self._first_ms) > _REMEMBERED_IDS:
            self._first_ms.popitem(last=False)
        fields["as_of"] = format_time(time_of_record(first_ms))
        return True

    def _own_headers(
        self, headers: tuple[tuple[str, bytes], ...], number: int
    ) -> tuple[tuple[str, bytes], ...]:
        dropped = TRACE_HEADERS | {REPLY_TO, CORRELATION_ID}
        own = (CORRELATION_ID, f"{self._run}:{number}".encode())
        return (own, *((name, value) for name, value in headers if name not in dropped))


def _outgoing(record: RecordedRecord, fields: Mapping[str, Any] | None) -> Outgoing:
    message = fields.get("user_message") if fields is not None else None
    return Outgoing(
        partition=record.partition,
        key=record.key,
        value=record.value,
        headers=record.headers,
        identity=_identity(record, fields),
        correlation_id=first_header(record.headers, CORRELATION_ID),
        user_message=message if isinstance(message, str) else None,
        asked=_asked(fields or {}),
    )


def _identity(record: RecordedRecord, fields: Mapping[str, Any] | None) -> RequestKey | None:
    if fields is None or len(record.value or b"") > _PLAIN_BYTES:
        # What the worker itself still finds in a body that it refuses.
        request_id, project_id = read_ids(record.value)
    else:
        request_id, project_id = fields.get("request_id"), fields.get("project_id")
    if not (_is(request_id, _ID) and _is(project_id, _PROJECT_ID)):
        return None
    return RequestKey(
        project_id=cast("str", project_id),
        request_id=cast("str", request_id),
        generation=generation_of(record.headers),
    )


def _is(value: object, form: re.Pattern[str]) -> bool:
    return isinstance(value, str) and form.fullmatch(value) is not None


def _parse(value: bytes | None) -> dict[str, Any] | None:
    """The fields of a JSON object; None for anything else."""
    try:
        fields: object = json.loads((value or b"").removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) else None


def _encode(fields: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # lone surrogates, which only escapes can carry
        return json.dumps(fields, separators=(",", ":")).encode()


def _shift_expiry(fields: dict[str, Any], shift: timedelta) -> bool:
    expires_at = fields.get("expires_at")
    try:
        fields["expires_at"] = format_time(parse_time(cast("str", expires_at))[0] + shift)
    except (TypeError, ValueError, OverflowError):
        return False  # absent, or no time: what was wrong stays wrong
    return True


def _asked(fields: Mapping[str, Any]) -> Asked:
    budget = fields.get("budget")
    budget = cast("dict[str, Any]", budget) if isinstance(budget, dict) else {}
    model, encoding = fields.get("model"), fields.get("encoding")
    total, overhead = budget.get("total"), budget.get("client_overhead_tokens")
    return Asked(
        model=cast("str", model) if _is(model, _ID) else None,
        encoding=cast("str", encoding) if _is(encoding, _ID) else None,
        total_tokens=total if isinstance(total, int) else None,
        client_overhead_tokens=overhead if isinstance(overhead, int) else 0,
    )
