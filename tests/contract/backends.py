"""What the store contracts need of each product: open it, as another worker would too, and age it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import redis.asyncio

from worker.ports import CrashLedger, OutcomeStore
from worker.stores.redis import RedisCrashLedger, RedisOutcomeStore
from worker.stores.sqlite import SqliteCrashLedger, SqliteOutcomeStore

KEEP_SECONDS = 7_200
FORGET_SECONDS = 172_800


class Backend(Protocol):
    """One product. Whoever opens a store closes it."""

    @property
    def address(self) -> str:
        """What `open_store` in another process needs to find the same data."""
        ...

    def outcomes(self) -> OutcomeStore: ...

    def ledger(self) -> CrashLedger: ...

    async def age(self, seconds: float) -> None:
        """Make everything that is stored this much older."""
        ...


@dataclass
class SqliteBackend:
    path: Path
    now: float = field(default_factory=time.time)

    @property
    def address(self) -> str:
        return json.dumps(["sqlite", str(self.path)])

    def outcomes(self) -> SqliteOutcomeStore:
        return SqliteOutcomeStore(
            self.path, keep_seconds=KEEP_SECONDS, forget_seconds=FORGET_SECONDS, clock=lambda: self.now
        )

    def ledger(self) -> SqliteCrashLedger:
        return SqliteCrashLedger(self.path, clock=lambda: self.now)

    async def age(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class RedisBackend:
    url: str
    prefix: str

    @property
    def address(self) -> str:
        return json.dumps(["redis", self.url, self.prefix])

    def outcomes(self) -> RedisOutcomeStore:
        return RedisOutcomeStore(
            self.url, keep_seconds=KEEP_SECONDS, forget_seconds=FORGET_SECONDS, key_prefix=self.prefix
        )

    def ledger(self) -> RedisCrashLedger:
        return RedisCrashLedger(self.url, key_prefix=self.prefix)

    async def age(self, seconds: float) -> None:
        """Take the time off every key's own expiry; a key without one would live for ever, so it fails."""
        client: Any = redis.asyncio.Redis.from_url(self.url)  # pyright: ignore[reportUnknownMemberType]  # the driver leaves its options and keys untyped
        async with client:
            async for key in client.scan_iter(match=f"{self.prefix}:*", count=1_000):
                left_ms = await client.pttl(key)
                assert left_ms >= 0, f"{key!r} never expires"
                await client.pexpire(key, int(left_ms - seconds * 1_000))


def open_store(address: str) -> OutcomeStore:
    """The outcome store at a backend's address, on the real clock."""
    match json.loads(address):
        case ["sqlite", path]:
            return SqliteOutcomeStore(Path(path), keep_seconds=KEEP_SECONDS, forget_seconds=FORGET_SECONDS)
        case ["redis", url, prefix]:
            return RedisOutcomeStore(
                url, keep_seconds=KEEP_SECONDS, forget_seconds=FORGET_SECONDS, key_prefix=prefix
            )
        case other:
            raise ValueError(other)
