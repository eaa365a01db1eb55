"""Worker CPU per request with trivial providers, as a ratio over a plain loop in the same run."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import ROOT, Mode, Topics, request, workers
from worker.kafka.connection import KafkaConnection
from worker.kafka.embedded import EmbeddedBroker
from worker.kafka.topics import ensure_topics

REQUESTS = 3_000
ONE_BY_ONE = 600
"""Requests of the loop that takes them one at a time, which is soon known and slow."""
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


async def microseconds_per_request(pid: int, topics: Topics, *, requests: int = REQUESTS) -> float:
    """CPU of the process from the first answered request to the last."""
    await topics.send(request(-1))
    await topics.read_until("bundles", lambda p: len(p.records) >= 1)
    before = cpu_seconds(pid)
    # Offered at a pace, as traffic is; a backlog would flatter whoever batches most.
    for start in range(0, requests, 50):
        await asyncio.gather(
            *(
                topics.send(request(n, subject="chat", user_message=MESSAGE), key=f"p{n}")
                for n in range(start, start + 50)
            )
        )
    await topics.read_until("bundles", lambda p: len(p.records) > requests, seconds=120)
    return (cpu_seconds(pid) - before) / requests * 1e6


def without_times(value: bytes) -> dict[str, Any]:
    """A published value as it is on every run."""
    body = json.loads(value)
    return {
        name: item
        for name, item in body.items()
        if name not in {"timestamp", "timings_ms", "assembled_at", "receipt"}
    }


async def published(topics: Topics) -> list[dict[str, Any]]:
    """The bundle and the usage event of the last request, as the plain loop must write them too."""
    await topics.read_until("usage", lambda p: len(p.records) > REQUESTS, seconds=60)
    found: list[dict[str, Any]] = []
    for topic in ("bundles", "usage"):
        records = (await topics.read_all(topic)).records
        found += [
            without_times(record.value) for record in records if b'"r%d"' % (REQUESTS - 1) in record.value
        ]
    return found


async def test_worker_cpu_over_a_plain_loop(
    embedded: EmbeddedBroker, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures: dict[str, float] = {}
    answers: dict[str, list[dict[str, Any]]] = {}
    for kind in ("bare", "plain", "full", "worker"):
        mode = Mode(
            name="embedded",
            bootstrap=embedded.bootstrap_servers,
            prefix=f"{namespace}{kind}.",
            group=f"g-{namespace}",
            session_timeout_ms=10_000,
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
                    answers[kind] = await published(topics)
            else:
                async with plain_loop(kind, mode, tmp_path) as pid:
                    requests = ONE_BY_ONE if kind == "plain" else REQUESTS
                    figures[kind] = await microseconds_per_request(pid, topics, requests=requests)
                    if kind == "full":
                        answers[kind] = await published(topics)
    with capsys.disabled():
        print(f"\nCPU per request ({REQUESTS} requests of {len(MESSAGE)} characters)")  # noqa: T201
        for kind, figure in figures.items():
            print(f"  {kind:8} {figure:8.0f} us")  # noqa: T201
        print(f"  worker / full loop {figures['worker'] / figures['full']:.2f} (to reach: 1.7)")  # noqa: T201
        for kind in ("plain", "bare"):
            print(f"  worker / {kind} loop {figures['worker'] / figures[kind]:.2f}")  # noqa: T201
    assert all(figure > 0 for figure in figures.values())
    assert answers["full"] == answers["worker"]
