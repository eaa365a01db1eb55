"""The contract's headers, as a caller writes them and reads them back. Of a repeated one the first counts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

KIND: Final = "context-kind"
REPLY_TO: Final = "reply_to"
CORRELATION_ID: Final = "correlation_id"
GENERATION: Final = "context-generation"
TRACE_HEADERS: Final = frozenset({"traceparent", "tracestate"})
DEAD_TOPIC: Final = "context-dead-topic"
DEAD_PARTITION: Final = "context-dead-partition"
DEAD_OFFSET: Final = "context-dead-offset"
DEAD_CODE: Final = "context-dead-code"

_GENERATION: Final = re.compile(rb"[0-9]{1,9}")


def first_header(headers: Iterable[tuple[str, bytes | None]], name: str) -> bytes | None:
    """The first header of that name that has any bytes."""
    return next((value for key, value in headers if key == name and value), None)


def read_generation(value: bytes | None) -> int | None:
    """0 where there is none; None where it is no number, which makes the record an invalid request."""
    if value is None:
        return 0
    return int(value) if _GENERATION.fullmatch(value) else None


def generation_of(headers: Iterable[tuple[str, bytes | None]]) -> int:
    """The generation that an outcome has: of a malformed one, 0."""
    return read_generation(first_header(headers, GENERATION)) or 0
