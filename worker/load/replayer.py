"""Publishing recorded traffic in open loop, and following everything that comes back.

Open loop: each record has an instant at which it is due, and is sent then, whether or not those before it
were answered; its latency runs from that instant. A worker that stalls for a second so costs every request
that was due in this second, as its callers would feel it, and not only the one that it stalled on.

Order at the end: wait until all is answered and committed (or the time is up), read the committed offsets,
then read every topic up to where it stands now, then judge. So an answer that a commit promises was read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, Protocol, cast

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import RecordMetadata

from schemas.times import time_of_record
from worker.kafka_clients import Record, TopicMissing, TopicReader, started_producer, whole_topic
from worker.load.following import Due, Followed
from worker.load.headers import REPLY_TO, first_header
from worker.load.measures import Measures
from worker.load.observations import Progress
from worker.load.offsets import GroupOffsets
from worker.load.pacing import Pace, Schedule
from worker.load.recording import Recording
from worker.load.rewriting import Rewriter
from worker.load.spool import Spool, key_digest

_BATCH_RECORDS: Final = 64
_BATCH_BYTES: Final = 2_000_000
_PRODUCER_BATCH_BYTES: Final = 262_144
_YIELD_EVERY: Final = 8
_TICK_SECONDS: Final = 0.25
_LONG_WAIT_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which worker is under test: its topics and its group."""

    options: Mapping[str, Any]
    """How to reach the cluster, as keyword arguments of aiokafka's clients."""
    requests: str
    bundles: str
    usage: str
    dead_letters: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What is published, how fast, and how long its answers are waited for."""

    run: str
    pace: Pace
    keep_ids: bool = False
    max_records: int | None = None
    duration_seconds: float | None = None
    """Nothing that is due later is sent."""
    wait_seconds: float = 30.0
    """After the last record was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a recording holds, found in one reading before the replay."""

    records: int
    is_complete: bool
    reply_topics: frozenset[str]
    """What the records' headers name."""


def survey(recording: Recording) -> Survey:
    """Read a recording through. Raises RecordingError and OSError."""
    count = 0
    topics: set[str] = set()
    for record in recording:
        count += 1
        named = first_header(record.headers, REPLY_TO)
        if named is not None:
            topics.add(named.decode("utf-8", "replace"))
    return Survey(records=count, is_complete=recording.is_complete, reply_topics=frozenset(topics))


class _Producer(Protocol):
    """What `started_producer` gives can do more than it says."""

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        partition: int | None,
        headers: list[tuple[str, bytes]],
    ) -> asyncio.Future[RecordMetadata]: ...
    async def partitions_for(self, topic: str) -> set[int]: ...


@dataclass(slots=True, kw_only=True)
class _Streams:
    """The topics that are followed."""

    replies: list[TopicReader] = field(default_factory=list[TopicReader])
    usage: TopicReader
    letters: TopicReader


class Replayer:
    """One replay. Use `run` once; `measures` may be read at any time."""

    def __init__(self, target: Target, plan: ReplayPlan, spool: Spool) -> None:
        """What is seen goes to `spool`."""
        self._target = target
        self._plan = plan
        self._spool = spool
        self._rewriter = Rewriter(run=plan.run, keep_ids=plan.keep_ids)
        self._began_at = datetime.now(UTC)
        self._stopping = asyncio.Event()
        self._following: Sequence[asyncio.Task[None]] = ()
        self.measures = Measures()
        self._followed = Followed(
            requests_topic=target.requests,
            id_prefix=self._rewriter.id_prefix,
            measures=self.measures,
            spool=spool,
        )

    def stop(self) -> None:
        """Send nothing more, and go on with what was sent."""
        self._stopping.set()

    async def run(
        self, recording: Recording, *, reply_topics: frozenset[str], on_tick: Callable[[], None]
    ) -> tuple[Progress, ...]:
        """Publish it all and follow the answers; how far the group came on each partition that was used.

        `reply_topics` are followed beside the bundles topic where ids, and with them headers, are kept.
        `on_tick` is called some four times a second. Raises TopicMissing, aiokafka's errors and
        RecordingError.
        """
        async with AsyncExitStack() as stack:
            # A request fills the default batch, and then each waits for the one before it.
            options = {**self._target.options, "max_batch_size": _PRODUCER_BATCH_BYTES}
            producer = await stack.enter_async_context(started_producer(options))
            streams = await self._open(stack, reply_topics)
            offsets = GroupOffsets(self._target.options, self._target.group)
            stack.push_async_callback(offsets.close)
            if self._plan.keep_ids:
                await self._read_history(streams.replies)
            followers = [
                *(self._follow(reader, self._followed.take_reply) for reader in streams.replies),
                self._follow(streams.usage, self._followed.take_usage),
                self._follow(streams.letters, self._followed.take_letter),
                self._tick(on_tick),
            ]
            return await self._beside(followers, self._whole(recording, producer, streams, offsets))

    async def _open(self, stack: AsyncExitStack, reply_topics: frozenset[str]) -> _Streams:
        options, target = self._target.options, self._target
        usage = await stack.enter_async_context(whole_topic(target.usage, options, from_end=True))
        letters = await stack.enter_async_context(whole_topic(target.dead_letters, options, from_end=True))
        streams = _Streams(usage=usage, letters=letters)
        for topic in sorted({target.bundles} | (reply_topics if self._plan.keep_ids else frozenset())):
            try:
                reader = whole_topic(topic, options, from_end=not self._plan.keep_ids)
                streams.replies.append(await stack.enter_async_context(reader))
            except TopicMissing:
                if topic == target.bundles:
                    raise  # any other that is missing is answered on the bundles topic
        return streams

    async def _read_history(self, replies: Sequence[TopicReader]) -> None:
        """The outcomes that requests with these ids have already."""
        for reader in replies:
            count = 0
            async for record in reader.up_to_now():
                self._followed.take_reply(record, is_earlier=True)
                count += 1
                if count % _BATCH_RECORDS == 0:
                    await self._spool.flush()

    async def _beside(
        self,
        followers: Sequence[Coroutine[Any, Any, None]],
        main: Coroutine[Any, Any, tuple[Progress, ...]],
    ) -> tuple[Progress, ...]:
        """Run `main` while the followers run, which are stopped by it; an error of any ends all."""
        self._following = [asyncio.create_task(follower) for follower in followers]
        whole = asyncio.create_task(main)
        try:
            await asyncio.wait({whole, *self._following}, return_when=asyncio.FIRST_EXCEPTION)
            for follower in self._following:
                if follower.done() and not follower.cancelled():
                    follower.result()
            return await whole
        finally:
            for task in (whole, *self._following):
                task.cancel()
            await asyncio.gather(whole, *self._following, return_exceptions=True)

    async def _whole(
        self, recording: Recording, producer: Any, streams: _Streams, offsets: GroupOffsets
    ) -> tuple[Progress, ...]:
        await self._publish(recording, cast("_Producer", producer))
        progress = await self._settle(offsets)
        for follower in self._following:
            follower.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        for reader, take in (
            *((reader, self._followed.take_reply) for reader in streams.replies),
            (streams.usage, self._followed.take_usage),
            (streams.letters, self._followed.take_letter),
        ):
            async for record in reader.up_to_now():
                take(record)
        self._followed.give_up()
        await self._spool.flush()
        return progress

    # --- Publishing ------------------------------------------------------------------------------

    async def _publish(self, recording: Recording, producer: _Producer) -> None:
        partitions = await producer.partitions_for(self._target.requests)
        measures = self.measures
        self._followed.began, self._began_at = time.monotonic(), datetime.now(UTC)
        async with aclosing(self._prepared(recording)) as prepared:
            async for item in prepared:
                await self._wait_for(item.seconds)
                if self._stopping.is_set():
                    break
                now = time.monotonic()
                due = now if item.seconds is None else self._followed.began + item.seconds
                measures.lateness.add(now - due)
                await self._send(producer, item, due=due, partitions=partitions)
                measures.sent += 1
                measures.sending_seconds = time.monotonic() - self._followed.began
                if measures.sent % _YIELD_EVERY == 0:
                    # A send does not wait while the buffer has room, and answers must be read meanwhile.
                    await asyncio.sleep(0)

    async def _wait_for(self, seconds: float | None) -> None:
        """Until that many seconds after the start, or until the replay is stopped."""
        wait = 0.0 if seconds is None else self._followed.began + seconds - time.monotonic()
        if wait > _LONG_WAIT_SECONDS:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait)
        elif wait > 0:
            await asyncio.sleep(wait)

    async def _send(self, producer: _Producer, item: Due, *, due: float, partitions: set[int]) -> None:
        outgoing = item.outgoing
        self._followed.sending(item, due=due)
        try:
            future = await producer.send(
                self._target.requests,
                outgoing.value,
                outgoing.key,
                # Of a topic that is cut otherwise, the key decides.
                partition=outgoing.partition if outgoing.partition in partitions else None,
                headers=list(outgoing.headers),
            )
        except KafkaError as error:
            self._followed.failed(item, error)
        else:
            future.add_done_callback(lambda done: self._followed.acknowledged(done, item, due=due))

    async def _prepared(self, recording: Recording) -> AsyncGenerator[Due]:
        """The records of the plan, made ready on a thread, one batch ahead of what is sent."""
        source = self._prepare(recording)
        ahead = asyncio.create_task(asyncio.to_thread(_batch, source))
        try:
            while batch := await ahead:
                ahead = asyncio.create_task(asyncio.to_thread(_batch, source))
                for item in batch:
                    yield item
        finally:
            await asyncio.gather(ahead, return_exceptions=True)

    def _prepare(self, recording: Recording) -> Iterator[Due]:
        schedule = Schedule(self._plan.pace)
        last = self._plan.duration_seconds
        for number, record in enumerate(islice(recording, self._plan.max_records)):
            seconds = schedule.due(record.timestamp_ms)
            elapsed = time.monotonic() - self._followed.began if seconds is None else seconds
            if last is not None and elapsed > last:
                return
            publish_at = time_of_record(int((self._began_at.timestamp() + elapsed) * 1_000))
            outgoing = self._rewriter.rewrite(record, number=number, publish_at=publish_at)
            correlation = (outgoing.correlation_id or b"").decode("latin-1")
            digest = key_digest(outgoing.identity, otherwise=correlation)
            yield Due(outgoing=outgoing, digest=digest, seconds=seconds)

    # --- Following -------------------------------------------------------------------------------

    async def _follow(self, reader: TopicReader, take: Callable[[Record], None]) -> None:
        while True:
            take(await reader.next())

    async def _tick(self, on_tick: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            await self._spool.flush()
            self._followed.count_waiting()
            on_tick()

    # --- The end ---------------------------------------------------------------------------------

    async def _settle(self, offsets: GroupOffsets) -> tuple[Progress, ...]:
        """How far the group is when all is answered and committed, or when the time is up."""
        deadline = time.monotonic() + self._plan.wait_seconds
        while time.monotonic() < deadline:
            if self._followed.is_answered:
                # A broker that is away may come back in time; where it does not, the last question says so.
                with suppress(KafkaError):
                    progress = await self._progress(offsets)
                    if not any(item.lag for item in progress):
                        return progress
            await asyncio.sleep(_TICK_SECONDS)
        return await self._progress(offsets)

    async def _progress(self, offsets: GroupOffsets) -> tuple[Progress, ...]:
        places = [
            TopicPartition(self._target.requests, partition) for partition in sorted(self._followed.sent_ends)
        ]
        committed = await offsets.committed(places)
        return tuple(
            Progress(
                partition=place.partition,
                committed=committed[place],
                sent_end=self._followed.sent_ends[place.partition],
            )
            for place in places
        )


def _batch(source: Iterator[Due]) -> list[Due]:
    """The next records, at most 64 and about two megabytes; none at the end."""
    batch: list[Due] = []
    size_bytes = 0
    for item in source:
        batch.append(item)
        size_bytes += len(item.outgoing.value or b"")
        if len(batch) >= _BATCH_RECORDS or size_bytes >= _BATCH_BYTES:
            break
    return batch
