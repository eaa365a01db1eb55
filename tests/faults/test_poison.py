"""Poison of every class between good records: what is bad is answered, what is good is served."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.sizes import SIZES
from tests.faults.table import Row, row_of
from tests.support.cluster import Mode, Topics, workers
from tests.support.poison import Bad, records
from tests.support.probing import Probe
from tests.support.replaying import load
from worker.load.generator import Traffic, generate
from worker.load.recording import RecordedRecord, now_utc

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("mode", SIZES.modes, indirect=True)
async def test_poison_between_good_records_costs_them_nothing(
    mode: Mode, topics: Topics, judge: Callable[[Row], None], tmp_path: Path
) -> None:
    bad = list(records(mode.prefix).values())
    began = time.monotonic()
    async with workers(mode, tmp_path) as start:
        worker = await start(WORKER_LOG_FORMAT="json")
        report = await load(mode, tmp_path, alternating(bad))
        assert await (await Probe.of(worker)).metric("context_records_given_up_total") == 0
        assert worker.process.returncode is None
    judge(row_of(f"poison of every class, {mode.name}", report, began=began, note=f"{len(bad)} kinds"))
    # A replay asks for no reply topic of somebody else, and its ids are all new: these are good then.
    mended = {"reply_to_not_allowed", "request_id_reused"}
    codes = {item.code for item in bad if item.code is not None} - mended
    assert set(report.measures.codes) == codes
    assert report.measures.outcomes["rejected"] == sum(item.code in codes for item in bad)


def alternating(bad: list[Bad]) -> Iterator[RecordedRecord]:
    """A good record, then a bad one, on the same partition."""
    good = generate(Traffic(requests=len(bad)))
    for number, (item, record) in enumerate(zip(bad, good, strict=True)):
        yield record
        yield RecordedRecord(
            partition=record.partition,
            timestamp_ms=int(now_utc().timestamp() * 1_000) + number,
            key=b"\xff",
            value=item.body if isinstance(item.body, bytes) else json.dumps(item.body).encode(),
            headers=item.headers,
        )
