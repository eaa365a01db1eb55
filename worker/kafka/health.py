"""Whether the worker lives and is ready, and since when it does more harm than good."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

from prometheus_client import Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

NotReady = Literal[
    "starting", "broker_away", "no_assignment", "outcome_store_away", "draining", "bad_deploy", "stopped"
]
NotLive = Literal["loop_lag", "no_progress", "not_assigned", "consumer_ended"]
Phase = Literal["starting", "running", "draining", "stopped"]

MEANINGS: Final[Mapping[str, str]] = {
    "starting": "the worker loads what it needs, and joins its groups then",
    "broker_away": "Kafka does not answer; records wait there, and the worker goes on when it does",
    "no_assignment": "the worker is no member of one of its groups now: a rebalance, or a group that is full",
    "outcome_store_away": "outcomes cannot be read or written; partitions are paused until they can",
    "draining": "the worker was asked to stop and ends what it has begun",
    "bad_deploy": "more than half of the last records met a defect of this version; it stops",
    "stopped": "the worker has ended",
    "loop_lag": "the event loop hardly turns: something computes on it, or the machine is overloaded",
    "no_progress": "records are in work and none of them has ended for long",
    "not_assigned": "a group has not taken the worker in for long",
    "consumer_ended": "a consumer has ended though nobody asked it to",
}
"""Of every reason, in words, for who reads `/readyz` or `/livez` by eye."""

_LAG_INTERVAL_SECONDS: Final = 0.25
_LAGS_KEPT: Final = 240
"""Of one minute, so that no scrape misses a stall."""


class NotReadyGauge(Collector):
    """Why the worker is not ready, as a metric: 1 for each reason that holds, 0 for all others."""

    def __init__(self, health: Health) -> None:
        """Ask this one whenever the metrics are read."""
        self._health = health

    def collect(self) -> Iterable[Metric]:
        """The family as it stands."""
        family = GaugeMetricFamily(
            "context_not_ready", "1 for each reason why records are not taken now.", labels=("reason",)
        )
        holding = self._health.not_ready
        for reason in get_args(NotReady):
            family.add_metric((reason,), int(reason in holding))
        yield family


class FailureWindow:
    """A bad deploy: more than half of at least 20 records within 60 s end in `internal_error`.

    Counted in buckets of one second, so that memory does not grow with traffic.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        window_seconds: int = 60,
        at_least: int = 20,
    ) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._window_seconds = window_seconds
        self._at_least = at_least
        self._buckets: deque[tuple[int, int, int]] = deque()  # second, records, internal errors
        self._records = 0
        self._errors = 0

    @property
    def is_bad(self) -> bool:
        """Whether the window that ends now holds too many internal errors."""
        self._forget(int(self._clock()))
        return self._records >= self._at_least and 2 * self._errors > self._records

    def count(self, *, is_internal_error: bool) -> None:
        """One record has ended."""
        now = int(self._clock())
        self._forget(now)
        second, records, errors = self._buckets.pop() if self._buckets else (now, 0, 0)
        if second != now:
            self._buckets.append((second, records, errors))
            records = errors = 0
        self._buckets.append((now, records + 1, errors + is_internal_error))
        self._records += 1
        self._errors += is_internal_error

    def _forget(self, now: int) -> None:
        while self._buckets and self._buckets[0][0] <= now - self._window_seconds:
            _, records, errors = self._buckets.popleft()
            self._records -= records
            self._errors -= errors


class LoopLag:
    """How late the event loop runs a timer."""

    def __init__(self, gauge: Gauge, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`gauge` is set to the greatest lag of the last minute, in seconds."""
        self._gauge = gauge
        self._clock = clock
        self._due_at: float | None = None
        self._lags = deque([0.0], maxlen=_LAGS_KEPT)

    @property
    def seconds(self) -> float:
        """The latest lag, or the one that is just growing, if that is longer."""
        growing = 0.0 if self._due_at is None else self._clock() - self._due_at
        return max(self._lags[-1], growing)

    async def measure(self) -> None:
        """Measure until cancelled."""
        try:
            while True:
                self._due_at = self._clock() + _LAG_INTERVAL_SECONDS
                await asyncio.sleep(_LAG_INTERVAL_SECONDS)
                self._lags.append(max(0.0, self._clock() - self._due_at))
                self._gauge.set(max(self._lags))
        finally:
            self._due_at = None


class Consuming(Protocol):
    """What a dispatcher tells about itself."""

    @property
    def is_assigned(self) -> bool:
        """Whether it is a member of its group now; a member may have been given no partition."""
        ...

    @property
    def is_broker_away(self) -> bool:
        """Whether fetches have long remained without an answer."""
        ...

    @property
    def unassigned_seconds(self) -> float:
        """For how long it has not been a member of its group."""
        ...

    @property
    def stalled_seconds(self) -> float:
        """For how long records have been in work and none has ended."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether nobody reads any more though nobody asked for a stop."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """From when on a restart is more promising than patience."""

    loop_lag_seconds: float = 10.0
    stalled_seconds: float = 120.0
    unassigned_seconds: float = 300.0


class Health:
    """What `/livez` and `/readyz` answer from. Reading it costs no input or output.

    It is live from the start, and stays so while a dependency is away: a restart mends no broker and no
    store. Not live is a loop that hardly turns, work of which nothing ends, a group that takes the worker
    in no more, and a consumer that has ended by itself.
    """

    def __init__(self, limits: HealthLimits | None = None) -> None:
        """Starting; nothing is watched yet."""
        self._limits = limits or HealthLimits()
        self._phase: Phase = "starting"
        self._is_bad_deploy = False
        self._consumers: Sequence[Consuming] = ()
        self._lag: LoopLag | None = None
        self._is_store_away: Callable[[], bool] = bool
        self._is_publisher_away: Callable[[], bool] = bool
        self.is_broker_awaited = False
        """Set while the start waits for a broker."""

    def watch(
        self,
        consumers: Sequence[Consuming],
        *,
        lag: LoopLag,
        is_store_away: Callable[[], bool],
        is_publisher_away: Callable[[], bool],
    ) -> None:
        """Say whom to ask from now on."""
        self._consumers = consumers
        self._lag = lag
        self._is_store_away = is_store_away
        self._is_publisher_away = is_publisher_away

    def enter(self, phase: Phase) -> None:
        """The worker starts, runs, drains or has stopped."""
        self._phase = phase

    def condemn(self) -> None:
        """Too many records ended in `internal_error`; final."""
        self._is_bad_deploy = True

    @property
    def is_ready(self) -> bool:
        """Whether records are taken and answered now."""
        return not self.not_ready

    @property
    def not_ready(self) -> tuple[NotReady, ...]:
        """Why not; empty when ready. The order is that of `NotReady`."""
        reasons: list[NotReady] = []
        if self._phase == "starting":
            reasons.append("starting")
        if self._is_broker_away:
            reasons.append("broker_away")
        if self._phase == "running" and not all(consumer.is_assigned for consumer in self._consumers):
            reasons.append("no_assignment")
        if self._is_store_away():
            reasons.append("outcome_store_away")
        if self._phase == "draining":
            reasons.append("draining")
        if self._is_bad_deploy:
            reasons.append("bad_deploy")
        if self._phase == "stopped":
            reasons.append("stopped")
        return tuple(reasons)

    @property
    def is_live(self) -> bool:
        """Whether waiting is still the better choice than a restart."""
        return not self.not_live

    @property
    def not_live(self) -> tuple[NotLive, ...]:
        """Why not; empty when live. The order is that of `NotLive`."""
        reasons: list[NotLive] = []
        limits = self._limits
        if self._lag is not None and self._lag.seconds > limits.loop_lag_seconds:
            reasons.append("loop_lag")
        if self._phase == "running":
            consumers = self._consumers
            stalled = max((consumer.stalled_seconds for consumer in consumers), default=0.0)
            is_waiting = self._is_store_away() or self._is_broker_away
            if stalled > limits.stalled_seconds and not is_waiting:
                reasons.append("no_progress")
            if any(consumer.unassigned_seconds > limits.unassigned_seconds for consumer in consumers):
                reasons.append("not_assigned")
            if any(consumer.has_ended for consumer in consumers):
                reasons.append("consumer_ended")
        return tuple(reasons)

    @property
    def _is_broker_away(self) -> bool:
        return (
            self.is_broker_awaited
            or self._is_publisher_away()
            or any(consumer.is_broker_away for consumer in self._consumers)
        )
