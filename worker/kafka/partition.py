"""One assigned partition, and what is used of the consumer that reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from aiokafka import TopicPartition

from worker.kafka.offsets import OffsetTracker
from worker.kafka.quarantine import Position
from worker.ports import RecordRef

PauseCause = Literal["opening", "store", "span", "backlog"]
"""Of those that were admitted too far ahead: `span` where most records have ended, behind some that have not;
`backlog` where most have not, as in every flood."""
PAUSE_CAUSES: tuple[PauseCause, ...] = get_args(PauseCause)


class RawRecord(Protocol):
    """A record as aiokafka hands it out."""

    @property
    def topic(self) -> str: ...  # noqa: D102  the names say it all
    @property
    def partition(self) -> int: ...  # noqa: D102
    @property
    def offset(self) -> int: ...  # noqa: D102
    @property
    def timestamp(self) -> int: ...  # noqa: D102
    @property
    def key(self) -> bytes | None: ...  # noqa: D102
    @property
    def value(self) -> bytes | None: ...  # noqa: D102
    @property
    def headers(self) -> Iterable[tuple[str, bytes | None]]: ...  # noqa: D102


class Consumer(Protocol):
    """What is used of aiokafka's consumer; its own documentation holds."""

    async def getone(self) -> RawRecord: ...  # noqa: D102
    async def commit(self, offsets: dict[TopicPartition, int]) -> None: ...  # noqa: D102
    async def committed(self, partition: TopicPartition) -> int | None: ...  # noqa: D102
    async def position(self, partition: TopicPartition) -> int: ...  # noqa: D102
    async def end_offsets(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]: ...  # noqa: D102
    async def beginning_offsets(  # noqa: D102
        self, partitions: list[TopicPartition]
    ) -> Mapping[TopicPartition, int]: ...
    def assignment(self) -> AbstractSet[TopicPartition]: ...  # noqa: D102
    def pause(self, *partitions: TopicPartition) -> None: ...  # noqa: D102
    def resume(self, *partitions: TopicPartition) -> None: ...  # noqa: D102
    def seek(self, partition: TopicPartition, offset: int) -> None: ...  # noqa: D102
    def last_poll_timestamp(self, partition: TopicPartition) -> int | None: ...  # noqa: D102


class LogEnds(Protocol):
    """What is used of it to tell how much there is to do."""

    def assignment(self) -> AbstractSet[TopicPartition]: ...  # noqa: D102
    def highwater(self, partition: TopicPartition) -> int | None: ...  # noqa: D102


class Partition:
    """A partition from its assignment to its revocation.

    The tasks of its records hold this object, and the next assignment makes another one, so that whoever
    ends late touches nothing that is still in use.
    """

    __slots__ = (
        "causes",
        "committed",
        "scope",
        "tasks",
        "topic_partition",
        "tracker",
        "waiting",
        "waiting_bytes",
        "was_cut_off",
    )

    def __init__(self, topic_partition: TopicPartition, causes: Iterable[PauseCause]) -> None:
        """`causes`: why it is paused from the start."""
        self.topic_partition = topic_partition
        self.causes = set(causes)
        self.tracker = OffsetTracker()
        self.tasks: set[asyncio.Task[None]] = set()
        self.waiting: dict[tuple[OffsetTracker, int], int] = {}
        """Admitted records whose turn has not come: tracker and offset to size in bytes, oldest first."""
        self.waiting_bytes = 0
        self.committed = -1
        """The offset that a new owner would start from; known when it is opened."""
        self.scope = ""
        self.was_cut_off = False
        """Whether a record of it was cancelled in its work."""

    @property
    def is_paused(self) -> bool:
        """Whether no record of it may be admitted."""
        return bool(self.causes)

    @property
    def is_far_ahead(self) -> bool:
        """Whether it is paused because so much was admitted."""
        return not self.causes.isdisjoint(("span", "backlog"))

    def ref(self, offset: int) -> RecordRef:
        """Where one of its records lies; the scope is known when it is opened."""
        topic, partition = self.topic_partition
        return RecordRef(scope=self.scope, topic=topic, partition=partition, offset=offset)

    def wait(self, tracker: OffsetTracker, offset: int, *, size_bytes: int) -> None:
        """A record that was admitted waits for its turn."""
        self.waiting[tracker, offset] = size_bytes
        self.waiting_bytes += size_bytes

    def begin(self, tracker: OffsetTracker, offset: int) -> bool:
        """Its turn has come; False where it was withdrawn meanwhile."""
        size_bytes = self.waiting.pop((tracker, offset), None)
        if size_bytes is None:
            return False
        self.waiting_bytes -= size_bytes
        return True

    def withdraw_waiting(self) -> None:
        """Take back what waits behind all that was begun: it can be left to the next owner as it is."""
        for tracker, offset in reversed(list(self.waiting)):
            if tracker is not self.tracker or not tracker.withdraw(offset):
                break
            self.begin(tracker, offset)

    def abandon_waiting(self) -> None:
        """Take back all that waits. The commit stays before it, and so before what has ended behind it."""
        self.waiting.clear()
        self.waiting_bytes = 0

    def restart(self) -> OffsetTracker:
        """Track a log that began anew; what is in work of the old one no longer counts."""
        self.tracker = OffsetTracker()
        self.committed = -1
        return self.tracker

    def position(self, group: str) -> Position:
        """What its lives are counted by."""
        topic, partition = self.topic_partition
        return (group, topic, partition)


def lag_of(consumer: LogEnds, owned: Iterable[Partition]) -> int:
    """Offsets from the commits to the ends of the logs, as the last fetches found them.

    A partition of which either is not known counts as nothing, as does one that the consumer does not have.
    """
    assigned = consumer.assignment()
    lag = 0
    for owner in owned:
        tp = owner.topic_partition
        # aiokafka answers for no other.
        end = consumer.highwater(tp) if tp in assigned else None
        if end is not None and owner.committed >= 0:
            # A commit may be newer than the fetch.
            lag += max(0, end - owner.committed)
    return lag


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far work may run ahead of what is committed, and how long anything is waited for.

    `revoke_wait_seconds` plus `commit_timeout_seconds`, twice, must stay below the group's rebalance
    timeout (by default its session timeout, 10 s), or the broker gives the partitions away meanwhile.
    """

    commit_interval_seconds: float = 0.5
    commit_after_records: int = 500
    uncommitted_span: int = 2_000
    waiting_bytes: int = 4 << 20
    """Of the records of one partition that were read and wait for their turn, keys and headers included."""
    revoke_wait_seconds: float = 3.0
    commit_timeout_seconds: float = 2.0
    fetch_silence_seconds: float = 5.0
    read_errors_seconds: float = 60.0
