from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, ConsumerStoppedError, KafkaConnectionError, KafkaError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.dispatching import MemoryLedger, until
from tests.support.fake_consumer import FakeConsumer, Raw
from worker.errors import StoreUnavailable
from worker.kafka.admission import Slots
from worker.kafka.assignment import Assignment, Shared
from worker.kafka.attempts import Attempts
from worker.kafka.dispatch import ConsumerBroken, Dispatcher
from worker.kafka.health import FailureWindow
from worker.kafka.outage import StoreGate
from worker.kafka.partition import Limits, PauseCause
from worker.kafka.quarantine import Quarantine
from worker.kafka.records import Handled, InboundRecord
from worker.ports import RecordRef
from worker.telemetry import Telemetry
from worker.undecodable import UndecodableBatch, UndecodableRecord

P0, P1 = TopicPartition("requests", 0), TopicPartition("requests", 1)


def ref(tp: TopicPartition, offset: int) -> RecordRef:
    return RecordRef(scope="cluster", topic=tp.topic, partition=tp.partition, offset=offset)


def undecodable(raw: Raw) -> UndecodableRecord:
    return UndecodableRecord(
        topic=raw.topic,
        partition=raw.partition,
        offset=raw.offset,
        timestamp=raw.timestamp,
        key=raw.key,
        value=raw.value,
        headers=raw.headers,
    )


class Bench:
    """A dispatcher on a fake consumer; its handler keeps every record until the test lets it go."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        max_in_flight: int = 16,
        share: int | None = None,
        expected_seconds: float = 0.0,
    ) -> None:
        self.consumer = FakeConsumer()
        self.ledger = MemoryLedger()
        self.begun: list[InboundRecord] = []
        self.ended: list[int] = []
        self.buried: list[int] = []
        self.holds: dict[tuple[int, int], asyncio.Event] = {}
        self.is_holding = True
        self.store_is_away = False
        self.now = 0.0
        self.cluster_errors: list[Exception] = []
        slots = Slots({"requests": max_in_flight}, shares={"requests": share or max_in_flight})
        self.slots = slots

        def on_quarantine() -> None:
            slots.is_exclusive = self.quarantine.is_active

        self.quarantine = Quarantine(self.ledger, span=1_000, on_change=on_quarantine)
        self.gate = StoreGate(self.probe, sleep=lambda _: asyncio.sleep(0))
        self.shared = Shared(
            slots=slots,
            gate=self.gate,
            quarantine=self.quarantine,
            telemetry=Telemetry(),
            limits=limits or Limits(commit_interval_seconds=0.01, revoke_wait_seconds=0.05),
            cluster_id=self.cluster_id,
            log_ends=self.log_ends,
            fetch_undecodable=self.fetch_undecodable,
            clock=lambda: self.now,
        )
        self.assignment = Assignment("group", shared=self.shared, consumer=lambda: self.consumer)
        attempts = Attempts(
            self,
            gate=self.gate,
            quarantine=self.quarantine,
            window=FailureWindow(),
            on_bad_deploy=lambda: None,
            on_given_up=lambda: None,
            sleep=lambda _: asyncio.sleep(0),
        )
        self.dispatcher = Dispatcher(
            "requests",
            attempts,
            assignment=self.assignment,
            shared=self.shared,
            expected_seconds=expected_seconds,
        )

    async def cluster_id(self) -> str:
        if self.cluster_errors:
            raise self.cluster_errors.pop()
        return "cluster"

    async def log_ends(self, listed: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        return {tp: self.consumer.log_end(tp) for tp in listed}

    async def fetch_undecodable(
        self, positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, UndecodableBatch]:
        found = {tp: self.undecodable_batch(tp, offset) for tp, offset in positions.items()}
        return {tp: batch for tp, batch in found.items() if batch is not None}

    def undecodable_batch(self, tp: TopicPartition, offset: int) -> UndecodableBatch | None:
        """Every batch of the fake log holds two records."""
        for record in self.consumer.log.get(tp, ()):
            if record.offset >= offset:
                first = record.offset - record.offset % 2
                batch = [one for one in self.consumer.log[tp] if first <= one.offset < first + 2]
                if not any((tp, one.offset) in self.consumer.undecodable for one in batch):
                    return None
                return UndecodableBatch(
                    records=tuple(undecodable(one) for one in batch if one.offset >= offset),
                    next_offset=first + 2,
                )
        return None

    async def probe(self) -> None:
        if self.store_is_away:
            raise StoreUnavailable("redis")

    def hold(self, partition: int, offset: int) -> asyncio.Event:
        return self.holds.setdefault((partition, offset), asyncio.Event())

    def let_go(self, *offsets: int, partition: int = 0) -> None:
        for offset in offsets:
            self.hold(partition, offset).set()

    async def handle(self, record: InboundRecord) -> Handled:
        self.begun.append(record)
        if self.store_is_away:
            raise StoreUnavailable("redis")
        if self.is_holding:
            await self.hold(record.partition, record.offset).wait()
        self.ended.append(record.offset)
        return Handled()

    async def bury(
        self, record: InboundRecord, *, attempts: int, cause: BaseException | None = None
    ) -> Handled:
        self.buried.append(record.offset)
        return Handled(code="worker_died")

    @property
    def begun_offsets(self) -> list[int]:
        return [record.offset for record in self.begun]

    def causes(self, tp: TopicPartition) -> set[PauseCause]:
        """Why it is paused."""
        return next(owner.causes for owner in self.assignment.partitions if owner.topic_partition == tp)

    def committed(self, tp: TopicPartition = P0) -> int | None:
        return self.consumer.stored.get(tp)

    @asynccontextmanager
    async def running(self, *owned: TopicPartition) -> AsyncGenerator[None]:
        tasks = [
            asyncio.create_task(self.dispatcher.read(self.consumer)),
            asyncio.create_task(self.dispatcher.keep_committing(self.consumer)),
        ]
        await self.consumer.rebalance(self.assignment, owned or (P0,))
        try:
            yield
        finally:
            self.gate.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.assignment.leave(drain_seconds=0)

    async def turn(self, times: int = 30) -> None:
        """Let everything that can go on go on."""
        for _ in range(times):
            await asyncio.sleep(0)


async def test_records_are_worked_on_side_by_side_and_committed_up_to_the_first_unfinished_one():
    bench = Bench()
    bench.consumer.append(P0, b"a", b"b", b"c")
    async with bench.running():
        await until(lambda: len(bench.begun) == 3)
        bench.let_go(1, 2)
        await until(lambda: bench.ended == [1, 2])
        await asyncio.sleep(0.05)
        assert bench.committed() is None
        bench.let_go(0)
        await until(lambda: bench.committed() == 3)


async def test_a_record_is_handed_over_as_it_was_stored():
    bench = Bench()
    raw = Raw(
        topic="requests",
        partition=0,
        offset=4,
        value=None,
        timestamp=12,
        key=b"\xff",
        headers=(("a", b"\xfe"), ("a", None), ("b", b"")),
    )
    bench.consumer.log[P0] = [raw]
    async with bench.running():
        await until(lambda: bench.begun)
    assert bench.begun == [
        InboundRecord(
            topic="requests",
            partition=0,
            offset=4,
            timestamp_ms=12,
            key=b"\xff",
            value=None,
            headers=(("a", b"\xfe"), ("a", b""), ("b", b"")),
        )
    ]


async def test_no_more_records_are_in_work_than_there_are_slots():
    bench = Bench(max_in_flight=2)
    bench.consumer.append(P0, *[b"x"] * 5)
    async with bench.running():
        await until(lambda: len(bench.begun) == 2)
        await bench.turn()
        assert bench.begun_offsets == [0, 1]
        bench.let_go(1)
        await until(lambda: len(bench.begun) == 3)


async def test_a_flood_holds_up_nobody_on_other_partitions_and_on_its_own_nobody_within_the_span():
    bench = Bench(share=2, limits=Limits(commit_interval_seconds=0.01, uncommitted_span=8))
    bench.consumer.append(P0, *[b"flood"] * 6, key=b"flood")
    bench.consumer.append(P0, b"within the span", key=b"other")
    bench.consumer.append(P0, *[b"flood"] * 6, key=b"flood#thread")
    bench.consumer.append(P0, b"beyond it", key=b"other")
    bench.consumer.append(P1, b"elsewhere", key=b"other#thread")
    async with bench.running(P0, P1):
        await until(lambda: len(bench.begun) == 4)
        await bench.turn()
        assert [record.value for record in bench.begun] == [
            b"flood",
            b"flood",
            b"within the span",
            b"elsewhere",
        ]
        assert bench.consumer.paused == {P0}
        bench.let_go(0, partition=1)
        bench.let_go(*range(14))
        await until(lambda: (bench.committed(P0), bench.committed(P1)) == (14, 1))


async def test_a_partition_pauses_when_what_waits_is_large_and_goes_on_at_half_of_it():
    bench = Bench(max_in_flight=1, limits=Limits(commit_interval_seconds=0.01, waiting_bytes=4))
    bench.consumer.append(P0, b"a", b"bb", b"cc", b"d", b"e")
    async with bench.running():
        await until(lambda: bench.begun and bench.consumer.paused)
        assert bench.consumer.positions[P0] == 3
        assert (bench.causes(P0), bench.dispatcher.waiting) == ({"backlog"}, 2)
        bench.let_go(0, 1)
        await until(lambda: bench.consumer.positions[P0] > 3)
        bench.let_go(*range(2, 5))
        await until(lambda: bench.committed() == 5)
        assert bench.begun_offsets == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "more", [{"key": b"kkkk"}, {"headers": (("name", None),)}, {"headers": (("n", b"vvv"),)}], ids=str
)
async def test_keys_and_headers_count_among_what_waits(more: dict[str, Any]):
    bench = Bench(max_in_flight=1, limits=Limits(commit_interval_seconds=0.01, waiting_bytes=4))
    bench.consumer.append(P0, *[b""] * 5, **more)
    async with bench.running():
        await until(lambda: bench.begun and bench.consumer.paused)
        assert bench.consumer.positions[P0] == 2
        bench.let_go(*range(5))
        await until(lambda: bench.committed() == 5)


async def test_a_backlog_is_read_beside_the_work_and_not_before_it():
    bench = Bench(max_in_flight=1)
    bench.consumer.append(P0, *[b"x"] * 100)
    async with bench.running():
        read = [bench.consumer.positions[P0]]
        while read[-1] < 100:
            await asyncio.sleep(0)
            read.append(bench.consumer.positions[P0])
        # Two at once only where the first of them begins without waiting.
        assert max(after - before for before, after in pairwise(read)) <= 2
        bench.let_go(*range(100))


async def test_what_waits_at_the_end_is_left_to_the_next_owner_unless_later_work_has_begun():
    bench = Bench(share=1, limits=Limits(commit_interval_seconds=3_600))
    bench.consumer.append(P0, b"a", b"b", key=b"flood")
    bench.consumer.append(P0, b"c", key=b"other")
    bench.consumer.append(P0, b"d", b"e", key=b"flood")
    async with bench.running():
        await until(lambda: bench.consumer.positions[P0] == 5)
        leaving = asyncio.create_task(bench.assignment.leave(drain_seconds=5))
        bench.let_go(*range(5))
        await asyncio.wait_for(leaving, 2)
        assert bench.begun_offsets == [0, 2, 1]
        assert bench.committed() == 3


@pytest.mark.parametrize(("waiting", "begun"), [(3, 3), (4, 0)])
async def test_a_drain_begins_no_more_than_one_round_and_in_a_flood_nothing(waiting: int, begun: int):
    bench = Bench(max_in_flight=3, share=1, limits=Limits(commit_interval_seconds=3_600))
    bench.consumer.append(P0, *[b"flood"] * (1 + waiting), key=b"flood")
    bench.consumer.append(P0, b"behind it", key=b"other")
    async with bench.running():
        await until(lambda: bench.consumer.positions[P0] == 2 + waiting)
        bench.let_go(1 + waiting)
        await until(lambda: bench.ended == [1 + waiting])
        leaving = asyncio.create_task(bench.assignment.leave(drain_seconds=60))
        bench.let_go(*range(1 + waiting))
        await asyncio.wait_for(leaving, 5)
        assert len(bench.begun) == 2 + begun
        assert bench.committed() == (1 if begun == 0 else 2 + waiting)
        assert bench.slots.total == 0
        assert bench.ledger.starts == {}


async def test_partitions_with_the_fewest_waiting_are_drained_first():
    bench = Bench(max_in_flight=3, share=1, limits=Limits(commit_interval_seconds=3_600))
    for tp, waiting in ((P0, 3), (P1, 1)):
        bench.consumer.append(tp, *[b"flood"] * (1 + waiting), key=b"flood %d" % tp.partition)
        bench.consumer.append(tp, b"behind it", key=b"other")
    async with bench.running(P0, P1):
        await until(lambda: (bench.consumer.positions[P0], bench.consumer.positions[P1]) == (5, 3))
        bench.let_go(4)
        bench.let_go(2, partition=1)
        await until(lambda: bench.ended == [4, 2])
        leaving = asyncio.create_task(bench.assignment.leave(drain_seconds=60))
        for partition in (0, 1):
            bench.let_go(*range(4), partition=partition)
        await asyncio.wait_for(leaving, 5)
        assert (bench.committed(P0), bench.committed(P1)) == (1, 3)


async def test_what_waited_when_its_partition_was_revoked_begins_with_the_next_owner_alone():
    bench = Bench(share=1)
    bench.consumer.append(P0, b"a", b"b", b"c")
    async with bench.running():
        await until(lambda: bench.consumer.positions[P0] == 3)
        await bench.consumer.rebalance(bench.assignment, [P1])
        await bench.turn()
        assert bench.begun_offsets == [0]
        assert bench.slots.total == 0
        await bench.consumer.rebalance(bench.assignment, [P0])
        bench.let_go(0, 1, 2)
        await until(lambda: bench.committed() == 3)
        assert bench.begun_offsets == [0, 0, 1, 2]


async def test_a_partition_pauses_at_the_cap_and_goes_on_at_half_of_it():
    bench = Bench(limits=Limits(commit_interval_seconds=0.01, uncommitted_span=4))
    bench.consumer.append(P0, *[b"x"] * 9)
    bench.consumer.append(P1, b"y")
    async with bench.running(P0, P1):
        await until(lambda: len(bench.begun) == 5)
        bench.let_go(1, 2, 3)
        assert bench.causes(P0) == {"backlog"}  # as in any flood
        await until(lambda: bench.ended == [1, 2, 3])
        await bench.turn()
        assert sorted(bench.begun_offsets) == [0, 0, 1, 2, 3]
        assert bench.consumer.paused == {P0}
        assert bench.causes(P0) == {"span"}
        bench.let_go(0)
        await until(lambda: len(bench.begun) == 9)
        assert sorted(bench.begun_offsets) == [0, 0, 1, 2, 3, 4, 5, 6, 7]


async def test_a_full_batch_of_ended_records_is_committed_without_waiting_for_the_interval():
    bench = Bench(limits=Limits(commit_interval_seconds=3_600, commit_after_records=3))
    bench.is_holding = False
    bench.consumer.append(P0, b"a", b"b", b"c")
    async with bench.running():
        await until(lambda: bench.committed() == 3)


async def test_offsets_that_no_consumer_sees_are_committed_past():
    bench = Bench()
    bench.is_holding = False
    bench.consumer.append(P0, b"a", b"b", gap=3)
    async with bench.running():
        await until(lambda: bench.committed() == 8)
        bench.consumer.positions[P0] = 11  # as after transaction markers at the end
        await until(lambda: bench.committed() == 11)


async def test_a_position_is_not_committed_while_a_record_before_it_is_in_work():
    bench = Bench()
    bench.consumer.append(P0, b"a")
    async with bench.running():
        await until(lambda: bench.begun)
        bench.consumer.positions[P0] = 11
        await asyncio.sleep(0.05)
        assert bench.committed() is None


async def test_a_record_that_waits_is_not_committed_past_by_a_position_that_comes_late():
    bench = Bench(max_in_flight=1)
    bench.consumer.append(P1, b"occupies the slot")
    async with bench.running(P0, P1):
        await until(lambda: bench.begun)
        bench.consumer.position_known = asyncio.Event()
        await until(lambda: bench.consumer.waiting_for_position)
        bench.consumer.append(P0, b"waits")
        await until(lambda: bench.consumer.positions[P0] == 1)
        bench.consumer.position_known.set()
        await asyncio.sleep(0.05)
        assert bench.committed() is None
        bench.let_go(0, partition=1)
        bench.let_go(0)
        await until(lambda: bench.committed() == 1)


@pytest.mark.parametrize("error", [CommitFailedError(), KafkaConnectionError()])
async def test_a_commit_that_failed_is_made_good_by_the_next_one(error: KafkaError):
    bench = Bench()
    bench.is_holding = False
    bench.consumer.commit_errors = [error] * 3
    bench.consumer.append(P0, b"a")
    async with bench.running():
        await until(lambda: bench.committed() == 1)


async def test_a_log_that_began_anew_is_worked_on_and_committed_from_its_beginning():
    bench = Bench()
    bench.consumer.append(P0, *[b"old"] * 5)
    async with bench.running():
        bench.let_go(0, 1, 2, 3)
        await until(lambda: bench.committed() == 4)
        bench.consumer.log[P0] = []
        bench.consumer.append(P0, b"new", b"new")
        bench.consumer.seek(P0, 0)
        bench.is_holding = False
        await until(lambda: bench.committed() == 2)
        bench.let_go(4)
        await until(lambda: bench.ended.count(4) == 1)
        await asyncio.sleep(0.05)
        assert bench.committed() == 2


# --- Rebalances --------------------------------------------------------------------------------------


async def test_a_revocation_waits_for_the_work_and_commits_it():
    bench = Bench(limits=Limits(commit_interval_seconds=3_600, revoke_wait_seconds=5))
    bench.consumer.append(P0, b"a", b"b")
    async with bench.running():
        await until(lambda: len(bench.begun) == 2)
        rebalancing = asyncio.create_task(bench.consumer.rebalance(bench.assignment, []))
        await bench.turn()
        assert not rebalancing.done()
        bench.let_go(0, 1)
        await asyncio.wait_for(rebalancing, 2)
        assert bench.committed() == 2


async def test_work_that_outlasts_the_revocation_is_cut_off_and_delivered_again():
    bench = Bench()
    bench.consumer.append(P0, b"a", b"b")
    async with bench.running():
        await until(lambda: len(bench.begun) == 2)
        bench.let_go(0)
        await bench.consumer.rebalance(bench.assignment, [P0])
        assert bench.committed() == 1
        await until(lambda: len(bench.begun) == 3)
        assert bench.begun_offsets == [0, 1, 1]
        bench.let_go(1)
        await until(lambda: bench.committed() == 2)
        assert bench.ended == [0, 1]


async def test_a_late_finisher_of_an_old_assignment_moves_no_commit_of_the_new_one():
    bench = Bench()
    swallowed = asyncio.Event()
    handle = bench.handle

    async def stubborn(record: InboundRecord) -> Handled:
        try:
            return await handle(record)
        except asyncio.CancelledError:
            swallowed.set()
            await bench.hold(9, record.offset).wait()
            return Handled()

    bench.handle = stubborn
    bench.consumer.append(P0, b"a")
    async with bench.running():
        await until(lambda: bench.begun)
        await bench.consumer.rebalance(bench.assignment, [P0])
        await asyncio.wait_for(swallowed.wait(), 2)
        await until(lambda: len(bench.begun) == 2)
        bench.let_go(0, partition=9)
        await until(lambda: bench.slots.total == 1)
        await asyncio.sleep(0.05)
        assert bench.committed() is None
        bench.let_go(0)
        await until(lambda: bench.committed() == 1)


async def test_nothing_is_admitted_to_a_partition_that_is_being_revoked():
    bench = Bench(max_in_flight=1, limits=Limits(commit_interval_seconds=0.01, revoke_wait_seconds=5))
    bench.consumer.append(P0, b"a", b"b")
    async with bench.running():
        await until(lambda: len(bench.begun) == 1)  # the second one waits for the slot
        rebalancing = asyncio.create_task(bench.consumer.rebalance(bench.assignment, [P0]))
        await bench.turn()
        bench.let_go(0)
        await asyncio.wait_for(rebalancing, 2)
        await until(lambda: len(bench.begun) == 2)
        assert bench.begun_offsets == [0, 1]
        bench.let_go(1)
        await until(lambda: bench.committed() == 2)


async def test_records_that_arrive_before_the_partition_is_open_wait_for_its_start_to_be_counted():
    bench = Bench()
    bench.ledger.is_away = bench.store_is_away = True
    bench.is_holding = False
    bench.consumer.append(P0, b"a")
    async with bench.running():
        await until(lambda: bench.gate.is_closed)
        await bench.turn()
        assert bench.begun == []
        bench.ledger.is_away = bench.store_is_away = False
        await until(lambda: bench.committed() == 1)
    assert bench.begun_offsets == [0]


async def test_a_record_that_was_read_for_an_earlier_assignment_is_not_taken_into_a_later_one():
    bench = Bench()
    await bench.assignment.on_partitions_revoked(set())
    asking = asyncio.create_task(bench.assignment.partition_of(P0))
    await bench.turn()
    await bench.assignment.on_partitions_revoked(set())
    await bench.consumer.rebalance(bench.assignment, [P0])
    assert await asyncio.wait_for(asking, 2) is None
    assert await bench.assignment.partition_of(P0) is not None
    await bench.assignment.leave(drain_seconds=0)


async def test_opening_is_tried_again_where_the_broker_does_not_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("worker.kafka.assignment._OPEN_PAUSE_SECONDS", 0.001)
    bench = Bench()
    bench.is_holding = False
    bench.cluster_errors = [KafkaConnectionError(), TimeoutError(), OSError()]
    bench.consumer.append(P0, b"a")
    async with bench.running():
        await until(lambda: bench.committed() == 1)
    assert bench.cluster_errors == []


@pytest.mark.parametrize("is_written", [False, True])
async def test_a_rebalance_in_the_middle_of_counting_leaves_no_life_counted(
    monkeypatch: pytest.MonkeyPatch, *, is_written: bool
):
    bench = Bench()
    bench.consumer.append(P0, b"a")
    raise_start, is_counting = bench.ledger.raise_start, asyncio.Event()

    async def hanging(group: str, position: RecordRef) -> int:
        if is_written:
            await raise_start(group, position)
        is_counting.set()
        return await asyncio.Future()

    monkeypatch.setattr(bench.ledger, "raise_start", hanging)
    async with bench.running():
        await is_counting.wait()
        await bench.consumer.rebalance(bench.assignment, [])
        assert bench.ledger.starts == {}


async def test_leaving_drains_commits_and_gives_up_what_is_left_at_the_deadline():
    bench = Bench(limits=Limits(commit_interval_seconds=3_600))
    bench.consumer.append(P0, b"a", b"b", b"c")
    async with bench.running():
        await until(lambda: len(bench.begun) == 3)
        bench.let_go(0, 1)
        await asyncio.wait_for(bench.assignment.leave(drain_seconds=0.05), 2)
        assert bench.committed() == 2
        assert bench.slots.total == 0


# --- The outcome store is away -----------------------------------------------------------------------


async def test_an_outage_pauses_everything_and_every_record_ends_once_when_it_is_over():
    bench = Bench()
    bench.is_holding = False
    bench.store_is_away = True
    bench.consumer.append(P0, b"a", b"b")
    async with bench.running(P0, P1):
        await until(lambda: bench.gate.is_closed)
        await until(lambda: bench.consumer.paused == {P0, P1})
        bench.consumer.append(P1, b"c")
        await bench.turn()
        assert bench.ended == []
        bench.store_is_away = False
        await until(lambda: (bench.committed(P0), bench.committed(P1)) == (2, 1))
        assert bench.consumer.paused == set()
    assert sorted(bench.ended) == [0, 0, 1]


async def test_a_partition_that_comes_during_an_outage_is_paused_until_it_is_over():
    bench = Bench()
    bench.is_holding = False
    bench.consumer.append(P1, b"c")
    async with bench.running():
        bench.store_is_away = True
        outage = asyncio.create_task(bench.gate.wait(StoreUnavailable("redis")))
        await bench.turn()
        await bench.consumer.rebalance(bench.assignment, [P0, P1])
        await bench.turn()
        assert bench.consumer.paused == {P0, P1}
        assert bench.begun == []
        bench.store_is_away = False
        await until(lambda: bench.committed(P1) == 1)
        await outage


async def test_a_full_house_does_not_keep_the_reader_busy_during_an_outage():
    """Who only holds a record in hand for five minutes is thrown out of the group by aiokafka."""
    bench = Bench(max_in_flight=1)
    bench.is_holding = False
    bench.store_is_away = True
    bench.consumer.append(P0, b"a", b"b", b"c")
    async with bench.running():
        await until(lambda: bench.gate.is_closed)
        await until(lambda: bench.consumer.waiting)
        await bench.turn()
        assert bench.consumer.waiting
        bench.store_is_away = False
        await until(lambda: bench.committed() == 3)
    assert bench.ended == [0, 1, 2]


# --- Quarantine --------------------------------------------------------------------------------------


async def test_in_quarantine_one_record_at_a_time_is_in_work_until_the_end_is_committed():
    bench = Bench()
    bench.consumer.append(P0, b"a", b"b")
    bench.consumer.append(P1, b"c")
    bench.ledger.starts["group", ref(P0, 0)] = 2
    async with bench.running(P0, P1):
        await until(lambda: len(bench.begun) == 1)
        await bench.turn()
        assert len(bench.begun) == 1
        assert bench.slots.is_exclusive
        for partition, offset in ((0, 0), (0, 1), (1, 0)):
            bench.let_go(offset, partition=partition)
        await until(lambda: not bench.slots.is_exclusive)
        await until(lambda: (bench.committed(P0), bench.committed(P1)) == (2, 1))


async def test_lives_are_counted_where_the_commit_stands_within_the_last_batch():
    bench = Bench()
    bench.consumer.append(P0, b"a", b"killer")
    bench.consumer.stored[P0] = 1
    bench.ledger.starts["group", ref(P0, 0)] = 2
    async with bench.running():
        await until(lambda: bench.begun_offsets == [1])
        assert bench.ledger.starts["group", ref(P0, 0)] == 3
        assert bench.slots.is_exclusive
        bench.let_go(1)
        await until(lambda: bench.committed() == 2)


async def test_a_record_that_ended_the_process_three_times_is_buried_and_its_neighbours_are_not():
    bench = Bench()
    bench.is_holding = False
    bench.consumer.append(P0, b"a", b"killer", b"c")
    bench.ledger.starts["group", ref(P0, 0)] = 4
    bench.ledger.attempts[ref(P0, 1)] = 3
    async with bench.running():
        await until(lambda: bench.committed() == 3)
    assert (bench.ended, bench.buried) == ([0, 2], [1])


async def test_leaving_in_order_clears_the_starts():
    bench = Bench()
    bench.is_holding = False
    bench.consumer.append(P0, b"a")
    async with bench.running():
        await until(lambda: bench.committed() == 1)
        await until(lambda: bench.ledger.starts)
    assert bench.ledger.starts == {}


async def test_a_rebalance_that_cuts_work_off_clears_no_death_and_is_none():
    bench = Bench()
    bench.ledger.starts["group", ref(P0, 0)] = 1
    bench.consumer.append(P0, b"a")
    bench.consumer.append(P1, b"b")
    async with bench.running(P0, P1):
        bench.let_go(0, partition=1)
        await until(lambda: bench.committed(P1) == 1)
        for times in range(1, 6):
            await until(lambda times=times: bench.begun_offsets.count(0) == times + 1)
            assert bench.ledger.starts["group", ref(P0, 0)] == 2
            await bench.consumer.rebalance(bench.assignment, [P0, P1])
        assert not bench.quarantine.is_active
    assert bench.ledger.starts == {("group", ref(P0, 0)): 1}


# --- Reading fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [0, 1, 2, 3])
async def test_a_batch_that_cannot_be_decoded_is_worked_on_and_holds_nobody_up(poison: int):
    bench = Bench(max_in_flight=2)
    bench.is_holding = False
    bench.consumer.append(P0, b"a", b"b", b"c", b"d")
    bench.consumer.append(P1, b"e")
    bench.consumer.undecodable.add((P0, poison))
    async with bench.running(P0, P1):
        await until(lambda: (bench.committed(P0), bench.committed(P1)) == (4, 1))
    assert sorted(record.value or b"" for record in bench.begun) == [b"a", b"b", b"c", b"d", b"e"]


async def test_a_partition_in_trouble_of_its_own_hides_no_batch_that_cannot_be_decoded():
    bench = Bench()
    bench.is_holding = False
    bench.consumer.append(P0, b"a", b"b")
    bench.consumer.undecodable.add((P0, 0))
    bench.consumer.position_errors[P1] = KafkaError("no position")
    async with bench.running(P0, P1):
        await until(lambda: bench.committed(P0) == 2)


async def test_a_batch_that_cannot_be_decoded_stops_at_the_cap_and_goes_on_in_its_middle():
    bench = Bench(limits=Limits(commit_interval_seconds=0.01, uncommitted_span=1))
    bench.consumer.append(P0, b"a", b"b", b"c")
    bench.consumer.undecodable.add((P0, 0))
    async with bench.running():
        await until(lambda: len(bench.begun) == 1)
        await bench.turn()
        assert bench.begun_offsets == [0]
        bench.let_go(0, 1, 2)
        await until(lambda: bench.committed() == 3)
    assert bench.ended == [0, 1, 2]


async def test_reading_goes_on_after_errors_that_pass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("worker.kafka.dispatch._READ_PAUSE_SECONDS", 0.001)
    bench = Bench()
    bench.is_holding = False
    bench.consumer.read_errors = [KafkaConnectionError(), UnicodeDecodeError("utf-8", b"", 0, 1, "")] * 3
    bench.consumer.append(P0, b"a")
    async with bench.running():
        await until(lambda: bench.committed() == 1)


@pytest.mark.parametrize(
    "error", [KafkaError("the coordinator died"), UnicodeDecodeError("u", b"", 0, 1, "")]
)
async def test_errors_without_a_break_end_the_reader_after_a_minute(
    error: Exception, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("worker.kafka.dispatch._READ_PAUSE_SECONDS", 0)
    bench = Bench()
    bench.consumer.read_errors = [error] * 1_000_000
    reading = asyncio.create_task(bench.dispatcher.read(bench.consumer))
    await bench.turn()
    bench.now = 60.0
    await bench.turn()
    assert not bench.dispatcher.has_ended
    bench.now = 60.1
    with pytest.raises(ConsumerBroken):
        await asyncio.wait_for(reading, 2)
    assert bench.dispatcher.has_ended


async def test_a_consumer_that_somebody_stopped_ends_the_reader():
    bench = Bench()
    bench.consumer.read_errors = [ConsumerStoppedError()]
    with pytest.raises(ConsumerBroken):
        await bench.dispatcher.read(bench.consumer)


# --- Health ------------------------------------------------------------------------------------------


async def test_work_of_which_nothing_ends_is_stalled_and_idleness_is_not():
    bench = Bench()
    async with bench.running():
        bench.now = 1_000.0
        assert bench.dispatcher.stalled_seconds == 0
        bench.consumer.append(P0, b"a", b"b")
        await until(lambda: len(bench.begun) == 2)
        bench.now = 1_050.0
        assert bench.dispatcher.stalled_seconds == 50
        bench.let_go(1)
        await until(lambda: bench.ended)
        await bench.turn()
        assert bench.dispatcher.stalled_seconds == 0


async def test_a_record_that_may_take_long_is_stalled_when_it_takes_longer():
    bench = Bench(expected_seconds=3_600)
    async with bench.running():
        bench.consumer.append(P0, b"a")
        await until(lambda: bench.begun)
        bench.now = 3_600.0
        assert bench.dispatcher.stalled_seconds == 0
        bench.now = 3_650.0
        assert bench.dispatcher.stalled_seconds == 50


async def test_work_that_waits_for_its_store_is_not_stalled_and_then_begins_anew():
    bench = Bench()
    bench.store_is_away = True
    async with bench.running():
        bench.consumer.append(P0, b"a")
        await until(lambda: bench.gate.is_closed)
        bench.now = 1_000.0
        assert bench.dispatcher.stalled_seconds == 0
        bench.store_is_away = False
        await until(lambda: len(bench.begun) > 1)
        assert bench.dispatcher.stalled_seconds == 0
        bench.now = 1_050.0
        assert bench.dispatcher.stalled_seconds == 50


async def test_fetches_without_an_answer_mean_that_the_broker_is_away():
    bench = Bench()
    async with bench.running():
        await until(lambda: bench.consumer.waiting)
        bench.consumer.fetched_at_ms = 1
        heard = bench.consumer.asked_for_fetches
        await until(lambda: bench.consumer.asked_for_fetches > heard + 1)
        bench.now = 6.0
        assert bench.dispatcher.is_broker_away
        bench.consumer.fetched_at_ms = 2
        await until(lambda: not bench.dispatcher.is_broker_away)


async def test_paused_partitions_say_nothing_about_the_broker():
    bench = Bench()
    async with bench.running():
        bench.store_is_away = True
        outage = asyncio.create_task(bench.gate.wait(StoreUnavailable("redis")))
        await until(lambda: bench.consumer.paused == {P0})
        bench.now = 1_000.0
        await until(lambda: not bench.dispatcher.is_broker_away)
        outage.cancel()


async def test_a_member_without_partitions_is_assigned_and_one_in_a_rebalance_is_not():
    bench = Bench()
    assert not bench.dispatcher.is_assigned
    bench.now = 7.0
    assert bench.dispatcher.unassigned_seconds == 7
    async with bench.running():
        await bench.consumer.rebalance(bench.assignment, [])
        assert bench.dispatcher.is_assigned
        assert bench.dispatcher.unassigned_seconds == 0


# --- Everything at once ------------------------------------------------------------------------------

Event = Callable[[Bench], Awaitable[None]]


def appending(tp: TopicPartition, count: int, gap: int, key: bytes | None) -> Event:
    async def event(bench: Bench) -> None:
        bench.consumer.append(tp, *[b"x"] * count, gap=gap, key=key)

    return event


def finishing(partition: int, offset: int) -> Event:
    async def event(bench: Bench) -> None:
        bench.let_go(offset, partition=partition)

    return event


def rebalancing(owned: list[TopicPartition]) -> Event:
    async def event(bench: Bench) -> None:
        await bench.consumer.rebalance(bench.assignment, owned)

    return event


def store_away(value: bool) -> Event:  # noqa: FBT001  drawn by hypothesis
    async def event(bench: Bench) -> None:
        bench.store_is_away = value

    return event


def turning(times: int) -> Event:
    async def event(bench: Bench) -> None:
        await bench.turn(times)

    return event


EVENTS = st.lists(
    st.builds(
        appending,
        st.sampled_from([P0, P1]),
        st.integers(1, 4),
        st.integers(0, 2),
        st.sampled_from([None, b"p", b"q#t"]),
    )
    | st.builds(finishing, st.integers(0, 1), st.integers(0, 30))
    | st.builds(rebalancing, st.sampled_from([[P0], [P1], [P0, P1], []]))
    | st.builds(store_away, st.booleans())
    | st.builds(turning, st.integers(1, 20)),
    max_size=60,
)


@settings(max_examples=150)
@given(EVENTS)
def test_nothing_is_lost_or_committed_unfinished_whatever_happens(events: list[Event]):
    async def play() -> None:
        limits = Limits(
            commit_interval_seconds=0.0, revoke_wait_seconds=0.0, uncommitted_span=6, waiting_bytes=4
        )
        bench = Bench(limits=limits, max_in_flight=3, share=2)
        done: dict[TopicPartition, set[int]] = {P0: set(), P1: set()}
        handle = bench.handle

        async def noting(record: InboundRecord) -> Handled:
            handled = await handle(record)
            done[TopicPartition(record.topic, record.partition)].add(record.offset)
            return handled

        bench.handle = noting

        def check() -> None:
            for tp, offset in bench.consumer.stored.items():
                before = {
                    record.offset for record in bench.consumer.log.get(tp, ()) if record.offset < offset
                }
                assert before <= done[tp]

        async with bench.running(P0, P1):
            for event in events:
                await event(bench)
                check()
            bench.store_is_away = bench.is_holding = False
            for hold in bench.holds.values():
                hold.set()
            await bench.consumer.rebalance(bench.assignment, [P0, P1])
            ends = {tp: bench.consumer.log_end(tp) for tp in (P0, P1)}
            await until(
                lambda: all((bench.committed(tp) or 0) >= end for tp, end in ends.items()),
                seconds=5,
                what="everything committed",
            )
            check()

    asyncio.run(play())
