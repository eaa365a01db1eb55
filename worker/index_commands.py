"""What the command that indexes does, with no more loaded than it needs: nothing that reads a graph."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from worker.code.indexing import IndexReport, OnProgress, index_project
from worker.code.watching import watch
from worker.graph.store import GraphStore
from worker.settings import Settings
from worker.wiring_graph_store import build_graph_store


async def index_tree(settings: Settings, root: Path, project_id: str, on_progress: OnProgress) -> IndexReport:
    """Make the project's graph that of the tree. Raises as `index_project` does."""
    async with _closing(build_graph_store(settings)) as store:
        return await index_project(store, project_id, root, on_progress=on_progress)


async def follow_tree(
    settings: Settings, root: Path, project_id: str, on_change: Callable[[IndexReport | Exception], object]
) -> None:
    """Index the tree and follow it until SIGINT or SIGTERM; whatever happens is told to `on_change`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with _closing(build_graph_store(settings)) as store:
        async for outcome in watch(store, project_id, root, stop=stop):
            on_change(outcome)


@asynccontextmanager
async def _closing(store: GraphStore) -> AsyncGenerator[GraphStore]:
    try:
        yield store
    finally:
        await store.close()
