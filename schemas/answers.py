"""Answers of agents and what is said of them: what crosses `context.responses` and the topics behind it.

An answer is judged against the bundle whose request it names, once: the first answer that is stored for a
bundle is the one that counts. What follows is a verdict, with the next bundle where the agent is to try
again, and at the end of the ladder an escalation to people.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, cast

from pydantic import Field, model_validator

from schemas.bundle import BundleRef, ContextBundle
from schemas.citations import Step, Used, VerdictCode
from schemas.wire import (
    SCHEMA_VERSION,
    Count,
    Name,
    OpaqueId,
    PositiveInt,
    ProjectId,
    RequestModel,
    Timestamp,
    WireModel,
    canonical_json,
    sha256_hex,
)

MAX_CLAIMED: Final = 1_000
MAX_GENERATION: Final = 10**9 - 1
MAX_LISTED: Final = 100
"""Of invented, uncalled and other ids that an answer can make up in any number; the first ones, sorted."""

VerdictKind = Literal["accepted", "retry", "escalated", "refused"]
"""The answer is taken; another one is asked for; people are asked; or it was not judged at all."""

RefusalCode = Literal[
    "unknown_bundle", "expired", "not_a_bundle", "not_kept", "superseded", "answer_id_reused"
]
"""Why an answer was not judged: the project and thread have no such bundle; they have it no longer; its
request was rejected; what it would be judged by was not kept; another answer to the same bundle, or to the
one that it follows, came before; or the same answer id came before with another body."""

EscalationReason = Literal["attempts_used_up", "retry_refused"]
"""The last attempt that the settings allow has failed; or the next bundle could not be made."""


class ClaimedCall(RequestModel):
    """A call that the agent says it made. A bare string is the tool's name."""

    tool: Name
    call_id: OpaqueId | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, data: Any) -> Any:
        return {"tool": data} if isinstance(data, str) else cast("object", data)


class AgentAnswer(RequestModel):
    """What an agent made of a bundle."""

    schema_version: str = SCHEMA_VERSION
    kind: Literal["answer"] = "answer"
    answer_id: OpaqueId
    request_id: OpaqueId
    """Of the bundle that it answers: the request's own, or that of a retry's bundle."""
    project_id: ProjectId
    thread_id: OpaqueId | None = None
    """Of the bundle; an answer that names another thread has no bundle."""
    generation: Annotated[Count, Field(le=MAX_GENERATION)] = 0
    """Of the bundle, as its `context-generation` header says."""
    content: str
    """Free text, Markdown or JSON."""
    tool_calls: Annotated[tuple[ClaimedCall, ...], Field(max_length=MAX_CLAIMED)] = ()
    """Reported, never believed: what was called is known from the calls themselves."""

    def digest(self) -> str:
        """SHA-256 of what the answer says, its own id among it."""
        return sha256_hex(canonical_json(self.model_dump(mode="json", exclude_none=True)))


class Verdict(WireModel):
    """What is said of one answer. Ids of citations are short ones where nothing else is said."""

    schema_version: str = SCHEMA_VERSION
    kind: Literal["verdict"] = "verdict"
    answer_id: OpaqueId
    request_id: OpaqueId
    project_id: ProjectId
    thread_id: OpaqueId | None = None
    verdict: VerdictKind
    code: VerdictCode | RefusalCode
    score: float
    """Coverage: the share of what had to be cited that was, to six decimals; 0 where nothing was judged."""
    cited: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """What it had to cite and did not."""
    invented: tuple[str, ...] = ()
    """Short ids, and numbered ids of families that the prompt shows, of which project or thread has none."""
    not_injected: tuple[str, ...] = ()
    """What it cites that exists and was not shown, by the id that it used."""
    uncalled: tuple[str, ...] = ()
    """Required tools of which no call is known."""
    unconfirmed: tuple[str, ...] = ()
    """Tools that it says it called and of which no call is known."""
    sections: tuple[str, ...] = ()
    """Sections of the template that are not there, or have neither an id nor "none" below."""
    attempt: Count
    """1 for the first answer to a request; 0 where nothing was judged."""
    used: Used | None = None
    """Tokens of what was cited, beside those of what was shown; absent where nothing was judged."""
    step: Step | None = None
    """What was decided; absent where nothing was judged."""
    why: EscalationReason | None = None
    instructions: str | None = None
    """Of a retry: what its prompt tells the agent, behind the message."""
    bundle: Annotated[ContextBundle | BundleRef, Field(discriminator="kind")] | None = None
    """Of a retry: the bundle to answer next, under a request id of its own."""


class AttemptMade(WireModel):
    """One answer to a request or to one of its retries, and what was decided."""

    request_id: OpaqueId
    """Of the bundle that was answered."""
    answer_id: OpaqueId
    code: VerdictCode
    score: float
    step: Step


class AnswerUse(WireModel):
    """What one answer used of its bundle: a line of the usage log, beside the bundle's own."""

    schema_version: str = SCHEMA_VERSION
    kind: Literal["answer_use"] = "answer_use"
    timestamp: Timestamp
    """When the answer was published."""
    project_id: ProjectId
    request_id: OpaqueId
    answer_id: OpaqueId
    thread_id: OpaqueId | None = None
    volk_alias: str
    subject: str
    verdict: VerdictKind
    code: VerdictCode
    score: float
    used: Used


def escalation_id(project_id: str, request_id: str, generation: int, answer_id: str) -> str:
    """26 hex digits: what asks people after this answer to this bundle, however often it is published."""
    return sha256_hex(canonical_json([project_id, request_id, generation, answer_id]))[:26]


class Escalation(WireModel):
    """Asks people after a request's last answer: one for each request, published at least once.

    Whatever is published again is the same bytes, so that consumers can drop it by `escalation_id`.
    """

    schema_version: str = SCHEMA_VERSION
    kind: Literal["escalation"] = "escalation"
    escalation_id: str
    answer_id: OpaqueId
    request_id: OpaqueId
    """Of the bundle that was answered last."""
    first_request_id: OpaqueId
    """Of the request that all this began with."""
    project_id: ProjectId
    thread_id: OpaqueId | None = None
    volk: str
    subject: str
    answered_at: Timestamp
    """When the last answer was published."""
    why: EscalationReason
    detail: str
    """In words."""
    code: VerdictCode
    score: float
    missing: tuple[str, ...] = ()
    invented: tuple[str, ...] = ()
    not_injected: tuple[str, ...] = ()
    uncalled: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    attempts: tuple[AttemptMade, ...]
    """All that were made, the first first, and as far as they are still kept."""
    max_attempts: PositiveInt
    owners: tuple[str, ...] = ()
    """Who answers for the files that are cited or should be, by CODEOWNERS, sorted; none where unknown."""
