"""What waits in Kafka is seen from outside, however little of it the worker has read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.dispatching import create_topics, running, send, until
from worker.kafka.partition import Limits
from worker.kafka.records import Handled, InboundRecord

pytestmark = pytest.mark.timeout(90)


async def test_a_backlog_is_measured_to_the_end_of_the_log_and_is_nothing_once_it_is_worked_off(
    broker: str, topic: str, tmp_path: Path
) -> None:
    may_end = asyncio.Event()

    async def hold(record: InboundRecord) -> Handled:
        del record
        await may_end.wait()
        return Handled()

    await create_topics(broker, topic)
    await send(broker, topic, [b"held"] * 20)
    limits = Limits(commit_interval_seconds=0.1, uncommitted_span=3)
    async with running(broker, topic, ledger=tmp_path / "l.db", limits=limits, max_in_flight=1) as one:
        one.handler.script[b"held"] = hold

        def value(name: str) -> float | None:
            return one.telemetry.registry.get_sample_value(f"context_records_{name}", {"topic": "requests"})

        await until(lambda: (value("lag"), value("in_flight"), value("waiting")) == (20, 1, 2))
        may_end.set()
        await until(lambda: value("lag") == 0, seconds=60)
        assert len(one.handler.ended) == 20
