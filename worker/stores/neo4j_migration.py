"""Carries out on a Neo4j database what brings an older graph to the canon."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from schemas.graph import (
    BOOKKEEPING_KEYS,
    LABEL_RULE_OF,
    LABELS,
    LEGACY_LABELS,
    RELATIONS,
    LegacyLabel,
    NodeLabel,
    Relation,
    store_key,
)
from schemas.wire import sha256_hex
from worker.graph.ddl import ddl_name, get_all_ddl
from worker.graph.migration import (
    INDEXED_LABELS,
    OLD_PROPERTIES,
    End,
    ItemOf,
    MigrationPlan,
    MovedNode,
    OldEdge,
    OldNode,
    Unmoved,
    plan_migration,
)
from worker.graph.model import NodeRef
from worker.stores.graph_rows import NODE_BYTES
from worker.stores.neo4j_link import Neo4jLink, Transaction, rows
from worker.stores.neo4j_nodes import ref_of
from worker.stores.neo4j_schema import apply_ddl
from worker.stores.neo4j_writes import batches

_BATCH_ROWS: Final = 1_000
_SECONDS: Final = 120.0

_ALL_LABELS: Final = (*LABELS, *LEGACY_LABELS)
# A project's own node may say which one it is by nothing but its key.
_PROJECT_OF: Final = """
    coalesce(n.project, n.project_id, CASE WHEN n:Project THEN coalesce(n.slug, n.id, n.name) END, '')
"""
# What the state store keeps under canonical labels is in its right shape, and no part of a graph.
_IS_GRAPH: Final = "any(l IN labels(n) WHERE l IN $labels) AND NOT n:StateEvent"
_OF_PROJECT: Final = f"{_IS_GRAPH} AND {_PROJECT_OF} = $project"
_PROJECTS: Final = f"""
    MATCH (n) WHERE {_IS_GRAPH}
    RETURN collect(DISTINCT toStringOrNull({_PROJECT_OF}))
"""
_NODES: Final = f"""
    MATCH (n) WHERE {_OF_PROJECT}
    WITH n, [k IN $properties WHERE toStringOrNull(n[k]) IS NOT NULL | [k, toString(n[k])]] AS pairs
    RETURN id(n) / $page_rows AS page, collect([id(n), labels(n), pairs])
"""
_EDGES: Final = f"""
    MATCH (n)-[r]->(t) WHERE {_OF_PROJECT}
    RETURN id(r) / $page_rows AS page, collect([id(r), id(n), type(r), id(t)])
"""
_CONSTRAINTS: Final = """
    SHOW CONSTRAINTS YIELD name, type, labelsOrTypes, properties
    WHERE type = 'UNIQUENESS' OR type = 'NODE_KEY'
    RETURN name, labelsOrTypes, properties ORDER BY name
"""
_LOCK_HEAD: Final = """
    MERGE (h:GraphHead {project: $project})
    SET h.lock = 0, h.changing = $change_id
"""
_FINISH_HEAD: Final = """
    MATCH (h:GraphHead {project: $project}) WHERE h.changing = $change_id
    SET h.graph_version = coalesce(h.graph_version, 0) + 1, h.snapshot_id = $snapshot_id,
        h.change_id = $change_id
    REMOVE h.changing
    WITH h
    OPTIONAL MATCH (n:GraphNode {project: $project})
    WITH h, sum(n.size_bytes) AS size_bytes
    SET h.size_bytes = size_bytes
    RETURN count(h)
"""
_CHANGING: Final = "MATCH (h:GraphHead {project: $project}) RETURN h.changing"
_CLAIM: Final = "migration "
"""Before the name of a change that is a migration: an ended one can be gone on with, another's cannot."""
_MOVE_NODES: Final[Mapping[NodeLabel, str]] = {
    label: f"""
        UNWIND $rows AS row
        MATCH (n) WHERE id(n) = row.number
        SET n += row.properties, n:{label}
    """
    for label in LABELS
}
_MARK_NODES: Final = """
    UNWIND $rows AS row
    MATCH (n) WHERE id(n) = row.number
    SET n:GraphNode, n.ref = row.ref,
        n.size_bytes = $node_bytes + size(row.id)
            + size(coalesce(n.text, '')) + size(coalesce(n.signature, ''))
"""
_TAKE_LABEL: Final[Mapping[LegacyLabel, str]] = {
    label: f"""
        UNWIND $rows AS row
        MATCH (n) WHERE id(n) = row.number
        REMOVE n:{label}
    """
    for label in LEGACY_LABELS
}
_MAKE_ITEMS: Final = """
    UNWIND $rows AS row
    MATCH (r) WHERE id(r) = row.requirement
    MERGE (i:RequirementItem {key: row.key})
    SET i:GraphNode, i.ref = row.ref, i.project = $project, i.id = row.id, i.name = coalesce(r.name, row.id),
        i.text = coalesce(r.text, ''), i.size_bytes = $node_bytes + size(coalesce(r.text, '')) + size(row.id)
    RETURN collect([row.requirement, id(i)])
"""
_MOVE_EDGES: Final[Mapping[Relation, str]] = {
    relation: f"""
        UNWIND $rows AS row
        MATCH (s) WHERE id(s) = row.source
        MATCH (t) WHERE id(t) = row.target
        MERGE (s)-[r:{relation}]->(t)
        ON CREATE SET r.resolution = 'exact', r.candidates = 1
        WITH r, row
        MATCH ()-[old]->() WHERE id(old) = row.old
        SET r += properties(old)
        DELETE old
    """
    for relation in RELATIONS
}


_UNDER_WAY: Final = Unmoved(
    kind="node", name="all", reason="an index is under way, or ended in the middle: index again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationReport:
    """What was moved in one project, or would be; and what was not."""

    project_id: str
    """Empty for nodes that name no project."""
    is_dry_run: bool
    counts: dict[str, int]
    """Of each kind how many were moved, by name."""
    left: dict[str, int]
    """Of each kind how many stay, since the canon has no place for them: a new index says it otherwise."""
    unmoved: tuple[Unmoved, ...]
    """What needs a person's word."""

    @property
    def is_changed(self) -> bool:
        """Whether anything was moved, or would be."""
        return bool(self.counts)


async def migrate(
    link: Neo4jLink, project_id: str | None = None, *, is_dry_run: bool = False, adopts: bool = False
) -> tuple[MigrationReport, ...]:
    """Bring one project, or all of them, to the canon; one report a project, sorted.

    A second run changes nothing. The project has no graph for readers while its nodes move, and has one
    afterwards. With `adopts`, nodes that name no project become the given project's; otherwise they are
    reported and stay. Raises StoreUnavailable, after which another run goes on, and ValueError for `adopts`
    without a project.
    """
    if adopts and project_id is None:
        raise ValueError("nodes without a project can only be adopted by one that is named")
    if not is_dry_run:
        await apply_ddl(link)
    in_the_way = await _old_constraints(link)
    found: list[str] = (await _run(link, _PROJECTS, {"labels": list(_ALL_LABELS)}))[0][0]
    projects = sorted(found) if project_id is None else [project_id]
    reports: list[MigrationReport] = []
    for project in projects:
        sources = [project, ""] if adopts else [project]
        heads = await _run(link, _CHANGING, {"project": project})
        changing: str = heads[0][0] or "" if heads else ""
        if changing and not changing.startswith(_CLAIM):
            plan = MigrationPlan(unmoved=[_UNDER_WAY])
        else:
            plan = await _plan(link, project, sources, is_whole=bool(heads) and not changing)
            if project and not is_dry_run and (changing or not plan.is_empty):
                await _carry_out(link, project, plan)
        reports.append(_report(project, plan, in_the_way, is_dry_run=is_dry_run))
    return tuple(reports)


def _report(
    project: str, plan: MigrationPlan, in_the_way: list[Unmoved], *, is_dry_run: bool
) -> MigrationReport:
    if project:
        unmoved = (*in_the_way, *plan.unmoved)
        counts, left = plan.counts, plan.left
    else:
        left = plan.left + plan.counts
        counts = Counter[str]()
        unmoved = (Unmoved(kind="node", name="all", reason="they name no project; adopt them"),)
    return MigrationReport(
        project_id=project,
        is_dry_run=is_dry_run,
        counts=dict(sorted(counts.items())),
        left=dict(sorted(left.items())),
        unmoved=tuple(unmoved),
    )


async def _plan(link: Neo4jLink, project: str, sources: list[str], *, is_whole: bool) -> MigrationPlan:
    nodes: list[OldNode] = []
    edges: list[OldEdge] = []
    for source in sources:
        bound = {"labels": list(_ALL_LABELS), "project": source, "page_rows": _BATCH_ROWS}
        for _, page in await _run(link, _NODES, bound | {"properties": list(OLD_PROPERTIES)}):
            nodes.extend(
                OldNode(number=number, labels=tuple(labels), properties=dict(pairs))
                for number, labels, pairs in page
            )
        for _, page in await _run(link, _EDGES, bound):
            edges.extend(OldEdge(*row) for row in page)
    return plan_migration(project, nodes, edges, is_whole=is_whole)


async def _old_constraints(link: Neo4jLink) -> list[Unmoved]:
    """Constraints that would keep two projects from having the same ids."""
    ours = {ddl_name(statement) for statement in get_all_ddl()}
    known = {*_ALL_LABELS, *BOOKKEEPING_KEYS}
    return [
        Unmoved(
            kind="constraint",
            name=name,
            reason=f"{', '.join(labels)} may not be unique by {', '.join(properties)}: drop it",
        )
        for name, labels, properties in await _run(link, _CONSTRAINTS, {})
        if name not in ours and known.intersection(labels)
    ]


async def _carry_out(link: Neo4jLink, project: str, plan: MigrationPlan) -> None:
    """In batches; each may run twice, and a later run does what an ended one left."""
    change_id = f"{_CLAIM}{uuid.uuid4().hex}"
    await _run(link, _LOCK_HEAD, {"project": project, "change_id": change_id})
    await _move_nodes(link, project, plan.nodes)
    items = await _make_items(link, project, plan)
    await _move_edges(link, plan, items)
    snapshot_id = await _digest(link, project)
    await _run(link, _FINISH_HEAD, {"project": project, "change_id": change_id, "snapshot_id": snapshot_id})


async def _move_nodes(link: Neo4jLink, project: str, moved: Iterable[MovedNode]) -> None:
    by_label: defaultdict[NodeLabel, list[dict[str, Any]]] = defaultdict(list)
    by_old_label: defaultdict[LegacyLabel, list[dict[str, Any]]] = defaultdict(list)
    marked: list[dict[str, Any]] = []
    for node in moved:
        row = {"number": node.number, "id": node.id, "properties": _properties(project, node)}
        by_label[node.label].append(row)
        if node.old_label is not None:
            by_old_label[node.old_label].append(row)
        if node.label in INDEXED_LABELS:
            marked.append(row | {"ref": ref_of(project, NodeRef(node.label, node.id))})
    for label, group in by_label.items():
        await _run_batches(link, _MOVE_NODES[label], group)
    await _run_batches(link, _MARK_NODES, marked, node_bytes=NODE_BYTES)
    for old_label, group in by_old_label.items():
        await _run_batches(link, _TAKE_LABEL[old_label], group)


def _properties(project: str, node: MovedNode) -> dict[str, str]:
    made = {
        "project": project,
        "key": store_key(project, node.id),
        LABEL_RULE_OF[node.label].key: node.id,
        "path": node.path,
        "class_id": node.class_id,
    }
    return {name: value for name, value in made.items() if value}


async def _make_items(link: Neo4jLink, project: str, plan: MigrationPlan) -> dict[int, int]:
    """The numbers of the new items, by those of their requirements."""
    made: dict[int, int] = {}
    written = [
        {
            "requirement": item.requirement,
            "id": item.id,
            "key": store_key(project, item.id),
            "ref": ref_of(project, NodeRef("RequirementItem", item.id)),
        }
        for item in plan.items
    ]
    for answer in await _run_batches(link, _MAKE_ITEMS, written, project=project, node_bytes=NODE_BYTES):
        made.update(dict(answer[0]))
    return made


async def _move_edges(link: Neo4jLink, plan: MigrationPlan, items: Mapping[int, int]) -> None:
    def number(end: End) -> int | None:
        return items.get(end.requirement) if isinstance(end, ItemOf) else end

    by_relation: defaultdict[Relation, list[dict[str, Any]]] = defaultdict(list)
    for edge in plan.edges:
        source, target = number(edge.source), number(edge.target)
        # A requirement deleted since it was read has got no item, and loses its edges as a node does.
        if source is not None and target is not None:
            by_relation[edge.relation].append({"source": source, "target": target, "old": edge.old})
    for relation, group in by_relation.items():
        await _run_batches(link, _MOVE_EDGES[relation], group)


async def _digest(link: Neo4jLink, project: str) -> str:
    """Of what the graph holds now, so that two migrated graphs are told apart."""
    plan_input = {"labels": list(_ALL_LABELS), "project": project, "page_rows": _BATCH_ROWS}
    nodes = await _run(link, _NODES, plan_input | {"properties": ["ref"]})
    names = {
        number: pairs[0][1] for _, page in nodes for number, labels, pairs in page if "GraphNode" in labels
    }
    edges = await _run(link, _EDGES, plan_input)
    lines = [
        f"{names[source]} {relation} {names[target]}"
        for _, page in edges
        for _, source, relation, target in page
        if source in names and target in names
    ]
    return sha256_hex("\n".join([*sorted(names.values()), *sorted(lines)]).encode())


async def _run_batches(
    link: Neo4jLink, statement: str, written: list[dict[str, Any]], **bound: Any
) -> list[list[Any]]:
    answers: list[list[Any]] = []
    for batch in batches(written, _BATCH_ROWS):
        answers += await _run(link, statement, {"rows": batch, **bound})
    return answers


async def _run(link: Neo4jLink, statement: str, bound: Mapping[str, Any]) -> list[list[Any]]:
    async def work(transaction: Transaction) -> list[list[Any]]:
        return await rows(transaction, statement, bound)

    return await link.write(work, timeout_seconds=_SECONDS)
