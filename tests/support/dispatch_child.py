"""A dispatcher in a process of its own, with a handler that kills it when a record says so.

`python -m tests.support.dispatch_child '{"bootstrap": ..., "topic": ..., "ledger": ..., ...}'`
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from tests.support.dispatching import Act, Scripted, create_topics
from worker.kafka.app import ConsumerOptions, KafkaWorker, Route
from worker.kafka.connection import KafkaConnection
from worker.kafka.health import Health
from worker.kafka.partition import Limits
from worker.kafka.publisher import KafkaPublisher, ProducerOptions
from worker.kafka.records import Handled, InboundRecord
from worker.stores.sqlite import SqliteCrashLedger
from worker.telemetry import Telemetry


async def kill(record: InboundRecord) -> Handled:
    os.kill(os.getpid(), signal.SIGKILL)
    return Handled()


async def slow(record: InboundRecord) -> Handled:
    await asyncio.sleep(0.2)
    return Handled()


class Prefixed(dict[bytes, Act]):
    """A script by the first word of the value."""

    def get(self, key: bytes, default: Act | None = None) -> Act | None:  # pyright: ignore[reportIncompatibleMethodOverride]  one overload is enough here
        return super().get(key.partition(b" ")[0], default)


async def main(
    *,
    bootstrap: str,
    topic: str,
    ledger: str,
    partitions: int,
    max_in_flight: int,
    session_timeout_ms: int,
) -> int:
    connection = KafkaConnection(bootstrap_servers=(bootstrap,))
    publisher = KafkaPublisher(connection=connection, options=ProducerOptions(is_idempotent=False))
    script = Prefixed({b"kill": kill, b"slow": slow})
    handler = Scripted(reply_topic=f"{topic}.replies", publisher=publisher, script=script)
    crash_ledger = SqliteCrashLedger(Path(ledger))

    async def declare() -> None:
        await create_topics(bootstrap, topic, f"{topic}.replies", partitions=partitions)

    async def probe_store() -> None:
        """The scripted handler needs no store."""

    worker = KafkaWorker(
        connection=connection,
        routes=[Route(topic=topic, group=topic, handler=handler, max_in_flight=max_in_flight)],
        publisher=publisher,
        ledger=crash_ledger,
        probe_store=probe_store,
        declare_topics=declare,
        telemetry=Telemetry(),
        health=Health(),
        consumer=ConsumerOptions(session_timeout_ms=session_timeout_ms, heartbeat_interval_ms=500),
        limits=Limits(commit_interval_seconds=0.1),
    )
    try:
        return await worker.run()
    finally:
        await crash_ledger.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(**json.loads(sys.argv[1]))))
