from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

from tests.support.memory_graph import MemoryGraphStore
from worker.code.indexing import IndexReport, NothingIndexed
from worker.code.watching import watch


async def test_each_burst_of_changes_is_indexed_until_it_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f(): pass\n")
    store, stop = MemoryGraphStore(), asyncio.Event()
    outcomes = watch(store, "p", tmp_path, stop=stop, debounce_seconds=0.05)

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
    outcomes = watch(store, "p", tmp_path, stop=stop, debounce_seconds=0.05)
    assert isinstance(await anext(outcomes), NothingIndexed)
    (tmp_path / "a.py").write_text("def f(): pass\n")
    async for outcome in outcomes:
        if isinstance(outcome, IndexReport):
            assert outcome.symbols == 2
            break
    await outcomes.aclose()
    assert stop.is_set()


async def test_a_new_commit_is_a_change(tmp_path: Path) -> None:
    environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull}

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, env=environment)

    git("init", "-q")
    (tmp_path / "a.py").write_text("def f(): pass\n")
    git("add", "-A")
    git("commit", "-qm", "first")
    outcomes = watch(MemoryGraphStore(), "p", tmp_path, stop=asyncio.Event(), debounce_seconds=0.05)
    first = await anext(outcomes)
    assert isinstance(first, IndexReport)
    git("commit", "-q", "--allow-empty", "-m", "empty")
    git("commit", "-q", "--amend", "-m", "first, with other words", "--allow-empty")
    (tmp_path / "a.py").write_text("def f(): return 1\n")
    git("commit", "-qam", "second")
    async for outcome in outcomes:
        if isinstance(outcome, IndexReport) and outcome.nodes.get("Commit") == 2:
            break
    await outcomes.aclose()
