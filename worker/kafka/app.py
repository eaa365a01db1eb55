"""The worker as a whole: a FastStream app around the dispatchers, from the first try to the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, Final

import structlog
from aiokafka.errors import KafkaError
from faststream import AckPolicy, FastStream
from faststream.exceptions import FastStreamException
from faststream.kafka import KafkaBroker
from faststream.kafka.subscriber.usecase import DefaultSubscriber

from worker.errors import Unavailable
from worker.kafka.admission import Slots
from worker.kafka.assignment import Assignment, Shared
from worker.kafka.attempts import Attempts
from worker.kafka.connection import KafkaConnection, hang_up
from worker.kafka.dispatch import Dispatcher
from worker.kafka.health import FailureWindow, Health, LoopLag
from worker.kafka.outage import StoreGate
from worker.kafka.partition import PAUSE_CAUSES, Limits, lag_of
from worker.kafka.publisher import KafkaPublisher
from worker.kafka.quarantine import Quarantine
from worker.kafka.records import RecordHandler
from worker.kafka_fetch import log_ends
from worker.ports import CrashLedger
from worker.telemetry import Telemetry, topic_label
from worker.undecodable import fetch_undecodable

_log = structlog.get_logger(__name__)

_FIRST_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 5.0
_CLOSE_TIMEOUT_SECONDS: Final = 5.0
_OBSERVE_SECONDS: Final = 0.5


class ExitCode(IntEnum):
    """How the process should end."""

    STOPPED = 0
    """Asked to stop; everything that had ended was committed."""
    BROKEN = 1
    """Something that should run for ever has ended; a new process may mend it."""
    BAD_DEPLOY = 3
    """Too many records ended in `internal_error`; another version is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One topic, who handles its records, and how many of them at once.

    Each topic has a consumer group of its own, so that a rebalance of one stops no other.
    """

    topic: str
    group: str
    handler: RecordHandler
    max_in_flight: int = 64
    max_in_flight_per_project: int | None = None
    """How many of these may be one project's; all where absent."""
    probe_store: Callable[[], Awaitable[None]] | None = None
    """Raises StoreUnavailable while something is away that this topic alone needs: then its records wait,
    and those of the others go on. Where absent, the outcome store is all that it waits for."""
    expected_seconds: float = 0.0
    """How long one record may well take: so much longer nobody takes the worker for stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """What aiokafka is told, where its own default is not right everywhere."""

    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 3_000
    request_timeout_ms: int = 40_000
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = 1_048_576


class KafkaWorker:
    """Consumes every route until it is told to stop, or must.

    Composed by hand from plain values; `wiring` decides which. The publisher is started and stopped here,
    since the handlers need it exactly as long as records are in work.
    """

    def __init__(
        self,
        *,
        connection: KafkaConnection,
        routes: Sequence[Route],
        publisher: KafkaPublisher,
        ledger: CrashLedger,
        probe_store: Callable[[], Awaitable[None]],
        declare_topics: Callable[[], Awaitable[None]],
        telemetry: Telemetry,
        health: Health,
        consumer: ConsumerOptions | None = None,
        limits: Limits | None = None,
        drain_seconds: float = 20.0,
    ) -> None:
        """`probe_store` raises StoreUnavailable while the outcome store is away.

        `declare_topics` makes sure that the topics exist; it is called before each attempt to start, and
        may raise KafkaError, OSError, TimeoutError or Unavailable to have it tried again.
        """
        self._connection = connection
        self._publisher = publisher
        self._declare_topics = declare_topics
        self._telemetry = telemetry
        self._health = health
        self._limits = limits or Limits()
        self._drain_seconds = drain_seconds
        self._stop_asked = asyncio.Event()
        self._hurry_asked = asyncio.Event()
        self._exit_code = ExitCode.STOPPED
        self._lag = LoopLag(telemetry.loop_lag_seconds)
        self._slots = Slots(
            {route.topic: route.max_in_flight for route in routes},
            shares={
                route.topic: route.max_in_flight_per_project
                for route in routes
                if route.max_in_flight_per_project is not None
            },
        )
        self._gate = StoreGate(probe_store)
        self._gates = [self._gate]
        self._quarantine = Quarantine(
            ledger, span=self._limits.uncommitted_span, on_change=self._on_quarantine
        )
        self._broker = _Broker(
            connection.bootstrap_servers,
            client_id=connection.client_id,
            security=connection.security,
            request_timeout_ms=(consumer or ConsumerOptions()).request_timeout_ms,
            consumer_only=True,  # FastStream's producer knows text headers only; see KafkaPublisher
            apply_types=False,
            logger=None,
        )
        self._app = FastStream(self._broker, logger=None)
        self._readers = [self._subscribe(route, consumer or ConsumerOptions()) for route in routes]
        dispatchers = [dispatcher for _, dispatcher in self._readers]
        health.watch(
            dispatchers,
            lag=self._lag,
            is_store_away=lambda: self._gate.is_closed,
            is_publisher_away=lambda: publisher.is_away,
        )

    def request_stop(self) -> None:
        """Stop taking records, drain, commit and leave; asked a second time, drain no longer."""
        if self._stop_asked.is_set():
            self._hurry_asked.set()
        self._stop_asked.set()

    async def run(self, *, handle_signals: bool = True) -> ExitCode:
        """Run until stopped; with `handle_signals`, SIGTERM and SIGINT ask for it.

        Waits for the broker as long as it takes. Cancelled, it closes what it has opened and commits
        nothing more.
        """
        with self._asked_by_signals() if handle_signals else contextlib.nullcontext():
            try:
                if await self._start():
                    await self._serve()
            finally:
                for gate in self._gates:
                    gate.stop()
                await self._close()
                self._health.enter("stopped")
        _log.info("worker.stopped", exit_code=int(self._exit_code), reason=self._exit_code.name.lower())
        return self._exit_code

    # --- Assembly --------------------------------------------------------------------------------

    def _subscribe(self, route: Route, options: ConsumerOptions) -> tuple[DefaultSubscriber, Dispatcher]:
        gate = self._gate
        if route.probe_store is not None:
            gate = StoreGate(route.probe_store)
            self._gates.append(gate)
        shared = Shared(
            slots=self._slots,
            gate=gate,
            quarantine=self._quarantine,
            telemetry=self._telemetry,
            limits=self._limits,
            cluster_id=self._connection.cluster_id,
            log_ends=partial(log_ends, self._connection.client_options()),
            fetch_undecodable=partial(fetch_undecodable, self._connection.client_options()),
        )
        window = FailureWindow()
        assignment = Assignment(route.group, shared=shared, consumer=lambda: subscriber.consumer)
        attempts = Attempts(
            route.handler,
            gate=gate,
            quarantine=self._quarantine,
            window=window,
            on_bad_deploy=self._on_bad_deploy,
            on_given_up=self._telemetry.records_given_up.inc,
        )
        subscriber = self._broker.subscriber(
            route.topic,
            group_id=route.group,
            listener=assignment,
            # MANUAL also switches aiokafka's own commits off.
            ack_policy=AckPolicy.MANUAL,
            no_reply=True,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            session_timeout_ms=options.session_timeout_ms,
            heartbeat_interval_ms=options.heartbeat_interval_ms,
            fetch_max_wait_ms=options.fetch_max_wait_ms,
            max_partition_fetch_bytes=options.max_partition_fetch_bytes,
        )
        dispatcher = Dispatcher(
            route.topic,
            attempts,
            assignment=assignment,
            shared=shared,
            expected_seconds=route.expected_seconds,
        )
        return subscriber, dispatcher

    def _on_quarantine(self) -> None:
        self._slots.is_exclusive = self._quarantine.is_active

    def _on_bad_deploy(self) -> None:
        if self._exit_code is not ExitCode.BAD_DEPLOY:
            _log.error("worker.bad_deploy")
            self._exit_code = ExitCode.BAD_DEPLOY
            self._health.condemn()
            self._stop_asked.set()
            self._hurry_asked.set()

    # --- Life ------------------------------------------------------------------------------------

    async def _start(self) -> bool:
        """Return True when every group was joined, False when asked to stop before."""
        starting = asyncio.create_task(self._start_patiently())
        await _first_of(starting, self._stop_asked)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            return False
        starting.result()
        return True

    async def _start_patiently(self) -> None:
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._declare_topics()
                await self._publisher.start()
                await self._app.start()
            except (KafkaError, FastStreamException, OSError, TimeoutError, Unavailable) as error:
                self._health.is_broker_awaited = True
                _log.warning(
                    "broker.awaited",
                    servers=",".join(self._connection.bootstrap_servers),
                    reason=await self._connection.refusal(),
                    error=repr(error),
                    retry_seconds=pause_seconds,
                )
                await self._close_app()
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
            else:
                self._health.is_broker_awaited = False
                return

    async def _serve(self) -> None:
        readers: list[asyncio.Task[None]] = []
        helpers = [asyncio.create_task(self._lag.measure()), asyncio.create_task(self._observe())]
        for subscriber, dispatcher in self._readers:
            consumer = subscriber.consumer
            assert consumer is not None  # noqa: S101  FastStream sets it before its start returns
            readers.append(asyncio.create_task(dispatcher.read(consumer)))
            helpers.append(asyncio.create_task(dispatcher.keep_committing(consumer)))
        self._health.enter("running")
        _log.info("worker.running", topics=[dispatcher.topic for _, dispatcher in self._readers])
        try:
            await _first_of(*readers, *helpers, self._stop_asked)
            self._note_what_ended([*readers, *helpers])
            self._health.enter("draining")
            await _cancel(readers)
            await self._drain()
        finally:
            await _cancel([*readers, *helpers])

    async def _drain(self) -> None:
        leaving = asyncio.create_task(self._leave(drain_seconds=self._drain_seconds))
        await _first_of(leaving, self._hurry_asked)
        await _cancel([leaving])
        await self._leave(drain_seconds=0)  # a second time it finds nothing to do

    async def _leave(self, *, drain_seconds: float) -> None:
        await asyncio.gather(
            *(dispatcher.assignment.leave(drain_seconds=drain_seconds) for _, dispatcher in self._readers)
        )

    def _note_what_ended(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            if task.done() and not task.cancelled():
                _log.error("worker.broken", error=repr(task.exception()), exc_info=task.exception())
                if self._exit_code is ExitCode.STOPPED:
                    self._exit_code = ExitCode.BROKEN

    async def _observe(self) -> None:
        telemetry = self._telemetry
        while True:
            owned = [owner for _, dispatcher in self._readers for owner in dispatcher.assignment.partitions]
            for subscriber, dispatcher in self._readers:
                topic = topic_label(dispatcher.topic)
                if subscriber.consumer is not None:
                    lag = lag_of(subscriber.consumer, dispatcher.assignment.partitions)
                    telemetry.records_lag.labels(topic=topic).set(lag)
                telemetry.in_flight.labels(topic=topic).set(dispatcher.in_flight)
                telemetry.waiting.labels(topic=topic).set(dispatcher.waiting)
            telemetry.uncommitted_span.set(max((owner.tracker.span for owner in owned), default=0))
            telemetry.quarantine.set(int(self._quarantine.is_active))
            for cause in PAUSE_CAUSES:
                paused = sum(cause in owner.causes for owner in owned)
                telemetry.paused_partitions.labels(cause=cause).set(paused)
            await asyncio.sleep(_OBSERVE_SECONDS)

    async def _close(self) -> None:
        await self._close_app()
        await self._publisher.stop(timeout_seconds=_CLOSE_TIMEOUT_SECONDS)

    async def _close_app(self) -> None:
        stopping = asyncio.create_task(self._app.stop())
        await asyncio.wait({stopping}, timeout=_CLOSE_TIMEOUT_SECONDS)
        if not stopping.done():
            # Leaving a group waits for a broker that may be gone; the group notices without it, later.
            _log.warning("worker.hung_up", seconds=_CLOSE_TIMEOUT_SECONDS)
            for subscriber, _ in self._readers:
                if subscriber.consumer is not None:
                    await hang_up(subscriber.consumer)
            await asyncio.wait({stopping}, timeout=_CLOSE_TIMEOUT_SECONDS)
        await _cancel([stopping])

    @contextlib.contextmanager
    def _asked_by_signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.request_stop)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


class _Broker(KafkaBroker):
    """Joins the groups of all topics at once; FastStream's own start joins one after the other."""

    async def start(self) -> None:
        """Connect and start every subscriber. Raises the first error after ending the other starts."""
        await self.connect()
        try:
            async with asyncio.TaskGroup() as group:
                for subscriber in self.subscribers:
                    group.create_task(subscriber.start())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        self.running = True


async def _first_of(*waited: asyncio.Task[None] | asyncio.Event) -> None:
    events = [asyncio.create_task(one.wait()) for one in waited if isinstance(one, asyncio.Event)]
    tasks = [one for one in waited if isinstance(one, asyncio.Task)]
    try:
        await asyncio.wait([*tasks, *events], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _cancel(events)


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
