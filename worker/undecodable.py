"""Reading the one kind of batch that aiokafka cannot decode.

A header key that is no UTF-8 is against the protocol, but brokers store it, and aiokafka then fails on
every read that meets its batch, also one from a later offset in it. So the batch is fetched once more and
taken apart here, after the record batch format of Kafka's protocol documentation (magic 2). Rare, so
clarity beats speed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode
from aiokafka.errors import CorruptRecordException, KafkaError
from aiokafka.record.util import decode_varint

from worker.kafka_fetch import fetch

_FIRST_BYTES: Final = 65_536
_MAX_BYTES: Final = 52_428_800

# Base offset, length, leader epoch, magic, checksum, attributes, last offset delta, first and last
# timestamp, producer id, producer epoch, base sequence, number of records.
_BATCH: Final = struct.Struct(">qiibIhiqqqhii")
_LENGTH_STARTS_AT: Final = 12
_CODEC: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_CONTROL: Final = 0x20
_DECODERS: Final[dict[int, Callable[[bytes], bytes | bytearray]]] = {
    0: bytes,
    1: gzip_decode,
    2: snappy_decode,
    3: lz4_decode,
    4: zstd_decode,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UndecodableRecord:
    """A record whose header keys are shown with backslash escapes where they are no UTF-8."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UndecodableBatch:
    """The records of one batch from a wanted offset on, and where the next batch may start."""

    records: tuple[UndecodableRecord, ...]
    next_offset: int


async def fetch_undecodable(
    options: Mapping[str, Any], positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, UndecodableBatch]:
    """The batches with the next records from these offsets on, of the partitions where aiokafka cannot.

    Little is fetched of each partition at first, all at once; each is asked alone for more where that brings
    no such batch to light. `options` are keyword arguments of aiokafka's clients. Raises KafkaError where no
    such batch was found and not all partitions could be asked.
    """
    failed: KafkaError | None = None
    try:
        found = await _undecodable(options, positions, max_bytes=_FIRST_BYTES)
    except KafkaError:
        found = {}  # one of them is in trouble, and will say so when it is asked alone
    for partition, offset in () if found else positions.items():
        try:
            found |= await _undecodable(options, {partition: offset}, max_bytes=_MAX_BYTES)
        except KafkaError as error:
            failed = error
    if failed is not None and not found:
        raise failed
    return found


async def _undecodable(
    options: Mapping[str, Any], positions: Mapping[TopicPartition, int], *, max_bytes: int
) -> dict[TopicPartition, UndecodableBatch]:
    fetched = await fetch(options, positions, max_wait_ms=1, max_bytes=max_bytes)
    batches = {
        partition: first_undecodable(partition, fetched[partition].batches, from_offset=offset)
        for partition, offset in positions.items()
    }
    return {partition: batch for partition, batch in batches.items() if batch is not None}


def first_undecodable(
    topic_partition: TopicPartition, batches: bytes, *, from_offset: int
) -> UndecodableBatch | None:
    """The first batch with a record from that offset on, if a header key in it is no UTF-8; else None.

    `batches` may end in the middle of one. Raises CorruptRecordException.
    """
    try:
        for next_offset, records in _batches(batches):
            wanted = [record for record in records if record[0] >= from_offset]
            if wanted and all(_is_utf8(name) for *_, headers in records for name, _ in headers):
                return None
            if wanted:
                shown = tuple(_shown(topic_partition, record) for record in wanted)
                return UndecodableBatch(records=shown, next_offset=next_offset)
    except (IndexError, struct.error) as error:
        raise CorruptRecordException(f"a batch of {topic_partition} ends early") from error
    return None


_RawRecord = tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]
"""Offset, timestamp, key, value, headers."""


def _batches(batches: bytes) -> Iterator[tuple[int, list[_RawRecord]]]:
    """Each whole batch that carries records: the offset behind it, and the records."""
    at = 0
    while at + _BATCH.size <= len(batches):
        base, length, _, _, _, attributes, last_delta, first_ms, last_ms, *_, count = _BATCH.unpack_from(
            batches, at
        )
        end = at + _LENGTH_STARTS_AT + length
        if end > len(batches):
            return
        if not attributes & _CONTROL:
            body = _DECODERS[attributes & _CODEC](batches[at + _BATCH.size : end])
            # Where the broker stamps the records, all of a batch bear its last timestamp.
            stamp = last_ms if attributes & _LOG_APPEND_TIME else None
            reader = _Reader(bytearray(body), base_offset=base, base_ms=first_ms, stamp_ms=stamp)
            yield base + last_delta + 1, [reader.record() for _ in range(count)]
        at = end


def _shown(topic_partition: TopicPartition, record: _RawRecord) -> UndecodableRecord:
    offset, timestamp, key, value, headers = record
    return UndecodableRecord(
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        offset=offset,
        timestamp=timestamp,
        key=key,
        value=value,
        headers=tuple((name.decode(errors="backslashreplace"), found) for name, found in headers),
    )


class _Reader:
    """Takes the records of one decompressed batch apart, front to back."""

    def __init__(self, body: bytearray, *, base_offset: int, base_ms: int, stamp_ms: int | None) -> None:
        self._body = body
        self._stamp_ms = stamp_ms
        self._base_offset = base_offset
        self._base_ms = base_ms
        self._at = 0

    def record(self) -> _RawRecord:
        """The next one. Raises IndexError where the body ends before it."""
        self._number()  # its length
        self._number()  # attributes, unused
        timestamp = self._base_ms + self._number()
        offset = self._base_offset + self._number()
        key, value = self._bytes(), self._bytes()
        headers = [(self._bytes() or b"", self._bytes()) for _ in range(self._number())]
        return offset, timestamp if self._stamp_ms is None else self._stamp_ms, key, value, headers

    def _number(self) -> int:
        value, self._at = decode_varint(self._body, self._at)
        return value

    def _bytes(self) -> bytes | None:
        size = self._number()
        if size < 0:
            return None
        start, self._at = self._at, self._at + size
        if self._at > len(self._body):
            raise IndexError("the record ends early")
        return bytes(self._body[start : self._at])


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
