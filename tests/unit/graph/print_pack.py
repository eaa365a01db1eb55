"""Prints a digest of packs of a generated graph; run under several hash seeds."""

from __future__ import annotations

import hashlib
import random

from tests.unit.graph.graphs import HEAD, large_graph
from worker.budget.tokens import counter_for
from worker.graph.links import link_request
from worker.graph.model import GraphContents
from worker.graph.pack_writer import PackHead, write_pack
from worker.graph.packing import TextSizes
from worker.graph.selection import select
from worker.graph.snapshot import build_snapshot


def digest(encoding: str = "o200k_base") -> str:
    """SHA-256 of the packs under both rankings, from nodes and edges in an order of their own."""
    graph = large_graph(functions=120, calls=300)
    nodes, edges = list(set(graph.nodes)), list(set(graph.edges))
    random.shuffle(nodes)
    random.shuffle(edges)
    snapshot = build_snapshot(HEAD, GraphContents(nodes=tuple(nodes), edges=tuple(edges)))
    named = next(node for node in snapshot.nodes if node.label == "Function")
    links = link_request(f"Fix {named.name} in {named.path}\n\n{named.text}", (), snapshot)
    sizes = TextSizes(counter_for(encoding))
    head = PackHead(project_id="shop", requester="agent", encoding=encoding, budget_tokens=1_500)
    packs = [
        write_pack(select(links, snapshot, task_type="REVIEW", ranking=ranking), snapshot, head, sizes=sizes)
        for ranking in ("graph", "hop")
    ]
    return hashlib.sha256("".join(pack.text for pack in packs).encode()).hexdigest()


if __name__ == "__main__":
    print(digest())  # noqa: T201 - the test reads it
