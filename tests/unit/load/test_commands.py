"""The commands as far as they go without a broker, and what a replay says at its end."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from errno import ENOSPC
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from worker.cli import app
from worker.load.invariants import Broken, NotJudged, Verdict
from worker.load.measures import Measures
from worker.load.observations import Progress
from worker.load.recording import Recording, RecordingHeader, RecordingWriter
from worker.load.report import ReplayReport, render_progress, render_report

runner = CliRunner()


@pytest.mark.parametrize("command", ["record", "generate", "replay"])
def test_every_command_teaches(command: str):
    result = runner.invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output


def test_made_up_traffic_is_the_same_file_for_the_same_seed(tmp_path: Path):
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        result = runner.invoke(
            app, ["generate", str(tmp_path / name), "--requests", "20", "--seed", seed, "--projects", "2"]
        )
        assert result.exit_code == 0
        assert result.stderr.endswith(f"context-worker replay {tmp_path / name}\n")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()
    records = list(Recording(tmp_path / "a"))
    assert {json.loads(record.value or b"")["project_id"] for record in records} == {"load-1", "load-2"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replay", "x.rec", "--speed", "fast"], "neither a number"),
        (["replay", "x.rec", "--speed", "nan"], "neither a number"),
        (["replay", "x.rec", "--speed", "2", "--rate", "2"], "give one"),
        (["replay", "x.rec", "--canary", "shop"], "PROJECT=TEXT"),
        (["record", "x.rec", "--since", "yesterday"], "--since"),
        (["record", "x.rec", "--duration", "0"], "--since"),
    ],
)
def test_a_wrong_call_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
):
    monkeypatch.chdir(tmp_path)
    runner.invoke(app, ["generate", "x.rec", "--requests", "1"])
    result = runner.invoke(app, arguments)
    assert result.exit_code == 1
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def report(*, verdicts: tuple[Verdict, ...], measures: Measures) -> ReplayReport:
    return ReplayReport(
        run="replay-1",
        recording="monday.rec",
        origin="recorded",
        is_complete=False,
        pace="10x",
        keep_ids=False,
        started_at=datetime(2026, 1, 2, tzinfo=UTC),
        measures=measures,
        progress=(Progress(partition=0, committed=3, sent_end=5),),
        verdicts=verdicts,
    )


def shown(item: ReplayReport) -> str:
    console = Console(file=StringIO(), width=100)
    console.print(render_report(item))
    console.print(render_progress(item.measures, total=9, seconds=1.0))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def measured() -> Measures:
    measures = Measures(sent=4, acknowledged=4, answered=3, in_flight=1, repeated=1, sending_seconds=2.0)
    measures.answering_seconds = 1.5
    measures.outcomes.update(complete=2, rejected=1)
    measures.codes.update(expired=1)
    measures.layers.update({"graph failed timeout": 2})
    for milliseconds in range(1, 101):
        measures.latencies.add(milliseconds / 1_000)
    return measures


def test_a_report_says_what_was_measured_and_what_is_broken():
    broken = Verdict(name="I1", claim="one distinct outcome")
    for number in range(7):
        broken.add(Broken("no outcome"), f"shop r{number}")
    silent = Verdict(name="I6", claim="budgets hold")
    silent.add(NotJudged("no messages"), "shop r1")
    item = report(verdicts=(broken, silent), measures=measured())
    assert not item.holds
    document = json.loads(json.dumps(item.as_dict()))
    assert (document["holds"], document["lag_records"], document["unanswered"]) == (False, 2, 1)
    assert (document["sent_per_second"], document["answered_per_second"]) == (2.0, 2.0)
    assert document["latency_ms"]["p50"] == pytest.approx(50.0, rel=0.01)
    assert document["latency_ms"]["p99"] == pytest.approx(99.0, rel=0.01)
    text = shown(item)
    for said in (
        *("BROKEN", "shop r0: no outcome", "and 2 more", "1 not judged: no messages", "cut off"),
        *("complete 2, rejected 1", "expired 1", "graph failed timeout 2", "answered again: 1"),
    ):
        assert said in text


def test_a_record_that_was_not_published_is_no_success():
    measures = measured()
    assert report(verdicts=(), measures=measures).holds
    measures.failed.update(MessageSizeTooLargeError=1)
    item = report(verdicts=(), measures=measures)
    assert not item.holds
    assert "not published: 1 MessageSizeTooLargeError" in shown(item)


def test_a_replay_that_sent_nothing_is_no_success():
    item = report(verdicts=(Verdict(name="I1", claim="one distinct outcome"),), measures=Measures())
    assert not item.holds
    assert "nothing was sent, so nothing was judged" in shown(item)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_recording_without_a_request_is_not_replayed(tmp_path: Path, *, is_cut: bool):
    header = RecordingHeader(origin="recorded", created_at=datetime(2026, 1, 2, tzinfo=UTC))
    with suppress(OSError), RecordingWriter(tmp_path / "empty.rec", header):
        if is_cut:
            raise OSError(ENOSPC, "no space left")
    (file,) = tmp_path.iterdir()
    result = runner.invoke(app, ["replay", str(file)])
    assert result.exit_code == 1
    assert "holds no request" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_pace_that_was_not_kept_is_said():
    measures = measured()
    measures.lateness.add(0.2)
    assert "the pace was not kept" in shown(report(verdicts=(), measures=measures))
    measures = measured()
    measures.lateness.add(0.001)
    assert "the pace" not in shown(report(verdicts=(), measures=measures))
