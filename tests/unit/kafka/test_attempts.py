from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from tests.support.dispatching import MemoryLedger, until
from worker.errors import OutcomeTooNew, StoreUnavailable
from worker.graph.store import GraphChanging
from worker.kafka.admission import Slots
from worker.kafka.attempts import Attempts
from worker.kafka.health import FailureWindow
from worker.kafka.outage import StoreGate
from worker.kafka.quarantine import Quarantine
from worker.kafka.records import Handled, InboundRecord
from worker.ports import RecordRef

REF = RecordRef(scope="cluster", topic="requests", partition=0, offset=5)
RECORD = InboundRecord(
    topic="requests", partition=0, offset=5, timestamp_ms=0, key=None, value=b"{}", headers=()
)


class Panic(BaseException):
    """As a Rust extension raises it: not an Exception."""


class Bench:
    """One record's attempts, with a handler that does what is listed, and pauses that take no time."""

    def __init__(self, *steps: BaseException | Handled, buries: tuple[BaseException, ...] = ()) -> None:
        self.steps = list(steps)
        self.buries = list(buries)
        self.calls: list[str] = []
        self.pauses: list[float] = []
        self.bad_deploys: list[list[str]] = []
        self.given_up = 0
        self.causes: list[BaseException | None] = []
        self.store_is_away = False
        self.ledger = MemoryLedger()
        self.window = FailureWindow(clock=lambda: 0.0)
        self.quarantine = Quarantine(self.ledger, span=1_000, on_change=lambda: None)
        self.gate = StoreGate(self.probe, sleep=lambda _: asyncio.sleep(0))
        self.attempts = Attempts(
            self,
            gate=self.gate,
            quarantine=self.quarantine,
            window=self.window,
            on_bad_deploy=self.condemn,
            on_given_up=self.note_given_up,
            sleep=self.sleep,
        )

    async def handle(self, record: InboundRecord) -> Handled:
        self.calls.append("handle")
        step = self.steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step

    async def bury(
        self, record: InboundRecord, *, attempts: int, cause: BaseException | None = None
    ) -> Handled:
        self.calls.append(f"bury {attempts}")
        self.causes.append(cause)
        if self.buries:
            raise self.buries.pop(0)
        return Handled(code="worker_died")

    async def probe(self) -> None:
        if self.store_is_away:
            raise StoreUnavailable("redis")

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    def note_given_up(self) -> None:
        self.given_up += 1

    def condemn(self) -> None:
        self.bad_deploys.append(list(self.calls))

    async def enter_quarantine(self) -> None:
        self.ledger.starts["group", replace(REF, offset=0)] = 2
        await self.quarantine.started("group", REF, end_offset=100)

    async def finish(self) -> None:
        await asyncio.wait_for(self.attempts.finish(RECORD, lambda: REF), 5)

    async def finish_when_told_to_end(self) -> None:
        """In a task that was cancelled and goes on, so that each step says what became of that."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await self.attempts.finish(RECORD, lambda: REF)
        finally:
            task.uncancel()


async def test_an_outcome_of_any_kind_ends_the_record():
    for code in (None, "invalid_json", "internal_error"):
        bench = Bench(Handled(code=code))
        await bench.finish()
        assert bench.calls == ["handle"]


async def test_a_store_that_is_away_is_waited_for_as_often_as_it_takes():
    bench = Bench(*[StoreUnavailable("redis")] * 5, Handled())
    await bench.finish()
    assert bench.calls == ["handle"] * 6
    assert bench.pauses == []
    assert not bench.window.is_bad


async def test_nothing_is_tried_while_the_store_is_away():
    bench = Bench(StoreUnavailable("redis"), Handled())
    bench.store_is_away = True
    finishing = asyncio.create_task(bench.finish())
    await until(lambda: bench.gate.is_closed)
    for _ in range(50):
        await asyncio.sleep(0)
    assert bench.calls == ["handle"]
    bench.store_is_away = False
    await finishing
    assert bench.calls == ["handle", "handle"]


@pytest.mark.parametrize("held_back", [OutcomeTooNew("redis"), GraphChanging("neo4j")])
async def test_what_holds_back_one_record_is_waited_for_by_it_alone(held_back: StoreUnavailable):
    bench = Bench(*[held_back] * 9, Handled())
    closings: list[None] = []
    bench.gate.subscribe(lambda: closings.append(None))
    asides: list[int] = []

    @asynccontextmanager
    async def aside() -> AsyncGenerator[None]:
        asides.append(len(bench.pauses))
        yield

    await asyncio.wait_for(bench.attempts.finish(RECORD, lambda: REF, aside=aside), 5)
    assert bench.calls == ["handle"] * 10
    assert bench.pauses == [30.0] * 9
    assert asides == list(range(9))
    assert closings == []


@pytest.mark.parametrize("defect", [TypeError("bug"), MemoryError(), Panic("in an extension")])
async def test_a_defect_that_passes_costs_the_record_nothing(defect: BaseException):
    bench = Bench(defect, Handled())
    await bench.finish()
    assert bench.calls == ["handle", "handle"]
    assert bench.pauses == [0.2]


async def test_a_defect_that_stays_is_buried_after_three_attempts_and_named_as_the_cause():
    defects = [TypeError("first"), ValueError("second"), ValueError("third")]
    bench = Bench(*defects)
    await bench.finish()
    assert bench.calls == ["handle"] * 3 + ["bury 3"]
    assert bench.causes == defects[:1]
    assert bench.pauses == pytest.approx([0.2, 0.8, 3.2])


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_burial_that_fails_is_tried_again(failures: int):
    bench = Bench(*[TypeError("bug")] * 3, buries=(TypeError("bug"),) * failures)
    await bench.finish()
    assert bench.calls == ["handle"] * 3 + ["bury 3"] * (failures + 1)
    assert bench.given_up == 0


@pytest.mark.parametrize("defect", [TypeError("bug"), MemoryError(), Panic("in an extension")])
async def test_a_record_that_cannot_even_be_buried_is_given_up_so_that_its_partition_goes_on(
    defect: BaseException,
):
    bench = Bench(*[defect] * 3, buries=(defect,) * 1_000)
    await bench.finish()
    assert bench.calls == ["handle"] * 3 + ["bury 3"] * 3
    assert bench.given_up == 1
    assert bench.pauses == pytest.approx([0.2, 0.8, 3.2, 12.8, 30.0])


async def test_a_burial_waits_for_the_store_as_often_as_it_takes_and_is_not_given_up():
    bench = Bench(*[TypeError("bug")] * 3, buries=(StoreUnavailable("redis"),) * 20)
    await bench.finish()
    assert bench.calls == ["handle"] * 3 + ["bury 3"] * 21
    assert bench.given_up == 0


@pytest.mark.parametrize("order", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(1)])
async def test_an_order_to_stop_ends_a_burial_and_gives_nothing_up(order: BaseException):
    bench = Bench(*[TypeError("bug")] * 3, buries=(order,))
    with pytest.raises(type(order)):
        await bench.finish_when_told_to_end()
    assert bench.given_up == 0


@pytest.mark.parametrize("order", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(1)])
async def test_an_order_to_stop_is_no_defect(order: BaseException):
    bench = Bench(order)
    with pytest.raises(type(order)):
        await bench.finish_when_told_to_end()
    assert bench.calls == ["handle"]


async def test_a_cancellation_that_nobody_asked_for_is_a_defect_and_ends_no_record_unanswered():
    bench = Bench(asyncio.CancelledError(), Handled())
    await bench.finish()
    assert bench.calls == ["handle", "handle"]
    bench = Bench(*[asyncio.CancelledError() for _ in range(3)])
    await bench.finish()
    assert bench.calls == ["handle"] * 3 + ["bury 3"]


async def test_in_quarantine_a_cancellation_that_nobody_asked_for_is_not_held_against_the_record():
    bench = Bench(asyncio.CancelledError(), Handled())
    await bench.enter_quarantine()
    await bench.finish()
    assert bench.calls == ["handle", "handle"]
    assert bench.ledger.attempts == {}


async def test_a_defect_counts_once_as_an_internal_error_and_before_the_burial():
    bench = Bench(*[TypeError("bug")] * 3)
    for _ in range(19):
        bench.window.count(is_internal_error=True)
    await bench.finish()
    assert bench.bad_deploys == [["handle"]]


@pytest.mark.parametrize(("code", "bad_deploys"), [("internal_error", 1), ("invalid_json", 0), (None, 0)])
async def test_only_internal_errors_make_a_bad_deploy(code: str | None, bad_deploys: int):
    bench = Bench(Handled(code=code))  # pyright: ignore[reportArgumentType]  parametrised with known codes
    for _ in range(19):
        bench.window.count(is_internal_error=True)
    await bench.finish()
    assert len(bench.bad_deploys) == bad_deploys


# --- Quarantine --------------------------------------------------------------------------------------


async def test_outside_quarantine_nothing_is_written_down():
    bench = Bench(Handled())
    bench.ledger.is_away = True
    await bench.finish()


async def test_in_quarantine_the_attempt_is_written_down_before_the_work_and_forgotten_after():
    bench = Bench()
    await bench.enter_quarantine()
    seen: list[int] = []

    async def handle(record: InboundRecord) -> Handled:
        seen.append(bench.ledger.attempts[REF])
        return Handled()

    bench.handle = handle
    await bench.finish()
    assert seen == [1]
    assert bench.ledger.attempts == {}


async def test_a_record_that_left_three_attempts_behind_is_buried_and_not_tried():
    bench = Bench()
    await bench.enter_quarantine()
    bench.ledger.attempts[REF] = 3
    await bench.finish()
    assert bench.calls == ["bury 3"]
    assert bench.causes == [None]
    assert bench.ledger.attempts == {}


async def test_a_record_that_left_two_attempts_behind_gets_its_third():
    bench = Bench(Handled())
    await bench.enter_quarantine()
    bench.ledger.attempts[REF] = 2
    await bench.finish()
    assert bench.calls == ["handle"]


async def test_an_attempt_that_was_cut_off_is_left_behind():
    bench = Bench()
    await bench.enter_quarantine()
    working = asyncio.Event()

    async def handle(record: InboundRecord) -> Handled:
        working.set()
        await asyncio.Event().wait()
        return Handled()

    bench.handle = handle
    finishing = asyncio.create_task(bench.finish())
    await working.wait()
    finishing.cancel()
    await asyncio.wait({finishing})
    assert bench.ledger.attempts == {REF: 1}


async def test_a_record_that_is_cut_off_again_and_again_and_ends_no_process_is_never_buried():
    bench = Bench()
    await bench.enter_quarantine()
    begun = asyncio.Event()

    async def handle(record: InboundRecord) -> Handled:
        begun.set()
        await asyncio.Event().wait()
        return Handled()

    bench.handle = handle
    for _ in range(9):
        finishing = asyncio.create_task(bench.finish())
        await asyncio.wait_for(begun.wait(), 5)
        begun.clear()
        finishing.cancel()
        await asyncio.wait({finishing})
    assert bench.calls == []
    await bench.quarantine.take_back(at_once=True)
    assert bench.ledger.attempts == {}


async def test_in_quarantine_a_record_whose_store_is_away_lets_other_topics_go_on_and_then_works_alone():
    graph = Bench(StoreUnavailable("neo4j"), Handled())
    graph.store_is_away = True
    other = Bench(*[Handled()] * 3)
    slots = Slots({"sync": 1, "requests": 4})
    slots.is_exclusive = True
    for bench in (graph, other):
        await bench.enter_quarantine()
    tasks: list[asyncio.Task[None]] = []

    def ask(topic: str, bench: Bench) -> None:
        def start() -> bool:
            attempts = bench.attempts.finish(RECORD, lambda: REF, aside=partial(slots.aside, topic))
            tasks.append(asyncio.create_task(attempts))
            tasks[-1].add_done_callback(lambda _: slots.release(topic, b""))
            return True

        slots.ask(topic, b"", start)

    ask("sync", graph)
    ask("sync", graph)
    for _ in range(3):
        ask("requests", other)
    await until(lambda: other.calls == ["handle"] * 3)
    # Should the process end now, the one that waits has no part in it.
    assert (graph.calls, graph.ledger.attempts) == (["handle"], {})
    assert (slots.total, slots.aside_of("sync"), len(tasks)) == (1, 1, 4)
    graph.store_is_away = False
    graph.steps.append(Handled())
    await until(lambda: graph.calls == ["handle"] * 3)
    await asyncio.gather(*tasks)


async def test_a_record_that_is_cut_off_while_its_store_is_away_leaves_nothing_behind():
    bench = Bench(StoreUnavailable("neo4j"))
    bench.store_is_away = True
    await bench.enter_quarantine()
    slots = Slots({"requests": 1})
    slots.is_exclusive = True
    slots.ask("requests", b"", lambda: True)
    finishing = asyncio.create_task(
        bench.attempts.finish(RECORD, lambda: REF, aside=partial(slots.aside, "requests"))
    )
    await until(lambda: slots.aside_of("requests"))
    finishing.cancel()
    await asyncio.wait({finishing})
    slots.release("requests", b"")
    assert (slots.total, slots.aside_of("requests"), bench.ledger.attempts) == (0, 0, {})
    bench.gate.stop()


@pytest.mark.parametrize("survived", [StoreUnavailable("redis"), TypeError("bug")], ids=["store", "defect"])
async def test_what_the_process_survives_is_not_held_against_the_record(survived: Exception):
    bench = Bench(survived, survived, Handled())
    await bench.enter_quarantine()
    await bench.finish()
    assert bench.calls == ["handle"] * 3
    assert bench.ledger.attempts == {}


async def test_a_ledger_that_is_away_holds_the_record_back():
    bench = Bench(Handled())
    await bench.enter_quarantine()
    bench.ledger.is_away = bench.store_is_away = True
    finishing = asyncio.create_task(bench.finish())
    await until(lambda: bench.gate.is_closed)
    assert bench.calls == []
    bench.ledger.is_away = bench.store_is_away = False
    await finishing
    assert bench.calls == ["handle"]
