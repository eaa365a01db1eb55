"""How long the event loop is held up by an assembly of 128k tokens from a megabyte of inline sources."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.assembling import assemble, assembler, wire_request

TEXT = "def retry(deadline: float) -> None:\n    while time() < deadline:\n        attempt()\n\n" * 4_000


async def longest_gap(work: asyncio.Task[object]) -> float:
    """Seconds between two turns of the loop, at the worst, until the work is done."""
    worst = 0.0
    while not work.done():
        before = time.perf_counter()
        await asyncio.sleep(0)
        worst = max(worst, time.perf_counter() - before)
    return worst


async def test_the_longest_time_that_the_loop_is_held_up(capsys: pytest.CaptureFixture[str]) -> None:
    using = assembler()
    request = wire_request(
        user_message="Fix it.",
        payload={"task_context": TEXT},
        memory={"summary": TEXT, "items": [{"id": f"m{n}", "text": TEXT[:20_000]} for n in range(5)]},
        artifacts=[{"id": f"a{n}", "stage": "s", "type": "t", "content": TEXT[:50_000]} for n in range(4)],
        working={"current_diff": TEXT[:100_000]},
        budget={"total": 128_000, "layers": {"task": 90_000}},
        deadline_ms=60_000,
        layer_timeouts_ms={"memory": 60_000, "task": 60_000, "artifacts": 60_000},
    )
    await assemble(wire_request(), using)  # the vocabulary is read at the worker's start, not here
    task = asyncio.create_task(assemble(request, using))
    worst = await longest_gap(task)  # pyright: ignore[reportArgumentType]  # only `done` is asked
    usage = (await task).bundle.usage
    assert usage is not None
    with capsys.disabled():
        print(f"\n{usage.spent:,} tokens; longest hold of the loop {worst * 1e3:.0f} ms (to reach: 50)")  # noqa: T201
