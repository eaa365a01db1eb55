"""What a worker takes while it works, sample by sample, and whether it takes more and more."""

from __future__ import annotations

import asyncio
import signal
import statistics
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import combinations

from tests.support.cluster import WorkerProcess
from tests.support.nursery import TASKS_EVENT
from tests.support.probing import (
    children_bytes,
    logged,
    open_descriptors,
    resident_bytes,
    threads,
    until_logged,
)

_MOST_SAMPLES = 200
"""A slope is taken over; there are as many pairs as their square."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at a process."""

    seconds: float
    """By the monotonic clock."""
    resident_bytes: int
    descriptors: int
    threads: int
    tasks: int
    """Of its event loop."""
    children_bytes: int = 0
    """Resident in all processes that it has started, and that these have."""

    @property
    def whole_bytes(self) -> int:
        """Of the process and its children; what they share counts for each."""
        return self.resident_bytes + self.children_bytes


async def sample(worker: WorkerProcess) -> Sample:
    process_id = worker.process.pid
    return Sample(
        seconds=time.monotonic(),
        resident_bytes=resident_bytes(process_id),
        descriptors=open_descriptors(process_id),
        threads=threads(process_id),
        tasks=await _tasks(worker),
        children_bytes=children_bytes(process_id),
    )


async def _tasks(worker: WorkerProcess) -> int:
    times = len(logged(worker, TASKS_EVENT)) + 1
    worker.signal(signal.SIGUSR1)
    return int(str((await until_logged(worker, TASKS_EVENT, times=times))[-1]["count"]))


@asynccontextmanager
async def sampling(worker: WorkerProcess, *, every_seconds: float) -> AsyncGenerator[list[Sample]]:
    """Looks at the worker again and again within this context."""
    samples: list[Sample] = []

    async def look() -> None:
        while True:
            samples.append(await sample(worker))
            await asyncio.sleep(every_seconds)

    looking = asyncio.create_task(look())
    try:
        yield samples
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """How much the second grows for each one of the first: the median over all pairs (Theil and Sen).

    A single burst moves it as little as a single lull does. 0 where there are fewer than two points.
    """
    step = max(1, len(points) // _MOST_SAMPLES)
    pairs = combinations(points[::step], 2)
    return statistics.median([(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairs if x2 > x1] or [0.0])


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a worker may take, and how much more at the end than before."""

    resident_bytes: int
    """Of the process itself."""
    whole_bytes: int
    """Of it and its children."""
    grown_bytes: float
    """Of all of these, by the slope, over all samples."""
    descriptors: int
    threads: int
    tasks: int


def leaks(before: Sample, samples: Sequence[Sample], after: Sample, bounds: Bounds) -> list[str]:
    """What grows, or is too much, in words; `after` was taken when all work had ended."""
    found: list[str] = []
    points = [(one.seconds, float(one.whole_bytes)) for one in samples]
    grown = slope(points) * (points[-1][0] - points[0][0]) if points else 0.0
    if grown > bounds.grown_bytes:
        found.append(f"memory grew by {grown / 1e6:.1f} MB")
    if after.resident_bytes > bounds.resident_bytes:
        found.append(f"{after.resident_bytes / 1e6:.0f} MB of memory")
    if after.whole_bytes > bounds.whole_bytes:
        found.append(f"{after.whole_bytes / 1e6:.0f} MB with children")
    for name in ("descriptors", "threads", "tasks"):
        more = getattr(after, name) - getattr(before, name)
        if more > getattr(bounds, name):
            found.append(f"{more} more {name}")
    return found
