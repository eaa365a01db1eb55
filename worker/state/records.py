"""An event as it is kept: when it counts, and which thing it speaks of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, get_args

from schemas.state import AnyStateEvent, ArtifactEvent, EventKind, event_digest
from schemas.wire import sha256_hex

Group = Literal["session", "plan", "memory", "messages", "artifacts", "signals"]
GROUPS: Final[tuple[Group, ...]] = get_args(Group)
"""What is read together, and versioned together: a new message must not have ten thousand memories read."""

EntityKind = Literal[
    "session",
    "project",
    "goal",
    "work_item",
    "hand_off",
    "decision",
    "plan",
    "memory",
    "summary",
    "artifact",
    "test",
    "runtime",
]

WHOLE_PROJECT: Final = ""
"""Stands for a thread where there is none."""

PREVIEW_CHARS: Final = 2_000
"""Of a longer content, kept beside its digest; the whole is kept once, by digest."""

FUTURE_SLACK_US: Final = 5 * 60 * 1_000_000
"""How far a clock may be ahead of whoever keeps its events."""

_MAX_US: Final = 2**53 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Order(NamedTuple):
    """By which events about one thing are sorted: the later counts."""

    at_us: int
    """Microseconds since 1970, in UTC."""
    event_id: str


class EntityKey(NamedTuple):
    """One thing within a project."""

    thread_id: str
    kind: EntityKind
    id: str


@dataclass(frozen=True, slots=True)
class _Rule:
    entity: EntityKind
    group: Group
    id_field: str | None = None
    """Names the thing in the body; where absent there is one per thread."""


_RULES: Final[Mapping[EventKind, _Rule]] = {
    "session_opened": _Rule("session", "session", "session_id"),
    "session_closed": _Rule("session", "session", "session_id"),
    "project_updated": _Rule("project", "session"),
    "goal_set": _Rule("goal", "session", "id"),
    "goal_updated": _Rule("goal", "session", "id"),
    "work_item": _Rule("work_item", "session", "id"),
    "hand_off": _Rule("hand_off", "session"),
    "decision": _Rule("decision", "session", "id"),
    "plan_set": _Rule("plan", "plan", "plan_id"),
    "step_advanced": _Rule("plan", "plan", "plan_id"),
    "memory": _Rule("memory", "memory", "id"),
    "message": _Rule("summary", "messages"),
    "artifact": _Rule("artifact", "artifacts", "id"),
    "test_result": _Rule("test", "signals", "test_id"),
    "gateway_event": _Rule("runtime", "signals"),
    "tool_call": _Rule("runtime", "signals"),
}
GROUP_OF: Final[Mapping[EntityKind, Group]] = {rule.entity: rule.group for rule in _RULES.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRecord:
    """One event of one project, as stores keep it."""

    thread_id: str
    event_id: str
    kind: EventKind
    digest: str
    """Of what it says; of two bodies under one id the smaller one counts."""
    claimed_us: int | None
    """When it happened by its own account."""
    received_us: int
    """The smallest timestamp of a Kafka record that carried it."""
    body: Mapping[str, Any]
    """JSON values; long contents are left to `contents`."""
    contents: Mapping[str, str] = field(default_factory=dict[str, str])
    """Texts that are kept by their SHA-256."""

    @property
    def at_us(self) -> int:
        """When it counts: a time that is missing, or lies ahead of the record, is the record's.

        One that JSON cannot carry is the nearest that it can.
        """
        claimed_us = self.claimed_us
        if claimed_us is None or claimed_us > self.received_us + FUTURE_SLACK_US:
            claimed_us = self.received_us
        # Times are numbers of documents, and JSON carries no larger ones: 1684 to 2255.
        return max(-_MAX_US, min(claimed_us, _MAX_US))

    @property
    def order(self) -> Order:
        """Its place among the events about the same thing."""
        return Order(self.at_us, self.event_id)

    @property
    def entity(self) -> EntityKey:
        """The thing that it speaks of."""
        rule = _RULES[self.kind]
        identity = "" if rule.id_field is None else str(self.body[rule.id_field])
        return EntityKey(self.thread_id, rule.entity, identity)


def to_record(event: AnyStateEvent, *, record_timestamp: datetime) -> StateRecord:
    """The event as it is kept. A content over `PREVIEW_CHARS` characters is taken out of the body."""
    # Defaults are spelled out: what is kept must not change with them.
    body = event.body.model_dump(mode="json", exclude_none=True)
    digest = event_digest(event, body)
    contents: dict[str, str] = {}
    if isinstance(event, ArtifactEvent):
        _take_out(body, contents)
    return StateRecord(
        thread_id=event.thread_id or WHOLE_PROJECT,
        event_id=event.event_id,
        kind=event.event,
        digest=digest,
        claimed_us=None if event.occurred_at is None else microseconds(event.occurred_at),
        received_us=microseconds(record_timestamp),
        body=body,
        contents=contents,
    )


def microseconds(instant: datetime) -> int:
    """Since 1970, exactly."""
    return (instant - _EPOCH) // _MICROSECOND


def instant_of(at_us: int) -> datetime:
    """The inverse of `microseconds`."""
    return _EPOCH + at_us * _MICROSECOND


def _take_out(body: dict[str, Any], contents: dict[str, str]) -> None:
    content = str(body.get("content", ""))
    if len(content) > PREVIEW_CHARS:
        digest = sha256_hex(content.encode())
        contents[digest] = content
        body["content"] = content[:PREVIEW_CHARS]
        body["content_sha256"] = digest
        body["content_chars"] = len(content)
