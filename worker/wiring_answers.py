"""Composition by hand, the answers' part: what judges them, and what makes the next bundle."""

from __future__ import annotations

from collections.abc import Callable

from schemas.usage import UsageEvent
from worker.answering.evidence import Evidence
from worker.answering.judging import Answers
from worker.answering.retrying import Retrier, RetryLimits
from worker.assembly import Assembler
from worker.failpoints import Failpoints
from worker.ports import OutcomeStore
from worker.settings import Settings
from worker.telemetry import Telemetry
from worker.wiring import content_policy
from worker.wiring_graph import GraphSource
from worker.wiring_state import StateSource


def build_answers(
    settings: Settings,
    *,
    assembler: Assembler,
    graph: GraphSource,
    state: StateSource,
    outcomes: OutcomeStore,
    public_url: str,
    on_made: Callable[[UsageEvent, bytes], None],
    on_judged: Callable[[bytes], None],
    telemetry: Telemetry,
    failpoints: Failpoints,
) -> Answers:
    """What judges one worker's answers, from the same stores and by the same assembler as its bundles.

    Large bundles are served below `public_url`; `on_made` and `on_judged` are as `Answers` says.
    """
    return Answers(
        store=outcomes,
        evidence=Evidence(snapshots=graph.snapshots, states=state.states, store=state.store),
        retrier=Retrier(
            assemble=assembler.assemble_again,
            store=outcomes,
            limits=RetryLimits(
                max_record_bytes=settings.limits.max_record_bytes,
                max_capture_bytes=settings.outcomes.max_capture_bytes,
                public_url=public_url,
            ),
            failpoints=failpoints,
        ),
        policy=content_policy(settings),
        max_attempts=settings.answers.max_attempts,
        on_made=on_made,
        on_judged=on_judged,
        telemetry=telemetry,
        failpoints=failpoints,
    )
