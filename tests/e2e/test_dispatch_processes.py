"""Worker processes that are told to stop, killed, or killed by one of their records."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.dispatching import committed, create_topics, read_all, send, until_committed
from tests.support.nursery import Forked, nursery

pytestmark = pytest.mark.timeout(150)

Start = Callable[[], Awaitable[Forked]]


@asynccontextmanager
async def children(
    broker: str,
    topic: str,
    tmp_path: Path,
    *,
    partitions: int = 1,
    max_in_flight: int = 8,
) -> AsyncGenerator[Start]:
    """Gives `start()`; all children share one crash ledger, and none outlives the test."""
    started: list[Forked] = []
    arguments = {
        "bootstrap": broker,
        "topic": topic,
        "ledger": str(tmp_path / "ledger.db"),
        "partitions": partitions,
        "max_in_flight": max_in_flight,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
    }

    async def start() -> Forked:
        log = tmp_path / f"child-{len(started)}.log"
        command = ("-m", "tests.support.dispatch_child", json.dumps(arguments))
        child = await nursery().start(os.environ, log, command)
        started.append(child)
        return child

    try:
        yield start
    finally:
        for child in started:
            if child.returncode is None:
                child.kill()
            await child.wait()


SESSION_TIMEOUT_MS = 2_000
"""The shortest that both brokers take: each life waits for the session of the one before."""


async def answers(broker: str, topic: str) -> list[bytes]:
    return [record.value for record in await read_all(broker, f"{topic}.replies")]


async def until_answered(broker: str, topic: str, count: int) -> None:
    """Return when at least that many answers stand on the topic."""
    deadline = time.monotonic() + 60
    while len(await answers(broker, topic)) < count:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def slow(count: int) -> list[bytes]:
    return [b"slow %d" % number for number in range(count)]


async def test_sigterm_under_load_ends_what_was_begun_and_leaves_the_rest(
    broker: str, topic: str, tmp_path: Path
):
    await create_topics(broker, topic, f"{topic}.replies")
    await send(broker, topic, slow(400))
    async with children(broker, topic, tmp_path) as start:
        first = await start()
        await until_answered(broker, topic, 10)
        first.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(first.wait(), 30) == 0
        ended = len(await answers(broker, topic))
        assert 10 <= ended < 400
        assert await committed(broker, topic, topic) == ended
        await start()
        await until_committed(broker, topic, topic, 400, seconds=60)
    assert sorted(await answers(broker, topic)) == sorted(slow(400))


async def test_a_killed_worker_leaves_its_work_to_the_other_one(broker: str, topic: str, tmp_path: Path):
    await create_topics(broker, topic, f"{topic}.replies", partitions=4)
    await send(broker, topic, slow(200))
    stored = await read_all(broker, topic)
    ends = {n: sum(record.partition == n for record in stored) for n in range(4)}
    async with children(broker, topic, tmp_path, partitions=4) as start:
        victim, _ = await start(), await start()
        await until_answered(broker, topic, 40)
        victim.kill()
        await victim.wait()
        await start()
        for partition, end in ends.items():
            await until_committed(broker, topic, topic, end, partition=partition, seconds=90)
    found = await answers(broker, topic)
    assert set(found) == set(slow(200))
    assert len(found) < 300


async def test_a_record_that_kills_the_process_is_buried_and_its_neighbours_are_answered(
    broker: str, topic: str, tmp_path: Path
):
    await create_topics(broker, topic, f"{topic}.replies")
    await send(broker, topic, [*slow(3), b"kill", *slow(3)])
    deaths = 0
    async with children(broker, topic, tmp_path, max_in_flight=2) as start:
        child = await start()
        deadline = time.monotonic() + 130
        while await committed(broker, topic, topic) != 7:
            assert time.monotonic() < deadline
            if child.returncode is not None:
                assert child.returncode == -signal.SIGKILL
                deaths += 1
                assert deaths <= 5, "it is never buried"
                child = await start()
            await asyncio.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(child.wait(), 30) == 0
    found = await answers(broker, topic)
    assert set(found) == {*slow(3), b"buried after 3: kill"}
    assert found.count(b"buried after 3: kill") == 1
    assert deaths == 5
