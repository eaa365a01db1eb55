from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.bundle import to_wire
from schemas.sync import SyncFile, SyncRequest
from tests.support.memory_graph import MemoryGraphStore
from worker.code.indexing import IndexCache, IndexOptions, IndexReport
from worker.code.sources import SourceRoots
from worker.code.syncing import Overtaken, ProjectSyncer, sync_result
from worker.errors import InvalidRequest
from worker.graph.model import GraphChange, GraphHead

PLAIN = IndexOptions(with_history=False)
REPORT = IndexReport(
    project_id="p",
    graph_version=3,
    snapshot_id="abc",
    is_changed=True,
    files={"parsed": 2, "partly_parsed": 1, "failed": 1, "stale": 0},
    nodes={"Module": 2, "Function": 5},
    edges={"CALLS": 4},
    guessed_edges={},
    exact_calls=4,
    guessed_calls=0,
    unresolved_calls=1,
    skipped={"binary": 2},
    skipped_paths=(("a.png", "binary"), ("b.png", "binary")),
    not_whole=(("a.py", "failed", "took too long to read"), ("b.py", "partly_parsed", "newer syntax")),
    files_read=3,
    files_linked=3,
    history_reason="",
    seconds={},
)
REQUEST = SyncRequest(sync_id="s", project_id="p")


def request(content: str, *, project_id: str = "p", path: str = "a.py") -> SyncRequest:
    return SyncRequest(sync_id="s", project_id=project_id, files=(SyncFile(path=path, content=content),))


async def never() -> bool:
    return False


async def always() -> bool:
    return True


class OneAtATime(MemoryGraphStore):
    """Says when two indexes of one project are under way, and waits in the middle for others to start."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.most_in_all = 0

    async def head(self, project_id: str) -> GraphHead | None:
        self.under_way[project_id] = self.under_way.get(project_id, 0) + 1
        self.most[project_id] = max(self.most.get(project_id, 0), self.under_way[project_id])
        self.most_in_all = max(self.most_in_all, sum(self.under_way.values()))
        for _ in range(20):
            await asyncio.sleep(0)
        return await super().head(project_id)

    async def apply(
        self, project_id: str, change: GraphChange, *, snapshot_id: str, expected_version: int
    ) -> GraphHead:
        self.under_way[project_id] -= 1
        return await super().apply(
            project_id, change, snapshot_id=snapshot_id, expected_version=expected_version
        )


async def test_a_project_is_indexed_once_at_a_time_in_order_and_others_are_not_waited_for() -> None:
    store = OneAtATime()
    syncer = ProjectSyncer(store, SourceRoots({}), cache=IndexCache(), options=PLAIN)
    reports = await asyncio.gather(
        *(syncer.sync(request(f"def f{n}(): ...\n"), is_settled=never) for n in range(4)),
        *(syncer.sync(request(f"def g{n}(): ...\n", project_id="q"), is_settled=never) for n in range(2)),
    )
    assert [report.graph_version for report in reports] == [1, 2, 3, 4, 1, 2]
    assert store.most == {"p": 1, "q": 1}
    assert store.most_in_all == 2
    loaded = await store.load("p")
    assert loaded is not None
    assert {node.id for node in loaded[1].nodes if node.label == "Function"} == {"a.py::f3"}


async def test_a_sync_that_fails_lets_the_next_one_in() -> None:
    syncer = ProjectSyncer(MemoryGraphStore(), SourceRoots({}), cache=IndexCache(), options=PLAIN)
    with pytest.raises(InvalidRequest):
        await syncer.sync(request("x", path="../a.py"), is_settled=never)
    assert (await syncer.sync(request("def f(): ...\n"), is_settled=never)).graph_version == 1


async def test_a_sync_that_was_settled_meanwhile_changes_nothing() -> None:
    store = MemoryGraphStore()
    syncer = ProjectSyncer(store, SourceRoots({}), cache=IndexCache(), options=PLAIN)
    with pytest.raises(Overtaken):
        await syncer.sync(request("def f(): ...\n"), is_settled=always)
    assert store.applies == 0


async def test_a_cancelled_sync_changes_nothing_and_lets_the_next_one_in(tmp_path: Path) -> None:
    store = MemoryGraphStore()
    reading = asyncio.Event()
    loop = asyncio.get_running_loop()
    syncer = ProjectSyncer(
        store,
        SourceRoots({}),
        cache=IndexCache(),
        options=PLAIN,
        on_progress=lambda _: loop.call_soon_threadsafe(reading.set),
    )
    task = asyncio.create_task(syncer.sync(request("def f(): ...\n"), is_settled=never))
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.applies == 0
    assert (await syncer.sync(request("def g(): ...\n"), is_settled=never)).graph_version == 1


def test_a_result_names_what_was_lost_and_counts_the_rest() -> None:
    result = sync_result(REQUEST, REPORT)
    assert (result.graph_version, result.snapshot_id) == (3, "abc")
    assert result.counts == {
        "files.failed": 1,
        "files.parsed": 2,
        "files.partly_parsed": 1,
        "nodes.Function": 5,
        "nodes.Module": 2,
        "edges.CALLS": 4,
        "skipped.binary": 2,
    }
    assert [(file.path, file.reason) for file in result.failed] == [("a.py", "took too long to read")]


@settings(max_examples=40, deadline=None)
@given(
    paths=st.lists(st.text(min_size=1, max_size=4_096), max_size=8),
    copies=st.integers(1, 60),
    reason=st.text(max_size=600),
)
def test_a_result_fits_its_topic_whatever_failed(paths: list[str], copies: int, reason: str) -> None:
    failed = tuple((f"{path}{n}", "failed", reason) for path in paths for n in range(copies))
    clean = tuple((p.encode("utf-8", "replace").decode(), s, r) for p, s, r in failed)  # no lone surrogates
    result = sync_result(REQUEST, replace(REPORT, not_whole=clean))  # pyright: ignore[reportArgumentType] - "failed" is a status
    assert len(to_wire(result)) < 400_000
    assert len(result.failed) <= 100
    assert [file.path for file in result.failed] == [path for path, _, _ in clean[: len(result.failed)]]
