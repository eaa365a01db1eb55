"""Traffic published against a worker's topics within this process, and judged by the invariants."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock
from uuid import uuid4

from tests.support.cluster import PATIENCE_SECONDS, Mode, environment_of
from worker.load.pacing import Pace
from worker.load.recording import RecordedRecord, Recording, RecordingHeader, RecordingWriter
from worker.load.replayer import ReplayPlan, survey
from worker.load.report import ReplayReport
from worker.settings import Settings
from worker.wiring_load import ReplayCall, run_replay
from worker.wiring_settings import read_settings


def settings_of(mode: Mode, **environment: str) -> Settings:
    """What a worker of that mode reads, within this process: starting a command takes seconds."""
    with mock.patch.dict(os.environ, {**environment_of(mode), **environment}):
        return read_settings()


def write_recording(file: Path, records: Iterable[RecordedRecord]) -> Path:
    with RecordingWriter(file, RecordingHeader(origin="generated", created_at=datetime.now(UTC))) as writer:
        for record in records:
            writer.add(record)
    return file


async def replayed(mode: Mode, file: Path, plan: ReplayPlan) -> ReplayReport:
    """What the command comes to."""
    return await run_replay(
        settings_of(mode),
        ReplayCall(path=file, plan=plan, canaries={}),
        surveyed=survey(Recording(file)),
        on_start=lambda _: None,
        on_tick=lambda: None,
    )


async def load(
    mode: Mode,
    folder: Path,
    records: Iterable[RecordedRecord],
    *,
    rate_per_second: float | None = None,
    wait_seconds: float = 2 * PATIENCE_SECONDS,
) -> ReplayReport:
    """Publish these records, at a rate or as fast as they are taken, and judge what comes back."""
    run = f"load-{uuid4().hex[:8]}"
    plan = ReplayPlan(run=run, pace=Pace(rate_per_second=rate_per_second), wait_seconds=wait_seconds)
    return await replayed(mode, write_recording(folder / f"{run}.rec", records), plan)


def broken(report: ReplayReport) -> dict[str, list[str]]:
    return {verdict.name: verdict.examples for verdict in report.verdicts if not verdict.holds}
