"""Creating the declared topics, and saying where existing ones differ from the declaration.

Nothing that exists is changed: more partitions would move keys to other partitions, and retention is the
operator's to decide.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import stamina
import structlog
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from schemas.topics import DEFAULT_PREFIX, TOPICS, TopicSpec
from worker.errors import Unavailable
from worker.kafka.connection import KafkaConnection

_log = structlog.get_logger(__name__)

_READY_PAUSE_SECONDS: Final = 0.1
_LISTING_SECONDS: Final = 5.0
_FOUND_FOR_SECONDS: Final = 60.0
_MISSED_FOR_SECONDS: Final = 5.0


class TopicNotReady(Unavailable):
    """A declared topic could not be created, or does not come up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsReport:
    """What was found and done; names in the order of the table."""

    created: tuple[str, ...]
    existing: tuple[str, ...]
    differences: tuple[str, ...]
    """One line each for people: what an existing topic has, and what is declared."""


async def ensure_topics(
    connection: KafkaConnection,
    *,
    prefix: str = DEFAULT_PREFIX,
    replication_factor: int,
    specs: Sequence[TopicSpec] = TOPICS,
    wait_seconds: float = 0.0,
    ready_seconds: float = 15.0,
) -> TopicsReport:
    """Create the topics that are missing, and return when every partition of all of them has a leader.

    Idempotent, also while other workers do the same. Tries again, with growing pauses that are logged, for
    `wait_seconds` while no broker answers. Raises KafkaError when that has passed, and TopicNotReady where
    the broker refuses a topic or does not bring it up within `ready_seconds`.
    """
    async for attempt in stamina.retry_context(
        on=KafkaError,
        attempts=None if wait_seconds else 1,
        timeout=wait_seconds or None,
        wait_initial=0.2,
        wait_max=5.0,
    ):
        with attempt:
            async with _admin(connection) as admin:
                return await _ensure(
                    admin,
                    {spec.name(prefix): spec for spec in specs},
                    replication_factor=replication_factor,
                    ready_seconds=ready_seconds,
                )
    raise TopicNotReady("no attempt was made")


async def _ensure(
    admin: Any, declared: Mapping[str, TopicSpec], *, replication_factor: int, ready_seconds: float
) -> TopicsReport:
    before = await _partitions(admin)
    missing = [name for name in declared if name not in before]
    created: list[str] = []
    if missing:
        created = await _create(admin, declared, missing, replication_factor=replication_factor)
    if created:
        _log.info("topics.created", topics=created)
    after = await _wait_for_leaders(admin, declared, ready_seconds=ready_seconds)
    differences = [
        *_too_few_partitions(declared, after),
        *await _other_configs(admin, {name: declared[name] for name in declared if name not in created}),
    ]
    for difference in differences:
        _log.warning("topics.differ", difference=difference)
    return TopicsReport(
        created=tuple(created),
        existing=tuple(name for name in declared if name not in created),
        differences=tuple(differences),
    )


@asynccontextmanager
async def _admin(connection: KafkaConnection) -> AsyncGenerator[Any]:
    admin = AIOKafkaAdminClient(**connection.client_options())
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


class TopicCatalogue:
    """Which topics the cluster has, remembered for a while; for topics that the worker does not create."""

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        names: Callable[[KafkaConnection], Awaitable[frozenset[str]]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`names` gives all topics of the cluster, or raises KafkaError; `clock` gives seconds."""
        self._connection = connection
        self._names = names or topic_names
        self._clock = clock
        self._known: frozenset[str] | None = None
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def lacks(self, topic: str) -> bool:
        """Whether the topic is not there; False also where no broker answers.

        A topic that was found counts as there for a minute, one that was not as missing for five seconds.
        Costs a connection and a listing after that time, and nothing within it.
        """
        if self._clock() >= self._look_again_at(topic):
            async with self._reading:
                if self._clock() >= self._look_again_at(topic):
                    await self._read()
        return self._known is not None and topic not in self._known

    def _look_again_at(self, topic: str) -> float:
        is_there = self._known is not None and topic in self._known
        return self._read_at + (_FOUND_FOR_SECONDS if is_there else _MISSED_FOR_SECONDS)

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(_LISTING_SECONDS):
                self._known = await self._names(self._connection)
        except (KafkaError, OSError, TimeoutError) as error:
            _log.warning("topics.not_listed", error=repr(error))
            self._known = None
        self._read_at = self._clock()


async def topic_names(connection: KafkaConnection) -> frozenset[str]:
    """Every topic of the cluster. Raises KafkaError."""
    async with _admin(connection) as admin:
        return frozenset(await _partitions(admin))


async def _partitions(admin: Any) -> dict[str, list[int]]:
    """The leader of each partition by topic, -1 for none.

    Asks for all topics: to ask some brokers for one by its name is to create it, with other partitions.
    """
    topics = cast("list[dict[str, Any]]", await admin.describe_topics())
    return {
        topic["topic"]: [partition["leader"] for partition in topic["partitions"]]
        for topic in topics
        if not topic["error_code"]
    }


async def _create(
    admin: Any, declared: Mapping[str, TopicSpec], missing: Sequence[str], *, replication_factor: int
) -> list[str]:
    """Create topics; give back those that nobody else created meanwhile."""
    response = await admin.create_topics(
        [
            NewTopic(
                name,
                declared[name].partitions,
                replication_factor,
                topic_configs=declared[name].configs,
            )
            for name in missing
        ]
    )
    created: list[str] = []
    for name, error_code, *message in response.topic_errors:
        error = for_code(error_code)
        if not error_code:
            created.append(name)
        if not error_code or error is TopicAlreadyExistsError:
            continue
        if error.retriable:  # a broker that is just coming up
            raise error(name)
        reason = message[0] if message and message[0] else error.__name__
        raise TopicNotReady(f"the broker refuses to create topic {name!r}: {reason}")
    return created


async def _wait_for_leaders(
    admin: Any, declared: Mapping[str, TopicSpec], *, ready_seconds: float
) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    try:
        async with asyncio.timeout(ready_seconds):
            while True:
                found = await _partitions(admin)
                leaders = [found.get(name) or [-1] for name in declared]
                if all(leader >= 0 for partitions in leaders for leader in partitions):
                    return found
                await asyncio.sleep(_READY_PAUSE_SECONDS)
    except TimeoutError:
        waiting = [name for name in declared if min(found.get(name) or [-1]) < 0]
        msg = f"no leader after {ready_seconds} s for topics: {', '.join(waiting)}"
        raise TopicNotReady(msg) from None


def _too_few_partitions(declared: Mapping[str, TopicSpec], found: Mapping[str, list[int]]) -> list[str]:
    return [
        f"{name} has {len(found[name])} partitions; declared: {spec.partitions}"
        for name, spec in declared.items()
        if len(found[name]) < spec.partitions
    ]


async def _other_configs(admin: Any, existing: Mapping[str, TopicSpec]) -> list[str]:
    if not existing:
        return []
    # All options: a request that names some makes the embedded broker hang up.
    wanted = [ConfigResource(ConfigResourceType.TOPIC, name, configs=None) for name in existing]
    found: dict[str, dict[str, str]] = {}
    for response in await admin.describe_configs(wanted):
        for error_code, _, _, name, entries in response.resources:
            # Who may not read the configuration may still consume and produce.
            found[name] = {} if error_code else {entry[0]: entry[1] for entry in entries}
    return [
        f"{name} has {option}={found[name][option]}; declared: {value}"
        for name, spec in existing.items()
        for option, value in spec.configs.items()
        if found.get(name, {}).get(option, value) != value
    ]
