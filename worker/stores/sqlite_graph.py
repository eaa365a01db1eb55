"""Graphs in one SQLite file: the embedded store, nothing to install.

A change is one transaction, so a reader sees the graph before it or after it, whatever is killed meanwhile.
Two connections: short questions do not wait behind a graph that is being loaded or changed. Ids are compared
as bytes of UTF-8, which orders them as Python orders text.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from worker.errors import GraphConflict
from worker.graph.diff import check_change, missing_end, outside_ends
from worker.graph.model import Edge, GraphChange, GraphContents, GraphHead, Node, NodeRef
from worker.graph.store import MAX_NAMED
from worker.stores.graph_rows import (
    assembled,
    collection_paused,
    decode_properties,
    encode_properties,
    id_ends,
    own_name,
    size_bytes,
)
from worker.stores.sqlite_file import SqliteFile

SCHEMA_VERSION: Final = 1

_SCHEMA: Final = (
    """CREATE TABLE graphs (
        graph INTEGER PRIMARY KEY,
        project_id TEXT NOT NULL UNIQUE,
        graph_version INTEGER NOT NULL,
        snapshot_id TEXT NOT NULL
    )""",
    """CREATE TABLE nodes (
        node INTEGER PRIMARY KEY,
        graph INTEGER NOT NULL,
        label TEXT NOT NULL,
        id TEXT NOT NULL,
        size_bytes INTEGER NOT NULL,
        name TEXT NOT NULL,
        path TEXT NOT NULL,
        start_line INTEGER NOT NULL,
        end_line INTEGER NOT NULL,
        signature TEXT NOT NULL,
        docstring_start INTEGER NOT NULL,
        docstring_end INTEGER NOT NULL,
        language TEXT NOT NULL,
        properties TEXT NOT NULL,
        text TEXT NOT NULL,
        UNIQUE (graph, label, id)
    )""",
    # Covers the sum, so that the size of a graph is asked without reading its texts.
    "CREATE INDEX nodes_sizes ON nodes (graph, size_bytes)",
    """CREATE TABLE edges (
        graph INTEGER NOT NULL,
        source INTEGER NOT NULL,
        relation TEXT NOT NULL,
        target INTEGER NOT NULL,
        resolution TEXT NOT NULL,
        candidates INTEGER NOT NULL,
        PRIMARY KEY (graph, source, relation, target)
    ) WITHOUT ROWID""",
    "CREATE INDEX edges_targets ON edges (graph, target)",
    """CREATE TABLE facts (
        graph INTEGER NOT NULL,
        digest TEXT NOT NULL,
        fact BLOB NOT NULL,
        UNIQUE (graph, digest)
    )""",
    "CREATE TABLE probes (id INTEGER PRIMARY KEY, count INTEGER NOT NULL)",
)

_HEAD: Final = "SELECT graph, graph_version, snapshot_id FROM graphs WHERE project_id = ?"
_PROJECTS: Final = "SELECT project_id FROM graphs ORDER BY project_id LIMIT ?"
_PUT_HEAD: Final = """
    INSERT INTO graphs (project_id, graph_version, snapshot_id) VALUES (?, ?, ?)
    ON CONFLICT DO UPDATE SET graph_version = excluded.graph_version, snapshot_id = excluded.snapshot_id
    RETURNING graph
"""
_FIND_NODE: Final = "SELECT node FROM nodes WHERE graph = ? AND label = ? AND id = ?"
_NEXT_NODE: Final = "SELECT coalesce(max(node), 0) + 1 FROM nodes"
_IS_EMPTY: Final = "SELECT NOT EXISTS (SELECT 1 FROM nodes WHERE graph = ?)"
_ADD_NODE: Final = """
    INSERT INTO nodes (graph, label, id, size_bytes, name, path, start_line, end_line, signature,
        docstring_start, docstring_end, language, properties, text, node)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_PUT_NODE: Final = f"""
    {_ADD_NODE}
    ON CONFLICT (graph, label, id) DO UPDATE SET
        size_bytes = excluded.size_bytes, name = excluded.name, path = excluded.path,
        start_line = excluded.start_line, end_line = excluded.end_line, signature = excluded.signature,
        docstring_start = excluded.docstring_start, docstring_end = excluded.docstring_end,
        language = excluded.language, properties = excluded.properties, text = excluded.text
"""
_INDEX_NAMES: Final = "CREATE INDEX IF NOT EXISTS nodes_names ON nodes (graph, name)"
_FIND_NAMED: Final = "SELECT label, id, node FROM nodes WHERE graph = ? AND name = ?"
_ENDING: Final = " AND (substr(id, -length(?)) = ? OR substr(id, -length(?)) = ?)"
_GET_NODES: Final = """
    SELECT node, label, id, name, path, start_line, end_line, signature, docstring_start, docstring_end,
        language, properties, text
    FROM nodes
"""
_GET_EDGES: Final = "SELECT source, relation, target, resolution, candidates FROM edges"
_PUT_EDGE: Final = """
    INSERT INTO edges VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET resolution = excluded.resolution, candidates = excluded.candidates
"""
_PUT_FACT: Final = "INSERT INTO facts VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET fact = excluded.fact"
_SOME_FACTS: Final = """
    SELECT digest, fact FROM json_each(?2) AS wanted
    JOIN facts ON facts.graph = ?1 AND facts.digest = wanted.value
"""
_RING: Final = """
    SELECT node FROM nodes
    WHERE node IN (
        SELECT target FROM edges WHERE graph = ?1 AND source IN (SELECT value FROM json_each(?2))
        UNION
        SELECT source FROM edges WHERE graph = ?1 AND target IN (SELECT value FROM json_each(?2))
        EXCEPT
        SELECT value FROM json_each(?3)
    )
    ORDER BY label, id LIMIT ?4
"""
_PROBE: Final = "INSERT INTO probes VALUES (1, 1) ON CONFLICT DO UPDATE SET count = count + 1"


class SqliteGraphStore:
    """`GraphStore` in one file, for the workers and indexers of one host."""

    def __init__(
        self,
        path: Path,
        *,
        busy_timeout_seconds: float = 0.8,
        timeout_seconds: float = 5.0,
        bulk_busy_timeout_seconds: float = 10.0,
        bulk_timeout_seconds: float = 120.0,
    ) -> None:
        """Touch nothing yet.

        The first two bound the short questions, the others what loads, changes or forgets a whole graph:
        another process may hold the lock for as long as it writes one.
        """
        self._short = SqliteFile(
            path,
            schema=_SCHEMA,
            schema_version=SCHEMA_VERSION,
            busy_timeout_seconds=busy_timeout_seconds,
            timeout_seconds=timeout_seconds,
        )
        self._bulk = SqliteFile(
            path,
            schema=_SCHEMA,
            schema_version=SCHEMA_VERSION,
            busy_timeout_seconds=bulk_busy_timeout_seconds,
            timeout_seconds=bulk_timeout_seconds,
        )

    async def projects(self, *, max_projects: int) -> list[str]:
        """Projects that have a graph, the first of them in order of id. Raises StoreUnavailable."""

        def find(connection: sqlite3.Connection) -> list[str]:
            return [project for (project,) in connection.execute(_PROJECTS, (max_projects,))]

        return await self._short.read(find)

    async def head(self, project_id: str) -> GraphHead | None:
        """Which graph is held; None where the project was never indexed. Raises StoreUnavailable."""

        def find(connection: sqlite3.Connection) -> GraphHead | None:
            _, head = _find(connection, project_id)
            return head

        return await self._short.read(find)

    async def load(self, project_id: str) -> tuple[GraphHead, GraphContents] | None:
        """The whole graph and its head, of one moment. Raises StoreUnavailable."""

        def read(connection: sqlite3.Connection) -> tuple[GraphHead, GraphContents] | None:
            graph, head = _find(connection, project_id)
            if head is None:
                return None
            with collection_paused():
                nodes = connection.execute(f"{_GET_NODES} WHERE graph = ? ORDER BY label, id", (graph,))
                edges = connection.execute(f"{_GET_EDGES} WHERE graph = ?", (graph,))
                return head, assembled(_nodes(nodes), edges)

        return await self._bulk.read(read)

    async def size_bytes(self, project_id: str) -> int:
        """About how much text the graph holds; 0 without a graph. Raises StoreUnavailable."""

        def measure(connection: sqlite3.Connection) -> int:
            graph, _ = _find(connection, project_id)
            sizes = "SELECT coalesce(sum(size_bytes), 0) FROM nodes WHERE graph = ?"
            (total,) = connection.execute(sizes, (graph,)).fetchone()
            return total

        return await self._short.read(measure)

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

        def read(connection: sqlite3.Connection) -> tuple[GraphHead, GraphContents] | None:
            graph, head = _find(connection, project_id)
            if head is None:
                return None
            entries = _entries(connection, graph, roots, names)
            ring = [entries[ref] for ref in sorted(entries)][: max(0, max_nodes)]
            seen = list(ring)
            for _ in range(max_hops):
                if not ring or len(seen) >= max_nodes:
                    break
                bound = (graph, json.dumps(ring), json.dumps(seen), max_nodes - len(seen))
                ring = [node for (node,) in connection.execute(_RING, bound)]
                seen += ring
            chosen = (json.dumps(seen), graph)
            among = "IN (SELECT value FROM json_each(?1))"
            nodes = connection.execute(f"{_GET_NODES} WHERE node {among} AND graph = ?2", chosen)
            edges = connection.execute(
                f"{_GET_EDGES} WHERE graph = ?2 AND source {among} AND target {among}", chosen
            )
            return head, assembled(_nodes(nodes), edges)

        return await self._short.read(read)

    async def load_facts(self, project_id: str, keys: Collection[str] | None = None) -> Mapping[str, bytes]:
        """What was kept beside the graph: all, or what is there under `keys`. Raises StoreUnavailable."""

        def read(connection: sqlite3.Connection) -> dict[str, bytes]:
            graph, _ = _find(connection, project_id)
            if keys is None:
                return dict(connection.execute("SELECT digest, fact FROM facts WHERE graph = ?", (graph,)))
            bound = (graph, json.dumps(sorted(keys)))
            return dict(connection.execute(_SOME_FACTS, bound))

        return await self._bulk.read(read)

    async def apply(
        self, project_id: str, change: GraphChange, *, snapshot_id: str, expected_version: int
    ) -> GraphHead:
        """Make the change in one transaction and give the new head.

        Raises GraphConflict where the head is no longer `expected_version`, ValueError for a change that
        the canon refuses or an edge without its nodes, StoreUnavailable; nothing is changed then.
        """

        def prepare() -> list[NodeRef]:
            with collection_paused():
                check_change(change)
                return outside_ends(change)

        def write(connection: sqlite3.Connection, outside: list[NodeRef]) -> GraphHead:
            graph, held = _find(connection, project_id)
            found_version = held.graph_version if held else 0
            if found_version != expected_version:
                raise GraphConflict(
                    project_id=project_id, expected_version=expected_version, found_version=found_version
                )
            head = GraphHead(graph_version=expected_version + 1, snapshot_id=snapshot_id)
            (graph,) = connection.execute(_PUT_HEAD, (project_id, head.graph_version, snapshot_id)).fetchone()
            # Here, so that a file that was made before there was this index comes to it.
            connection.execute(_INDEX_NAMES)
            with collection_paused():
                _Writer(connection, graph).write(change, outside)
            return head

        return await self._bulk.write(write, prepare=prepare)

    async def purge(self, project_id: str) -> int:
        """Forget the project's graph and facts; the number of nodes that were there. Raises StoreUnavailable.

        One transaction: what was forgotten is never seen again, not even by halves.
        """

        def forget(connection: sqlite3.Connection, _: None) -> int:
            graph, _head = _find(connection, project_id)
            connection.execute("DELETE FROM edges WHERE graph = ?", (graph,))
            connection.execute("DELETE FROM facts WHERE graph = ?", (graph,))
            connection.execute("DELETE FROM graphs WHERE graph = ?", (graph,))
            return connection.execute("DELETE FROM nodes WHERE graph = ?", (graph,)).rowcount

        return await self._bulk.write(forget)

    async def check(self) -> None:
        """Return when a write was committed. Raises StoreUnavailable."""
        await self._short.write(lambda connection, _: connection.execute(_PROBE).rowcount)

    async def close(self) -> None:
        """Finish what waits, close the file, end the threads. Idempotent."""
        await self._short.close()
        await self._bulk.close()


class _Writer:
    """Writes one change into one graph, within the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection, graph: int) -> None:
        self._connection = connection
        self._graph = graph
        self._numbers: dict[NodeRef, int] = {}

    def write(self, change: GraphChange, outside: Iterable[NodeRef]) -> None:
        """Nodes and edges go first, then come the new ones; then the facts."""
        graph, execute_many = self._graph, self._connection.executemany
        (is_fresh,) = self._connection.execute(_IS_EMPTY, (graph,)).fetchone()
        self._remove_nodes(change.removed)
        execute_many(
            "DELETE FROM edges WHERE graph = ? AND source = ? AND relation = ? AND target = ?",
            [
                (graph, source, edge.relation, target)
                for edge in change.removed_edges
                if (source := self._number(edge.source)) and (target := self._number(edge.target))
            ],
        )
        for ref in outside:
            if self._number(ref) is None:
                raise ValueError(missing_end(ref))
        self._put_nodes(change.upserted, is_fresh=is_fresh)
        execute_many(_PUT_EDGE, self._edge_rows(sorted(change.added_edges)))
        execute_many(
            "DELETE FROM facts WHERE graph = ? AND digest = ?",
            [(graph, digest) for digest in change.removed_facts],
        )
        execute_many(_PUT_FACT, [(graph, digest, fact) for digest, fact in change.added_facts])

    def _remove_nodes(self, refs: Iterable[NodeRef]) -> None:
        numbers = _find_nodes(self._connection, self._graph, refs)
        rows = [(self._graph, number) for number in numbers]
        self._connection.executemany("DELETE FROM edges WHERE graph = ? AND source = ?", rows)
        self._connection.executemany("DELETE FROM edges WHERE graph = ? AND target = ?", rows)
        self._connection.executemany("DELETE FROM nodes WHERE graph = ? AND node = ?", rows)

    def _put_nodes(self, nodes: Iterable[Node], *, is_fresh: bool) -> None:
        """In the order of refs, so that a whole graph is read back in its own order."""
        (first,) = self._connection.execute(_NEXT_NODE).fetchone()
        ordered = sorted([(node.ref, node) for node in nodes], key=_first)
        rows = ((*_row(self._graph, node), number) for number, (_, node) in enumerate(ordered, start=first))
        self._connection.executemany(_ADD_NODE if is_fresh else _PUT_NODE, rows)
        if is_fresh:
            # Nothing was there, so each has the number that it was given, which need not be asked for.
            self._numbers.update((ref, number) for number, (ref, _) in enumerate(ordered, start=first))

    def _edge_rows(self, edges: Sequence[Edge]) -> list[tuple[int, int | None, str, int | None, str, int]]:
        known, number, graph = self._numbers, self._number, self._graph
        return [
            (
                graph,
                known.get(source) or number(source),
                relation,
                known.get(target) or number(target),
                resolution,
                candidates,
            )
            for source, relation, target, resolution, candidates in edges
        ]

    def _number(self, ref: NodeRef) -> int | None:
        found = self._numbers.get(ref)
        if found is None:
            row = self._connection.execute(_FIND_NODE, (self._graph, *ref)).fetchone()
            if row is None:
                return None
            (found,) = row
            self._numbers[ref] = found
        return found


def _first(pair: tuple[NodeRef, Node]) -> NodeRef:
    return pair[0]


def _find(connection: sqlite3.Connection, project_id: str) -> tuple[int, GraphHead | None]:
    """The graph's number and head; number 0, which no graph has, where there is none."""
    row = connection.execute(_HEAD, (project_id,)).fetchone()
    if row is None:
        return 0, None
    graph, graph_version, snapshot_id = row
    return graph, GraphHead(graph_version=graph_version, snapshot_id=snapshot_id)


def _find_nodes(connection: sqlite3.Connection, graph: int, refs: Iterable[NodeRef]) -> list[int]:
    """The numbers of the nodes that exist, in the order given."""
    rows = (connection.execute(_FIND_NODE, (graph, *ref)).fetchone() for ref in refs)
    return [row[0] for row in rows if row is not None]


def _entries(
    connection: sqlite3.Connection, graph: int, roots: Iterable[NodeRef], names: Iterable[str]
) -> dict[NodeRef, int]:
    """The roots that exist and the nodes that bear one of the names, with their numbers."""
    entries: dict[NodeRef, int] = {}
    for ref in set(roots):
        row = connection.execute(_FIND_NODE, (graph, *ref)).fetchone()
        if row is not None:
            (entries[ref],) = row
    for name in filter(own_name, set(names)):
        ends = id_ends(name)
        statement = _FIND_NAMED + (_ENDING if ends else "") + " LIMIT ?"
        bound = (graph, own_name(name), *(text for end in ends for text in (end, end)), MAX_NAMED + 1)
        found = connection.execute(statement, bound).fetchall()
        if len(found) <= MAX_NAMED:
            entries |= {NodeRef(label, node_id): number for label, node_id, number in found}
    return entries


def _row(graph: int, node: Node) -> tuple[Any, ...]:
    return (
        graph,
        node.label,
        node.id,
        size_bytes(node),
        node.name,
        node.path,
        node.start_line,
        node.end_line,
        node.signature,
        *node.docstring_span,
        node.language,
        encode_properties(node.properties),
        node.text,
    )


def _nodes(rows: Iterable[tuple[Any, ...]]) -> dict[int, Node]:
    return {
        number: Node(
            label=label,
            id=node_id,
            name=name,
            path=path,
            start_line=start_line,
            end_line=end_line,
            signature=signature,
            docstring_span=(docstring_start, docstring_end),
            language=language,
            properties=decode_properties(properties),
            text=text,
        )
        for (
            number,
            label,
            node_id,
            name,
            path,
            start_line,
            end_line,
            signature,
            docstring_start,
            docstring_end,
            language,
            properties,
            text,
        ) in rows
    }
