"""Real worker processes and what they leave on the topics, for the end-to-end tests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition

from schemas.topics import TOPICS
from tests.support.nursery import Forked, nursery
from worker.kafka.connection import KafkaConnection
from worker.kafka.topics import ensure_topics
from worker.kafka_fetch import log_ends

ROOT = Path(__file__).parents[2]

PATIENCE_SECONDS = 150
"""When a wait has failed; long, since on a crowded machine the start of a worker alone takes a minute."""


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One of the two ways to run: which broker, and the settings that go with it."""

    name: str
    bootstrap: str
    prefix: str
    group: str
    environment: dict[str, str]
    session_timeout_ms: int
    """What a killed worker's successor waits for."""


def embedded_mode(
    bootstrap: str, *, namespace: str, folder: Path, session_timeout_ms: int = 6_000, **settings: str
) -> Mode:
    """The embedded broker and SQLite; `settings` beside what says where they are."""
    return Mode(
        name="embedded",
        bootstrap=bootstrap,
        prefix=f"{namespace}.",
        group=f"g-{namespace}",
        environment={
            "WORKER_KAFKA__IDEMPOTENT_PRODUCER": "false",
            "WORKER_OUTCOMES__SQLITE_PATH": str(folder / "outcomes.db"),
            "WORKER_GRAPH__SQLITE_PATH": str(folder / "graph.db"),
            "WORKER_STATE__SQLITE_PATH": str(folder / "state.db"),
            **settings,
        },
        session_timeout_ms=session_timeout_ms,
    )


def services_mode(
    bootstrap: str, *, namespace: str, redis_url: str, neo4j_url: str, neo4j_auth: tuple[str, str]
) -> Mode:
    """A real Kafka, Redis and Neo4j. Projects in Neo4j outlive a test: what is kept there needs its own.

    A worker forgets old events of every project in its store, and those of tests are old: so these keep all.
    """
    user, password = neo4j_auth
    return Mode(
        name="services",
        bootstrap=bootstrap,
        prefix=f"{namespace}.",
        group=f"g-{namespace}",
        environment={
            "WORKER_OUTCOMES__STORE": "redis",
            "WORKER_OUTCOMES__REDIS_URL": redis_url,
            "WORKER_OUTCOMES__KEY_PREFIX": namespace,
            "WORKER_GRAPH__STORE": "neo4j",
            "WORKER_GRAPH__NEO4J_URL": neo4j_url,
            "WORKER_GRAPH__NEO4J_USER": user,
            "WORKER_GRAPH__NEO4J_PASSWORD": password,
            "WORKER_STATE__COMPACT_AFTER_DAYS": "36500",
        },
        session_timeout_ms=6_000,
    )


@dataclass(kw_only=True)
class WorkerProcess:
    """One `python -m worker run`."""

    process: Forked
    log: Path

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self, *, seconds: float = PATIENCE_SECONDS) -> int:
        """Its exit code; fails with the log where it does not end."""
        try:
            return await asyncio.wait_for(self.process.wait(), seconds)
        except TimeoutError:
            msg = f"worker {self.process.pid} did not end within {seconds} s\n{self.log.read_text()[-4_000:]}"
            raise AssertionError(msg) from None


def environment_of(mode: Mode) -> dict[str, str]:
    """The settings of a worker of that mode."""
    return {
        "WORKER_KAFKA__BOOTSTRAP_SERVERS": json.dumps([mode.bootstrap]),
        "WORKER_KAFKA__TOPIC_PREFIX": mode.prefix,
        "WORKER_KAFKA__GROUP_ID": mode.group,
        "WORKER_KAFKA__SESSION_TIMEOUT_MS": str(mode.session_timeout_ms),
        "WORKER_HTTP__PORT": "0",
        **mode.environment,
    }


@asynccontextmanager
async def workers(mode: Mode, tmp_path: Path) -> AsyncGenerator[Callable[..., Any]]:
    """Gives `start(**environment)`; every process started is ended on the way out."""
    started: list[WorkerProcess] = []

    async def start(**environment: str) -> WorkerProcess:
        log = tmp_path / f"worker-{len(started)}.log"
        process = await nursery().start(
            {
                **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
                "ORCHESTRATA_CONTEXT_USAGE_LOG": str(tmp_path / "usage.jsonl"),
                **environment_of(mode),
                **environment,
            },
            log,
        )
        worker = WorkerProcess(process=process, log=log)
        started.append(worker)
        return worker

    try:
        yield start
    finally:
        for worker in started:
            if worker.process.returncode is None:
                worker.signal(signal.SIGCONT)
                worker.process.kill()
                await worker.process.wait()


@dataclass(kw_only=True)
class Published:
    """What stands on one topic so far, in the order in which it was read."""

    records: list[Any] = field(default_factory=list[Any])

    def by_outcome(self) -> dict[tuple[str | None, str | None, int], list[bytes]]:
        """The distinct and repeated values by project, request id and generation."""
        found: dict[tuple[str | None, str | None, int], list[bytes]] = defaultdict(list)
        for record in self.records:
            body = json.loads(record.value)
            headers = dict(record.headers)
            generation = int(headers.get("context-generation", b"0"))
            found[body.get("project_id"), body.get("request_id"), generation].append(record.value)
        return dict(found)


class Topics:
    """Publishes requests as any orchestrator would, and reads everything that comes back."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._producer: Any = AIOKafkaProducer(
            bootstrap_servers=mode.bootstrap, acks="all", linger_ms=2, max_request_size=10_485_760
        )
        self._consumers: dict[str, Any] = {}
        self._published: dict[str, Published] = defaultdict(Published)

    async def __aenter__(self) -> Self:
        # Before anybody produces: the embedded broker would create the topic its own way, Kafka not at all.
        connection = KafkaConnection(bootstrap_servers=(self._mode.bootstrap,))
        await ensure_topics(connection, prefix=self._mode.prefix, replication_factor=1)
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()
        for consumer in self._consumers.values():
            await consumer.stop()

    async def send(
        self,
        body: dict[str, Any] | bytes,
        *,
        key: str | bytes = "p",
        headers: Iterable[tuple[str, bytes]] = (),
        partition: int | None = None,
        topic: str = "requests",
    ) -> Any:
        """Returns the metadata of the record, its offset among them."""
        value = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self._producer.send_and_wait(
            self._mode.prefix + topic,
            value,
            key=key.encode() if isinstance(key, str) else key,
            headers=list(headers),
            partition=partition,
        )

    async def read_until(
        self, topic: str, enough: Callable[[Published], bool], *, seconds: float = PATIENCE_SECONDS
    ) -> Published:
        """Everything on the topic since its beginning, read until `enough` says so; fails in time."""
        published = self._published[topic]
        consumer = await self._consumer(topic)
        deadline = asyncio.get_running_loop().time() + seconds
        while not enough(published):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                msg = f"{topic}: {len(published.records)} records after {seconds} s: {_summary(published)}"
                raise AssertionError(msg)
            batches = await consumer.getmany(timeout_ms=int(min(left, 0.5) * 1_000))
            published.records.extend(record for batch in batches.values() for record in batch)
        return published

    async def read_all(self, topic: str) -> Published:
        """Everything that stands on the topic now."""
        consumer = await self._consumer(topic)
        listed = await consumer.end_offsets(consumer.assignment())
        ends = await log_ends({"bootstrap_servers": [self._mode.bootstrap]}, listed)

        async def at_end() -> bool:
            return all([await consumer.position(tp) >= end for tp, end in ends.items()])

        published = self._published[topic]
        while not await at_end():
            batches = await consumer.getmany(timeout_ms=500)
            published.records.extend(record for batch in batches.values() for record in batch)
        return published

    async def _consumer(self, topic: str) -> Any:
        if topic not in self._consumers:
            # aiokafka leaves most of its types out.
            consumer: Any = AIOKafkaConsumer(
                bootstrap_servers=self._mode.bootstrap,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                fetch_max_wait_ms=20,
            )
            await consumer.start()
            self._consumers[topic] = consumer
            name = self._mode.prefix + topic
            spec = next(spec for spec in TOPICS if spec.role == topic)
            consumer.assign([TopicPartition(name, partition) for partition in range(spec.partitions)])
            await consumer.seek_to_beginning()
        return self._consumers[topic]


def _summary(published: Published) -> str:
    kinds: dict[str, int] = defaultdict(int)
    for record in published.records:
        headers = dict(record.headers)
        kinds[str(headers.get("context-dead-code") or headers.get("context-kind"))] += 1
    return json.dumps(kinds)


def request(number: int, *, project: str = "p", **more: Any) -> dict[str, Any]:
    """A small valid request."""
    return {
        "request_id": f"r{number}",
        "project_id": project,
        "volk": "smith",
        "subject": "implement",
        "user_message": f"Do number {number}.",
        **more,
    }


def ids(published: Published) -> set[str | None]:
    return {json.loads(record.value).get("request_id") for record in published.records}


def covers(wanted: set[str]) -> Callable[[Published], bool]:
    return lambda published: wanted <= ids(published)


def longer_than(records: int) -> Callable[[Published], bool]:
    return lambda published: len(published.records) > records


async def assert_each_ended_once(
    topics: Topics, wanted: set[str], *, buried: Iterable[str] = ()
) -> dict[Any, list[bytes]]:
    """Exactly one distinct outcome and usage event each; what was published again is byte-equal.

    Dead letters are there for `buried` and nobody else.
    """
    await topics.read_until("bundles", covers(wanted))
    await topics.read_until("usage", covers(wanted))
    outcomes = (await topics.read_all("bundles")).by_outcome()
    usages = (await topics.read_all("usage")).by_outcome()
    assert {key[1] for key in outcomes} == wanted
    assert {key: len(set(values)) for key, values in outcomes.items()} == dict.fromkeys(outcomes, 1)
    assert {key: len(set(values)) for key, values in usages.items()} == dict.fromkeys(outcomes, 1)
    letters = (await topics.read_all("dead-letters")).records
    assert {json.loads(letter.value)["request_id"] for letter in letters} == set(buried)
    assert len({(letter.value, tuple(letter.headers)) for letter in letters}) == len(set(buried))
    return outcomes
