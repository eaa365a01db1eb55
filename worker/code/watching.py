"""A graph that follows a working tree: an index at the start, and one after each burst of changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from watchfiles import (
    Change,
    DefaultFilter,
    awatch,  # pyright: ignore[reportUnknownVariableType] - one parameter may be of trio's, which is not there
)

from worker.code.indexing import IndexCache, IndexOptions, IndexReport, OnProgress, index_project
from worker.errors import WorkerError
from worker.graph.store import GraphStore

DEBOUNCE_SECONDS: Final = 0.3
"""How long a burst of changes may go on before it is indexed; an editor writes a file in several steps."""

_NEW_COMMIT: Final = (".git", "logs", "HEAD")


async def watch(
    store: GraphStore,
    project_id: str,
    root: Path,
    *,
    stop: asyncio.Event,
    options: IndexOptions | None = None,
    on_progress: OnProgress = lambda _: None,
    debounce_seconds: float = DEBOUNCE_SECONDS,
) -> AsyncGenerator[IndexReport | WorkerError]:
    """The report of each index, until `stop` is set; also of one that found nothing to change.

    An index that fails (no symbol in the tree, the store away) is given as its error, and the next change
    is the next try. What changes while an index runs is in the next one.
    """
    cache = IndexCache()
    changes = awatch(
        root,
        watch_filter=_Filter(),
        debounce=int(debounce_seconds * 1_000),
        stop_event=stop,
    )
    # The watcher has to stand before the first index looks, or what changes in between is lost.
    pending = asyncio.ensure_future(anext(changes, None))
    await asyncio.sleep(0)
    try:
        while True:
            try:
                yield await index_project(
                    store, project_id, root, options=options, on_progress=on_progress, cache=cache
                )
            except WorkerError as error:
                yield error
            if await pending is None:
                return
            pending = asyncio.ensure_future(anext(changes, None))
            await asyncio.sleep(0)
    finally:
        stop.set()
        with contextlib.suppress(asyncio.CancelledError):
            await pending
        await changes.aclose()


class _Filter(DefaultFilter):
    """What may change the graph: no caches and editors' files, but new commits."""

    def __call__(self, change: Change, path: str) -> bool:
        return Path(path).parts[-3:] == _NEW_COMMIT or super().__call__(change, path)
