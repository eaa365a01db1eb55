"""The statements that read a graph from Neo4j, in pages.

The driver spends a tenth of a millisecond on every record, so a page is one record that holds lists.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from schemas.graph import RELATIONS, store_key
from worker.graph.model import GraphContents, Node, NodeRef, Resolution
from worker.graph.store import MAX_NAMED
from worker.stores.graph_rows import EdgeRow, assembled, id_ends, own_name
from worker.stores.neo4j_link import Transaction, rows
from worker.stores.neo4j_nodes import decode_node, ref_of
from worker.stores.neo4j_writes import batches, find_ends

_PAGE_ROWS: Final = 1_000
_RELATIONS: Final = frozenset(RELATIONS)

_NODES_PAGE: Final = """
    MATCH (n:GraphNode) WHERE n.ref > $after AND n.ref < $end
    WITH n ORDER BY n.ref LIMIT $page_rows
    RETURN collect([id(n), labels(n), properties(n)])
"""
_EDGES_PAGE: Final = """
    MATCH (s:GraphNode) WHERE s.ref > $after AND s.ref <= $last
    MATCH (s)-[r]->(t:GraphNode)
    RETURN type(r), r.resolution, r.candidates, collect([id(s), id(t)])
"""
_FACTS_PAGE: Final = """
    MATCH (f:FileFacts) WHERE f.key > $after AND f.key < $end
    WITH f ORDER BY f.key LIMIT $page_rows
    RETURN collect([f.key, f.digest, f.data])
"""
_SOME_FACTS: Final = """
    UNWIND $keys AS key
    MATCH (f:FileFacts {key: key})
    RETURN collect([f.digest, f.data])
"""
_NAMED: Final = """
    UNWIND $names AS name
    CALL {
        WITH name
        MATCH (n:GraphNode {project: $project, name: name[0]})
        WHERE size(name) = 1 OR n.id ENDS WITH name[1] OR n.id ENDS WITH name[2]
        RETURN n LIMIT $limit
    }
    RETURN collect([n.ref, id(n)]), name
"""
_RING: Final = """
    MATCH (n) WHERE id(n) IN $frontier
    MATCH (n)-[r]-(m:GraphNode)
    WHERE type(r) IN $relations AND m.project = $project AND NOT id(m) IN $seen
    WITH DISTINCT m ORDER BY m.ref LIMIT $left
    RETURN collect(id(m))
"""
_SOME_NODES: Final = """
    MATCH (n:GraphNode) WHERE id(n) IN $some
    RETURN collect([id(n), labels(n), properties(n)])
"""
_SOME_EDGES: Final = """
    MATCH (s) WHERE id(s) IN $some
    MATCH (s)-[r]->(t) WHERE id(t) IN $all
    RETURN type(r), r.resolution, r.candidates, collect([id(s), id(t)])
"""


async def read_contents(transaction: Transaction, project_id: str) -> GraphContents:
    """The whole graph."""
    nodes: dict[int, Node] = {}
    edges: list[EdgeRow] = []
    after, end = _range(project_id)
    while True:
        bound = {"after": after, "end": end, "page_rows": _PAGE_ROWS}
        ((page,),) = await rows(transaction, _NODES_PAGE, bound)
        if not page:
            return assembled(nodes, edges)
        _add_nodes(nodes, page)
        last = max(properties["ref"] for _, _, properties in page)
        _add_edges(edges, await rows(transaction, _EDGES_PAGE, {"after": after, "last": last}))
        after = last


async def read_neighbourhood(
    transaction: Transaction,
    project_id: str,
    roots: Sequence[NodeRef],
    *,
    names: Sequence[str],
    max_hops: int,
    max_nodes: int,
) -> GraphContents:
    """The roots that exist and what lies around them, as the protocol of the stores says."""
    found = await find_ends(transaction, project_id, sorted(set(roots)))
    entries = {ref_of(project_id, ref): number for ref, number in found.items()}
    entries |= await _named(transaction, project_id, names)
    ring = [entries[ref] for ref in sorted(entries)][: max(0, max_nodes)]
    seen = list(ring)
    for _ in range(max_hops):
        if not ring or len(seen) >= max_nodes:
            break
        bound = {
            "frontier": ring,
            "seen": seen,
            "left": max_nodes - len(seen),
            "project": project_id,
            "relations": list(RELATIONS),
        }
        ((ring,),) = await rows(transaction, _RING, bound)
        seen += ring
    nodes: dict[int, Node] = {}
    edges: list[EdgeRow] = []
    for some in batches(seen, _PAGE_ROWS):
        ((page,),) = await rows(transaction, _SOME_NODES, {"some": some})
        _add_nodes(nodes, page)
        _add_edges(edges, await rows(transaction, _SOME_EDGES, {"some": some, "all": seen}))
    return assembled(nodes, edges)


async def _named(transaction: Transaction, project_id: str, names: Sequence[str]) -> dict[str, int]:
    """The nodes that bear one of the names, by what names them in the store."""
    wanted = [[own_name(name), *id_ends(name)] for name in sorted(set(names)) if own_name(name)]
    if not wanted:
        return {}
    bound = {"project": project_id, "names": wanted, "limit": MAX_NAMED + 1}
    groups = await rows(transaction, _NAMED, bound)
    return {ref: number for group, _ in groups if len(group) <= MAX_NAMED for ref, number in group}


async def read_facts(transaction: Transaction, project_id: str) -> dict[str, bytes]:
    """What was extracted from files, by digest."""
    facts: dict[str, bytes] = {}
    after, end = _range(project_id)
    while True:
        bound = {"after": after, "end": end, "page_rows": _PAGE_ROWS}
        ((page,),) = await rows(transaction, _FACTS_PAGE, bound)
        if not page:
            return facts
        facts.update((digest, data) for _, digest, data in page)
        after = max(key for key, _, _ in page)


async def read_some_facts(
    transaction: Transaction, project_id: str, digests: Collection[str]
) -> dict[str, bytes]:
    """Those of these digests that there are."""
    facts: dict[str, bytes] = {}
    for batch in batches(sorted(digests), _PAGE_ROWS):
        bound = {"keys": [store_key(project_id, digest) for digest in batch]}
        ((found,),) = await rows(transaction, _SOME_FACTS, bound)
        facts.update((digest, data) for digest, data in found)
    return facts


def _range(project_id: str) -> tuple[str, str]:
    """Between which two names all of a project's lie: `;` comes after `:`, and no project id holds either."""
    return f"{project_id}:", f"{project_id};"


def _add_nodes(nodes: dict[int, Node], page: list[Any]) -> None:
    for number, labels, properties in page:
        nodes[number] = decode_node(labels, properties)


def _add_edges(edges: list[EdgeRow], groups: list[list[Any]]) -> None:
    for relation, resolution, candidates, pairs in groups:
        if relation in _RELATIONS:
            # What a migration made of older edges says nothing of how it was resolved.
            known: Resolution = "guess" if resolution == "guess" else "exact"
            edges.extend((source, relation, target, known, candidates or 1) for source, target in pairs)
