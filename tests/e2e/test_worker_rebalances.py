"""Workers that come and go: every request ends once."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.support.cluster import (
    Mode,
    Topics,
    assert_each_ended_once,
    request,
    workers,
)

pytestmark = [pytest.mark.timeout(500), pytest.mark.asyncio(loop_scope="session")]


async def test_two_workers_with_rebalances_end_each_request_once(
    mode: Mode, topics: Topics, tmp_path: Path
) -> None:
    wanted = {f"r{number}" for number in range(300)}
    async with workers(mode, tmp_path) as start:
        first = await start()

        async def publish() -> None:
            for number in range(300):
                await topics.send(request(number), key=f"p{number}")
                if number % 20 == 0:
                    await asyncio.sleep(0.1)

        publishing = asyncio.create_task(publish())
        await topics.read_until("bundles", lambda p: len(p.records) >= 20)
        await start()
        await topics.read_until("bundles", lambda p: len(p.records) >= 100)
        first.signal(signal.SIGTERM)
        assert await first.ended() == 0
        await start()
        await publishing
        await assert_each_ended_once(topics, wanted)


async def test_sigterm_under_load_drains_and_nothing_is_redelivered(
    mode: Mode, topics: Topics, tmp_path: Path
) -> None:
    async with workers(mode, tmp_path) as start:
        first = await start()
        for number in range(200):
            await topics.send(request(number), key=f"p{number}")
        await topics.read_until("bundles", lambda p: len(p.records) >= 30)
        first.signal(signal.SIGTERM)
        assert await first.ended() == 0
        await start()
        outcomes = await assert_each_ended_once(topics, {f"r{number}" for number in range(200)})
        assert max(len(values) for values in outcomes.values()) == 1
