"""A graph store for one process: the reference model of a change, behind the seam."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from tests.support.graphs import neighbourhood_of
from worker.errors import GraphConflict
from worker.graph.diff import applied
from worker.graph.model import GraphChange, GraphContents, GraphHead, NodeRef
from worker.stores.graph_rows import size_bytes

EMPTY = GraphContents(nodes=(), edges=())


class MemoryGraphStore:
    """`GraphStore` in dictionaries. `applies` counts the changes that were committed."""

    def __init__(self) -> None:
        self._graphs: dict[str, tuple[GraphHead, GraphContents]] = {}
        self.facts: dict[str, dict[str, bytes]] = {}
        self.applies = 0

    async def projects(self, *, max_projects: int) -> list[str]:
        return sorted(self._graphs)[:max_projects]

    async def head(self, project_id: str) -> GraphHead | None:
        graph = self._graphs.get(project_id)
        return graph[0] if graph else None

    async def load(self, project_id: str) -> tuple[GraphHead, GraphContents] | None:
        await asyncio.sleep(0)  # others get their turn, as they do with every store
        return self._graphs.get(project_id)

    async def size_bytes(self, project_id: str) -> int:
        graph = self._graphs.get(project_id)
        return sum(map(size_bytes, graph[1].nodes)) if graph else 0

    async def neighbourhood(
        self,
        project_id: str,
        roots: Sequence[NodeRef],
        *,
        names: Sequence[str] = (),
        max_hops: int,
        max_nodes: int,
    ) -> tuple[GraphHead, GraphContents] | None:
        graph = self._graphs.get(project_id)
        if graph is None:
            return None
        head, contents = graph
        return head, neighbourhood_of(contents, roots, names=names, max_hops=max_hops, max_nodes=max_nodes)

    async def load_facts(self, project_id: str, keys: Collection[str] | None = None) -> Mapping[str, bytes]:
        await asyncio.sleep(0)
        facts = self.facts.get(project_id, {})
        return {key: facts[key] for key in facts if keys is None or key in keys}

    async def apply(
        self, project_id: str, change: GraphChange, *, snapshot_id: str, expected_version: int
    ) -> GraphHead:
        head, contents = self._graphs.get(project_id, (None, EMPTY))
        version = head.graph_version if head else 0
        if version != expected_version:
            raise GraphConflict(
                project_id=project_id, expected_version=expected_version, found_version=version
            )
        for node in change.upserted:
            # Refuses what no store holds.
            f"{node.id}{node.name}{node.path}{node.signature}{node.text}".encode()
        new = GraphHead(graph_version=version + 1, snapshot_id=snapshot_id)
        self._graphs[project_id] = new, applied(contents, change)
        facts = self.facts.setdefault(project_id, {})
        for key in change.removed_facts:
            facts.pop(key, None)
        facts |= dict(change.added_facts)
        self.applies += 1
        return new

    async def purge(self, project_id: str) -> int:
        self.facts.pop(project_id, None)
        graph = self._graphs.pop(project_id, None)
        return len(graph[1].nodes) if graph else 0

    async def check(self) -> None:
        return

    async def close(self) -> None:
        return
