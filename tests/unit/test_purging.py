from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.support.handling import FIELDS as REQUEST
from tests.support.handling import Bench, open_store, record
from tests.support.state_events import held as held_state
from tests.support.state_events import record as event_record
from tests.support.syncing import SyncBench, fields
from tests.support.syncing import record as sync_record
from worker.kafka.sync_received import sync_key
from worker.ports import OutcomeKey
from worker.providers.snapshots import Snapshots
from worker.providers.threads import SourceThreads
from worker.purging import Places, purge
from worker.settings import Graph, Outcomes, Settings, State
from worker.stores.memory_packs import MemoryPackCache
from worker.stores.sqlite_graph import SqliteGraphStore
from worker.stores.sqlite_state import SqliteStateStore
from worker.usage.log import read_usage_records, write_usage_record
from worker.wiring_kafka import purge_once, purged_places


@dataclass(kw_only=True)
class Traces:
    """Two projects, and in one of them two threads, each with something everywhere."""

    bench: SyncBench
    places: Places
    folder: Path

    async def left(self) -> set[str]:
        """What of each project is still to be found, by any way in."""
        graph, state, outcomes = self.places.graph, self.places.state, self.places.outcomes
        assert graph
        assert state
        assert outcomes
        found: set[str] = set()
        for project in ("acme", "bank"):
            for thread in ("t-1", "t-2"):
                key = OutcomeKey(project_id=project, request_id=f"r-{thread}")
                if await outcomes.get(key):
                    found.add(f"{project} outcome {thread}")
                if any(
                    (line["project_id"], line["thread_id"]) == (project, thread)
                    for line in read_usage_records(self.places.usage_log)
                ):
                    found.add(f"{project} usage {thread}")
            if await outcomes.get(sync_key(project, "s-1")):
                found.add(f"{project} sync")
            if await self.places.packs.get(project, "key"):
                found.add(f"{project} pack")
            for thread in ("t-1", "t-2", ""):
                if await held_state(state, project, thread):
                    found.add(f"{project} state {thread}")
            if await graph.load(project) or await graph.load_facts(project):
                found.add(f"{project} graph")
        return found


ALL = {
    f"{project} {what}"
    for project in ("acme", "bank")
    for what in (
        "state t-1",
        "state t-2",
        "state ",
        "outcome t-1",
        "outcome t-2",
        "usage t-1",
        "usage t-2",
        "sync",
        "pack",
        "graph",
    )
}


@pytest.fixture
async def traces(tmp_path: Path) -> AsyncGenerator[Traces]:
    store, graph = open_store(tmp_path / "outcomes.db"), SqliteGraphStore(tmp_path / "graph.db")
    states = SqliteStateStore(tmp_path / "state.db")
    bench = SyncBench(stores=Bench(store=store), graph=graph)
    snapshots = Snapshots(graph, SourceThreads(), max_bytes=10**9)
    places = Places(
        graph=graph,
        state=states,
        packs=MemoryPackCache(max_bytes=10_000),
        outcomes=store,
        snapshots=snapshots,
        usage_log=tmp_path / "usage.jsonl",
    )
    for project in ("acme", "bank"):
        await bench.handler().handle(sync_record(fields(project_id=project)))
        await places.packs.put(project, "key", b"pack")
        assert await snapshots.latest(project, roots=())
        for owner in ("t-1", "t-2", None):
            told = {"id": "m", "text": f"secret of {project} {owner}"}
            await states.apply(project, [event_record(f"e-{owner}", "memory", told, thread=owner)])
        for thread in ("t-1", "t-2"):
            body = {**REQUEST, "project_id": project, "thread_id": thread, "request_id": f"r-{thread}"}
            bench.stores.text = f"secret of {project} {thread}"
            await bench.stores.handler().handle(record(body))
    for line in bench.stores.lines:
        write_usage_record(line, places.usage_log)
    yield Traces(bench=bench, places=places, folder=tmp_path)
    await snapshots.close()
    await store.close()
    await graph.close()
    await states.close()


async def test_a_project_is_erased_everywhere_and_the_other_stays(traces: Traces) -> None:
    assert await traces.left() == ALL
    purged = await purge("acme", None, traces.places)
    assert (purged.packs, purged.outcomes, purged.usage_lines, purged.events) == (1, 3, 2, 3)
    assert purged.graph_nodes >= 4
    assert await traces.left() == {trace for trace in ALL if trace.startswith("bank")}
    assert traces.places.snapshots is not None
    assert await traces.places.snapshots.latest("acme", roots=()) is None
    assert (await purge("acme", None, traces.places)).total == 0


async def test_of_a_thread_its_state_its_outcomes_and_usage_lines_and_the_packs_go(traces: Traces) -> None:
    purged = await purge("acme", "t-1", traces.places)
    assert (purged.graph_nodes, purged.packs, purged.outcomes, purged.usage_lines) == (0, 1, 1, 1)
    assert purged.events == 1
    assert await traces.left() == ALL - {"acme state t-1", "acme outcome t-1", "acme usage t-1", "acme pack"}


async def test_the_bytes_are_gone_from_the_disk(traces: Traces) -> None:
    await purge("acme", None, traces.places)
    # The write-ahead logs end with their stores.
    for store in (traces.places.outcomes, traces.places.graph, traces.places.state):
        assert store
        await store.close()
    held = {path.name: path.read_bytes() for path in traces.folder.iterdir() if path.is_file()}
    assert held.keys() >= {"outcomes.db", "graph.db", "state.db", "usage.jsonl"}
    assert [name for name, data in held.items() if b"acme" in data and name != "graph.db"] == []
    assert b"bank" in held["outcomes.db"]
    # The other project has a file of that name, and no more.
    assert b"acme" not in held["graph.db"].replace(b"src/shop.py", b"").replace(b"acme.py", b"")


async def test_a_purged_project_can_be_filled_again(traces: Traces) -> None:
    await purge("acme", None, traces.places)
    await traces.bench.handler().handle(sync_record(fields(project_id="acme")))
    reply = json.loads(traces.bench.stores.on("context.sync-results")[-1].value)
    assert reply["graph_version"] == 1
    assert reply["counts"]["nodes.Function"] == 2


def test_where_no_store_is_there_each_is_named_and_none_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        asyncio.run(purge_once(Settings(), "acme", None))
    for group in ("graph", "state", "outcomes"):
        assert f"{group}.db ({group}.sqlite_path, seen from {tmp_path})" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("thread", [None, "t-1"])
async def test_a_store_that_is_not_there_is_left_out_and_not_made(
    traces: Traces, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], thread: str | None
) -> None:
    folder = traces.folder
    monkeypatch.setenv("ORCHESTRATA_CONTEXT_USAGE_LOG", str(folder / "none" / "usage.jsonl"))
    settings = Settings(
        graph=Graph(sqlite_path=folder / "none" / "graph.db"),
        state=State(sqlite_path=folder / "none" / "state.db"),
        outcomes=Outcomes(sqlite_path=folder / "outcomes.db"),
    )
    assert (await purge_once(settings, "acme", thread)).total == (1 if thread else 3)
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == [
        f"graph: {folder}/none/graph.db (graph.sqlite_path) (not there)",
        f"state: {folder}/none/state.db (state.sqlite_path) (not there)",
    ]
    assert said[3] == f"outcomes: {folder}/outcomes.db (outcomes.sqlite_path)"
    assert not (folder / "none").exists()


async def test_each_place_is_said_that_was_searched(
    traces: Traces, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = traces.folder
    monkeypatch.setenv("ORCHESTRATA_CONTEXT_USAGE_LOG", str(folder / "usage.jsonl"))
    settings = Settings(
        graph=Graph(sqlite_path=folder / "graph.db"),
        state=State(sqlite_path=folder / "state.db"),
        outcomes=Outcomes(sqlite_path=folder / "outcomes.db"),
    )
    assert (await purge_once(settings, "acme", None)).usage_lines == 2
    assert capsys.readouterr().err.splitlines() == [
        f"graph: {folder}/graph.db (graph.sqlite_path)",
        f"state: {folder}/state.db (state.sqlite_path)",
        "packs: in the memory of each worker",
        f"outcomes: {folder}/outcomes.db (outcomes.sqlite_path)",
        f"usage log: {folder}/usage.jsonl (ORCHESTRATA_CONTEXT_USAGE_LOG)",
    ]


def test_of_a_server_its_address_is_said_and_no_password() -> None:
    settings = Settings(
        graph=Graph(store="neo4j", neo4j_url="bolt://graphs:7687", neo4j_password=SecretStr("s3cret")),
        outcomes=Outcomes(store="redis", redis_url="redis://me@packs", redis_password=SecretStr("s3cret")),
    )
    said = purged_places(settings)
    assert said["graph"] == "bolt://graphs:7687 (graph.neo4j_url)"
    assert said["outcomes"] == "redis://***@packs (outcomes.redis_url)"
    assert said["state"] == f"{said['graph']}, copies at {said['outcomes']}"
