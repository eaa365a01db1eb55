"""A live worker's `/metrics` after hostile traffic: what a caller can choose is no label and no name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from schemas.tools import ToolRequest
from worker.kafka.embedded import EmbeddedBroker
from worker.settings import Settings
from worker.wiring_kafka import build_client
from worker.wiring_worker import start_worker

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="session")]

MARK: Final = "canary"
BASE: Final[Mapping[str, Any]] = {
    "request_id": f"{MARK}-request",
    "project_id": f"{MARK}-project",
    "thread_id": f"{MARK}-thread",
    "volk": f'{MARK}"volk\\{{}}',
    "subject": "implement",
    "user_message": MARK,
}
REQUESTS: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {"subject": f"{MARK}-subject"},
    {"model": f"{MARK}-model"},
    {"model": f"{MARK}-own", "encoding": "bytes", "budget": {"total": 9_000}},
    {"strategy": f"{MARK}-strategy"},
    {"budget": {"layers": {f"{MARK}-layer": 1}}},
    {"layer_timeouts_ms": {f"{MARK}-layer": 1}},
    {"ranking": f"{MARK}-ranking"},
    {"task_type": f"{MARK}-task"},
    {"requester": f"{MARK}-requester"},
    {"include": [f"{MARK}-part"]},
    {"plan_id": f"{MARK}-plan", "parent": {"request_id": f"{MARK}-parent", "focus": []}},
    {"schema_version": f"{MARK}.0"},
    {"memory": {"items": [{"id": f"{MARK}-m", "text": MARK, "occurred_at": "2026-01-01T00:00:00"}]}},
    {"artifacts": [{"stage_alias": f"{MARK}-stage", "artifact_type": f"{MARK}-type", "content": MARK}]},
    {f"{MARK}_unknown": 1},
    {"expires_at": "2001-01-01T00:00:00Z"},
)
HEADERS: Final[tuple[tuple[str, bytes], ...]] = (
    ("context-kind", f"{MARK}-kind".encode()),
    ("context-generation", f"{MARK}".encode()),
    ("traceparent", f"{MARK}".encode()),
    (f"{MARK}-header", b"1"),
)
TOOLS: Final[tuple[Mapping[str, Any], ...]] = (
    {"tool": f"{MARK}-tool", "arguments": {}},
    {"tool": "get_code", "arguments": {MARK: 1}},
)
UNANSWERED: Final[Mapping[str, Mapping[str, Any]]] = {
    "sync": {"sync_id": f"{MARK}-sync", "project_id": f"{MARK}-p", "root": f"/{MARK}"},
    "state": {"event_id": f"{MARK}-e", "project_id": f"{MARK}-p", "event": f"{MARK}-event", "body": {}},
}
"""By topic; what is counted of them shows that they were met."""


@pytest_asyncio.fixture(loop_scope="session")
async def url(embedded: EmbeddedBroker, namespace: str, tmp_path: Path) -> AsyncGenerator[str]:
    async with start_worker(_settings(embedded, namespace, tmp_path), usage_log=tmp_path / "usage") as url:
        yield url


def _settings(embedded: EmbeddedBroker, namespace: str, folder: Path) -> Settings:
    return Settings.model_validate(
        {
            "kafka": {
                "bootstrap_servers": [embedded.bootstrap_servers],
                "topic_prefix": f"{namespace}.",
                "group_id": namespace,
                "idempotent_producer": False,
                "fetch_max_wait_ms": 10,
            },
            "http": {"port": 0},
            "outcomes": {"sqlite_path": folder / "outcomes.db"},
            "graph": {"sqlite_path": folder / "graph.db"},
            "state": {"sqlite_path": folder / "state.db"},
        }
    )


async def test_nothing_that_a_caller_chooses_is_seen_in_metrics(
    url: str, embedded: EmbeddedBroker, namespace: str, tmp_path: Path
) -> None:
    bodies = [
        json.dumps({**BASE, "request_id": f"{MARK}-{number}", **more}).encode()
        for number, more in enumerate(REQUESTS)
    ]
    sent = [
        *((body, ()) for body in (*bodies, b"{" + MARK.encode(), b"\xff")),
        *((bodies[0], (header,)) for header in HEADERS),
    ]
    async with build_client(_settings(embedded, namespace, tmp_path)) as client:
        replies = await asyncio.gather(*(client.exchange_raw(body, headers=more) for body, more in sent))
        for number, call in enumerate(TOOLS):
            asked = {"call_id": f"{MARK}-{number}", "project_id": f"{MARK}-p", **call}
            await client.call_tool(ToolRequest.model_validate(asked), timeout_seconds=60)
        for role, fields in UNANSWERED.items():
            topic = f"{namespace}.{role}"
            await client.publish_raw(json.dumps(fields).encode(), key=MARK.encode(), topic=topic)
        text = await _metrics_when(url, ("context_syncs_total", "context_state_events_total"))
    assert {json.loads(reply)["kind"] for reply in replies} == {"bundle", "rejection"}
    assert MARK not in text
    labels = {
        name
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        for name in sample.labels
    }
    assert labels.isdisjoint({"project", "thread", "request", "volk", "model", "subject", "plan", "tool"})
    assert not [name for name in labels if name.endswith(("_id", "_alias"))]


async def _metrics_when(url: str, names: tuple[str, ...]) -> str:
    """The page, once each of these has counted something: an empty one would show no id either."""
    async with httpx.AsyncClient() as http:
        while True:
            text = (await http.get(f"{url}/metrics")).text
            counted = {
                sample.name
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.value > 0
            }
            if counted.issuperset((*names, "context_outcomes_total", "context_tool_calls_total")):
                return text
