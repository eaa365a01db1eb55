"""CPU of requests with every span pushed to a collector and all metrics too, over the same without either."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.bench.conftest import Report
from tests.support.assembling import settings
from tests.support.collector import attributes, collector
from tests.support.handling import FIELDS, LIMITS, NOW, ROUTES, open_store, record
from tests.support.tooling import fill
from worker.assembly import Assembler
from worker.failpoints import Failpoints
from worker.heap import settle_heap
from worker.kafka.handlers import RequestHandler
from worker.kafka.records import OutboundRecord
from worker.ports import OutcomeStore
from worker.settings import Graph, State
from worker.spans import Endpoint, resource_of
from worker.telemetry import Telemetry
from worker.tracing import open_tracing, push_metrics
from worker.wiring import build_assembler
from worker.wiring_graph import build_graph
from worker.wiring_state import build_state

SAMPLED = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
MESSAGE = "Explain why the retry loop in the payment client ignores its deadline, and mend it. " * 24
ROUNDS, REQUESTS = 7, 40
TRIVIAL: dict[str, Any] = {**FIELDS, "subject": "chat", "user_message": MESSAGE}
IN_REQUEST: dict[str, Any] = {
    **FIELDS,
    "user_message": MESSAGE,
    "memory": {
        "summary": "Said before. " * 20,
        "items": [
            {"id": f"m{n}", "text": f"fact {n} of retries", "occurred_at": "2026-01-01T00:00:00Z"}
            for n in range(10)
        ],
    },
    "plan": {
        "plan_id": "p",
        "steps": [{"id": f"s{n}", "title": f"Step {n}", "status": "pending"} for n in range(8)],
        "current_step": "s2",
    },
    "payload": {"task_context": "What was asked for. " * 40},
}
STORED: dict[str, Any] = {
    **FIELDS,
    "subject": "fix_issues",
    "project_id": "shop",
    "thread_id": "t1",
    "user_message": "charge_order in `src/shop.py` charges twice; mend it. " + MESSAGE,
}
"""Answered from a graph and a state, small ones."""

pytestmark = pytest.mark.timeout(300)


class Elsewhere:
    """Takes what is published, and the usage lines."""

    async def publish(self, record: OutboundRecord) -> None:
        await asyncio.sleep(0)

    def append(self, line: bytes) -> None:
        """It is of no interest here."""


@pytest.fixture
def settled_heap() -> Iterator[None]:
    """As the worker's is: else the collector's rounds through what was imported are most of the noise."""
    threshold = gc.get_threshold()
    settle_heap()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


def handler(telemetry: Telemetry, store: OutcomeStore, assembler: Assembler) -> RequestHandler:
    return RequestHandler(
        assemble=assembler.assemble,
        store=store,
        publisher=Elsewhere(),
        usage_log=Elsewhere(),
        routes=ROUTES,
        limits=LIMITS,
        telemetry=telemetry,
        failpoints=Failpoints(),
        now=lambda: NOW,
    )


@asynccontextmanager
async def assembling(telemetry: Telemetry, stores: Path | None) -> AsyncGenerator[Assembler]:
    """An assembler with the graph and the state in `stores`, or without either."""
    if stores is None:
        yield build_assembler(settings(), telemetry)
        return
    options = settings().model_copy(
        update={
            "graph": Graph(sqlite_path=stores / "graph.db"),
            "state": State(sqlite_path=stores / "state.db"),
        }
    )
    async with (
        aclosing(build_state(options, telemetry)) as state,
        aclosing(build_graph(options, telemetry, state.states)) as graph,
    ):
        yield build_assembler(options, telemetry, graph.reader, state.states)


async def cpu_seconds(of: RequestHandler, body: dict[str, Any], name: str) -> float:
    """Of the whole process, the exporting threads included, for one round of requests."""
    records = [
        record({**body, "request_id": f"{name}-{n}"}, headers=(("traceparent", SAMPLED),))
        for n in range(REQUESTS)
    ]
    begun = time.process_time()
    for start in range(0, REQUESTS, 10):
        await asyncio.gather(*(of.handle(one) for one in records[start : start + 10]))
    return time.process_time() - begun


@pytest.mark.usefixtures("settled_heap")
@pytest.mark.parametrize(
    ("kind", "body", "reach"),
    [
        ("graph and state", STORED, 1.10),
        ("sources in the request", IN_REQUEST, None),
        ("trivial", TRIVIAL, None),
    ],
)
async def test_telemetry_on_over_off(
    kind: str,
    body: dict[str, Any],
    reach: float | None,
    tmp_path: Path,
    report: Report,
) -> None:
    stores = None
    if body is STORED:
        stores = tmp_path
        await fill(stores)
    store = open_store(tmp_path / "outcomes.db")
    seconds: dict[str, list[float]] = {"off": [], "on": []}
    with (
        collector() as other,
        open_tracing("otlp", file=tmp_path / "never", ratio=1, endpoint=Endpoint(url=other.url)) as provider,
    ):
        on, off = Telemetry(provider), Telemetry()
        resource = resource_of(version="bench")
        async with assembling(on, stores) as traced, assembling(off, stores) as silent:
            with push_metrics(on, Endpoint(url=other.url), every_seconds=1, resource=resource):
                for number in range(ROUNDS + 1):
                    # Alternately, so that what else the machine does falls on both.
                    for name, telemetry, assembler in (("off", off, silent), ("on", on, traced)):
                        handling = handler(telemetry, store, assembler)
                        spent = await cpu_seconds(handling, body, f"{name}{number}")
                        if number:
                            seconds[name].append(spent)
    await store.close()
    if stores is not None:
        assert {"graph", "artifacts"} <= {
            attributes(span)["context.layer"] for span in other.spans if span.name == "context.source"
        }
    spans = len(other.spans) / (ROUNDS + 1) / REQUESTS
    medians = {name: statistics.median(found) / REQUESTS * 1e6 for name, found in seconds.items()}
    ratio = statistics.median([on / off for on, off in zip(seconds["on"], seconds["off"], strict=True)])
    report(f"CPU with telemetry on over off, {kind} ({spans:.0f} spans a request)", ratio, at_most=reach)
    report(f"CPU per request with telemetry off, {kind}", medians["off"], "us")
    assert spans > 10
    assert len(other.metrics) > 0
