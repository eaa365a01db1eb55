"""Fixtures for tests that run in both ways: which broker and stores, and a caller's view of the topics.

A conftest imports those that its tests ask for.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.cluster import Mode, Topics, embedded_mode, services_mode
from worker.kafka.embedded import EmbeddedBroker


@pytest.fixture
def services_at(
    namespace: str, redis_url: str, neo4j_url: str, neo4j_auth: tuple[str, str]
) -> Callable[[str], Mode]:
    """The services, with the Kafka at an address."""

    def made(bootstrap: str) -> Mode:
        return services_mode(
            bootstrap,
            namespace=namespace,
            redis_url=redis_url,
            neo4j_url=neo4j_url,
            neo4j_auth=neo4j_auth,
        )

    return made


@pytest.fixture(params=["embedded", "services"])
def mode(request: pytest.FixtureRequest, namespace: str, tmp_path: Path) -> Mode:
    if request.param == "embedded":
        broker: EmbeddedBroker = request.getfixturevalue("embedded")
        return embedded_mode(broker.bootstrap_servers, namespace=namespace, folder=tmp_path)
    services: Callable[[str], Mode] = request.getfixturevalue("services_at")
    return services(request.getfixturevalue("kafka_bootstrap"))


@pytest_asyncio.fixture(loop_scope="session")
async def topics(mode: Mode) -> AsyncGenerator[Topics]:
    async with Topics(mode) as topics:
        yield topics
