"""The two ways to run a worker, for every end-to-end test."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import zip_longest
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.cluster import Mode, Topics, embedded_mode, services_mode
from worker.kafka.embedded import EmbeddedBroker

# Files are handed to the test processes in this order, whole: what waits longest and what computes longest
# begin, turn by turn, so that they share the machine and nothing long is left for the end.
WAITING = (
    "test_worker_outages.py",
    "test_worker_kills.py",
    "test_dispatch_processes.py",
    "test_dispatch_outages.py",
    "test_worker_poison.py",
    "test_worker_rebalances.py",
)
COMPUTING = ("test_recount_sources.py", "test_recount_state.py", "test_linking.py", "test_trimming.py")
FIRST = [name for pair in zip_longest(WAITING, COMPUTING) for name in pair if name is not None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    turn = {name: index for index, name in enumerate(FIRST)}
    items.sort(key=lambda item: turn.get(item.path.name, len(FIRST)))  # stable: the others as they were


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
