"""One tree indexed into SQLite and into Neo4j: what storing it takes, and loading it again.

Of the same run, one after the other, since the server takes a second core where there is one. Target: a cold
index into Neo4j takes at most five times what it takes into SQLite. A server that has just started is slower
for its first graphs, so the first round counts for neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from tests.bench.test_index import OPTIONS, copy_packages
from tests.unit.providers.frames import frame
from worker.budget.tokens import counter_for
from worker.code.indexing import index_project
from worker.graph.question import GraphPolicy
from worker.graph.store import GraphStore
from worker.ports import Scope
from worker.providers.graph_reader import GraphReader
from worker.providers.snapshots import Snapshots
from worker.providers.threads import SourceThreads
from worker.stores.memory_packs import MemoryPackCache
from worker.stores.neo4j_graph import Neo4jGraphStore
from worker.stores.neo4j_link import Neo4jLink
from worker.stores.sqlite_graph import SqliteGraphStore
from worker.telemetry import Telemetry

pytestmark = [pytest.mark.bench, pytest.mark.services, pytest.mark.timeout(900)]

ROUNDS = 3
REQUESTS = 60
MAX_MEDIAN_MILLISECONDS = 500
WORDS = ("parser", "timeout", "encoding", "header", "retry", "cache", "callback", "socket", "schema", "token")


async def measured(store: GraphStore, root: Path) -> dict[str, float]:
    """Seconds of one cold index, of its storing, and of loading what was stored."""
    project_id = str(uuid4())
    started = time.perf_counter()
    report = await index_project(store, project_id, root, options=OPTIONS)
    cold = time.perf_counter() - started
    started = time.perf_counter()
    loaded = await store.load(project_id)
    load = time.perf_counter() - started
    assert loaded is not None
    assert len(loaded[1].nodes) == sum(report.nodes.values())
    await store.purge(project_id)
    return {"cold index": cold, "of it storing": report.seconds["store"], "loading": load}


async def test_what_a_graph_takes_in_neo4j_beside_sqlite(
    tmp_path: Path, neo4j_url: str, neo4j_auth: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = copy_packages(tmp_path / "root")
    user, password = neo4j_auth
    makes: dict[str, Callable[[], GraphStore]] = {
        "sqlite": lambda: SqliteGraphStore(tmp_path / f"{uuid4()}.db"),
        "neo4j": lambda: Neo4jGraphStore(Neo4jLink(neo4j_url, user=user, password=password)),
    }
    best: dict[str, dict[str, float]] = {}
    for number in range(ROUNDS):
        for name, make in makes.items():
            store = make()
            found = await measured(store, tmp_path / "root")
            await store.close()
            if number:
                known = best.setdefault(name, found)
                best[name] = {what: min(known[what], seconds) for what, seconds in found.items()}
    rows = [f"{lines} lines, best of {ROUNDS - 1}   {'sqlite':>9} {'neo4j':>9} {'ratio':>7}"]
    for what, seconds in best["sqlite"].items():
        other = best["neo4j"][what]
        rows.append(f"{what:32} {seconds:7.2f} s {other:7.2f} s {other / seconds:6.1f}x")
    with capsys.disabled():
        print("", *rows, sep="\n")  # noqa: T201


async def test_a_request_selects_and_packs_on_live_neo4j_within_half_a_second(
    tmp_path: Path, neo4j_url: str, neo4j_auth: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole answer, the question for the graph's version included; each request differs, so none is kept.

    The specification asks for a median below 500 ms at the scale of a repository, which is asserted.
    """
    copy_packages(tmp_path / "root")
    scope = Scope(project_id=str(uuid4()), thread_id=None)
    user, password = neo4j_auth
    store = Neo4jGraphStore(Neo4jLink(neo4j_url, user=user, password=password))
    report = await index_project(store, scope.project_id, tmp_path / "root", options=OPTIONS)
    snapshots = Snapshots(store, SourceThreads(), max_bytes=10**9)
    reader = GraphReader(
        snapshots,
        cache=MemoryPackCache(max_bytes=1),
        relevance=None,
        policy=GraphPolicy(ranking="graph", relevance="off", settings_digest="s", code_version="1"),
        threads=SourceThreads(),
        telemetry=Telemetry(),
    )
    counter = counter_for("o200k_base")
    started = time.perf_counter()
    await snapshots.preload([scope.project_id])
    loading = time.perf_counter() - started
    spent: list[float] = []
    for number in range(REQUESTS):
        message = f"The {WORDS[number % len(WORDS)]} of request {number} fails when the connection is closed"
        started = time.perf_counter()
        answered = await reader.answer(
            frame(user_message=message), scope, budget_tokens=8_000, counter=counter
        )
        spent.append(1_000 * (time.perf_counter() - started))
        assert answered is not None
        assert not answered.is_hit
    await reader.close()
    await store.purge(scope.project_id)
    await store.close()
    p50, p99 = np.percentile(spent, [50, 99])
    with capsys.disabled():
        print(f"\n{sum(report.nodes.values())} nodes in Neo4j, loaded in {loading:.1f} s")  # noqa: T201
        print(f"version, select and pack: p50 {p50:.1f} ms, p99 {p99:.1f} ms")  # noqa: T201
    assert p50 < MAX_MEDIAN_MILLISECONDS
