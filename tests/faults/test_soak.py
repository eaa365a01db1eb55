"""Everything at once for a long time: what a worker takes stays what it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.sync import SyncFile, SyncRequest, SyncResult
from schemas.times import format_time
from schemas.tools import ToolRequest, ToolResult
from tests.faults.sizes import LONG, SIZES
from tests.faults.table import Row, row_of
from tests.support.cluster import Mode, Topics, workers
from tests.support.meter import Bounds, Sample, leaks, sample, sampling, slope
from tests.support.probing import Probe
from tests.support.replaying import load
from worker.client import ContextClient
from worker.load.generator import Traffic, generate
from worker.load.recording import RecordedRecord, now_utc

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("mode", ["services"], indirect=True),
]

Judge = Callable[[Row], None]
BAD_EVERY = 25
BESIDE_SECONDS = 300.0
"""What a sync or a tool call may take: on a crowded machine they wait for a store again and again."""
BOUNDS = Bounds(
    resident_bytes=300_000_000,
    # With the process that carries out syncs, and the one that parses.
    whole_bytes=512_000_000,
    # A short run still fills its caches; what it would prove of memory is nothing.
    grown_bytes=10_000_000.0 if SIZES is LONG else float("inf"),
    # Pools of connections grow to what is in work at once, on a crowded machine later on. What leaks one for
    # each request, event or call comes to hundreds.
    descriptors=24,
    threads=8,
    tasks=4,
)


async def test_a_long_mixed_load_takes_no_more_at_its_end_than_at_its_beginning(
    mode: Mode, topics: Topics, namespace: str, judge: Judge, tmp_path: Path
) -> None:
    # As a deployed worker has them, see infra/autoscaling/deployment.yaml.
    caches = {
        "WORKER_GRAPH__PACK_CACHE": "redis",
        "WORKER_GRAPH__MAX_SNAPSHOT_BYTES": "300000000",
        "WORKER_STATE__MAX_BYTES": "64000000",
    }
    mode = replace(mode, environment=mode.environment | caches, session_timeout_ms=30_000)
    client = ContextClient([mode.bootstrap], topic_prefix=mode.prefix)
    began = time.monotonic()
    async with workers(mode, tmp_path) as start, client:
        worker = await start(WORKER_LOG_FORMAT="json")
        await beside(client, topics, f"p-{namespace}", number=0)
        warm = await load(
            mode, tmp_path, mixed(SIZES.soak_warming_seconds, seed=1), rate_per_second=SIZES.soak_rate
        )
        before = await sample(worker)
        loading = asyncio.create_task(
            load(mode, tmp_path, mixed(SIZES.soak_seconds, seed=2), rate_per_second=SIZES.soak_rate)
        )
        number = 0
        async with sampling(worker, every_seconds=max(1.0, SIZES.soak_seconds / 200)) as samples:
            while not loading.done():
                number += 1
                await beside(client, topics, f"p-{namespace}", number=number)
                await asyncio.wait({loading}, timeout=2.0)
        report = await loading
        await (await Probe.of(worker)).until_metric("context_records_in_flight", lambda count: not count)
        after = await sample(worker)
        assert worker.process.returncode is None
    judge(
        row_of(f"mixed soak, {mode.name}", warm, report, began=began, note=in_words(before, samples, after))
    )
    assert leaks(before, samples, after, BOUNDS) == []


def mixed(seconds: float, *, seed: int) -> Iterator[RecordedRecord]:
    """Requests, and now and then a record that is none."""
    for number, record in enumerate(
        generate(Traffic(requests=int(seconds * SIZES.soak_rate), seed=seed)), start=1
    ):
        yield replace(record, value=b"{no json") if number % BAD_EVERY == 0 else record


async def beside(client: ContextClient, topics: Topics, project: str, *, number: int) -> None:
    """One of everything else: an event, a sync, a call of a tool. The same things change again and again."""
    event = {
        "event_id": f"e-{number}",
        "event": "goal_set",
        "project_id": project,
        "thread_id": "t",
        "occurred_at": format_time(now_utc()),
        "body": {"id": "g", "statement": f"Version {number} is out"},
    }
    await topics.send(event, topic="state", key=project)
    code = f"def version():\n    return {number}\n"
    sync = SyncRequest(
        sync_id=f"s-{number}", project_id=project, files=(SyncFile(path="src/version.py", content=code),)
    )
    assert isinstance(await client.sync(sync, timeout_seconds=BESIDE_SECONDS), SyncResult)
    call = ToolRequest(
        call_id=f"c-{number}", project_id=project, tool="get_code", arguments={"entity_id": "src/version.py"}
    )
    assert isinstance(await client.call_tool(call, timeout_seconds=BESIDE_SECONDS), ToolResult)


def in_words(before: Sample, samples: list[Sample], after: Sample) -> str:
    per_hour = slope([(one.seconds, float(one.whole_bytes)) for one in samples]) * 3_600 / 1e6
    return (
        f"{before.resident_bytes / 1e6:.0f} to {after.resident_bytes / 1e6:.0f} MB, with children "
        f"{before.whole_bytes / 1e6:.0f} to {after.whole_bytes / 1e6:.0f} ({per_hour:+.1f} an hour), "
        f"descriptors {before.descriptors} to {after.descriptors}, "
        f"threads {before.threads} to {after.threads}, tasks {before.tasks} to {after.tasks}"
    )
