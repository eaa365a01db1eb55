"""A graph that follows a working tree: an index at the start, and one after each burst of changes.

A folder that goes away is waited for, and so is a store: nothing but being stopped ends a watch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from watchfiles import Change, DefaultFilter
from watchfiles import awatch as _awatch  # pyright: ignore[reportUnknownVariableType] - its stop event is not typed

from worker.code.indexing import (
    IndexCache,
    IndexOptions,
    IndexReport,
    NothingIndexed,
    OnProgress,
    index_project,
)
from worker.code.skipping import skip_folder
from worker.errors import Unavailable, WorkerError
from worker.graph.store import GraphStore

DEBOUNCE_SECONDS: Final = 0.3
"""How long a burst of changes may go on before it is indexed; an editor writes a file in several steps."""

POLL_SECONDS: Final = 1.0
"""How often it is looked whether the folder is still the same one, and whether a store is back."""

_UNWATCHED: Final = frozenset({"version_control", "virtual_environment", "dependencies", "cache"})
"""Of the rules by which a scan leaves out folders, those of folders in which much is written."""

_GIT_FILE_BYTES: Final = 10_000

WatchOutcome = IndexReport | WorkerError | OSError


async def watch(
    store: GraphStore,
    project_id: str,
    root: Path,
    *,
    stop: asyncio.Event,
    options: IndexOptions | None = None,
    on_progress: OnProgress = lambda _: None,
    debounce_seconds: float = DEBOUNCE_SECONDS,
    poll_seconds: float = POLL_SECONDS,
) -> AsyncGenerator[WatchOutcome]:
    """The report of each index, until `stop` is set; also of one that found nothing to change.

    What goes wrong is given as its error, once for as long as it stays the same: the folder is gone, the
    store is away, others change the graph too fast (each tried again every `poll_seconds`), or no file gives
    a symbol (tried again with the next change). A file that is broken for a moment is no error: the report
    names it, and the next one no more.

    What changes while an index runs is in the next one. A folder that is put in the place of the root, by a
    rename or by a link that now leads elsewhere, is followed from then on.
    """
    one = _Watch(store, project_id, root, options, on_progress)
    while not stop.is_set():
        identity = await asyncio.to_thread(_identity, root)
        if identity is None:
            error = one.news(Unavailable(f"{root} is not there"))
            if error is not None:
                yield error
            await _first(stop, timeout_seconds=poll_seconds)
            continue
        places = await asyncio.to_thread(_places, root)
        tree = _Tree(*places, stop, debounce_seconds=debounce_seconds, poll_seconds=poll_seconds)
        try:
            # The watcher has to stand before the first index looks, or what changes in between is lost.
            await tree.start()
            one.is_due = True
            while True:
                outcome = await one.index() if one.is_due else None
                if outcome is not None:
                    yield outcome
                has_changed = await tree.changed()
                if stop.is_set() or await asyncio.to_thread(_identity, root) != identity:
                    break
                one.is_due = has_changed or one.is_pending
        except OSError as error:  # the system gives no more watches, or the folder went just now
            told = one.news(error)
            if told is not None:
                yield told
            await _first(stop, timeout_seconds=poll_seconds)
        finally:
            await tree.close()


class _Watch:
    """What was indexed last, and what is still to be said or done."""

    def __init__(
        self,
        store: GraphStore,
        project_id: str,
        root: Path,
        options: IndexOptions | None,
        on_progress: OnProgress,
    ) -> None:
        self._store = store
        self._project_id = project_id
        self._root = root
        self._options = options
        self._on_progress = on_progress
        self._cache = IndexCache()
        self._told = ""
        self.is_due = True
        self.is_pending = False
        """Whether the last index failed for a cause that may pass by itself."""

    async def index(self) -> WatchOutcome | None:
        """The report; or the error, where it is not the one before; else None."""
        try:
            report = await index_project(
                self._store,
                self._project_id,
                self._root,
                options=self._options,
                on_progress=self._on_progress,
                cache=self._cache,
            )
        except (WorkerError, OSError) as error:
            self.is_pending = not isinstance(error, NothingIndexed)
            return self.news(error)
        self.is_pending = False
        self._told = ""
        return report

    def news(self, error: WorkerError | OSError) -> WorkerError | OSError | None:
        """The error, unless it is what was told last."""
        text = f"{type(error).__name__}: {error}"
        is_news, self._told = text != self._told, text
        return error if is_news else None


class _Tree:
    """One watcher of one folder and of the log of its commits, which must be closed."""

    def __init__(
        self,
        root: Path,
        commit_log: Path,
        stop: asyncio.Event,
        *,
        debounce_seconds: float,
        poll_seconds: float,
    ) -> None:
        self._stopping = asyncio.create_task(stop.wait())
        self._changes = _awatch(
            *([root] if commit_log.is_relative_to(root) else [root, commit_log.parent]),
            watch_filter=_Filter(root, commit_log),
            debounce=int(debounce_seconds * 1_000),
            rust_timeout=max(1, int(poll_seconds * 1_000)),
            yield_on_timeout=True,
        )
        self._next: asyncio.Future[set[tuple[Change, str]] | None] | None = None

    async def start(self) -> None:
        """Return when changes are noted. Raises OSError where the system refuses that."""
        self._next = asyncio.ensure_future(anext(self._changes, None))
        await asyncio.sleep(0)
        if self._next.done():
            self._next.result()

    async def changed(self) -> bool:
        """Wait for a burst of changes, the time to look around, or the stop; True for changes."""
        assert self._next is not None  # noqa: S101 - it was started
        await asyncio.wait({self._next, self._stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not self._next.done():
            return False
        found = self._next.result()
        await self.start()
        return bool(found)

    async def close(self) -> None:
        """End the watcher's thread."""
        self._stopping.cancel()
        if self._next is not None:
            self._next.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await self._next
        await self._changes.aclose()


class _Filter(DefaultFilter):
    """What may change the graph: no caches and editors' files, but new commits."""

    ignore_dirs = ()

    def __init__(self, root: Path, commit_log: Path) -> None:
        super().__init__()
        self._root = root
        self._commit_log = commit_log

    def __call__(self, change: Change, path: str) -> bool:
        changed = Path(path)
        if changed == self._commit_log:
            return True
        if not changed.is_relative_to(self._root):
            return False
        # What the folders above the root are called says nothing of what is in it.
        names = changed.relative_to(self._root).parts
        rules = {skip_folder(name, beside=(), inside=()) for name in names}
        return _UNWATCHED.isdisjoint(rules) and super().__call__(change, changed.name)


def _places(root: Path) -> tuple[Path, Path]:
    """The folder itself, and the file in which git notes each commit that is made in it."""
    root = root.resolve()
    git = root / ".git"
    inside = git / "logs" / "HEAD"
    if not git.is_file():
        return root, inside
    # A linked worktree: what git keeps of it lies where this file says.
    try:
        with git.open("rb") as file:
            named = file.read(_GIT_FILE_BYTES).removeprefix(b"gitdir:").strip()
        elsewhere = (root / os.fsdecode(named) / "logs" / "HEAD").resolve()
        return root, elsewhere if elsewhere.is_file() else inside
    except (OSError, ValueError):
        return root, inside


def _identity(root: Path) -> tuple[int, int] | None:
    """What tells whether a folder is the same one; None where there is none."""
    try:
        found = root.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if root.is_dir() else None


async def _first(stop: asyncio.Event, *, timeout_seconds: float) -> None:
    """Wait for the stop, but no longer than that."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_seconds):
            await stop.wait()
