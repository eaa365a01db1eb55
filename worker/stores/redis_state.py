"""State in Redis, in front of the store that is the truth: what one worker read the others need not fold.

    <prefix>:{<project>}:state:<thread>:<group>:<version>     what the place holds, for `keep_seconds`

Which version holds is always asked of the cold store, and what stands under a version never changes, so
nothing here can be stale: it can be there or not. A server that is away, full, loading, read-only, slow or
emptied costs a question to the cold store, and is then left alone for a moment. A value that is not exactly
what was written under its key is a miss.

Threads are percent-encoded in keys: one id, one spelling, and none holds `:`, `{`, `}` or `*`.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeVar, cast
from urllib.parse import quote

import cramjam
import structlog

from worker.errors import StoreUnavailable
from worker.state.records import StateRecord
from worker.state.store import Applied, Heads, Place, StateStore, StoredGroup
from worker.stores.redis_link import STORE, RedisLink

HotResult = Literal["hit", "miss", "damaged", "unavailable"]
HOT_RESULTS: Final[tuple[HotResult, ...]] = ("hit", "miss", "damaged", "unavailable")

MAX_VALUE_BYTES: Final = 2 * 1024 * 1024
"""Of a compressed value: a larger one would keep all others on the connection waiting."""

_LOOP_BYTES: Final = 256 * 1024
_PURGE_BATCH: Final = 500
_DIGEST_BYTES: Final = 16
_GLOB: Final = str.maketrans({character: f"\\{character}" for character in "*?[]\\^"})

Packed = TypeVar("Packed")

log = structlog.get_logger()


class HotStateStore:
    """`StateStore`: groups from Redis where they are there, all else from and to the cold store."""

    def __init__(
        self,
        cold: StateStore,
        url: str,
        *,
        keep_seconds: int,
        on_result: Callable[[HotResult, int], None],
        password: str | None = None,
        key_prefix: str = "context",
        connect_timeout_seconds: float = 0.1,
        timeout_seconds: float = 0.1,
        pause_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Touch nothing yet; `cold` is the store's own from now on, and closed with it.

        `on_result` is told how often Redis had what was asked for. After a failure it is not asked again for
        `pause_seconds`. Raises ValueError for a bad address.
        """
        self._cold = cold
        self._link = RedisLink(
            url,
            password=password,
            connect_timeout_seconds=connect_timeout_seconds,
            timeout_seconds=timeout_seconds,
            is_resending=True,
        )
        self._keep_seconds = keep_seconds
        self._on_result = on_result
        self._prefix = key_prefix
        self._pause_seconds = pause_seconds
        self._clock = clock
        self._paused_until = {"read": float("-inf"), "write": float("-inf")}

    async def apply(self, project_id: str, records: Sequence[StateRecord]) -> Applied:
        """See `StateStore`."""
        return await self._cold.apply(project_id, records)

    async def heads(
        self, project_id: str, thread_ids: Sequence[str], *, event_ids: Sequence[str] = ()
    ) -> Heads:
        """See `StateStore`. Always the cold store's."""
        return await self._cold.heads(project_id, thread_ids, event_ids=event_ids)

    async def groups(self, project_id: str, versions: Mapping[Place, int]) -> Mapping[Place, StoredGroup]:
        """See `StateStore`. One round trip to Redis, one more to each where something was missing there."""
        found = await self._read(project_id, versions)
        missing = {place: version for place, version in versions.items() if place not in found}
        if not missing:
            return found
        read = await self._cold.groups(project_id, missing)
        await self._write(project_id, read)
        return {**found, **read}

    async def content(self, project_id: str, sha256: str) -> str | None:
        """See `StateStore`."""
        return await self._cold.content(project_id, sha256)

    async def compact(self, project_id: str, *, before_us: int) -> int:
        """See `StateStore`."""
        return await self._cold.compact(project_id, before_us=before_us)

    async def projects(self) -> Sequence[str]:
        """See `StateStore`."""
        return await self._cold.projects()

    async def purge(self, project_id: str, *, thread_id: str | None = None) -> int:
        """See `StateStore`. Raises StoreUnavailable where Redis is away, after the cold store was purged.

        The cold store goes first, so that nobody reads there what was already forgotten here. O(keys of the
        server).
        """
        gone = await self._cold.purge(project_id, thread_id=thread_id)
        head = self._head(project_id) + ("" if thread_id is None else f"{_spelled(thread_id)}:")
        cursor = b"0"
        while True:
            cursor, keys = cast(
                "tuple[bytes, list[bytes]]",
                await self._link.call(
                    "SCAN", cursor, "MATCH", f"{head.translate(_GLOB)}*", "COUNT", _PURGE_BATCH
                ),
            )
            if keys:
                await self._link.call("DEL", *keys)
            if cursor == b"0":
                return gone

    async def check(self) -> None:
        """See `StateStore`: the cold store alone, since the other one may be away."""
        await self._cold.check()

    async def close(self) -> None:
        """See `StateStore`."""
        await self._link.close()
        await self._cold.close()

    async def _read(self, project_id: str, versions: Mapping[Place, int]) -> dict[Place, StoredGroup]:
        if not versions or not self._may("read"):
            return {}
        keys = {place: self._key(project_id, place, version) for place, version in versions.items()}
        try:
            values = cast("list[bytes | None]", await self._link.call("MGET", *keys.values()))
        except StoreUnavailable as error:
            self._pause("read", error)
            return {}
        found: dict[Place, StoredGroup] = {}
        counts: dict[HotResult, int] = dict.fromkeys(HOT_RESULTS, 0)
        for (place, key), value in zip(keys.items(), values, strict=True):
            data = None if value is None else await _in_thread_if_long(_unpacked, key, value)
            if data is not None:
                found[place] = StoredGroup(version=versions[place], data=data)
            counts["hit" if data is not None else "miss" if value is None else "damaged"] += 1
        self._tell(counts)
        return found

    async def _write(self, project_id: str, groups: Mapping[Place, StoredGroup]) -> None:
        if not groups or not self._may("write"):
            return
        values: dict[str, bytes] = {}
        for place, group in groups.items():
            key = self._key(project_id, place, group.version)
            value = await _in_thread_if_long(_packed, key, group.data)
            if len(value) <= MAX_VALUE_BYTES:
                values[key] = value
        results = await asyncio.gather(
            *(self._link.call("SET", key, value, "EX", self._keep_seconds) for key, value in values.items()),
            return_exceptions=True,
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        for failure in failures:
            if not isinstance(failure, StoreUnavailable):
                raise failure
        if failures:
            self._pause("write", failures[0])

    def _may(self, what: Literal["read", "write"]) -> bool:
        # A server that takes nothing in may still give out what it has, but not the other way round.
        until = self._paused_until["read"]
        if what == "write":
            until = max(until, self._paused_until["write"])
        if self._clock() >= until:
            return True
        self._on_result("unavailable", 1)
        return False

    def _pause(self, what: Literal["read", "write"], error: BaseException) -> None:
        self._paused_until[what] = self._clock() + self._pause_seconds
        self._on_result("unavailable", 1)
        log.warning("state_cache.unavailable", doing=what, store=STORE, cause=str(error))

    def _tell(self, counts: Mapping[HotResult, int]) -> None:
        for result, count in counts.items():
            if count:
                self._on_result(result, count)

    def _head(self, project_id: str) -> str:
        return f"{self._prefix}:{{{_spelled(project_id)}}}:state:"

    def _key(self, project_id: str, place: Place, version: int) -> str:
        return f"{self._head(project_id)}{_spelled(place.thread_id)}:{place.group}:{version}"


async def _in_thread_if_long(work: Callable[[str, bytes], Packed], key: str, value: bytes) -> Packed:
    return await asyncio.to_thread(work, key, value) if len(value) > _LOOP_BYTES else work(key, value)


def _spelled(text: str) -> str:
    """Injective, for any string."""
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def _packed(key: str, data: bytes) -> bytes:
    body = bytes(cramjam.zstd.compress(data))
    return _digest(key, body) + body


def _unpacked(key: str, value: bytes) -> bytes | None:
    """What was packed under this key; None for anything else, a part of it or another key's value."""
    digest, body = value[:_DIGEST_BYTES], value[_DIGEST_BYTES:]
    return bytes(cramjam.zstd.decompress(body)) if digest == _digest(key, body) else None


def _digest(key: str, body: bytes) -> bytes:
    # Over what is stored, so that nothing foreign reaches the decompressor.
    return hashlib.blake2b(
        body, digest_size=_DIGEST_BYTES, person=hashlib.sha256(key.encode()).digest()[:16]
    ).digest()
