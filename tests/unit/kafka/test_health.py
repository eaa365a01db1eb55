from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge

from tests.support.dispatching import until
from worker.kafka.health import FailureWindow, Health, HealthLimits, LoopLag

# --- A bad deploy ------------------------------------------------------------------------------------


def window_after(errors: int, others: int) -> FailureWindow:
    window = FailureWindow(clock=lambda: 0.0)
    for is_error in [True] * errors + [False] * others:
        window.count(is_internal_error=is_error)
    return window


@pytest.mark.parametrize(
    ("errors", "others", "is_bad"),
    [(19, 0, False), (20, 0, True), (11, 9, True), (10, 10, False), (51, 49, True), (50, 50, False)],
)
def test_more_than_half_of_at_least_twenty_is_bad(errors: int, others: int, is_bad: bool):  # noqa: FBT001
    assert window_after(errors, others).is_bad is is_bad


def test_what_is_older_than_a_minute_no_longer_counts():
    now = [0.0]
    window = FailureWindow(clock=lambda: now[0])
    for _ in range(25):
        window.count(is_internal_error=True)
    now[0] = 59.9
    assert window.is_bad
    now[0] = 60.0
    assert not window.is_bad


@settings(max_examples=150)
@given(st.lists(st.tuples(st.floats(0, 30), st.booleans()), max_size=150))
def test_the_window_agrees_with_counting_everything_again(steps: list[tuple[float, bool]]):
    now = 0.0
    seen: list[tuple[int, bool]] = []
    window = FailureWindow(clock=lambda: now)
    for pause, is_error in steps:
        now += pause
        window.count(is_internal_error=is_error)
        seen.append((int(now), is_error))
        recent = [failed for second, failed in seen if second > int(now) - 60]
        assert window.is_bad is (len(recent) >= 20 and 2 * sum(recent) > len(recent))


# --- Loop lag ----------------------------------------------------------------------------------------


async def test_a_blocked_loop_is_seen_while_it_is_blocked_and_after():
    registry = CollectorRegistry()
    lag = LoopLag(Gauge("lag", "lag", registry=registry))
    measuring = asyncio.create_task(lag.measure())
    await asyncio.sleep(0)
    time.sleep(0.6)  # noqa: ASYNC251  blocking is the point
    assert lag.seconds > 0.3
    await until(lambda: (registry.get_sample_value("lag") or 0) > 0.3, seconds=2)
    measuring.cancel()
    await asyncio.wait({measuring})


async def test_one_stall_stays_in_the_gauge_for_a_minute_and_is_no_lag_of_now(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("worker.kafka.health._LAG_INTERVAL_SECONDS", 0)
    registry = CollectorRegistry()
    now = 0.0
    lag = LoopLag(Gauge("lag", "lag", registry=registry), clock=lambda: now)
    measuring = asyncio.create_task(lag.measure())
    await asyncio.sleep(0)
    now = 3.0
    for _ in range(60 * 4):
        await asyncio.sleep(0)
        assert registry.get_sample_value("lag") == 3
    assert lag.seconds == 0
    await asyncio.sleep(0)
    assert registry.get_sample_value("lag") == 0
    measuring.cancel()
    await asyncio.wait({measuring})


# --- Live and ready ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Consumer:
    is_assigned: bool = True
    is_broker_away: bool = False
    unassigned_seconds: float = 0.0
    stalled_seconds: float = 0.0
    has_ended: bool = False


class Worker:
    """A health object and the facts that it asks for."""

    def __init__(self, *consumers: Consumer) -> None:
        self.is_store_away = False
        self.is_publisher_away = False
        self.now = 0.0
        self.lag = LoopLag(Gauge("lag", "lag", registry=CollectorRegistry()), clock=lambda: self.now)
        self.health = Health(HealthLimits(loop_lag_seconds=10, stalled_seconds=120, unassigned_seconds=300))
        self.health.watch(
            consumers or (Consumer(),),
            lag=self.lag,
            is_store_away=lambda: self.is_store_away,
            is_publisher_away=lambda: self.is_publisher_away,
        )
        self.health.enter("running")


def test_a_worker_that_was_only_made_is_live_and_not_ready():
    health = Health()
    assert health.is_live
    assert health.not_ready == ("starting",)


def test_a_running_worker_is_live_and_ready():
    health = Worker().health
    assert (health.is_live, health.is_ready) == (True, True)


def test_waiting_for_a_broker_at_the_start_is_said():
    health = Health()
    health.is_broker_awaited = True
    assert health.not_ready == ("starting", "broker_away")
    assert health.is_live


@pytest.mark.parametrize(
    ("consumer", "reasons"),
    [
        (Consumer(is_assigned=False), ("no_assignment",)),
        (Consumer(is_broker_away=True), ("broker_away",)),
    ],
)
def test_one_topic_that_cannot_be_served_makes_the_worker_not_ready(
    consumer: Consumer, reasons: tuple[str, ...]
):
    worker = Worker(Consumer(), consumer)
    assert worker.health.not_ready == reasons
    assert worker.health.is_live


def test_every_reason_is_given_in_a_constant_order():
    worker = Worker(Consumer(is_assigned=False))
    worker.is_publisher_away = worker.is_store_away = True
    worker.health.condemn()
    assert worker.health.not_ready == ("broker_away", "no_assignment", "outcome_store_away", "bad_deploy")
    worker.health.enter("draining")
    assert worker.health.not_ready == ("broker_away", "outcome_store_away", "draining", "bad_deploy")
    worker.health.enter("stopped")
    assert worker.health.not_ready == ("broker_away", "outcome_store_away", "bad_deploy", "stopped")


@pytest.mark.parametrize(
    ("consumer", "reason"),
    [
        (Consumer(stalled_seconds=121), "no_progress"),
        (Consumer(is_assigned=False, unassigned_seconds=301), "not_assigned"),
        (Consumer(has_ended=True), "consumer_ended"),
    ],
)
def test_what_only_a_restart_mends_makes_it_not_live(consumer: Consumer, reason: str):
    assert Worker(Consumer(), consumer).health.not_live == (reason,)


def test_patience_within_the_limits_is_live():
    within = Consumer(is_assigned=False, unassigned_seconds=299, stalled_seconds=119)
    assert Worker(within).health.is_live


@pytest.mark.parametrize("away", ["store", "publisher", "broker"])
def test_work_that_waits_for_a_dependency_does_not_ask_for_a_restart(away: str):
    stalled = Consumer(stalled_seconds=10_000)
    worker = Worker(replace(stalled, is_broker_away=away == "broker"))
    worker.is_store_away = away == "store"
    worker.is_publisher_away = away == "publisher"
    assert worker.health.is_live


async def test_a_loop_that_hardly_turns_is_not_live():
    worker = Worker()
    measuring = asyncio.create_task(worker.lag.measure())
    await asyncio.sleep(0)
    worker.now = 11.0
    assert worker.health.not_live == ("loop_lag",)
    measuring.cancel()
    await asyncio.wait({measuring})


def test_a_drain_that_takes_long_is_no_reason_to_be_killed():
    worker = Worker(Consumer(stalled_seconds=10_000, has_ended=True))
    worker.health.enter("draining")
    assert worker.health.is_live
