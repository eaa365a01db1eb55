"""What a second worker brings, and what a flood of one project costs another: ratios within one run."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bench.conftest import Report
from tests.support.cluster import Mode, Topics, embedded_mode, longer_than, request, workers
from worker.kafka.embedded import EmbeddedBroker

BACKLOG = 3_000
PARTITIONS = 12
FLOOD = 10_000
"""More than the worker works off while the quiet project is measured."""
QUIET = 50
"""Requests of the project that another one disturbs, one at a time."""
MESSAGE = "Explain why the retry loop in the payment client ignores its deadline, and mend it. " * 24

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]


@dataclass(frozen=True, slots=True)
class Moment:
    """CPU seconds so far: of the workers, and of the whole machine."""

    wall: float
    workers: float
    machine: float


def moment(pids: Iterable[int]) -> Moment:
    tick = os.sysconf("SC_CLK_TCK")
    used = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        used += (int(fields[11]) + int(fields[12])) / tick
    user, nice, system, *_ = map(int, Path("/proc/stat").read_text().split(maxsplit=8)[1:8])
    return Moment(time.monotonic(), used, (user + nice + system) / tick)


def mode_of(broker: EmbeddedBroker, name: str, folder: Path, **settings: str) -> Mode:
    return embedded_mode(
        broker.bootstrap_servers,
        namespace=name,
        folder=folder / name,
        session_timeout_ms=10_000,
        WORKER_LOG_LEVEL="warning",
        **settings,
    )


async def publish(topics: Topics, count: int, *, project: str = "p{}", partition: int | None = None) -> None:
    """A backlog, spread evenly over the partitions where it names none."""
    for start in range(0, count, 100):
        await asyncio.gather(
            *(
                topics.send(
                    request(number, project=project.format(number % PARTITIONS), user_message=MESSAGE),
                    key=project.format(number % PARTITIONS),
                    partition=number % PARTITIONS if partition is None else partition,
                )
                for number in range(start, start + 100)
            )
        )


async def drained(mode: Mode, folder: Path, *, count: int) -> tuple[float, float, float]:
    """Bundles a second, and CPU seconds a bundle of the workers and of the rest of the machine.

    From the first third of the backlog, when every worker has its partitions, to nine tenths.
    """
    async with Topics(mode) as topics, workers(mode, folder) as start:
        await publish(topics, BACKLOG)
        pids = [(await start()).process.pid for _ in range(count)]
        await topics.read_until("bundles", longer_than(BACKLOG // 3))
        first, begun = moment(pids), len((await topics.read_all("bundles")).records)
        await topics.read_until("bundles", longer_than(BACKLOG * 9 // 10))
        last, ended = moment(pids), len((await topics.read_all("bundles")).records)
    bundles = ended - begun
    used = last.workers - first.workers
    rest = last.machine - first.machine - used
    return bundles / (last.wall - first.wall), used / bundles, rest / bundles


async def test_two_workers_over_one(
    embedded: EmbeddedBroker,
    namespace: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    report: Report,
) -> None:
    rates: dict[int, tuple[float, float, float]] = {}
    for count in (1, 2):
        mode = mode_of(embedded, f"{namespace}{count}", tmp_path)
        rates[count] = await drained(mode, tmp_path, count=count)
    (one, cpu_one, rest_one), (two, cpu_two, rest_two) = rates[1], rates[2]
    cores = os.cpu_count() or 1
    lines = [f"a backlog of {BACKLOG:,} requests on {PARTITIONS} partitions, {cores} cores"]
    for count, (rate, cpu, rest) in rates.items():
        lines.append(
            f"  {count} worker(s) {rate:7.0f} bundles/s; for each bundle {cpu * 1e6:6.0f} us of a worker and"
            f" {rest * 1e6:6.0f} us of broker, client and others"
        )
    lines += [
        f"  two over one {two / one:.2f} on this machine",
        f"  two over one {2 * cpu_one / cpu_two:.2f} where each has a core of its own (to reach: 1.8)",
        f"  all that work fills these cores at {cores / (cpu_two + rest_two):.0f} bundles/s",
    ]
    with capsys.disabled():
        print("\n" + "\n".join(lines))  # noqa: T201
    assert min(one, two, cpu_one, cpu_two, rest_one, rest_two) > 0
    report("two workers over one, broker and client on the same cores", two / one, "x", at_least=1.8)


async def milliseconds(topics: Topics, first: int) -> list[float]:
    """How long each request of the quiet project took, one after the other; sorted."""
    took: list[float] = []
    for number in range(first, first + QUIET):
        wanted = f'"r{number}"'.encode()
        before = time.monotonic()
        await topics.send(request(number, project="quiet", user_message=MESSAGE), key="quiet", partition=1)
        await topics.read_until(
            "bundles",
            lambda seen, wanted=wanted: any(wanted in record.value for record in seen.records[-200:]),
        )
        took.append((time.monotonic() - before) * 1_000)
    return sorted(took)


async def test_another_project_beside_a_flood(
    embedded: EmbeddedBroker,
    namespace: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    report: Report,
) -> None:
    lines: list[str] = []
    for share in (64, 16, 1):
        mode = mode_of(
            embedded, f"{namespace}s{share}", tmp_path, WORKER_KAFKA__MAX_IN_FLIGHT_PER_PROJECT=str(share)
        )
        async with Topics(mode) as topics, workers(mode, tmp_path) as start:
            await start()
            await milliseconds(topics, 500_000)  # connections and caches are warm after these
            alone = await milliseconds(topics, 1_000_000)
            await publish(topics, FLOOD, project="flood", partition=0)
            beside = await milliseconds(topics, 2_000_000)
            flood = sum(b'"flood"' in one.value for one in (await topics.read_all("bundles")).records)
        assert flood < FLOOD, "the flood ended before what it should disturb"
        middle, late = QUIET // 2, QUIET * 98 // 100
        report(
            f"p98 of a quiet project beside a flood with {share} in work, over the same alone",
            beside[late] / alone[late],
            "x",
            at_most=1.2,
        )
        lines.append(
            f"  {share:2} in work: p50 {beside[middle]:5.0f} ms, {beside[middle] / alone[middle]:5.2f} times"
            f" what it is alone; p98 {beside[late]:5.0f} ms, {beside[late] / alone[late]:5.2f} times"
        )
    with capsys.disabled():
        print("\na request of another project on another partition, beside a flood with so many")  # noqa: T201
        print("\n".join(lines))  # noqa: T201
