"""What a worker says about itself: in its log, over HTTP, and to the kernel."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.cluster import PATIENCE_SECONDS, WorkerProcess
from tests.support.processes import children


class Probe:
    """Asks a worker at an address."""

    def __init__(self, address: str) -> None:
        self._address = address

    @classmethod
    async def of(cls, worker: WorkerProcess) -> Probe:
        """That of a process, which logs its address as JSON when it starts."""
        return cls(str((await until_logged(worker, "worker.starting"))[0]["http"]))

    async def ask(self, path: str) -> tuple[int, str]:
        def get() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(self._address + path, timeout=20) as answer:  # noqa: S310 - loopback
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        return await asyncio.to_thread(get)

    async def until_ready(self, *, ready: bool, reason: str = "", seconds: float = PATIENCE_SECONDS) -> None:
        """Return when it says so, and names the reason; fail in time."""
        said = ""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    status, said = await self.ask("/readyz")
                    if (status == 200) == ready and reason in said:
                        return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"not {'ready' if ready else reason or 'away'}: {said}") from None

    async def is_live(self) -> bool:
        return (await self.ask("/livez"))[0] == 200

    async def until_metric(self, name: str, holds: Callable[[float], bool], **labels: str) -> None:
        """Return when what `metric` gives is as it should be; fail in time."""
        found = float("nan")
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    found = await self.metric(name, **labels)
                    if holds(found):
                        return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{name} {labels} is {found}") from None

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name that have these labels."""
        _, text = await self.ask("/metrics")
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def logged(worker: WorkerProcess, event: str) -> list[dict[str, object]]:
    """The lines of a JSON log with that event."""
    whole, _, _ = worker.log.read_text().rpartition("\n")  # the last line may be half written
    lines = [line for line in whole.splitlines() if line.startswith("{")]
    return [fields for line in lines if (fields := json.loads(line)).get("event") == event]


async def until_logged(worker: WorkerProcess, event: str, *, times: int = 1) -> list[dict[str, object]]:
    """Return when it has logged the event so often; fail in time, or when it ends."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found := logged(worker, event)) < times:
            assert worker.process.returncode is None, worker.log.read_text()[-4_000:]
            await asyncio.sleep(0.1)
    return found


def resident_bytes(process_id: int) -> int:
    """What of its memory is in use now, shared pages included."""
    status = Path(f"/proc/{process_id}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1_024


def children_bytes(process_id: int) -> int:
    """What is resident in all that the process has started, and in all that these have."""
    total = 0
    for child in children(process_id):
        with suppress(OSError, StopIteration):  # it has just ended
            total += resident_bytes(child) + children_bytes(child)
    return total


def open_descriptors(process_id: int) -> int:
    return len(list(Path(f"/proc/{process_id}/fd").iterdir()))


def threads(process_id: int) -> int:
    return len(list(Path(f"/proc/{process_id}/task").iterdir()))
