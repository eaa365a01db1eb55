"""What only the SQLite stores do: share commits, sweep, and survive what happens to a file."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from worker.errors import OutcomeDamaged, StoreUnavailable
from worker.ports import OutcomeKey, OutcomeRecord, Tombstone
from worker.stores.sqlite import SCHEMA_VERSION, SqliteCrashLedger, SqliteOutcomeStore
from worker.stores.sqlite_log import LogKeeper

KEEP_SECONDS = 100
FORGET_SECONDS = 1_000
KEY = OutcomeKey(project_id="p", request_id="r")
RECORD = OutcomeRecord(
    request_digest="a" * 64, as_of=datetime(2024, 5, 1, tzinfo=UTC), reply=b'{"kind":"bundle"}', usage=b"{}"
)


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a" / "b" / "outcomes.db"


@pytest.fixture
async def store(path: Path, clock: Clock) -> AsyncGenerator[SqliteOutcomeStore]:
    opened = _open(path, clock)
    yield opened
    await opened.close()


def _open(path: Path, clock: Clock) -> SqliteOutcomeStore:
    return SqliteOutcomeStore(path, keep_seconds=KEEP_SECONDS, forget_seconds=FORGET_SECONDS, clock=clock)


def _key(number: int) -> OutcomeKey:
    return OutcomeKey(project_id="p", request_id=str(number))


def _rows(path: Path, sql: str) -> list[tuple[int, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def _commits(path: Path) -> int:
    """Transactions in the write-ahead log: frames whose header gives the size after a commit."""
    log = path.with_name(path.name + "-wal").read_bytes()
    page_bytes = int.from_bytes(log[8:12], "big")
    headers = range(32, len(log), 24 + page_bytes)
    return sum(log[start + 4 : start + 8] != bytes(4) for start in headers)


@pytest.mark.parametrize(("keep", "forget"), [(0, 10), (-1, 10), (11, 10)])
def test_times_that_make_no_sense_are_refused(path: Path, keep: int, forget: int) -> None:
    with pytest.raises(ValueError, match="keep_seconds"):
        SqliteOutcomeStore(path, keep_seconds=keep, forget_seconds=forget)


async def test_the_file_is_made_with_its_directories_and_for_its_owner_alone(
    store: SqliteOutcomeStore, path: Path
) -> None:
    assert not path.parent.exists()
    await store.put_if_absent(KEY, RECORD)
    assert sorted(os.listdir(path.parent)) == ["outcomes.db", "outcomes.db-shm", "outcomes.db-wal"]  # noqa: PTH208  # the rule for coroutines refuses the other spelling
    for name in os.listdir(path.parent):  # noqa: PTH208  # as above
        assert stat.S_IMODE(path.with_name(name).stat().st_mode) == 0o600


async def test_puts_that_wait_together_share_commits(store: SqliteOutcomeStore, path: Path) -> None:
    await store.check()
    before = _commits(path)
    await asyncio.gather(*(store.put_if_absent(_key(number), RECORD) for number in range(100)))
    assert _commits(path) - before <= 10


async def test_a_bad_record_does_not_fail_its_neighbours(store: SqliteOutcomeStore) -> None:
    naive = replace(RECORD, as_of=datetime(2024, 5, 1))  # noqa: DTZ001  # what is tested
    unstorable = replace(KEY, generation=2**70)
    results = await asyncio.gather(
        store.put_if_absent(_key(1), RECORD),
        store.put_if_absent(_key(2), naive),
        store.put_if_absent(unstorable, RECORD),
        store.put_if_absent(_key(3), RECORD),
        return_exceptions=True,
    )
    assert results[::3] == [RECORD, RECORD]
    # A caller's mistake stays what it is: it is not a store that is away.
    assert isinstance(results[1], ValueError)
    assert isinstance(results[2], OverflowError)
    assert [await store.get(_key(number)) for number in (1, 2, 3)] == [RECORD, None, RECORD]


async def test_many_workers_may_create_the_file_at_once(path: Path, clock: Clock) -> None:
    stores = [_open(path, clock) for _ in range(8)]
    held = await asyncio.gather(
        *(
            store.put_if_absent(KEY, replace(RECORD, reply=str(number).encode()))
            for number, store in enumerate(stores)
        )
    )
    await asyncio.gather(*(store.close() for store in stores))
    assert len({outcome.reply for outcome in held if isinstance(outcome, OutcomeRecord)}) == 1


async def test_reads_go_on_while_another_process_writes(store: SqliteOutcomeStore, path: Path) -> None:
    await store.put_if_absent(KEY, RECORD)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    assert await store.get(KEY) == RECORD
    writer.close()


async def test_what_has_expired_gives_its_space_back(
    store: SqliteOutcomeStore, path: Path, clock: Clock
) -> None:
    for number in range(5):
        await store.put_if_absent(_key(number), replace(RECORD, bundle=b"{ }"))
    clock.now += KEEP_SECONDS + 1
    await store.put_if_absent(KEY, RECORD)
    assert _rows(path, "SELECT count(*), count(record), count(bundle_sha256) FROM outcomes") == [(6, 1, 0)]
    assert isinstance(await store.get(_key(0)), Tombstone)
    clock.now += FORGET_SECONDS - KEEP_SECONDS
    await store.put_if_absent(_key(7), RECORD)
    assert _rows(path, "SELECT count(*), count(record) FROM outcomes") == [(2, 1)]


async def test_one_put_sweeps_a_bounded_share_and_the_next_ones_the_rest(
    store: SqliteOutcomeStore, path: Path, clock: Clock
) -> None:
    await asyncio.gather(*(store.put_if_absent(_key(number), RECORD) for number in range(150)))
    clock.now += FORGET_SECONDS + 1
    left: list[tuple[int, int]] = []
    for number in range(150, 154):
        await store.put_if_absent(_key(number), RECORD)
        ((kept, rows),) = _rows(path, "SELECT count(record), count(*) FROM outcomes")
        left.append((kept - (number - 149), rows - (number - 149)))
    assert left == [(86, 86), (22, 22), (0, 0), (0, 0)]


async def test_a_sweep_of_large_records_is_bounded_by_bytes(
    store: SqliteOutcomeStore, path: Path, clock: Clock
) -> None:
    large = replace(RECORD, reply=os.urandom(3_000_000))
    for number in range(4):
        await store.put_if_absent(_key(number), large)
    clock.now += KEEP_SECONDS + 1
    await store.put_if_absent(KEY, RECORD)
    assert _rows(path, "SELECT count(record) FROM outcomes") == [(3,)]
    await store.put_if_absent(_key(9), RECORD)
    assert _rows(path, "SELECT count(record) FROM outcomes") == [(2,)]


async def test_the_file_stops_growing_when_as_much_expires_as_comes(
    store: SqliteOutcomeStore, path: Path, clock: Clock
) -> None:
    pages: list[int] = []
    for round_number in range(6):
        for number in range(20):
            record = replace(RECORD, reply=os.urandom(20_000))
            await store.put_if_absent(_key(1_000 * round_number + number), record)
        clock.now += FORGET_SECONDS + 1
        pages.append(_rows(path, "PRAGMA page_count")[0][0])
    assert pages[-1] <= pages[1]


async def test_a_full_disk_is_said_and_a_disk_with_room_again_is_used(
    store: SqliteOutcomeStore, path: Path
) -> None:
    await store.put_if_absent(KEY, RECORD)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(StoreUnavailable, match="SQLITE_"):
            await store.put_if_absent(_key(1), replace(RECORD, reply=os.urandom(2_000_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert await store.get(KEY) == RECORD
    assert await store.get(_key(1)) is None
    assert await store.put_if_absent(_key(1), RECORD) == RECORD


@pytest.fixture
def text_file(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database, and long enough to look at" * 100)
    return path


async def test_a_file_that_is_no_database_is_said_and_its_successor_is_used(
    text_file: Path, store: SqliteOutcomeStore
) -> None:
    with pytest.raises(StoreUnavailable, match=r"file is not a database \(SQLITE_NOTADB\)"):
        await store.put_if_absent(KEY, RECORD)
    os.remove(text_file)  # noqa: PTH107  # the rule for coroutines refuses the other spelling
    assert await store.put_if_absent(KEY, RECORD) == RECORD


async def test_a_damaged_record_is_an_error_and_not_another_outcome(
    store: SqliteOutcomeStore, path: Path
) -> None:
    await store.put_if_absent(KEY, RECORD)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE outcomes SET record = x'01520000000000'")
    connection.close()
    with pytest.raises(OutcomeDamaged, match="damaged record"):
        await store.get(KEY)
    with pytest.raises(OutcomeDamaged, match="damaged record"):
        await store.put_if_absent(KEY, RECORD)


async def test_a_file_of_a_newer_version_is_left_alone(store: SqliteOutcomeStore, path: Path) -> None:
    path.parent.mkdir(parents=True)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(StoreUnavailable, match=f"the file has schema {SCHEMA_VERSION + 1}"):
        await store.put_if_absent(KEY, RECORD)
    assert _rows(path, "SELECT count(*) FROM sqlite_schema") == [(0,)]


async def test_workers_whose_file_was_removed_agree_on_the_new_one(path: Path, clock: Clock) -> None:
    left, right = _open(path, clock), _open(path, clock)
    await left.put_if_absent(KEY, RECORD)
    await right.check()
    for file in path.parent.iterdir():
        file.unlink()
    other = replace(RECORD, reply=b"{}")
    assert await left.put_if_absent(KEY, other) == other
    assert await right.put_if_absent(KEY, RECORD) == other
    await left.close()
    assert await right.get(KEY) == other
    await right.close()


async def test_outcomes_and_crash_ledger_may_share_a_file(
    store: SqliteOutcomeStore, path: Path, clock: Clock
) -> None:
    ledger = SqliteCrashLedger(path, clock=clock)
    await asyncio.gather(store.check(), ledger.clear_starts("g", scope="s", topic="t", partition=0))
    await ledger.close()
    assert await store.put_if_absent(KEY, RECORD) == RECORD


async def test_two_stores_of_one_process_keep_their_locks(path: Path, clock: Clock) -> None:
    """Closing any descriptor of a file drops a process's locks on it; SQLite then loses its log."""
    store, ledger = _open(path, clock), SqliteCrashLedger(path, clock=clock)
    await store.put_if_absent(KEY, RECORD)
    await ledger.clear_starts("g", scope="s", topic="t", partition=0)
    await ledger.close()
    # Whoever believes that nobody else has the file open deletes the log when it leaves.
    await asyncio.to_thread(
        subprocess.run,
        [
            sys.executable,
            "-c",
            f"import sqlite3; sqlite3.connect({str(path)!r}).execute('PRAGMA user_version')",
        ],
        check=True,
    )
    assert path.with_name("outcomes.db-wal").exists()
    await store.close()


def test_a_long_log_is_started_anew_and_a_short_one_left_alone(tmp_path: Path) -> None:
    path, limit_bytes = tmp_path / "x.db", 1_000_000
    log = path.with_name("x.db-wal")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("CREATE TABLE t (x BLOB)")
    keeper = LogKeeper(path, limit_bytes=limit_bytes)
    sizes: list[int] = []
    for _ in range(30):
        connection.execute("INSERT INTO t VALUES (randomblob(100000))")
        keeper.committed(connection)
        sizes.append(log.stat().st_size)
    keeper.finish()
    assert sizes.count(0) in {2, 3}
    assert max(sizes) < limit_bytes
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (30,)
    connection.close()


def test_a_checkpoint_moves_the_log_into_the_file_beside_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("CREATE TABLE t (x BLOB)")
    connection.execute("INSERT INTO t VALUES (randomblob(500000))")
    assert path.stat().st_size < 500_000
    keeper = LogKeeper(path)
    keeper.committed(connection)
    keeper.finish()
    assert path.stat().st_size > 500_000
    connection.close()


def test_a_checkpoint_that_could_not_be_started_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (x BLOB)")
    keeper = LogKeeper(path)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        keeper.committed(connection)
    keeper.finish()
    connection.close()
