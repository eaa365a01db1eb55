"""One sync in a process of its own, killed at a phase of its index: arguments are folder and phase."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.support.handling import Bench, open_store
from tests.support.syncing import SHOP, SyncBench, fields, record
from worker.code.indexing import IndexProgress
from worker.stores.sqlite_graph import SqliteGraphStore

SYNC = record(
    fields(
        sync_id="s-2",
        files=[
            {"path": "src/shop.py", "content": SHOP.replace("pay", "settle")},
            *({"path": f"src/m{n}.py", "content": f"def f{n}(): ...\n"} for n in range(20)),
        ],
    )
)


def bench_in(folder: Path) -> SyncBench:
    """The stores that lie in the folder."""
    store = open_store(folder / "outcomes.db")
    return SyncBench(stores=Bench(store=store), graph=SqliteGraphStore(folder / "graph.db"))


async def main(folder: Path, phase: str) -> None:
    bench = bench_in(folder)

    def kill(progress: IndexProgress) -> None:
        if progress.phase == phase:
            os.kill(os.getpid(), signal.SIGKILL)

    bench.on_progress = kill
    await bench.handler().handle(SYNC)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
