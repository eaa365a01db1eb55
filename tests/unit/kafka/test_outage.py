from __future__ import annotations

import asyncio

from structlog.contextvars import get_contextvars

from tests.support.dispatching import until
from worker.errors import StoreUnavailable
from worker.kafka.outage import StoreGate
from worker.logs import bind_ids

AWAY = StoreUnavailable("redis", "refused")


class Store:
    """A store that is away for a number of probes, and a clock that only pauses move."""

    def __init__(self, *, away_for: int) -> None:
        self.away_for = away_for
        self.pauses: list[float] = []
        self.now = 0.0
        self.gate = StoreGate(self.probe, sleep=self.sleep, clock=lambda: self.now)

    async def probe(self) -> None:
        if self.away_for:
            self.away_for -= 1
            raise AWAY

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


async def test_everybody_waits_for_one_probe_and_goes_on_together():
    store = Store(away_for=2)
    waiting = [asyncio.create_task(store.gate.wait(AWAY)) for _ in range(5)]
    await asyncio.sleep(0)
    assert store.gate.is_closed
    await asyncio.wait_for(asyncio.gather(*waiting), 1)
    assert not store.gate.is_closed
    assert store.pauses == [0.1, 0.2, 0.4]


async def test_the_pauses_grow_to_five_seconds():
    store = Store(away_for=9)
    await asyncio.wait_for(store.gate.wait(AWAY), 1)
    assert store.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0]


async def test_a_store_that_only_answers_the_probe_is_not_hammered():
    store = Store(away_for=0)
    for _ in range(4):
        await asyncio.wait_for(store.gate.wait(AWAY), 1)
    assert store.pauses == [0.1, 0.2, 0.4, 0.8]


async def test_after_a_stable_time_the_pauses_are_short_again():
    store = Store(away_for=2)
    await asyncio.wait_for(store.gate.wait(AWAY), 1)
    store.now += 31
    store.pauses.clear()
    await asyncio.wait_for(store.gate.wait(AWAY), 1)
    assert store.pauses == [0.1]


async def test_a_defect_of_the_probe_does_not_close_the_gate_for_ever():
    calls: list[int] = []

    async def probe() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise TypeError("a defect")

    gate = StoreGate(probe, sleep=lambda _: asyncio.sleep(0))
    await asyncio.wait_for(gate.wait(AWAY), 1)
    assert len(calls) == 3


async def test_the_probe_bears_no_ids_of_the_record_that_met_the_outage():
    seen: list[dict[str, object]] = []

    async def probe() -> None:
        seen.append(get_contextvars())

    gate = StoreGate(probe, sleep=lambda _: asyncio.sleep(0))

    async def work() -> None:
        bind_ids("shop", request_id="r-1")
        await gate.wait(AWAY)
        assert get_contextvars() == {"project_id": "shop", "request_id": "r-1"}

    await asyncio.wait_for(asyncio.create_task(work()), 5)
    assert seen == [{}]


async def test_listeners_hear_the_close_and_the_opening_in_order():
    store = Store(away_for=1)
    heard: list[tuple[str, bool]] = []
    store.gate.subscribe(lambda: heard.append(("first", store.gate.is_closed)))
    store.gate.subscribe(lambda: heard.append(("second", store.gate.is_closed)))
    await asyncio.wait_for(store.gate.wait(AWAY), 1)
    assert heard == [("first", True), ("second", True), ("first", False), ("second", False)]


async def test_a_cancelled_waiter_leaves_the_probe_to_the_others():
    store = Store(away_for=3)
    first, second = (asyncio.create_task(store.gate.wait(AWAY)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait_for(second, 1)
    assert first.cancelled()


async def test_a_stopped_gate_probes_no_more():
    store = Store(away_for=1_000_000)
    waiting = asyncio.create_task(store.gate.wait(AWAY))
    await until(lambda: store.pauses)
    store.gate.stop()
    await asyncio.sleep(0)
    probed = len(store.pauses)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(store.pauses) == probed
    waiting.cancel()
