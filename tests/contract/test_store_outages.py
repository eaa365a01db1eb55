"""A store that is away says so soon, names the cause, and is used again when it is back."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import pytest

from tests.contract.backends import Backend, RedisBackend, SqliteBackend
from tests.contract.redis_server import RedisServer
from worker.errors import StoreUnavailable
from worker.ports import OutcomeKey, OutcomeRecord, RecordRef

KEY = OutcomeKey(project_id="p", request_id="r")
RECORD = OutcomeRecord(
    request_digest="a" * 64, as_of=datetime(2024, 5, 1, tzinfo=UTC), reply=b"{}", usage=b"{}", bundle=b"{ }"
)
REF = RecordRef(scope="c", topic="t", partition=0, offset=1)
SOON_SECONDS = 20.0
"""Far beyond what a store promises: a machine may stand still for a while; what hangs does so for ever."""


class Outage(Protocol):
    @property
    def backend(self) -> Backend: ...

    @property
    def reason(self) -> str:
        """A regular expression for what the error says."""
        ...

    def begin(self) -> None: ...

    def end(self) -> None: ...


class FileLocked:
    """Another process holds the write lock and does not let go."""

    reason = r"sqlite is unavailable: .*outcomes.db: database is locked \(SQLITE_BUSY\)"

    def __init__(self, directory: Path) -> None:
        self.backend = SqliteBackend(directory / "outcomes.db")
        self._holder: sqlite3.Connection | None = None

    def begin(self) -> None:
        self._holder = sqlite3.connect(self.backend.path, isolation_level=None)
        self._holder.execute("BEGIN IMMEDIATE")

    def end(self) -> None:
        if self._holder is not None:
            self._holder.close()


class DirectoryReplaced:
    """The directory went away and something else stands in its place."""

    reason = "sqlite is unavailable: .*/var.*: (Not a directory|File exists)"

    def __init__(self, directory: Path) -> None:
        self._var = directory / "var"
        self.backend = SqliteBackend(self._var / "outcomes.db")

    def begin(self) -> None:
        self._var.rename(self._var.with_name("gone"))
        self._var.write_text("not a directory")

    def end(self) -> None:
        if self._var.is_file():
            self._var.unlink()
            self._var.with_name("gone").rename(self._var)


class FileNotOurs:
    """The file is there and may not be opened."""

    reason = "sqlite is unavailable: .*outcomes.db: (Permission denied|unable to open database file)"

    def __init__(self, directory: Path) -> None:
        self.backend = SqliteBackend(directory / "var" / "outcomes.db")
        self._uid = os.geteuid()

    def begin(self) -> None:
        # Another file of the same name, as a restore by the wrong user leaves it: the store must open it.
        moved = self.backend.path.with_name("restored")
        moved.write_bytes(self.backend.path.read_bytes())
        moved.chmod(0)
        moved.rename(self.backend.path)
        if self._uid == 0:
            os.seteuid(65_534)  # a mode does not bind the super-user

    def end(self) -> None:
        if self._uid == 0:
            os.seteuid(0)
        if self.backend.path.exists():
            self.backend.path.chmod(0o600)


class ServerKilled:
    reason = "redis is unavailable: Error .* connecting to 127.0.0.1"

    def __init__(self, directory: Path) -> None:
        self._server = RedisServer(directory)
        self._server.start()
        self.backend = RedisBackend(self._server.url, "test")

    def begin(self) -> None:
        self._server.kill()

    def end(self) -> None:
        self._server.kill()
        self._server.start()

    def close(self) -> None:
        self._server.kill()


class ServerHangs(ServerKilled):
    reason = "redis is unavailable: no answer within"

    def begin(self) -> None:
        self._server.pause()

    def end(self) -> None:
        self._server.resume()


@pytest.fixture(
    params=[
        FileLocked,
        DirectoryReplaced,
        FileNotOurs,
        pytest.param(ServerKilled, marks=pytest.mark.services),
        pytest.param(ServerHangs, marks=pytest.mark.services),
    ]
)
def outage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Outage]:
    made = request.param(tmp_path)
    yield made
    made.end()
    if isinstance(made, ServerKilled):
        made.close()


async def test_every_caller_learns_soon_that_the_store_is_away_and_why(outage: Outage) -> None:
    store = outage.backend.outcomes()
    await store.put_if_absent(KEY, RECORD)
    outage.begin()
    async with asyncio.timeout(SOON_SECONDS):
        results = await asyncio.gather(
            *(store.put_if_absent(replace(KEY, request_id=f"{n}"), RECORD) for n in range(20)),
            store.check(),
            return_exceptions=True,
        )
    assert {type(result) for result in results} == {StoreUnavailable}
    with pytest.raises(StoreUnavailable, match=outage.reason):
        await store.check()
    await store.close()


async def test_the_store_is_used_again_when_it_is_back(outage: Outage) -> None:
    store = outage.backend.outcomes()
    await store.put_if_absent(KEY, RECORD)
    outage.begin()
    with pytest.raises(StoreUnavailable):
        await store.put_if_absent(replace(KEY, request_id="lost"), RECORD)
    outage.end()
    await store.check()
    assert await store.get(KEY) == RECORD
    assert await store.get_bundle(project_id="p", digest="0" * 64) is None
    fresh = replace(KEY, request_id="fresh")
    assert await store.put_if_absent(fresh, RECORD) == RECORD
    await store.close()


async def test_the_crash_ledger_does_not_guess_while_it_is_away(outage: Outage) -> None:
    ledger = outage.backend.ledger()
    await ledger.begin_attempt(REF)
    outage.begin()
    # A request that nobody answered may be carried out later, so another record's end is asked for.
    end = ledger.end_attempt(replace(REF, offset=2))
    for call in (ledger.begin_attempt(REF), ledger.raise_start("g", REF), end):
        with pytest.raises(StoreUnavailable):
            async with asyncio.timeout(SOON_SECONDS):
                await call
    outage.end()
    assert await ledger.begin_attempt(REF) >= 1
    await ledger.close()


async def test_a_store_that_is_away_can_be_closed(outage: Outage) -> None:
    store = outage.backend.outcomes()
    await store.put_if_absent(KEY, RECORD)
    outage.begin()
    async with asyncio.timeout(SOON_SECONDS):
        await store.close()
