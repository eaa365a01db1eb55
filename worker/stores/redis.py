"""Outcomes and crash bookkeeping in Redis: the stores that workers on several hosts share.

One Redis (or one primary): a put is one script, so it is atomic, and the first writer wins. The records
live here alone, so the server should run with an append-only file and `maxmemory-policy noeviction`; a
server that forgets lets a redelivery be assembled again. Expiry is the server's own, by its own clock.

Every key holds the project in braces, so one project's keys share a cluster slot and one pattern finds them:

    <prefix>:{<project>}:outcome:<request>:<generation>     the record, for keep_seconds
    <prefix>:{<project>}:tombstone:<request>:<generation>   what is left of it, for forget_seconds
    <prefix>:{<project>}:bundle:<sha256>                    the key of an outcome that holds the bundle
    <prefix>:crash:...                                      starts and attempts, for 48 h

Ids are percent-encoded in keys: one id, one spelling, and none holds `:`, `{`, `}` or `*`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final, cast
from urllib.parse import quote

from schemas.wire import sha256_hex
from worker.ports import OutcomeKey, OutcomeRecord, RecordRef, Tombstone
from worker.stores.records import decode, encode_record, encode_tombstone, tombstone_of
from worker.stores.redis_link import STORE, RedisLink, Script

_CRASH_KEEP_SECONDS: Final = 48 * 3600
_PROBE_SECONDS: Final = 60
_SCAN_KEYS: Final = 500
_GLOB: Final = str.maketrans({character: f"\\{character}" for character in "*?[]\\^"})
_LOOP_BYTES: Final = 256 * 1024
"""Larger records are compressed on a thread: at 200 MB/s this one takes the loop a millisecond."""

# Gives back what was there, or nothing after it stored: record, tombstone, then the way to the bundle.
_PUT: Final = Script(
    """
    local held = redis.call('GET', KEYS[1]) or redis.call('GET', KEYS[2])
    if held then return held end
    redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[3])
    redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[4])
    if KEYS[3] then redis.call('SET', KEYS[3], KEYS[1], 'EX', ARGV[3]) end
    return false
    """
)
_COUNT: Final = Script(
    """
    local count = redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
    redis.call('EXPIRE', KEYS[1], ARGV[2])
    return count
    """
)

_WITHDRAW: Final = Script(
    """
    if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) <= 0 then
        redis.call('HDEL', KEYS[1], ARGV[1])
    end
    return 0
    """
)


class RedisOutcomeStore:
    """`OutcomeStore` in Redis. First writer wins, across hosts.

    One connection; calls that wait together share a round trip. A call fails within twice
    `timeout_seconds` when the server is away, and the next one tries again. What cannot be read raises what
    `worker.stores.records.decode` does.
    """

    def __init__(
        self,
        url: str,
        *,
        keep_seconds: int,
        forget_seconds: int,
        password: str | None = None,
        key_prefix: str = "context",
        connect_timeout_seconds: float = 0.5,
        timeout_seconds: float = 0.9,
    ) -> None:
        """Touch nothing yet. Raises ValueError for a bad address, or unless 0 < keep <= forget."""
        if not 0 < keep_seconds <= forget_seconds:
            raise ValueError("keep_seconds must be positive and not above forget_seconds")
        # A put that is sent twice finds its own record the second time, so resending is harmless.
        self._link = RedisLink(
            url,
            password=password,
            connect_timeout_seconds=connect_timeout_seconds,
            timeout_seconds=timeout_seconds,
            is_resending=True,
        )
        self._keep_seconds = keep_seconds
        self._forget_seconds = forget_seconds
        self._prefix = key_prefix

    async def get(self, key: OutcomeKey) -> OutcomeRecord | Tombstone | None:
        """What the store holds. Raises StoreUnavailable."""
        record, tombstone = await self._link.call("MGET", *self._outcome_keys(key))
        held = record or tombstone
        return None if held is None else await _decoded(held)

    async def put_if_absent(self, key: OutcomeKey, record: OutcomeRecord) -> OutcomeRecord | Tombstone:
        """Store unless something is there; return what the store holds then. Raises StoreUnavailable."""
        parts = (record.reply, record.bundle, record.receipt, record.capture)
        if sum([len(part or b"") for part in parts]) > _LOOP_BYTES:
            digest, *encoded = await asyncio.to_thread(_encoded, record)
        else:
            digest, *encoded = _encoded(record)
        keys = self._outcome_keys(key)
        if digest is not None:
            keys = (*keys, self._key(key.project_id, "bundle", digest))
        held = await self._link.run(_PUT, keys, *encoded, self._keep_seconds, self._forget_seconds)
        return record if held is None else await _decoded(held)

    async def get_bundle(self, *, project_id: str, digest: str) -> bytes | None:
        """The bundle with that SHA-256 that an outcome of this project refers to, while it is kept."""
        outcome_key = await self._link.call("GET", self._key(project_id, "bundle", digest))
        data = None if outcome_key is None else await self._link.call("GET", outcome_key)
        held = None if data is None else await _decoded(data)
        return held.bundle if isinstance(held, OutcomeRecord) else None

    async def purge(self, project_id: str, *, only: Callable[[OutcomeRecord], bool] | None = None) -> int:
        """Forget the project's outcomes, or those that `only` says yes to. Raises StoreUnavailable.

        O(keys of the server).
        """
        if only is not None:
            return await self._purge_only(project_id, only)
        forgotten = 0
        for kind in ("outcome", "bundle", "tombstone"):
            async for keys in self._scan(project_id, kind):
                removed = cast("int", await self._link.call("DEL", *keys))
                # Every outcome has a tombstone beside it, which outlives it.
                forgotten += removed if kind == "tombstone" else 0
        return forgotten

    async def _purge_only(self, project_id: str, only: Callable[[OutcomeRecord], bool]) -> int:
        forgotten = 0
        async for keys in self._scan(project_id, "outcome"):
            for key in keys:
                data = cast("bytes | None", await self._link.call("GET", key))
                held = None if data is None else await _decoded(data)
                if not isinstance(held, OutcomeRecord) or not only(held):
                    continue
                await self._forget(project_id, key.decode(), held)
                forgotten += 1
        return forgotten

    async def _forget(self, project_id: str, key: str, held: OutcomeRecord) -> None:
        same = key.removeprefix(self._key(project_id, "outcome"))
        doomed = [key, self._key(project_id, "tombstone") + same]
        if held.bundle is not None:
            way = self._key(project_id, "bundle", sha256_hex(held.bundle))
            # Another outcome may hold the same bundle.
            if await self._link.call("GET", way) == key.encode():
                doomed.append(way)
        await self._link.call("DEL", *doomed)

    async def _scan(self, project_id: str, kind: str) -> AsyncGenerator[list[bytes]]:
        """The keys of one kind, a batch at a time; what is there all the while comes at least once."""
        pattern = self._key(project_id, kind).translate(_GLOB) + "*"
        cursor = b"0"
        while True:
            cursor, keys = cast(
                "tuple[bytes, list[bytes]]",
                await self._link.call("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_KEYS),
            )
            if keys:
                yield keys
            if cursor == b"0":
                return

    async def check(self) -> None:
        """Return when a write was acknowledged. Raises StoreUnavailable, for a full server too."""
        await self._link.call("SET", f"{self._prefix}:probe", b"", "EX", _PROBE_SECONDS)

    async def close(self) -> None:
        """Finish what waits, then disconnect. Idempotent."""
        await self._link.close()

    def _outcome_keys(self, key: OutcomeKey) -> tuple[str, ...]:
        return tuple(
            self._key(key.project_id, kind, key.request_id, str(key.generation))
            for kind in ("outcome", "tombstone")
        )

    def _key(self, project_id: str, kind: str, *parts: str) -> str:
        return f"{self._prefix}:{{{_spelled(project_id)}}}:{kind}:{_joined(*parts)}"


class RedisCrashLedger:
    """`CrashLedger` in Redis.

    An increment is never sent twice by itself. A call that timed out may have been counted, so after a
    failure a count can be one too high; it is never too low.
    """

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        key_prefix: str = "context",
        connect_timeout_seconds: float = 0.5,
        timeout_seconds: float = 0.9,
    ) -> None:
        """Touch nothing yet. Raises ValueError for a bad address."""
        self._link = RedisLink(
            url,
            password=password,
            connect_timeout_seconds=connect_timeout_seconds,
            timeout_seconds=timeout_seconds,
            is_resending=False,
        )
        self._prefix = key_prefix

    async def raise_start(self, group: str, position: RecordRef) -> int:
        """Count one more start from this position, and return the count. Raises StoreUnavailable."""
        key = self._starts_key(
            group, scope=position.scope, topic=position.topic, partition=position.partition
        )
        return await self._link.run(_COUNT, [key], position.offset, _CRASH_KEEP_SECONDS)

    async def withdraw_start(self, group: str, position: RecordRef) -> None:
        """Count one start less from this position, none where none is counted. Raises StoreUnavailable."""
        key = self._starts_key(
            group, scope=position.scope, topic=position.topic, partition=position.partition
        )
        await self._link.run(_WITHDRAW, [key], position.offset)

    async def clear_starts(self, group: str, *, scope: str, topic: str, partition: int) -> None:
        """Forget the partition's starts, from whichever position. Raises StoreUnavailable."""
        await self._link.call("DEL", self._starts_key(group, scope=scope, topic=topic, partition=partition))

    async def begin_attempt(self, record: RecordRef) -> int:
        """Write down that the record is tried; return how often it was before. Raises StoreUnavailable."""
        counted = await self._link.run(_COUNT, [self._attempt_key(record)], "count", _CRASH_KEEP_SECONDS)
        return counted - 1

    async def withdraw_attempt(self, record: RecordRef) -> None:
        """Count one attempt less, none where none is counted. Raises StoreUnavailable."""
        await self._link.run(_WITHDRAW, [self._attempt_key(record)], "count")

    async def end_attempt(self, record: RecordRef) -> None:
        """Forget the record's attempts. Raises StoreUnavailable."""
        await self._link.call("DEL", self._attempt_key(record))

    async def close(self) -> None:
        """Finish what waits, then disconnect. Idempotent."""
        await self._link.close()

    def _starts_key(self, group: str, *, scope: str, topic: str, partition: int) -> str:
        return f"{self._prefix}:crash:starts:{_joined(group, scope, topic, str(partition))}"

    def _attempt_key(self, record: RecordRef) -> str:
        parts = (record.scope, record.topic, str(record.partition), str(record.offset))
        return f"{self._prefix}:crash:attempt:{_joined(*parts)}"


def _spelled(text: str) -> str:
    """Injective, for any string: a lone surrogate too, since the store is not the one to judge ids."""
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def _joined(*parts: str) -> str:
    return ":".join(_spelled(part) for part in parts)


def _encoded(record: OutcomeRecord) -> tuple[str | None, bytes, bytes]:
    digest = None if record.bundle is None else sha256_hex(record.bundle)
    return digest, encode_record(record), encode_tombstone(tombstone_of(record))


async def _decoded(data: bytes) -> OutcomeRecord | Tombstone:
    if len(data) > _LOOP_BYTES:
        return await asyncio.to_thread(decode, data, store=STORE)
    return decode(data, store=STORE)
