"""Worker CPU per request with trivial providers, as ratios over plain loops in the same run.

*The plain loop* that the bounds are for is `full`: the same contractual work, its puts, its sending and its
commits batched as well as can be. It is the harder of the two that one may mean. `plain` takes one record
after the other and awaits each acknowledgement, as somebody writes it who has not thought of batches; most
of what it takes is waiting, so whoever batches beats it. `bare` only passes records on. `plain_loop` says
what each does. The ratios over all three are reported, and the bound stands at `full` alone.

All four run at once and are offered requests in turn, so that what else the machine does falls on each of
them; a ratio is the median of those within a round. The first round warms up and is not counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.bench.conftest import Report
from tests.support.cluster import ROOT, Mode, Topics, embedded_mode, longer_than, request, workers
from worker.kafka.embedded import EmbeddedBroker

ROUNDS, WARM_UP = 6, 1
REQUESTS = 300
"""Offered to each in a round."""
ONE_BY_ONE = 100
"""To the loop that takes them one at a time, which is slow."""
MESSAGE = "Explain why the retry loop in the payment client ignores its deadline, and mend it. " * 24

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def plain_loop(kind: str, mode: Mode, tmp_path: Path) -> AsyncGenerator[int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.plain_loop",
        kind,
        mode.bootstrap,
        mode.prefix,
        str(tmp_path / f"{kind}.db"),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process.pid
    finally:
        process.kill()
        await process.wait()


@dataclass(kw_only=True)
class Loop:
    """One of those that are compared, and what it took so far."""

    pid: int
    topics: Topics
    requests: int
    answered: int = 0
    microseconds: list[float] = field(default_factory=list[float])

    async def take(self) -> None:
        """Offer one round of requests, and take down the CPU of the process until all are answered."""
        before, first = cpu_seconds(self.pid), self.answered
        # Offered at a pace, as traffic is; a backlog would flatter whoever batches most.
        for start in range(first, first + self.requests, 50):
            await asyncio.gather(
                *(
                    self.topics.send(request(n, subject="chat", user_message=f"{n}: {MESSAGE}"), key=f"p{n}")
                    for n in range(start, start + 50)
                )
            )
        self.answered += self.requests
        await self.topics.read_until("bundles", longer_than(self.answered - 1))
        self.microseconds.append((cpu_seconds(self.pid) - before) / self.requests * 1e6)


def without_times(value: bytes) -> dict[str, Any]:
    """A published value as it is on every run."""
    body = json.loads(value)
    return {
        name: item
        for name, item in body.items()
        if name not in {"timestamp", "timings_ms", "assembled_at", "receipt"}
    }


async def published(loop: Loop) -> list[dict[str, Any]]:
    """The bundle and the usage event of the last request, as the plain loop must write them too."""
    await loop.topics.read_until("usage", longer_than(loop.answered - 1))
    found: list[dict[str, Any]] = []
    for topic in ("bundles", "usage"):
        records = (await loop.topics.read_all(topic)).records
        found += [
            without_times(record.value)
            for record in records
            if b'"r%d"' % (ROUNDS * REQUESTS - 1) in record.value
        ]
    return found


async def step_milliseconds(topics: Topics) -> dict[str, float]:
    """What the steps of a request took, in the median, as the worker's usage events say."""
    timings = [json.loads(record.value)["timings_ms"] for record in (await topics.read_all("usage")).records]
    return {step: median(one[step] for one in timings) for step in timings[-1]}


@asynccontextmanager
async def started(kind: str, mode: Mode, folder: Path) -> AsyncGenerator[int]:
    """The process id of the worker or of a plain loop."""
    if kind == "worker":
        async with workers(mode, folder) as start:
            yield (await start()).process.pid
    else:
        async with plain_loop(kind, mode, folder) as pid:
            yield pid


async def test_worker_cpu_over_a_plain_loop(
    embedded: EmbeddedBroker,
    namespace: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    report: Report,
) -> None:
    loops: dict[str, Loop] = {}
    async with AsyncExitStack() as stack:
        for kind in ("bare", "plain", "full", "worker"):
            mode = embedded_mode(
                embedded.bootstrap_servers,
                namespace=f"{namespace}{kind}",
                folder=tmp_path / kind,
                session_timeout_ms=10_000,
                WORKER_LOG_LEVEL="warning",
            )
            topics = await stack.enter_async_context(Topics(mode))
            pid = await stack.enter_async_context(started(kind, mode, tmp_path))
            loops[kind] = Loop(pid=pid, topics=topics, requests=ONE_BY_ONE if kind == "plain" else REQUESTS)
        for _ in range(ROUNDS):
            for loop in loops.values():
                await loop.take()
        answers = {kind: await published(loops[kind]) for kind in ("full", "worker")}
        steps = await step_milliseconds(loops["worker"].topics)
    measured = {kind: loop.microseconds[WARM_UP:] for kind, loop in loops.items()}
    with capsys.disabled():
        print(f"\nCPU per request of {len(MESSAGE)} characters, by rounds of {REQUESTS}")  # noqa: T201
        for kind, found in measured.items():
            print(f"  {kind:8} {' '.join(f'{one:7.0f}' for one in found)} us")  # noqa: T201
        for step, milliseconds in steps.items():
            print(f"    of it {step:8} {1_000 * milliseconds:8.0f} us by the clock")  # noqa: T201
    for kind, most in (("full", 1.5), ("plain", None), ("bare", None)):
        ratios = [mine / other for mine, other in zip(measured["worker"], measured[kind], strict=True)]
        report(f"worker CPU a request over a {kind} aiokafka loop", median(ratios), "x", at_most=most)
    assert all(figure > 0 for found in measured.values() for figure in found)
    assert answers["full"] == answers["worker"]
