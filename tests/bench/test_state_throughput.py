"""Events a second from the topic to the store: one worker on the embedded broker and SQLite.

Target: 1,000 events/s. Nothing is asserted on time. Beside the worker stands its own writer, fed from memory
in the same run, so that the cost of what lies between broker and store can be told from the machine's speed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pytest

from schemas.state import StateEvent
from tests.support.cluster import Topics, WorkerProcess, embedded_mode, workers
from tests.support.state_events import START
from worker.kafka.embedded import EmbeddedBroker
from worker.state.records import StateRecord, to_record
from worker.state.writing import StateWriter
from worker.stores.sqlite_state import SqliteStateStore

EVENTS = 4_000
ROUNDS = 3
AT_ONCE = 256
"""Records that a worker has in work at most."""
TARGET_PER_SECOND = 1_000
PROJECTS = 3
_PROBE_SECONDS = 0.02

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]


def told(number: int) -> dict[str, Any]:
    """What a pipeline publishes: mostly what was said and done, now and then a fact, a result, a step."""
    kinds: Sequence[tuple[str, dict[str, Any]]] = (
        ("message", {"role": "agent", "content": f"Attempt {number} ends at its deadline. " * 4}),
        ("tool_call", {"tool": "edit", "files": [f"src/m{number % 50}.py"], "summary": "A guard was added."}),
        ("message", {"role": "user", "content": f"We decided that retry {number} keeps the first error."}),
        ("test_result", {"test_id": f"test_{number % 200}", "status": ("passed", "failed")[number % 2]}),
        ("memory", {"id": f"m{number % 500}", "subject": f"s{number % 100}", "text": f"Fact {number}."}),
        ("tool_call", {"tool": "read", "files": [f"src/m{number % 50}.py"]}),
        ("artifact", {"id": f"a{number % 40}", "stage": "s", "type": "t", "content": "line\n" * 100}),
        ("step_advanced", {"plan_id": "p", "step_id": str(number % 12), "status": "done"}),
    )
    kind, body = kinds[number % len(kinds)]
    return {
        "event_id": f"e{number:06}",
        "project_id": f"p{number % PROJECTS}",
        "thread_id": f"t{number // 500 % 4}",
        "event": kind,
        "occurred_at": f"2026-03-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z",
        "body": body,
    }


async def writer_alone(path: Path, events: Sequence[dict[str, Any]]) -> float:
    """Events a second from memory, decoded before the clock starts."""
    records = [
        (body["project_id"], to_record(StateEvent.model_validate(body).root, record_timestamp=START))
        for body in events
    ]
    store = SqliteStateStore(path)
    writer = StateWriter(store, on_applied=lambda _project, _applied: None)
    may_start = asyncio.Semaphore(AT_ONCE)

    async def apply(project_id: str, record: StateRecord) -> None:
        async with may_start:
            await writer.apply(project_id, record)

    await store.projects()  # the file is made once
    started = perf_counter()
    await asyncio.gather(*(apply(*one) for one in records))
    seconds = perf_counter() - started
    await store.close()
    return len(records) / seconds


def count_of(path: Path) -> int:
    if not path.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            (count,) = connection.execute("SELECT count(*) FROM events").fetchone()
            return count
    except sqlite3.OperationalError:
        return 0  # the worker has not made it yet


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def count_above(floor: int, path: Path, worker: WorkerProcess) -> int:
    """How many events the store holds once they are more than `floor`."""
    while (count := await asyncio.to_thread(count_of, path)) <= floor:
        assert worker.process.returncode is None, worker.log.read_text()
        await asyncio.sleep(_PROBE_SECONDS)
    return count


async def through_kafka(
    broker: EmbeddedBroker, *, namespace: str, folder: Path, events: Sequence[dict[str, Any]]
) -> tuple[float, float]:
    """Events a second from a backlog to the store, and microseconds of the worker's processor for each."""
    mode = embedded_mode(broker.bootstrap_servers, namespace=namespace, folder=folder)
    path = folder / "state.db"
    async with Topics(mode) as topics, workers(mode, folder) as start:
        for at in range(0, len(events), 500):
            await asyncio.gather(
                *(
                    topics.send(json.dumps(one).encode(), topic="state", key=one["project_id"])
                    for one in events[at : at + 500]
                )
            )
        worker = await start(WORKER_LOG_LEVEL="warning")
        first = await count_above(0, path, worker)
        started, spent = perf_counter(), cpu_seconds(worker.process.pid)
        count = await count_above(len(events) - 1, path, worker)
        seconds, spent = perf_counter() - started, cpu_seconds(worker.process.pid) - spent
    applied = count - first
    assert applied > len(events) // 2
    return applied / seconds, spent / applied * 1e6


async def test_events_of_a_topic_are_applied(
    embedded: EmbeddedBroker, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [told(number) for number in range(EVENTS)]
    alone: list[float] = []
    whole: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        (tmp_path / str(number)).mkdir()
        alone.append(await writer_alone(tmp_path / f"alone-{number}.db", events))
        whole.append(
            await through_kafka(
                embedded, namespace=f"{namespace}{number}", folder=tmp_path / str(number), events=events
            )
        )
    rate, spent = median(rate for rate, _ in whole), median(spent for _, spent in whole)
    verdict = " under" if rate < TARGET_PER_SECOND else ""
    with capsys.disabled():
        print(  # noqa: T201  # the table is what this is for
            f"\n{EVENTS} events of {PROJECTS} projects, median of {ROUNDS} runs"
            f"\n  topic to store   {rate:7,.0f} events/s{verdict} (to reach: {TARGET_PER_SECOND:,})"
            f"\n  writer alone     {median(alone):7,.0f} events/s"
            f"\n  writer / worker  {median(a / w for a, (w, _) in zip(alone, whole, strict=True)):7.2f}"
            f"\n  worker           {spent:7,.0f} us of processor time an event"
        )
