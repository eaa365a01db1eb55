"""Composition by hand: settings become providers, stores, handlers and the worker. Nobody else reads them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from aiokafka.errors import KafkaError
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256, SASLScram512

from schemas.bundle import ContextBundle
from schemas.codes import PartName
from schemas.topics import TOPICS, topic_name
from schemas.wire import format_time
from worker.assembly import Assembler
from worker.budget.layers import ContextBudget
from worker.budget.models import ModelSpec
from worker.budget.tokens import counter_for
from worker.client import ContextClient
from worker.code.sources import SourceRoots
from worker.decoding import check_request, decode_request, read_ids
from worker.errors import Unavailable
from worker.failpoints import Failpoints
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
from worker.kafka.replies import Routes
from worker.kafka.topics import TopicCatalogue, ensure_topics
from worker.library import ContextInjector, UnifiedContextAssembler
from worker.planning import ContentPolicy
from worker.ports import (
    CrashLedger,
    LayerBudget,
    LayerContribution,
    OutcomeStore,
    Provider,
    RequestFrame,
    Scope,
    Subject,
)
from worker.providers.artifacts import ArtifactsProvider
from worker.providers.ast import AstProvider
from worker.providers.gather import Abandonment
from worker.providers.graph import GraphProvider
from worker.providers.memory import MemoryProvider
from worker.providers.mission import MissionProvider
from worker.providers.plan import PlanProvider
from worker.providers.semantic import SemanticProvider
from worker.providers.task import TaskProvider
from worker.settings import Settings, read_secret
from worker.stores.redis import RedisCrashLedger, RedisOutcomeStore
from worker.stores.sqlite import SqliteCrashLedger, SqliteOutcomeStore
from worker.telemetry import Telemetry
from worker.usage.log import UsageLog

log = structlog.get_logger()

_READY_POLL_SECONDS: Final = 0.05


# --- Content -----------------------------------------------------------------------------------------


def content_policy(settings: Settings) -> ContentPolicy:
    """The tables that shape the bytes of a bundle."""
    content = settings.content
    return ContentPolicy(
        models={
            name: ModelSpec(
                window=row.window,
                encoding=row.encoding,
                framing_tokens=row.framing_tokens,
                safety_factor=str(row.safety_factor),
            )
            for name, row in content.models.items()
        },
        default_model=content.default_model,
        subjects={
            name: Subject(name=name, inject=row.inject, semantic=row.semantic, task_type=row.task_type)
            for name, row in content.subjects.items()
        },
        default_strategy=content.strategy,
    )


def build_providers(settings: Settings, *, artifact_store: object | None = None) -> list[Provider]:
    """One provider a layer, in layer order. A new source adds its line here."""
    roots = SourceRoots(settings.content.roots)
    return [
        MissionProvider(),
        PlanProvider(),
        MemoryProvider(summary_tokens=settings.content.summary_tokens),
        ArtifactsProvider(store_of=None if artifact_store is None else lambda _scope: artifact_store),
        GraphProvider(),
        AstProvider(roots, max_source_bytes=settings.limits.max_source_bytes),
        SemanticProvider(),
        TaskProvider(),
    ]


class DrilledProvider:
    """A provider with a failpoint in front; only there while a drill is set."""

    def __init__(self, inner: Provider, failpoints: Failpoints) -> None:
        """Reach `provider.<layer>` before asking `inner`."""
        self.layer: PartName = inner.layer
        self._inner = inner
        self._failpoints = failpoints

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        """What `inner` gives, unless the drill says otherwise."""
        await self._failpoints.reach(f"provider.{self.layer}", frame.request.user_message)
        return await self._inner.provide(frame, scope, budget)


def build_assembler(settings: Settings, telemetry: Telemetry) -> Assembler:
    """The assembler of one worker."""
    failpoints = Failpoints(settings.failpoints)
    providers = build_providers(settings)
    if settings.failpoints:
        providers = [*map(partial(DrilledProvider, failpoints=failpoints), providers)]
    return Assembler(
        providers=providers,
        policy=content_policy(settings),
        telemetry=telemetry,
        abandonment=Abandonment(cap=settings.limits.abandoned_cap),
        now=utc_now,
        failpoints=failpoints,
    )


def build_library(
    settings: Settings | None = None,
    *,
    injector: ContextInjector | None = None,
    budget: ContextBudget | None = None,
    project_id: str = "local",
    usage_log: Path | None = None,
) -> UnifiedContextAssembler:
    """The classic in-process interface, with this project's providers."""
    chosen = settings or Settings()
    return UnifiedContextAssembler(
        providers_for=lambda store: build_providers(chosen, artifact_store=store),
        policy=content_policy(chosen),
        injector=injector,
        budget=budget,
        project_id=project_id,
        usage_log=usage_log,
    )


async def assemble_once(
    settings: Settings, body: bytes, *, as_of: datetime | None, say: Callable[[str], None]
) -> ContextBundle:
    """One request without a broker: the bundle that the worker would publish for the same `as_of`.

    Raises Rejected.
    """
    limits = settings.limits
    decoded = decode_request(body, max_bytes=limits.max_request_bytes, max_depth=limits.max_depth)
    check_request(decoded.request)
    instant = decoded.request.as_of or as_of
    assembler = build_assembler(settings, Telemetry())
    chosen = instant or utc_now()
    assembled = await assembler.assemble(decoded.request, as_of=chosen, notes=decoded.notes)
    if instant is None:
        say(f"as of {format_time(chosen)}; give --as-of to get the same bytes again")
    return assembled.bundle


def load_counters(settings: Settings) -> None:
    """Read every tokenizer of the model table. Raises ValueError for one that cannot be read."""
    for row in settings.content.models.values():
        counter_for(row.encoding, safety_factor=str(row.safety_factor))


# --- Stores ------------------------------------------------------------------------------------------


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


# --- Kafka -------------------------------------------------------------------------------------------


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
    telemetry, health = Telemetry(), Health()
    connection = connection_of(settings)
    kafka, limits = settings.kafka, settings.limits
    # Reading a vocabulary takes half a second, which no request should pay.
    await asyncio.to_thread(load_counters, settings)
    async with AsyncExitStack() as stack:
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
        handler = RequestHandler(
            assemble=build_assembler(settings, telemetry).assemble,
            store=store,
            publisher=publisher,
            usage_log=lines,
            routes=Routes(
                bundles=topic_name("bundles", prefix=kafka.topic_prefix),
                usage=topic_name("usage", prefix=kafka.topic_prefix),
                dead_letters=topic_name("dead-letters", prefix=kafka.topic_prefix),
                reply_topics=frozenset(kafka.reply_topics),
            ),
            limits=HandlerLimits(
                body=BodyLimits(max_bytes=limits.max_request_bytes, max_depth=limits.max_depth),
                max_record_bytes=limits.max_record_bytes,
                public_url=settings.http.public_url or http_url,
                forget_seconds=settings.outcomes.forget_seconds,
            ),
            telemetry=telemetry,
            failpoints=Failpoints(settings.failpoints),
            now=utc_now,
        )

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
                    )
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
        http_token=read_secret(settings.http.token, settings.http.token_file),
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


def redrivable_topics(settings: Settings) -> frozenset[str]:
    """Where dead letters may go back to."""
    return frozenset({topic_name("requests", prefix=settings.kafka.topic_prefix)})


def _summary(settings: Settings) -> dict[str, object]:
    return {
        "bootstrap_servers": list(settings.kafka.bootstrap_servers),
        "group": settings.kafka.group_id,
        "topics": f"{settings.kafka.topic_prefix}*",
        "outcomes": settings.outcomes.store,
        "failpoints": settings.failpoints or None,
    }


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)
