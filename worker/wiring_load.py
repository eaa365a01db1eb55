"""Composition by hand, the load's part: what is captured, and which worker a replay is held against."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from aiokafka.errors import KafkaError

from schemas.bundle import BundleRef, to_wire
from schemas.topics import TopicRole, topic_name
from worker.client import BundleNotFetched, ContextClient
from worker.errors import Unavailable
from worker.load.invariants import Verdict, judge
from worker.load.measures import Measures, tallied
from worker.load.observations import CountedModel, Progress, Rules
from worker.load.recorder import Captured, Recorder, RecordPlan
from worker.load.recording import RecordedRecord, Recording, RecordingHeader, RecordingWriter, now_utc
from worker.load.replayer import Replayer, ReplayPlan, Survey, Target
from worker.load.report import ReplayReport
from worker.load.spool import Spool
from worker.load.synthetic import Synthesizer, Vocabulary
from worker.settings import Settings, read_secret
from worker.wiring_kafka import connection_of

_FETCH_SECONDS: Final = 30.0
_SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCall:
    """One capture: whence, where to, and what of it."""

    path: Path
    plan: RecordPlan
    is_synthetic: bool
    force: bool


def build_recorder(
    settings: Settings, *, is_synthetic: bool, on_progress: Callable[[Captured], None]
) -> Recorder:
    """What captures the requests topic, with the texts replaced under a secret that nobody keeps."""
    return Recorder(
        topic_name("requests", prefix=settings.kafka.topic_prefix),
        connection_of(settings).client_options(),
        transform=build_synthesizer(settings).record if is_synthetic else _as_it_was,
        on_progress=on_progress,
    )


def build_synthesizer(settings: Settings) -> Synthesizer:
    """Replaces what is not in these settings."""
    vocabulary = Vocabulary(
        models=frozenset(settings.content.models), subjects=frozenset(settings.content.subjects)
    )
    return Synthesizer(secret=secrets.token_bytes(_SECRET_BYTES), vocabulary=vocabulary)


def _as_it_was(record: RecordedRecord) -> RecordedRecord:
    return record


async def run_record(recorder: Recorder, call: RecordCall) -> Captured:
    """Capture to the file, which has its name when this returns.

    Raises Unavailable, FileExistsError, and OSError of a full disk.
    """
    header = RecordingHeader(origin="synthetic" if call.is_synthetic else "recorded", created_at=now_utc())
    try:
        with RecordingWriter(call.path, header, force=call.force) as writer:
            return await recorder.record(writer, call.plan)
    except KafkaError as error:
        raise Unavailable(f"the broker did not answer: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCall:
    """One replay: what, how, and what else is known of its texts."""

    path: Path
    plan: ReplayPlan
    canaries: Mapping[str, str]


def target_of(settings: Settings) -> Target:
    """The worker that these settings are those of."""

    def name(role: TopicRole) -> str:
        return topic_name(role, prefix=settings.kafka.topic_prefix)

    return Target(
        options=connection_of(settings).client_options(),
        requests=name("requests"),
        bundles=name("bundles"),
        usage=name("usage"),
        dead_letters=name("dead-letters"),
        group=settings.kafka.group_id,
    )


def rules_of(settings: Settings, plan: ReplayPlan, canaries: Mapping[str, str]) -> Rules:
    """What a run of that plan is judged by: the models are those of these settings."""
    models = {
        name: CountedModel(
            window_tokens=row.window, encoding=row.encoding, safety_factor=str(row.safety_factor)
        )
        for name, row in settings.content.models.items()
    }
    return Rules(
        models=models,
        default_model=settings.content.default_model,
        id_prefix="" if plan.keep_ids else f"{plan.run}:",
        canaries=canaries,
    )


async def run_replay(
    settings: Settings,
    call: ReplayCall,
    *,
    surveyed: Survey,
    on_start: Callable[[Replayer], None],
    on_tick: Callable[[], None],
) -> ReplayReport:
    """Publish, follow and judge. Raises Unavailable and RecordingError."""
    recording = Recording(call.path)
    started_at = datetime.now(UTC)
    with Spool() as spool:
        replayer = Replayer(target_of(settings), call.plan, spool)
        on_start(replayer)
        try:
            progress = await replayer.run(recording, reply_topics=surveyed.reply_topics, on_tick=on_tick)
        except KafkaError as error:
            raise Unavailable(f"the broker did not answer: {error}") from error
        await _fetch_references(settings, spool)
        rules = rules_of(settings, call.plan, call.canaries)
        verdicts = await asyncio.to_thread(_judged, spool, replayer.measures, progress, rules)
    return ReplayReport(
        run=call.plan.run,
        recording=call.path.name,
        origin=recording.header().origin,
        is_complete=surveyed.is_complete,
        pace=str(call.plan.pace),
        keep_ids=call.plan.keep_ids,
        started_at=started_at,
        measures=replayer.measures,
        progress=progress,
        verdicts=verdicts,
    )


async def _fetch_references(settings: Settings, spool: Spool) -> None:
    """Have the bundles that were too large for a record, one after the other: their size is not bounded."""
    token = read_secret(settings.http.token, settings.http.token_file)
    url = settings.http.public_url
    # The token goes to the address of these settings only; a reference could name any.
    client = ContextClient(
        settings.kafka.bootstrap_servers, http_url=url, http_token=token if url is not None else None
    )
    for body in await asyncio.to_thread(list, spool.references()):
        reference = BundleRef.model_validate_json(body)
        try:
            bundle = await client.fetch_bundle(reference, timeout_seconds=_FETCH_SECONDS)
        except (BundleNotFetched, ValueError) as error:
            spool.add_fetched(reference.digest, f"a bundle by reference could not be had: {error}")
        else:
            spool.add_fetched(reference.digest, to_wire(bundle))


def _judged(
    spool: Spool, measures: Measures, progress: tuple[Progress, ...], rules: Rules
) -> tuple[Verdict, ...]:
    with closing(spool.cases()) as cases:
        return judge(tallied(cases, measures), progress, rules)
