"""Composition by hand, the broker's part: where outcomes are kept, how Kafka is reached, and its clients.

The client of Redis takes a tenth of a worker's start, so it is imported where the settings name a Redis.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from aiokafka.errors import KafkaError
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256, SASLScram512

from schemas.topics import TopicRole, topic_name
from worker.client import ContextClient
from worker.decoding import read_ids
from worker.errors import Unavailable
from worker.kafka.connection import KafkaConnection
from worker.kafka.dead_letters import DeadLetterTopic
from worker.logs import mask_url
from worker.ports import CrashLedger, OutcomeStore
from worker.purging import Places, Purged, purge
from worker.settings import Content, Graph, Http, Kafka, Outcomes, Settings, State, read_secret
from worker.stores.sqlite import SqliteCrashLedger, SqliteOutcomeStore
from worker.tls import client_context
from worker.usage.log import USAGE_LOG_VARIABLE, usage_log_path
from worker.wiring_graph import build_graph_store, build_pack_cache
from worker.wiring_state import build_state_store

_EMBEDDED: Final[Mapping[str, object]] = {"idempotent_producer": False, "fetch_max_wait_ms": 10}


def build_store(settings: Settings) -> OutcomeStore:
    """The outcome store that the settings name. Raises ValueError for a secret file that cannot be read."""
    outcomes = settings.outcomes
    if outcomes.redis_address is not None:
        from worker.stores.redis import RedisOutcomeStore  # noqa: PLC0415 - as said above

        return RedisOutcomeStore(
            outcomes.redis_address,
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
    if outcomes.redis_address is not None:
        from worker.stores.redis import RedisCrashLedger  # noqa: PLC0415 - as said above

        return RedisCrashLedger(
            outcomes.redis_address,
            password=read_secret(outcomes.redis_password, outcomes.redis_password_file),
            key_prefix=outcomes.key_prefix,
            timeout_seconds=outcomes.timeout_seconds,
        )
    return SqliteCrashLedger(outcomes.sqlite_path)


def connection_of(settings: Settings) -> KafkaConnection:
    """Addresses and credentials. Raises ValueError for a file of a secret or certificate that is none."""
    kafka = settings.kafka
    context = None
    if kafka.security_protocol.endswith("SSL"):
        context = client_context(
            ca_file=kafka.ssl_ca_file,
            certificate_file=kafka.ssl_certificate_file,
            key_file=kafka.ssl_key_file,
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


def embedded_settings(settings: Settings, bootstrap_servers: str) -> Settings:
    """The settings for an embedded broker: no idempotent producer, and fetches that it answers late."""
    replaced = {"bootstrap_servers": (bootstrap_servers,), **_EMBEDDED}
    return settings.model_copy(update={"kafka": settings.kafka.model_copy(update=replaced)})


def refuse_replaced(settings: Settings) -> None:
    """Raises ValueError where an option was set that an embedded broker replaces."""
    settings.kafka.refuse_idle(
        "kafka", "bootstrap_servers", *_EMBEDDED, unless="a broker other than that of run --embedded"
    )


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


async def broker_version(settings: Settings) -> str:
    """The cluster that answers, in words. Raises Unavailable."""
    connection = connection_of(settings)
    try:
        return f"cluster {await connection.cluster_id()}"
    except (KafkaError, OSError) as error:
        raise Unavailable(await connection.refusal()) from error


async def send_once(settings: Settings, body: bytes, *, timeout_seconds: float) -> bytes:
    """Publish one request as it is and return the reply's bytes. Raises Unavailable."""
    try:
        async with asyncio.timeout(timeout_seconds), build_client(settings) as client:
            return await client.exchange_raw(body, key=project_key(body))
    except TimeoutError:
        raise Unavailable(f"no reply within {timeout_seconds:g} s; is a worker running?") from None
    except (KafkaError, OSError) as error:
        raise Unavailable(await connection_of(settings).refusal()) from error


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
    """Erase a project, or a thread of it, in every store that the settings name.

    Says on standard error where they are, and which of them is a file that is not there; it is left out.
    Raises StoreUnavailable, and FileNotFoundError where all of them are such files.
    """
    absent = _absent_files(settings)
    for what, place in purged_places(settings).items():
        sys.stderr.write(f"{what}: {place}{' (not there)' if what in absent else ''}\n")
    async with AsyncExitStack() as stack:
        places = Places(
            graph=None if "graph" in absent else build_graph_store(settings),
            state=None if "state" in absent else build_state_store(settings),
            packs=build_pack_cache(settings),
            outcomes=None if "outcomes" in absent else build_store(settings),
        )
        for store in (places.graph, places.state, places.packs, places.outcomes):
            if store is not None:
                stack.push_async_callback(store.close)
        return await purge(project_id, thread_id, places)


def _absent_files(settings: Settings) -> frozenset[str]:
    """Which stores are files that are not there. Raises FileNotFoundError where all of them are.

    Purging must not make a store: an empty one has nothing to erase, and hides which one was meant.
    """
    files: dict[str, Path] = {}
    if settings.graph.store == "sqlite":
        files |= {"graph": settings.graph.sqlite_path, "state": settings.state.sqlite_path}
    if settings.outcomes.store == "sqlite":
        files["outcomes"] = settings.outcomes.sqlite_path
    absent = frozenset(what for what, path in files.items() if not path.exists())
    if absent >= {"graph", "state", "outcomes"}:
        looked = ", ".join(file_place(path, f"{what}.sqlite_path") for what, path in files.items())
        raise FileNotFoundError(
            f"erased nothing: no file at {looked}; purge in the worker's folder, with its settings"
        )
    return absent


def purged_places(settings: Settings) -> dict[str, str]:
    """Where is looked for what is erased."""
    graph, outcomes = settings.graph, outcomes_place(settings.outcomes)
    neo4j = None if graph.neo4j_url is None else f"{mask_url(graph.neo4j_url)} (graph.neo4j_url)"
    state = neo4j or file_place(settings.state.sqlite_path, "state.sqlite_path")
    return {
        "graph": neo4j or file_place(graph.sqlite_path, "graph.sqlite_path"),
        "state": f"{state}, copies at {outcomes}" if settings.outcomes.store == "redis" else state,
        "packs": outcomes if graph.pack_cache == "redis" else "in the memory of each worker",
        "outcomes": outcomes,
        "usage log": file_place(usage_log_path(), USAGE_LOG_VARIABLE),
    }


def outcomes_place(outcomes: Outcomes) -> str:
    """Where outcomes are kept, and what says so."""
    if outcomes.store == "redis":
        return f"{mask_url(str(outcomes.redis_url))} (outcomes.redis_url)"
    return file_place(outcomes.sqlite_path, "outcomes.sqlite_path")


def file_place(path: Path, option: str) -> str:
    """A file and what names it: another folder or environment has another one."""
    return f"{path} ({option}{'' if path.is_absolute() else f', seen from {Path.cwd()}'})"


def redrivable_topics(settings: Settings) -> frozenset[str]:
    """Where dead letters come from, and may go back to."""
    prefix = settings.kafka.topic_prefix
    roles: tuple[TopicRole, ...] = ("requests", "responses", "state", "sync", "tools")
    return frozenset(topic_name(role, prefix=prefix) for role in roles)
