"""Fetching beside aiokafka's consumer, for what a consumer cannot be asked."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, LeaderNotAvailableError, RequestTimedOutError, for_code
from aiokafka.protocol.fetch import FetchRequest

_READ_COMMITTED: Final = 1
_MIN_BYTES: Final = 1
_MAX_BYTES: Final = 52_428_800
_TRIES: Final = 10
_PAUSE_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What a broker said of one partition."""

    end_offset: int
    """Behind the last record that a consumer of committed records is given."""
    batches: bytes
    """Whole record batches, and perhaps the beginning of one more."""


async def fetch(
    options: Mapping[str, Any], positions: Mapping[TopicPartition, int], *, max_wait_ms: int, max_bytes: int
) -> dict[TopicPartition, Fetched]:
    """What stands from these offsets on, at most about `max_bytes` of each partition; transactions hide.

    Opens a connection of its own for it, `options` being keyword arguments of aiokafka's clients. Waits for
    some `max_wait_ms`, at least 1, where nothing stands there. What passes, such as a partition whose leader
    moves, is tried again for a second. Raises KafkaError.
    """
    if not positions:
        return {}
    client: Any = AIOKafkaClient(**options)
    try:
        await client.bootstrap()
        await client.set_topics({partition.topic for partition in positions})
        for left in reversed(range(_TRIES)):
            try:
                return await _ask_leaders(client, positions, max_wait_ms, max_bytes)
            except KafkaError as error:
                if not (error.retriable and left):
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)
            await client.force_metadata_update()
        raise AssertionError("the last try returns or raises")
    finally:
        await client.close()


async def _ask_leaders(
    client: Any, positions: Mapping[TopicPartition, int], max_wait_ms: int, max_bytes: int
) -> dict[TopicPartition, Fetched]:
    by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
    for place, offset in positions.items():
        leader = client.cluster.leader_for_partition(place)
        if leader is None or leader < 0:
            raise LeaderNotAvailableError(place)
        by_leader[leader][place] = offset
    found: dict[TopicPartition, Fetched] = {}
    for leader, wanted in by_leader.items():
        found |= await _ask(partial(client.send, leader), wanted, max_wait_ms, max_bytes)
    return found


async def _ask(
    send: Callable[[FetchRequest], Awaitable[Any]],
    positions: Mapping[TopicPartition, int],
    max_wait_ms: int,
    max_bytes: int,
) -> dict[TopicPartition, Fetched]:
    topics: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for place, offset in positions.items():
        topics[place.topic].append((place.partition, offset, max_bytes))
    whole_bytes = min(max_bytes * len(positions), _MAX_BYTES)
    for _ in range(_TRIES):
        request = FetchRequest(
            max_wait_ms, _MIN_BYTES, whole_bytes, _READ_COMMITTED, list(topics.items()), rack_id=""
        )
        found = _read((await send(request)).topics)
        if found.keys() >= positions.keys():
            return found
        # The embedded broker leaves out what it did not get round to in the time.
        max_wait_ms *= 2
    raise RequestTimedOutError(f"a fetch of {sorted(positions)}")


def _read(topics: Any) -> dict[TopicPartition, Fetched]:
    found: dict[TopicPartition, Fetched] = {}
    for topic, partitions in topics:
        # The last stable offset stands third in every version that brokers of today speak.
        for partition, error_code, _, last_stable_offset, *_, batches in partitions:
            place = TopicPartition(topic, partition)
            if error_code:
                raise for_code(error_code)(place)
            found[place] = Fetched(end_offset=last_stable_offset, batches=bytes(batches or b""))
    return found


async def log_ends(
    options: Mapping[str, Any], listed: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Where the logs end, `listed` being what a consumer's `end_offsets` says.

    That is not enough: the embedded broker lists the offset behind the first record of the last batch, and
    whoever believes it leaves the others of that batch out. Costs one connection and one answer of each
    leader. Raises KafkaError.
    """
    found = await fetch(options, listed, max_wait_ms=1, max_bytes=1)
    # A log that is empty, or that another transaction holds back, may say less than was listed.
    return {place: max(end, found[place].end_offset) for place, end in listed.items()}
