"""From the consumer to the handler and back to the committed offset.

What is promised: at least once, and nothing is committed past unfinished work. From its admission on the
commit of its partition stays at or before a record until its handler has returned, which it does after the
acknowledged publication. A crash, a revocation or a cancelled task leaves the record uncommitted, so it is
delivered again to whoever owns the partition then. The records of a partition are worked on side by side and
end in any order.

Admitted records wait for their turn (see `worker.kafka.admission`) outside the reader, which goes on reading
until a partition has reached its span, or the bytes that may wait: so a project that floods its partition
holds up no other partition, and on its own none that lies within the span.

FastStream declares, configures, starts and stops the consumer; records are read from it directly. Its path
per record costs 80 to 130 µs, several times what aiokafka takes to fetch and decode one, and a middleware
runs after most of that. So the subscriber has no handler: FastStream's acknowledgement policies, parsers
and replies never run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import Context
from functools import partial
from typing import Final

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import ConsumerStoppedError, KafkaError

from worker.errors import Unavailable
from worker.kafka.admission import project_of
from worker.kafka.assignment import Assignment, Shared
from worker.kafka.attempts import Attempts
from worker.kafka.offsets import OffsetTracker
from worker.kafka.partition import Consumer, Partition, PauseCause, RawRecord
from worker.kafka.records import InboundRecord

_log = structlog.get_logger(__name__)

_READ_PAUSE_SECONDS: Final = 0.5
_POSITION_TIMEOUT_SECONDS: Final = 1.0


class ConsumerBroken(Unavailable):
    """Reading failed for so long, without a break, that only a new process may mend it."""


class Dispatcher:
    """Serves one topic: reads its records, admits them, runs them and commits what has ended.

    `read` and `keep_committing` run side by side until they are cancelled; `assignment` listens to
    aiokafka and hands the partitions over at the end.
    """

    def __init__(
        self,
        topic: str,
        attempts: Attempts,
        *,
        assignment: Assignment,
        shared: Shared,
        expected_seconds: float = 0.0,
    ) -> None:
        """Nothing runs yet. `expected_seconds` is how long one record may well take."""
        self.topic = topic
        self.assignment = assignment
        self._attempts = attempts
        self._shared = shared
        self._slots = shared.slots
        self._limits = shared.limits
        self._clock = shared.clock
        self._commit_due = asyncio.Event()
        self._ended_since_commit = 0
        self._in_flight = 0
        self._reads = 0
        self._is_reading = False
        self._has_ended = False
        self._moved_at = shared.clock()
        self._fetch_heard_at = self._moved_at
        self._newest_fetch_ms = 0
        self._expected_seconds = expected_seconds
        shared.gate.subscribe(self._on_store)

    # --- Reading ---------------------------------------------------------------------------------

    async def read(self, consumer: Consumer) -> None:
        """Admit records until cancelled. Raises ConsumerBroken where reading does nothing but fail."""
        failing_since: float | None = None
        try:
            while True:
                try:
                    record = await self._next(consumer)
                except ConsumerStoppedError as error:
                    raise ConsumerBroken(f"the consumer of {self.topic} was stopped") from error
                except UnicodeDecodeError as error:
                    if not await self._take_undecodable(consumer):
                        failing_since = await self._pause_after(error, failing_since)
                except KafkaError as error:
                    failing_since = await self._pause_after(error, failing_since)
                else:
                    failing_since = None
                    await self._take(record)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._has_ended = True
            raise

    async def _next(self, consumer: Consumer) -> RawRecord:
        # One record at a time: `getmany` loses what it has already collected when a later record of the
        # same call cannot be decoded, and the position has moved past it.
        self._is_reading = True
        try:
            record = await consumer.getone()
        finally:
            self._is_reading = False
        self._reads += 1
        return record

    async def _pause_after(self, error: Exception, failing_since: float | None) -> float:
        now = self._clock()
        since = now if failing_since is None else failing_since
        _log.warning("consumer.read_failed", topic=self.topic, error=repr(error))
        if now - since > self._limits.read_errors_seconds:
            raise ConsumerBroken(f"reading {self.topic} has failed for {now - since:.0f} s") from error
        await asyncio.sleep(_READ_PAUSE_SECONDS)
        return since

    async def _take(self, record: RawRecord) -> bool:
        """Admit one record; False where its partition is paused or revoked."""
        owner = await self.assignment.partition_of(TopicPartition(record.topic, record.partition))
        # Where it was revoked, the next owner starts from the commit, which is not past this record.
        if owner is None or not self.assignment.owns(owner):
            return False
        if owner.is_paused:
            self.assignment.rewind(owner, record.offset)
            return False
        self._admit(owner, record)
        if owner.waiting:
            # Else a backlog in the client's buffers would be read in one go, and all work stand still.
            await asyncio.sleep(0)
        return True

    async def _take_undecodable(self, consumer: Consumer) -> bool:
        """Find the batches that aiokafka cannot decode, and admit their records; False where there are none.

        A header key that is no UTF-8, which brokers accept, makes every read fail for ever.
        """
        owners = {owner.topic_partition: owner for owner in self.assignment.partitions}
        asking = [asyncio.wait_for(consumer.position(tp), _POSITION_TIMEOUT_SECONDS) for tp in owners]
        answers = zip(owners, await asyncio.gather(*asking, return_exceptions=True), strict=True)
        # One partition that is in trouble of its own must not hide what is wrong with another.
        positions = {tp: answer for tp, answer in answers if not isinstance(answer, BaseException)}
        try:
            found = await self._shared.fetch_undecodable(positions)
        except (KafkaError, OSError, TimeoutError) as error:
            _log.warning("consumer.read_failed", topic=self.topic, error=repr(error))
            return False
        for tp, batch in found.items():
            if self.assignment.owns(owners[tp]):
                _log.warning(
                    "batch.undecodable", topic=tp.topic, partition=tp.partition, offset=positions[tp]
                )
                self.assignment.rewind(owners[tp], batch.next_offset)
                for record in batch.records:
                    if not await self._take(record):
                        break
        return bool(found)

    # --- Working ---------------------------------------------------------------------------------

    def _admit(self, owner: Partition, record: RawRecord) -> None:
        tracker, limits = owner.tracker, self._limits
        if tracker.next_offset is not None and record.offset < tracker.next_offset:
            # The log was cut behind us and the position reset: a new log under old offsets.
            _log.warning(
                "partition.truncated", topic=record.topic, partition=record.partition, offset=record.offset
            )
            tracker = owner.restart()
        tracker.admit(record.offset)
        owner.wait(tracker, record.offset, size_bytes=_size_bytes(record))
        project = project_of(record.key)
        self._slots.ask(self.topic, project, partial(self._start, owner, tracker, record, project))
        if tracker.span >= limits.uncommitted_span or owner.waiting_bytes >= limits.waiting_bytes:
            self.assignment.pause(owner, self._cause(owner))

    def _start(self, owner: Partition, tracker: OffsetTracker, record: RawRecord, project: bytes) -> bool:
        if not self.assignment.owns(owner) or not owner.begin(tracker, record.offset):
            return False
        if not self._in_flight:
            self._moved_at = self._clock()
        self._in_flight += 1
        # In a context of its own: what starts it may be another record, which ends or steps aside.
        task = asyncio.create_task(self._work(owner, tracker, inbound(record)), context=Context())
        owner.tasks.add(task)
        # A task that is cancelled before its first step never runs any of its own clean-up.
        task.add_done_callback(partial(self._settle, owner, project))
        return True

    async def _work(self, owner: Partition, tracker: OffsetTracker, record: InboundRecord) -> None:
        await self._attempts.finish(record, partial(owner.ref, record.offset), aside=self._aside)
        tracker.done(record.offset)
        self._moved_at = self._clock()
        self._ended_since_commit += 1
        if self._ended_since_commit >= self._limits.commit_after_records:
            self._commit_due.set()
        if owner.is_far_ahead:
            self._reconsider(owner, tracker)

    def _reconsider(self, owner: Partition, tracker: OffsetTracker) -> None:
        if self._is_half_empty(owner, tracker):
            self.assignment.resume(owner, "span")
            self.assignment.resume(owner, "backlog")
        elif "backlog" in owner.causes and self._cause(owner) == "span":
            self.assignment.pause(owner, "span")
            self.assignment.resume(owner, "backlog")

    def _cause(self, owner: Partition) -> PauseCause:
        """Why it is too far ahead: most of it has not ended, or has ended behind what does not end."""
        tracker = owner.tracker
        is_full = owner.waiting_bytes >= self._limits.waiting_bytes
        return "backlog" if is_full or 2 * tracker.unfinished >= tracker.span else "span"

    @asynccontextmanager
    async def _aside(self) -> AsyncGenerator[None]:
        async with self._slots.aside(self.topic):
            yield
        self._moved_at = self._clock()

    def _is_half_empty(self, owner: Partition, tracker: OffsetTracker) -> bool:
        limits = self._limits
        has_span = 2 * tracker.span <= limits.uncommitted_span
        return has_span and 2 * owner.waiting_bytes <= limits.waiting_bytes

    def _settle(self, owner: Partition, project: bytes, task: asyncio.Task[None]) -> None:
        owner.tasks.discard(task)
        self._in_flight -= 1
        self._slots.release(self.topic, project)

    # --- Committing ------------------------------------------------------------------------------

    async def keep_committing(self, consumer: Consumer) -> None:
        """Commit every interval, or sooner after many records, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._limits.commit_interval_seconds):
                    await self._commit_due.wait()
            except TimeoutError:
                pass
            self._commit_due.clear()
            self._ended_since_commit = 0
            await self._skip_markers(consumer)
            await self.assignment.commit()
            self._listen(consumer)

    async def _skip_markers(self, consumer: Consumer) -> None:
        """Let the commit pass what the log holds and no consumer sees, such as transaction markers.

        Only while the reader waits for the next record: then nothing lies between the position and the
        last record that was admitted.
        """
        for owner in list(self.assignment.partitions):
            reads = self._reads
            if owner.is_paused or not owner.tracker.is_idle or not self._is_reading:
                continue
            try:
                async with asyncio.timeout(_POSITION_TIMEOUT_SECONDS):
                    position = await consumer.position(owner.topic_partition)
            except (KafkaError, TimeoutError):
                continue
            if self._is_reading and reads == self._reads and not owner.is_paused:
                owner.tracker.skip_to(position)

    # --- Health ----------------------------------------------------------------------------------

    def _listen(self, consumer: Consumer) -> None:
        """Note whether fetches are answered; only an idle reader of partitions that are not paused tells."""
        assigned = consumer.assignment()
        newest_fetch_ms = max(
            (
                consumer.last_poll_timestamp(owner.topic_partition) or 0
                for owner in self.assignment.partitions
                if not owner.is_paused and owner.topic_partition in assigned
            ),
            default=None,
        )
        if newest_fetch_ms is None or not self._is_reading or newest_fetch_ms != self._newest_fetch_ms:
            self._newest_fetch_ms = newest_fetch_ms or 0
            self._fetch_heard_at = self._clock()

    @property
    def is_assigned(self) -> bool:
        """Whether it is a member of its group now; a member may have been given no partition."""
        return self.assignment.is_current

    @property
    def unassigned_seconds(self) -> float:
        """For how long it has not been a member of its group."""
        return self.assignment.unassigned_seconds

    @property
    def is_broker_away(self) -> bool:
        """Whether fetches have long remained without an answer."""
        return self._clock() - self._fetch_heard_at > self._limits.fetch_silence_seconds

    @property
    def stalled_seconds(self) -> float:
        """For how long records have been in work and none has ended, beyond what one may well take.

        The time in which they wait for a store, or for their turn behind that, does not count.
        """
        if self._in_flight <= self._slots.aside_of(self.topic) or self._shared.gate.is_closed:
            return 0.0
        return max(0.0, self._clock() - self._moved_at - self._expected_seconds)

    def _on_store(self) -> None:
        self._moved_at = self._clock()

    @property
    def has_ended(self) -> bool:
        """Whether reading ended by itself."""
        return self._has_ended

    @property
    def in_flight(self) -> int:
        """Records in work."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """Records that were admitted and wait for their turn."""
        return sum(len(owner.waiting) for owner in self.assignment.partitions)


def _size_bytes(record: RawRecord) -> int:
    headers = sum([len(name) + len(value or b"") for name, value in record.headers])
    return len(record.value or b"") + len(record.key or b"") + headers


def inbound(record: RawRecord) -> InboundRecord:
    """The record as a plain value; a header without a value is an empty one."""
    return InboundRecord(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        key=record.key,
        value=record.value,
        headers=tuple([(name, value or b"") for name, value in record.headers]),
    )
