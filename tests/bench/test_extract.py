"""Cold extraction over the standard library, and what the AST layer costs a request, cold and repeated.

Processor time, parser and extraction beside each other in one run. Target for a whole index, storage
included: 3 s per 100,000 lines. Nothing is asserted on time.
"""

from __future__ import annotations

import asyncio
import gc
import sysconfig
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.providers.frames import BUDGET, SCOPE, frame
from worker.code.extractor import extract
from worker.code.neighbourhood import link_calls
from worker.code.parsing import parse
from worker.code.sources import SourceRoots
from worker.providers.ast import AstProvider

pytestmark = pytest.mark.bench

STDLIB = Path(sysconfig.get_path("stdlib"))
PROJECT = Path(__file__).parents[2]
EVERY = 8
"""One file of so many is measured."""

REPEATS = 20


def seconds(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


@pytest.mark.timeout(300)
def test_seconds_per_100_000_lines_of_the_standard_library(capsys: pytest.CaptureFixture[str]) -> None:
    paths = sorted(path for path in STDLIB.rglob("*.py") if "site-packages" not in path.parts)[::EVERY]
    sources = [(str(path.relative_to(STDLIB)), path.read_bytes()) for path in paths]
    gc.collect()
    # What the test program itself holds is none of the collector's business here.
    gc.freeze()
    # Each result is let go at once: a heap full of trees would be measured with them.
    parsing = seconds(lambda: deque((parse(content) for _, content in sources), maxlen=0))
    extraction = seconds(lambda: deque((extract(path, content) for path, content in sources), maxlen=0))
    # An indexer has a process of its own and may do without the collector, which scans the trees in vain.
    gc.disable()
    undisturbed = seconds(lambda: deque((extract(path, content) for path, content in sources), maxlen=0))
    gc.enable()
    gc.unfreeze()
    facts = [extract(path, content) for path, content in sources]
    linking = seconds(lambda: link_calls(facts))
    lines = sum(item.line_count for item in facts)
    symbols = sum(len(item.functions) + len(item.classes) for item in facts)
    assert symbols > lines / 50
    table = [f"{len(paths)} files, {lines:,} lines, {symbols:,} symbols; seconds per 100,000 lines"]
    rows = {
        "parser alone": parsing,
        "extraction": extraction,
        "the same without collector": undisturbed,
        "linking": linking,
    }
    table += [f"{name:<28}{spent / lines * 100_000:>6.2f}" for name, spent in rows.items()]
    with capsys.disabled():
        print("\n" + "\n".join(table))  # noqa: T201  # the table is what this is for


def test_what_a_repeated_request_costs(capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "worker").rglob("*.py"))[:40]
    request = frame(payload={"files_created": files})

    async def measure() -> tuple[float, float]:
        provider = AstProvider(SourceRoots({SCOPE.project_id: (PROJECT,)}))
        started = time.process_time()
        first = await provider.provide(request, SCOPE, BUDGET)
        cold = time.process_time() - started
        started = time.process_time()
        for _ in range(REPEATS):
            assert await provider.provide(request, SCOPE, BUDGET) == first
        return cold, (time.process_time() - started) / REPEATS

    cold, repeated = asyncio.run(measure())
    text = f"AST layer of {len(files)} files: cold {cold * 1000:.1f} ms, repeated {repeated * 1000:.2f} ms"
    with capsys.disabled():
        print("\n" + text)  # noqa: T201  # as above
