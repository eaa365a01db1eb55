"""The one answer that a bundle takes, as the outcome store keeps it: all that is published for it, as bytes.

It lies beside the bundle's own outcome, under the same project and request, in a namespace of its own: first
writer wins, it expires by the same rule, and goes with its project or thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from pydantic_core import from_json

from schemas.answers import AgentAnswer, AttemptMade, VerdictKind
from schemas.wire import canonical_json
from worker.ports import OutcomeKey, OutcomeRecord

_KEY_PREFIX: Final = "\x1fanswer\x1f"
"""In front of a request's id where outcomes are stored: no id of a request holds a control character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An answer that was judged, and what is published for it."""

    made: AttemptMade
    """Which answer to which bundle, and what was decided."""
    kind: VerdictKind
    answer_digest: str
    thread_id: str | None
    answered_at: datetime
    """When the answer was published."""
    verdict: bytes
    usage: bytes | None = None
    """The usage event of the retry's bundle; None where there is none."""
    escalation: bytes | None = None

    def to_record(self) -> OutcomeRecord:
        """As the store keeps it."""
        more = {
            "made": self.made.model_dump(mode="json"),
            "kind": self.kind,
            "thread_id": self.thread_id,
            "escalation": None if self.escalation is None else self.escalation.decode(),
        }
        return OutcomeRecord(
            request_digest=self.answer_digest,
            as_of=self.answered_at,
            reply=self.verdict,
            usage=self.usage,
            receipt=canonical_json(more),
        )

    @classmethod
    def from_record(cls, record: OutcomeRecord) -> Attempt:
        """What `to_record` wrote."""
        more = cast("dict[str, Any]", from_json(record.receipt or b""))
        escalation = more["escalation"]
        return cls(
            made=AttemptMade.model_validate(more["made"]),
            kind=more["kind"],
            answer_digest=record.request_digest,
            thread_id=more["thread_id"],
            answered_at=record.as_of,
            verdict=record.reply,
            usage=record.usage,
            escalation=None if escalation is None else escalation.encode(),
        )


def attempt_key(answered: OutcomeKey) -> OutcomeKey:
    """Where the answer to the bundle of this outcome is kept."""
    return OutcomeKey(
        project_id=answered.project_id,
        request_id=_KEY_PREFIX + answered.request_id,
        generation=answered.generation,
    )


def answered_key(answer: AgentAnswer) -> OutcomeKey:
    """Of the outcome that the answer is about."""
    return OutcomeKey(
        project_id=answer.project_id, request_id=answer.request_id, generation=answer.generation
    )
