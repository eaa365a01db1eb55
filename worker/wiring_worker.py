"""Composition by hand, the whole: one worker, from the ground that all records stand on to its routes.

Read `build_service` first: it names the parts in the order in which they are made, which is that of the
functions below.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import Counter, ProcessCollector

from schemas.topics import TOPICS, TopicRole, topic_name
from schemas.wire import build_validators
from worker.assembly import Assembler
from worker.code.extracting_pool import ExtractingPool
from worker.failpoints import Failpoints
from worker.fusion import secrets
from worker.heap import settle_heap
from worker.instruments import ExportTally
from worker.kafka.app import ConsumerOptions, ExitCode, KafkaWorker, Route
from worker.kafka.concluding import Conclusions
from worker.kafka.connection import KafkaConnection
from worker.kafka.embedded import EmbeddedBroker, embedded_broker
from worker.kafka.handlers import Limits as HandlerLimits
from worker.kafka.handlers import RequestHandler
from worker.kafka.health import Health, NotReadyGauge
from worker.kafka.http import build_app, serve_http
from worker.kafka.partition import Limits as DispatchLimits
from worker.kafka.plain_handler import Door
from worker.kafka.publisher import KafkaPublisher, ProducerOptions
from worker.kafka.received import BodyLimits
from worker.kafka.replies import Replies, Routes
from worker.kafka.response_handler import ResponseHandler
from worker.kafka.state_handler import StateHandler
from worker.kafka.sync_handler import SyncHandler
from worker.kafka.tool_handler import ToolHandler
from worker.kafka.topics import TopicCatalogue, ensure_topics
from worker.ports import CrashLedger, OutcomeStore
from worker.settings import Kafka, Settings, read_secret
from worker.spans import SCOPE, Endpoint, resource_of
from worker.state.upkeep import keep_compact
from worker.telemetry import Telemetry
from worker.tracing import open_tracing, push_metrics
from worker.usage.log import UsageLog, tell_of_losses
from worker.wiring import build_assembler, load_counters, utc_now
from worker.wiring_answers import build_answers
from worker.wiring_graph import GraphSource, build_graph
from worker.wiring_kafka import build_ledger, build_store, connection_of, embedded_settings, refuse_replaced
from worker.wiring_state import StateSource, build_state
from worker.wiring_sync import build_syncs
from worker.wiring_tools import build_toolbox

log = structlog.get_logger()

_READY_POLL_SECONDS: Final = 0.05
_EVENTS_IN_FLIGHT: Final = 256
_LONGEST_SYNC_SECONDS: Final = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One worker, ready to run, and where its health can be asked."""

    worker: KafkaWorker
    health: Health
    http_url: str


@asynccontextmanager
async def build_service(settings: Settings, *, usage_log: Path | None = None) -> AsyncGenerator[Service]:
    """Everything one worker is made of; closed in reverse order on the way out."""
    # Reading a vocabulary takes half a second, which no request should pay.
    await asyncio.to_thread(load_counters, settings)
    await asyncio.to_thread(build_validators)
    await asyncio.to_thread(secrets.prepare)
    async with AsyncExitStack() as stack:
        ground = await _open_ground(settings, stack)
        sources = await _open_sources(settings, stack, ground)
        lines = UsageLog(usage_log, on_failure=tell_of_losses(ground.telemetry.usage_log_failures.inc))
        stack.push_async_callback(lines.close)
        assembler = _assembler(settings, ground, sources)
        routes = [
            _requests(settings, ground, assembler, lines),
            _state_events(settings, ground, sources.state),
            _syncs(settings, stack, ground, sources.graph),
            _tool_calls(settings, ground, sources),
            _answers(settings, ground, sources, assembler, lines),
        ]
        yield Service(
            worker=_worker(settings, ground, routes), health=ground.health, http_url=ground.http_url
        )


# --- What every record needs -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """What all routes stand on."""

    connection: KafkaConnection
    catalogue: TopicCatalogue
    publisher: KafkaPublisher
    store: OutcomeStore
    ledger: CrashLedger
    answers: Routes
    limits: BodyLimits
    telemetry: Telemetry
    failpoints: Failpoints
    health: Health
    http_url: str


async def _open_ground(settings: Settings, stack: AsyncExitStack) -> _Ground:
    connection = connection_of(settings)
    limits, kafka = settings.limits, settings.kafka
    telemetry, health = _open_telemetry(settings, stack), Health()
    telemetry.registry.register(NotReadyGauge(health))
    ledger = build_ledger(settings)
    stack.push_async_callback(ledger.close)
    store = build_store(settings)
    stack.push_async_callback(store.close)
    catalogue = TopicCatalogue(connection)
    return _Ground(
        connection=connection,
        catalogue=catalogue,
        publisher=KafkaPublisher(
            connection=connection,
            lacks_topic=catalogue.lacks,
            options=ProducerOptions(
                is_idempotent=kafka.idempotent_producer,
                max_record_bytes=max(limits.max_record_bytes, *(spec.max_message_bytes for spec in TOPICS)),
            ),
        ),
        store=store,
        ledger=ledger,
        answers=Routes(
            bundles=_topic(settings, "bundles"),
            usage=_topic(settings, "usage"),
            dead_letters=_topic(settings, "dead-letters"),
            reply_topics=frozenset(kafka.reply_topics),
        ),
        limits=BodyLimits(max_bytes=limits.max_request_bytes, max_depth=limits.max_depth),
        telemetry=telemetry,
        failpoints=Failpoints(settings.failpoints),
        health=health,
        http_url=await _serve(settings, stack, store=store, telemetry=telemetry, health=health),
    )


def _open_telemetry(settings: Settings, stack: AsyncExitStack) -> Telemetry:
    tracing, otlp = settings.tracing, settings.otlp
    exports, resource = ExportTally(), resource_of(version=version(SCOPE))
    endpoint = Endpoint(
        url=otlp.endpoint,
        token=read_secret(otlp.token, otlp.token_file),
        ca_file=otlp.ca_file,
        timeout_seconds=otlp.timeout_seconds,
    )
    provider = stack.enter_context(
        open_tracing(
            tracing.exporter,
            file=tracing.file,
            ratio=tracing.ratio,
            endpoint=endpoint,
            resource=resource,
            tally=exports,
        )
    )
    telemetry = Telemetry(provider, exports=exports, has_prompts_on_spans=tracing.prompts)
    ProcessCollector(registry=telemetry.registry)
    if otlp.metrics:
        every_seconds = otlp.metrics_seconds
        stack.enter_context(push_metrics(telemetry, endpoint, every_seconds=every_seconds, resource=resource))
    return telemetry


async def _serve(
    settings: Settings, stack: AsyncExitStack, *, store: OutcomeStore, telemetry: Telemetry, health: Health
) -> str:
    """Health, metrics and large bundles over HTTP; the address."""
    token = read_secret(settings.http.token, settings.http.token_file)
    host, port = await stack.enter_async_context(
        serve_http(
            build_app(health=health, store=store, telemetry=telemetry, token=token),
            host=settings.http.host,
            port=settings.http.port,
            has_token=token is not None,
        )
    )
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


# --- What bundles are made from --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    """State, graph and source files, warm."""

    state: StateSource
    graph: GraphSource
    parsers: ExtractingPool


async def _open_sources(settings: Settings, stack: AsyncExitStack, ground: _Ground) -> _Sources:
    telemetry = ground.telemetry
    state = await stack.enter_async_context(aclosing(build_state(settings, telemetry)))
    graph = await stack.enter_async_context(aclosing(build_graph(settings, telemetry, state.states)))
    upkeep = asyncio.create_task(
        keep_compact(state.store, keep=timedelta(days=settings.state.compact_after_days), now=utc_now)
    )
    stack.callback(upkeep.cancel)
    await asyncio.gather(state.warm(), graph.warm())
    # Loading a large graph takes longer than any layer's timeout, which the first requests would pay.
    await graph.snapshots.preload(sorted(settings.content.roots))
    await graph.snapshots.preload_stored()
    parsers = ExtractingPool()
    stack.callback(parsers.close)
    # The first long file would else wait for a process to start.
    await asyncio.to_thread(parsers.prepare)
    return _Sources(state=state, graph=graph, parsers=parsers)


# --- The routes ------------------------------------------------------------------------------------------


def _assembler(settings: Settings, ground: _Ground, sources: _Sources) -> Assembler:
    """What makes bundles, for requests and for what follows answers."""
    return build_assembler(
        settings,
        ground.telemetry,
        sources.graph.reader,
        sources.state.states,
        failpoints=ground.failpoints,
        parsers=sources.parsers,
        outcomes=ground.store,
    )


def _requests(settings: Settings, ground: _Ground, assembler: Assembler, lines: UsageLog) -> Route:
    """Requests, each answered by a bundle or a rejection."""
    return Route(
        topic=_topic(settings, "requests"),
        group=settings.kafka.group_id,
        handler=RequestHandler(
            assemble=assembler.assemble,
            store=ground.store,
            publisher=ground.publisher,
            usage_log=lines,
            routes=ground.answers,
            limits=HandlerLimits(
                body=ground.limits,
                max_record_bytes=settings.limits.max_record_bytes,
                max_capture_bytes=settings.outcomes.max_capture_bytes,
                public_url=_public_url(settings, ground),
                forget_seconds=settings.outcomes.forget_seconds,
            ),
            telemetry=ground.telemetry,
            failpoints=ground.failpoints,
            now=utc_now,
        ),
        max_in_flight=settings.kafka.max_in_flight,
        max_in_flight_per_project=settings.kafka.max_in_flight_per_project,
    )


def _state_events(settings: Settings, ground: _Ground, state: StateSource) -> Route:
    """Events of state, which are kept."""
    return Route(
        topic=_topic(settings, "state"),
        group=f"{settings.kafka.group_id}-state",
        handler=StateHandler(
            _door(ground, ground.answers, ended=ground.telemetry.state_events), writer=state.writer
        ),
        # What is in work together goes into one transaction per project.
        max_in_flight=_EVENTS_IN_FLIGHT,
        probe_store=state.store.check,
    )


def _syncs(settings: Settings, stack: AsyncExitStack, ground: _Ground, graph: GraphSource) -> Route:
    """Syncs, each of which changes the graph and is answered by what it changed."""
    syncs = build_syncs(settings)
    stack.push_async_callback(syncs.close)

    async def probe_stores() -> None:
        await ground.store.check()
        await graph.store.check()

    return Route(
        topic=_topic(settings, "sync"),
        group=f"{settings.kafka.group_id}-sync",
        handler=SyncHandler(
            syncs=syncs,
            store=ground.store,
            publisher=ground.publisher,
            routes=replace(ground.answers, bundles=_topic(settings, "sync-results")),
            limits=ground.limits,
            forget_seconds=settings.outcomes.forget_seconds,
            telemetry=ground.telemetry,
            failpoints=ground.failpoints,
            now=utc_now,
        ),
        # One after the other, so that no older file replaces a newer one.
        max_in_flight=1,
        probe_store=probe_stores,
        expected_seconds=_LONGEST_SYNC_SECONDS,
    )


def _tool_calls(settings: Settings, ground: _Ground, sources: _Sources) -> Route:
    """Calls of tools, each answered by a result; what is noted of them goes into the state."""
    answers = replace(ground.answers, bundles=_topic(settings, "tool-results"))
    return Route(
        topic=_topic(settings, "tools"),
        group=f"{settings.kafka.group_id}-tools",
        handler=ToolHandler(
            _door(ground, answers, ended=ground.telemetry.tool_calls),
            tools=build_toolbox(
                settings,
                graph=sources.graph,
                state=sources.state,
                bundles=ground.store,
                telemetry=ground.telemetry,
            ),
            writer=sources.state.writer,
        ),
        max_in_flight=settings.kafka.max_in_flight,
        max_in_flight_per_project=settings.kafka.max_in_flight_per_project,
        # Without it no call can be noted; an outcome store that is away is an answer, not a reason to wait.
        probe_store=sources.state.store.check,
        expected_seconds=settings.tools.timeout_seconds,
    )


def _answers(
    settings: Settings, ground: _Ground, sources: _Sources, assembler: Assembler, lines: UsageLog
) -> Route:
    """Agents' answers, each judged by what is stored of its bundle."""
    conclusions = Conclusions(ground.telemetry, lines)
    answers = build_answers(
        settings,
        assembler=assembler,
        graph=sources.graph,
        state=sources.state,
        outcomes=ground.store,
        public_url=_public_url(settings, ground),
        on_made=conclusions.add_bundle,
        on_judged=conclusions.add_line,
        telemetry=ground.telemetry,
        failpoints=ground.failpoints,
    )
    limits = replace(ground.limits, max_bytes=settings.answers.max_bytes)
    routes = replace(ground.answers, bundles=_topic(settings, "verdicts"))

    async def probe_stores() -> None:
        await ground.store.check()
        await sources.state.store.check()
        await sources.graph.store.check()

    return Route(
        topic=_topic(settings, "responses"),
        group=f"{settings.kafka.group_id}-responses",
        handler=ResponseHandler(
            _door(ground, routes, ended=ground.telemetry.verdicts, limits=limits),
            settle=answers.settle,
            escalations=_topic(settings, "escalations"),
        ),
        max_in_flight=settings.kafka.max_in_flight,
        max_in_flight_per_project=settings.kafka.max_in_flight_per_project,
        # What an answer is judged by lies in all three; a verdict that is stored is never mended.
        probe_store=probe_stores,
    )


def _door(ground: _Ground, routes: Routes, *, ended: Counter, limits: BodyLimits | None = None) -> Door:
    """What a handler answers through along these routes; `ended` counts what it rejects."""
    return Door(
        replies=Replies(
            ground.publisher,
            routes,
            telemetry=ground.telemetry,
            failpoints=ground.failpoints,
            ended=ended,
        ),
        reply_topics=routes.allowed_reply_topics,
        limits=limits or ground.limits,
        telemetry=ground.telemetry,
        failpoints=ground.failpoints,
    )


def _public_url(settings: Settings, ground: _Ground) -> str:
    return settings.http.public_url or ground.http_url


def _topic(settings: Settings, role: TopicRole) -> str:
    return topic_name(role, prefix=settings.kafka.topic_prefix)


# --- The worker around them ------------------------------------------------------------------------------


def _worker(settings: Settings, ground: _Ground, routes: list[Route]) -> KafkaWorker:
    kafka = settings.kafka

    async def declare_topics() -> None:
        await ensure_topics(
            ground.connection, prefix=kafka.topic_prefix, replication_factor=kafka.replication_factor
        )
        # Theirs to create: until they do, their replies go to the bundles topic.
        missing = [topic for topic in kafka.reply_topics if await ground.catalogue.lacks(topic)]
        if missing:
            log.warning("reply_topics.missing", topics=missing)

    return KafkaWorker(
        connection=ground.connection,
        routes=routes,
        publisher=ground.publisher,
        ledger=ground.ledger,
        probe_store=ground.store.check,
        declare_topics=declare_topics,
        telemetry=ground.telemetry,
        health=ground.health,
        consumer=ConsumerOptions(
            session_timeout_ms=kafka.session_timeout_ms,
            heartbeat_interval_ms=max(1, kafka.session_timeout_ms // 10),
            # The embedded broker holds a fetch for as long as it is told, records or not.
            fetch_max_wait_ms=kafka.fetch_max_wait_ms,
        ),
        limits=dispatch_limits(kafka),
        drain_seconds=kafka.drain_seconds,
    )


def dispatch_limits(kafka: Kafka) -> DispatchLimits:
    """The limits that these settings mean, cut down to what a short session has time for."""
    session_seconds = kafka.session_timeout_ms / 1_000
    commit_timeout_seconds = min(DispatchLimits().commit_timeout_seconds, 0.3 * session_seconds)
    # Up to a tenth has gone by when a heartbeat brings the news that a partition is revoked.
    left_seconds = 0.9 * session_seconds - 2 * commit_timeout_seconds
    return DispatchLimits(
        commit_interval_seconds=kafka.commit_seconds,
        commit_after_records=kafka.commit_records,
        uncommitted_span=kafka.span_cap,
        revoke_wait_seconds=min(kafka.revoke_seconds, left_seconds),
        commit_timeout_seconds=commit_timeout_seconds,
    )


# --- Running it ------------------------------------------------------------------------------------------


async def run_service(settings: Settings, *, embedded: bool, embedded_port: int | None) -> int:
    """Run until a signal asks to stop, or the embedded broker has ended; the exit code.

    Raises ValueError for an option that the embedded broker replaces.
    """
    if embedded:
        refuse_replaced(settings)
    for option, reason in settings.doubts().items():
        log.warning("settings.doubtful", option=option, reason=reason)
    async with AsyncExitStack() as stack:
        broker = None
        if embedded:
            broker = await stack.enter_async_context(embedded_broker(port=embedded_port))
            settings = embedded_settings(settings, broker.bootstrap_servers)
            log.info("broker.embedded", bootstrap_servers=broker.bootstrap_servers)
        service = await stack.enter_async_context(build_service(settings))
        settle_heap()
        log.info("worker.starting", http=service.http_url, **_summary(settings))
        if broker is None:
            return int(await service.worker.run())
        return int(await _run_with(broker, service.worker))


async def _run_with(broker: EmbeddedBroker, worker: KafkaWorker) -> ExitCode:
    """Run until the worker ends, as it is told to when the broker has ended: nobody starts that again."""

    async def stop_after_it() -> None:
        await broker.process.wait()
        log.error(
            "broker.ended",
            reason="the embedded broker has ended, and its records are gone with it",
            status=broker.process.returncode,
        )
        worker.request_stop()
        # Asked again, since what a drain waits for can be published nowhere.
        worker.request_stop()

    watching = asyncio.create_task(stop_after_it())
    try:
        code = await worker.run()
        return (code or ExitCode.BROKEN) if watching.done() else code
    finally:
        watching.cancel()


@asynccontextmanager
async def start_worker(settings: Settings, *, usage_log: Path) -> AsyncGenerator[str]:
    """A worker within this process, ready when this gives its HTTP address, stopped on the way out."""
    async with build_service(settings, usage_log=usage_log) as service:
        running = asyncio.create_task(service.worker.run(handle_signals=False))
        try:
            # The health object answers; it does not call.
            while not service.health.is_ready and not running.done():  # noqa: ASYNC110  # as said above
                await asyncio.sleep(_READY_POLL_SECONDS)
            yield service.http_url
        finally:
            service.worker.request_stop()
            await running


def _summary(settings: Settings) -> dict[str, object]:
    return {
        "bootstrap_servers": list(settings.kafka.bootstrap_servers),
        "group": settings.kafka.group_id,
        "topics": f"{settings.kafka.topic_prefix}*",
        "outcomes": settings.outcomes.store,
        "graph_and_state": settings.graph.store,
        "failpoints": settings.failpoints or None,
    }
