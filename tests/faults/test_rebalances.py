"""Workers that come, go, die and wake up under load: every request ends once."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.sizes import SIZES
from tests.faults.table import Row, row_of
from tests.support.cluster import PATIENCE_SECONDS, Mode, Topics, WorkerProcess, longer_than, workers
from tests.support.probing import Probe, logged
from tests.support.replaying import load
from worker.load.generator import Traffic, generate

pytestmark = pytest.mark.asyncio(loop_scope="session")

Judge = Callable[[Row], None]
QUICK_SESSION_MS = 3_000


async def test_a_storm_of_rebalances_loses_and_doubles_nothing(
    mode: Mode, topics: Topics, judge: Judge, tmp_path: Path
) -> None:
    """A stop, a kill and a newcomer in turn, each as soon as its share of the answers is there."""
    mode = replace(mode, session_timeout_ms=QUICK_SESSION_MS)
    records = generate(Traffic(requests=SIZES.storm_requests))
    began = time.monotonic()
    async with workers(mode, tmp_path) as start:
        alive: list[WorkerProcess] = [await start() for _ in range(SIZES.storm_workers)]
        loading = asyncio.create_task(load(mode, tmp_path, records, rate_per_second=SIZES.storm_rate))
        for blow in range(SIZES.storm_blows):
            share = SIZES.storm_requests * (blow + 1) // (SIZES.storm_blows + 2)
            await topics.read_until("bundles", longer_than(share))
            if blow % 3 < 2:
                victim = alive.pop(0)
                victim.signal(signal.SIGKILL if blow % 3 else signal.SIGTERM)
                assert await victim.ended() == (-signal.SIGKILL if blow % 3 else 0)
            alive.append(await start())
        report = await loading
        assert [worker.process.returncode for worker in alive] == [None] * len(alive)
    note = f"{SIZES.storm_workers} workers, {SIZES.storm_blows} blows"
    judge(row_of(f"rebalance storm, {mode.name}", report, began=began, note=note))


@pytest.mark.parametrize("mode", SIZES.modes, indirect=True)
async def test_sigterm_under_load_drains_and_nothing_is_redelivered(
    mode: Mode, topics: Topics, judge: Judge, tmp_path: Path
) -> None:
    records = generate(Traffic(requests=SIZES.load_requests))
    began = time.monotonic()
    async with workers(mode, tmp_path) as start:
        first = await start()
        # All at once: there is always more than what is in work.
        loading = asyncio.create_task(load(mode, tmp_path, records))
        await topics.read_until("bundles", longer_than(SIZES.load_requests // 4))
        first.signal(signal.SIGTERM)
        assert await first.ended() == 0
        heir = await start()
        report = await loading
        assert heir.process.returncode is None
    row = row_of(f"SIGTERM under load, {mode.name}", report, began=began)
    judge(row)
    assert row.again == 0


@pytest.mark.parametrize("mode", SIZES.modes, indirect=True)
async def test_a_worker_that_wakes_up_after_its_session_ended_breaks_nothing(
    mode: Mode, topics: Topics, judge: Judge, tmp_path: Path
) -> None:
    mode = replace(mode, session_timeout_ms=QUICK_SESSION_MS)
    records = generate(Traffic(requests=SIZES.load_requests))
    began = time.monotonic()
    async with workers(mode, tmp_path) as start:
        zombie = await start(WORKER_LOG_FORMAT="json")
        loading = asyncio.create_task(load(mode, tmp_path, records, rate_per_second=SIZES.load_rate))
        await topics.read_until("bundles", longer_than(SIZES.load_requests // 4))
        zombie.signal(signal.SIGSTOP)
        heir = await start(WORKER_LOG_FORMAT="json")
        await until_owns_all(heir, mode)
        had = len((await topics.read_all("bundles")).records)
        await topics.read_until("bundles", longer_than(had + SIZES.load_requests // 8))
        zombie.signal(signal.SIGCONT)
        report = await loading
        for worker in (zombie, heir):
            probe = await Probe.of(worker)
            await probe.until_ready(ready=True)
            assert await probe.is_live()
    judge(row_of(f"SIGSTOP past the session, SIGCONT, {mode.name}", report, began=began))


async def until_owns_all(worker: WorkerProcess, mode: Mode) -> None:
    """Return when the group of the requests counts on that worker alone."""
    whole = sorted(f"{mode.prefix}requests-{number}" for number in range(12))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if any(line["partitions"] == whole for line in logged(worker, "partitions.assigned")):
                return
            await asyncio.sleep(0.1)
