"""What was stored of one bundle: its bytes, its receipt, its usage event, its capture."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, cast

from pydantic_core import from_json

from schemas.bundle import ContextBundle, Rejection
from schemas.receipt import ReceiptRecord
from schemas.usage import UsageEvent
from schemas.wire import canonical_json
from worker.errors import WorkerError
from worker.ports import OutcomeRecord
from worker.receipts.capture import Capture, read_capture

FILE_KIND: Final = "receipt_file"
FILE_VERSION: Final = 1


class NotExplainable(WorkerError):
    """There is no bundle, or no receipt of it."""


class WasRejected(NotExplainable):
    """The request was refused: its code and details are all there is to say."""

    def __init__(self, rejection: Rejection) -> None:
        """Hold the rejection."""
        super().__init__(f"the request was rejected: {rejection.code}: {rejection.message}")
        self.rejection = rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One bundle and what explains it."""

    body: bytes
    """The bundle as it was published, or as a reference to it named it."""
    bundle: ContextBundle
    record: ReceiptRecord
    record_bytes: bytes
    """Canonical JSON: what the receipt's id is of."""
    usage: UsageEvent | None
    """None where a bundle alone is there."""
    capture_bytes: bytes | None

    def capture(self) -> Capture:
        """The inputs that made it. Raises CaptureUnreadable."""
        return read_capture(
            self.capture_bytes, project_id=self.bundle.project_id, request_id=self.bundle.request_id
        )


def stored_of(outcome: OutcomeRecord) -> Stored:
    """What an outcome store holds. Raises WasRejected, NotExplainable."""
    body = outcome.reply if outcome.bundle is None else outcome.bundle
    kind = cast("dict[str, Any]", from_json(body)).get("kind")
    if kind == "rejection":
        raise WasRejected(Rejection.model_validate_json(body))
    if kind != "bundle":
        raise NotExplainable(f"the outcome is no bundle: its kind is {kind}")
    if outcome.receipt is None:
        raise NotExplainable("the bundle was stored without a receipt")
    return _stored(body, record=outcome.receipt, usage=outcome.usage, capture=outcome.capture)


def write_file(body: bytes, *, record: bytes, usage: bytes, capture: bytes) -> bytes:
    """A file that `read_file` reads: all four as text, byte for byte."""
    parts = {"bundle": body, "record": record, "usage": usage, "capture": capture}
    texts = {name: part.decode() for name, part in parts.items()}
    return (
        json.dumps({"kind": FILE_KIND, "version": FILE_VERSION, **texts}, ensure_ascii=False).encode() + b"\n"
    )


def read_file(data: bytes) -> Stored:
    """What `write_file` wrote, or a bundle that holds its record. Raises WasRejected, NotExplainable."""
    try:
        content = cast("object", from_json(data))
    except ValueError as error:
        raise NotExplainable(f"the file is no JSON: {error}") from None
    fields = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    try:
        match fields.get("kind"):
            case "receipt_file":
                if fields.get("version") != FILE_VERSION:
                    raise NotExplainable(
                        f"the file has the form {fields.get('version')!r}; this reads {FILE_VERSION}"
                    )
                return _stored(
                    fields["bundle"].encode(),
                    record=fields["record"].encode(),
                    usage=fields["usage"].encode(),
                    capture=fields["capture"].encode(),
                )
            case "bundle":
                record = cast("dict[str, Any]", fields.get("receipt") or {}).get("record")
                if record is None:
                    raise NotExplainable(
                        'the bundle holds no record: ask for it with `include: ["receipt", ...]`, or use '
                        "`assemble --receipt-out`"
                    )
                return _stored(data.strip(), record=canonical_json(record), usage=None, capture=None)
            case "rejection":
                raise WasRejected(Rejection.model_validate(fields))
            case _:
                raise NotExplainable("the file holds neither a receipt nor a bundle")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        said = str(error).split("\n", 1)[0]
        raise NotExplainable(f"the file is damaged: {said}") from None


def _stored(body: bytes, *, record: bytes, usage: bytes | None, capture: bytes | None) -> Stored:
    return Stored(
        body=body,
        bundle=ContextBundle.model_validate_json(body),
        record=ReceiptRecord.model_validate_json(record),
        record_bytes=record,
        usage=None if usage is None else UsageEvent.model_validate_json(usage),
        capture_bytes=capture,
    )
