from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.support.sync_child import SYNC, bench_in
from tests.support.syncing import SyncBench, record
from worker.kafka.records import Handled

ROOT = Path(__file__).parents[3]


async def functions(bench: SyncBench) -> tuple[int, set[str]]:
    loaded = await bench.graph.load("shop")
    assert loaded is not None
    return loaded[0].graph_version, {node.id for node in loaded[1].nodes if node.label == "Function"}


@pytest.mark.parametrize("phase", ["read", "store"])
async def test_a_sync_that_is_killed_mid_index_leaves_the_old_graph_and_its_redelivery_makes_the_new_one(
    tmp_path: Path, phase: str
) -> None:
    bench = bench_in(tmp_path)
    await bench.handler().handle(record())
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.sync_child", str(tmp_path), phase, cwd=ROOT
    )
    assert await child.wait() == -9
    old = (1, {"src/shop.py::charge", "src/shop.py::pay"})
    assert await functions(bench) == old
    assert await bench.handler().handle(SYNC) == Handled()
    version, found = await functions(bench)
    assert (version, found & {"src/shop.py::settle", "src/shop.py::pay"}) == (2, {"src/shop.py::settle"})
    assert len(found) == 22
    assert bench.values("context.sync-results")[-1]["graph_version"] == 2
    await bench.graph.close()
    await bench.stores.store.close()
