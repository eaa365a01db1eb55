"""The broker is away when the worker starts, and again for 70 seconds: it waits, says so, loses nothing.

Both ways to run at the same time, in a file of its own: almost all of it is waiting.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cluster import (
    ROOT,
    Mode,
    Topics,
    WorkerProcess,
    assert_each_ended_once,
    covers,
    embedded_mode,
    request,
    workers,
)
from worker.kafka.embedded import EmbeddedBroker, embedded_broker

pytestmark = [pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="session")]

OUTAGE_SECONDS = 70

Act = Callable[[], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Broker:
    """A broker that is not there yet."""

    bootstrap: str
    begin: Act
    leave: Act
    come_back: Act


@asynccontextmanager
async def tansu(port: int) -> AsyncGenerator[Broker]:
    """The embedded broker, frozen for the outage: it keeps its records in memory."""
    async with AsyncExitStack() as stack:
        entered: list[EmbeddedBroker] = []

        async def begin() -> None:
            entered.append(await stack.enter_async_context(embedded_broker(port=port)))

        async def leave() -> None:
            entered[0].pause()

        async def come_back() -> None:
            entered[0].resume()

        yield Broker(bootstrap=f"127.0.0.1:{port}", begin=begin, leave=leave, come_back=come_back)


@asynccontextmanager
async def kafka(folder: Path) -> AsyncGenerator[Broker]:
    """A real Kafka of the test's own, ended for the outage and started again."""

    def services(*arguments: str) -> str:
        command = [sys.executable, str(ROOT / "infra" / "services.py"), "--dir", str(folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=200).stdout

    def act(command: str) -> Act:
        async def run() -> None:
            await asyncio.to_thread(services, command, "kafka")

        return run

    await act("up")()
    try:
        exported = dict(line.removeprefix("export ").split("=", 1) for line in services("env").splitlines())
        await act("stop")()
        yield Broker(
            bootstrap=exported["CONTEXT_TEST_KAFKA"],
            begin=act("start"),
            leave=act("stop"),
            come_back=act("start"),
        )
    finally:
        await act("down")()


class Health:
    """What a worker says about itself, in its log and over HTTP."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker

    def logged(self, event: str) -> list[dict[str, object]]:
        whole, _, _ = self._worker.log.read_text().rpartition("\n")  # the last line may be half written
        lines = [line for line in whole.splitlines() if line.startswith("{")]
        return [fields for line in lines if (fields := json.loads(line)).get("event") == event]

    async def until_logged(self, event: str, *, times: int = 1) -> list[dict[str, object]]:
        async with asyncio.timeout(120):
            while len(found := self.logged(event)) < times:
                assert self._worker.process.returncode is None
                await asyncio.sleep(0.1)
        return found

    async def ask(self, path: str) -> tuple[int, str]:
        address = str(self.logged("worker.starting")[0]["http"]) + path

        def get() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - loopback
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()
            except OSError as error:
                code, log = self._worker.process.returncode, self._worker.log.read_text()[-4_000:]
                raise AssertionError(f"{error!r}, exit code {code}\n{log}") from None

        return await asyncio.to_thread(get)

    async def until_ready(self, *, ready: bool, reason: str = "") -> None:
        async with asyncio.timeout(120):
            while True:
                status, body = await self.ask("/readyz")
                if (status == 200) == ready and reason in body:
                    return
                await asyncio.sleep(0.2)


async def outlive(broker: Broker, mode: Mode, folder: Path) -> None:
    async with workers(mode, folder) as start:
        worker = await start(WORKER_LOG_FORMAT="json")
        health = Health(worker)
        # Away at the start.
        waits = await health.until_logged("broker.awaited", times=4)
        pauses = [float(str(wait["retry_seconds"])) for wait in waits]
        assert pauses == sorted(pauses)
        assert pauses[-1] > pauses[0]
        await health.until_ready(ready=False, reason="broker_away")
        assert (await health.ask("/livez"))[0] == 200
        await broker.begin()
        async with Topics(mode) as topics:
            for number in range(20):
                await topics.send(request(number), key=f"p{number}")
            await topics.read_until("bundles", covers({f"r{number}" for number in range(20)}))
            # Away in the middle of work.
            for number in range(20, 120):
                await topics.send(request(number), key=f"p{number}")
            await broker.leave()
            left_at = time.monotonic()
            await health.until_ready(ready=False, reason="broker_away")
            await asyncio.sleep(OUTAGE_SECONDS - (time.monotonic() - left_at))
            assert (await health.ask("/livez"))[0] == 200
            assert (await health.ask("/readyz"))[0] != 200
            await broker.come_back()
            await health.until_ready(ready=True)
            for number in range(120, 140):
                await topics.send(request(number), key=f"p{number}")
            await assert_each_ended_once(topics, {f"r{number}" for number in range(140)})
            worker.signal(signal.SIGTERM)
            assert await worker.ended() == 0


async def test_a_broker_away_at_the_start_and_for_70_seconds_costs_nothing(
    namespace: str, services_at: Callable[[str], Mode], tmp_path: Path, unused_tcp_port: int
) -> None:
    folders = [tmp_path / "embedded", tmp_path / "services"]
    for folder in folders:
        folder.mkdir()
    async with tansu(unused_tcp_port) as small, kafka(tmp_path / "kafka") as large:
        first = embedded_mode(small.bootstrap, namespace=namespace, folder=folders[0])
        second = services_at(large.bootstrap)
        async with asyncio.TaskGroup() as both:
            both.create_task(outlive(small, first, folders[0]))
            both.create_task(outlive(large, second, folders[1]))
