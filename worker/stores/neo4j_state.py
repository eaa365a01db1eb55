"""State in Neo4j, which workers on several hosts share: events, and what they come to, as nodes to query.

    MATCH (t:TestResult {project: $project}) WHERE t.at_us > $since RETURN t.id, t.body

**Why readers never see half a batch.** Neo4j reads what is committed, row by row, and a commit becomes
visible piece by piece. So each question takes the lock of its project's `StateProject` for the moment that it
lasts, and a writer takes it as the last thing before it commits: what is read lies between two commits.

**Why writers queue.** What a batch comes to depends on what is stored, so two batches of one project are
taken in one after the other: a writer locks the project's `StateWriter` first. Readers do not wait for that.

Things are read and written in sorted order, a few thousand rows at a time at most, so that neither this
process nor the server's memory has to hold a whole thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from worker.state.folding import EntityState, fold_on
from worker.state.merging import entities_of, plan_changes
from worker.state.records import GROUP_OF, GROUPS, EntityKey, StateRecord
from worker.state.store import Applied, Heads, Place, StoredGroup
from worker.state.view import encode_group
from worker.stores import neo4j_state_rows as q
from worker.stores.neo4j_link import Neo4jLink, Transaction, rows
from worker.stores.neo4j_schema import apply_ddl
from worker.stores.neo4j_writes import batches
from worker.stores.state_rows import next_version

_FOLD_ROWS: Final = 1_000
_COMPACT_ROWS: Final = 5_000
_DELETE_ROWS: Final = 2_000
_ALL_ROWS: Final = 2**62
_INLINE_CHARACTERS: Final = 4_000_000
"""Of contents in one transaction, which lives in the server's memory; more go ahead in their own."""

_AFTER_ALL: Final = "a"
"""Positions begin with a digit."""

_PROBE_PROJECT: Final = ":probe"
"""No project has this id."""


class Neo4jStateStore:
    """`StateStore` in one Neo4j database."""

    def __init__(
        self, link: Neo4jLink, *, timeout_seconds: float = 2.0, bulk_timeout_seconds: float = 60.0
    ) -> None:
        """Touch nothing yet; `link` is the store's own from now on, and closed with it.

        The first timeout is for each question, the second for each transaction that takes events in, folds
        anew or forgets.
        """
        self._link = link
        self._timeout_seconds = timeout_seconds
        self._bulk_timeout_seconds = bulk_timeout_seconds
        self._schema = asyncio.Lock()
        self._has_schema = False

    async def apply(self, project_id: str, records: Sequence[StateRecord]) -> Applied:
        """See `StateStore`."""
        await self._ensure_schema()
        contents = q.content_rows(project_id, records)
        is_ahead = sum(len(content) for *_, content in contents) > _INLINE_CHARACTERS
        if is_ahead:
            await self._put_contents_ahead(project_id, contents)

        async def work(transaction: Transaction) -> Applied:
            return await _apply(transaction, project_id, records, is_ahead=is_ahead)

        return await self._link.write(work, timeout_seconds=self._bulk_timeout_seconds)

    async def heads(
        self, project_id: str, thread_ids: Sequence[str], *, event_ids: Sequence[str] = ()
    ) -> Heads:
        """See `StateStore`."""
        places = _keyed(project_id, (Place(thread, group) for thread in thread_ids for group in GROUPS))
        events = {q.event_key(project_id, event_id): event_id for event_id in event_ids}
        found = await self._ask(q.HEADS_AND_EVENTS, project_id, heads=sorted(places), events=sorted(events))
        # Of a project that nobody has written to there is no row.
        heads: list[list[Any]] = found[0][0] if found else []
        known: list[str] = found[0][1] if found else []
        return Heads(
            versions={places[key]: version for key, version in heads},
            missing=frozenset(events[key] for key in events.keys() - set(known)),
        )

    async def groups(self, project_id: str, versions: Mapping[Place, int]) -> Mapping[Place, StoredGroup]:
        """See `StateStore`."""
        places = _keyed(project_id, versions)
        found = await self._ask(q.GROUPS, project_id, heads=sorted(places))
        return {
            places[key]: StoredGroup(
                version=version,
                data=encode_group(document.encode() for _, _, document in sorted(entities)),
            )
            for key, version, entities in found
        }

    async def content(self, project_id: str, sha256: str) -> str | None:
        """See `StateStore`."""
        prefix = q.content_prefix(project_id, sha256)
        found = await self._ask(q.CONTENT, project_id, sha256=sha256, prefix=prefix)
        return found[0][0] if found else None

    async def compact(self, project_id: str, *, before_us: int) -> int:
        """See `StateStore`. A thing at a time, some thousand events a transaction."""
        found = await self._ask(
            q.OLD_ENTITIES, project_id, prefix=q.prefix_of(project_id), before_us=before_us
        )
        gone = 0
        for key in sorted(EntityKey(*row) for row in found):
            while count := await self._link.write(
                partial(_compact, project_id=project_id, key=key, before_us=before_us),
                timeout_seconds=self._bulk_timeout_seconds,
            ):
                gone += count
        await self._forget_contents(project_id)
        return gone

    async def projects(self) -> Sequence[str]:
        """See `StateStore`."""
        return sorted(project_id for (project_id,) in await self._ask(q.PROJECTS, ""))

    async def purge(self, project_id: str, *, thread_id: str | None = None) -> int:
        """See `StateStore`. In batches, of which the first counts, and takes all from readers."""
        bound = {
            "project": project_id,
            "prefix": q.prefix_of(project_id),
            "thread": thread_id,
            "limit": _DELETE_ROWS,
        }

        is_all = thread_id is None

        async def hide(transaction: Transaction) -> int:
            await rows(transaction, q.QUEUE_IF_THERE, bound)
            # A batch whose commit's answer is lost runs again, and would count what is left.
            ((count,),) = await rows(
                transaction, q.COUNT_EVENTS if is_all else q.COUNT_EVENTS_OF_THREAD, bound
            )
            await rows(transaction, q.CLOSE_DOOR, bound)
            await rows(transaction, q.FORGET_HEADS, bound)
            return count

        count = await self._link.write(hide, timeout_seconds=self._bulk_timeout_seconds)
        for statement in (
            q.FORGET_ENTITIES,
            q.FORGET_CONTENTS,
            q.FORGET_EVENTS if is_all else q.FORGET_EVENTS_OF_THREAD,
        ):
            await self._forget(statement, bound)
        if is_all:
            await self._ask(q.FORGET_PROJECT, project_id, prefix=q.prefix_of(project_id))
        return count

    async def check(self) -> None:
        """See `StateStore`."""

        async def work(transaction: Transaction) -> None:
            await rows(transaction, q.PROBE, {"project": _PROBE_PROJECT})
            await rows(transaction, q.FORGET_PROBE, {"project": _PROBE_PROJECT})

        await self._link.write(work, timeout_seconds=self._timeout_seconds)

    async def close(self) -> None:
        """See `StateStore`."""
        await self._link.close()

    async def _ask(self, statement: str, project_id: str, **parameters: Any) -> list[list[Any]]:
        bound = {"project": project_id, **parameters}
        return await self._link.ask(statement, bound, timeout_seconds=self._timeout_seconds)

    async def _ensure_schema(self) -> None:
        async with self._schema:
            if not self._has_schema:
                await apply_ddl(self._link)
                self._has_schema = True

    async def _put_contents_ahead(self, project_id: str, contents: Sequence[list[str]]) -> None:
        """One at a time; an event that is not taken in after all leaves a text that nothing names."""
        for row in contents:

            async def work(transaction: Transaction, row: list[str] = row) -> None:
                await rows(transaction, q.QUEUE, {"project": project_id})
                await rows(transaction, q.PUT_CONTENTS, {"project": project_id, "rows": [row]})

            await self._link.write(work, timeout_seconds=self._bulk_timeout_seconds)

    async def _forget_contents(self, project_id: str) -> None:
        """Drop the contents that neither an event nor a thing of their thread names any more."""
        found = await self._ask(q.CONTENTS, project_id, prefix=q.prefix_of(project_id))
        for thread_id, keys in sorted(found):
            for some in batches(sorted(keys), _DELETE_ROWS):
                bound = {
                    "project": project_id,
                    "thread": thread_id,
                    "place": q.place_key(project_id, Place(thread_id, "artifacts")),
                    "keys": list(some),
                }

                async def work(transaction: Transaction, bound: Mapping[str, Any] = bound) -> None:
                    await rows(transaction, q.QUEUE_IF_THERE, bound)
                    await rows(transaction, q.FORGET_UNNAMED_CONTENTS, bound)

                await self._link.write(work, timeout_seconds=self._bulk_timeout_seconds)

    async def _forget(self, statement: str, bound: Mapping[str, Any]) -> None:
        async def work(transaction: Transaction) -> int:
            await rows(transaction, q.QUEUE_IF_THERE, bound)
            ((count,),) = await rows(transaction, statement, bound)
            return count

        while await self._link.write(work, timeout_seconds=self._bulk_timeout_seconds) == bound["limit"]:
            pass


def _keyed(project_id: str, places: Iterable[Place]) -> dict[str, Place]:
    return {q.place_key(project_id, place): place for place in places}


async def _apply(
    transaction: Transaction, project_id: str, records: Sequence[StateRecord], *, is_ahead: bool
) -> Applied:
    stored, states, heads = await _queue(transaction, project_id, records)
    # Folding five hundred messages takes a while, which the event loop has no time for.
    changes = await asyncio.to_thread(plan_changes, records, stored=stored, states=states)
    if not changes.rows:
        return changes.applied
    await _put_events(transaction, project_id, changes.rows, stored)
    await _put_contents(transaction, project_id, changes.rows, is_ahead=is_ahead)
    known: dict[EntityKey, EntityState | None] = dict(changes.folded)
    for key in sorted(changes.to_refold):
        held = states.get(key)
        base = None if held is None else held.base
        known[key], _ = await _fold(transaction, project_id, key, base)
    await _put_entities(transaction, project_id, known)
    await _move_heads(transaction, project_id, changes.applied.touched, heads)
    return changes.applied


async def _queue(
    transaction: Transaction, project_id: str, records: Sequence[StateRecord]
) -> tuple[dict[str, StateRecord], dict[EntityKey, EntityState], dict[Place, int]]:
    """Wait for other writers; then the events that are stored under these ids, and as `_known`."""
    keys = sorted({q.event_key(project_id, record.event_id) for record in records})
    entities = set(entities_of(records))
    asked = _Asked(project_id, entities)
    ((*known, found),) = await rows(transaction, q.QUEUE_AND_ALL, {**asked.bound(), "events": keys})
    states, heads = asked.read(*known)
    stored = {record.event_id: record for record in map(q.record_of, found)}
    # An event may have told of another thing before.
    if others := set(entities_of(stored.values())) - entities:
        more_states, more_heads = await _known(transaction, project_id, others)
        states, heads = states | more_states, heads | more_heads
    return stored, states, heads


class _Asked:
    """A question for what is stored of these things, and the versions of their places."""

    def __init__(self, project_id: str, keys: Iterable[EntityKey]) -> None:
        self._project_id = project_id
        self._named = {q.entity_key(project_id, key): key for key in keys}
        self._places = _keyed(
            project_id, (Place(key.thread_id, GROUP_OF[key.kind]) for key in self._named.values())
        )

    def bound(self) -> dict[str, Any]:
        return {"project": self._project_id, "keys": sorted(self._named), "heads": sorted(self._places)}

    def read(
        self, entities: Iterable[Sequence[Any]], heads: Iterable[Sequence[Any]]
    ) -> tuple[dict[EntityKey, EntityState], dict[Place, int]]:
        return (
            {self._named[name]: q.state_of(row) for name, *row in entities},
            {self._places[name]: version for name, version in heads},
        )


async def _known(
    transaction: Transaction, project_id: str, keys: Iterable[EntityKey]
) -> tuple[dict[EntityKey, EntityState], dict[Place, int]]:
    """What is stored of these things, and the versions of their places."""
    asked = _Asked(project_id, keys)
    ((entities, heads),) = await rows(transaction, q.ENTITIES_AND_HEADS, asked.bound())
    return asked.read(entities, heads)


async def _put_events(
    transaction: Transaction,
    project_id: str,
    records: Sequence[StateRecord],
    stored: Mapping[str, StateRecord],
) -> None:
    in_order = sorted(records, key=lambda record: q.event_key(project_id, record.event_id))
    for batch in batches([one for one in in_order if one.event_id not in stored], _FOLD_ROWS):
        bound = {"project": project_id, **q.rows_to_create(project_id, batch)}
        await rows(transaction, q.CREATE_EVENTS, bound)
    changed = [one for one in in_order if one.event_id in stored]
    if not changed:
        return
    # An event may have come as another kind before.
    keys = [q.event_key(project_id, one.event_id) for one in changed]
    await rows(transaction, q.TAKE_LABELS, {"project": project_id, "keys": keys})
    groups: defaultdict[str, list[list[Any]]] = defaultdict(list)
    for record in changed:
        label = q.SIGNAL_LABELS.get(record.kind)
        statement = q.CHANGE_EVENTS if label is None else q.CHANGE_SIGNALS[label]
        groups[statement].append(q.event_row(project_id, record))
    for statement in sorted(groups):
        for some in batches(groups[statement], _FOLD_ROWS):
            await rows(transaction, statement, {"project": project_id, "rows": some})


async def _put_contents(
    transaction: Transaction, project_id: str, records: Sequence[StateRecord], *, is_ahead: bool
) -> None:
    contents = q.content_rows(project_id, records)
    if is_ahead:
        # What went ahead was named by nothing, and who compacts may have met it since.
        keys = {"project": project_id, "keys": [key for key, *_ in contents]}
        missing = {key for (key,) in await rows(transaction, q.MISSING_CONTENTS, keys)}
        contents = [row for row in contents if row[0] in missing]
    if contents:
        await rows(transaction, q.PUT_CONTENTS, {"project": project_id, "rows": contents})


async def _put_entities(
    transaction: Transaction, project_id: str, known: Mapping[EntityKey, EntityState | None]
) -> None:
    kept = sorted(
        (q.entity_row(project_id, key, state) for key, state in known.items() if state is not None),
        key=lambda row: row[0],
    )
    lost = sorted(q.entity_key(project_id, key) for key, state in known.items() if state is None)
    if lost:
        await rows(transaction, q.DROP_ENTITIES, {"project": project_id, "keys": lost})
    for batch in batches(kept, _FOLD_ROWS):
        await rows(transaction, q.PUT_ENTITIES, {"project": project_id, "rows": batch})


async def _move_heads(
    transaction: Transaction, project_id: str, places: Iterable[Place], held: Mapping[Place, int]
) -> None:
    """The last thing before the commit: from here on readers wait for it."""
    now_seconds = time.time()
    moved = sorted(
        [q.place_key(project_id, place), *place, next_version(held.get(place, 0), now_seconds=now_seconds)]
        for place in places
    )
    await rows(transaction, q.PUT_HEADS, {"project": project_id, "rows": moved})


async def _fold(
    transaction: Transaction,
    project_id: str,
    key: EntityKey,
    base: EntityState | None,
    *,
    before: str = _AFTER_ALL,
    limit: int = _ALL_ROWS,
) -> tuple[EntityState | None, int]:
    """As `fold_anew`, of events that come from the server as they are needed; and how many they were."""
    bound = {
        "project": project_id,
        "entity": q.entity_key(project_id, key),
        "after": "" if base is None else q.position_of(base.last),
        "before": before,
        "limit": limit,
    }
    result = await transaction.run(q.EVENTS_OF_ENTITY, bound)
    state, count = base, 0
    while some := [list(record.values()) for record in await result.fetch(_FOLD_ROWS)]:
        state = await asyncio.to_thread(_fold_rows, state, some)
        count += len(some)
    if base is None or state is None:
        return state, count
    return replace(state, base=base), count


def _fold_rows(state: EntityState | None, found: Iterable[Sequence[Any]]) -> EntityState:
    return fold_on(state, [q.record_of(row) for row in found])


async def _compact(transaction: Transaction, *, project_id: str, key: EntityKey, before_us: int) -> int:
    """Forget some of the oldest events about one thing; how many, 0 where none is left to forget."""
    await rows(transaction, q.QUEUE, {"project": project_id})
    states, _ = await _known(transaction, project_id, [key])
    held = states.get(key)
    base = None if held is None else held.base
    before = q.time_position(before_us)
    folded, count = await _fold(transaction, project_id, key, base, before=before, limit=_COMPACT_ROWS)
    if folded is None:
        return 0
    base = replace(folded, base=None)
    if count:
        if held is None:
            held, _ = await _fold(transaction, project_id, key, base)
        # What all events come to is as it was: only where its memory of single ones begins has moved.
        await _put_entities(transaction, project_id, {key: replace(held or base, base=base)})
    bound = {
        "project": project_id,
        "entity": q.entity_key(project_id, key),
        "before": before,
        "last": q.position_of(base.last),
        "kept": (held or base).last.event_id,
        "limit": _COMPACT_ROWS,
    }
    ((gone,),) = await rows(transaction, q.FORGET_OLD_EVENTS, bound)
    # As a batch of events does: the last thing before the commit.
    await rows(transaction, q.CLOSE_DOOR, bound)
    return gone
