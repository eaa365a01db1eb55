"""The checks themselves: whatever is planted against the table, or against the meter, is found."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.faults.layers import contradictions
from tests.faults.table import row_of
from tests.support.cluster import Mode, Topics, workers
from tests.support.meter import Bounds, Sample, leaks, slope
from tests.support.probing import children_bytes, open_descriptors, resident_bytes, threads
from tests.support.replaying import load, settings_of, write_recording
from worker.load.generator import Traffic, generate
from worker.load.pacing import Pace
from worker.load.recording import Recording
from worker.load.replayer import Replayer, ReplayPlan, survey
from worker.wiring_load import ReplayCall, run_replay

embedded = pytest.mark.parametrize("mode", ["embedded"], indirect=True)
within_session = pytest.mark.asyncio(loop_scope="session")


@within_session
@embedded
async def test_a_worker_whose_outcomes_were_wiped_is_found_to_double(
    mode: Mode, topics: Topics, tmp_path: Path
) -> None:
    """It has published an outcome, did not commit it, and makes another one in its next life."""
    mode = replace(mode, session_timeout_ms=2_000)
    began = time.monotonic()
    async with workers(mode, tmp_path) as start:
        victim = await start(WORKER_FAILPOINTS="usage.before_done=kill")
        loading = asyncio.create_task(load(mode, tmp_path, generate(Traffic(requests=1))))
        assert await victim.ended() == -9
        wipe(tmp_path)
        await start()
        row = row_of("wiped", await loading, began=began)
    assert (row.requests, row.lost, row.doubled, row.lag) == (1, 0, 1, 0)
    assert any(name.startswith("I3") for name in row.broken), row.broken
    assert row.breaches


def wipe(folder: Path) -> None:
    for file in folder.glob("outcomes.db*"):
        file.unlink()


@within_session
@embedded
async def test_what_is_committed_and_never_answered_is_found_to_be_lost(
    mode: Mode, topics: Topics, tmp_path: Path
) -> None:
    began = time.monotonic()
    report = await load(mode, tmp_path, generate(Traffic(requests=5)), wait_seconds=0.5)
    row = row_of("nobody works", report, began=began)
    assert (row.requests, row.lost, row.lag > 0) == (5, 5, True)
    assert {name.partition(":")[0] for name in row.broken} == {"I1", "I8"}

    loading = asyncio.create_task(load(mode, tmp_path, generate(Traffic(requests=5)), wait_seconds=10.0))
    await commit_to_the_end(mode, topics)
    row = row_of("somebody commits", await loading, began=began)
    assert (row.requests, row.lost, row.lag) == (5, 5, 0)
    assert {name.partition(":")[0] for name in row.broken} == {"I1", "I4"}


@within_session
@embedded
async def test_a_record_of_a_far_off_time_is_waited_for_and_ends_no_replay(
    mode: Mode, topics: Topics, tmp_path: Path
) -> None:
    first, second = generate(Traffic(requests=2))
    far_off = replace(second, timestamp_ms=2**63 - 1)
    file = write_recording(tmp_path / "far.rec", [first, far_off])
    running: list[Replayer] = []

    def stop_after_the_first() -> None:
        if running[0].measures.sent:
            running[0].stop()

    report = await run_replay(
        settings_of(mode),
        ReplayCall(
            path=file, plan=ReplayPlan(run="far", pace=Pace(speed=1.0), wait_seconds=0.5), canaries={}
        ),
        surveyed=survey(Recording(file)),
        on_start=running.append,
        on_tick=stop_after_the_first,
    )
    assert (report.measures.sent, report.measures.acknowledged) == (1, 1)


async def commit_to_the_end(mode: Mode, topics: Topics) -> None:
    """As a worker that commits what it reads before it is done would; once there are ten records."""
    requests = await topics.read_until("requests", lambda published: len(published.records) == 10)
    consumer: Any = AIOKafkaConsumer(
        bootstrap_servers=mode.bootstrap, group_id=mode.group, enable_auto_commit=False
    )
    await consumer.start()
    try:
        ends = {
            TopicPartition(record.topic, record.partition): record.offset + 1 for record in requests.records
        }
        consumer.assign(list(ends))
        await consumer.commit(ends)
    finally:
        await consumer.stop()


def event(**changed: dict[str, Any]) -> dict[str, Any]:
    """Of a request whose graph ran out of time, where all else is well."""
    said = {
        "memory": {"status": "ok"},
        "plan": {"status": "empty", "reason": "no_data"},
        "graph": {"status": "failed", "reason": "timeout"},
    }
    return {
        "statuses": said | changed,
        "usage": {"layers": {layer: {"spent": 7} for layer in said}},
        "timings_ms": {"total": 3_000.0},
    }


def contradicted(*events: dict[str, Any]) -> list[str]:
    harmed = {"graph": {("failed", "timeout")}}
    return contradictions(harmed, ["memory"], [*events, *[event()] * (20 - len(events))], deadline_ms=3_000)


def test_layers_that_say_what_they_must_are_no_contradiction_and_two_of_twenty_may_be_late() -> None:
    assert contradicted() == []
    assert contradicted(*[event(memory={"status": "failed", "reason": "timeout"})] * 2) == []


@pytest.mark.parametrize("graph", [{"status": "ok"}, {"status": "failed", "reason": "error"}], ids=str)
def test_a_harmed_layer_that_says_anything_else_a_single_time_is_found(graph: dict[str, Any]) -> None:
    assert contradicted(event(graph=graph)) == [
        f"graph is {(graph['status'], graph.get('reason'))} in 1 of 20"
    ]


def test_a_layer_that_says_it_ran_out_of_time_and_did_not_wait_is_found() -> None:
    assert contradicted(event() | {"timings_ms": {"total": 2_699.0}}) == ["graph has not waited in 1"]


@pytest.mark.parametrize(
    "changed",
    [
        {"memory": {"status": "failed", "reason": "timeout"}},
        {"memory": {"status": "empty", "reason": "no_data"}},
        {"memory": {"status": "partial", "reason": "section_error"}},
        {"plan": {"status": "failed", "reason": "state_unavailable"}},
        {"plan": {"status": "partial", "reason": "section_error"}},
    ],
    ids=str,
)
def test_an_unharmed_layer_that_fails_or_lacks_something_is_found(changed: dict[str, Any]) -> None:
    (layer,) = changed
    assert [said.partition(" ")[0] for said in contradicted(*[event(**changed)] * 3)] == [layer]


def test_an_unharmed_layer_without_content_is_found() -> None:
    hollow = event() | {"usage": {"layers": {"memory": {"spent": 0}}}}
    assert [said.partition(" ")[0] for said in contradicted(*[hollow] * 3)] == ["memory"]


HOLDER = """
import os
print(flush=True)
input()
held = os.urandom(1024) * 64 * 1024
opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
print(flush=True)
input()
"""


@contextmanager
def running(program: str) -> Generator[subprocess.Popen[bytes]]:
    """Python with this program; what it is asked and what it says goes through pipes."""
    command = [sys.executable, "-S", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        yield child
        child.communicate(b"\n")


def as_child(program: str) -> str:
    """A program that runs the other one as a child of its own."""
    return f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {program!r}])"


def read_line(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == b"\n"


def go_on(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.flush()
    read_line(child)


def test_the_meter_sees_what_a_process_takes() -> None:
    with running(HOLDER) as child:
        read_line(child)
        before = resident_bytes(child.pid), open_descriptors(child.pid)
        go_on(child)
        assert resident_bytes(child.pid) - before[0] > 1 << 25
        assert open_descriptors(child.pid) - before[1] == 20
        assert threads(child.pid) == 1


def samples(*, bytes_per_second: float) -> list[Sample]:
    """A hundred seconds of a process whose memory goes up and down by a megabyte, with one burst."""
    return [
        Sample(
            seconds=float(second),
            resident_bytes=int(
                100e6 + bytes_per_second * second + 1e6 * (-1) ** second + (50e6 if second == 99 else 0)
            ),
            descriptors=10,
            threads=3,
            tasks=7,
        )
        for second in range(100)
    ]


BOUNDS = Bounds(
    resident_bytes=300_000_000, whole_bytes=350_000_000, grown_bytes=2e6, descriptors=2, threads=1, tasks=1
)


def test_the_meter_sees_what_children_and_theirs_take() -> None:
    with running(as_child(as_child(HOLDER))) as child:
        read_line(child)
        before = children_bytes(child.pid)
        go_on(child)
        assert children_bytes(child.pid) - before > 1 << 25


def test_a_leak_in_a_child_is_found_as_one_of_the_process_is() -> None:
    leaking = [replace(one, children_bytes=int(50_000 * one.seconds)) for one in samples(bytes_per_second=0)]
    assert leaks(leaking[0], leaking, leaking[0], BOUNDS) == ["memory grew by 5.0 MB"]


def test_noise_is_no_leak_and_a_leak_is_found_within_noise() -> None:
    flat = samples(bytes_per_second=0)
    assert leaks(flat[0], flat, flat[0], BOUNDS) == []
    leaking = samples(bytes_per_second=50_000)
    assert leaks(leaking[0], leaking, leaking[0], BOUNDS) == ["memory grew by 5.0 MB"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"resident_bytes": 300_000_001}, "300 MB of memory"),
        ({"children_bytes": 249_000_001}, "350 MB with children"),
        ({"descriptors": 13}, "3 more descriptors"),
        ({"threads": 5}, "2 more threads"),
        ({"tasks": 9}, "2 more tasks"),
    ],
)
def test_what_has_not_been_given_back_is_named(change: dict[str, int], said: str) -> None:
    flat = samples(bytes_per_second=0)
    assert leaks(flat[0], flat, replace(flat[0], **change), BOUNDS) == [said]


def test_a_slope_is_that_of_the_line() -> None:
    assert slope([(x, 3.0 * x + 1) for x in range(500)]) == pytest.approx(3.0)
    assert slope([(1.0, 5.0)]) == 0.0
