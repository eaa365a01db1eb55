"""The statements that change a graph in Neo4j, one per label and relation of the canon, and what runs them.

Labels and relations come from the canon's table; everything else is a parameter. Rows go in batches and in
sorted order, so that two writers take their locks in the same order.

There are two of each that adds something. One merges: it looks up what may be there, and may run twice. The
other creates, for a project that is known to be empty within the same transaction, or under the same claim of
a change of several: it looks up nothing, and is for the first run of a step alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from schemas.graph import LABELS, RELATIONS, NodeLabel, Relation, store_key
from worker.graph.diff import missing_end
from worker.graph.model import Edge, Node, NodeRef, Resolution
from worker.stores.neo4j_link import Transaction, rows
from worker.stores.neo4j_nodes import PROPERTIES, REST, encode_node, ref_of

_BATCH_ROWS: Final = 5_000
_BATCH_EDGES: Final = 20_000

T = TypeVar("T")
Ends = dict[NodeRef, int]
"""The server's own number of each node. They are for the change at hand: it gives them out again later."""

# The numbers are read with id(): elementId() would make forty characters of each, ten times the bytes on the
# wire for a graph's edges. It is there in all of Neo4j 5.
_MERGE_NODES: Final[Mapping[NodeLabel, str]] = {
    label: f"""
        UNWIND range(0, size($rows) - 1) AS i
        WITH i, $rows[i] AS row
        MERGE (n:GraphNode {{ref: row[0]}})
        WITH i, row, n, coalesce(n.size_bytes, 0) AS old_bytes
        SET n = {PROPERTIES}
        SET n += {REST}, n:{label}
        RETURN collect([i, id(n)]), sum(n.size_bytes - old_bytes)
    """
    for label in LABELS
}
_CREATE_NODES: Final[Mapping[NodeLabel, str]] = {
    label: f"""
        UNWIND range(0, size($rows) - 1) AS i
        WITH i, $rows[i] AS row
        CREATE (n:GraphNode:{label} {PROPERTIES})
        SET n += {REST}
        RETURN collect([i, id(n)]), sum(n.size_bytes)
    """
    for label in LABELS
}
# An exact edge, the only one of its kind, says nothing of itself: of a graph's edges nine in ten are.
_MERGE_EDGES: Final[Mapping[Relation, str]] = {
    relation: f"""
        UNWIND $pairs AS pair
        MATCH (s) WHERE id(s) = pair[0]
        MATCH (t) WHERE id(t) = pair[1]
        MERGE (s)-[r:{relation}]->(t)
        SET r.resolution = $properties.resolution, r.candidates = $properties.candidates
    """
    for relation in RELATIONS
}
_CREATE_EDGES: Final[Mapping[Relation, str]] = {
    relation: f"""
        UNWIND $pairs AS pair
        MATCH (s) WHERE id(s) = pair[0]
        MATCH (t) WHERE id(t) = pair[1]
        CREATE (s)-[:{relation} $properties]->(t)
    """
    for relation in RELATIONS
}
_REMOVE_EDGES: Final[Mapping[Relation, str]] = {
    relation: f"""
        UNWIND $pairs AS pair
        MATCH (s:GraphNode {{ref: pair[0]}})-[r:{relation}]->(t:GraphNode {{ref: pair[1]}})
        DELETE r
    """
    for relation in RELATIONS
}
_REMOVE_NODES: Final = """
    UNWIND $refs AS ref
    MATCH (n:GraphNode {ref: ref})
    WITH n, n.size_bytes AS old_bytes
    DETACH DELETE n
    RETURN sum(old_bytes)
"""
_FIND_NODES: Final = """
    UNWIND range(0, size($refs) - 1) AS i
    MATCH (n:GraphNode {ref: $refs[i]})
    RETURN collect([i, id(n)])
"""
_MERGE_FACTS: Final = """
    UNWIND $rows AS row
    MERGE (f:FileFacts {key: row[0]})
    SET f = {key: row[0], project: $project, digest: row[1], data: row[2]}
"""
_CREATE_FACTS: Final = """
    UNWIND $rows AS row
    CREATE (:FileFacts {key: row[0], project: $project, digest: row[1], data: row[2]})
"""
_FIND_ANY: Final = """
    MATCH (n:GraphNode) WHERE n.ref > $project + ':' AND n.ref < $project + ';'
    RETURN 1 LIMIT 1
"""
_FIND_ANY_FACT: Final = """
    MATCH (f:FileFacts) WHERE f.key > $project + ':' AND f.key < $project + ';'
    RETURN 1 LIMIT 1
"""
_REMOVE_FACTS: Final = """
    UNWIND $keys AS key
    MATCH (f:FileFacts {key: key})
    DELETE f
"""


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in order, at most `size` at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


async def find_ends(transaction: Transaction, project_id: str, refs: Sequence[NodeRef]) -> Ends:
    """The numbers of the nodes that exist."""
    found: Ends = {}
    for batch in batches(refs, _BATCH_EDGES):
        bound = {"refs": [ref_of(project_id, ref) for ref in batch]}
        ((pairs,),) = await rows(transaction, _FIND_NODES, bound)
        numbers: list[list[int]] = pairs
        for index, number in numbers:
            found[batch[index]] = number
    return found


async def find_all_ends(transaction: Transaction, project_id: str, refs: Sequence[NodeRef]) -> Ends:
    """The numbers of the nodes. Raises ValueError where one does not exist."""
    found = await find_ends(transaction, project_id, refs)
    for ref in refs:
        if ref not in found:
            raise ValueError(missing_end(ref))
    return found


async def is_empty(transaction: Transaction, project_id: str) -> bool:
    """Whether the store holds no node and no fact of the project."""
    bound = {"project": project_id}
    return not (await rows(transaction, _FIND_ANY, bound) or await rows(transaction, _FIND_ANY_FACT, bound))


async def put_nodes(
    transaction: Transaction, project_id: str, nodes: Iterable[Node], ends: Ends, *, is_fresh: bool
) -> int:
    """Write the nodes and add their numbers to `ends`; by how many bytes the graph grew.

    `is_fresh` where none of them is there yet.
    """
    statements = _CREATE_NODES if is_fresh else _MERGE_NODES
    by_label: defaultdict[NodeLabel, list[Node]] = defaultdict(list)
    for node in sorted(nodes, key=lambda node: node.ref):
        by_label[node.label].append(node)
    grown_bytes = 0
    for label, group in by_label.items():
        for batch in batches(group, _BATCH_ROWS):
            bound = {"rows": [encode_node(project_id, node) for node in batch], "project": project_id}
            ((pairs, batch_bytes),) = await rows(transaction, statements[label], bound)
            numbers: list[list[int]] = pairs
            for index, number in numbers:
                ends[batch[index].ref] = number
            grown_bytes += batch_bytes
    return grown_bytes


async def put_edges(transaction: Transaction, edges: Iterable[Edge], ends: Ends, *, is_fresh: bool) -> None:
    """Write the edges, both ends of each being in `ends`; `is_fresh` where none of them is there yet."""
    statements = _CREATE_EDGES if is_fresh else _MERGE_EDGES
    groups: defaultdict[tuple[Relation, Resolution, int], list[list[int]]] = defaultdict(list)
    for edge in edges:
        group = groups[edge.relation, edge.resolution, edge.candidates]
        group.append([ends[edge.source], ends[edge.target]])
    for relation, resolution, candidates in sorted(groups):
        properties: dict[str, Any] = {} if resolution == "exact" else {"resolution": resolution}
        if candidates != 1:
            properties["candidates"] = candidates
        for batch in batches(sorted(groups[relation, resolution, candidates]), _BATCH_EDGES):
            await rows(transaction, statements[relation], {"pairs": batch, "properties": properties})


async def remove_nodes(transaction: Transaction, project_id: str, refs: Iterable[NodeRef]) -> int:
    """Remove the nodes that exist, with all their edges; by how many bytes the graph shrank."""
    names = sorted(ref_of(project_id, ref) for ref in refs)
    shrunk_bytes = 0
    for batch in batches(names, _BATCH_ROWS):
        ((batch_bytes,),) = await rows(transaction, _REMOVE_NODES, {"refs": batch})
        shrunk_bytes += batch_bytes
    return shrunk_bytes


async def remove_edges(transaction: Transaction, project_id: str, edges: Iterable[Edge]) -> None:
    """Remove the edges that exist."""
    groups: defaultdict[Relation, list[list[str]]] = defaultdict(list)
    for edge in edges:
        pair = [ref_of(project_id, edge.source), ref_of(project_id, edge.target)]
        groups[edge.relation].append(pair)
    for relation in sorted(groups):
        for batch in batches(sorted(groups[relation]), _BATCH_EDGES):
            await rows(transaction, _REMOVE_EDGES[relation], {"pairs": batch})


async def put_facts(
    transaction: Transaction, project_id: str, facts: Iterable[tuple[str, bytes]], *, is_fresh: bool
) -> None:
    """Write what was extracted from files, by digest; `is_fresh` where none of it is there yet."""
    statement = _CREATE_FACTS if is_fresh else _MERGE_FACTS
    written = [[store_key(project_id, digest), digest, data] for digest, data in sorted(facts)]
    for batch in batches(written, _BATCH_ROWS):
        await rows(transaction, statement, {"rows": batch, "project": project_id})


async def remove_facts(transaction: Transaction, project_id: str, digests: Iterable[str]) -> None:
    """Remove the facts that exist."""
    keys = sorted(store_key(project_id, digest) for digest in digests)
    for batch in batches(keys, _BATCH_ROWS):
        await rows(transaction, _REMOVE_FACTS, {"keys": batch})
