"""What is said of an answer: verdicts, refusals and the log's lines, of a judgement or of what is stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemas.answers import (
    MAX_LISTED,
    AgentAnswer,
    AnswerUse,
    AttemptMade,
    EscalationReason,
    RefusalCode,
    Verdict,
    VerdictKind,
)
from schemas.bundle import to_wire
from schemas.citations import Step, Used
from worker.answering.attempts import Attempt
from worker.answering.cases import Case
from worker.citations.retries import Lineage
from worker.citations.validator import Judgement
from worker.ports import OutcomeRecord, Tombstone

VERDICTS: Final[dict[Step, VerdictKind]] = {
    "accept": "accepted",
    "expand": "retry",
    "warn": "retry",
    "shrink": "retry",
    "escalate": "escalated",
}
BUNDLE_FIELD: Final = b',"bundle":'


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What is published for an answer: the bytes that the store holds, or for a refusal made anew."""

    verdict: bytes
    kind: VerdictKind
    code: str
    usage: bytes | None = None
    escalation: bytes | None = None
    is_repeat: bool = False
    """Whether the store held it before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An answer with all that is known about it."""

    answer: AgentAnswer
    answered_at: datetime
    case: Case
    judgement: Judgement
    existing: dict[str, str]
    """What it cites that exists and was not shown, with its own id."""
    unconfirmed: tuple[str, ...]
    used: Used

    @property
    def taken(self) -> tuple[Step, ...]:
        """The steps before this one."""
        return self.case.lineage.steps if self.case.lineage else ()


def verdict_of(
    judged: Judged, step: Step, *, lineage: Lineage | None = None, why: EscalationReason | None = None
) -> Verdict:
    """The verdict without the next bundle; `lineage` is that bundle's."""
    answer, judgement = judged.answer, judged.judgement
    return Verdict(
        answer_id=answer.answer_id,
        request_id=answer.request_id,
        project_id=answer.project_id,
        thread_id=answer.thread_id,
        verdict=VERDICTS[step],
        code=judgement.code,
        score=judgement.score,
        cited=judgement.cited,
        missing=judgement.missing,
        invented=judgement.invented[:MAX_LISTED],
        not_injected=judgement.not_injected[:MAX_LISTED],
        uncalled=judgement.uncalled,
        unconfirmed=judged.unconfirmed,
        sections=judgement.sections,
        attempt=len(judged.taken) + 1,
        used=judged.used,
        step=step,
        why=why,
        instructions=None if lineage is None else lineage.warning,
    )


def with_bundle(verdict: bytes, bundle: bytes) -> bytes:
    """The verdict with that bundle, or reference to one, as its last field: byte for byte as it is stored."""
    return verdict[:-1] + BUNDLE_FIELD + bundle + b"}"


def attempt_made(judged: Judged, step: Step) -> AttemptMade:
    """The answer in short, as escalations list it."""
    return AttemptMade(
        request_id=judged.answer.request_id,
        answer_id=judged.answer.answer_id,
        code=judged.judgement.code,
        score=judged.judgement.score,
        step=step,
    )


def use_of(judged: Judged, attempt: Attempt) -> AnswerUse:
    """The usage log's line on what the answer used."""
    request = judged.case.capture.request
    return AnswerUse(
        timestamp=attempt.answered_at,
        project_id=request.project_id,
        request_id=judged.answer.request_id,
        answer_id=judged.answer.answer_id,
        thread_id=request.thread_id,
        volk_alias=request.volk,
        subject=request.subject,
        verdict=attempt.kind,
        code=judged.judgement.code,
        score=judged.judgement.score,
        used=judged.used,
    )


def refused(answer: AgentAnswer, code: RefusalCode) -> Settled:
    """A verdict that judges nothing: a function of the answer's ids and the code."""
    verdict = Verdict(
        answer_id=answer.answer_id,
        request_id=answer.request_id,
        project_id=answer.project_id,
        thread_id=answer.thread_id,
        verdict="refused",
        code=code,
        score=0.0,
        attempt=0,
    )
    return Settled(verdict=to_wire(verdict), kind="refused", code=code)


def repeated(answer: AgentAnswer, digest: str, held: OutcomeRecord | Tombstone) -> Settled:
    """What is published where the bundle has been answered."""
    if not isinstance(held, OutcomeRecord):
        return refused(answer, "expired")
    attempt = Attempt.from_record(held)
    if attempt.thread_id != answer.thread_id:
        # To another thread the bundle is as unknown as to another project.
        return refused(answer, "unknown_bundle")
    if attempt.made.answer_id != answer.answer_id:
        return refused(answer, "superseded")
    if attempt.answer_digest != digest:
        return refused(answer, "answer_id_reused")
    return Settled(
        verdict=attempt.verdict,
        kind=attempt.kind,
        code=attempt.made.code,
        usage=attempt.usage,
        escalation=attempt.escalation,
        is_repeat=True,
    )
