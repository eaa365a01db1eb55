"""State in one SQLite file: the embedded cold store, nothing to install."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from worker.state.folding import EntityState, compacted, fold_anew
from worker.state.merging import entities_of, plan_changes
from worker.state.records import GROUP_OF, EntityKey, Order, StateRecord
from worker.state.store import Applied, Heads, Place, StoredGroup
from worker.state.view import encode_entity, encode_group
from worker.stores.sqlite_file import SqliteFile
from worker.stores.state_rows import decode_base, decode_body, encode_base, encode_body, next_version

SCHEMA_VERSION: Final = 1

_SCHEMA: Final = (
    """CREATE TABLE events (
        project_id TEXT NOT NULL,
        event_id TEXT NOT NULL,
        thread_id TEXT NOT NULL,
        kind TEXT NOT NULL,
        entity_kind TEXT NOT NULL,
        entity_id TEXT NOT NULL,
        at_us INTEGER NOT NULL,
        digest TEXT NOT NULL,
        claimed_us INTEGER,
        received_us INTEGER NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (project_id, event_id)
    ) WITHOUT ROWID""",
    """CREATE INDEX events_of_entities
        ON events (project_id, thread_id, entity_kind, entity_id, at_us, event_id)""",
    """CREATE TABLE entities (
        project_id TEXT NOT NULL,
        thread_id TEXT NOT NULL,
        entity_kind TEXT NOT NULL,
        entity_id TEXT NOT NULL,
        last_us INTEGER NOT NULL,
        last_event_id TEXT NOT NULL,
        document TEXT NOT NULL,
        base TEXT,
        PRIMARY KEY (project_id, thread_id, entity_kind, entity_id)
    )""",
    """CREATE TABLE heads (
        project_id TEXT NOT NULL,
        thread_id TEXT NOT NULL,
        state_group TEXT NOT NULL,
        version INTEGER NOT NULL,
        PRIMARY KEY (project_id, thread_id, state_group)
    ) WITHOUT ROWID""",
    """CREATE TABLE contents (
        project_id TEXT NOT NULL,
        sha256 TEXT NOT NULL,
        thread_id TEXT NOT NULL,
        content TEXT NOT NULL,
        PRIMARY KEY (project_id, sha256, thread_id)
    )""",
    "CREATE TABLE probes (id INTEGER PRIMARY KEY, count INTEGER NOT NULL)",
)

_EVENTS_BY_ID: Final = """
    SELECT thread_id, event_id, kind, digest, claimed_us, received_us, body FROM events
    WHERE project_id = ?1 AND event_id IN (SELECT value FROM json_each(?2))
"""
_EVENTS_OF_ENTITY: Final = """
    SELECT thread_id, event_id, kind, digest, claimed_us, received_us, body FROM events
    WHERE project_id = ? AND thread_id = ? AND entity_kind = ? AND entity_id = ?
        AND (at_us, event_id) > (?, ?) AND at_us < ?
    ORDER BY at_us, event_id
"""
_PUT_EVENT: Final = "INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_GET_ENTITY: Final = """SELECT last_us, last_event_id, document, base FROM entities
    WHERE project_id = ? AND thread_id = ? AND entity_kind = ? AND entity_id = ?"""
_PUT_ENTITY: Final = "INSERT OR REPLACE INTO entities VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_DROP_ENTITY: Final = """DELETE FROM entities
    WHERE project_id = ? AND thread_id = ? AND entity_kind = ? AND entity_id = ?"""
_PUT_CONTENT: Final = "INSERT OR IGNORE INTO contents VALUES (?, ?, ?, ?)"
_GET_HEAD: Final = "SELECT version FROM heads WHERE project_id = ? AND thread_id = ? AND state_group = ?"
_PUT_HEAD: Final = "INSERT OR REPLACE INTO heads VALUES (?, ?, ?, ?)"
_HEADS: Final = """SELECT thread_id, state_group, version FROM heads
    WHERE project_id = ? AND thread_id = ?"""
_MISSING: Final = """SELECT value FROM json_each(?2)
    EXCEPT SELECT event_id FROM events WHERE project_id = ?1"""
_ENTITIES_OF_PLACE: Final = """SELECT entity_kind, entity_id, document FROM entities
    WHERE project_id = ? AND thread_id = ? AND entity_kind IN (SELECT value FROM json_each(?))
    ORDER BY entity_kind, entity_id"""
_OLD_ENTITIES: Final = """SELECT DISTINCT thread_id, entity_kind, entity_id FROM events
    WHERE project_id = ? AND at_us < ? AND NOT EXISTS (
        SELECT 1 FROM entities AS known
        WHERE known.project_id = events.project_id AND known.thread_id = events.thread_id
            AND known.entity_kind = events.entity_kind AND known.entity_id = events.entity_id
            AND known.last_event_id = events.event_id
    )"""
_DROP_OLD: Final = """DELETE FROM events
    WHERE project_id = ? AND thread_id = ? AND entity_kind = ? AND entity_id = ? AND at_us < ?
        AND event_id != ?"""
_PROBE: Final = "INSERT INTO probes VALUES (1, 1) ON CONFLICT DO UPDATE SET count = count + 1"
_BEFORE_ALL: Final = Order(-(2**62), "")
_AFTER_ALL_US: Final = 2**62


class SqliteStateStore:
    """`StateStore` in one file, for the workers of one host."""

    def __init__(
        self, path: Path, *, busy_timeout_seconds: float = 0.8, timeout_seconds: float = 5.0
    ) -> None:
        """Touch nothing yet; the times are those of `SqliteFile`."""
        self._file = SqliteFile(
            path,
            schema=_SCHEMA,
            schema_version=SCHEMA_VERSION,
            busy_timeout_seconds=busy_timeout_seconds,
            timeout_seconds=timeout_seconds,
        )

    async def apply(self, project_id: str, records: Sequence[StateRecord]) -> Applied:
        """See `StateStore`."""
        return await self._file.write(lambda connection, _: _apply(connection, project_id, records))

    async def heads(
        self, project_id: str, thread_ids: Sequence[str], *, event_ids: Sequence[str] = ()
    ) -> Heads:
        """See `StateStore`."""

        def read(connection: sqlite3.Connection) -> Heads:
            # One by one: for the two that a request has, half of what a list in JSON costs.
            rows = [
                row for one in thread_ids for row in connection.execute(_HEADS, (project_id, one)).fetchall()
            ]
            versions = {Place(thread_id, group): version for thread_id, group, version in rows}
            if not event_ids:  # as in most requests, every one of which asks
                return Heads(versions=versions, missing=frozenset())
            missing = connection.execute(_MISSING, (project_id, json.dumps(list(event_ids))))
            return Heads(versions=versions, missing=frozenset(event_id for (event_id,) in missing))

        return await self._file.read(read)

    async def groups(self, project_id: str, versions: Mapping[Place, int]) -> Mapping[Place, StoredGroup]:
        """See `StateStore`."""
        return await self._file.read(
            lambda connection: {
                place: group
                for place in versions
                if (group := _read_group(connection, project_id, place)) is not None
            }
        )

    async def content(self, project_id: str, sha256: str) -> str | None:
        """See `StateStore`."""

        def read(connection: sqlite3.Connection) -> str | None:
            found = connection.execute(
                "SELECT content FROM contents WHERE project_id = ? AND sha256 = ? LIMIT 1",
                (project_id, sha256),
            ).fetchone()
            return None if found is None else found[0]

        return await self._file.read(read)

    async def compact(self, project_id: str, *, before_us: int) -> int:
        """See `StateStore`."""
        return await self._file.write(lambda connection, _: _compact(connection, project_id, before_us))

    async def projects(self) -> Sequence[str]:
        """See `StateStore`."""
        return await self._file.read(
            lambda connection: [
                project_id
                for (project_id,) in connection.execute(
                    "SELECT DISTINCT project_id FROM heads ORDER BY project_id"
                )
            ]
        )

    async def purge(self, project_id: str, *, thread_id: str | None = None) -> int:
        """See `StateStore`."""

        def forget(connection: sqlite3.Connection, _: None) -> int:
            gone = 0
            # What is erased shall not be found in the free pages of the file.
            connection.execute("PRAGMA secure_delete = ON")
            for table in ("entities", "heads", "contents", "events"):
                if thread_id is None:
                    where, values = "project_id = ?", (project_id,)
                else:
                    where, values = "project_id = ? AND thread_id = ?", (project_id, thread_id)
                gone = connection.execute(f"DELETE FROM {table} WHERE {where}", values).rowcount  # noqa: S608  # both from here
            return gone

        return await self._file.write(forget)

    async def check(self) -> None:
        """See `StateStore`."""
        await self._file.write(lambda connection, _: connection.execute(_PROBE))

    async def close(self) -> None:
        """See `StateStore`."""
        await self._file.close()


def _apply(connection: sqlite3.Connection, project_id: str, records: Sequence[StateRecord]) -> Applied:
    ids = json.dumps([record.event_id for record in records])
    stored = {r.event_id: r for r in map(_record, connection.execute(_EVENTS_BY_ID, (project_id, ids)))}
    keys = entities_of((*records, *stored.values()))
    states = {key: state for key in keys if (state := _state(connection, project_id, key)) is not None}
    changes = plan_changes(records, stored=stored, states=states)
    connection.executemany(_PUT_EVENT, (_event_row(project_id, record) for record in changes.rows))
    connection.executemany(
        _PUT_CONTENT,
        (
            (project_id, sha256, record.thread_id, content)
            for record in changes.rows
            for sha256, content in record.contents.items()
        ),
    )
    for key, state in changes.folded.items():
        _put_state(connection, project_id, key, state)
    for key in changes.to_refold:
        held = states.get(key)
        base = None if held is None else held.base
        events = _events(connection, project_id, key, after=base)
        _put_state(connection, project_id, key, fold_anew(base, events))
    _move_heads(connection, project_id, changes.applied.touched)
    return changes.applied


def _state(connection: sqlite3.Connection, project_id: str, key: EntityKey) -> EntityState | None:
    found = connection.execute(_GET_ENTITY, (project_id, *key)).fetchone()
    if found is None:
        return None
    last_us, last_event_id, document, base = found
    return EntityState(
        # A row of a group: kind, id, document.
        document=decode_body(document)[2],
        last=Order(last_us, last_event_id),
        base=decode_base(base),
    )


def _put_state(
    connection: sqlite3.Connection, project_id: str, key: EntityKey, state: EntityState | None
) -> None:
    if state is None:
        connection.execute(_DROP_ENTITY, (project_id, *key))
        return
    document = encode_entity(key, state.document).decode()
    connection.execute(_PUT_ENTITY, (project_id, *key, *state.last, document, encode_base(state.base)))


def _events(
    connection: sqlite3.Connection,
    project_id: str,
    key: EntityKey,
    *,
    after: EntityState | None,
    before_us: int = _AFTER_ALL_US,
) -> Iterator[StateRecord]:
    last = _BEFORE_ALL if after is None else after.last
    return map(_record, connection.execute(_EVENTS_OF_ENTITY, (project_id, *key, *last, before_us)))


def _move_heads(connection: sqlite3.Connection, project_id: str, places: Iterable[Place]) -> None:
    for place in places:
        (held,) = connection.execute(_GET_HEAD, (project_id, *place)).fetchone() or (0,)
        connection.execute(_PUT_HEAD, (project_id, *place, next_version(held, now_seconds=time.time())))


def _read_group(connection: sqlite3.Connection, project_id: str, place: Place) -> StoredGroup | None:
    found = connection.execute(_GET_HEAD, (project_id, *place)).fetchone()
    if found is None:
        return None
    kinds = json.dumps([kind for kind, group in GROUP_OF.items() if group == place.group])
    rows = connection.execute(_ENTITIES_OF_PLACE, (project_id, place.thread_id, kinds))
    return StoredGroup(version=found[0], data=encode_group(document.encode() for _, _, document in rows))


def _compact(connection: sqlite3.Connection, project_id: str, before_us: int) -> int:
    gone = 0
    for key in [EntityKey(*row) for row in connection.execute(_OLD_ENTITIES, (project_id, before_us))]:
        held = _state(connection, project_id, key)
        base = None if held is None else held.base
        old = _events(connection, project_id, key, after=base, before_us=before_us)
        base = compacted(fold_anew(base, old))
        rest = _events(connection, project_id, key, after=base)
        state = fold_anew(base, rest)
        _put_state(connection, project_id, key, state)
        last_event_id = "" if state is None else state.last.event_id
        gone += connection.execute(_DROP_OLD, (project_id, *key, before_us, last_event_id)).rowcount
    return gone


def _event_row(project_id: str, record: StateRecord) -> tuple[Any, ...]:
    thread_id, entity_kind, entity_id = record.entity
    return (
        project_id,
        record.event_id,
        thread_id,
        record.kind,
        entity_kind,
        entity_id,
        record.at_us,
        record.digest,
        record.claimed_us,
        record.received_us,
        encode_body(record.body),
    )


def _record(row: Any) -> StateRecord:
    thread_id, event_id, kind, digest, claimed_us, received_us, body = row
    return StateRecord(
        thread_id=thread_id,
        event_id=event_id,
        kind=kind,
        digest=digest,
        claimed_us=claimed_us,
        received_us=received_us,
        body=decode_body(body),
    )
