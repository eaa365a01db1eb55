"""A consumer group with one member, in memory, that behaves as aiokafka's consumer was seen to behave."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from worker.kafka.assignment import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    topic: str
    partition: int
    offset: int
    value: bytes | None
    timestamp: int = 1_000
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(kw_only=True)
class FakeConsumer:
    """The log and the commits outlive rebalances; positions and pauses do not."""

    log: dict[TopicPartition, list[Raw]] = field(default_factory=dict[TopicPartition, list[Raw]])
    stored: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    commits: list[dict[TopicPartition, int]] = field(default_factory=list[dict[TopicPartition, int]])
    positions: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    paused: set[TopicPartition] = field(default_factory=set[TopicPartition])
    commit_errors: list[KafkaError] = field(default_factory=list[KafkaError])
    read_errors: list[Exception] = field(default_factory=list[Exception])
    position_errors: dict[TopicPartition, Exception] = field(default_factory=dict[TopicPartition, Exception])
    undecodable: set[tuple[TopicPartition, int]] = field(default_factory=set[tuple[TopicPartition, int]])
    fetched_at_ms: int = 0
    waiting: int = 0
    """Readers that wait for a record."""
    asked_for_fetches: int = 0
    position_known: asyncio.Event | None = None
    """Where set, `position` waits for it, as it does after a reset."""
    waiting_for_position: int = 0
    _owned: set[TopicPartition] = field(default_factory=set[TopicPartition])
    _is_rebalancing: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    # --- What a test does ------------------------------------------------------------------------

    def append(
        self,
        tp: TopicPartition,
        *values: bytes,
        gap: int = 0,
        key: bytes | None = None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
    ) -> None:
        """Put records at the end of a partition, behind `gap` offsets that nobody will ever see."""
        records = self.log.setdefault(tp, [])
        offset = records[-1].offset + 1 if records else 0
        for value in values:
            offset += gap
            records.append(
                Raw(
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=offset,
                    value=value,
                    key=key,
                    headers=headers,
                )
            )
            offset += 1
        self._changed.set()

    async def rebalance(self, listener: Assignment, owned: Iterable[TopicPartition]) -> None:
        """Revoke everything, then give `owned`, from the commits on."""
        self._is_rebalancing = True
        await listener.on_partitions_revoked(set(self._owned))
        self._owned = set(owned)
        self.paused.clear()
        self.positions = {tp: self.stored.get(tp, 0) for tp in self._owned}
        # aiokafka lets readers go on before it calls the listener.
        self._is_rebalancing = False
        self._changed.set()
        await asyncio.sleep(0)
        await listener.on_partitions_assigned(set(self._owned))

    # --- What a dispatcher uses ------------------------------------------------------------------

    async def getone(self) -> Raw:
        while True:
            if self.read_errors:
                raise self.read_errors.pop(0)
            record = None if self._is_rebalancing else self._next()
            if record is not None:
                return record
            self._changed.clear()
            self.waiting += 1
            try:
                await self._changed.wait()
            finally:
                self.waiting -= 1

    def _next(self) -> Raw | None:
        for tp in sorted(self._owned - self.paused):
            for record in self.log.get(tp, ()):
                if record.offset >= self.positions[tp]:
                    # A batch holds two records, and one that cannot be decoded spoils what follows in it.
                    first = record.offset - record.offset % 2
                    if any((tp, offset) in self.undecodable for offset in range(first, record.offset + 1)):
                        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
                    self.positions[tp] = record.offset + 1
                    return record
        return None

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        await asyncio.sleep(0)
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        if not offsets.keys() <= self._owned:
            raise IllegalStateError("not assigned")
        self.stored.update(offsets)
        self.commits.append(dict(offsets))

    async def committed(self, partition: TopicPartition) -> int | None:
        await asyncio.sleep(0)
        return self.stored.get(partition)

    async def position(self, partition: TopicPartition) -> int:
        if partition in self.position_errors:
            raise self.position_errors[partition]
        if self.position_known is not None:
            self.waiting_for_position += 1
            await self.position_known.wait()
        return self.positions[partition]

    async def end_offsets(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        await asyncio.sleep(0)
        # As the embedded broker lists them: behind the first record of the last batch, which holds two.
        return {tp: end - (end + 1) % 2 if (end := self.log_end(tp)) else 0 for tp in partitions}

    def log_end(self, tp: TopicPartition) -> int:
        """Behind the last record."""
        return self.log[tp][-1].offset + 1 if self.log.get(tp) else 0

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def assignment(self) -> set[TopicPartition]:
        return set(self._owned)

    def pause(self, *partitions: TopicPartition) -> None:
        self._check(partitions)
        self.paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._check(partitions)
        self.paused.difference_update(partitions)
        self._changed.set()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._check([partition])
        self.positions[partition] = offset
        self._changed.set()

    def last_poll_timestamp(self, partition: TopicPartition) -> int | None:
        self._check([partition])
        self.asked_for_fetches += 1
        return self.fetched_at_ms

    def _check(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            if tp not in self._owned:
                raise IllegalStateError(f"{tp} is not assigned")
