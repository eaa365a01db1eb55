"""The partitions that this worker owns now: opened, paused, committed and handed over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog
from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from worker.errors import StoreUnavailable
from worker.kafka.admission import Slots
from worker.kafka.outage import StoreGate
from worker.kafka.partition import Consumer, Limits, Partition, PauseCause
from worker.kafka.quarantine import Quarantine
from worker.telemetry import Telemetry
from worker.undecodable import UndecodableBatch

_log = structlog.get_logger(__name__)

_OPEN_PAUSE_SECONDS: Final = 0.5
_CUT_OFF_SECONDS: Final = 1.0
"""How long a record that was cut off may take to notice it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What the topics of one process have in common."""

    slots: Slots
    gate: StoreGate
    quarantine: Quarantine
    telemetry: Telemetry
    limits: Limits
    cluster_id: Callable[[], Awaitable[str]]
    log_ends: Callable[[Mapping[TopicPartition, int]], Awaitable[Mapping[TopicPartition, int]]]
    """Where the logs end, of which a consumer was told this; see `worker.kafka_fetch.log_ends`."""
    fetch_undecodable: Callable[
        [Mapping[TopicPartition, int]], Awaitable[Mapping[TopicPartition, UndecodableBatch]]
    ]
    """The batches that hold the next records from these offsets on, where aiokafka cannot decode them."""
    clock: Callable[[], float] = time.monotonic


class Assignment(ConsumerRebalanceListener):
    """What a group has given to this worker; aiokafka calls the `on_partitions_*` around each rebalance.

    Records may arrive a moment before `on_partitions_assigned` and must not be admitted before the lives
    of their partitions are counted, so a partition begins paused and is opened by a task: the callback
    itself has to return before the group's session times out.
    """

    def __init__(self, group: str, *, shared: Shared, consumer: Callable[[], Consumer | None]) -> None:
        """`consumer` gives the started consumer, None before the start and after the stop."""
        self._group = group
        self._shared = shared
        self._consumer = consumer
        self._partitions: dict[TopicPartition, Partition] = {}
        self._generation = 0
        self._has_assignment = asyncio.Event()
        self._unassigned_since = shared.clock()
        self._opening: asyncio.Task[None] | None = None
        self._is_leaving = False
        self._commit_lock = asyncio.Lock()
        shared.gate.subscribe(self._on_store)

    @property
    def is_current(self) -> bool:
        """Whether the group counts on this worker now; it may have been given no partition."""
        return self._has_assignment.is_set()

    @property
    def unassigned_seconds(self) -> float:
        """For how long it has not been current."""
        return 0.0 if self.is_current else self._shared.clock() - self._unassigned_since

    @property
    def partitions(self) -> Iterable[Partition]:
        """What it owns now."""
        return self._partitions.values()

    def owns(self, partition: Partition) -> bool:
        """Whether the partition was not revoked since."""
        return self._partitions.get(partition.topic_partition) is partition

    async def partition_of(self, topic_partition: TopicPartition) -> Partition | None:
        """The partition of a record that was just read; None where it was revoked meanwhile."""
        generation = self._generation
        partition = self._partitions.get(topic_partition)
        if partition is None:
            await self._has_assignment.wait()
            if generation == self._generation:
                partition = self._partitions.get(topic_partition)
        return partition

    # --- Pausing ---------------------------------------------------------------------------------

    def pause(self, partition: Partition, cause: PauseCause) -> None:
        """Read no more of it until every cause is gone."""
        partition.causes.add(cause)
        consumer = self._consumer()
        if consumer is not None and partition.topic_partition in consumer.assignment():
            consumer.pause(partition.topic_partition)

    def resume(self, partition: Partition, cause: PauseCause) -> None:
        """Take back one cause."""
        partition.causes.discard(cause)
        consumer = self._consumer()
        if partition.causes or consumer is None or not self.owns(partition):
            return
        if partition.topic_partition in consumer.assignment():
            consumer.resume(partition.topic_partition)

    def rewind(self, partition: Partition, offset: int) -> None:
        """Have a record that was read and not admitted delivered again when the partition goes on."""
        consumer = self._consumer()
        if consumer is not None and partition.topic_partition in consumer.assignment():
            consumer.seek(partition.topic_partition, offset)

    def _on_store(self) -> None:
        change = self.pause if self._shared.gate.is_closed else self.resume
        for partition in self._partitions.values():
            change(partition, "store")

    # --- Rebalances ------------------------------------------------------------------------------

    # aiokafka awaits what a listener returns, though its base class declares None.
    async def on_partitions_assigned(  # pyright: ignore[reportIncompatibleMethodOverride]  see above
        self, assigned: Iterable[TopicPartition]
    ) -> None:
        """Take the partitions over, paused, and open them in a task of its own."""
        causes: list[PauseCause] = ["opening", "store"] if self._shared.gate.is_closed else ["opening"]
        self._partitions = {tp: Partition(tp, causes) for tp in assigned}
        consumer = self._consumer()
        if consumer is not None:
            consumer.pause(*self._partitions)
        self._has_assignment.set()
        _log.info("partitions.assigned", group=self._group, partitions=_names(self._partitions))
        if self._partitions and not self._is_leaving:
            self._opening = asyncio.create_task(self._open(list(self._partitions.values())))

    async def on_partitions_revoked(  # pyright: ignore[reportIncompatibleMethodOverride]  see above
        self, revoked: Iterable[TopicPartition]
    ) -> None:
        """Hand everything over: eager groups revoke all at once."""
        del revoked  # the same as what was assigned, or empty at the first join
        self._has_assignment.clear()
        self._unassigned_since = self._shared.clock()
        await self._hand_over(wait_seconds=self._shared.limits.revoke_wait_seconds)

    async def leave(self, *, drain_seconds: float) -> None:
        """End the work or cut it off at the deadline, commit, and forget the partitions; idempotent.

        Nobody may admit records any more. What waits is given back to the next owner. A commit is one offset,
        so what has ended behind a record that was given back is delivered again, and answered again with the
        same bytes. To spare that, records that wait before something which was begun are begun, too, but of a
        topic no more than it has slots, partitions with the fewest first: one more round of work, and a
        drain that ends. In a flood, of which thousands wait, none is begun: the deadline would cut it off,
        and what had ended would be delivered again all the same.
        """
        self._is_leaving = True
        self._give_waiting_back()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + drain_seconds
        # What ends lets others begin, that came before something which has ended already.
        while (tasks := self._tasks()) and (left_seconds := deadline - loop.time()) > 0:
            await asyncio.wait(tasks, timeout=left_seconds)
        cut_off = self._tasks()
        await self._hand_over(wait_seconds=0)
        if cut_off:
            # The last step of each says what was counted for it.
            await asyncio.wait(cut_off, timeout=_CUT_OFF_SECONDS)
        try:
            async with asyncio.timeout(self._shared.limits.commit_timeout_seconds):
                await self._shared.quarantine.take_back(at_once=True)
        except TimeoutError:
            _log.warning("quarantine.lives_kept", group=self._group, error="the ledger did not answer")

    def _give_waiting_back(self) -> None:
        for partition in self.partitions:
            partition.withdraw_waiting()
        begun: dict[str, int] = {}
        for partition in sorted(self.partitions, key=lambda one: (len(one.waiting), one.topic_partition)):
            topic = partition.topic_partition.topic
            begun[topic] = begun.get(topic, 0) + len(partition.waiting)
            if begun[topic] > self._shared.slots.limit_of(topic):
                partition.abandon_waiting()

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {task for partition in self.partitions for task in partition.tasks}

    async def _hand_over(self, *, wait_seconds: float) -> None:
        # From here on nobody finds them: nothing is admitted to them, nothing resumes them.
        partitions = list(self._partitions.values())
        self._partitions = {}
        self._generation += 1
        if self._opening is not None:
            self._opening.cancel()
        tasks = {task for partition in partitions for task in partition.tasks}
        if tasks and wait_seconds:
            await asyncio.wait(tasks, timeout=wait_seconds)
        await self._commit(partitions)
        for partition in partitions:
            for task in partition.tasks:
                partition.was_cut_off = True
                task.cancel()
        await self._clear(partitions)
        if partitions:
            _log.info(
                "partitions.left",
                group=self._group,
                partitions=_names(partition.topic_partition for partition in partitions),
                cut_off=_names(
                    partition.topic_partition for partition in partitions if partition.was_cut_off
                ),
            )

    async def _clear(self, partitions: Iterable[Partition]) -> None:
        quarantine = self._shared.quarantine
        for partition in partitions:
            quarantine.forget(partition.position(self._group))
            if partition.scope and partition.was_cut_off:
                quarantine.cut_off(partition.ref(0), group=self._group)
        try:
            async with asyncio.timeout(self._shared.limits.commit_timeout_seconds):
                await asyncio.gather(
                    *(
                        quarantine.clear(partition.position(self._group), scope=partition.scope)
                        for partition in partitions
                        # One that was never opened was never counted, and its scope is not known.
                        if partition.scope and not partition.was_cut_off
                    )
                )
        except TimeoutError:
            _log.warning("quarantine.lives_kept", group=self._group, error="the ledger did not answer")

    # --- Opening ---------------------------------------------------------------------------------

    async def _open(self, partitions: list[Partition]) -> None:
        while True:
            try:
                await self._count_lives(partitions)
            except StoreUnavailable as error:
                await self._shared.gate.wait(error)
            except (KafkaError, OSError, TimeoutError) as error:
                _log.warning("partitions.not_opened", group=self._group, error=repr(error))
                await asyncio.sleep(_OPEN_PAUSE_SECONDS)
            else:
                break
        for partition in partitions:
            self.resume(partition, "opening")

    async def _count_lives(self, partitions: list[Partition]) -> None:
        consumer = self._consumer()
        if consumer is None:
            return
        scope = await self._shared.cluster_id()
        wanted = [partition.topic_partition for partition in partitions]
        committed = dict(zip(wanted, await asyncio.gather(*map(consumer.committed, wanted)), strict=True))
        ends = await self._shared.log_ends(await consumer.end_offsets(wanted))
        begins = await consumer.beginning_offsets([tp for tp in wanted if committed[tp] is None])

        async def count(partition: Partition) -> None:
            tp = partition.topic_partition
            offset = committed[tp]
            partition.committed = begins[tp] if offset is None else offset
            # Said before it is written: a rebalance that cuts this off clears what may have been counted.
            partition.scope = scope
            try:
                start = partition.ref(partition.committed)
                await self._shared.quarantine.started(self._group, start, end_offset=ends[tp])
            except StoreUnavailable:
                partition.scope = ""
                raise

        # Those that were counted before the store went away are not counted again.
        counts = [count(partition) for partition in partitions if not partition.scope]
        for result in await asyncio.gather(*counts, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    # --- Committing ------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit what has ended since; where that fails it is tried again the next time."""
        await self._commit(list(self._partitions.values()))
        for partition in list(self._partitions.values()):
            if partition.scope and self.owns(partition):
                position = partition.position(self._group)
                await self._shared.quarantine.note(
                    position, scope=partition.scope, committed=partition.committed
                )
        await self._shared.quarantine.take_back()

    async def _commit(self, partitions: Iterable[Partition]) -> None:
        consumer = self._consumer()
        if consumer is None:
            return
        # One at a time: aiokafka repeats a failed commit, and an old one must not overtake a newer one.
        async with self._commit_lock:
            assigned = consumer.assignment()
            due = {
                partition: offset
                for partition in partitions
                if (offset := partition.tracker.committable) is not None
                and offset > partition.committed
                and partition.topic_partition in assigned
            }
            if not due:
                return
            try:
                async with asyncio.timeout(self._shared.limits.commit_timeout_seconds):
                    await consumer.commit({p.topic_partition: offset for p, offset in due.items()})
            except (CommitFailedError, IllegalStateError) as error:
                # Another member may own the partitions now: the revocation is on its way.
                _log.info("commit.superseded", group=self._group, error=repr(error.__cause__ or error))
            except (KafkaError, TimeoutError) as error:
                _log.warning("commit.failed", group=self._group, error=repr(error))
            else:
                self._shared.telemetry.commits.inc()
                for partition, offset in due.items():
                    partition.committed = offset


def _names(partitions: Iterable[TopicPartition]) -> list[str]:
    return sorted(f"{topic}-{number}" for topic, number in partitions)
