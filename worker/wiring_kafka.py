"""Composition by hand, the other half: broker, stores, the worker around the assembler, and its clients."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import structlog
from aiokafka.errors import KafkaError
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256, SASLScram512

from schemas.topics import TOPICS, TopicRole, topic_name
from worker.client import ContextClient
from worker.code.extracting_pool import ExtractingPool
from worker.decoding import read_ids
from worker.errors import Unavailable
from worker.failpoints import Failpoints
from worker.fusion import secrets
from worker.heap import settle_heap
from worker.kafka.app import ConsumerOptions, KafkaWorker, Route
from worker.kafka.connection import KafkaConnection
from worker.kafka.dead_letters import DeadLetterTopic
from worker.kafka.embedded import embedded_broker
from worker.kafka.handlers import Limits as HandlerLimits
from worker.kafka.handlers import RequestHandler
from worker.kafka.health import Health
from worker.kafka.http import build_app, serve_http
from worker.kafka.partition import Limits as DispatchLimits
from worker.kafka.publisher import KafkaPublisher, ProducerOptions
from worker.kafka.received import BodyLimits
from worker.kafka.replies import Replies, Routes
from worker.kafka.state_handler import StateHandler
from worker.kafka.sync_handler import SyncHandler
from worker.kafka.topics import TopicCatalogue, ensure_topics
from worker.ports import CrashLedger, OutcomeStore
from worker.purging import Places, Purged, purge
from worker.settings import Content, Graph, Http, Kafka, Outcomes, Settings, State, read_secret
from worker.state.upkeep import keep_compact
from worker.stores.redis import RedisCrashLedger, RedisOutcomeStore
from worker.stores.sqlite import SqliteCrashLedger, SqliteOutcomeStore
from worker.telemetry import Telemetry
from worker.tracing import open_tracing
from worker.usage.log import UsageLog
from worker.wiring import build_assembler, load_counters, utc_now
from worker.wiring_graph import build_graph, build_graph_store, build_pack_cache
from worker.wiring_state import build_state, build_state_store
from worker.wiring_sync import build_syncs

log = structlog.get_logger()

_READY_POLL_SECONDS: Final = 0.05
_EVENTS_IN_FLIGHT: Final = 256
_LONGEST_SYNC_SECONDS: Final = 3_600.0


def build_store(settings: Settings) -> OutcomeStore:
    """The outcome store that the settings name. Raises ValueError for a secret file that cannot be read."""
    outcomes = settings.outcomes
    if outcomes.redis_url is not None:
        return RedisOutcomeStore(
            outcomes.redis_url,
            password=read_secret(outcomes.redis_password, outcomes.redis_password_file),
            keep_seconds=outcomes.keep_seconds,
            forget_seconds=outcomes.forget_seconds,
            key_prefix=outcomes.key_prefix,
            timeout_seconds=outcomes.timeout_seconds,
        )
    return SqliteOutcomeStore(
        outcomes.sqlite_path, keep_seconds=outcomes.keep_seconds, forget_seconds=outcomes.forget_seconds
    )


def build_ledger(settings: Settings) -> CrashLedger:
    """The crash ledger beside the outcome store."""
    outcomes = settings.outcomes
    if outcomes.redis_url is not None:
        return RedisCrashLedger(
            outcomes.redis_url,
            password=read_secret(outcomes.redis_password, outcomes.redis_password_file),
            key_prefix=outcomes.key_prefix,
            timeout_seconds=outcomes.timeout_seconds,
        )
    return SqliteCrashLedger(outcomes.sqlite_path)


def connection_of(settings: Settings) -> KafkaConnection:
    """Addresses and credentials. Raises ValueError for a secret file that cannot be read."""
    kafka = settings.kafka
    context = (
        ssl.create_default_context(cafile=kafka.ssl_ca_file)
        if kafka.security_protocol.endswith("SSL")
        else None
    )
    security: BaseSecurity | None = BaseSecurity(ssl_context=context) if context else None
    if kafka.security_protocol.startswith("SASL"):
        kinds = {"PLAIN": SASLPlaintext, "SCRAM-SHA-256": SASLScram256, "SCRAM-SHA-512": SASLScram512}
        security = kinds[kafka.sasl_mechanism](
            username=kafka.sasl_username or "",
            password=read_secret(kafka.sasl_password, kafka.sasl_password_file) or "",
            ssl_context=context,
            use_ssl=context is not None,
        )
    return KafkaConnection(bootstrap_servers=kafka.bootstrap_servers, security=security)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One worker, ready to run, and where its health can be asked."""

    worker: KafkaWorker
    health: Health
    http_url: str


@asynccontextmanager
async def build_service(settings: Settings, *, usage_log: Path | None = None) -> AsyncGenerator[Service]:
    """Everything one worker is made of; closed in reverse order on the way out."""
    failpoints = Failpoints(settings.failpoints)
    connection = connection_of(settings)
    kafka, limits, tracing = settings.kafka, settings.limits, settings.tracing
    # Reading a vocabulary takes half a second, which no request should pay.
    await asyncio.to_thread(load_counters, settings)
    await asyncio.to_thread(secrets.prepare)
    async with AsyncExitStack() as stack:
        spans = stack.enter_context(open_tracing(tracing.exporter, file=tracing.file, ratio=tracing.ratio))
        telemetry, health = Telemetry(spans), Health()
        ledger = build_ledger(settings)
        stack.push_async_callback(ledger.close)
        store = build_store(settings)
        stack.push_async_callback(store.close)
        lines = UsageLog(usage_log, on_failure=lambda count, _: telemetry.usage_log_failures.inc(count))
        stack.push_async_callback(lines.close)
        token = read_secret(settings.http.token, settings.http.token_file)
        host, port = await stack.enter_async_context(
            serve_http(
                build_app(health=health, store=store, telemetry=telemetry, token=token),
                host=settings.http.host,
                port=settings.http.port,
                has_token=token is not None,
            )
        )
        http_url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        catalogue = TopicCatalogue(connection)
        publisher = KafkaPublisher(
            connection=connection,
            lacks_topic=catalogue.lacks,
            options=ProducerOptions(
                is_idempotent=kafka.idempotent_producer,
                max_record_bytes=max(limits.max_record_bytes, *(spec.max_message_bytes for spec in TOPICS)),
            ),
        )
        state = await stack.enter_async_context(aclosing(build_state(settings, telemetry)))
        graph = await stack.enter_async_context(aclosing(build_graph(settings, telemetry, state.states)))
        upkeep = asyncio.create_task(
            keep_compact(state.store, keep=timedelta(days=settings.state.compact_after_days), now=utc_now)
        )
        stack.callback(upkeep.cancel)
        await asyncio.gather(state.warm(), graph.warm())
        # Loading a large graph takes longer than any layer's timeout, which the first requests would pay.
        await graph.snapshots.preload(sorted(settings.content.roots))
        parsers = ExtractingPool()
        stack.callback(parsers.close)
        # The first long file would else wait for a process to start.
        await asyncio.to_thread(parsers.prepare)
        body_limits = BodyLimits(max_bytes=limits.max_request_bytes, max_depth=limits.max_depth)
        routes = Routes(
            bundles=topic_name("bundles", prefix=kafka.topic_prefix),
            usage=topic_name("usage", prefix=kafka.topic_prefix),
            dead_letters=topic_name("dead-letters", prefix=kafka.topic_prefix),
            reply_topics=frozenset(kafka.reply_topics),
        )
        handler = RequestHandler(
            assemble=build_assembler(
                settings, telemetry, graph.reader, state.states, failpoints=failpoints, parsers=parsers
            ).assemble,
            store=store,
            publisher=publisher,
            usage_log=lines,
            routes=routes,
            limits=HandlerLimits(
                body=body_limits,
                max_record_bytes=limits.max_record_bytes,
                max_capture_bytes=settings.outcomes.max_capture_bytes,
                public_url=settings.http.public_url or http_url,
                forget_seconds=settings.outcomes.forget_seconds,
            ),
            telemetry=telemetry,
            failpoints=failpoints,
            now=utc_now,
        )

        syncs = build_syncs(settings)
        stack.push_async_callback(syncs.close)
        sync_handler = SyncHandler(
            syncs=syncs,
            store=store,
            publisher=publisher,
            routes=replace(routes, bundles=topic_name("sync-results", prefix=kafka.topic_prefix)),
            limits=body_limits,
            forget_seconds=settings.outcomes.forget_seconds,
            telemetry=telemetry,
            failpoints=failpoints,
            now=utc_now,
        )

        state_handler = StateHandler(
            writer=state.writer,
            replies=Replies(
                publisher,
                routes,
                telemetry=telemetry,
                failpoints=failpoints,
                ended=telemetry.state_events,
            ),
            reply_topics=routes.allowed_reply_topics,
            limits=body_limits,
            telemetry=telemetry,
            failpoints=failpoints,
        )

        async def probe_for_syncs() -> None:
            await store.check()
            await graph.store.check()

        async def declare_topics() -> None:
            await ensure_topics(
                connection, prefix=kafka.topic_prefix, replication_factor=kafka.replication_factor
            )
            # Theirs to create: until they do, their replies go to the bundles topic.
            missing = [topic for topic in kafka.reply_topics if await catalogue.lacks(topic)]
            if missing:
                log.warning("reply_topics.missing", topics=missing)

        yield Service(
            worker=KafkaWorker(
                connection=connection,
                routes=[
                    Route(
                        topic=topic_name("requests", prefix=kafka.topic_prefix),
                        group=kafka.group_id,
                        handler=handler,
                        max_in_flight=kafka.max_in_flight,
                    ),
                    Route(
                        topic=topic_name("state", prefix=kafka.topic_prefix),
                        group=f"{kafka.group_id}-state",
                        handler=state_handler,
                        # What is in work together goes into one transaction per project.
                        max_in_flight=_EVENTS_IN_FLIGHT,
                        probe_store=state.store.check,
                    ),
                    Route(
                        topic=topic_name("sync", prefix=kafka.topic_prefix),
                        group=f"{kafka.group_id}-sync",
                        handler=sync_handler,
                        # One after the other, so that no older file replaces a newer one.
                        max_in_flight=1,
                        probe_store=probe_for_syncs,
                        expected_seconds=_LONGEST_SYNC_SECONDS,
                    ),
                ],
                publisher=publisher,
                ledger=ledger,
                probe_store=store.check,
                declare_topics=declare_topics,
                telemetry=telemetry,
                health=health,
                consumer=ConsumerOptions(
                    session_timeout_ms=kafka.session_timeout_ms,
                    heartbeat_interval_ms=max(1, kafka.session_timeout_ms // 10),
                    # The embedded broker holds a fetch for as long as it is told, records or not.
                    fetch_max_wait_ms=kafka.fetch_max_wait_ms,
                ),
                limits=DispatchLimits(
                    commit_interval_seconds=kafka.commit_seconds,
                    commit_after_records=kafka.commit_records,
                    uncommitted_span=kafka.span_cap,
                    revoke_wait_seconds=kafka.revoke_seconds,
                ),
                drain_seconds=kafka.drain_seconds,
            ),
            health=health,
            http_url=http_url,
        )


async def run_service(settings: Settings, *, embedded: bool, embedded_port: int | None) -> int:
    """Run until a signal asks to stop; the exit code."""
    async with AsyncExitStack() as stack:
        if embedded:
            broker = await stack.enter_async_context(embedded_broker(port=embedded_port))
            settings = embedded_settings(settings, broker.bootstrap_servers)
            log.info("broker.embedded", bootstrap_servers=broker.bootstrap_servers)
        service = await stack.enter_async_context(build_service(settings))
        settle_heap()
        log.info("worker.starting", http=service.http_url, **_summary(settings))
        return int(await service.worker.run())


def embedded_settings(settings: Settings, bootstrap_servers: str) -> Settings:
    """The settings for an embedded broker: no idempotent producer, and fetches that it answers late."""
    kafka = settings.kafka.model_copy(
        update={
            "bootstrap_servers": (bootstrap_servers,),
            "idempotent_producer": False,
            "fetch_max_wait_ms": 10,
        }
    )
    return settings.model_copy(update={"kafka": kafka})


def demo_settings(
    *, roots: Mapping[str, tuple[Path, ...]], home: Path, bootstrap_servers: str, failpoints: str
) -> Settings:
    """Everything on loopback and in the folder `home`, with these drills armed."""
    settings = Settings(
        kafka=Kafka(group_id="context-demo"),
        outcomes=Outcomes(sqlite_path=home / "outcomes.db"),
        http=Http(port=0),
        graph=Graph(sqlite_path=home / "graph.db"),
        state=State(sqlite_path=home / "state.db"),
        content=Content(roots=dict(roots)),
        failpoints=failpoints,
    )
    return embedded_settings(settings, bootstrap_servers)


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


async def broker_version(settings: Settings) -> str:
    """The cluster that answers, in words. Raises Unavailable."""
    try:
        return f"cluster {await connection_of(settings).cluster_id()}"
    except (KafkaError, OSError) as error:
        raise Unavailable(f"no broker answers at {', '.join(settings.kafka.bootstrap_servers)}") from error


async def send_once(settings: Settings, body: bytes, *, timeout_seconds: float) -> bytes:
    """Publish one request as it is and return the reply's bytes. Raises Unavailable."""
    servers = ", ".join(settings.kafka.bootstrap_servers)
    try:
        async with asyncio.timeout(timeout_seconds), build_client(settings) as client:
            return await client.exchange_raw(body, key=project_key(body))
    except TimeoutError:
        raise Unavailable(f"no reply within {timeout_seconds:g} s; is a worker running?") from None
    except (KafkaError, OSError) as error:
        raise Unavailable(f"no broker answers at {servers}") from error


def build_client(settings: Settings) -> ContextClient:
    """A caller's client for the same broker and topics."""
    return ContextClient(
        settings.kafka.bootstrap_servers,
        topic_prefix=settings.kafka.topic_prefix,
        security={
            name: value
            for name, value in connection_of(settings).client_options().items()
            if name not in {"bootstrap_servers", "client_id"}
        },
    )


def project_key(body: bytes) -> bytes | None:
    """The record key of a request body: its project, where one can be read."""
    _, project_id = read_ids(body)
    return project_id.encode() if project_id is not None else None


def dead_letter_topic(settings: Settings) -> DeadLetterTopic:
    """Where this worker's dead letters lie."""
    name = topic_name("dead-letters", prefix=settings.kafka.topic_prefix)
    return DeadLetterTopic(topic=name, connection=connection_of(settings))


async def purge_once(settings: Settings, project_id: str, thread_id: str | None) -> Purged:
    """Erase a project, or a thread of it, in every store that the settings name. Raises StoreUnavailable."""
    async with AsyncExitStack() as stack:
        places = Places(
            graph=build_graph_store(settings),
            state=build_state_store(settings),
            packs=build_pack_cache(settings),
            outcomes=build_store(settings),
        )
        for store in (places.graph, places.state, places.packs, places.outcomes):
            stack.push_async_callback(store.close)
        return await purge(project_id, thread_id, places)


def redrivable_topics(settings: Settings) -> frozenset[str]:
    """Where dead letters may go back to."""
    prefix = settings.kafka.topic_prefix
    roles: tuple[TopicRole, ...] = ("requests", "state", "sync")
    return frozenset(topic_name(role, prefix=prefix) for role in roles)


def _summary(settings: Settings) -> dict[str, object]:
    return {
        "bootstrap_servers": list(settings.kafka.bootstrap_servers),
        "group": settings.kafka.group_id,
        "topics": f"{settings.kafka.topic_prefix}*",
        "outcomes": settings.outcomes.store,
        "failpoints": settings.failpoints or None,
    }
