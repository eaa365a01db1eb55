"""Every metric by name, and what moves it: the real handler and the real assembler on the embedded store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from schemas.codes import PartName
from tests.support.assembling import settings
from tests.support.handling import FIELDS, LIMITS, NOW, NOW_MS, ROUTES, Bench, open_store, record
from worker.assembly import Assembler
from worker.failpoints import Failpoints
from worker.fusion.sections import fence_for
from worker.kafka.handlers import RequestHandler
from worker.ports import LayerBudget, LayerContribution, Provider, RequestFrame, Scope
from worker.providers.gather import Abandonment
from worker.wiring import build_providers, content_policy

MOVED_HERE = {
    "context_outcomes",
    "context_outcomes_republished",
    "context_dead_letters",
    "context_layers",
    "context_sources_abandoned",
    "context_sources_left_behind",
    "context_unknown_fields",
    "context_naive_times",
    "context_escaped_delimiters",
    "context_ignored_headers",
    "context_record_age_seconds",
    "context_source_seconds",
    "context_stage_seconds",
}
MOVED_BY_OTHER_PARTS = {
    "context_telemetry_exports",  # test_otlp
    "context_altered_publications",  # test_replies
    "context_records_given_up",  # test_dispatch
    "context_syncs",  # test_sync_handler
    "context_tool_calls",  # test_tool_handler
    "context_verdicts",  # test_answering
    "context_state_events",  # test_state_handler
    "context_undecided_owners",  # test_graph_reader
    "context_pack_cache",  # the pack provider
    "context_state_cache",  # test_hot_state
    "context_records_in_flight",  # the running application, which reads them off its dispatchers
    "context_records_waiting",
    "context_records_lag",  # tests/e2e/test_backlog
    "context_partitions_paused",
    "context_uncommitted_span",
    "context_commits",
    "context_quarantine",
    "context_event_loop_lag_seconds",  # test_health
    "context_usage_log_failures",  # test_usage_log, tests/faults/test_disk_full
}


class Stuck:
    """A source that swallows its cancellation until it is let go."""

    layer: PartName = "semantic"

    def __init__(self) -> None:
        self.is_free = asyncio.Event()

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        del frame, scope, budget
        while True:
            try:
                await self.is_free.wait()
            except asyncio.CancelledError:
                continue
            return LayerContribution(layer=self.layer, status="empty", reason="no_data")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Bench]:
    store = open_store(tmp_path / "outcomes.db")
    yield Bench(store=store)
    await store.close()


def handler_of(bench: Bench, *more: Provider) -> RequestHandler:
    """A handler with the real sources, those in `more` in place of their layers' own."""
    replaced = {provider.layer for provider in more}
    providers = [provider for provider in build_providers(settings()) if provider.layer not in replaced]
    assembler = Assembler(
        providers=[*providers, *more],
        policy=content_policy(settings()),
        telemetry=bench.telemetry,
        abandonment=Abandonment(cap=4),
        now=lambda: NOW,
        failpoints=Failpoints(),
    )
    return RequestHandler(
        assemble=assembler.assemble,
        store=bench,
        publisher=bench,
        usage_log=bench,
        routes=ROUTES,
        limits=LIMITS,
        telemetry=bench.telemetry,
        failpoints=bench.failpoints,
        now=lambda: NOW,
    )


def fields(**more: Any) -> dict[str, Any]:
    return {**FIELDS, **more}


def value(bench: Bench, name: str, **labels: str) -> float:
    return bench.telemetry.registry.get_sample_value(name, labels) or 0.0


def test_every_metric_is_named_in_one_of_the_lists(bench: Bench) -> None:
    names = {family.name for family in bench.telemetry.registry.collect()}
    assert names == MOVED_HERE | MOVED_BY_OTHER_PARTS
    exposed = bench.telemetry.exposition().decode()
    assert all(f"# TYPE {name}" in exposed for name in names)


async def test_a_bundle_counts_its_outcome_its_layers_and_the_time_of_each_step(bench: Bench) -> None:
    await handler_of(bench).handle(record(fields(subject="chat")))
    assert value(bench, "context_outcomes_total", outcome="complete", code="") == 1
    assert value(bench, "context_layers_total", layer="user", status="ok", reason="") == 1
    assert value(bench, "context_layers_total", layer="graph", status="off", reason="subject_gated") == 1
    assert value(bench, "context_source_seconds_count", layer="memory") == 1
    for step in ("decode", "store", "analyse", "plan", "gather", "fuse", "finish", "seal", "publish"):
        assert value(bench, "context_stage_seconds_count", stage=f"context.{step}") >= 1, step
        assert value(bench, "context_stage_seconds_sum", stage=f"context.{step}") > 0, step
        assert value(bench, "context_stage_seconds_bucket", stage=f"context.{step}", le="+Inf") == value(
            bench, "context_stage_seconds_count", stage=f"context.{step}"
        ), step


async def test_layers_and_escapes_are_counted_by_whom_the_store_lets_win(bench: Bench) -> None:
    delimiter = fence_for(Scope(project_id="shop", thread_id="t-1")).delimiter
    memory = {"items": [{"id": "m", "text": f"so it says {delimiter} twice {delimiter}"}]}
    young = record(fields(memory=memory), timestamp_ms=NOW_MS)
    handler = handler_of(bench)
    await asyncio.gather(*(handler.handle(young) for _ in range(3)))
    assert value(bench, "context_layers_total", layer="memory", status="ok", reason="") == 1
    assert value(bench, "context_escaped_delimiters_total") == 2
    assert value(bench, "context_outcomes_republished_total") == 2


async def test_poison_counts_a_dead_letter_and_a_rejection(bench: Bench) -> None:
    await handler_of(bench).handle(record(b"{"))
    assert value(bench, "context_dead_letters_total", code="invalid_json") == 1
    assert value(bench, "context_outcomes_total", outcome="rejected", code="invalid_json") == 1


async def test_what_decoding_forgave_is_counted(bench: Bench) -> None:
    body = fields(colour="red", as_of="2026-02-03T04:05:06")
    await handler_of(bench).handle(record(body, headers=(("traceparent", b"x"),)))
    assert value(bench, "context_unknown_fields_total") == 1
    assert value(bench, "context_naive_times_total") == 1
    assert value(bench, "context_ignored_headers_total", header="traceparent") == 1


async def test_a_source_that_is_left_behind_is_counted_until_it_ends(bench: Bench) -> None:
    stuck = Stuck()
    body = fields(layer_timeouts_ms={"semantic": 10})
    await handler_of(bench, stuck).handle(record(body))
    assert value(bench, "context_sources_abandoned_total", layer="semantic") == 1
    assert value(bench, "context_sources_left_behind") == 1
    stuck.is_free.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert value(bench, "context_sources_left_behind") == 0
