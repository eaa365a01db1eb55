"""Worker CPU per request with trivial providers, as a ratio over a plain loop in the same run."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.cluster import ROOT, Mode, Topics, request, workers
from worker.kafka.connection import KafkaConnection
from worker.kafka.embedded import EmbeddedBroker
from worker.kafka.topics import ensure_topics

REQUESTS = 3_000
MESSAGE = "Explain why the retry loop in the payment client ignores its deadline, and mend it. " * 24

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]


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


async def microseconds_per_request(pid: int, topics: Topics) -> float:
    """CPU of the process from the first answered request to the last."""
    await topics.send(request(-1))
    await topics.read_until("bundles", lambda p: len(p.records) >= 1)
    before = cpu_seconds(pid)
    # Offered at a pace, as traffic is; a backlog would flatter whoever batches most.
    for start in range(0, REQUESTS, 50):
        await asyncio.gather(
            *(
                topics.send(request(n, subject="chat", user_message=MESSAGE), key=f"p{n}")
                for n in range(start, start + 50)
            )
        )
    await topics.read_until("bundles", lambda p: len(p.records) > REQUESTS, seconds=120)
    return (cpu_seconds(pid) - before) / REQUESTS * 1e6


async def test_worker_cpu_over_a_plain_loop(
    embedded: EmbeddedBroker, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures: dict[str, float] = {}
    for kind in ("bare", "full", "worker"):
        mode = Mode(
            name="embedded",
            bootstrap=embedded.bootstrap_servers,
            prefix=f"{namespace}{kind}.",
            group=f"g-{namespace}",
            environment={
                "WORKER_KAFKA__IDEMPOTENT_PRODUCER": "false",
                "WORKER_OUTCOMES__SQLITE_PATH": str(tmp_path / "worker.db"),
                "WORKER_LOG_LEVEL": "warning",
            },
        )
        connection = KafkaConnection(bootstrap_servers=(mode.bootstrap,))
        await ensure_topics(connection, prefix=mode.prefix, replication_factor=1)
        async with Topics(mode) as topics:
            if kind == "worker":
                async with workers(mode, tmp_path) as start:
                    worker = await start()
                    figures[kind] = await microseconds_per_request(worker.process.pid, topics)
            else:
                async with plain_loop(kind, mode, tmp_path) as pid:
                    figures[kind] = await microseconds_per_request(pid, topics)
    with capsys.disabled():
        print(f"\nCPU per request ({REQUESTS} requests of {len(MESSAGE)} characters)")  # noqa: T201
        for kind, figure in figures.items():
            print(f"  {kind:8} {figure:8.0f} us")  # noqa: T201
        print(f"  worker / full loop {figures['worker'] / figures['full']:.2f} (to reach: 1.7)")  # noqa: T201
        print(f"  worker / bare loop {figures['worker'] / figures['bare']:.2f}")  # noqa: T201
    assert all(figure > 0 for figure in figures.values())
