"""What every test may ask for: the real services, an embedded broker, names of its own, golden files.

A test that uses a real service gets the marker `services` by that alone, so `-m "not services"` selects
exactly the tests that need nothing started. Without its service a test fails; it never skips.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio
import structlog
from hypothesis import HealthCheck, settings

from worker.heap import load_freely, settle_heap
from worker.kafka.embedded import EmbeddedBroker, embedded_broker

TESTS = Path(__file__).parent
SERVICE_FIXTURES = frozenset(
    {"kafka_bootstrap", "neo4j_url", "neo4j_auth", "redis_url", "swipl", "chromium", "promtool"}
)

# Each process of a run loads the worker and all tests first, as a worker loads itself.
load_freely()

# Derandomised, so that a failure on one machine is the same failure on every machine. A slow machine is
# no reason to fail, whether it is one example or the generation of all that is slow.
settings.register_profile(
    "repeatable",
    derandomize=True,
    max_examples=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore", settings.get_profile("repeatable"), derandomize=False, max_examples=1_000
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True)
def logs_as_they_are_at_first() -> Iterator[None]:
    """What a test sets up for its log, such as a level, hides no line of the next one."""
    yield
    structlog.reset_defaults()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing with them"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not SERVICE_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.services)
        if item.path.is_relative_to(TESTS / "bench"):
            item.add_marker(pytest.mark.bench)


def pytest_collection_finish() -> None:
    settle_heap()


def _address(variable: str, service: str) -> str:
    value = os.environ.get(variable)
    if not value:
        pytest.fail(
            f"{service} is needed: run `make up`, then `make test-integration` ({variable} is not set)",
            pytrace=False,
        )
    return value


@pytest.fixture(scope="session")
def kafka_bootstrap() -> str:
    """`host:port` of a real Kafka."""
    return _address("CONTEXT_TEST_KAFKA", "Kafka")


@pytest.fixture(scope="session")
def neo4j_url() -> str:
    """`bolt://host:port` of a real Neo4j."""
    return _address("CONTEXT_TEST_NEO4J", "Neo4j")


@pytest.fixture(scope="session")
def neo4j_auth() -> tuple[str, str]:
    """User and password for `neo4j_url`."""
    return ("neo4j", _address("CONTEXT_TEST_NEO4J_PASSWORD", "Neo4j"))


@pytest.fixture(scope="session")
def redis_url() -> str:
    """`redis://host:port/0` of a real Redis."""
    return _address("CONTEXT_TEST_REDIS", "Redis")


@pytest.fixture(scope="session")
def swipl() -> Path:
    """The SWI-Prolog program."""
    return Path(_address("CONTEXT_TEST_SWIPL", "SWI-Prolog"))


@pytest.fixture(scope="session")
def chromium() -> Path:
    """The browser, Debian's."""
    return Path(_address("CONTEXT_TEST_CHROMIUM", "Chromium"))


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Prometheus' own checker of rules; the server lies beside it."""
    return Path(_address("CONTEXT_TEST_PROMTOOL", "Prometheus"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def embedded() -> AsyncGenerator[EmbeddedBroker]:
    """One embedded broker per test process; keep apart by `topic_prefix`."""
    async with embedded_broker() as broker:
        yield broker


@pytest.fixture
def namespace() -> str:
    """A name that no other test, process or run uses; services outlive a run."""
    return f"t{uuid4().hex[:16]}"


@pytest.fixture
def redis_namespace(namespace: str) -> str:
    """A key prefix of the test's own, so that nobody needs to flush a shared server."""
    return f"{namespace}:"


@pytest.fixture
def topic_prefix(namespace: str) -> str:
    """A topic prefix of the test's own, on a shared broker."""
    return f"{namespace}."


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, bytes], None]:
    """Compare bytes with a file in tests/golden; `make golden` writes it instead."""

    def compare(name: str, actual: bytes) -> None:
        path = TESTS / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(actual)
        assert path.is_file(), f"{path.relative_to(TESTS.parent)} is missing: run `make golden`"
        assert actual == path.read_bytes()

    return compare
