"""The two ways to run a worker, for every end-to-end test."""

from __future__ import annotations

from itertools import zip_longest

import pytest

from tests.support.modes import mode as mode  # noqa: PLC0414 - fixtures of the tests below
from tests.support.modes import services_at as services_at  # noqa: PLC0414 - as above
from tests.support.modes import topics as topics  # noqa: PLC0414 - as above
from worker.kafka.embedded import EmbeddedBroker

# Tests are handed to the test processes in this order: what waits longest and what computes longest begin,
# turn by turn, so that they share the machine and nothing long is left for the end.
WAITING = (
    "test_outages.py",
    "test_kills.py",
    "test_worker_kills.py",
    "test_worker_state.py",
    "test_worker_answers.py",
    "test_rebalances.py",
    "test_black_holes.py",
    "test_dispatch_outages.py",
    "test_soak.py",
    "test_disk_full.py",
    "test_dispatch_processes.py",
    "test_worker_poison.py",
    "test_replay.py",
    "test_poison.py",
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


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.services)])
def broker(request: pytest.FixtureRequest) -> str:
    if request.param == "embedded":
        embedded: EmbeddedBroker = request.getfixturevalue("embedded")
        return embedded.bootstrap_servers
    return request.getfixturevalue("kafka_bootstrap")


@pytest.fixture
def topic(namespace: str) -> str:
    return f"{namespace}.requests"
