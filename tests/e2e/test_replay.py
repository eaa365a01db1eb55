"""Traffic recorded from a real broker, published again and judged, by the commands as operators call them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.support.cluster import (
    PATIENCE_SECONDS,
    ROOT,
    Mode,
    Topics,
    embedded_mode,
    environment_of,
    request,
    workers,
)
from tests.support.replaying import broken, replayed
from worker.kafka.embedded import EmbeddedBroker
from worker.load.pacing import Pace
from worker.load.recorder import Captured, Recorder, RecordPlan
from worker.load.recording import RecordedRecord, Recording, RecordingHeader, RecordingWriter
from worker.load.replayer import Replayer, ReplayPlan, Target
from worker.load.spool import Spool
from worker.load.synthetic import Synthesizer, Vocabulary

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="session")]

REQUESTS = 60
LONG_AGO = "2020-01-01T00:00:00Z"


@dataclass(frozen=True, kw_only=True)
class Finished:
    code: int
    output: str
    said: str

    @property
    def report(self) -> dict[str, Any]:
        assert self.output, self.said
        return json.loads(self.output)

    def broken(self) -> dict[str, list[str]]:
        return {item["name"]: item["examples"] for item in self.report["invariants"] if not item["holds"]}


async def command(mode: Mode, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "worker", *arguments),
        cwd=ROOT,
        env={
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            **environment_of(mode),
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def finished(process: asyncio.subprocess.Process) -> Finished:
    output, said = await process.communicate()
    assert process.returncode is not None
    return Finished(code=process.returncode, output=output.decode(), said=said.decode())


def varied(number: int) -> dict[str, Any] | bytes:
    """Requests that end in every way: bundles, rejections with and without ids."""
    match number % 10:
        case 3:
            return request(number, subject="no such subject")
        case 5:
            return b'{"request_id": "r%d", "project_id": "p", ' % number
        case 7:
            return b"no JSON at all"
        case 8:
            return request(number - 1_000 if number > 1_000 else number, expires_at="2020-01-01T00:00:00Z")
        case _:
            return request(number, include=["messages", "layers", "usage"], memory={"summary": f"m{number}"})


async def test_recorded_traffic_is_replayed_and_a_second_outcome_is_noticed(
    mode: Mode, topics: Topics, tmp_path: Path
) -> None:
    file, again = tmp_path / "traffic.rec", request(1, include=["messages", "layers", "usage"])
    async with workers(mode, tmp_path) as start:
        await start()
        recording = await command(
            mode, "record", str(file), "--since", LONG_AGO, "--max-records", str(REQUESTS)
        )
        for number in range(REQUESTS - 2):
            await topics.send(varied(number), partition=number % 12)
        for _ in range(2):  # one request, sent twice
            await topics.send(again | {"request_id": "twice"}, partition=4)
        recorded = await finished(recording)
        assert recorded.code == 0, recorded.said
        assert len(list(Recording(file))) == REQUESTS

        # With their own ids, requests get the outcomes that they have, byte for byte.
        plan = ReplayPlan(run="again", pace=Pace(), keep_ids=True, wait_seconds=PATIENCE_SECONDS)
        repeated = await replayed(mode, file, plan)
        assert broken(repeated) == {}
        assert repeated.holds
        assert repeated.measures.answered == REQUESTS - 1  # what was sent twice waited once

        shareable = tmp_path / "shareable.rec"
        synthesize(file, shareable)
        report = tmp_path / "report.json"
        async with rogue(mode, topics):
            options = ("--json", "--rate", "200", "--wait", str(PATIENCE_SECONDS), "--report", str(report))
            planted = await finished(await command(mode, "replay", str(shareable), *options))
        assert planted.code == 5, planted.said
        assert list(planted.broken()) == ["I1"], planted.broken()
        assert "2 distinct outcomes" in planted.broken()["I1"][0]
        assert planted.report == json.loads(report.read_text())
        figures = planted.report
        assert (figures["sent"], figures["unanswered"], figures["lag_records"]) == (REQUESTS, 0, 0)
        assert set(figures["rejections"]) == {"invalid_json", "unknown_subject", "expired"}
        assert figures["latency_ms"]["count"] == REQUESTS - 1
        assert not any(item["not_judged"] for item in figures["invariants"])


def synthesize(source: Path, target: Path) -> None:
    vocabulary = Vocabulary(models=frozenset(), subjects=frozenset({"implement"}))
    synthesizer = Synthesizer(secret=b"a secret of the test", vocabulary=vocabulary)
    with RecordingWriter(target, RecordingHeader(origin="synthetic", created_at=datetime.now(UTC))) as writer:
        for record in Recording(source):
            writer.add(synthesizer.record(record))


@asynccontextmanager
async def rogue(mode: Mode, topics: Topics) -> AsyncGenerator[None]:
    """Publishes another bundle for the first request of a replay that it sees answered."""

    async def intrude() -> None:
        have = len((await topics.read_all("bundles")).records)
        found = await topics.read_until("bundles", lambda p: bool(bundles(p.records[have:])))
        record = bundles(found.records[have:])[0]
        other = json.loads(record.value) | {"context_hash": "0" * 64}
        await topics.send(other, key=record.key, headers=record.headers, topic="bundles")

    def bundles(records: list[Any]) -> list[Any]:
        return [record for record in records if json.loads(record.value)["kind"] == "bundle"]

    intruding = asyncio.create_task(intrude())
    try:
        yield
        await intruding
    finally:
        intruding.cancel()


async def test_a_recording_that_is_stopped_holds_all_that_came(
    embedded: EmbeddedBroker, namespace: str, tmp_path: Path
) -> None:
    mode = embedded_mode(embedded.bootstrap_servers, namespace=namespace, folder=tmp_path)
    file = tmp_path / "live.rec"
    progress: asyncio.Queue[Captured] = asyncio.Queue()
    recorder = Recorder(
        mode.prefix + "requests",
        {"bootstrap_servers": [mode.bootstrap]},
        transform=lambda record: record,
        on_progress=progress.put_nowait,
    )
    async with Topics(mode) as topics:
        await topics.send(request(0))  # before the recording begins
        with RecordingWriter(
            file, RecordingHeader(origin="recorded", created_at=datetime.now(UTC))
        ) as writer:
            recording = asyncio.create_task(recorder.record(writer, RecordPlan()))
            await progress.get()  # it has its place on the topic
            for number in range(1, 8):
                headers = [("x", b"\xff")]
                await topics.send(request(number), key=b"\xfe", headers=headers, partition=number)
            while (await progress.get()).records < 7:
                assert Recording(file.with_name("live.rec.partial")).header().origin == "recorded"
            recorder.stop()
            captured = await recording
    found = list(Recording(file))
    assert captured.records == 7
    # As it comes: between partitions that is in no order.
    assert {json.loads(record.value or b"")["request_id"]: record.partition for record in found} == {
        f"r{number}": number for number in range(1, 8)
    }
    assert {(record.key, record.headers) for record in found} == {(b"\xfe", (("x", b"\xff"),))}


async def test_what_was_there_is_recorded_in_the_order_of_its_times(
    embedded: EmbeddedBroker, namespace: str, tmp_path: Path
) -> None:
    mode = embedded_mode(embedded.bootstrap_servers, namespace=namespace, folder=tmp_path)
    file = tmp_path / "backlog.rec"
    recorder = Recorder(
        mode.prefix + "requests",
        {"bootstrap_servers": [mode.bootstrap]},
        transform=lambda record: record,
        on_progress=lambda captured: None,
    )
    async with Topics(mode) as topics:
        sent = [await topics.send(request(number), partition=number * 7 % 12) for number in range(24)]
        since = datetime.fromtimestamp(sent[4].timestamp / 1_000, UTC)
        with RecordingWriter(
            file, RecordingHeader(origin="recorded", created_at=datetime.now(UTC))
        ) as writer:
            await recorder.record(writer, RecordPlan(since=since, duration_seconds=0))
    found = list(Recording(file))
    times = [record.timestamp_ms for record in found]
    assert times == sorted(times)
    assert len(found) == sum(item.timestamp >= sent[4].timestamp for item in sent)


# --- Open loop ---------------------------------------------------------------------------------------

STALL_SECONDS = 1.0
RATE = 100.0


async def test_a_stalled_worker_costs_every_request_that_was_due_meanwhile(
    embedded: EmbeddedBroker, namespace: str, tmp_path: Path
) -> None:
    mode = embedded_mode(embedded.bootstrap_servers, namespace=namespace, folder=tmp_path)
    file = tmp_path / "due.rec"
    with RecordingWriter(file, RecordingHeader(origin="generated", created_at=datetime.now(UTC))) as writer:
        for number in range(200):
            body = json.dumps(request(number)).encode()
            writer.add(RecordedRecord(partition=0, timestamp_ms=0, key=b"p", value=body))
    plan = ReplayPlan(run="stalled", pace=Pace(rate_per_second=RATE))
    target = Target(
        options={"bootstrap_servers": [mode.bootstrap]},
        group=mode.group,
        **{
            name: mode.prefix + name.replace("_", "-")
            for name in ("requests", "bundles", "usage", "dead_letters")
        },
    )
    async with Topics(mode), stalling_worker(mode) as waited:
        with Spool() as spool:
            replayer = Replayer(target, plan, spool)
            await replayer.run(Recording(file), reply_topics=frozenset(), on_tick=lambda: None)
    # Sent while nobody answered: the sender did not wait for the worker.
    assert waited[0] > 40
    latencies = replayer.measures.latencies
    assert latencies.count == 200
    # A sender that waits would have one slow request in 200; here a quarter waited for half the stall.
    assert latencies.percentile_ms(75.0) > STALL_SECONDS * 1_000 / 4
    assert latencies.as_dict()["max"] > STALL_SECONDS * 1_000 / 2


@asynccontextmanager
async def stalling_worker(mode: Mode) -> AsyncGenerator[list[int]]:
    """Answers each request with a rejection, and once stalls; gives how many records came meanwhile."""
    place = TopicPartition(mode.prefix + "requests", 0)
    waited: list[int] = []
    consumer: Any = AIOKafkaConsumer(
        bootstrap_servers=mode.bootstrap, group_id=mode.group, enable_auto_commit=False, fetch_max_wait_ms=10
    )
    producer: Any = AIOKafkaProducer(bootstrap_servers=mode.bootstrap)

    async def work() -> None:
        answered = 0
        while True:
            record = await consumer.getone()
            body = json.loads(record.value)
            reply = {
                "kind": "rejection",
                "request_id": body["request_id"],
                "project_id": "p",
                "code": "expired",
            }
            await producer.send(
                mode.prefix + "bundles", json.dumps(reply).encode(), headers=list(record.headers)
            )
            answered += 1
            if answered == 20:
                await asyncio.sleep(STALL_SECONDS)  # the stall is what is tested
                ends = await consumer.end_offsets([place])
                waited.append(ends[place] - record.offset - 1)
            if answered % 50 == 0:
                await consumer.commit({place: record.offset + 1})

    await consumer.start()
    await producer.start()
    consumer.assign([place])
    consumer.seek(place, 0)
    working = asyncio.create_task(work())
    try:
        yield waited
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        await consumer.stop()
        await producer.stop()
