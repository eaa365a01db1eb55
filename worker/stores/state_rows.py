"""How state is written down, the same in every store."""

from __future__ import annotations

from typing import Any, Final

from pydantic_core import from_json

from schemas.wire import canonical_json
from worker.state.folding import EntityState
from worker.state.records import Order

_MICROSECONDS: Final = 1_000_000


def encode_body(body: Any) -> str:
    """A body or document as canonical JSON."""
    return canonical_json(body).decode()


def decode_body(text: str) -> Any:
    """The inverse of `encode_body`."""
    return from_json(text)


def encode_base(base: EntityState | None) -> str | None:
    """What events came to that were forgotten one by one."""
    if base is None:
        return None
    return encode_body({"document": base.document, "at_us": base.last.at_us, "event_id": base.last.event_id})


def decode_base(text: str | None) -> EntityState | None:
    """The inverse of `encode_base`."""
    if text is None:
        return None
    fields = from_json(text)
    return EntityState(document=fields["document"], last=Order(fields["at_us"], fields["event_id"]))


def next_version(held: int, *, now_seconds: float) -> int:
    """A version later than `held`, and than any that a purge has forgotten."""
    return max(held + 1, int(now_seconds * _MICROSECONDS))
