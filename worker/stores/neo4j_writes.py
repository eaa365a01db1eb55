"""The statements that change a graph in Neo4j, one per label and relation of the canon, and what runs them.

Labels and relations come from the canon's table; everything else is a parameter. Rows go in batches and in
sorted order, so that two writers take their locks in the same order. Every step may run twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from schemas.graph import LABELS, RELATIONS, NodeLabel, Relation, store_key
from worker.graph.diff import missing_end
from worker.graph.model import Edge, Node, NodeRef, Resolution
from worker.stores.neo4j_link import Transaction, rows
from worker.stores.neo4j_nodes import encode_node, ref_of

_BATCH_ROWS: Final = 1_000
_BATCH_EDGES: Final = 5_000

T = TypeVar("T")
Ends = dict[NodeRef, int]
"""The server's own number of each node. They are for the change at hand: it gives them out again later."""

# The numbers are read with id(): elementId() would make forty characters of each, ten times the bytes on the
# wire for a graph's edges. It is there in all of Neo4j 5.
_PUT_NODES: Final[Mapping[NodeLabel, str]] = {
    label: f"""
        UNWIND range(0, size($rows) - 1) AS i
        WITH i, $rows[i] AS row
        MERGE (n:GraphNode {{ref: row.ref}})
        WITH i, row, n, coalesce(n.size_bytes, 0) AS old_bytes
        SET n = row, n:{label}
        RETURN collect([i, id(n)]), sum(row.size_bytes - old_bytes)
    """
    for label in LABELS
}
_PUT_EDGES: Final[Mapping[Relation, str]] = {
    relation: f"""
        UNWIND $pairs AS pair
        MATCH (s) WHERE id(s) = pair[0]
        MATCH (t) WHERE id(t) = pair[1]
        MERGE (s)-[r:{relation}]->(t)
        SET r.resolution = $resolution, r.candidates = $candidates
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
_PUT_FACTS: Final = """
    UNWIND $rows AS row
    MERGE (f:FileFacts {key: row.key})
    SET f = row
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


async def put_nodes(transaction: Transaction, project_id: str, nodes: Iterable[Node], ends: Ends) -> int:
    """Write the nodes and add their numbers to `ends`; by how many bytes the graph grew."""
    by_label: defaultdict[NodeLabel, list[Node]] = defaultdict(list)
    for node in sorted(nodes, key=lambda node: node.ref):
        by_label[node.label].append(node)
    grown_bytes = 0
    for label, group in by_label.items():
        for batch in batches(group, _BATCH_ROWS):
            bound = {"rows": [encode_node(project_id, node) for node in batch]}
            ((pairs, batch_bytes),) = await rows(transaction, _PUT_NODES[label], bound)
            numbers: list[list[int]] = pairs
            for index, number in numbers:
                ends[batch[index].ref] = number
            grown_bytes += batch_bytes
    return grown_bytes


async def put_edges(transaction: Transaction, edges: Iterable[Edge], ends: Ends) -> None:
    """Write the edges, both ends of each being in `ends`."""
    groups: defaultdict[tuple[Relation, Resolution, int], list[list[int]]] = defaultdict(list)
    for edge in edges:
        group = groups[edge.relation, edge.resolution, edge.candidates]
        group.append([ends[edge.source], ends[edge.target]])
    for relation, resolution, candidates in sorted(groups):
        pairs = sorted(groups[relation, resolution, candidates])
        for batch in batches(pairs, _BATCH_EDGES):
            bound = {"pairs": batch, "resolution": resolution, "candidates": candidates}
            await rows(transaction, _PUT_EDGES[relation], bound)


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


async def put_facts(transaction: Transaction, project_id: str, facts: Iterable[tuple[str, bytes]]) -> None:
    """Write what was extracted from files, by digest."""
    written: list[dict[str, Any]] = [
        {"key": store_key(project_id, digest), "project": project_id, "digest": digest, "data": data}
        for digest, data in sorted(facts)
    ]
    for batch in batches(written, _BATCH_ROWS):
        await rows(transaction, _PUT_FACTS, {"rows": batch})


async def remove_facts(transaction: Transaction, project_id: str, digests: Iterable[str]) -> None:
    """Remove the facts that exist."""
    keys = sorted(store_key(project_id, digest) for digest in digests)
    for batch in batches(keys, _BATCH_ROWS):
        await rows(transaction, _REMOVE_FACTS, {"keys": batch})
