"""Redis in front of the state: whatever becomes of it, the bundles are the same bytes."""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.contract.redis_server import RedisServer
from tests.support.state_bundles import STORY, bundle_bytes, tell
from tests.support.state_events import HOSTILE_IDS, held, record
from worker.errors import StoreUnavailable
from worker.state.records import GROUP_OF, GROUPS
from worker.state.store import Place
from worker.stores.redis_state import MAX_VALUE_BYTES, HotStateStore
from worker.stores.sqlite_state import SqliteStateStore

pytestmark = pytest.mark.services

PLACES = 7
"""Groups that hold something of the story: six of the thread, one of the project as a whole."""


@dataclass
class Hot:
    """A hot store, what it counted, and a clock that only a test moves."""

    store: HotStateStore
    cold: SqliteStateStore
    counts: Counter[str] = field(default_factory=Counter[str])
    now: float = 0.0

    def count(self, result: str, count: int) -> None:
        self.counts[result] += count

    def taken(self) -> dict[str, int]:
        """What was counted since the last time."""
        counts = dict(self.counts)
        self.counts.clear()
        return counts


OpenHot = Callable[..., Hot]


@pytest.fixture
async def open_hot(server: RedisServer, admin: Any, tmp_path: Path) -> AsyncGenerator[OpenHot]:
    del admin
    opened: list[Hot] = []

    def made(*, timeout_seconds: float = 5.0, keep_seconds: int = 600) -> Hot:
        cold = SqliteStateStore(tmp_path / "state.db")

        def count(result: str, count: int) -> None:
            hot.count(result, count)

        store = HotStateStore(
            cold,
            server.url,
            keep_seconds=keep_seconds,
            key_prefix="h",
            on_result=count,
            connect_timeout_seconds=timeout_seconds,
            timeout_seconds=timeout_seconds,
            clock=lambda: hot.now,
        )
        hot = Hot(store, cold)
        opened.append(hot)
        return hot

    yield made
    for hot in opened:
        await hot.store.close()


async def test_the_second_worker_reads_from_redis_what_the_first_one_read(open_hot: OpenHot) -> None:
    one, other = open_hot(), open_hot()
    await tell(one.store, "p")
    wanted = await bundle_bytes(one.cold, "p")
    assert await bundle_bytes(one.store, "p") == wanted
    assert await bundle_bytes(other.store, "p") == wanted
    assert (one.taken(), other.taken()) == ({"miss": PLACES}, {"hit": PLACES})


async def test_an_event_makes_its_own_place_a_miss_and_no_other(open_hot: OpenHot) -> None:
    hot = open_hot()
    await tell(hot.store, "p")
    await bundle_bytes(hot.store, "p")
    hot.taken()
    await hot.store.apply("p", [record("new", "memory", {"id": "new", "text": "A new fact."}, at=60)])
    assert b"A new fact." in await bundle_bytes(hot.store, "p")
    assert hot.taken() == {"miss": 1, "hit": PLACES - 1}


# --- Outages -----------------------------------------------------------------------------------------

Act = Callable[[RedisServer, Any], None]


@dataclass(frozen=True, kw_only=True)
class Trouble:
    begin: Act
    end: Act
    counted: str
    """What is counted of the first bundle meanwhile."""
    timeout_seconds: float = 5.0


def nothing(server: RedisServer, admin: Any) -> None:
    del server, admin


def begin_slowness(server: RedisServer, admin: Any) -> None:
    del admin
    server.pause()


def begin_loading(server: RedisServer, admin: Any) -> None:
    """Many keys, each of which takes a moment to load."""
    pipeline = admin.pipeline(transaction=False)
    for number in range(6_000):
        pipeline.set(f"filler{number}", "x")
    pipeline.execute()
    server.kill()
    server.start_loading(key_microseconds=700)
    assert first_answer(server.port).startswith(b"-LOADING")


def first_answer(port: int) -> bytes:
    """What a server that is coming up says first."""
    while True:
        with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)) as asked:
            asked.sendall(b"PING\r\n")
            return asked.recv(100)


def restart(server: RedisServer, admin: Any) -> None:
    del admin
    server.kill()
    server.start()


TROUBLES = {
    "killed": Trouble(begin=lambda server, _: server.kill(), end=restart, counted="unavailable"),
    "slow": Trouble(
        begin=begin_slowness,
        end=lambda server, _: server.resume(),
        counted="unavailable",
        timeout_seconds=1.0,
    ),
    "loading": Trouble(begin=begin_loading, end=restart, counted="unavailable"),
    "flushed": Trouble(begin=lambda _, admin: admin.flushall(), end=nothing, counted="miss"),
    "full": Trouble(
        begin=lambda _, admin: admin.flushall() and admin.config_set("maxmemory", 1),
        end=lambda _, admin: admin.config_set("maxmemory", 0),
        counted="unavailable",
    ),
    "read-only": Trouble(
        begin=lambda _, admin: admin.flushall() and admin.replicaof("127.0.0.1", "1"),
        end=lambda _, admin: admin.replicaof("NO", "ONE"),
        counted="unavailable",
    ),
}


@pytest.mark.parametrize("name", TROUBLES)
@pytest.mark.timeout(60)
async def test_a_redis_in_trouble_changes_no_byte_and_is_used_again_afterwards(
    name: str, open_hot: OpenHot, server: RedisServer, admin: Any
) -> None:
    trouble = TROUBLES[name]
    hot = open_hot(timeout_seconds=trouble.timeout_seconds)
    await tell(hot.store, "p")
    wanted = await bundle_bytes(hot.cold, "p")
    assert await bundle_bytes(hot.store, "p") == wanted
    hot.taken()
    trouble.begin(server, admin)
    try:
        assert await bundle_bytes(hot.store, "p") == wanted
        assert hot.taken()[trouble.counted] >= 1
        # Not asked again for a moment, and still the same.
        assert await bundle_bytes(hot.store, "p") == wanted
    finally:
        trouble.end(server, admin)
    hot.now += 2.0
    hot.taken()
    for _ in range(2):
        assert await bundle_bytes(hot.store, "p") == wanted
    assert hot.taken()["hit"] >= PLACES


async def test_a_server_that_is_away_is_left_alone_for_a_moment(
    open_hot: OpenHot, server: RedisServer, admin: Any
) -> None:
    hot = open_hot()
    await tell(hot.store, "p")
    place = Place("t1", "memory")
    versions = {place: (await hot.store.heads("p", ["t1"])).versions[place]}
    server.kill()
    try:
        for _ in range(5):
            await hot.store.groups("p", versions)
    finally:
        server.start()
    # It is back, and nobody has looked.
    await hot.store.groups("p", versions)
    assert admin.info("commandstats").get("cmdstat_mget") is None
    hot.now += 1.5
    await hot.store.groups("p", versions)
    assert admin.info("commandstats")["cmdstat_mget"]["calls"] == 1


# --- What stands there -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["foreign", "empty", "cut", "longer", "exchanged", "another kind"])
async def test_a_value_that_is_not_what_was_written_is_a_miss_and_written_anew(
    how: str, open_hot: OpenHot, admin: Any
) -> None:
    hot = open_hot()
    await tell(hot.store, "p")
    wanted = await bundle_bytes(hot.store, "p")
    values = {key: admin.get(key) for key in sorted(admin.keys("*"))}
    others = [*list(values.values())[1:], next(iter(values.values()))]
    for (key, value), other in zip(values.items(), others, strict=True):
        admin.delete(key)
        if how == "another kind":
            admin.hset(key, "field", value)
            continue
        broken = {"foreign": b"x" * 100, "empty": b"", "cut": value[:-1], "longer": value + b"x"}
        admin.set(key, broken.get(how, other))
    hot.taken()
    assert await bundle_bytes(hot.store, "p") == wanted
    assert hot.taken() == {"miss" if how == "another kind" else "damaged": PLACES}
    assert await bundle_bytes(hot.store, "p") == wanted
    assert hot.taken() == {"hit": PLACES}


async def test_keys_of_any_threads_and_projects_never_meet_and_expire_by_themselves(
    open_hot: OpenHot, admin: Any
) -> None:
    hot = open_hot(keep_seconds=100)
    threads = [*HOSTILE_IDS, "t1", "t1:memory", "t1%3Amemory", "{p}", "p}:state:"]
    for project_id in ("p", "p.", "pp"):
        for thread in threads:
            body = {"id": "m", "text": f"of {project_id}"}
            await hot.store.apply(project_id, [record(f"e{thread}", "memory", body, thread=thread)])
        for _ in range(2):
            found = await held(hot.store, project_id, *threads)
            assert len(found) == len(threads)
            assert all(f'"of {project_id}"'.encode() in data for data in found.values())
    keys = [key.decode() for key in admin.keys("*")]
    assert len(keys) == 3 * len(threads)
    assert all(key.startswith(("h:{p}:state:", "h:{p.}:state:", "h:{pp}:state:")) for key in keys)
    assert all(0 < admin.ttl(key) <= 100 for key in keys)


async def test_a_purge_takes_the_project_or_the_thread_out_of_redis_and_nobody_else(
    open_hot: OpenHot, admin: Any
) -> None:
    hot = open_hot()
    threads = ("t1", "t*", "t1/x")
    for project_id in ("p", "pp"):
        for thread in threads:
            event = record(f"e{thread}", "memory", {"id": "m", "text": "x"}, thread=thread)
            await hot.store.apply(project_id, [event])
        await held(hot.store, project_id, *threads)
    assert await hot.store.purge("p", thread_id="t*") == 1
    assert sorted(key.split(b":")[3] for key in admin.keys("h:{p}:*")) == [b"t1", b"t1%2Fx"]
    assert await hot.store.purge("p") == 2
    assert admin.keys("h:{p}:*") == []
    assert len(admin.keys("h:{pp}:*")) == 3


async def test_a_purge_says_when_redis_kept_something(open_hot: OpenHot, server: RedisServer) -> None:
    hot = open_hot()
    await tell(hot.store, "p")
    server.kill()
    try:
        with pytest.raises(StoreUnavailable):
            await hot.store.purge("p")
    finally:
        server.start()
    assert await held(hot.store, "p", "t1", "") == {}
    assert await hot.store.purge("p") == 0


async def test_a_place_too_large_for_the_connection_is_always_read_from_the_cold_store(
    open_hot: OpenHot, admin: Any
) -> None:
    hot = open_hot()
    # Of three bytes of noise two are left, however they are compressed.
    text = "".join(map(chr, Random(7).choices(range(0x4E00, 0x9E00), k=MAX_VALUE_BYTES // 2)))
    await hot.store.apply("p", [record("e", "memory", {"id": "m", "text": text * 2}, at=1)])
    first = await held(hot.store, "p", "t1")
    assert await held(hot.store, "p", "t1") == first
    assert (hot.taken(), admin.keys("*")) == ({"miss": 2}, [])


def test_the_story_tells_of_every_group() -> None:
    told = {Place(event.thread_id, GROUP_OF[event.entity.kind]) for event in STORY}
    assert told == {*(Place("t1", group) for group in GROUPS), Place("", "session")}
    assert len(told) == PLACES
