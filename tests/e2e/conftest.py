"""The two ways to run a worker, for every end-to-end test."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.cluster import Mode, Topics, embedded_mode, services_mode
from worker.kafka.embedded import EmbeddedBroker


@pytest.fixture(params=["embedded", "services"])
def mode(request: pytest.FixtureRequest, namespace: str, tmp_path: Path) -> Mode:
    if request.param == "embedded":
        broker: EmbeddedBroker = request.getfixturevalue("embedded")
        return embedded_mode(broker.bootstrap_servers, namespace=namespace, folder=tmp_path)
    return services_mode(
        request.getfixturevalue("kafka_bootstrap"),
        namespace=namespace,
        redis_url=request.getfixturevalue("redis_url"),
    )


@pytest_asyncio.fixture(loop_scope="session")
async def topics(mode: Mode) -> AsyncGenerator[Topics]:
    async with Topics(mode) as topics:
        yield topics


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.services)])
def broker(request: pytest.FixtureRequest) -> str:
    if request.param == "embedded":
        embedded: EmbeddedBroker = request.getfixturevalue("embedded")
        return embedded.bootstrap_servers
    return request.getfixturevalue("kafka_bootstrap")


@pytest.fixture
def topic(namespace: str) -> str:
    return f"{namespace}.requests"
