"""A library assembler on real services: what one call connected serves the next ones, from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from schemas.codes import CONTENT_LAYERS
from tests.support.libraries import library
from tests.support.state_events import record
from worker.code.indexing import IndexOptions, index_project
from worker.settings import Graph, Outcomes, Settings, State
from worker.stores.neo4j_graph import Neo4jGraphStore
from worker.stores.sqlite_graph import SqliteGraphStore
from worker.telemetry import Telemetry
from worker.usage.log import read_usage_records
from worker.wiring_graph import build_graph, build_neo4j_link
from worker.wiring_state import build_state

SOURCE = 'def moor(berth):\n    """Moor the boat at a berth."""\n    return berth\n'


@pytest.fixture(params=["sqlite", "neo4j"])
def service_settings(
    request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, redis_namespace: str
) -> Settings:
    """Packs and hot state in Redis; graph and cold state in SQLite, and in Neo4j."""
    outcomes = Outcomes(store="redis", redis_url=redis_url, key_prefix=redis_namespace)
    if request.param == "sqlite":
        return Settings(
            outcomes=outcomes,
            graph=Graph(sqlite_path=tmp_path / "graph.db", pack_cache="redis"),
            state=State(sqlite_path=tmp_path / "state.db"),
        )
    url = request.getfixturevalue("neo4j_url")
    user, password = request.getfixturevalue("neo4j_auth")
    graph = Graph(store="neo4j", neo4j_url=url, neo4j_user=user, neo4j_password=password, pack_cache="redis")
    return Settings(outcomes=outcomes, graph=graph)


def patient_store(settings: Settings) -> Neo4jGraphStore | SqliteGraphStore:
    """The same store, with time for a server that was just started to make its schema and first plans."""
    if settings.graph.store == "sqlite":
        return SqliteGraphStore(settings.graph.sqlite_path)
    return Neo4jGraphStore(build_neo4j_link(settings), timeout_seconds=60)


@pytest.fixture
def project(service_settings: Settings, namespace: str, tmp_path: Path) -> Iterator[str]:
    """A project with one function, and a fact that a thread remembers."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "harbour.py").write_text(SOURCE)

    async def fill() -> None:
        store = patient_store(service_settings)
        async with aclosing(build_state(service_settings, Telemetry())) as state, AsyncExitStack() as opened:
            opened.push_async_callback(store.close)
            await index_project(store, namespace, tree, options=IndexOptions(with_history=False))
            body = {"id": "m1", "text": "Berth nine is free."}
            await state.writer.apply(namespace, record("e1", "memory", body, project=namespace))

    async def purge() -> None:
        async with (
            aclosing(build_state(service_settings, Telemetry())) as state,
            aclosing(build_graph(service_settings, Telemetry())) as graph,
        ):
            await graph.store.purge(namespace)
            await graph.cache.purge(namespace)
            await state.store.purge(namespace)

    asyncio.run(fill())
    yield namespace
    asyncio.run(purge())


@pytest.mark.timeout(180)
def test_every_call_reads_what_the_first_one_connected_to_and_closing_leaves_no_thread(
    service_settings: Settings, project: str, tmp_path: Path
) -> None:
    before = set(threading.enumerate())
    with library(tmp_path, settings=service_settings, project_id=project) as assembler:

        def ask(number: int) -> tuple[str, str]:
            # Of two wordings, so that packs are found in the cache as well as put there.
            message = f"`moor` takes the wrong berth ({number % 2})"
            parts = assembler.assemble(
                {},
                "fix_issues",
                message,
                thread_id="t1",
                deadline_ms=20_000,
                layer_timeouts_ms=dict.fromkeys(CONTENT_LAYERS, 20_000),
            ).parts
            return parts["graph"], parts["memory"]

        in_turn = [ask(number) for number in range(4)]
        with ThreadPoolExecutor(3) as pool:
            at_once = list(pool.map(ask, range(6)))

    for graph, memory in (*in_turn, *at_once):
        assert "def moor(berth)" in graph
        assert "Berth nine is free." in memory
    records = list(read_usage_records(tmp_path / "usage.jsonl"))
    assert [one["outcome"] for one in records] == ["complete"] * 10
    caches: list[Any] = [one["cache"] for one in records[:4]]
    assert [(cache["hits"], cache["misses"]) for cache in caches] == [(0, 1), (0, 1), (1, 0), (1, 0)]
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive(), thread.name
