"""Declaring the topics on both brokers."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest
from aiokafka.errors import KafkaConnectionError

from schemas.topics import TOPICS
from tests.support.dispatching import create_topics
from worker.kafka.connection import KafkaConnection
from worker.kafka.embedded import EmbeddedBroker
from worker.kafka.topics import TopicNotReady, ensure_topics

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="session")]

ROLES = (
    *("requests", "bundles", "usage", "responses", "verdicts", "escalations"),
    *("state", "sync", "sync-results"),
    *("tools", "tool-results", "dead-letters"),
)


@pytest.fixture(params=["embedded", pytest.param("services", marks=pytest.mark.services)])
def connection(request: pytest.FixtureRequest) -> KafkaConnection:
    if request.param == "services":
        return KafkaConnection(bootstrap_servers=(request.getfixturevalue("kafka_bootstrap"),))
    broker: EmbeddedBroker = request.getfixturevalue("embedded")
    return KafkaConnection(bootstrap_servers=(broker.bootstrap_servers,))


async def test_topics_are_created_once_as_declared(connection: KafkaConnection, topic_prefix: str) -> None:
    names = tuple(topic_prefix + role for role in ROLES)
    first = await ensure_topics(connection, prefix=topic_prefix, replication_factor=1)
    assert (first.created, first.existing, first.differences) == (names, (), ())
    second = await ensure_topics(connection, prefix=topic_prefix, replication_factor=1)
    assert (second.created, second.existing, second.differences) == ((), names, ())


async def test_workers_that_start_together_create_each_topic_once(
    connection: KafkaConnection, topic_prefix: str
) -> None:
    reports = await asyncio.gather(
        *(ensure_topics(connection, prefix=topic_prefix, replication_factor=1) for _ in range(4))
    )
    created = [name for report in reports for name in report.created]
    assert sorted(created) == sorted(topic_prefix + role for role in ROLES)
    assert all(len(report.created) + len(report.existing) == len(ROLES) for report in reports)


async def test_what_differs_is_named_and_left_as_it_is(
    connection: KafkaConnection, topic_prefix: str
) -> None:
    usage = f"{topic_prefix}usage"
    await create_topics(
        connection.bootstrap_servers[0], usage, partitions=2, configs={"retention.ms": "60000"}
    )
    wanted = next(topic for topic in TOPICS if topic.role == "usage")
    for _ in range(2):
        report = await ensure_topics(connection, prefix=topic_prefix, replication_factor=1, specs=[wanted])
        assert report.existing == (usage,)
        assert f"{usage} has 2 partitions; declared: 12" in report.differences
        assert f"{usage} has retention.ms=60000; declared: 604800000" in report.differences


async def test_more_partitions_than_declared_are_no_difference(
    connection: KafkaConnection, topic_prefix: str
) -> None:
    spec = next(topic for topic in TOPICS if topic.role == "usage")
    more = replace(spec, partitions=20)
    await ensure_topics(connection, prefix=topic_prefix, replication_factor=1, specs=[more])
    report = await ensure_topics(connection, prefix=topic_prefix, replication_factor=1, specs=[spec])
    assert report.differences == ()


@pytest.mark.services
async def test_a_topic_that_the_broker_refuses_is_named_with_its_reason(
    kafka_bootstrap: str, topic_prefix: str
) -> None:
    connection = KafkaConnection(bootstrap_servers=(kafka_bootstrap,))
    with pytest.raises(
        TopicNotReady, match=rf"refuses to create topic '{topic_prefix}requests'.*replication"
    ):
        await ensure_topics(connection, prefix=topic_prefix, replication_factor=99)


async def test_a_broker_that_is_away_is_awaited_no_longer_than_asked(topic_prefix: str) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and nobody listens
        connection = KafkaConnection(bootstrap_servers=(f"127.0.0.1:{nobody.getsockname()[1]}",))
        for wait_seconds in (0.0, 0.3):
            with pytest.raises(KafkaConnectionError):
                await ensure_topics(
                    connection, prefix=topic_prefix, replication_factor=1, wait_seconds=wait_seconds
                )


async def test_a_broker_that_comes_up_late_is_found(embedded: EmbeddedBroker, topic_prefix: str) -> None:
    host, port = embedded.bootstrap_servers.split(":")
    links: list[asyncio.StreamWriter] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_reader, broker_writer = await asyncio.open_connection(host, int(port))
        links.extend((writer, broker_writer))

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65_536):
                sink.write(data)
            sink.close()

        await asyncio.gather(pump(reader, broker_writer), pump(broker_reader, writer))

    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        connection = KafkaConnection(bootstrap_servers=(f"127.0.0.1:{place.getsockname()[1]}",))
        waiting = asyncio.create_task(
            ensure_topics(connection, prefix=topic_prefix, replication_factor=1, wait_seconds=30)
        )
        done, _ = await asyncio.wait({waiting}, timeout=0.5)
        assert not done
        server = await asyncio.start_server(forward, sock=place)
        report = await waiting
        server.close()
    for writer in links:
        writer.close()
    assert len(report.created) == len(ROLES)
