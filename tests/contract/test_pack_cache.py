"""Every pack cache keeps, overwrites, keeps apart and forgets alike."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from worker.errors import StoreUnavailable
from worker.ports import PackCache
from worker.stores.memory_packs import MemoryPackCache
from worker.stores.redis_packs import RedisPackCache


@pytest_asyncio.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.services)])
async def cache(request: pytest.FixtureRequest, namespace: str) -> AsyncGenerator[PackCache]:
    if request.param == "memory":
        made: PackCache = MemoryPackCache(max_bytes=1_000_000)
    else:
        url: str = request.getfixturevalue("redis_url")
        # The server is not what is slow on a machine that is busy.
        made = RedisPackCache(
            url, keep_seconds=60, key_prefix=namespace, connect_timeout_seconds=5, timeout_seconds=5
        )
    yield made
    await made.close()


async def test_what_was_put_is_there_and_what_was_not_is_a_miss(cache: PackCache) -> None:
    assert await cache.get("shop", "k") is None
    await cache.put("shop", "k", b"\x00pack" * 100)
    assert await cache.get("shop", "k") == b"\x00pack" * 100
    assert await cache.get("shop", "other") is None


async def test_the_last_put_wins(cache: PackCache) -> None:
    await cache.put("shop", "k", b"old")
    await cache.put("shop", "k", b"")
    assert await cache.get("shop", "k") == b""


@pytest.mark.parametrize("other", ["shop2", "sho", "shop.", "*", "sh?p"])
async def test_projects_never_meet_and_one_is_purged_alone(cache: PackCache, other: str) -> None:
    for number in range(3):
        await cache.put("shop", f"k{number}", b"mine")
    await cache.put(other, "k1", b"theirs")
    assert await cache.purge("shop") == 3
    assert await cache.get("shop", "k1") is None
    assert await cache.get(other, "k1") == b"theirs"
    assert await cache.purge(other) == 1


async def test_a_large_value_comes_back_whole(cache: PackCache) -> None:
    value = bytes(range(256)) * 3_000
    await cache.put("shop", "k", value)
    assert await cache.get("shop", "k") == value


async def test_memory_holds_no_more_than_it_may() -> None:
    cache = MemoryPackCache(max_bytes=10)
    await cache.put("shop", "a", b"12345")
    await cache.put("shop", "b", b"12345")
    assert await cache.get("shop", "a") == b"12345"  # now the most recently used
    await cache.put("shop", "c", b"123")
    assert [await cache.get("shop", key) for key in "abc"] == [b"12345", None, b"123"]
    await cache.put("shop", "d", b"12345678901")
    assert await cache.get("shop", "d") is None
    assert await cache.get("shop", "a") == b"12345"


async def test_a_server_that_is_away_is_a_store_that_is_unavailable() -> None:
    cache = RedisPackCache("redis://127.0.0.1:1", keep_seconds=60)
    with pytest.raises(StoreUnavailable):
        await cache.get("shop", "k")
    await cache.close()
