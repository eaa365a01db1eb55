"""Creating the declared topics, and saying where existing ones differ from the declaration.

Nothing that exists is changed: more partitions would move keys to other partitions, and retention is the
operator's to decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
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
