from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.support.memory_graph import MemoryGraphStore
from worker.code.indexing import IndexReport, NothingIndexed
from worker.code.watching import WatchOutcome, watch
from worker.errors import StoreUnavailable, Unavailable
from worker.graph.model import GraphHead


async def test_each_burst_of_changes_is_indexed_until_it_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f(): pass\n")
    store, stop = MemoryGraphStore(), asyncio.Event()
    outcomes = watch(store, "p", tmp_path, stop=stop, debounce_seconds=0.05, poll_seconds=0.05)

    async def functions() -> int:
        """Of the next report that tells of a change."""
        async for outcome in outcomes:
            if isinstance(outcome, IndexReport) and outcome.is_changed:
                return outcome.nodes.get("Function", 0)
        raise AssertionError

    assert await functions() == 1
    (tmp_path / "b.py").write_text("def g(): pass\n")
    assert await functions() == 2
    (tmp_path / "a.py").unlink()
    assert await functions() == 1
    stop.set()
    assert [outcome async for outcome in outcomes if isinstance(outcome, NothingIndexed)] == []


async def test_a_tree_that_gives_nothing_is_told_and_watched_on(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def (\n")
    store, stop = MemoryGraphStore(), asyncio.Event()
    outcomes = watch(store, "p", tmp_path, stop=stop, debounce_seconds=0.05, poll_seconds=0.05)
    assert isinstance(await anext(outcomes), NothingIndexed)
    (tmp_path / "a.py").write_text("def f(): pass\n")
    async for outcome in outcomes:
        if isinstance(outcome, IndexReport):
            assert outcome.symbols == 2
            break
    await outcomes.aclose()


@pytest.mark.parametrize("above", [".venv", "node_modules", ".idea", "__pycache__"])
async def test_what_the_folders_above_the_root_are_called_makes_no_difference(
    tmp_path: Path, above: str
) -> None:
    root = tmp_path / above / "tree"
    root.mkdir(parents=True)
    (root / "a.py").write_text("def f(): pass\n")
    outcomes = watch(
        MemoryGraphStore(), "p", root, stop=asyncio.Event(), debounce_seconds=0.05, poll_seconds=0.05
    )
    assert (await next_change(outcomes)).nodes["Function"] == 1
    (root / "b.py").write_text("def g(): pass\n")
    assert (await next_change(outcomes)).nodes["Function"] == 2
    await outcomes.aclose()


def git(root: Path, *arguments: str) -> None:
    """Run git there, as nobody in particular."""
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, env=environment)


def repository(root: Path) -> None:
    """Make one with a file and a commit."""
    git(root, "init", "-q")
    (root / "a.py").write_text("def f(): pass\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")


async def test_a_new_commit_in_a_linked_worktree_is_a_change(tmp_path: Path) -> None:
    main, root = tmp_path / "main", tmp_path / "linked"
    main.mkdir()
    repository(main)
    git(main, "worktree", "add", "-q", str(root))
    outcomes = watch(
        MemoryGraphStore(), "p", root, stop=asyncio.Event(), debounce_seconds=0.05, poll_seconds=0.05
    )
    assert (await next_change(outcomes)).nodes["Commit"] == 1
    # No file of the tree is touched, the log of commits alone.
    git(root, "commit", "-q", "--amend", "-m", "first, with other words")
    assert (await next_change(outcomes)).is_changed
    await outcomes.aclose()


async def test_a_new_commit_is_a_change(tmp_path: Path) -> None:
    repository(tmp_path)
    outcomes = watch(
        MemoryGraphStore(), "p", tmp_path, stop=asyncio.Event(), debounce_seconds=0.05, poll_seconds=0.05
    )
    first = await anext(outcomes)
    assert isinstance(first, IndexReport)
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "empty")
    git(tmp_path, "commit", "-q", "--amend", "-m", "first, with other words", "--allow-empty")
    (tmp_path / "a.py").write_text("def f(): return 1\n")
    git(tmp_path, "commit", "-qam", "second")
    async for outcome in outcomes:
        if isinstance(outcome, IndexReport) and outcome.nodes.get("Commit") == 2:
            break
    await outcomes.aclose()


class AwayStore(MemoryGraphStore):
    """A store that does not answer while it is away."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = True
        self.asked = 0
        self.was_asked_again = asyncio.Event()

    async def head(self, project_id: str) -> GraphHead | None:
        self.asked += 1
        if self.asked == 4:
            self.was_asked_again.set()
        if self.is_away:
            raise StoreUnavailable("memory", "away")
        return await super().head(project_id)


async def next_change(outcomes: AsyncGenerator[WatchOutcome]) -> IndexReport:
    """The next report that tells of a change; an error fails the test."""
    async for outcome in outcomes:
        assert isinstance(outcome, IndexReport), outcome
        if outcome.is_changed:
            return outcome
    raise AssertionError


async def next_error(outcomes: AsyncGenerator[WatchOutcome]) -> WatchOutcome:
    """The next outcome that is no report."""
    async for outcome in outcomes:
        if not isinstance(outcome, IndexReport):
            return outcome
    raise AssertionError


async def test_a_root_that_vanishes_is_said_once_waited_for_and_followed_again(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "a.py").write_text("def f(): pass\n")
    outcomes = watch(
        MemoryGraphStore(), "p", root, stop=asyncio.Event(), debounce_seconds=0.05, poll_seconds=0.05
    )
    assert (await next_change(outcomes)).nodes["Function"] == 1
    root.rename(tmp_path / "elsewhere")
    assert isinstance(await next_error(outcomes), Unavailable)
    root.mkdir()
    (root / "b.py").write_text("def g(): pass\ndef h(): pass\n")
    report = await anext(outcomes)
    while not (isinstance(report, IndexReport) and report.nodes.get("Function") == 2):
        report = await anext(outcomes)
    # The new folder is the one that is watched.
    (root / "c.py").write_text("def i(): pass\n")
    assert (await next_change(outcomes)).nodes["Function"] == 3
    await outcomes.aclose()


async def test_a_root_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    root = tmp_path / "later"
    outcomes = watch(
        MemoryGraphStore(), "p", root, stop=asyncio.Event(), debounce_seconds=0.05, poll_seconds=0.05
    )
    assert isinstance(await anext(outcomes), Unavailable)
    made = tmp_path / "made"
    made.mkdir()
    (made / "a.py").write_text("def f(): pass\n")
    made.rename(root)
    assert (await next_change(outcomes)).nodes["Function"] == 1
    await outcomes.aclose()


async def test_a_link_that_leads_elsewhere_now_is_followed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text(f"def {name}(): pass\n")
    root, store = tmp_path / "current", MemoryGraphStore()
    root.symlink_to("one")
    outcomes = watch(store, "p", root, stop=asyncio.Event(), debounce_seconds=0.05, poll_seconds=0.05)
    await next_change(outcomes)
    (tmp_path / "new").symlink_to("two")
    (tmp_path / "new").rename(root)
    await next_change(outcomes)
    loaded = await store.load("p")
    assert loaded is not None
    assert {node.id for node in loaded[1].nodes if node.label == "Function"} == {"two.py::two"}
    await outcomes.aclose()


async def test_a_store_that_is_away_is_said_once_and_needs_no_change_to_be_tried_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.py").write_text("def f(): pass\n")
    store = AwayStore()
    outcomes = watch(store, "p", tmp_path, stop=asyncio.Event(), debounce_seconds=0.05, poll_seconds=0.05)
    assert isinstance(await anext(outcomes), StoreUnavailable)
    waiting = asyncio.ensure_future(anext(outcomes))
    await store.was_asked_again.wait()
    assert not waiting.done()
    store.is_away = False
    report = await waiting
    assert isinstance(report, IndexReport)
    assert report.nodes["Function"] == 1
    await outcomes.aclose()


async def test_a_file_that_is_broken_half_way_is_named_and_heals(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f(): pass\n")
    (tmp_path / "b.py").write_text("def g(): pass\n")
    outcomes = watch(
        MemoryGraphStore(), "p", tmp_path, stop=asyncio.Event(), debounce_seconds=0.05, poll_seconds=0.05
    )
    assert (await next_change(outcomes)).not_whole == ()
    (tmp_path / "b.py").write_text("def g(): pass\n\ndef h(\n")
    assert [path for path, _, _ in (await next_change(outcomes)).not_whole] == ["b.py"]
    (tmp_path / "b.py").write_text("def g(): pass\n\ndef h(): pass\n")
    report = await next_change(outcomes)
    while report.not_whole:
        report = await next_change(outcomes)
    assert report.nodes["Function"] == 3
    await outcomes.aclose()


async def test_only_what_changed_is_read_again(tmp_path: Path) -> None:
    for n in range(30):
        (tmp_path / f"m{n}.py").write_text(f"def f{n}(): pass\n")
    outcomes = watch(
        MemoryGraphStore(), "p", tmp_path, stop=asyncio.Event(), debounce_seconds=0.05, poll_seconds=0.05
    )
    assert (await next_change(outcomes)).files_read == 30
    (tmp_path / "m7.py").write_text("def g(): pass\n")
    assert (await next_change(outcomes)).files_read == 1
    await outcomes.aclose()


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_cancelled_watch_ends_and_leaves_no_thread(tmp_path: Path, *, is_gone: bool) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "a.py").write_text("def f(): pass\n")
    reports: asyncio.Queue[WatchOutcome] = asyncio.Queue()

    async def follow() -> None:
        async for outcome in watch(
            MemoryGraphStore(), "p", root, stop=asyncio.Event(), debounce_seconds=0.05, poll_seconds=0.05
        ):
            reports.put_nowait(outcome)

    task = asyncio.create_task(follow())
    await reports.get()
    if is_gone:
        shutil.rmtree(root)
        while not isinstance(await reports.get(), Unavailable):
            pass
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # What is left waits for work and holds no watcher.
    assert not [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    assert [t.name for t in threading.enumerate() if "watch" in t.name.lower()] == []
