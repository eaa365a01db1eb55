"""Outcomes and crash bookkeeping in one SQLite file: the embedded stores, nothing to install.

Several processes on one host may share the file: the primary key and one write transaction decide who was
first. Not for network file systems, whose locks cannot be trusted.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from schemas.wire import sha256_hex
from worker.ports import OutcomeKey, OutcomeRecord, RecordRef, Tombstone
from worker.stores.records import decode, encode_record, encode_tombstone, tombstone_of
from worker.stores.sqlite_file import STORE, SqliteFile

SCHEMA_VERSION: Final = 1
_CRASH_KEEP_SECONDS: Final = 48 * 3600
_SWEEP_ROWS: Final = 64
_SWEEP_BYTES: Final = 4 * 1024 * 1024
_SWEEP_PAUSE_SECONDS: Final = 30.0
_PURGE_ROWS: Final = 64

# Ids are BLOBs: they are opaque and compared as bytes, and a BLOB holds any of them.
_SCHEMA: Final = (
    """CREATE TABLE outcomes (
        project_id BLOB NOT NULL,
        request_id BLOB NOT NULL,
        generation INTEGER NOT NULL,
        keep_until REAL NOT NULL,
        forget_until REAL NOT NULL,
        bundle_sha256 BLOB,
        tombstone BLOB NOT NULL,
        record BLOB,
        PRIMARY KEY (project_id, request_id, generation)
    )""",
    "CREATE INDEX outcomes_kept ON outcomes (keep_until) WHERE record IS NOT NULL",
    "CREATE INDEX outcomes_forgotten ON outcomes (forget_until)",
    """CREATE INDEX outcomes_bundles ON outcomes (project_id, bundle_sha256)
        WHERE bundle_sha256 IS NOT NULL""",
    """CREATE TABLE crash_counts (
        kind TEXT NOT NULL,
        consumer_group BLOB NOT NULL,
        scope BLOB NOT NULL,
        topic BLOB NOT NULL,
        partition_number INTEGER NOT NULL,
        offset_number INTEGER NOT NULL,
        count INTEGER NOT NULL,
        expires_at REAL NOT NULL,
        PRIMARY KEY (kind, consumer_group, scope, topic, partition_number, offset_number)
    ) WITHOUT ROWID""",
    "CREATE TABLE probes (id INTEGER PRIMARY KEY, checked_at REAL NOT NULL)",
)

_PUT: Final = """
    INSERT INTO outcomes
        (project_id, request_id, generation, keep_until, forget_until, bundle_sha256, tombstone, record)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET
        keep_until = excluded.keep_until,
        forget_until = excluded.forget_until,
        bundle_sha256 = excluded.bundle_sha256,
        tombstone = excluded.tombstone,
        record = excluded.record
    WHERE outcomes.forget_until <= ?
"""
_GET: Final = """
    SELECT keep_until, tombstone, record FROM outcomes
    WHERE project_id = ? AND request_id = ? AND generation = ? AND forget_until > ?
"""
_GET_BUNDLE: Final = """
    SELECT record FROM outcomes
    WHERE project_id = ? AND bundle_sha256 = ? AND keep_until > ? AND record IS NOT NULL
    ORDER BY keep_until DESC LIMIT 1
"""
_EXPIRED_RECORDS: Final = """
    SELECT rowid, length(record) FROM outcomes
    WHERE record IS NOT NULL AND keep_until <= ? ORDER BY keep_until LIMIT ?
"""
_FORGET: Final = """
    DELETE FROM outcomes
    WHERE rowid IN (SELECT rowid FROM outcomes WHERE forget_until <= ? ORDER BY forget_until LIMIT ?)
"""
_PURGE_BATCH: Final = """
    SELECT rowid, record FROM outcomes WHERE project_id = ? AND rowid > ? ORDER BY rowid LIMIT ?
"""
_COUNT: Final = """
    INSERT INTO crash_counts VALUES (?, ?, ?, ?, ?, ?, 1, ?)
    ON CONFLICT DO UPDATE SET count = count + 1, expires_at = excluded.expires_at RETURNING count
"""
_WITHDRAW: Final = """
    UPDATE crash_counts SET count = count - 1 WHERE kind = ? AND consumer_group = ? AND scope = ?
    AND topic = ? AND partition_number = ? AND offset_number = ? AND count > 0
"""
_PROBE: Final = """
    INSERT INTO probes VALUES (1, ?) ON CONFLICT DO UPDATE SET checked_at = excluded.checked_at
"""


class SqliteOutcomeStore:
    """`OutcomeStore` in one file. First writer wins, across threads and processes.

    Each read judges expiry by `clock` (seconds since the epoch). The space of what has expired is given
    back by the puts: each sweeps a bounded share, so a file at rest keeps expired bytes until the next one.
    What cannot be read raises what `worker.stores.records.decode` does.
    """

    def __init__(
        self,
        path: Path,
        *,
        keep_seconds: int,
        forget_seconds: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Touch nothing yet. Raises ValueError unless 0 < keep_seconds <= forget_seconds."""
        if not 0 < keep_seconds <= forget_seconds:
            raise ValueError("keep_seconds must be positive and not above forget_seconds")
        self._file = SqliteFile(path, schema=_SCHEMA, schema_version=SCHEMA_VERSION)
        self._keep_seconds = keep_seconds
        self._forget_seconds = forget_seconds
        self._clock = clock
        self._next_sweep = 0.0

    async def get(self, key: OutcomeKey) -> OutcomeRecord | Tombstone | None:
        """What the store holds. Raises StoreUnavailable."""

        def find(connection: sqlite3.Connection) -> OutcomeRecord | Tombstone | None:
            now = self._clock()
            row = connection.execute(_GET, (*_key(key), now)).fetchone()
            return None if row is None else _held(row, now=now)

        return await self._file.read(find)

    async def put_if_absent(self, key: OutcomeKey, record: OutcomeRecord) -> OutcomeRecord | Tombstone:
        """Store unless something is there; return what the store holds then. Raises StoreUnavailable."""

        def put(
            connection: sqlite3.Connection, encoded: tuple[bytes | None, bytes, bytes]
        ) -> OutcomeRecord | Tombstone:
            now = self._clock()
            self._sweep(connection, now=now)
            until = (now + self._keep_seconds, now + self._forget_seconds)
            if connection.execute(_PUT, (*_key(key), *until, *encoded, now)).rowcount:
                return record
            return _held(connection.execute(_GET, (*_key(key), now)).fetchone(), now=now)

        return await self._file.write(put, prepare=lambda: _encoded(record))

    async def get_bundle(self, *, project_id: str, digest: str) -> bytes | None:
        """The bundle with that SHA-256 that an outcome of this project refers to, while it is kept."""

        def find(connection: sqlite3.Connection) -> bytes | None:
            row = connection.execute(_GET_BUNDLE, (_id(project_id), _id(digest), self._clock())).fetchone()
            held = None if row is None else decode(row[0], store=STORE)
            return held.bundle if isinstance(held, OutcomeRecord) else None

        return await self._file.read(find)

    async def purge(self, project_id: str, *, only: Callable[[OutcomeRecord], bool] | None = None) -> int:
        """Forget the project's outcomes, or those that `only` says yes to. Raises StoreUnavailable.

        The bytes are overwritten in the file; what the write-ahead log holds of them goes with its next
        checkpoint. Record by record in bounded transactions, so other writers wait for none of it long.
        """
        forgotten, last = 0, 0
        while last >= 0:
            start = last

            def forget(connection: sqlite3.Connection, _: None, start: int = start) -> tuple[int, int]:
                connection.execute("PRAGMA secure_delete = ON")
                batch: list[tuple[int, bytes | None]] = connection.execute(
                    _PURGE_BATCH, (_id(project_id), start, _PURGE_ROWS)
                ).fetchall()
                doomed = [(rowid,) for rowid, record in batch if only is None or _is_meant(record, only)]
                connection.executemany("DELETE FROM outcomes WHERE rowid = ?", doomed)
                return len(doomed), batch[-1][0] if len(batch) == _PURGE_ROWS else -1

            count, last = await self._file.write(forget)
            forgotten += count
        return forgotten

    async def check(self) -> None:
        """Return when a write was committed; raises StoreUnavailable."""
        await self._file.write(lambda connection, _: connection.execute(_PROBE, (self._clock(),)).rowcount)

    async def close(self) -> None:
        """Finish what waits, close the file, end the thread. Idempotent."""
        await self._file.close()

    def _sweep(self, connection: sqlite3.Connection, *, now: float) -> None:
        """Give back the space of what has expired: a bounded share now, the rest with the next puts."""
        if now < self._next_sweep:
            return
        expired: list[tuple[int, int]] = connection.execute(_EXPIRED_RECORDS, (now, _SWEEP_ROWS)).fetchall()
        share: list[tuple[int]] = []
        swept_bytes = 0
        for rowid, size_bytes in expired:
            share.append((rowid,))
            swept_bytes += size_bytes
            if swept_bytes >= _SWEEP_BYTES:
                break
        connection.executemany(
            "UPDATE outcomes SET record = NULL, bundle_sha256 = NULL WHERE rowid = ?", share
        )
        forgotten = connection.execute(_FORGET, (now, _SWEEP_ROWS)).rowcount
        is_done = len(share) == len(expired) < _SWEEP_ROWS and forgotten < _SWEEP_ROWS
        self._next_sweep = now + _SWEEP_PAUSE_SECONDS if is_done else now


class SqliteCrashLedger:
    """`CrashLedger` in one file, which may be that of the outcomes."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Touch nothing yet. `clock` gives seconds since the epoch."""
        self._file = SqliteFile(path, schema=_SCHEMA, schema_version=SCHEMA_VERSION)
        self._clock = clock

    async def raise_start(self, group: str, position: RecordRef) -> int:
        """Count one more start from this position, and return the count. Raises StoreUnavailable."""
        return await self._count("start", group, position)

    async def withdraw_start(self, group: str, position: RecordRef) -> None:
        """Count one start less from this position, none where none is counted. Raises StoreUnavailable."""
        await self._withdraw("start", group, position)

    async def clear_starts(self, group: str, *, scope: str, topic: str, partition: int) -> None:
        """Forget the partition's starts, from whichever position. Raises StoreUnavailable."""
        row = ("start", _id(group), _id(scope), _id(topic), partition)
        await self._file.write(
            lambda connection, _: (
                connection.execute(
                    "DELETE FROM crash_counts WHERE kind = ? AND consumer_group = ? AND scope = ?"
                    " AND topic = ? AND partition_number = ?",
                    row,
                ).rowcount
            )
        )

    async def begin_attempt(self, record: RecordRef) -> int:
        """Write down that the record is tried; return how often it was before. Raises StoreUnavailable."""
        return await self._count("attempt", "", record) - 1

    async def withdraw_attempt(self, record: RecordRef) -> None:
        """Count one attempt less, none where none is counted. Raises StoreUnavailable."""
        await self._withdraw("attempt", "", record)

    async def end_attempt(self, record: RecordRef) -> None:
        """Forget the record's attempts. Raises StoreUnavailable."""
        row = ("attempt", b"", _id(record.scope), _id(record.topic), record.partition, record.offset)
        await self._file.write(
            lambda connection, _: (
                connection.execute(
                    "DELETE FROM crash_counts WHERE kind = ? AND consumer_group = ? AND scope = ?"
                    " AND topic = ? AND partition_number = ? AND offset_number = ?",
                    row,
                ).rowcount
            )
        )

    async def close(self) -> None:
        """Finish what waits, close the file, end the thread. Idempotent."""
        await self._file.close()

    async def _count(self, kind: str, group: str, ref: RecordRef) -> int:
        row = (kind, _id(group), _id(ref.scope), _id(ref.topic), ref.partition, ref.offset)

        def count(connection: sqlite3.Connection, _: None) -> int:
            now = self._clock()
            # The table holds what crashed within two days: a handful of rows, no index needed.
            connection.execute("DELETE FROM crash_counts WHERE expires_at <= ?", (now,))
            (counted,) = connection.execute(_COUNT, (*row, now + _CRASH_KEEP_SECONDS)).fetchone()
            return counted

        return await self._file.write(count)

    async def _withdraw(self, kind: str, group: str, ref: RecordRef) -> None:
        row = (kind, _id(group), _id(ref.scope), _id(ref.topic), ref.partition, ref.offset)
        await self._file.write(lambda connection, _: connection.execute(_WITHDRAW, row).rowcount)


def _id(text: str) -> bytes:
    """Any string, a lone surrogate included: the store is not the one to judge ids."""
    return text.encode("utf-8", "surrogatepass")


def _key(key: OutcomeKey) -> tuple[bytes, bytes, int]:
    return _id(key.project_id), _id(key.request_id), key.generation


def _held(row: tuple[float, bytes, bytes | None], *, now: float) -> OutcomeRecord | Tombstone:
    keep_until, tombstone, record = row
    return decode(tombstone if record is None or keep_until <= now else record, store=STORE)


def _is_meant(record: bytes | None, only: Callable[[OutcomeRecord], bool]) -> bool:
    held = None if record is None else decode(record, store=STORE)
    return isinstance(held, OutcomeRecord) and only(held)


def _encoded(record: OutcomeRecord) -> tuple[bytes | None, bytes, bytes]:
    digest = None if record.bundle is None else _id(sha256_hex(record.bundle))
    return digest, encode_tombstone(tombstone_of(record)), encode_record(record)
