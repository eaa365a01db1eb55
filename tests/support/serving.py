"""A worker in this process, with everything real but the assembling: broker, store, dispatcher, HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from schemas.request import AssemblyRequest
from schemas.wire import DecodeNotes
from tests.support.dispatching import until
from tests.support.handling import Assembled, bundle, open_store, usage
from worker.errors import BudgetTooSmall
from worker.failpoints import Failpoints
from worker.kafka.app import ConsumerOptions, KafkaWorker, Route
from worker.kafka.connection import KafkaConnection
from worker.kafka.dead_letters import DeadLetterTopic
from worker.kafka.handlers import Limits, RequestHandler
from worker.kafka.health import Health
from worker.kafka.http import build_app, serve_http
from worker.kafka.partition import Limits as DispatchLimits
from worker.kafka.publisher import KafkaPublisher, ProducerOptions
from worker.kafka.received import BodyLimits
from worker.kafka.replies import Routes
from worker.kafka.topics import ensure_topics
from worker.stores.sqlite import SqliteCrashLedger
from worker.telemetry import Telemetry

TOKEN = "s3cret"  # noqa: S105 - of the tests alone


@dataclass(kw_only=True)
class Serving:
    """The running worker, and the knobs of its assembling."""

    prefix: str
    connection: KafkaConnection
    http_url: str
    lines: list[bytes] = field(default_factory=list[bytes])
    held: asyncio.Event = field(default_factory=asyncio.Event)
    broken: set[str] = field(default_factory=set[str])
    """Requests that the assembling fails on, as long as they are in here."""

    @property
    def bootstrap_servers(self) -> list[str]:
        return list(self.connection.bootstrap_servers)

    @property
    def dead_letters(self) -> DeadLetterTopic:
        return DeadLetterTopic(topic=f"{self.prefix}dead-letters", connection=self.connection)

    def append(self, line: bytes) -> None:
        self.lines.append(line)

    async def assemble(
        self,
        request: AssemblyRequest,
        *,
        as_of: datetime,
        generation: int,
        notes: DecodeNotes,
        meaning: bytes,
    ) -> Assembled:
        """`large: N` gives N characters, `small window` a rejection, `wait` an answer when `held` is set."""
        text = request.user_message
        if request.request_id in self.broken:
            raise RuntimeError("broken on purpose")
        if text == "small window":
            raise BudgetTooSmall(layer="user", overage_tokens=1, total_tokens=2)
        if text == "wait":
            await self.held.wait()
        if text.startswith("large: "):
            text = "x" * int(text.removeprefix("large: "))
        return Assembled(
            bundle=bundle(request, text, as_of=as_of),
            usage=usage(request, generation=generation, timestamp=datetime.now(UTC)),
        )


@asynccontextmanager
async def serving(bootstrap: str, prefix: str, folder: Path) -> AsyncGenerator[Serving]:
    """A worker that answers within `prefix`, and knows the reply topic `<prefix>own-replies`."""
    connection = KafkaConnection(bootstrap_servers=(bootstrap,))
    store = open_store(folder / "outcomes.db")
    ledger = SqliteCrashLedger(folder / "outcomes.db")
    telemetry, health = Telemetry(), Health()
    publisher = KafkaPublisher(connection=connection, options=ProducerOptions(is_idempotent=False))
    app = build_app(health=health, store=store, telemetry=telemetry, token=TOKEN)

    async def declare() -> None:
        await ensure_topics(connection, prefix=prefix, replication_factor=1)

    async with serve_http(app, host="127.0.0.1", port=0, has_token=True) as (host, port):
        one = Serving(prefix=prefix, connection=connection, http_url=f"http://{host}:{port}")
        handler = RequestHandler(
            assemble=one.assemble,
            store=store,
            publisher=publisher,
            usage_log=one,
            routes=Routes(
                bundles=f"{prefix}bundles",
                usage=f"{prefix}usage",
                dead_letters=f"{prefix}dead-letters",
                reply_topics=frozenset({f"{prefix}own-replies"}),
            ),
            limits=Limits(
                body=BodyLimits(max_bytes=1_000_000, max_depth=32),
                max_record_bytes=20_000,
                max_capture_bytes=1_000_000,
                public_url=one.http_url,
            ),
            telemetry=telemetry,
            failpoints=Failpoints(),
            now=lambda: datetime.now(UTC),
        )
        worker = KafkaWorker(
            connection=connection,
            routes=[Route(topic=f"{prefix}requests", group=f"{prefix}worker", handler=handler)],
            publisher=publisher,
            ledger=ledger,
            probe_store=store.check,
            declare_topics=declare,
            telemetry=telemetry,
            health=health,
            consumer=ConsumerOptions(session_timeout_ms=6_000, heartbeat_interval_ms=500),
            limits=DispatchLimits(commit_interval_seconds=0.1),
        )
        task = asyncio.create_task(worker.run(handle_signals=False))
        try:
            await until(lambda: health.is_ready or task.done(), what="ready")
            yield one
        finally:
            one.held.set()
            worker.request_stop()
            await asyncio.wait_for(task, 30)
            await ledger.close()
            await store.close()
