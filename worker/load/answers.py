"""Replies and usage events as the invariants see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, cast

from pydantic import ValidationError
from pydantic_core import from_json

from schemas.bundle import ContextBundle
from schemas.wire import canonical_json, sha256_hex
from worker.load.observations import Seen

_SPENT_FIELDS: Final = ("total", "spent", "remaining", "layers")


def fields_of(body: bytes | None) -> dict[str, Any]:
    """The fields of a JSON object; none for anything else."""
    try:
        fields: object = from_json(body or b"")
    except ValueError:
        return {}
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}


@dataclass(frozen=True)  # not slotted: cached properties need the dictionary
class Answer:
    """One distinct reply."""

    seen: Seen
    fields: Mapping[str, Any]

    @property
    def code(self) -> str | None:
        """Of a rejection."""
        return self.fields.get("code") if self.fields.get("kind") == "rejection" else None

    @property
    def outcome(self) -> str:
        """As a usage event calls it."""
        return "rejected" if self.fields.get("kind") == "rejection" else str(self.fields.get("status"))

    @property
    def in_words(self) -> str:
        """What it is."""
        if self.code is not None:
            return f"rejection {self.code}"
        digest = str(self.fields.get("context_hash") or self.fields.get("digest") or "-")
        return f"{self.fields.get('kind')} {self.outcome} {digest[:8]}"

    @cached_property
    def meaning(self) -> str:
        """The same for replies that say the same, however they are written."""
        return _meaning(self.seen, self.fields)

    @property
    def spending(self) -> Mapping[str, Any] | None:
        """What a bundle says that it spent; None for others, and where it does not say."""
        usage = self.fields.get("usage") if self.fields.get("kind") == "bundle" else None
        if not isinstance(usage, dict):
            return None
        usage = cast("dict[str, Any]", usage)
        return {name: usage.get(name) for name in (*_SPENT_FIELDS, "overhead", "exact")}

    def bundle(self, fetched: Mapping[str, bytes | str]) -> tuple[ContextBundle | None, str]:
        """The bundle that it is or stands for; or None, and why: an empty text for a rejection."""
        body: bytes | str = self.seen.body
        if self.code is not None:
            return None, ""
        if self.fields.get("kind") == "bundle_ref":
            body = fetched.get(str(self.fields.get("digest")), "a bundle by reference was not fetched")
        if isinstance(body, str):
            return None, body
        try:
            return ContextBundle.model_validate_json(body), ""
        except ValidationError:
            return None, "the reply is no bundle of the contract"

    def all_text(self, bundle: ContextBundle) -> str:
        """Every text that the bundle carries, one after the other."""
        parts = [message.content for message in bundle.messages or ()]
        parts += [*(bundle.parts or {}).values(), bundle.graph_context or ""]
        if bundle.payload is not None:
            parts.append(bundle.payload.model_dump_json())
        return "\n".join(parts)


@dataclass(frozen=True)  # not slotted: cached properties need the dictionary
class UsageSeen:
    """One distinct usage event."""

    seen: Seen
    fields: Mapping[str, Any]

    @property
    def event_id(self) -> str:
        """Its id."""
        return str(self.fields.get("event_id"))

    @property
    def is_of_retry(self) -> bool:
        """Whether it tells of a bundle that no request asked for, but an answer; a verdict carries that."""
        return self.fields.get("parent_request_id") is not None

    @property
    def outcome(self) -> str:
        """Complete, degraded or rejected."""
        return str(self.fields.get("outcome"))

    @property
    def code(self) -> str | None:
        """Of a rejection."""
        return self.fields.get("code")

    @cached_property
    def meaning(self) -> str:
        """As that of an answer."""
        return _meaning(self.seen, self.fields)

    @property
    def spending(self) -> Mapping[str, Any] | None:
        """The same fields as a bundle has; None where the event counts no tokens."""
        usage = self.fields.get("usage")
        if not isinstance(usage, dict):
            return None
        usage = cast("dict[str, Any]", usage)
        spent = {name: usage.get(name) for name in _SPENT_FIELDS}
        return spent | {"overhead": self.fields.get("overhead"), "exact": self.fields.get("exact")}


def read_answer(seen: Seen) -> Answer:
    """A reply; one that is no JSON object is an answer that means its bytes."""
    return Answer(seen, fields_of(seen.body))


def read_usage(seen: Seen) -> UsageSeen:
    """A usage event, as loosely."""
    return UsageSeen(seen, fields_of(seen.body))


def _meaning(seen: Seen, fields: Mapping[str, Any]) -> str:
    return sha256_hex(canonical_json(dict(fields)) if fields else seen.body)
