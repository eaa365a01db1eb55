"""The real worker on real Kafka and on the embedded broker: what goes in, and what comes out."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from tests.support.cluster import (
    Mode,
    Topics,
    covers,
    request,
    workers,
)

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="session")]


async def test_requests_become_bundles_with_usage(mode: Mode, topics: Topics, tmp_path: Path) -> None:
    async with workers(mode, tmp_path) as start:
        worker = await start()
        trace = (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        await topics.send(request(1), headers=[("correlation_id", b"c-1"), (trace[0].decode(), trace[1])])
        published = await topics.read_until("bundles", covers({"r1"}))
        headers = dict(published.records[0].headers)
        assert published.records[0].key == b"p"
        assert headers["correlation_id"] == b"c-1"
        assert headers["traceparent"].split(b"-")[1] == b"0af7651916cd43dd8448eb211c80319c"
        body = json.loads(published.records[0].value)
        assert (body["kind"], body["status"]) == ("bundle", "complete")
        usage = await topics.read_until("usage", covers({"r1"}))
        event = json.loads(usage.records[0].value)
        assert event["usage"]["spent"] == body["usage"]["spent"]
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
    lines = [json.loads(line) for line in (tmp_path / "usage.jsonl").read_text().splitlines()]
    assert [line["request_id"] for line in lines] == ["r1"]


async def test_the_same_request_thrice_at_once_on_two_workers_gets_the_same_bytes(
    mode: Mode, topics: Topics, tmp_path: Path
) -> None:
    async with workers(mode, tmp_path) as start:
        await start()
        await start()
        # Spread over partitions on purpose: a caller that changes its key must not get a second outcome.
        await asyncio.gather(*(topics.send(request(1), partition=n) for n in (0, 5, 11)))
        await topics.read_until("bundles", lambda p: len(p.records) >= 3)
        outcomes = (await topics.read_all("bundles")).by_outcome()
        assert [len(set(values)) for values in outcomes.values()] == [1]
        usage = await topics.read_until("usage", lambda p: len(p.records) >= 3)
        assert len({record.value for record in usage.records}) == 1
        await topics.send(request(1, user_message="Something else."))
        again = await topics.read_until("bundles", lambda p: len(p.records) >= 4)
        assert json.loads(again.records[-1].value)["code"] == "request_id_reused"
        await topics.send(request(1, project="other"), key="other")
        other = await topics.read_until("bundles", lambda p: len(p.records) >= 5)
        assert json.loads(other.records[-1].value)["project_id"] == "other"


async def test_a_hanging_source_degrades_its_layer_in_time(
    mode: Mode, topics: Topics, tmp_path: Path
) -> None:
    async with workers(mode, tmp_path) as start:
        await start(WORKER_FAILPOINTS="provider.memory=hang@number 1")
        await topics.send(request(1, memory={"summary": "x"}, layer_timeouts_ms={"memory": 200}))
        published = await topics.read_until("bundles", covers({"r1"}))
        body = json.loads(published.records[0].value)
        assert body["status"] == "degraded"
        assert body["layers"]["memory"]["status"] == "failed"
        assert body["layers"]["memory"]["reason"] == "abandoned"


async def test_an_expired_request_is_answered_at_once(mode: Mode, topics: Topics, tmp_path: Path) -> None:
    async with workers(mode, tmp_path) as start:
        await start()
        await topics.send(request(1, expires_at="2020-01-01T00:00:00Z"))
        published = await topics.read_until("bundles", covers({"r1"}))
        body = json.loads(published.records[0].value)
        assert (body["code"], body["retryable"]) == ("expired", True)
