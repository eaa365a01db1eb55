"""What only the state in Neo4j does: labels for people, whole batches for readers, and no fear of cuts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, LiteralString, cast

import pytest
from neo4j import AsyncDriver

from tests.support.bolt_proxy import BoltProxy
from tests.support.cluster import services_mode
from tests.support.state_bundles import STORY, bundle_bytes, tell
from tests.support.state_events import START, expected, held, record
from tests.support.trip_counter import TripCounter
from worker.errors import StoreUnavailable
from worker.ports import Scope
from worker.providers.states import ThreadStates
from worker.providers.threads import SourceThreads
from worker.state.merging import Changes, plan_changes
from worker.state.records import StateRecord
from worker.state.store import Place
from worker.stores import neo4j_state
from worker.stores.neo4j_graph import Neo4jGraphStore
from worker.stores.neo4j_link import Neo4jLink
from worker.stores.neo4j_migration import migrate
from worker.stores.neo4j_state import Neo4jStateStore
from worker.stores.neo4j_state_rows import event_key
from worker.stores.redis_state import HotStateStore
from worker.stores.sqlite_state import SqliteStateStore

ROOT = Path(__file__).parents[2]
Auth = tuple[str, str]
Opens = Callable[..., Neo4jStateStore]


@pytest.fixture
async def open_store(neo4j_url: str, neo4j_auth: Auth) -> AsyncGenerator[Opens]:
    """Gives `open_store(url, auth, retry_seconds=)`; closes all of them, also of a test that fails.

    A connection that nobody closed is a warning in whatever test runs when it is collected.
    """
    opened: list[Neo4jStateStore] = []

    def made(
        url: str = neo4j_url, auth: Auth = neo4j_auth, *, retry_seconds: float = 10.0
    ) -> Neo4jStateStore:
        link = Neo4jLink(url, user=auth[0], password=auth[1], retry_seconds=retry_seconds)
        opened.append(Neo4jStateStore(link, timeout_seconds=20))
        return opened[-1]

    yield made
    for store in opened:
        await store.close()


@pytest.fixture
def store(open_store: Opens) -> Neo4jStateStore:
    return open_store()


@pytest.fixture
async def project(store: Neo4jStateStore, namespace: str) -> AsyncGenerator[str]:
    yield namespace
    await store.purge(namespace)


@pytest.fixture
async def proxy(neo4j_url: str) -> AsyncGenerator[BoltProxy]:
    async with BoltProxy(neo4j_url) as made:
        yield made


async def query(driver: AsyncDriver, statement: str, **parameters: Any) -> list[list[Any]]:
    found = await driver.execute_query(cast("LiteralString", statement), parameters)
    return [list(record.values()) for record in found.records]


# --- What people find --------------------------------------------------------------------------------


async def test_signals_are_found_under_the_labels_of_the_canon(
    store: Neo4jStateStore, driver: AsyncDriver, project: str
) -> None:
    await tell(store, project)
    found = await query(
        driver,
        "MATCH (e:StateEvent {project: $project}) UNWIND labels(e) AS label"
        " WITH label, count(*) AS many WHERE label <> 'StateEvent' RETURN label, many ORDER BY label",
        project=project,
    )
    assert found == [
        ["DecisionEvent", 2],
        ["GatewayEvent", 1],
        ["Message", 12],
        ["TestResult", 1],
        ["ToolCall", 1],
    ]
    (failed,) = await query(
        driver, "MATCH (t:TestResult {project: $project}) RETURN t.key, t.id, t.entity_id", project=project
    )
    assert failed == [f"{project}:e21", "e21", "t"]


async def test_an_event_that_was_another_kind_before_has_the_label_of_what_counts(
    store: Neo4jStateStore, driver: AsyncDriver, project: str
) -> None:
    events = [
        record("e1", "message", {"role": "user", "content": "hello"}, at=1),
        record("e1", "tool_call", {"tool": "edit"}, at=2),
    ]
    for event in sorted(events, key=lambda event: event.digest, reverse=True):
        await store.apply(project, [event])
    wanted = "Message" if min(events, key=lambda event: event.digest) is events[0] else "ToolCall"
    ((labels,),) = await query(
        driver, "MATCH (e:StateEvent {key: $key}) RETURN labels(e)", key=event_key(project, "e1")
    )
    assert sorted(labels) == sorted(["StateEvent", wanted])
    assert await held(store, project, "t1") == expected(events)


async def test_events_are_no_part_of_a_graph_and_no_migration_takes_them_for_one(
    store: Neo4jStateStore, driver: AsyncDriver, project: str, neo4j_url: str, neo4j_auth: Auth
) -> None:
    await tell(store, project)
    before = await held(store, project, "t1", "")
    link = Neo4jLink(neo4j_url, user=neo4j_auth[0], password=neo4j_auth[1])
    async with AsyncExitStack() as stack:
        stack.push_async_callback(link.close)
        await migrate(link, project)
        assert await Neo4jGraphStore(link).purge(project) == 0
    ((taken,),) = await query(
        driver, "MATCH (e:StateEvent:GraphNode {project: $project}) RETURN count(e)", project=project
    )
    assert taken == 0
    assert await held(store, project, "t1", "") == before


async def test_a_purge_leaves_no_node_of_the_project(
    store: Neo4jStateStore, driver: AsyncDriver, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neo4j_state, "_DELETE_ROWS", 3)
    other = f"{project}-other"
    for one in (project, other):
        await tell(store, one)
    counted = "MATCH (n) WHERE n.project = $project RETURN count(n)"
    assert await store.purge(project) == len(STORY)
    assert await query(driver, counted, project=project) == [[0]]
    assert await store.purge(other, thread_id="t1") == len(STORY) - 2
    assert set(await held(store, other, "t1", "")) == {Place("", "session")}
    assert await store.purge(other) == 2
    assert await query(driver, counted, project=other) == [[0]]


async def test_a_purge_counts_each_event_once_whichever_answer_is_lost(
    open_store: Opens, driver: AsyncDriver, proxy: BoltProxy, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neo4j_state, "_DELETE_ROWS", len(STORY) // 2)
    cut = open_store(proxy.url)
    for commits in range(7):
        await tell(cut, project)
        proxy.cut_at_commit, proxy.commits_before_cut = "after", commits
        assert await cut.purge(project) == len(STORY)
        assert await query(
            driver, "MATCH (n) WHERE n.project = $project RETURN count(n)", project=project
        ) == [[0]]
    assert proxy.was_cut.is_set()
    assert proxy.cut_at_commit is None


def test_no_worker_that_shares_a_server_with_tests_forgets_their_events() -> None:
    mode = services_mode("", namespace="n", redis_url="", neo4j_url="", neo4j_auth=("", ""))
    days = int(mode.environment["WORKER_STATE__COMPACT_AFTER_DAYS"])
    assert datetime.now(UTC) - timedelta(days=days) < START


# --- Folding from rows -------------------------------------------------------------------------------

TIED = ("a", "Z", "é", "~", "\uffee", "🙂", "a b", "ab")
"""Ids that bytes, UTF-16 units and people sort differently."""


async def test_ties_are_folded_by_bytes_in_small_steps(
    store: Neo4jStateStore, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neo4j_state, "_FOLD_ROWS", 2)
    events = [record(f"m{n}", "memory", {"id": "m", "text": f"version {n}"}, at=5) for n in TIED]
    events += [record(f"g{n}", "gateway_event", {"name": n}, at=5) for n in TIED]
    first = [record("g", "gateway_event", {"name": "first"}, at=1)]
    # Each comes after a later one, so that all are folded again from what is stored.
    for event in sorted(events + first, key=lambda event: event.order, reverse=True):
        await store.apply(project, [event])
    assert await held(store, project, "t1") == expected([*events, *first])


async def test_compaction_in_small_steps_comes_to_the_same(
    store: Neo4jStateStore, driver: AsyncDriver, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neo4j_state, "_COMPACT_ROWS", 3)
    monkeypatch.setattr(neo4j_state, "_FOLD_ROWS", 2)
    await tell(store, project)
    tied = [record(f"x{n}", "gateway_event", {"name": n}, at=52) for n in TIED]
    await store.apply(project, tied)
    wanted = await held(store, project, "t1", "")
    assert wanted == expected([*STORY, *tied])
    last_us = max(event.at_us for event in STORY)
    things = len({event.entity for event in (*STORY, *tied)})
    assert await store.compact(project, before_us=last_us) == len(STORY) + len(tied) - things
    assert await store.compact(project, before_us=last_us) == 0
    assert await held(store, project, "t1", "") == wanted
    ((left,),) = await query(
        driver, "MATCH (e:StateEvent {project: $project}) RETURN count(e)", project=project
    )
    assert left == things
    later = record("later", "message", {"role": "user", "content": "We decided on one more."}, at=99)
    await store.apply(project, [later])
    assert await held(store, project, "t1", "") == expected([*STORY, *tied, later])


async def test_a_content_that_went_ahead_of_its_event_is_there_though_others_forget_meanwhile(
    open_store: Opens, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neo4j_state, "_INLINE_CHARACTERS", 0)
    put_ahead = Neo4jStateStore._put_contents_ahead  # pyright: ignore[reportPrivateUsage]  # held up here
    store, other = open_store(), open_store()
    event = record("a", "artifact", {"id": "a", "stage": "s", "type": "t", "content": "x" * 5_000})
    ((digest, content),) = event.contents.items()

    async def put_and_be_late(self: Neo4jStateStore, *told: Any) -> None:
        await put_ahead(self, *told)
        assert await other.content(project, digest) == content
        await other.compact(project, before_us=event.at_us)
        assert await other.content(project, digest) is None

    monkeypatch.setattr(Neo4jStateStore, "_put_contents_ahead", put_and_be_late)
    await store.apply(project, [event])
    assert await store.content(project, digest) == content
    await other.compact(project, before_us=event.at_us + 1)
    assert await store.content(project, digest) == content


# --- Readers and writers at once ---------------------------------------------------------------------


def batch(number: int) -> list[StateRecord]:
    """One version of a thing in each of four places."""
    text = f"version {number:04}"
    return [
        record(f"g{number}", "goal_set", {"id": "g", "statement": text}, at=number),
        record(f"m{number}", "memory", {"id": "m", "text": text}, at=number),
        record(f"a{number}", "artifact", {"id": "a", "stage": "s", "type": "t", "content": text}, at=number),
        record(f"t{number}", "test_result", {"test_id": "t", "status": "failed", "message": text}, at=number),
    ]


BATCHES = 24
KEPT = 4


async def test_readers_see_whole_batches_while_others_write_and_forget_and_nobody_deadlocks(
    open_store: Opens, project: str
) -> None:
    await open_store().apply(project, batch(0))
    # No second attempts: a deadlock would be an error.
    store = open_store(retry_seconds=0)
    await store.check()
    is_over = False
    compacted = 0
    seen: set[bytes] = set()
    by_version: dict[tuple[Place, int], bytes] = {}

    async def read() -> None:
        newest = 0
        while not is_over:
            # Of what is being forgotten some events may be gone before others.
            newest = max(newest, compacted)
            wanted = [event.event_id for event in batch(newest + 1)]
            heads = await store.heads(project, ["t1"], event_ids=wanted)
            assert len(heads.missing) in {0, len(wanted)} or newest < compacted
            found = await store.groups(project, heads.versions)
            for place, group in found.items():
                assert group.version >= heads.versions[place]
                assert by_version.setdefault((place, group.version), group.data) == group.data
            versions = {group.data[group.data.index(b"version ") :][:12] for group in found.values()}
            assert len(versions) == 1
            seen.update(versions)
            if not heads.missing:
                newest += 1
                assert newest <= max(int(version[-4:]) for version in versions)

    async def forget(number: int) -> None:
        nonlocal compacted
        compacted = number
        assert await store.compact(project, before_us=batch(number)[0].at_us) > 0

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(read())
        for number in range(1, BATCHES):
            await store.apply(project, batch(number))
            if number % 8 == 0:
                group.create_task(forget(number - KEPT))
        is_over = True
    assert len(seen) > 1
    assert await held(store, project, "t1") == expected(batch(BATCHES - 1))


async def test_a_writer_that_loses_a_deadlock_tries_again_and_ends_in_the_same_state(
    store: Neo4jStateStore, driver: AsyncDriver, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [event for number in range(60) for event in batch(number)]
    await store.apply(project, before)
    plans = 0

    def counted(*arguments: Any, **more: Any) -> Changes:
        nonlocal plans
        plans += 1
        return plan_changes(*arguments, **more)

    monkeypatch.setattr(neo4j_state, "plan_changes", counted)
    session = driver.session()  # pyright: ignore[reportUnknownMemberType]  # its options are untyped
    async with session, await session.begin_transaction() as other:
        # Somebody has what the writer wants next, and then wants the queue that the writer has. Of the two
        # the server ends the one with fewer locks.
        for held_label in ("StateEvent", "StateEntity"):
            await other.run(f"MATCH (s:{held_label} {{project: $project}}) SET s.lock = 1", project=project)
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(store.apply(project, batch(60)))
            blocked = "SHOW TRANSACTIONS YIELD status WHERE status STARTS WITH 'Blocked' RETURN 1"
            while not await query(driver, blocked):
                assert not writing.done()
            await other.run("MATCH (w:StateWriter {project: $project}) SET w.lock = 1", project=project)
            await other.rollback()
    assert writing.result().new == 4
    assert plans == 2
    assert await held(store, project, "t1") == expected([*before, *batch(60)])


# --- Cuts and kills ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_connection_cut_at_the_commit_is_made_good_within_the_call(
    open_store: Opens, store: Neo4jStateStore, proxy: BoltProxy, project: str, how: str
) -> None:
    writer = open_store(proxy.url)
    await writer.apply(project, STORY[:5])
    proxy.cut_at_commit = cast("Any", how)
    await writer.apply(project, STORY[5:])
    assert proxy.was_cut.is_set()
    assert await held(store, project, "t1", "") == expected(list(STORY))


@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_writer_whose_server_stays_away_at_the_commit_can_apply_again_later(
    open_store: Opens, store: Neo4jStateStore, proxy: BoltProxy, project: str, how: str
) -> None:
    writer = open_store(proxy.url, retry_seconds=2.0)
    await writer.apply(project, STORY[:5])
    proxy.cut_at_commit, proxy.is_refusing_after_cut = cast("Any", how), True
    with pytest.raises(StoreUnavailable):
        await writer.apply(project, STORY[5:])
    assert proxy.was_cut.is_set()
    heads = await store.heads(project, ["t1"], event_ids=[event.event_id for event in STORY[5:]])
    assert len(heads.missing) in {0, len(STORY) - 5}
    proxy.accept_again()
    await writer.apply(project, STORY[5:])
    assert await held(store, project, "t1", "") == expected(list(STORY))


class OwnNeo4j:
    """A server of the test's own, which may be killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def services(self, *arguments: str) -> str:
        command = [sys.executable, str(ROOT / "infra" / "services.py"), "--dir", str(self._folder)]
        return subprocess.run(
            [*command, *arguments], check=True, capture_output=True, text=True, timeout=200
        ).stdout

    def up(self) -> tuple[str, str]:
        """Its address and password."""
        self.services("up", "neo4j")
        lines = self.services("env").splitlines()
        found = dict(line.removeprefix("export ").split("=", 1) for line in lines)
        return found["CONTEXT_TEST_NEO4J"], found["CONTEXT_TEST_NEO4J_PASSWORD"]

    def kill(self) -> None:
        """SIGKILL to the process that listens, and nobody else."""
        state = json.loads((self._folder / "state.json").read_text())
        os.kill(state["neo4j"]["process"]["pid"], signal.SIGKILL)


@pytest.fixture
def own_neo4j(tmp_path: Path) -> Iterator[OwnNeo4j]:
    server = OwnNeo4j(tmp_path / "services")
    yield server
    server.services("down")


@pytest.mark.timeout(300)
async def test_a_server_killed_while_events_come_in_holds_whole_batches_and_in_the_end_all(
    own_neo4j: OwnNeo4j, open_store: Opens
) -> None:
    url, password = await asyncio.to_thread(own_neo4j.up)
    store = open_store(url, ("neo4j", password), retry_seconds=2.0)
    batches = [batch(number) for number in range(30)]
    told = -1
    killing: list[asyncio.Task[None]] = []

    async def tell_all() -> None:
        nonlocal told
        for one in batches:
            await store.apply("p", one)
            told += 1
            if told == len(batches) // 6:
                killing.append(asyncio.create_task(asyncio.to_thread(own_neo4j.kill)))

    with pytest.raises(StoreUnavailable):
        await tell_all()
    await asyncio.gather(*killing)
    assert told >= len(batches) // 6
    assert (await asyncio.to_thread(own_neo4j.up))[0] == url
    heads = await store.heads("p", ["t1"], event_ids=[event.event_id for one in batches for event in one])
    for number, one in enumerate(batches):
        missing = sum(event.event_id in heads.missing for event in one)
        # What was acknowledged is there; what was under way is there whole or not at all.
        assert missing in ({0} if number <= told else {0, len(one)})
    everything = [event for one in batches for event in one]
    await store.apply("p", everything)
    assert await held(store, "p", "t1") == expected(everything)


# --- The same bundles --------------------------------------------------------------------------------


async def test_bundles_from_sqlite_and_from_neo4j_with_redis_are_the_same_bytes(
    open_store: Opens, redis_url: str, project: str, tmp_path: Path
) -> None:
    embedded = SqliteStateStore(tmp_path / "state.db")
    shared = HotStateStore(
        open_store(),
        redis_url,
        keep_seconds=60,
        key_prefix=project,
        connect_timeout_seconds=5,
        timeout_seconds=5,
        on_result=lambda result, count: None,
    )
    try:
        await tell(embedded, project)
        await tell(shared, project, STORY[::-1])
        wanted = await bundle_bytes(embedded, project)
        # Read from Neo4j, from Redis, and after events were forgotten.
        assert [await bundle_bytes(shared, project) for _ in range(2)] == [wanted] * 2
        for store in (embedded, shared):
            await store.compact(project, before_us=STORY[-2].at_us)
        assert [await bundle_bytes(store, project) for store in (embedded, shared)] == [wanted] * 2
        (content,) = [sha256 for event in STORY for sha256 in event.contents]
        assert await embedded.content(project, content) == await shared.content(project, content)
    finally:
        await embedded.close()
        await shared.close()


async def test_one_bundle_asks_each_store_at_most_three_times(
    open_store: Opens, neo4j_url: str, redis_url: str, store: Neo4jStateStore, project: str
) -> None:
    await tell(store, project)
    async with (
        TripCounter(neo4j_url) as to_neo4j,
        TripCounter(redis_url) as to_redis,
        AsyncExitStack() as stack,
    ):
        hot = HotStateStore(
            open_store(to_neo4j.url),
            to_redis.url,
            keep_seconds=60,
            key_prefix=project,
            connect_timeout_seconds=5,
            timeout_seconds=5,
            on_result=lambda result, count: None,
        )
        states = ThreadStates(hot, SourceThreads(), max_bytes=1_000_000)
        stack.push_async_callback(hot.close)
        stack.push_async_callback(states.close)
        # Connections first: what a worker does once.
        await hot.groups(project, {Place("", "plan"): 1})
        trips: list[tuple[int, int]] = []
        for events in ((), (), (record("new", "memory", {"id": "n", "text": "New."}, at=90),)):
            await store.apply(project, events)
            before = to_neo4j.trips, to_redis.trips
            await states.read(Scope(project_id=project, thread_id="t1"))
            trips.append((to_neo4j.trips - before[0], to_redis.trips - before[1]))
    # Nothing was read before; nothing has moved; one place has. To Redis one question, and what it lacked.
    assert trips == [(2, 2), (1, 0), (2, 2)]
