"""Graphs for tests: a few nodes by hand, and large ones by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from schemas.graph import NodeLabel, Relation
from worker.graph.model import NO_SPAN, Edge, GraphContents, GraphHead, Node, NodeRef
from worker.graph.snapshot import Snapshot, build_snapshot

HEAD = GraphHead(graph_version=1, snapshot_id="0" * 16)

SYLLABLES = "re try load send read write parse token user order cart pay ship mail log cache lock".split()  # noqa: SIM905 - words


def function(
    path: str,
    qualname: str,
    body: str = "    return 1",
    *,
    docstring: str = "",
    label: NodeLabel = "Function",
) -> Node:
    """A function as the indexer would give it."""
    name = qualname.rpartition(".")[2]
    signature = f"def {name}()" if label == "Function" else f"class {name}"
    head = f"{signature}:\n"
    quoted = f'    """{docstring}"""\n' if docstring else ""
    return Node(
        label=label,
        id=f"{path}::{qualname}",
        name=name.partition("#")[0],
        path=path,
        start_line=1,
        end_line=2 + body.count("\n"),
        signature=signature,
        text=f"{head}{quoted}{body}\n",
        docstring_span=(len(head), len(head) + len(quoted)) if docstring else NO_SPAN,
        language="python",
        properties=(("qualname", qualname),),
    )


def edge(source: Node, relation: Relation, target: Node, *, candidates: int = 1) -> Edge:
    """An edge; a guess where there are several candidates."""
    return Edge(source.ref, relation, target.ref, "exact" if candidates == 1 else "guess", candidates)


def snapshot_of(nodes: Sequence[Node], edges: Sequence[Edge] = (), *, head: GraphHead = HEAD) -> Snapshot:
    """The snapshot of nodes and edges in any order."""
    return build_snapshot(head, GraphContents(nodes=tuple(nodes), edges=tuple(edges)))


def large_graph(*, functions: int, calls: int, seed: int = 7, words_a_body: int = 60) -> GraphContents:
    """A project of that many functions, twenty a file, with skewed words, names and callees."""
    rng = random.Random(seed)
    vocabulary = [
        "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 3))) + str(n % 97 or "")
        for n in range(9_000)
    ]
    nodes: list[Node] = []
    edges: list[Edge] = []
    module = function("", "<module>", label="Module")
    for number in range(functions):
        path = f"pkg{number // 2_000}/mod{number // 20}.py"
        if number % 20 == 0:
            nodes.append(Node(label="File", id=path, name=path, path=path))
            module = function(path, "<module>", label="Module")
            nodes.append(module)
            edges.append(Edge(NodeRef("File", path), "DEFINES", module.ref))
        chosen = [vocabulary[int(rng.paretovariate(0.6)) % len(vocabulary)] for _ in range(words_a_body)]
        name = f"{rng.choice(vocabulary)}_{rng.choice(vocabulary)}"
        lines = ["    " + " = ".join(chosen[i : i + 4]) for i in range(0, len(chosen), 4)]
        node = function(path, f"{name}_{number}", "\n".join(lines), docstring=" ".join(chosen[:6]))
        nodes.append(node)
        edges.append(Edge(module.ref, "DEFINES", node.ref))
    code = [node.ref for node in nodes if node.label == "Function"]
    known: set[tuple[NodeRef, NodeRef]] = set()
    while len(known) < calls:
        source = code[rng.randrange(len(code))]
        target = code[int(rng.paretovariate(0.4)) % len(code)]
        if source != target and (source, target) not in known:
            known.add((source, target))
            edges.append(Edge(source, "CALLS", target))
    return GraphContents(nodes=tuple(sorted(nodes, key=lambda n: n.ref)), edges=tuple(sorted(edges)))
