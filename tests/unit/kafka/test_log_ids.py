"""Whose record a log line is about, while several are in work."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from structlog.contextvars import get_contextvars, merge_contextvars
from structlog.testing import capture_logs

from schemas.codes import PARTS, PartName
from schemas.request import AssemblyRequest
from tests.support.dispatching import until
from tests.support.handling import FIELDS, Bench, bundle, open_store, record, usage
from tests.support.handling import Assembled as Made
from tests.support.syncing import SyncBench
from tests.support.syncing import fields as sync_fields
from tests.support.syncing import record as sync_record
from tests.unit.kafka.test_dispatch import P0
from tests.unit.kafka.test_dispatch import Bench as DispatchBench
from tests.unit.kafka.test_tool_handler import ToolBench
from tests.unit.kafka.test_tool_handler import record as tool_record
from tests.unit.providers.frames import BUDGET, SCOPE, frame
from worker.errors import StoreUnavailable
from worker.kafka.admission import Slots
from worker.kafka.attempts import Attempts
from worker.kafka.dispatch import Dispatcher
from worker.kafka.health import FailureWindow
from worker.kafka.records import Handled, InboundRecord
from worker.logs import bind_ids
from worker.ports import LayerBudget, LayerContribution, RequestFrame, Scope
from worker.providers.gather import Abandonment, gather
from worker.stores.sqlite_graph import SqliteGraphStore
from worker.stores.sqlite_state import SqliteStateStore
from worker.telemetry import Telemetry

TOGETHER = ("r-1", "r-2")


class Failing:
    """Fails once all requests have come that are in work together."""

    def __init__(self, layer: PartName, error: Exception, meeting: asyncio.Barrier) -> None:
        self.layer: PartName = layer
        self._error = error
        self._meeting = meeting

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        await self._meeting.wait()
        raise self._error


class Stuck:
    """Swallows its cancellation."""

    layer: PartName = "ast"

    def __init__(self, gate: asyncio.Event) -> None:
        self._gate = gate

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        try:
            await self._gate.wait()
        except asyncio.CancelledError:
            await self._gate.wait()
        return LayerContribution(layer="ast", status="empty", reason="no_data")


async def test_what_went_wrong_with_a_source_is_told_with_the_ids_of_its_request(
    tmp_path: Path,
) -> None:
    bench = Bench(store=open_store(tmp_path / "outcomes.db"))
    gate = asyncio.Event()
    meetings = {layer: asyncio.Barrier(len(TOGETHER)) for layer in ("memory", "graph")}
    sources = [
        Failing("memory", KeyError("the prompt"), meetings["memory"]),
        Failing("graph", StoreUnavailable("neo4j"), meetings["graph"]),
        Stuck(gate),
    ]
    abandonment = Abandonment(cap=len(TOGETHER))

    async def assemble(request: AssemblyRequest, **_: Any) -> Made:
        await gather(
            sources,
            frame(),
            SCOPE,
            dict.fromkeys(PARTS, BUDGET),
            timeouts_seconds={"ast": 0.001},
            deadline_seconds=60.0,
            telemetry=Telemetry(),
            abandonment=abandonment,
        )
        return Made(bundle=bundle(request, "text"), usage=usage(request))

    handler = bench.handler(assemble=assemble)
    with capture_logs(processors=[merge_contextvars]) as lines:
        await asyncio.gather(*(handler.handle(record({**FIELDS, "request_id": own})) for own in TOGETHER))
    gate.set()
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    await bench.store.close()
    assert sorted((line["event"], line["project_id"], line["request_id"]) for line in lines) == sorted(
        (event, "shop", own)
        for event in ("source.failed", "source.unavailable", "source.abandoned")
        for own in TOGETHER
    )
    assert "the prompt" not in str(lines)


async def test_a_line_about_another_kind_of_record_names_it_as_its_body_does(tmp_path: Path) -> None:
    store, state = open_store(tmp_path / "outcomes.db"), SqliteStateStore(tmp_path / "state.db")
    bench = ToolBench(Bench(store=store), state)
    bench.answer = ZeroDivisionError()
    with capture_logs(processors=[merge_contextvars]) as lines:
        await bench.handle(tool_record())
    await store.close()
    await state.close()
    [line] = lines
    assert (line["event"], line["project_id"], line["call_id"]) == ("tool.failed", "shop", "c-1")


async def test_a_line_about_a_sync_names_it_whatever_becomes_of_it(tmp_path: Path) -> None:
    bench, graph = Bench(store=open_store(tmp_path / "outcomes.db")), SqliteGraphStore(tmp_path / "graph.db")
    syncs = SyncBench(stores=bench, graph=graph)
    with capture_logs(processors=[merge_contextvars]) as lines:
        await syncs.handler().handle(sync_record())
        syncs.index_error = ZeroDivisionError()
        await syncs.handler().handle(sync_record(sync_fields(sync_id="s-2")))
    await bench.store.close()
    await graph.close()
    assert [(line["event"], line["project_id"], line["sync_id"]) for line in lines] == [
        ("sync.indexed", "shop", "s-1"),
        ("sync.failed", "shop", "s-2"),
    ]


async def test_a_line_about_a_record_that_is_buried_names_it(tmp_path: Path) -> None:
    def meet_a_defect(step: str) -> None:
        if step == "before put":
            raise ZeroDivisionError

    bench = Bench(store=open_store(tmp_path / "outcomes.db"), step=meet_a_defect)
    with capture_logs(processors=[merge_contextvars]) as lines:
        await bench.handler().bury(record(), attempts=3)
    await bench.store.close()
    [line] = lines
    assert (line["event"], line["project_id"], line["request_id"]) == ("record.not_buried", "shop", "r-1")


class Seeing:
    """A handler that keeps the ids which a line about its record would bear, before it has read any."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    async def handle(self, record: InboundRecord) -> Handled:
        self.seen.append(get_contextvars())
        return Handled()

    async def bury(
        self, record: InboundRecord, *, attempts: int, cause: BaseException | None = None
    ) -> Handled:
        raise NotImplementedError


async def test_a_record_that_begins_while_another_steps_aside_bears_none_of_its_ids() -> None:
    bench, handler = DispatchBench(), Seeing()
    slots = Slots({"requests": 1, "tools": 1}, shares={"requests": 1})
    slots.is_exclusive = True
    attempts = Attempts(
        handler,
        gate=bench.gate,
        quarantine=bench.quarantine,
        window=FailureWindow(),
        on_bad_deploy=lambda: None,
        on_given_up=lambda: None,
    )
    shared = replace(bench.shared, slots=slots)
    bench.dispatcher = Dispatcher("requests", attempts, assignment=bench.assignment, shared=shared)
    steps_aside = asyncio.Event()
    tools: list[asyncio.Task[None]] = []

    async def call_a_tool() -> None:
        bind_ids("shop", call_id="c-1")
        await steps_aside.wait()
        async with slots.aside("tools"):
            await until(lambda: handler.seen)
        assert get_contextvars() == {"project_id": "shop", "call_id": "c-1"}

    def start() -> bool:
        tools.append(asyncio.create_task(call_a_tool()))
        return True

    slots.ask("tools", b"shop", start)
    bench.consumer.append(P0, b"waits for the tool", key=b"bank")
    async with bench.running():
        await until(lambda: bench.dispatcher.waiting == 1)
        steps_aside.set()
        await asyncio.wait_for(asyncio.gather(*tools), 10)
        slots.release("tools", b"shop")
    assert handler.seen == [{}]
