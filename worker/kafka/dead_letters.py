"""Dead letters: records that cannot succeed as they are, kept whole, with why, for whoever mends them.

A dead letter carries the original key, body and headers byte for byte. In front of the original headers
stands one block of its own, `context-dead-*`; readers take the first of each name, so nothing that a producer
wrote can pose as one. A body or header without a value (null) is kept as an empty one. Of a record that the
dead-letter topic will not take whole the body is left out, which `context-dead-cut` says with its size, and
so are a traceback, a long key, and the original headers from the first one that would make them too many;
the other headers name the record that still holds it all.

Reading goes from the first record of the topic to the last one that was there at the start, by a consumer
without a group: looking changes nothing, and memory holds a batch at a time. A crash may leave one record
twice in the topic, byte for byte; `redrive` publishes it once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from typing import Final

from aiokafka import TopicPartition

from schemas.times import time_of_record
from schemas.topics import TopicRole
from schemas.wire import sha256_hex
from worker.decoding import read_ids
from worker.kafka.answer_received import ReceivedAnswer
from worker.kafka.connection import KafkaConnection
from worker.kafka.headers import GENERATION, MAX_ECHOED_BYTES, Headers, read_headers
from worker.kafka.received import Received
from worker.kafka.records import InboundRecord, OutboundRecord
from worker.kafka.state_received import ReceivedEvent
from worker.kafka.sync_received import ReceivedSync
from worker.kafka.tool_received import ReceivedCall
from worker.kafka_clients import Producer, Record, started_producer, whole_topic
from worker.outcomes import Refusal

PREFIX: Final = "context-dead-"
FIELDS: Final = (
    "code",
    "message",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "attempts",
    "traceback",
    "cut",
)
_NAMES: Final = frozenset(PREFIX + name for name in FIELDS)
_CUT_MESSAGE_CHARS: Final = 500
_CUT_HEADERS_BYTES: Final = 4_096
_LONGEST_NUMBER: Final = len(str(2**63))
_KINDS: Final[Mapping[TopicRole, type[Received]]] = {
    "requests": Received,
    "responses": ReceivedAnswer,
    "state": ReceivedEvent,
    "sync": ReceivedSync,
    "tools": ReceivedCall,
}
"""What the topics carry that records are buried from, whatever the prefix of their names."""


# --- Writing -----------------------------------------------------------------------------------------


def dead_letter(
    record: InboundRecord, refusal: Refusal, *, topic: str, is_cut: bool = False
) -> OutboundRecord:
    """The dead letter of one record; equal arguments give equal bytes.

    Where `is_cut`, what is left of it has less than 16 KB, whatever the record holds.
    """
    body = record.value or b""
    message, key, headers = refusal.message, record.key, record.headers
    if is_cut:
        message = message[:_CUT_MESSAGE_CHARS]
        key = key if key is None or len(key) <= MAX_ECHOED_BYTES else None
        headers = _first_of(headers, size_bytes=_CUT_HEADERS_BYTES)
    says: dict[str, str | None] = {
        "code": refusal.code,
        "message": message,
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp": str(record.timestamp_ms),
        "attempts": str(refusal.attempts),
        "traceback": None if is_cut else refusal.traceback,
        "cut": str(len(body)) if is_cut else None,
    }
    block = tuple((PREFIX + name, text.encode()) for name in FIELDS if (text := says[name]) is not None)
    return OutboundRecord(topic=topic, key=key, value=b"" if is_cut else body, headers=(*block, *headers))


def _first_of(headers: Headers, *, size_bytes: int) -> Headers:
    """The first headers that together have no more than that size."""
    sizes = accumulate(len(name.encode()) + len(value) for name, value in headers)
    return headers[: sum(size <= size_bytes for size in sizes)]


# --- Reading -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One record of the dead-letter topic, taken apart again."""

    id: str
    """`partition:offset` in the dead-letter topic."""
    code: str
    message: str
    topic: str
    """Where the record came from; with `partition` and `offset`, which one it was."""
    partition: int
    offset: int
    timestamp: datetime
    """The original record's."""
    attempts: int
    traceback: str | None
    is_cut: bool
    """Whether the body had to be left out."""
    key: bytes | None
    value: bytes
    headers: Headers
    """The original ones."""
    project_id: str | None
    """Read from the body where it still shows it, else from the key."""
    request_id: str | None
    """The record's own id, which its rejection bears under this name: of an answer the `answer_id`, of a call
    the `call_id`, of an event the `event_id`, of a sync the `sync_id`."""
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which dead letters; what is absent selects all. Everything given must hold."""

    code: str | None = None
    project_id: str | None = None
    topic: str | None = None
    """The topic that the record came from."""
    since: datetime | None = None
    """The original record is not older."""
    ids: frozenset[str] = field(default_factory=frozenset[str])

    def holds(self, letter: DeadLetter) -> bool:
        """Whether the letter is meant."""
        return (
            self.code in {None, letter.code}
            and self.project_id in {None, letter.project_id}
            and self.topic in {None, letter.topic}
            and (self.since is None or letter.timestamp >= self.since)
            and (not self.ids or letter.id in self.ids)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterTopic:
    """Where the dead letters lie, and how to get there."""

    topic: str
    connection: KafkaConnection


async def read_dead_letters(
    source: DeadLetterTopic,
    selection: Selection = Selection(),  # noqa: B008 - a frozen value
) -> AsyncGenerator[DeadLetter]:
    """The selected dead letters that are there now; partitions interleave, each in its own order.

    Cost: one pass over the topic, whatever is selected. Raises TopicMissing or aiokafka's errors.
    """
    async with whole_topic(source.topic, source.connection.client_options()) as letters:
        async for record in letters.up_to_now():
            letter = parse_dead_letter(record)
            if selection.holds(letter):
                yield letter


async def list_dead_letters(
    source: DeadLetterTopic,
    selection: Selection = Selection(),  # noqa: B008 - a frozen value
) -> tuple[DeadLetter, ...]:
    """The selected dead letters, the oldest original record first; ties by place in the topic."""
    letters = [letter async for letter in read_dead_letters(source, selection)]
    return tuple(sorted(letters, key=lambda letter: (letter.timestamp, _place(letter.id))))


async def show_dead_letter(source: DeadLetterTopic, letter_id: str) -> DeadLetter | None:
    """The dead letter with that id, read without a pass over the topic; None where there is none.

    Raises ValueError where the id is not `partition:offset`.
    """
    partition, offset = _place(letter_id)
    async with whole_topic(source.topic, source.connection.client_options()) as letters:
        place = TopicPartition(source.topic, partition)
        if place not in letters.partitions:
            return None
        await letters.seek(place, offset)
        async with aclosing(letters.up_to_now([place])) as records:
            async for record in records:
                return parse_dead_letter(record) if record.offset == offset else None
    return None


def parse_dead_letter(record: Record) -> DeadLetter:
    """Take a record apart. One that no worker wrote keeps its bytes and has the code `unreadable`."""
    headers = [(name, value or b"") for name, value in record.headers]
    says: dict[str, str] = {}
    split = 0
    for name, value in headers:
        if name not in _NAMES or name in says:
            break
        says[name] = value.decode("utf-8", "replace")
        split += 1
    original = tuple(headers[split:])
    topic = says.get(PREFIX + "topic", "")
    request_id, project_id = read_ids(record.value, id_field=_kind_on(topic).ID_FIELD)
    return DeadLetter(
        id=f"{record.partition}:{record.offset}",
        code=says.get(PREFIX + "code", "unreadable"),
        message=says.get(PREFIX + "message", ""),
        topic=topic,
        partition=_number(says.get(PREFIX + "partition")),
        offset=_number(says.get(PREFIX + "offset")),
        timestamp=time_of_record(_number(says.get(PREFIX + "timestamp"))),
        attempts=_number(says.get(PREFIX + "attempts")),
        traceback=says.get(PREFIX + "traceback"),
        is_cut=PREFIX + "cut" in says,
        key=record.key,
        value=record.value or b"",
        headers=original,
        project_id=project_id or _project_of_key(record.key),
        request_id=request_id,
        generation=read_headers(original, allowed_reply_topics=frozenset()).generation,
    )


def _kind_on(topic: str) -> type[Received]:
    return next((kind for role, kind in _KINDS.items() if topic.endswith(role)), Received)


def _project_of_key(key: bytes | None) -> str | None:
    return key.split(b"#", 1)[0].decode("utf-8", "replace") if key else None


def _place(letter_id: str) -> tuple[int, int]:
    partition, _, offset = letter_id.partition(":")
    if not (partition.isdecimal() and offset.isdecimal()):
        msg = f"{letter_id!r} is not `partition:offset`"
        raise ValueError(msg)
    return int(partition), int(offset)


def _number(text: str | None) -> int:
    # A longer one is no worker's, and Python refuses to read one of thousands of digits.
    if text is None or not text.isdecimal() or len(text) > _LONGEST_NUMBER:
        return -1
    return int(text)


# --- Redriving ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """What became of one selected dead letter."""

    id: str
    topic: str
    generation: int
    """The one that it was, or would be, published with."""
    is_published: bool
    skipped: str | None = None
    """Why it must not be published, where that is so."""


async def redrive(
    source: DeadLetterTopic, selection: Selection, *, allowed_topics: frozenset[str], dry_run: bool
) -> tuple[Redriven, ...]:
    """Publish the original records again, each under a generation that has no outcome yet.

    Letters are of the same record where topic, project and the record's own id are equal; where no id can be
    read, where topic and body are. The generation is one above the highest among the letters of the same
    record, selected or not; of several that are selected the last is published. `allowed_topics` are the
    topics that a record may go back to. In order of the ids; a dry run says the same and publishes nothing.
    Every publication was acknowledged by all in-sync replicas when this returns.
    """
    generations: dict[tuple[str, ...], int] = {}
    last: dict[tuple[str, ...], tuple[int, int]] = {}
    async for letter in read_dead_letters(source):
        identity = _identity(letter)
        generations[identity] = max(generations.get(identity, 0), letter.generation)
        if selection.holds(letter) and _obstacle(letter, allowed_topics) is None:
            last[identity] = max(last.get(identity, (0, 0)), _place(letter.id))
    done: list[Redriven] = []
    async with started_producer(source.connection.client_options()) as producer:
        async for letter in read_dead_letters(source, selection):
            identity = _identity(letter)
            generation = generations.get(identity, letter.generation) + 1
            skipped = _obstacle(letter, allowed_topics)
            if skipped is None and last.get(identity) != _place(letter.id):
                skipped = "another dead letter of the same record is newer"
            is_published = skipped is None and not dry_run
            if is_published:
                await _publish(producer, letter, generation)
            done.append(
                Redriven(
                    id=letter.id,
                    topic=letter.topic,
                    generation=generation,
                    is_published=is_published,
                    skipped=skipped,
                )
            )
    return tuple(sorted(done, key=lambda item: _place(item.id)))


def _obstacle(letter: DeadLetter, allowed_topics: frozenset[str]) -> str | None:
    """Why a letter cannot be published, whatever else is selected."""
    if letter.topic not in allowed_topics:
        return f"records do not go back to {letter.topic!r}"
    return "the dead letter does not hold the body" if letter.is_cut else None


def _identity(letter: DeadLetter) -> tuple[str, ...]:
    if letter.request_id is not None and letter.project_id is not None:
        return letter.topic, letter.project_id, letter.request_id
    return letter.topic, sha256_hex(letter.value)


async def _publish(producer: Producer, letter: DeadLetter, generation: int) -> None:
    kept = [(name, value) for name, value in letter.headers if name != GENERATION]
    await producer.send_and_wait(
        letter.topic,
        key=letter.key,
        value=letter.value,
        headers=[(GENERATION, str(generation).encode()), *kept],
    )
