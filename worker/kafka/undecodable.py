"""Reading the one kind of record that aiokafka cannot decode.

A header key that is no UTF-8 is against the protocol, but brokers store it, and aiokafka then fails on
every read of the partition. So the batch is fetched once more and that record is taken apart here, after
the record batch format of Kafka's protocol documentation (magic 2). Rare, so clarity beats speed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode
from aiokafka.errors import CorruptRecordException, LeaderNotAvailableError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.util import decode_varint

from worker.kafka.connection import KafkaConnection

_READ_COMMITTED: Final = 1
_MAX_WAIT_MS: Final = 500
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


async def fetch_undecodable(
    connection: KafkaConnection, topic_partition: TopicPartition, offset: int
) -> UndecodableRecord | None:
    """The first record at or behind `offset`, if aiokafka cannot decode it; else None.

    Opens a connection of its own for it. Raises KafkaError.
    """
    client: Any = AIOKafkaClient(**connection.client_options())
    try:
        await client.bootstrap()
        await client.set_topics([topic_partition.topic])
        leader = client.cluster.leader_for_partition(topic_partition)
        if leader is None or leader < 0:
            raise LeaderNotAvailableError(topic_partition)
        topic, partition = topic_partition
        wanted = [(topic, [(partition, offset, _MAX_BYTES)])]
        response = await client.send(
            leader, FetchRequest(_MAX_WAIT_MS, 1, _MAX_BYTES, _READ_COMMITTED, wanted, rack_id="")
        )
    finally:
        await client.close()
    ((_, ((_, error_code, *_, batches),)),) = response.topics
    if error_code:
        raise for_code(error_code)(topic_partition)
    return first_undecodable(topic_partition, bytes(batches or b""), from_offset=offset)


def first_undecodable(
    topic_partition: TopicPartition, batches: bytes, *, from_offset: int
) -> UndecodableRecord | None:
    """The first record from that offset on, if one of its header keys is no UTF-8; else None.

    `batches` may end in the middle of one. Raises CorruptRecordException.
    """
    try:
        for offset, timestamp, key, value, raw_headers in _records(batches):
            if offset < from_offset:
                continue
            if all(_is_utf8(name) for name, _ in raw_headers):
                return None
            return UndecodableRecord(
                topic=topic_partition.topic,
                partition=topic_partition.partition,
                offset=offset,
                timestamp=timestamp,
                key=key,
                value=value,
                headers=tuple((name.decode(errors="backslashreplace"), found) for name, found in raw_headers),
            )
    except (IndexError, struct.error) as error:
        raise CorruptRecordException(f"a batch of {topic_partition} ends early") from error
    return None


_RawRecord = tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]


def _records(batches: bytes) -> Iterator[_RawRecord]:
    at = 0
    while at + _BATCH.size <= len(batches):
        base_offset, length, _, _, _, attributes, _, first_ms, last_ms, *_, count = _BATCH.unpack_from(
            batches, at
        )
        end = at + _LENGTH_STARTS_AT + length
        if end > len(batches):
            return
        if not attributes & _CONTROL:
            body = bytearray(_DECODERS[attributes & _CODEC](batches[at + _BATCH.size : end]))
            reader = _Reader(body)
            for _ in range(count):
                offset_delta, time_delta, key, value, headers = reader.record()
                timestamp = last_ms if attributes & _LOG_APPEND_TIME else first_ms + time_delta
                yield base_offset + offset_delta, timestamp, key, value, headers
        at = end


class _Reader:
    """Takes the records of one decompressed batch apart, front to back."""

    def __init__(self, body: bytearray) -> None:
        self._body = body
        self._at = 0

    def record(self) -> _RawRecord:
        """Offset delta, timestamp delta, key, value, headers."""
        self._number()  # its length
        self._number()  # attributes, unused
        time_delta = self._number()
        offset_delta = self._number()
        key, value = self._bytes(), self._bytes()
        headers = [(self._bytes() or b"", self._bytes()) for _ in range(self._number())]
        return offset_delta, time_delta, key, value, headers

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
