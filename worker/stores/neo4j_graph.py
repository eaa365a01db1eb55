"""Graphs in Neo4j: nodes and relationships that a person can query, kept as whole as the embedded store's.

    MATCH (f:Function {project: $project})-[:CALLS]->(g) RETURN f.id, g.id

Beside its canonical label each node has `GraphNode`, whose `ref` names it in the whole store. One `GraphHead`
a project says which graph is held.

**Why readers never see half a change.** Neo4j reads what is committed, row by row, even within a transaction,
and a commit becomes visible piece by piece. So a reader asks for the head before and after, each time by
taking the head's lock for a moment, which waits for a commit under way; a different head means to read again,
at last while holding the lock. A writer takes that lock as the last thing before it commits.

**Why large changes hide the graph.** A transaction lives in the server's memory: 512 MB of heap end below
50,000 functions. A change of more than `transaction_rows` therefore first marks the head as `changing`, and
from then until the last of its transactions whoever asks for the graph meets GraphChanging. A writer that
dies meanwhile leaves it so; the next one starts from version 0 and clears up before, all but the facts: what
they tell of files that nobody sends again is told nowhere else. Of two such writers the later one takes over,
and the earlier one meets GraphConflict at its next step. A head that is `changing` without a version has no
graph behind it: it is the project's first, or is being purged.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from worker.errors import GraphConflict
from worker.graph.diff import check_change, missing_end, outside_ends
from worker.graph.model import GraphChange, GraphContents, GraphHead, NodeRef
from worker.graph.store import GraphChanging
from worker.stores.neo4j_link import STORE, Neo4jLink, Transaction, rows
from worker.stores.neo4j_reads import read_contents, read_facts, read_neighbourhood, read_some_facts
from worker.stores.neo4j_schema import apply_ddl
from worker.stores.neo4j_writes import (
    Ends,
    batches,
    find_all_ends,
    is_empty,
    put_edges,
    put_facts,
    put_nodes,
    remove_edges,
    remove_facts,
    remove_nodes,
)

_DELETE_ROWS: Final = 2_000
_HURRIED_READS: Final = 2
_HURRIED_ROWS: Final = 300
"""A first change of so many rows creates what it writes without looking for it. For fewer, the server would
spend more on planning a second statement for each label than on the looks."""

_PROBE_PROJECT: Final = ":probe"
"""No project has this id."""

_HEAD_FIELDS: Final = "h.graph_version, h.snapshot_id, h.changing, h.change_id"
_HEAD: Final = f"MATCH (h:GraphHead {{project: $project}}) RETURN {_HEAD_FIELDS}"
_PROJECTS: Final = """
    MATCH (h:GraphHead) WHERE h.changing IS NULL
    RETURN h.project ORDER BY h.project LIMIT $limit
"""
# Setting what is already so takes the lock and writes nothing: it costs what a read costs. Setting a version
# to itself instead would put back the one that was read before the lock was there.
_LOCK: Final = f"MATCH (h:GraphHead {{project: $project}}) SET h.lock = 0 RETURN {_HEAD_FIELDS}"
_CLAIM: Final = f"MERGE (h:GraphHead {{project: $project}}) SET h.lock = 0 RETURN {_HEAD_FIELDS}"
_MARK: Final = """
    MATCH (h:GraphHead {project: $project})
    SET h.changing = $change_id
"""
_MARK_PURGED: Final = f"{_MARK} REMOVE h.graph_version, h.snapshot_id"
_FINISH: Final = """
    MATCH (h:GraphHead {project: $project})
    SET h.graph_version = $graph_version, h.snapshot_id = $snapshot_id, h.change_id = $change_id,
        h.size_bytes = CASE WHEN $is_fresh THEN 0 ELSE coalesce(h.size_bytes, 0) END + $grown_bytes
    REMOVE h.changing
"""
_SIZE: Final = """
    MATCH (h:GraphHead {project: $project}) WHERE h.changing IS NULL
    RETURN coalesce(h.size_bytes, 0)
"""
_FORGET_HEAD: Final = "MATCH (h:GraphHead {project: $project}) DELETE h"
_FORGET_NODES: Final = """
    MATCH (n:GraphNode) WHERE n.ref > $project + ':' AND n.ref < $project + ';'
    WITH n LIMIT $limit
    DETACH DELETE n
    RETURN count(*)
"""
_FORGET_FACTS: Final = """
    MATCH (f:FileFacts) WHERE f.key > $project + ':' AND f.key < $project + ';'
    WITH f LIMIT $limit
    DELETE f
    RETURN count(*)
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Head:
    """The head as it is stored."""

    graph_version: int | None
    snapshot_id: str | None
    changing: str | None
    change_id: str | None

    @property
    def is_broken_off(self) -> bool:
        """Whether a large change of a graph is under way, or was left by its writer."""
        return self.changing is not None and self.graph_version is not None

    @property
    def public(self) -> GraphHead | None:
        """What readers may know. Raises GraphChanging while a large change is under way."""
        if self.is_broken_off:
            raise GraphChanging(STORE, "the project's graph is being changed")
        if self.graph_version is None or self.snapshot_id is None:
            return None
        return GraphHead(graph_version=self.graph_version, snapshot_id=self.snapshot_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Application:
    """One call of `apply`. `change_id` tells its own commit, of which no word came, from another's."""

    project_id: str
    change: GraphChange
    outside: list[NodeRef]
    expected_version: int
    head: GraphHead
    change_id: str

    def is_done(self, held: _Head | None) -> bool:
        """Whether it was committed already. Raises GraphConflict where the graph is another by now."""
        if held is not None and held.changing is None and held.change_id == self.change_id:
            return True
        if _version(held) != self.expected_version:
            raise self.conflict(held)
        return False

    def check_claim(self, held: _Head | None) -> None:
        """Raises GraphConflict where this change is no longer the one under way."""
        if held is None or held.changing != self.change_id:
            raise self.conflict(held)

    def conflict(self, held: _Head | None) -> GraphConflict:
        """Somebody else was faster."""
        return GraphConflict(
            project_id=self.project_id, expected_version=self.expected_version, found_version=_version(held)
        )

    @property
    def is_hurried(self) -> bool:
        """Whether it is worth while to create all, should nothing be there."""
        return self.expected_version == 0 and _count(self.change) >= _HURRIED_ROWS

    async def find_outside(self, transaction: Transaction) -> Ends:
        """The nodes that edges need beside those of the change. Raises ValueError where one is missing."""
        if self.outside and self.expected_version == 0:
            raise ValueError(missing_end(self.outside[0]))
        return await find_all_ends(transaction, self.project_id, self.outside)


class Neo4jGraphStore:
    """`GraphStore` in one Neo4j database, which workers and indexers on several hosts share."""

    def __init__(
        self,
        link: Neo4jLink,
        *,
        timeout_seconds: float = 2.0,
        bulk_timeout_seconds: float = 120.0,
        transaction_rows: int = 5_000,
    ) -> None:
        """Touch nothing yet; `link` is the store's own from now on, and closed with it.

        The first timeout is for the short questions, the second for each transaction that loads or changes
        a graph. Above `transaction_rows` nodes, edges and facts a change takes several transactions.
        """
        self._link = link
        self._timeout_seconds = timeout_seconds
        self._bulk_timeout_seconds = bulk_timeout_seconds
        self._transaction_rows = transaction_rows
        self._schema = asyncio.Lock()
        self._has_schema = False

    async def projects(self, *, max_projects: int) -> list[str]:
        """Projects that have a graph, the first of them in order of id. Raises StoreUnavailable."""

        async def work(transaction: Transaction) -> list[str]:
            return [row[0] for row in await rows(transaction, _PROJECTS, {"limit": max_projects})]

        return await self._link.read(work, timeout_seconds=self._timeout_seconds)

    async def head(self, project_id: str) -> GraphHead | None:
        """Which graph is held; None without one. Raises GraphChanging and StoreUnavailable."""

        async def work(transaction: Transaction) -> GraphHead | None:
            held = await _read_head(transaction, project_id, _HEAD)
            return held.public if held else None

        return await self._link.read(work, timeout_seconds=self._timeout_seconds)

    async def load(self, project_id: str) -> tuple[GraphHead, GraphContents] | None:
        """The whole graph and its head, of one moment. Raises GraphChanging and StoreUnavailable."""
        return await self._read_whole(
            project_id,
            lambda transaction: read_contents(transaction, project_id),
            timeout_seconds=self._bulk_timeout_seconds,
        )

    async def size_bytes(self, project_id: str) -> int:
        """About how much text the graph holds; 0 without a graph. Raises StoreUnavailable."""

        async def work(transaction: Transaction) -> int:
            found = await rows(transaction, _SIZE, {"project": project_id})
            return found[0][0] if found else 0

        return await self._link.read(work, timeout_seconds=self._timeout_seconds)

    async def neighbourhood(
        self,
        project_id: str,
        roots: Sequence[NodeRef],
        *,
        names: Sequence[str] = (),
        max_hops: int,
        max_nodes: int,
    ) -> tuple[GraphHead, GraphContents] | None:
        """The roots that exist and what lies around them, as the protocol says. Raises StoreUnavailable."""
        return await self._read_whole(
            project_id,
            lambda transaction: read_neighbourhood(
                transaction, project_id, roots, names=names, max_hops=max_hops, max_nodes=max_nodes
            ),
            timeout_seconds=self._timeout_seconds,
        )

    async def load_facts(self, project_id: str, keys: Collection[str] | None = None) -> Mapping[str, bytes]:
        """What was kept beside the graph: all, or what is there under `keys`. Raises StoreUnavailable.

        Also of one that is being changed, but nothing of a first one or of what a purge has not reached yet.
        """

        async def work(transaction: Transaction) -> Mapping[str, bytes]:
            held = await _read_head(transaction, project_id, _HEAD)
            if held is None or held.graph_version is None:
                return {}
            if keys is None:
                return await read_facts(transaction, project_id)
            return await read_some_facts(transaction, project_id, keys)

        return await self._link.read(work, timeout_seconds=self._bulk_timeout_seconds)

    async def apply(
        self, project_id: str, change: GraphChange, *, snapshot_id: str, expected_version: int
    ) -> GraphHead:
        """Make the change and give the new head.

        Raises GraphConflict where the head is no longer `expected_version`, ValueError for a change that
        the canon refuses or an edge without its nodes; nothing is changed then. Raises StoreUnavailable; a
        change of several transactions that ends so leaves the project with its facts and without a graph.
        """
        check_change(change)
        application = _Application(
            project_id=project_id,
            change=change,
            outside=outside_ends(change),
            expected_version=expected_version,
            head=GraphHead(graph_version=expected_version + 1, snapshot_id=snapshot_id),
            change_id=uuid.uuid4().hex,
        )
        await self._ensure_schema()
        if _count(change) > self._transaction_rows or not await self._apply_at_once(application):
            return await self._apply_in_steps(application)
        return application.head

    async def purge(self, project_id: str) -> int:
        """Forget the project's graph and facts, in batches; the number of nodes that were there.

        From its first transaction on there is no graph for readers. Stops where a writer begins a new one.
        """
        change_id = uuid.uuid4().hex

        async def begin(transaction: Transaction) -> bool:
            bound = {"project": project_id, "change_id": change_id}
            if await _read_head(transaction, project_id, _LOCK) is None:
                return False
            await rows(transaction, _MARK_PURGED, bound)
            return True

        if not await self._write(begin):
            return 0
        removed = await self._forget(project_id, change_id)
        if removed is None:
            return 0

        async def end(transaction: Transaction) -> None:
            held = await _read_head(transaction, project_id, _LOCK)
            if held is not None and held.changing == change_id:
                await rows(transaction, _FORGET_HEAD, {"project": project_id})

        await self._write(end)
        return removed

    async def check(self) -> None:
        """Return when a write was committed. Raises StoreUnavailable."""

        async def work(transaction: Transaction) -> None:
            await rows(transaction, _CLAIM, {"project": _PROBE_PROJECT})
            await rows(transaction, _FORGET_HEAD, {"project": _PROBE_PROJECT})

        await self._link.write(work, timeout_seconds=self._timeout_seconds)

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._link.close()

    # --- Reading ---------------------------------------------------------------------------------------

    async def _read_whole(
        self, project_id: str, read: Callable[[Transaction], Awaitable[T]], *, timeout_seconds: float
    ) -> tuple[GraphHead, T] | None:
        for _ in range(_HURRIED_READS):
            before = await self._settled_head(project_id, timeout_seconds)
            if before is None or before.public is None:
                return None
            value = await self._link.read(read, timeout_seconds=timeout_seconds)
            if await self._settled_head(project_id, timeout_seconds) == before:
                return before.public, value

        async def work(transaction: Transaction) -> tuple[GraphHead, T] | None:
            held = await _read_head(transaction, project_id, _LOCK)
            head = held.public if held is not None else None
            return None if head is None else (head, await read(transaction))

        return await self._link.write(work, timeout_seconds=timeout_seconds)

    async def _settled_head(self, project_id: str, timeout_seconds: float) -> _Head | None:
        """The head once no commit is under way."""
        return await self._link.write(
            lambda transaction: _read_head(transaction, project_id, _LOCK), timeout_seconds=timeout_seconds
        )

    # --- Writing ---------------------------------------------------------------------------------------

    async def _write(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        return await self._link.write(work, timeout_seconds=self._bulk_timeout_seconds)

    async def _ensure_schema(self) -> None:
        async with self._schema:
            if not self._has_schema:
                await apply_ddl(self._link)
                self._has_schema = True

    async def _apply_at_once(self, application: _Application) -> bool:
        """One transaction. False, with nothing changed, where there is something to clear up before."""
        project_id = application.project_id
        is_first = application.expected_version == 0

        async def work(transaction: Transaction) -> bool:
            # Nobody reads what does not exist yet, so the first change keeps others off from its beginning.
            held = await _read_head(transaction, project_id, _CLAIM if is_first else _HEAD)
            if application.is_done(held):
                return True
            if held is not None and held.changing is not None:
                return False
            try:
                ends = await application.find_outside(transaction)
            except ValueError:
                # Perhaps it was there a moment ago, and the change is for a graph that is no more.
                application.is_done(await _read_head(transaction, project_id, _LOCK))
                raise
            grown_bytes = await _write_part(
                transaction,
                project_id,
                application.change,
                ends,
                is_fresh=application.is_hurried and await is_empty(transaction, project_id),
            )
            if not is_first:
                application.is_done(await _read_head(transaction, project_id, _LOCK))
            await _finish(transaction, application, grown_bytes)
            return True

        return await self._write(work)

    async def _apply_in_steps(self, application: _Application) -> GraphHead:
        """Several transactions, between which nobody sees a graph."""
        project_id, change = application.project_id, application.change
        broken_off: int | None = None

        async def begin(transaction: Transaction) -> Ends:
            nonlocal broken_off
            held = await _read_head(transaction, project_id, _CLAIM)
            if held is None or held.changing != application.change_id:
                application.is_done(held)
                broken_off = held.graph_version if held is not None and held.is_broken_off else None
            ends = await application.find_outside(transaction)
            bound = {"project": project_id, "change_id": application.change_id}
            await rows(transaction, _MARK, bound)
            return ends

        ends = await self._write(begin)
        if not application.expected_version:
            statements = (_FORGET_NODES, _FORGET_FACTS) if broken_off is None else (_FORGET_NODES,)
            if await self._forget(project_id, application.change_id, statements) is None:
                raise application.conflict(None)
        if broken_off is not None:
            # Who has seen that version may ask for it or hold it: what comes after is newer.
            application = replace(application, head=replace(application.head, graph_version=broken_off + 1))
        grown_bytes = 0
        for part in _parts(change, self._transaction_rows):
            # The first change of a project begins with nothing, and the claim keeps all others off.
            is_fresh = application.is_hurried and not (broken_off is not None and part.added_facts)
            grown_bytes += await self._step(application, part, ends, is_fresh=is_fresh)

        async def end(transaction: Transaction) -> None:
            held = await _read_head(transaction, project_id, _LOCK)
            if held is not None and held.change_id == application.change_id:
                return
            application.check_claim(held)
            await _finish(transaction, application, grown_bytes)

        await self._write(end)
        return application.head

    async def _step(self, application: _Application, part: GraphChange, ends: Ends, *, is_fresh: bool) -> int:
        async def work(transaction: Transaction) -> int:
            nonlocal is_fresh
            held = await _read_head(transaction, application.project_id, _LOCK)
            application.check_claim(held)
            # Should this run twice, nobody knows whether the first commit succeeded.
            is_first_run, is_fresh = is_fresh, False
            return await _write_part(transaction, application.project_id, part, ends, is_fresh=is_first_run)

        return await self._write(work)

    async def _forget(
        self, project_id: str, change_id: str, statements: Sequence[str] = (_FORGET_NODES, _FORGET_FACTS)
    ) -> int | None:
        """Remove everything but the head; how many nodes, or None where another change took over."""
        removed = 0
        for statement in statements:
            count = _DELETE_ROWS
            while count == _DELETE_ROWS:

                async def work(transaction: Transaction, statement: str = statement) -> int | None:
                    held = await _read_head(transaction, project_id, _LOCK)
                    if held is None or held.changing != change_id:
                        return None
                    bound = {"project": project_id, "limit": _DELETE_ROWS}
                    ((deleted,),) = await rows(transaction, statement, bound)
                    return deleted

                count = await self._write(work)
                if count is None:
                    return None
                removed += count if statement == _FORGET_NODES else 0
        return removed


def _version(held: _Head | None) -> int:
    if held is None or held.changing is not None:
        return 0
    return held.graph_version or 0


async def _read_head(transaction: Transaction, project_id: str, statement: str) -> _Head | None:
    found = await rows(transaction, statement, {"project": project_id})
    return _Head(*found[0]) if found else None


async def _write_part(
    transaction: Transaction, project_id: str, part: GraphChange, ends: Ends, *, is_fresh: bool
) -> int:
    """Nodes and edges go first, then come the new ones; then the facts. By how many bytes the graph grew."""
    shrunk_bytes = await remove_nodes(transaction, project_id, part.removed)
    await remove_edges(transaction, project_id, part.removed_edges)
    grown_bytes = await put_nodes(transaction, project_id, part.upserted, ends, is_fresh=is_fresh)
    await put_edges(transaction, part.added_edges, ends, is_fresh=is_fresh)
    await remove_facts(transaction, project_id, part.removed_facts)
    await put_facts(transaction, project_id, part.added_facts, is_fresh=is_fresh)
    return grown_bytes - shrunk_bytes


async def _finish(transaction: Transaction, application: _Application, grown_bytes: int) -> None:
    bound = {
        "project": application.project_id,
        "graph_version": application.head.graph_version,
        "snapshot_id": application.head.snapshot_id,
        "change_id": application.change_id,
        "is_fresh": application.expected_version == 0,
        "grown_bytes": grown_bytes,
    }
    await rows(transaction, _FINISH, bound)


def _count(change: GraphChange) -> int:
    nodes = len(change.upserted) + len(change.removed)
    edges = len(change.added_edges) + len(change.removed_edges)
    return nodes + edges + len(change.added_facts) + len(change.removed_facts)


def _parts(change: GraphChange, size: int) -> list[GraphChange]:
    """The change in parts that can follow each other, none larger than `size`.

    Facts are removed last: as long as what replaces them is not there, whoever takes over needs them.
    """
    kept = {key for key, _ in change.added_facts}
    removed_facts = [key for key in change.removed_facts if key not in kept]
    return [
        *(GraphChange(removed=tuple(batch)) for batch in batches(change.removed, size)),
        *(GraphChange(removed_edges=tuple(batch)) for batch in batches(change.removed_edges, size)),
        *(GraphChange(upserted=tuple(batch)) for batch in batches(change.upserted, size)),
        *(GraphChange(added_edges=tuple(batch)) for batch in batches(change.added_edges, 10 * size)),
        *(GraphChange(added_facts=tuple(batch)) for batch in batches(change.added_facts, size)),
        *(GraphChange(removed_facts=tuple(batch)) for batch in batches(removed_facts, size)),
    ]
