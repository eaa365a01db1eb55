"""Everything that the worker talks to is away when it starts, and again in the middle of work.

It waits, says so, and loses nothing. Both ways to run at the same time: almost all of it is waiting.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import pytest

from tests.faults.sizes import SIZES
from tests.faults.table import Row, row_of
from tests.support.cluster import ROOT, Mode, Topics, embedded_mode, longer_than, workers
from tests.support.probing import Probe, until_logged
from tests.support.replaying import load
from tests.support.tcp_proxy import TcpProxy
from worker.kafka.embedded import EmbeddedBroker, embedded_broker
from worker.load.generator import Traffic, generate
from worker.load.recording import RecordedRecord
from worker.load.report import ReplayReport

pytestmark = pytest.mark.asyncio(loop_scope="session")

Judge = Callable[[Row], None]
Act = Callable[[], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Outage:
    """One way for all of it to be away."""

    begin: Act
    end: Act


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What a worker stands on, and is not there yet."""

    mode: Mode
    come: Act
    outages: tuple[Outage, ...]


@asynccontextmanager
async def embedded_ground(namespace: str, folder: Path, port: int) -> AsyncGenerator[Ground]:
    """The embedded broker, frozen for the outage: it keeps its records in memory."""
    async with AsyncExitStack() as stack:
        entered: list[EmbeddedBroker] = []

        async def come() -> None:
            entered.append(await stack.enter_async_context(embedded_broker(port=port)))

        async def freeze() -> None:
            entered[0].pause()

        async def thaw() -> None:
            entered[0].resume()

        mode = embedded_mode(f"127.0.0.1:{port}", namespace=namespace, folder=folder)
        yield Ground(mode=mode, come=come, outages=(Outage(begin=freeze, end=thaw),))


@asynccontextmanager
async def services_ground(behind: Mode, folder: Path) -> AsyncGenerator[Ground]:
    """A real Kafka of the test's own, and ways to Redis and Neo4j; ended, and another time black holes.

    To who connects, a server behind a cut way is one that was ended; others use these two meanwhile.
    """

    def services(*arguments: str) -> str:
        command = [sys.executable, str(ROOT / "infra" / "services.py"), "--dir", str(folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=200).stdout

    redis_url = behind.environment["WORKER_OUTCOMES__REDIS_URL"]
    neo4j_url = behind.environment["WORKER_GRAPH__NEO4J_URL"]
    async with TcpProxy(redis_url) as redis, TcpProxy(neo4j_url) as neo4j:
        ways = (redis, neo4j)

        async def come() -> None:
            await asyncio.gather(
                asyncio.to_thread(services, "start", "kafka"), *(way.listen() for way in ways)
            )

        async def leave() -> None:
            for way in ways:
                await way.refuse()
            await asyncio.to_thread(services, "stop", "kafka")

        async def freeze() -> None:
            for way in ways:
                way.freeze()
            await asyncio.to_thread(services, "pause", "kafka")

        async def thaw() -> None:
            await asyncio.to_thread(services, "continue", "kafka")
            for way in ways:
                way.thaw()

        await asyncio.to_thread(services, "up", "kafka")
        try:
            lines = (await asyncio.to_thread(services, "env")).splitlines()
            exported = dict(line.removeprefix("export ").split("=", 1) for line in lines)
            await leave()
            cut = {"WORKER_OUTCOMES__REDIS_URL": redis.url, "WORKER_GRAPH__NEO4J_URL": neo4j.url}
            mode = replace(
                behind, bootstrap=exported["CONTEXT_TEST_KAFKA"], environment=behind.environment | cut
            )
            yield Ground(
                mode=mode,
                come=come,
                outages=(Outage(begin=leave, end=come), Outage(begin=freeze, end=thaw)),
            )
        finally:
            await asyncio.to_thread(services, "down", "kafka")


async def outlive(ground: Ground, folder: Path) -> Row:
    """A cold start without anything, then each outage in the middle of work; the row of it all."""
    share = SIZES.load_requests // 2
    records = generate(Traffic(requests=share * (1 + len(ground.outages))))
    reports: list[ReplayReport] = []
    began = time.monotonic()
    async with workers(ground.mode, folder) as start:
        worker = await start(WORKER_LOG_FORMAT="json")
        waits = await until_logged(worker, "broker.awaited", times=4)
        pauses = [float(str(wait["retry_seconds"])) for wait in waits]
        assert pauses == sorted(pauses)
        assert pauses[-1] > pauses[0]
        probe = await Probe.of(worker)
        await probe.until_ready(ready=False, reason="broker_away")
        assert await probe.is_live()
        await ground.come()
        async with Topics(ground.mode) as topics:
            await probe.until_ready(ready=True)
            for outage in ground.outages:
                batch = islice(records, share)
                reports.append(
                    await outlast(outage, ground.mode, batch, topics=topics, probe=probe, folder=folder)
                )
            reports.append(await load(ground.mode, folder, records))
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
    note = f"cold start, then {len(ground.outages)} times {SIZES.outage_seconds:g} s"
    return row_of(f"all services away, {ground.mode.name}", *reports, began=began, note=note)


async def outlast(
    outage: Outage,
    mode: Mode,
    records: Iterable[RecordedRecord],
    *,
    topics: Topics,
    probe: Probe,
    folder: Path,
) -> ReplayReport:
    """What became of the records, in the middle of which all was away."""
    had = len((await topics.read_all("bundles")).records)
    loading = asyncio.create_task(load(mode, folder, records))
    await topics.read_until("bundles", longer_than(had))
    await outage.begin()
    left_at = time.monotonic()
    await probe.until_ready(ready=False, reason="broker_away")
    await asyncio.sleep(max(0.0, left_at + SIZES.outage_seconds - time.monotonic()))
    assert await probe.is_live()
    assert (await probe.ask("/readyz"))[0] != 200
    await outage.end()
    await probe.until_ready(ready=True)
    return await loading


async def test_what_is_away_at_the_start_and_in_the_middle_costs_nothing(
    namespace: str,
    services_at: Callable[[str], Mode],
    judge: Judge,
    tmp_path: Path,
    unused_tcp_port: int,
) -> None:
    folders = [tmp_path / "embedded", tmp_path / "services"]
    for folder in folders:
        folder.mkdir()
    async with (
        embedded_ground(namespace, folders[0], unused_tcp_port) as small,
        services_ground(services_at(""), tmp_path / "own") as large,
    ):
        rows = await asyncio.gather(outlive(small, folders[0]), outlive(large, folders[1]))
    for row in rows:
        judge(row)
