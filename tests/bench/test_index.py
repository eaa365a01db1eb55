"""A source tree to a stored graph: cold, unchanged, with one file changed, and with what a process keeps.

Processor time of this process and its children, so that other load on the machine counts little, and beside
it what the parser alone takes for the same sources in the same run. Targets: 3 s per 100,000 lines cold,
storage included, and 0.5 s for one changed file; the wall's time, which they are about, is that of two free
cores only where nothing else runs. Nothing is asserted on time; how much work is done is.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from sysconfig import get_path

import pytest

from worker.code.indexing import IndexCache, IndexOptions, IndexReport, index_project
from worker.code.parsing import parse
from worker.stores.sqlite_graph import SqliteGraphStore

pytestmark = pytest.mark.bench

PACKAGES = Path(get_path("purelib"))
LINES = 100_000
OPTIONS = IndexOptions(with_history=False, unsettled_seconds=-60.0)
"""Stamps count at once: the test changes no file twice within one tick of the clock."""


def processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def copy_packages(root: Path) -> int:
    """Whole packages of this environment, in order of name, until there are enough lines."""
    lines = 0
    for package in sorted(path for path in PACKAGES.iterdir() if (path / "__init__.py").is_file()):
        files = sorted(package.rglob("*.py"))
        if "tests" in package.parts or not files:
            continue
        for file in files:
            target = root / file.relative_to(PACKAGES)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
            lines += file.read_bytes().count(b"\n")
        if lines >= LINES:
            break
    return lines


@pytest.mark.timeout(600)
async def test_seconds_per_100_000_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    lines = copy_packages(root)
    sources = [path.read_bytes() for path in sorted(root.rglob("*.py"))]
    store = SqliteGraphStore(tmp_path / "graph.db")
    cache = IndexCache()
    rows: list[str] = []

    async def measured(label: str, run: Callable[[], Awaitable[IndexReport]]) -> IndexReport:
        wall, processor = time.perf_counter(), processor_seconds()
        report = await run()
        wall, processor = time.perf_counter() - wall, processor_seconds() - processor
        phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in report.seconds.items())
        rows.append(
            f"{label:24} {processor * 100_000 / lines:6.2f} s processor, {wall * 100_000 / lines:6.2f} s"
            f" per 100,000 lines  (read {report.files_read}, linked {report.files_linked}; {phases})"
        )
        return report

    def index(cache: IndexCache | None = None) -> Awaitable[IndexReport]:
        return index_project(store, "p", root, options=OPTIONS, cache=cache)

    started = time.process_time()
    await asyncio.to_thread(lambda: deque(map(parse, sources), maxlen=0))
    parser = time.process_time() - started
    cold = await measured("cold", index)
    again = await measured("unchanged", index)
    changed = sorted(root.rglob("*.py"))[len(sources) // 2]
    changed.write_bytes(changed.read_bytes() + b"\n\ndef quite_a_new_name(x):\n    return len(x)\n")
    one = await measured("one file changed", index)
    await measured("unchanged, fills a cache", lambda: index(cache))
    changed.write_bytes(changed.read_bytes() + b"\n\ndef another_new_name(x):\n    return len(x)\n")
    kept = await measured("one file changed, cached", lambda: index(cache))
    changed.write_bytes(changed.read_bytes() + b"\n\ndef one_more_new_name(x):\n    return len(x)\n")
    more = await measured("another change, cached", lambda: index(cache))
    await store.close()
    assert cold.files_read == sum(cold.files.values())
    assert (again.files_read, again.is_changed) == (0, False)
    assert (one.files_read, one.files_linked, one.is_changed) == (1, 1, True)
    for report in (kept, more):
        assert (report.files_read, report.files_linked, report.is_changed) == (1, 1, True)
    size = (tmp_path / "graph.db").stat().st_size
    table = [
        f"{lines} lines, {cold.symbols} symbols, {sum(cold.edges.values())} edges, {size / 1e6:.1f} MB",
        f"{'parser alone':24} {parser * 100_000 / lines:6.2f} s processor",
        *rows,
    ]
    with capsys.disabled():
        print("\n" + "\n".join(table))  # noqa: T201  # the table is what this is for
