"""The two ways to run a worker, for every end-to-end test."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from itertools import zip_longest
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.cluster import Mode, Topics, embedded_mode, services_mode
from worker.kafka.embedded import EmbeddedBroker

# Tests are handed to the test processes in this order: what waits longest and what computes longest begin,
# turn by turn, so that they share the machine and nothing long is left for the end.
WAITING = (
    "test_worker_outages.py",
    "test_worker_kills.py",
    "test_worker_state.py",
    "test_dispatch_outages.py",
    "test_dispatch_processes.py",
    "test_worker_poison.py",
    "test_replay.py",
    "test_worker_rebalances.py",
    "test_worker.py",
)
COMPUTING = (
    "test_recount_sources.py",
    "test_recount_state.py",
    "test_linking.py",
    "test_trimming.py",
    "test_splits.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    units: dict[str, list[pytest.Item]] = {}
    for item in items:
        units.setdefault(item.location[0], []).append(item)
    turns = zip_longest(_units_of(WAITING, units), _units_of(COMPUTING, units))
    first = [item for pair in turns for unit in pair if unit is not None for item in unit]
    taken = set(first)
    items[:] = [*first, *(item for item in items if item not in taken)]


def _units_of(names: tuple[str, ...], units: dict[str, list[pytest.Item]]) -> list[list[pytest.Item]]:
    return [unit for name in names for unit in units.values() if unit[0].path.name == name]


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


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.services)])
def broker(request: pytest.FixtureRequest) -> str:
    if request.param == "embedded":
        embedded: EmbeddedBroker = request.getfixturevalue("embedded")
        return embedded.bootstrap_servers
    return request.getfixturevalue("kafka_bootstrap")


@pytest.fixture
def topic(namespace: str) -> str:
    return f"{namespace}.requests"
