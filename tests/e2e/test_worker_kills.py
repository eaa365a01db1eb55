"""A request that kills its process, on both brokers; other kills are in `tests/faults`."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cluster import (
    Mode,
    Topics,
    assert_each_ended_once,
    covers,
    request,
    workers,
)

pytestmark = [pytest.mark.timeout(500), pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def mode(mode: Mode) -> Mode:
    """With a short session: each life waits for that of the one before."""
    return replace(mode, session_timeout_ms=3_000)


async def test_a_request_that_kills_the_process_is_isolated_and_its_neighbours_pass(
    mode: Mode, topics: Topics, tmp_path: Path
) -> None:
    good = {f"r{number}" for number in range(8)}
    poison = request(99, user_message="a poisoned message", thread_id="t")
    async with workers(mode, tmp_path) as start:
        for number in range(8):
            await topics.send(request(number), partition=3)
            if number == 3:
                await topics.send(poison, partition=3)
        for _ in range(9):
            worker = await start(WORKER_FAILPOINTS="assemble=kill@poisoned")
            reading = asyncio.create_task(topics.read_until("bundles", covers(good | {"r99"}), seconds=200))
            ending = asyncio.create_task(worker.process.wait())
            await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                ending.cancel()
                break
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        outcomes = await assert_each_ended_once(topics, good | {"r99"}, buried={"r99"})
        codes = {key[1]: json.loads(values[0]).get("code") for key, values in outcomes.items()}
        assert codes == {**dict.fromkeys(good), "r99": "worker_died"}
        dead = await topics.read_all("dead-letters")
        assert dict(dead.records[0].headers)["context-dead-code"] == b"worker_died"
        assert dead.records[0].value == json.dumps(poison).encode()
