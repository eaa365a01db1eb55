"""A failover behind a stable name: the old primary lives on as a replica and keeps its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.redis_server import RedisServer
from worker.errors import StoreUnavailable
from worker.stores.redis_link import RedisLink, Script

pytestmark = pytest.mark.services

COUNT = Script("return redis.call('INCR', KEYS[1])")


class Pair:
    """Two servers, and a name that leads to one of them."""

    def __init__(self, directory: Path) -> None:
        self._name = directory / "primary.sock"
        self._servers: list[RedisServer] = []
        for name in ("first", "second"):
            (directory / name).mkdir()
            self._servers.append(RedisServer(directory / name))

    def start(self) -> None:
        for server in self._servers:
            server.start()
        self._name.symlink_to(self._servers[0].socket)

    def link(self) -> RedisLink:
        return _link(f"unix://{self._name}")

    async def fail_over(self, *, serves_stale: str = "yes") -> None:
        """Make the first one a replica of nobody, and let the name lead to the second."""
        link = _link(self._servers[0].url)
        await link.call("CONFIG", "SET", "replica-serve-stale-data", serves_stale)
        await link.call("REPLICAOF", "127.0.0.1", "1")
        await link.close()
        self._name.unlink()
        self._name.symlink_to(self._servers[1].socket)

    def kill(self) -> None:
        for server in self._servers:
            server.kill()


def _link(url: str) -> RedisLink:
    return RedisLink(url, password=None, connect_timeout_seconds=5, timeout_seconds=5, is_resending=False)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.mark.parametrize("serves_stale", ["yes", "no"])
async def test_what_the_old_primary_refuses_goes_to_the_new_one_the_next_time(
    pair: Pair, serves_stale: str
) -> None:
    link = pair.link()
    assert [await link.run(COUNT, ["n"]) for _ in range(2)] == [1, 2]
    await pair.fail_over(serves_stale=serves_stale)
    with pytest.raises(StoreUnavailable):
        await link.run(COUNT, ["n"])
    assert await link.run(COUNT, ["n"]) == 1
    await link.close()


async def test_what_the_old_primary_still_answers_beside_a_refusal_is_given_to_its_caller(pair: Pair) -> None:
    link = pair.link()
    await link.call("SET", "k", "old")
    await pair.fail_over()
    read, refused = await asyncio.gather(
        link.call("GET", "k"), link.call("SET", "k", "new"), return_exceptions=True
    )
    assert read == b"old"
    assert isinstance(refused, StoreUnavailable)
    assert await link.call("GET", "k") is None
    await link.close()
