"""What the tests of real stores share: the drivers' own clients, and a Redis that may be treated badly."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
import redis
from neo4j import AsyncDriver, AsyncGraphDatabase

from tests.contract.redis_server import RedisServer


@pytest.fixture
async def driver(neo4j_url: str, neo4j_auth: tuple[str, str]) -> AsyncGenerator[AsyncDriver]:
    made = AsyncGraphDatabase.driver(neo4j_url, auth=neo4j_auth)  # pyright: ignore[reportUnknownMemberType]  # its options are untyped
    async with made as opened:
        yield opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def admin(server: RedisServer) -> Iterator[Any]:
    """The driver's own client, untyped on purpose; leaves an empty server with its ordinary settings."""
    client: Any = redis.Redis(port=server.port)
    yield client
    for setting in ({"maxmemory": 0}, {"requirepass": ""}):
        for name, value in setting.items():
            client.config_set(name, value)
    client.replicaof("NO", "ONE")
    client.flushall()
    client.close()
