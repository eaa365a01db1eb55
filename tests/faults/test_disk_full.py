"""The disk of the embedded stores, and that of the usage log, has no room left, and then has again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from schemas.bundle import ContextBundle
from schemas.request import AssemblyRequest
from schemas.sync import SyncFile, SyncRequest, SyncResult
from tests.faults.sizes import SIZES
from tests.faults.table import Row, row_of
from tests.support.cluster import Mode, Topics, workers
from tests.support.probing import Probe, logged
from tests.support.replaying import load
from tests.support.small_disk import small_disk
from worker.client import ContextClient
from worker.load.generator import Traffic, generate

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("mode", ["embedded"], indirect=True),
]

Judge = Callable[[Row], None]
DISK_BYTES = 24 * 1024 * 1024 + SIZES.load_requests * 32 * 1024
"""Enough for all outcomes: the disk is full while it is filled, and has room for all that waited then."""
LINE_BYTES = 4 * 1024
"""A line of the usage log is shorter."""
TEXT = "Attempts end at the deadline. " * 400


async def test_full_stores_make_everything_wait_and_cost_nothing(
    mode: Mode, topics: Topics, judge: Judge, tmp_path: Path
) -> None:
    share = SIZES.load_requests // 2
    records = generate(Traffic(requests=2 * share))
    began = time.monotonic()
    with small_disk(tmp_path / "disk", size_bytes=DISK_BYTES) as disk:
        moved = {
            name: value.replace(str(tmp_path), str(disk.folder)) for name, value in mode.environment.items()
        }
        mode = replace(mode, environment=moved, session_timeout_ms=30_000)
        client = ContextClient([mode.bootstrap], topic_prefix=mode.prefix)
        async with workers(mode, tmp_path) as start, client:
            worker = await start(WORKER_LOG_FORMAT="json")
            probe = await Probe.of(worker)
            before = await load(mode, tmp_path, islice(records, share))
            disk.fill()
            loading = asyncio.create_task(load(mode, tmp_path, islice(records, share)))
            await tell(mode, topics)
            files = (SyncFile(path="src/shop.py", content=f'"""{TEXT}"""\n\n\ndef charge():\n    ...\n'),)
            sync = SyncRequest(sync_id="s", project_id="p", files=files)
            syncing = asyncio.create_task(client.sync(sync, timeout_seconds=300))

            await probe.until_ready(ready=False, reason="outcome_store_away")
            assert await probe.is_live()
            # Requests, state and syncs: each waits for its own store.
            await probe.until_metric(
                "context_partitions_paused", lambda paused: paused == 12 + 12 + 3, cause="store"
            )
            had = len((await topics.read_all("bundles")).records)
            said = [str(line["error"]) for line in logged(worker, "store.away")]
            assert all("disk" in error or "space" in error.lower() for error in said), said

            disk.free()
            await probe.until_ready(ready=True)
            after = await loading
            assert isinstance(await syncing, SyncResult)
            known = await client.assemble(asking(), timeout_seconds=120)
            assert isinstance(known, ContextBundle)
            assert known.layers is not None
            assert known.layers["memory"].status in {"ok", "trimmed"}, known.layers
            assert worker.process.returncode is None
    assert had >= share
    judge(row_of("disk full: embedded stores", before, after, began=began))


async def tell(mode: Mode, topics: Topics) -> None:
    """An event of state, too large for what may be left in a log that was there."""
    await topics.send(
        {
            "event_id": "e-1",
            "event": "memory",
            "project_id": "p",
            "thread_id": "t",
            "occurred_at": "2026-01-02T03:04:05Z",
            "body": {"id": "m", "text": TEXT},
        },
        topic="state",
    )


def asking() -> AssemblyRequest:
    """A request that waits for that event."""
    return AssemblyRequest.model_validate(
        {
            "request_id": "knows",
            "project_id": "p",
            "thread_id": "t",
            "volk": "smith",
            "subject": "chat",
            "user_message": "When do attempts end?",
            "after": {"event_ids": ["e-1"]},
            "deadline_ms": 60_000,
            "layer_timeouts_ms": {"memory": 50_000},
        }
    )


async def test_a_full_usage_log_is_counted_and_nobody_waits_for_it(
    mode: Mode, topics: Topics, judge: Judge, tmp_path: Path
) -> None:
    share = SIZES.load_requests // 4
    records = generate(Traffic(requests=3 * share))
    began = time.monotonic()
    with small_disk(tmp_path / "disk", size_bytes=1024 * 1024 + 3 * share * LINE_BYTES) as disk:
        usage = disk.folder / "usage.jsonl"
        async with workers(mode, tmp_path) as start:
            worker = await start(WORKER_LOG_FORMAT="json", ORCHESTRATA_CONTEXT_USAGE_LOG=str(usage))
            probe = await Probe.of(worker)
            reports = [await load(mode, tmp_path, islice(records, share))]
            await until_kept(usage, reports[0].run, probe, lines=share)
            disk.fill()
            reports.append(await load(mode, tmp_path, islice(records, share)))
            # A line that was written whole before the disk was full is no line that was lost.
            await until_kept(usage, reports[1].run, probe, lines=share)
            lost_lines = await probe.metric("context_usage_log_failures_total")
            disk.free()
            reports.append(await load(mode, tmp_path, islice(records, share)))
            await until_kept(usage, reports[2].run, probe, lines=share + lost_lines)
            assert await probe.metric("context_usage_log_failures_total") == lost_lines
            await probe.until_ready(ready=True)
        assert [json.loads(line)["outcome"] for line in usage.read_bytes().splitlines()]
    assert lost_lines > 0
    judge(row_of("disk full: usage log", *reports, began=began, note=f"{lost_lines:.0f} lines counted"))


async def until_kept(usage: Path, run: str, probe: Probe, *, lines: float) -> None:
    """Return when so many lines of the run, and lines that were lost since the start, are accounted for."""
    own = f'"request_id":"{run}:'.encode()
    await probe.until_metric(
        "context_usage_log_failures_total", lambda lost: usage.read_bytes().count(own) + lost == lines
    )
