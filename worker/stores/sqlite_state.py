"""State in one SQLite file: the embedded cold store, nothing to install."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
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
    LIMIT ?
"""
_PUT_EVENT: Final = "INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_GET_ENTITY: Final = """SELECT last_us, last_event_id, document, base FROM entities
    WHERE project_id = ? AND thread_id = ? AND entity_kind = ? AND entity_id = ?"""
_PUT_ENTITY: Final = "INSERT OR REPLACE INTO entities VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_DROP_ENTITY: Final = """DELETE FROM entities
    WHERE project_id = ? AND thread_id = ? AND entity_kind = ? AND entity_id = ?"""
# A row has another number whenever its content is told, and none comes twice: `_FORGET_CONTENT` goes by it.
_PUT_CONTENT: Final = """INSERT OR REPLACE INTO contents (rowid, project_id, sha256, thread_id, content)
    VALUES (random(), ?, ?, ?, ?)"""
_GET_HEAD: Final = "SELECT version FROM heads WHERE project_id = ? AND thread_id = ? AND state_group = ?"
_PUT_HEAD: Final = "INSERT OR REPLACE INTO heads VALUES (?, ?, ?, ?)"
_HEADS: Final = """SELECT thread_id, state_group, version FROM heads
    WHERE project_id = ? AND thread_id = ?"""
_MISSING: Final = """SELECT value FROM json_each(?2)
    EXCEPT SELECT event_id FROM events WHERE project_id = ?1"""
_ENTITIES_OF_PLACE: Final = """SELECT entity_kind, entity_id, document FROM entities
    WHERE project_id = ? AND thread_id = ? AND entity_kind IN (SELECT value FROM json_each(?))
    ORDER BY entity_kind, entity_id"""
_OF_ENTITY: Final = "project_id = ? AND thread_id = ? AND entity_kind = ? AND entity_id = ?"
_ENTITIES_AFTER: Final = """SELECT thread_id, entity_kind, entity_id, EXISTS (
        SELECT 1 FROM events
        WHERE events.project_id = known.project_id AND events.thread_id = known.thread_id
            AND events.entity_kind = known.entity_kind AND events.entity_id = known.entity_id
            AND at_us < ? AND event_id != known.last_event_id
    ) FROM entities AS known
    WHERE project_id = ? AND (thread_id, entity_kind, entity_id) > (?, ?, ?)
    ORDER BY thread_id, entity_kind, entity_id
    LIMIT ?"""
_GET_BASE: Final = f"SELECT last_event_id, base FROM entities WHERE {_OF_ENTITY}"  # noqa: S608  from here
_PUT_BASE: Final = f"UPDATE entities SET base = ? WHERE {_OF_ENTITY}"  # noqa: S608  from here
_FORGET_OLD: Final = f"""DELETE FROM events
    WHERE {_OF_ENTITY} AND at_us < ? AND (at_us, event_id) <= (?, ?) AND event_id != ?"""  # noqa: S608  from here
_CONTENTS: Final = """SELECT sha256, thread_id, rowid FROM contents
    WHERE project_id = ? AND (sha256, thread_id) > (?, ?)
    ORDER BY sha256, thread_id
    LIMIT ?"""
_NAMED_BY_EVENTS: Final = """SELECT entity_id, at_us, event_id, json_extract(body, '$.content_sha256')
    FROM events
    WHERE project_id = ? AND thread_id = ? AND entity_kind = 'artifact'
        AND (entity_id, at_us, event_id) > (?, ?, ?)
    ORDER BY entity_id, at_us, event_id
    LIMIT ?"""
_NAMED_BY_ENTITIES: Final = """SELECT entity_id,
        json_extract(document, '$[2].body.content_sha256'),
        json_extract(base, '$.document.body.content_sha256')
    FROM entities
    WHERE project_id = ? AND thread_id = ? AND entity_kind = 'artifact' AND entity_id > ?
    ORDER BY entity_id
    LIMIT ?"""
_FORGET_CONTENT: Final = """DELETE FROM contents
    WHERE rowid = ? AND project_id = ? AND thread_id = ? AND sha256 = ?
    RETURNING length(content)"""
_PROBE: Final = "INSERT INTO probes VALUES (1, 1) ON CONFLICT DO UPDATE SET count = count + 1"
_LISTED_ROWS: Final = 500
_COMPACT_ROWS: Final = 100
"""Events that are folded in one transaction: who asks meanwhile waits for them, messages of some length."""
_FORGET_ROWS: Final = 16
_FORGET_CHARACTERS: Final = 4_000_000
"""Of contents that are forgotten in one transaction: who asks meanwhile waits while their pages are freed."""

_ALL_ROWS: Final = -1
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
        """See `StateStore`. A thing at a time, some events a transaction: others take turns with it."""
        gone = 0
        async for key in self._with_old_events(project_id, before_us):
            is_done = False
            while not is_done:
                count, is_done = await self._file.write(
                    lambda connection, _, key=key: _compact(connection, project_id, key, before_us)
                )
                gone += count
        await self._forget_contents(project_id)
        return gone

    async def _with_old_events(self, project_id: str, before_us: int) -> AsyncGenerator[EntityKey]:
        """The things of which single events from before that instant are held beside the last one."""
        async for *key, has_old in self._pages(_ENTITIES_AFTER, (before_us, project_id), ("", "", "")):
            if has_old:
                yield EntityKey(*key)

    async def _forget_contents(self, project_id: str) -> None:
        """Drop the contents that neither an event nor a thing of their thread names any more.

        The contents are read first, then the names, a page at a time: whatever names one later has told it
        anew with its event, and `_FORGET_CONTENT` passes over it.
        """
        held: defaultdict[str, dict[str, int]] = defaultdict(dict)
        async for sha256, thread_id, row in self._pages(_CONTENTS, (project_id,), ("", "")):
            held[thread_id][sha256] = row
        for thread_id, rows in held.items():
            named = await self._named(project_id, thread_id)
            doomed = [
                (row, project_id, thread_id, sha256) for sha256, row in rows.items() if sha256 not in named
            ]
            while doomed:
                done = await self._file.write(
                    lambda connection, _, some=doomed: _forget_some(connection, some)
                )
                del doomed[:done]

    async def _named(self, project_id: str, thread_id: str) -> set[str | None]:
        """The digests of contents that the thread's artifacts name, now or in what is known of their past."""
        named: set[str | None] = set()
        thread = (project_id, thread_id)
        # Events before things: compaction moves names from those to these.
        async for *_, digest in self._pages(_NAMED_BY_EVENTS, thread, ("", _BEFORE_ALL.at_us, "")):
            named.add(digest)
        async for _, *digests in self._pages(_NAMED_BY_ENTITIES, thread, ("",)):
            named.update(digests)
        return named

    async def _pages(
        self, statement: str, values: tuple[Any, ...], last: tuple[Any, ...]
    ) -> AsyncGenerator[Any]:
        """The rows whose first columns are after `last`; others have their turn between the pages."""
        while True:
            found = await self._file.read(
                lambda connection, last=last: connection.execute(
                    statement, (*values, *last, _LISTED_ROWS)
                ).fetchall()
            )
            for row in found:
                yield row
            if len(found) < _LISTED_ROWS:
                return
            last = found[-1][: len(last)]

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
    limit: int = _ALL_ROWS,
) -> Iterator[StateRecord]:
    last = _BEFORE_ALL if after is None else after.last
    return map(_record, connection.execute(_EVENTS_OF_ENTITY, (project_id, *key, *last, before_us, limit)))


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


def _compact(
    connection: sqlite3.Connection, project_id: str, key: EntityKey, before_us: int
) -> tuple[int, bool]:
    """Forget some of the oldest events about one thing; how many, and whether that were all."""
    found = connection.execute(_GET_BASE, (project_id, *key)).fetchone()
    if found is None:
        return 0, True
    last_event_id, written = found
    base = decode_base(written)
    old = list(_events(connection, project_id, key, after=base, before_us=before_us, limit=_COMPACT_ROWS))
    # What all events come to is as it was: only where its memory of single ones begins has moved.
    base = compacted(fold_anew(base, old))
    if base is None:
        return 0, True
    if old:
        connection.execute(_PUT_BASE, (encode_base(base), project_id, *key))
    forgotten = connection.execute(_FORGET_OLD, (project_id, *key, before_us, *base.last, last_event_id))
    return forgotten.rowcount, len(old) < _COMPACT_ROWS


def _forget_some(connection: sqlite3.Connection, doomed: Sequence[tuple[int, str, str, str]]) -> int:
    """Drop the first of the contents that were not told again meanwhile; how many were gone through."""
    done = characters = 0
    while done < min(len(doomed), _FORGET_ROWS) and characters < _FORGET_CHARACTERS:
        found = connection.execute(_FORGET_CONTENT, doomed[done]).fetchall()
        characters += sum(length for (length,) in found)
        done += 1
    return done


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
