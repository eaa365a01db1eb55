"""The seam between the graph and what keeps it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from worker.errors import HeldBack
from worker.graph.model import GraphChange, GraphContents, GraphHead, NodeRef

MAX_NAMED: Final = 200
"""What more nodes than this are called does not tell where to look."""


class GraphChanging(HeldBack):
    """The graph that was is no more and the next one is not whole yet: a large change is under way.

    Or it was broken off. Then the next writer begins with version 0 and with the facts, which are kept.
    """


class GraphStore(Protocol):
    """Keeps one graph a project, and loads, changes and forgets it as a whole.

    Every method but `projects` names its project, and no result holds anything of another. Raises
    StoreUnavailable, never a driver's own error. Readers see one committed graph: never half of a change. A
    store that writes a large change in several transactions has no graph meanwhile: it raises GraphChanging.
    """

    async def projects(self, *, max_projects: int) -> list[str]:
        """Projects that have a graph, the first of them in order of id: for a worker's start, no request."""
        ...

    async def head(self, project_id: str) -> GraphHead | None:
        """Which graph is held; None where the project was never indexed, or purged. Cheap: one row.

        Raises GraphChanging.
        """
        ...

    async def load(self, project_id: str) -> tuple[GraphHead, GraphContents] | None:
        """The whole graph and its head, of one moment. None and GraphChanging as of `head`."""
        ...

    async def size_bytes(self, project_id: str) -> int:
        """About how much text the graph holds, to decide whether it is loaded whole; 0 without a graph."""
        ...

    async def neighbourhood(
        self,
        project_id: str,
        roots: Sequence[NodeRef],
        *,
        names: Sequence[str] = (),
        max_hops: int,
        max_nodes: int,
    ) -> tuple[GraphHead, GraphContents] | None:
        """The roots that exist and what lies around them, with all edges among those nodes.

        Roots are also the nodes that bear one of `names`: `run` is a node's own name, `Job.run` that of one
        whose id ends with it. A name that more than `MAX_NAMED` nodes bear names none of them. Breadth first
        along edges of either direction, up to `max_hops` away; where a ring would exceed `max_nodes`, its
        nodes are taken in order of label and id until the cap. None and GraphChanging as of `head`.
        """
        ...

    async def load_facts(self, project_id: str, keys: Collection[str] | None = None) -> Mapping[str, bytes]:
        """What was kept beside the graph, by key: all of it, or what there is under `keys`.

        Of a change that was broken off between its transactions, what was kept before is all there, unless
        the last of what it adds is there too: it adds facts in the order given, and then removes others.
        """
        ...

    async def apply(
        self, project_id: str, change: GraphChange, *, snapshot_id: str, expected_version: int
    ) -> GraphHead:
        """Make the change in one transaction, and give the new head, whose version is one higher.

        `expected_version` is the head's version that the change was computed from, 0 without one. Where the
        head cannot be had for a change under way it is 0 too, and of what is there only the facts stay.
        Raises GraphConflict, with nothing changed, where another writer was faster.
        """
        ...

    async def purge(self, project_id: str) -> int:
        """Forget the project's graph and facts; returns the number of nodes that were there."""
        ...

    async def check(self) -> None:
        """Return when the store can be read and written now."""
        ...

    async def close(self) -> None:
        """Release connections; idempotent."""
        ...
