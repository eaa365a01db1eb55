"""A sync handler with everything around it under the test's control, on the real SQLite stores."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from schemas.sync import SyncRequest
from tests.support.handling import NOW, NOW_MS, Bench
from worker.code.indexing import IndexCache, IndexOptions, IndexReport, OnProgress
from worker.code.sources import SourceRoots
from worker.code.syncing import IsSettled, ProjectSyncer
from worker.failpoints import Failpoints
from worker.graph.store import GraphStore
from worker.kafka.received import BodyLimits
from worker.kafka.records import InboundRecord
from worker.kafka.replies import Routes
from worker.kafka.sync_handler import SyncHandler

SHOP = "def charge(order):\n    return pay(order)\n\n\ndef pay(order):\n    return order\n"
FIELDS: dict[str, Any] = {
    "kind": "sync",
    "sync_id": "s-1",
    "project_id": "shop",
    "files": [{"path": "src/shop.py", "content": SHOP}],
}
ROUTES = Routes(
    bundles="context.sync-results",
    usage="context.usage",
    dead_letters="context.dead-letters",
    reply_topics=frozenset({"team.replies"}),
)
PLAIN = IndexOptions(with_history=False)


def fields(**changes: Any) -> dict[str, Any]:
    return {**FIELDS, **changes}


def record(
    body: object = None, *, headers: tuple[tuple[str, bytes], ...] = (), **changes: Any
) -> InboundRecord:
    """A sync as consumed; `body` instead of the default one, bytes as they are."""
    value = body if isinstance(body, bytes) else json.dumps(FIELDS if body is None else body).encode()
    plain = InboundRecord(
        topic="context.sync",
        partition=1,
        offset=5,
        timestamp_ms=NOW_MS - 1_000,
        key=b"shop",
        value=value,
        headers=headers,
    )
    return replace(plain, **changes)


@dataclass(slots=True)
class SyncBench:
    """What a sync handler works with; `stores` hears each step of the outcome store and the publisher."""

    stores: Bench
    graph: GraphStore
    roots: dict[str, tuple[Path, ...]] = field(default_factory=dict[str, tuple[Path, ...]])
    indexed: list[SyncRequest] = field(default_factory=list[SyncRequest])
    index_error: BaseException | None = None
    limits: BodyLimits = field(default_factory=lambda: BodyLimits(max_bytes=200_000, max_depth=32))
    failpoints: Failpoints = field(default_factory=Failpoints)
    on_progress: OnProgress = lambda _: None

    def handler(self) -> SyncHandler:
        """One worker's handler; several may share the bench."""
        return SyncHandler(
            syncs=self,
            store=self.stores,
            publisher=self.stores,
            routes=ROUTES,
            limits=self.limits,
            forget_seconds=172_800,
            telemetry=self.stores.telemetry,
            failpoints=self.failpoints,
            now=lambda: NOW,
        )

    def syncer(self) -> ProjectSyncer:
        """What carries syncs out, without what an earlier one left in memory."""
        return ProjectSyncer(
            self.graph,
            SourceRoots(self.roots),
            cache=IndexCache(),
            options=PLAIN,
            on_progress=self.on_progress,
        )

    async def sync(self, request: SyncRequest, *, is_settled: IsSettled) -> IndexReport:
        self.indexed.append(request)
        if self.index_error is not None:
            raise self.index_error
        return await self.syncer().sync(request, is_settled=is_settled)

    def values(self, topic: str) -> list[dict[str, Any]]:
        return self.stores.values(topic)
