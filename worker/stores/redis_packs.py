"""Packs in Redis, shared by the workers of a cluster: what one computed the others need not.

    <prefix>:{<project>}:pack:<digest>     the value, compressed, for `keep_seconds`

Losing them costs time and nothing else.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast
from urllib.parse import quote

import cramjam

from worker.stores.redis_link import RedisLink

_LOOP_BYTES: Final = 256 * 1024
_PURGE_BATCH: Final = 500
_GLOB: Final = str.maketrans({character: f"\\{character}" for character in "*?[]\\^"})


class RedisPackCache:
    """`PackCache` in Redis."""

    def __init__(
        self,
        url: str,
        *,
        keep_seconds: int,
        password: str | None = None,
        key_prefix: str = "context",
        connect_timeout_seconds: float = 0.2,
        timeout_seconds: float = 0.2,
    ) -> None:
        """Touch nothing yet. Raises ValueError for a bad address.

        The times are short: a pack that comes late is worth less than one computed here.
        """
        self._link = RedisLink(
            url,
            password=password,
            connect_timeout_seconds=connect_timeout_seconds,
            timeout_seconds=timeout_seconds,
            is_resending=True,
        )
        self._keep_seconds = keep_seconds
        self._prefix = key_prefix

    async def get(self, project_id: str, key: str) -> bytes | None:
        """What is kept. Raises StoreUnavailable."""
        data = cast("bytes | None", await self._link.call("GET", self._key(project_id, key)))
        if data is None:
            return None
        return await asyncio.to_thread(_unpacked, data) if len(data) > _LOOP_BYTES else _unpacked(data)

    async def put(self, project_id: str, key: str, value: bytes) -> None:
        """Keep the value for `keep_seconds`. Raises StoreUnavailable."""
        data = await asyncio.to_thread(_packed, value) if len(value) > _LOOP_BYTES else _packed(value)
        await self._link.call("SET", self._key(project_id, key), data, "EX", self._keep_seconds)

    async def purge(self, project_id: str) -> int:
        """Forget the project's values. Raises StoreUnavailable. O(keys of the server)."""
        pattern = self._key(project_id, "*", is_pattern=True)
        cursor, removed = b"0", 0
        while True:
            cursor, keys = cast(
                "tuple[bytes, list[bytes]]",
                await self._link.call("SCAN", cursor, "MATCH", pattern, "COUNT", _PURGE_BATCH),
            )
            if keys:
                removed += cast("int", await self._link.call("DEL", *keys))
            if cursor == b"0":
                return removed

    async def close(self) -> None:
        """Disconnect."""
        await self._link.close()

    def _key(self, project_id: str, key: str, *, is_pattern: bool = False) -> str:
        head = f"{self._prefix}:{{{quote(project_id, safe='')}}}:pack:"
        return (head.translate(_GLOB) if is_pattern else head) + key


def _packed(value: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(value))


def _unpacked(data: bytes) -> bytes:
    return bytes(cramjam.zstd.decompress(data))
