"""Capturing request traffic from its topic, without taking part in it: no group, no commit, nothing moved."""

from __future__ import annotations

import heapq
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol, cast

from aiokafka import TopicPartition

from worker.kafka_clients import Record, TopicReader, whole_topic
from worker.load.recording import RecordedRecord, RecordingWriter

_POLL_SECONDS: Final = 0.25
_FLUSH_SECONDS: Final = 0.5


class _Timed(Record, Protocol):
    """A record with its time, which aiokafka's have."""

    @property
    def timestamp(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPlan:
    """What is captured, and until when. Without an end it goes on until it is stopped."""

    since: datetime | None = None
    """Begin with the records of that instant that are still kept; with what comes from now on where None."""
    duration_seconds: float | None = None
    """Of capturing what comes; 0 ends with what is there now."""
    max_records: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """How far a capture has come."""

    records: int
    size_bytes: int
    """Of the file."""
    seconds: float


class Recorder:
    """Captures one topic into one file."""

    def __init__(
        self,
        topic: str,
        options: Mapping[str, Any],
        *,
        transform: Callable[[RecordedRecord], RecordedRecord],
        on_progress: Callable[[Captured], None],
    ) -> None:
        """`options` are keyword arguments of aiokafka's clients; `transform` is applied to each record."""
        self._topic = topic
        self._options = options
        self._transform = transform
        self._on_progress = on_progress
        self._stopped = False

    def stop(self) -> None:
        """End soon, with what was captured; also from a signal handler."""
        self._stopped = True

    async def record(self, writer: RecordingWriter, plan: RecordPlan) -> Captured:
        """Capture into `writer`; it is flushed twice a second, and not finished.

        What was there already comes in the order of its times, over all partitions; what comes, as it comes.
        Raises TopicMissing, aiokafka's errors, and OSError of a full disk.
        """
        began = flushed = time.monotonic()
        async with (
            whole_topic(self._topic, self._options, from_end=plan.since is None) as reader,
            aclosing(self._records(reader, plan)) as records,
        ):
            async for record in records:
                if record is not None:
                    writer.add(self._transform(_recorded(record)))
                now = time.monotonic()
                if now - flushed >= _FLUSH_SECONDS:
                    writer.flush()
                    flushed = now
                    self._on_progress(_captured(writer, began))
                if self._stopped or writer.records == plan.max_records:
                    break
        writer.flush()
        return _captured(writer, began)

    async def _records(self, reader: TopicReader, plan: RecordPlan) -> AsyncGenerator[_Timed | None]:
        """The records of the plan; None now and then, where nothing comes."""
        if plan.since is not None:
            since_ms = plan.since.timestamp() * 1_000
            async with aclosing(_in_order_of_time(reader)) as backlog:
                async for record in backlog:
                    # Read from the beginning: times within a partition are the producers', in no order.
                    yield record if record.timestamp >= since_ms else None
        end = None if plan.duration_seconds is None else time.monotonic() + plan.duration_seconds
        while end is None or time.monotonic() < end:
            yield cast("_Timed | None", await reader.next_within(_POLL_SECONDS))


async def _in_order_of_time(reader: TopicReader) -> AsyncGenerator[_Timed]:
    """What stands on the topic now, merged by time, each partition in its order. Holds a record of each."""
    streams = [reader.up_to_now([TopicPartition(*place)]) for place in reader.partitions]
    heads: list[tuple[int, int, _Timed]] = []
    try:
        for number, stream in enumerate(streams):
            await _push_next(heads, number, stream)
        while heads:
            _, number, record = heapq.heappop(heads)
            yield record
            await _push_next(heads, number, streams[number])
    finally:
        for stream in streams:
            await stream.aclose()


async def _push_next(
    heads: list[tuple[int, int, _Timed]], number: int, stream: AsyncGenerator[Record]
) -> None:
    record = await anext(stream, None)
    if record is not None:
        timed = cast("_Timed", record)
        heapq.heappush(heads, (timed.timestamp, number, timed))


def _recorded(record: _Timed) -> RecordedRecord:
    return RecordedRecord(
        partition=record.partition,
        timestamp_ms=max(0, record.timestamp),  # a producer may have left it open
        key=record.key,
        value=record.value,
        headers=tuple((name, value or b"") for name, value in record.headers),
    )


def _captured(writer: RecordingWriter, began: float) -> Captured:
    return Captured(records=writer.records, size_bytes=writer.size_bytes, seconds=time.monotonic() - began)
