"""What becomes of one answer, up to the bytes that are published for it.

Read `Answers.settle`. A bundle takes exactly one answer: the first that is stored beside its outcome, with
all that is published for it. Whatever comes again finds that. The order is: judge; make and store the next
bundle, where there is one; store the answer. So a crash leaves, nothing being published in any of them:

1. before the next bundle is stored: nothing; the next try starts afresh.
2. after that: a bundle that nobody knows of. The next try, of this answer or of another one to the same
   bundle, finds it and goes on with it, by the step that it was made for.
3. after the answer is stored: the next try publishes what is stored, byte for byte.

Of two answers at once one is stored first; the other is told that it was superseded. Where that one complied
and the other did not, a bundle may lie in the store that nobody is ever told of: it counts nowhere, and an
answer to it is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from schemas.answers import (
    MAX_LISTED,
    AgentAnswer,
    AttemptMade,
    Escalation,
    EscalationReason,
    escalation_id,
)
from schemas.bundle import to_wire
from schemas.citations import Step, Used
from schemas.usage import UsageEvent
from worker.answering.attempts import Attempt, answered_key, attempt_key
from worker.answering.cases import Case, NotJudged, assembled_at, left_out, read_case
from worker.answering.evidence import Evidence
from worker.answering.retrying import Retrier, RetryRefused, plan_retry
from worker.answering.verdicts import (
    BUNDLE_FIELD,
    VERDICTS,
    Judged,
    Settled,
    attempt_made,
    refused,
    repeated,
    use_of,
    verdict_of,
    with_bundle,
)
from worker.citations.answers import Reading, read_answer
from worker.citations.attribution import attribute
from worker.citations.ladder import next_step
from worker.citations.validator import Judgement, judge_reading, unknown_in
from worker.failpoints import Failpoints
from worker.planning import ContentPolicy
from worker.ports import OutcomeKey, OutcomeRecord, OutcomeStore, Tombstone
from worker.retrieval.recording import CallsFor
from worker.telemetry import SPAN_JUDGE, SPAN_RETRY, SPAN_STORE, Telemetry

_RETRIES: Final = frozenset[Step]({"expand", "warn", "shrink"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """What follows: the verdict's bytes, and what is published beside it."""

    step: Step
    verdict: bytes
    usage: bytes | None = None
    escalation: bytes | None = None


class Answers:
    """Judges answers; one per worker."""

    def __init__(
        self,
        *,
        store: OutcomeStore,
        evidence: Evidence,
        retrier: Retrier,
        policy: ContentPolicy,
        max_attempts: int,
        on_made: Callable[[UsageEvent, bytes], None],
        on_judged: Callable[[bytes], None],
        telemetry: Telemetry,
        failpoints: Failpoints,
    ) -> None:
        """`policy` has the strategies of this process; at most `max_attempts` answers a request.

        Of each answer that is stored here first, `on_made` is told the usage event of the next bundle, where
        there is one, and its bytes; and `on_judged` the usage log's line on what the answer used.
        """
        self._store = store
        self._evidence = evidence
        self._retrier = retrier
        self._policy = policy
        self._max_attempts = max_attempts
        self._on_made = on_made
        self._on_judged = on_judged
        self._telemetry = telemetry
        self._failpoints = failpoints

    async def settle(self, answer: AgentAnswer, *, answered_at: datetime) -> Settled:
        """What is to be published for the answer; idempotent.

        `answered_at` is when it was published. Raises StoreUnavailable where it cannot be known now what it
        is to be judged by, with nothing stored that would be in the way of another try.
        """
        key = answered_key(answer)
        digest = await asyncio.to_thread(answer.digest)
        with self._telemetry.step(SPAN_STORE):
            held = await self._store.get(attempt_key(key))
        if held is not None:
            return repeated(answer, digest, held)
        await self._failpoints.reach("answer.before_judge", answer.answer_id)
        try:
            judged = await self._judge(answer, answered_at, key)
        except NotJudged as refusal:
            return refused(answer, refusal.code)
        decision = await self._decide(judged)
        attempt = Attempt(
            made=attempt_made(judged, decision.step),
            kind=VERDICTS[decision.step],
            answer_digest=digest,
            thread_id=answer.thread_id,
            answered_at=answered_at,
            verdict=decision.verdict,
            usage=decision.usage,
            escalation=decision.escalation,
        )
        record = await asyncio.to_thread(attempt.to_record)
        await self._failpoints.reach("answer.before_store", answer.answer_id)
        with self._telemetry.step(SPAN_STORE):
            held = await self._store.put_if_absent(attempt_key(key), record)
        if held is not record:
            return repeated(answer, digest, held)
        if decision.usage is not None:
            self._on_made(UsageEvent.model_validate_json(decision.usage), decision.usage)
        self._on_judged(to_wire(use_of(judged, attempt)))
        await self._failpoints.reach("answer.after_store", answer.answer_id)
        return Settled(
            verdict=decision.verdict,
            kind=attempt.kind,
            code=attempt.made.code,
            usage=decision.usage,
            escalation=decision.escalation,
        )

    # --- Judging ---------------------------------------------------------------------------------

    async def _judge(self, answer: AgentAnswer, answered_at: datetime, key: OutcomeKey) -> Judged:
        """The judgement, of what is stored. Raises NotJudged, StoreUnavailable."""
        with self._telemetry.step(SPAN_STORE):
            outcome = await self._store.get(key)
        with self._telemetry.step(SPAN_JUDGE):
            case, reading, unknown, given = await asyncio.to_thread(self._read, outcome, answer)
            lineage = case.lineage
            if lineage is not None:
                await self._check_issued(replace(key, request_id=lineage.parent_request_id))
            claimed = list(dict.fromkeys(call.tool for call in answer.tool_calls))[:MAX_LISTED]
            elsewhere = [one for one in unknown if one not in given]
            existing = dict(given)
            if elsewhere:
                plan_id = case.capture.request.plan_id
                existing |= await self._evidence.existing(case.scope, elsewhere, plan_id=plan_id)
            called, shown = await self._known_of_tools(
                {*case.required_tools, *claimed}, existing, case, key, until=answered_at
            )
            # What a tool showed was given to the agent, too.
            unknown = tuple([one for one in unknown if existing.get(one) not in shown])

            def conclude() -> tuple[Judgement, Used]:
                judgement = judge_reading(
                    reading,
                    case.citations,
                    unknown=unknown,
                    required_tools=case.required_tools,
                    called_tools=called,
                    real=existing.keys(),
                )
                return judgement, attribute(case.record, case.citations, judgement.cited)

            # What is read may be as large as the answer, and the loop waits for none of it.
            judgement, used = await asyncio.to_thread(conclude)
        return Judged(
            answer=answer,
            answered_at=answered_at,
            case=case,
            judgement=judgement,
            existing=existing,
            unconfirmed=tuple(sorted(set(claimed) - called)),
            used=used,
        )

    def _read(
        self, outcome: OutcomeRecord | Tombstone | None, answer: AgentAnswer
    ) -> tuple[Case, Reading, tuple[str, ...], dict[str, str]]:
        """The answer's case, what it cites, what of that was not shown, and what of that had no room.

        Raises NotJudged.
        """
        case = read_case(outcome, answer, self._policy)
        reading = read_answer(answer.content, [item.id for item in case.citations.items])
        unknown = unknown_in(reading, case.citations, prompt=case.prompt)
        return case, reading, unknown, left_out(case, frozenset(unknown))

    async def _known_of_tools(
        self,
        tools: set[str],
        existing: Mapping[str, str],
        case: Case,
        key: OutcomeKey,
        *,
        until: datetime,
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Of these tools those that were called, and of what exists the own ids whose text they showed.

        Since the first bundle of the request; of a retry whose first bundle is kept no longer, since its own.
        Raises StoreUnavailable.
        """
        if not tools and not existing:
            return frozenset(), frozenset()
        earlier = [one.request_id for one in case.lineage.taken] if case.lineage else []
        since = case.assembled_at
        if earlier:
            first = await self._store.get(replace(key, request_id=earlier[0]))
            since = assembled_at(first) or since
        calls = CallsFor(request_ids=(*earlier, key.request_id), since=since, until=until)
        return await self._evidence.noted(case.scope, tools, existing.values(), calls)

    async def _check_issued(self, parent: OutcomeKey) -> None:
        """Whether the answer to the parent's bundle was followed by another bundle. Raises NotJudged.

        Where it was not, somebody has guessed the id of a bundle that nobody was told of.
        """
        held = await self._store.get(attempt_key(parent))
        if held is None:
            raise NotJudged("unknown_bundle")
        if not isinstance(held, OutcomeRecord):
            raise NotJudged("expired")
        if Attempt.from_record(held).made.step not in _RETRIES:
            raise NotJudged("superseded")

    # --- Deciding --------------------------------------------------------------------------------

    async def _decide(self, judged: Judged) -> _Decision:
        """What follows by the ladder; the next bundle is stored where there is one."""
        step = next_step(judged.judgement, judged.taken, max_attempts=self._max_attempts)
        if step == "accept":
            return _Decision(step=step, verdict=to_wire(verdict_of(judged, step)))
        if step in _RETRIES:
            try:
                return await self._retry(judged, step)
            except RetryRefused as error:
                return await self._escalate(judged, "retry_refused", f"no other bundle can be made: {error}")
        detail = f"{len(judged.taken) + 1} of {self._max_attempts} answers did not comply"
        return await self._escalate(judged, "attempts_used_up", detail)

    async def _retry(self, judged: Judged, step: Step) -> _Decision:
        """The verdict with the next bundle. Raises RetryRefused, StoreUnavailable."""
        answer = judged.answer
        planned = await asyncio.to_thread(
            plan_retry,
            judged.case,
            judged.judgement,
            step=step,
            generation=answer.generation,
            lacked=[judged.existing[cited] for cited in judged.judgement.not_injected],
        )
        head = to_wire(verdict_of(judged, step, lineage=planned.lineage))
        with self._telemetry.step(SPAN_RETRY):
            record, lineage = await self._retrier.make(
                planned, verdict_bytes=len(head) + len(BUNDLE_FIELD), drill=answer.answer_id
            )
        step = lineage.steps[-1]
        head = to_wire(verdict_of(judged, step, lineage=lineage))
        return _Decision(step=step, verdict=with_bundle(head, record.reply), usage=record.usage)

    async def _escalate(self, judged: Judged, why: EscalationReason, detail: str) -> _Decision:
        case, judgement = judged.case, judged.judgement
        own_id = {item.short: item.id for item in case.citations.items}
        concerned = [*map(own_id.__getitem__, (*judgement.missing, *judgement.cited))]
        verdict = verdict_of(judged, "escalate", why=why)
        escalation = Escalation(
            escalation_id=escalation_id(
                verdict.project_id, verdict.request_id, judged.answer.generation, verdict.answer_id
            ),
            answer_id=verdict.answer_id,
            request_id=verdict.request_id,
            first_request_id=case.lineage.first_request_id if case.lineage else verdict.request_id,
            project_id=verdict.project_id,
            thread_id=verdict.thread_id,
            volk=case.capture.request.volk,
            subject=case.capture.request.subject,
            answered_at=judged.answered_at,
            why=why,
            detail=detail,
            code=judgement.code,
            score=judgement.score,
            missing=verdict.missing,
            invented=verdict.invented,
            not_injected=verdict.not_injected,
            uncalled=verdict.uncalled,
            sections=verdict.sections,
            attempts=(*await self._attempts_before(judged), attempt_made(judged, "escalate")),
            max_attempts=self._max_attempts,
            owners=await self._evidence.owners(verdict.project_id, (*concerned, *judged.existing.values())),
        )
        return _Decision(step="escalate", verdict=to_wire(verdict), escalation=to_wire(escalation))

    async def _attempts_before(self, judged: Judged) -> list[AttemptMade]:
        """The answers that came before, as far as they are still kept."""
        found: list[AttemptMade] = []
        answer, lineage = judged.answer, judged.case.lineage
        for one in lineage.taken if lineage else ():
            key = OutcomeKey(
                project_id=answer.project_id, request_id=one.request_id, generation=answer.generation
            )
            held = await self._store.get(attempt_key(key))
            if isinstance(held, OutcomeRecord):
                found.append(Attempt.from_record(held).made)
        return found
