"""One tree indexed into SQLite and into Neo4j: what storing it takes, and loading it again.

Of the same run, one after the other, since the server takes a second core where there is one. Target: a cold
index into Neo4j takes at most five times what it takes into SQLite. A server that has just started is slower
for its first graphs, so the first round counts for neither. Nothing is asserted on time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from tests.bench.test_index import OPTIONS, copy_packages
from worker.code.indexing import index_project
from worker.graph.store import GraphStore
from worker.stores.neo4j_graph import Neo4jGraphStore
from worker.stores.neo4j_link import Neo4jLink
from worker.stores.sqlite_graph import SqliteGraphStore

pytestmark = [pytest.mark.bench, pytest.mark.services, pytest.mark.timeout(900)]

ROUNDS = 3


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
