"""Each thing that a worker asks is in turn a black hole: it accepts, and never answers.

A content source costs its layers and no more than the deadline; the outcome store costs time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from schemas.bundle import ContextBundle
from schemas.codes import CONTENT_LAYERS
from schemas.request import AssemblyRequest
from schemas.sync import SyncFile, SyncRequest, SyncResult
from tests.faults.layers import Said, contradictions
from tests.faults.sizes import LONG, SIZES
from tests.faults.table import MOST_LATE_SHARE, Row, row_of
from tests.support.cluster import PATIENCE_SECONDS, Mode, Topics, WorkerProcess, services_mode, workers
from tests.support.halting import halting
from tests.support.probing import Probe
from tests.support.replaying import load
from tests.support.tcp_proxy import TcpProxy
from tests.support.tooling import FILES
from worker.client import ContextClient
from worker.load.generator import Traffic, generate
from worker.load.recording import RecordedRecord
from worker.load.report import ReplayReport

pytestmark = pytest.mark.asyncio(loop_scope="session")

Judge = Callable[[Row], None]
Ways = Callable[[], AbstractAsyncContextManager[tuple[Mode, TcpProxy, TcpProxy]]]
"""A mode whose Redis and Neo4j are reached through these two."""

DEADLINE_MS = 3_000
LONG_FILE = "def step_{number}_{line}(value):\n    return [value, {line}]\n\n\n"
STATE_LAYERS = ("mission", "plan", "memory", "artifacts")


@dataclass(frozen=True, kw_only=True)
class Hole:
    """One thing that never answers."""

    name: str
    falls: Callable[[], AbstractAsyncContextManager[object]]
    """Within this context it is one."""
    layers: Mapping[str, set[Said]]
    """By layer that must say so, what it may say."""
    full: tuple[str, ...] = ()
    """Layers that have nothing to do with it, and of which all is there."""
    dependent: tuple[str, ...] = ()
    """Layers that need what the graph said, and get it late or not at all."""
    more: dict[str, Any] = field(default_factory=dict[str, Any])
    """What its requests have beside the others."""
    file: Callable[[int], str] = lambda _: "src/shop.py"
    """Of whose source each of its requests asks."""
    other_thread: bool = False
    """Each request has a thread of its own, of which the worker has read nothing yet."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """A worker with state, graph and source, every way to them led through here."""

    mode: Mode
    project: str
    root: Path
    redis: TcpProxy
    neo4j: TcpProxy
    worker: WorkerProcess
    probe: Probe


@pytest.fixture
def ways(
    namespace: str, kafka_bootstrap: str, neo4j_auth: tuple[str, str], redis_url: str, neo4j_url: str
) -> Ways:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[tuple[Mode, TcpProxy, TcpProxy]]:
        async with TcpProxy(redis_url) as redis, TcpProxy(neo4j_url) as neo4j:
            mode = services_mode(
                kafka_bootstrap,
                namespace=namespace,
                redis_url=redis.url,
                neo4j_url=neo4j.url,
                neo4j_auth=neo4j_auth,
            )
            # A crowded machine must not look like a worker that is gone: no session is at stake here.
            yield replace(mode, session_timeout_ms=30_000), redis, neo4j

    return opened


@asynccontextmanager
async def prepared(
    ways: Ways,
    swipl: Path,
    project: str,
    folder: Path,
) -> AsyncGenerator[Ground]:
    root = folder / "tree"
    (root / "src").mkdir(parents=True)
    (root / "src" / "shop.py").write_text(FILES["src/shop.py"])
    for number in range(SIZES.hole_requests):
        text = "".join(LONG_FILE.format(number=number, line=line) for line in range(400))
        (root / "src" / f"long_{number}.py").write_text(text)
    async with ways() as (mode, redis, neo4j), Topics(mode), workers(mode, folder) as start:
        worker = await start(
            WORKER_LOG_FORMAT="json",
            WORKER_CONTENT__ROOTS=json.dumps({project: [str(root)]}),
            WORKER_GRAPH__PROLOG=str(swipl),
        )
        probe = await Probe.of(worker)
        await probe.until_ready(ready=True)
        await tell(mode, project)
        yield Ground(
            mode=mode, project=project, root=root, redis=redis, neo4j=neo4j, worker=worker, probe=probe
        )


async def tell(mode: Mode, project: str) -> None:
    """A graph, and a memory in each thread; returns when all of it is known."""
    threads = ["t", *(f"t{number}" for number in range(SIZES.hole_requests))]
    async with ContextClient([mode.bootstrap], topic_prefix=mode.prefix) as client:
        for thread in threads:
            event = {
                "event_id": f"e-{thread}",
                "event": "memory",
                "project_id": project,
                "thread_id": thread,
                "occurred_at": "2026-01-02T03:04:05Z",
                "body": {"id": f"m-{thread}", "text": "Retries are capped."},
            }
            value = json.dumps(event).encode()
            await client.publish_raw(value, key=project.encode(), topic=f"{mode.prefix}state")
        files = tuple(SyncFile(path=path, content=text) for path, text in FILES.items())
        sync = SyncRequest(sync_id="s", project_id=project, files=files)
        synced = await client.sync(sync, timeout_seconds=120)
        assert isinstance(synced, SyncResult), synced
        after = {
            "event_ids": [f"e-{thread}" for thread in threads],
            "graph_version": synced.graph_version,
        }
        async with asyncio.timeout(PATIENCE_SECONDS):
            for number in count():
                if await is_known(client, project, after=after, number=number):
                    return


async def is_known(client: ContextClient, project: str, *, after: dict[str, Any], number: int) -> bool:
    """Whether a bundle shows all of it; on a crowded machine one may not, and the next one does."""
    known = await client.assemble(
        AssemblyRequest.model_validate(
            {
                "request_id": f"knows-{number}",
                "project_id": project,
                "thread_id": "t",
                "volk": "smith",
                "subject": "implement",
                "user_message": "What calls charge_order?",
                # Prolog runs then, and hangs later as one that runs.
                "relevance": "prolog",
                "after": after,
                "deadline_ms": 60_000,
                "layer_timeouts_ms": dict.fromkeys(CONTENT_LAYERS, 50_000),
            }
        ),
        timeout_seconds=PATIENCE_SECONDS,
    )
    assert isinstance(known, ContextBundle)
    assert known.layers is not None
    return {known.layers[layer].status for layer in ("graph", "memory")} <= {"ok", "trimmed"}


def asking(ground: Ground, hole: Hole) -> list[RecordedRecord]:
    """Requests that ask every source for something, each with a deadline and no other limit."""
    return [
        RecordedRecord(
            partition=number % 12,
            timestamp_ms=int(datetime.now(UTC).timestamp() * 1_000),
            key=ground.project.encode(),
            value=json.dumps(
                {
                    "request_id": f"r{number}",
                    "project_id": ground.project,
                    "thread_id": f"t{number}" if hole.other_thread else "t",
                    "volk": "smith",
                    "subject": "implement",
                    "user_message": f"Why does charge_order in src/shop.py call retry_payment? {number}",
                    "deadline_ms": DEADLINE_MS,
                    "layer_timeouts_ms": dict.fromkeys(CONTENT_LAYERS, DEADLINE_MS),
                    "payload": {"project_dir": str(ground.root), "files_created": [hole.file(number)]},
                    "include": ["messages", "layers", "usage"],
                    **hole.more,
                }
            ).encode(),
        )
        for number in range(SIZES.hole_requests)
    ]


@asynccontextmanager
async def frozen(way: TcpProxy) -> AsyncGenerator[None]:
    way.freeze()
    try:
        yield
    finally:
        way.thaw()


@asynccontextmanager
async def state_swallowed(redis: TcpProxy) -> AsyncGenerator[None]:
    """The connection of the hot cache alone: outcomes go to the same server."""
    redis.swallow(lambda data: b":state:" in data)
    try:
        yield
    finally:
        assert redis.swallowed
        redis.thaw()


def holes(ground: Ground) -> list[Hole]:
    away: set[Said] = {
        ("failed", reason) for reason in ("graph_unavailable", "state_unavailable", "memory_unavailable")
    }
    late: set[Said] = {("failed", "timeout"), ("failed", "abandoned")}
    process_id = ground.worker.process.pid
    return [
        Hole(
            name="hot cache (Redis)",
            falls=lambda: state_swallowed(ground.redis),
            layers={},
            full=("memory", "graph", "ast"),
            other_thread=True,
        ),
        Hole(
            name="relevance (SWI-Prolog)",
            falls=lambda: halting(process_id, "swipl"),
            # One whose rules were given up in time, or one whose time went into starting them again.
            layers={"graph": {("partial", "relevance_unavailable")} | late},
            full=("memory", "ast"),
            dependent=("semantic", "task"),
            more={"relevance": "prolog"},
        ),
        Hole(
            name="AST (the parsing process)",
            falls=lambda: halting(process_id, "extracting_process"),
            # The long files are in the tree and not in the graph, which says so.
            layers={"ast": late, "graph": {("partial", "not_indexed")}},
            full=("memory",),
            file=lambda number: f"src/long_{number}.py",
        ),
        Hole(
            name="graph and state (Neo4j)",
            falls=lambda: frozen(ground.neo4j),
            # Of the signals only those that stand in the graph are missing.
            layers={
                **dict.fromkeys(("graph", *STATE_LAYERS), away | late),
                "ast": {("partial", "section_error")},
            },
            dependent=("semantic", "task"),
        ),
    ]


async def test_a_source_that_never_answers_costs_its_layers_and_no_more_than_the_deadline(
    ways: Ways,
    swipl: Path,
    namespace: str,
    judge: Judge,
    tmp_path: Path,
) -> None:
    async with prepared(ways, swipl, f"p-{namespace}", tmp_path) as ground, Topics(ground.mode) as topics:
        for hole in holes(ground):
            began = time.monotonic()
            async with hole.falls():
                report = await load(
                    ground.mode, tmp_path, asking(ground, hole), rate_per_second=SIZES.hole_rate
                )
            events = await usage_of(report, topics)
            spent = sorted(event["timings_ms"]["total"] for event in events)
            p99_ms = spent[min(len(spent) - 1, int(0.99 * len(spent)))]
            note = f"p99 of the work {p99_ms:,.0f} ms of {DEADLINE_MS:,}"
            judge(row_of(f"black hole: {hole.name}", report, began=began, note=note))
            assert len(events) == SIZES.hole_requests
            assert (
                contradictions(
                    hole.layers, hole.full, events, deadline_ms=DEADLINE_MS, dependent=hole.dependent
                )
                == []
            ), hole.name
            if SIZES is LONG:
                assert p99_ms <= DEADLINE_MS * (1 + MOST_LATE_SHARE), spent
        assert await ground.probe.metric("context_state_cache_total", result="unavailable") > 0
        await ground.probe.until_ready(ready=True)
        await until_whole_again(ground, tmp_path)


async def until_whole_again(ground: Ground, folder: Path) -> None:
    """Return when bundles are complete; on a crowded machine not all of the next ones are."""
    patient = {"deadline_ms": 60_000, "layer_timeouts_ms": dict.fromkeys(CONTENT_LAYERS, 50_000)}
    none = Hole(name="none", falls=nullcontext, layers={}, more=patient)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            healed = await load(ground.mode, folder, asking(ground, none)[:1])
            if healed.measures.outcomes["complete"]:
                return


async def usage_of(report: ReplayReport, topics: Topics) -> list[dict[str, Any]]:
    """The usage events of one load, one for each request."""
    found = (json.loads(record.value) for record in (await topics.read_all("usage")).records)
    own = {event["request_id"]: event for event in found if event["request_id"].startswith(f"{report.run}:")}
    return list(own.values())


async def test_an_outcome_store_that_never_answers_delays_everything_and_costs_nothing(
    ways: Ways,
    judge: Judge,
    tmp_path: Path,
) -> None:
    async with ways() as (mode, redis, _), Topics(mode) as topics, workers(mode, tmp_path) as start:
        worker = await start(WORKER_LOG_FORMAT="json")
        probe = await Probe.of(worker)
        await probe.until_ready(ready=True)
        began = time.monotonic()
        async with frozen(redis):
            records = generate(Traffic(requests=SIZES.hole_requests))
            loading = asyncio.create_task(load(mode, tmp_path, records))
            await probe.until_ready(ready=False, reason="outcome_store_away")
            assert await probe.is_live()
            await probe.until_metric("context_partitions_paused", bool, cause="store")
            assert (await topics.read_all("bundles")).records == []
        await probe.until_ready(ready=True)
        report = await loading
        # The topics that wait for more than that store ask for it less often.
        await probe.until_metric("context_partitions_paused", lambda paused: not paused, cause="store")
    judge(row_of("black hole: outcome store (Redis)", report, began=began))
