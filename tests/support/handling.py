"""A request handler with everything around it under the test's control, on the real SQLite store."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from schemas.bundle import ContextBundle, Message, context_hash
from schemas.receipt import Receipt, ReceiptCounts
from schemas.request import AssemblyRequest
from schemas.usage import UsageCounts, UsageEvent, usage_event_id
from schemas.wire import DecodeNotes
from worker.failpoints import Failpoints
from worker.kafka.handlers import Assemble, Limits, RequestHandler
from worker.kafka.received import BodyLimits
from worker.kafka.records import InboundRecord, OutboundRecord
from worker.kafka.replies import Routes
from worker.ports import OutcomeKey, OutcomeRecord, Tombstone
from worker.stores.sqlite import SqliteOutcomeStore
from worker.telemetry import Telemetry

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1_000)
FIELDS: dict[str, Any] = {
    "request_id": "r-1",
    "project_id": "shop",
    "thread_id": "t-1",
    "volk": "smith",
    "subject": "implement",
    "user_message": "Add a retry.",
}
ROUTES = Routes(
    bundles="context.bundles",
    usage="context.usage",
    dead_letters="context.dead-letters",
    reply_topics=frozenset({"team.replies"}),
)


LIMITS = Limits(
    body=BodyLimits(max_bytes=100_000, max_depth=32),
    max_record_bytes=10_000,
    max_capture_bytes=1_000_000,
    public_url="http://127.0.0.1:8080",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """As much of one as is stored."""

    record: bytes = b"{}"
    size_bytes: int = 2

    def capture(self, *, max_bytes: int) -> bytes:
        return b"capture of at most %d bytes" % max_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    bundle: ContextBundle
    usage: UsageEvent
    trail: Trail = Trail()


def record(
    body: object = None, *, headers: tuple[tuple[str, bytes], ...] = (), **fields: Any
) -> InboundRecord:
    """A request as consumed; `body` instead of the default one, bytes as they are."""
    value = body if isinstance(body, bytes) else json.dumps(FIELDS if body is None else body).encode()
    plain = InboundRecord(
        topic="context.requests",
        partition=3,
        offset=17,
        timestamp_ms=NOW_MS - 1_000,
        key=b"shop#t-1",
        value=value,
        headers=headers,
    )
    return replace(plain, **fields)


def bundle(request: AssemblyRequest, text: str, *, as_of: datetime = NOW) -> ContextBundle:
    """A small, true bundle around `text`."""
    messages = (Message(role="user", content=text),)
    return ContextBundle(
        request_id=request.request_id,
        project_id=request.project_id,
        thread_id=request.thread_id,
        volk=request.volk,
        subject=request.subject,
        task_type="BUILD",
        status="complete",
        messages=messages,
        receipt=Receipt(receipt_id="0" * 26, counts=ReceiptCounts(considered=0, kept=0, dropped=0)),
        context_hash=context_hash(messages),
        assembled_at=as_of,
    )


def usage(request: AssemblyRequest, *, generation: int = 0, timestamp: datetime = NOW) -> UsageEvent:
    """The event of a bundle whose ledger is of no interest."""
    return UsageEvent(
        event_id=usage_event_id(request.project_id, request.request_id, generation),
        timestamp=timestamp,
        project_id=request.project_id,
        request_id=request.request_id,
        generation=generation,
        volk_alias=request.volk,
        subject=request.subject,
        thread_id=request.thread_id,
        model=request.model,
        outcome="complete",
        usage=None,
        requested_total=None,
        overhead=None,
        reserved=None,
        statuses=None,
        timings_ms={"total": 1.25},
        exact=True,
        counts=UsageCounts(),
    )


Step = Callable[[str], None]


def no_step(name: str) -> None:
    """Nothing happens."""


@dataclass(slots=True)
class Bench:
    """What a handler works with. `step` hears `before <operation>` and `after <operation>`, and may raise."""

    store: SqliteOutcomeStore
    step: Step = no_step
    now: Callable[[], datetime] = lambda: NOW
    published: list[OutboundRecord] = field(default_factory=list[OutboundRecord])
    lines: list[bytes] = field(default_factory=list[bytes])
    assembled: int = 0
    assemble_error: BaseException | None = None
    text: str | None = None
    limits: Limits = LIMITS
    telemetry: Telemetry = field(default_factory=Telemetry)
    failpoints: Failpoints = field(default_factory=Failpoints)

    def handler(self, *, assemble: Assemble | None = None) -> RequestHandler:
        """One worker's handler; several may share the bench. `assemble` is the bench's own where absent."""
        return RequestHandler(
            assemble=assemble or self._assemble,
            store=self,
            publisher=self,
            usage_log=self,
            routes=ROUTES,
            limits=self.limits,
            telemetry=self.telemetry,
            failpoints=self.failpoints,
            now=self._clock,
        )

    def on(self, topic: str) -> list[OutboundRecord]:
        """What was published on a topic, in order."""
        return [item for item in self.published if item.topic == topic]

    def values(self, topic: str) -> list[dict[str, Any]]:
        """The same, decoded."""
        return [json.loads(item.value) for item in self.on(topic)]

    def _clock(self) -> datetime:
        return self.now()

    async def _assemble(
        self,
        request: AssemblyRequest,
        *,
        as_of: datetime,
        generation: int,
        notes: DecodeNotes,
        meaning: bytes,
    ) -> Assembled:
        assert meaning == request.meaning()
        self.step("before assemble")
        await asyncio.sleep(0)
        self.assembled += 1
        if self.assemble_error is not None:
            raise self.assemble_error
        # No two attempts agree, so that only the store can make them agree.
        text = self.text or f"attempt {self.assembled}"
        made = Assembled(
            bundle=bundle(request, text, as_of=as_of),
            usage=usage(request, generation=generation).model_copy(
                update={"timings_ms": {"total": float(self.assembled)}}
            ),
        )
        self.step("after assemble")
        return made

    # The outcome store.

    async def get(self, key: OutcomeKey) -> OutcomeRecord | Tombstone | None:
        self.step("before get")
        held = await self.store.get(key)
        self.step("after get")
        return held

    async def put_if_absent(self, key: OutcomeKey, record: OutcomeRecord) -> OutcomeRecord | Tombstone:
        self.step("before put")
        held = await self.store.put_if_absent(key, record)
        self.step("after put")
        return held

    async def get_bundle(self, *, project_id: str, digest: str) -> bytes | None:
        return await self.store.get_bundle(project_id=project_id, digest=digest)

    async def purge(self, project_id: str, *, only: Callable[[OutcomeRecord], bool] | None = None) -> int:
        return await self.store.purge(project_id, only=only)

    async def check(self) -> None:
        await self.store.check()

    async def close(self) -> None:
        await self.store.close()

    # The publisher.

    async def publish(self, record: OutboundRecord) -> None:
        self.step(f"before publish {record.topic}")
        await asyncio.sleep(0)
        self.published.append(record)
        self.step(f"after publish {record.topic}")

    # The usage log.

    def append(self, line: bytes) -> None:
        self.step("before append")
        self.lines.append(line)
        self.step("after append")


def open_store(path: Path, *, clock: Callable[[], float] = time.time) -> SqliteOutcomeStore:
    """The embedded outcome store, keeping bytes for two hours and tombstones for 48."""
    return SqliteOutcomeStore(path, keep_seconds=7_200, forget_seconds=172_800, clock=clock)


def broken(body: bytes | None, *, id_field: str) -> tuple[str | None, str | None]:
    """A search for ids that has a defect of its own, whatever it is given."""
    raise ZeroDivisionError
