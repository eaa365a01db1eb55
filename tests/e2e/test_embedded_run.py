"""`run --embedded` as a process of its own: one command, which lives as long as its broker."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.cluster import WorkerProcess
from tests.support.nursery import nursery
from tests.support.probing import Probe, logged
from tests.support.processes import children, gone

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]


@asynccontextmanager
async def running(folder: Path) -> AsyncGenerator[WorkerProcess]:
    """One that takes records; it is ended on the way out."""
    environment = {
        "PATH": os.environ["PATH"],
        "WORKER_OUTCOMES__SQLITE_PATH": str(folder / "outcomes.db"),
        "WORKER_GRAPH__SQLITE_PATH": str(folder / "graph.db"),
        "WORKER_STATE__SQLITE_PATH": str(folder / "state.db"),
        "WORKER_HTTP__PORT": "0",
        "WORKER_LOG_FORMAT": "json",
    }
    log = folder / "worker.log"
    process = await nursery().start(environment, log, ("-m", "worker", "run", "--embedded"))
    worker = WorkerProcess(process=process, log=log)
    try:
        await (await Probe.of(worker)).until_ready(ready=True)
        yield worker
    finally:
        process.kill()
        await process.wait()


def broker_of(worker: WorkerProcess) -> int:
    """The process id of its broker."""
    (broker,) = (
        child
        for child in children(worker.process.pid)
        if Path(f"/proc/{child}/exe").readlink().name == "tansu"
    )
    return broker


async def test_the_worker_ends_with_its_broker_and_says_what_is_gone(tmp_path: Path) -> None:
    async with running(tmp_path) as worker:
        os.kill(broker_of(worker), signal.SIGKILL)
        assert await worker.ended() == 1
    (said,) = logged(worker, "broker.ended")
    assert (said["level"], said["status"]) == ("error", -signal.SIGKILL)
    assert said["reason"] == "the embedded broker has ended, and its records are gone with it"


async def test_the_broker_ends_with_its_worker_and_that_is_no_failure(tmp_path: Path) -> None:
    async with running(tmp_path) as worker:
        with gone(broker_of(worker)):
            worker.signal(signal.SIGTERM)
            assert await worker.ended() == 0
    assert logged(worker, "broker.ended") == []
