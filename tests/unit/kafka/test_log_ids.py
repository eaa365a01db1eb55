"""Whose record a log line is about, while several are in work."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from schemas.codes import PARTS, PartName
from schemas.request import AssemblyRequest
from tests.support.handling import FIELDS, Bench, bundle, open_store, record, usage
from tests.support.handling import Assembled as Made
from tests.unit.kafka.test_tool_handler import ToolBench
from tests.unit.kafka.test_tool_handler import record as tool_record
from tests.unit.providers.frames import BUDGET, SCOPE, frame
from worker.errors import StoreUnavailable
from worker.ports import LayerBudget, LayerContribution, RequestFrame, Scope
from worker.providers.gather import Abandonment, gather
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
