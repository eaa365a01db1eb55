"""The map that packs are compared with: everything once, and nothing but names and signatures."""

from __future__ import annotations

from tests.unit.graph.graphs import function, large_graph, snapshot_of
from worker.budget.tokens import counter_for
from worker.graph.model import Node
from worker.graph.static_map import static_map, static_map_tokens

COUNTER = counter_for("o200k_base")


def test_each_file_and_each_definition_stands_once_in_order() -> None:
    nodes = [
        function("b.py", "<module>", "import os", label="Module"),
        function("b.py", "load", "    return 1"),
        function("a.py", "Cart", "    x = 1", label="Class"),
        Node(label="RequirementItem", id="REQ-1", name="REQ-1", text="A cart is loaded."),
        Node(label="Chunk", id="notes.md#1", name="notes", path="notes.md", text="Loading."),
    ]
    signatures = {node.name: node.signature for node in nodes}
    assert [*static_map(snapshot_of(nodes))] == [
        f"## a.py\n{signatures['Cart']}\n",
        f"## b.py\n{signatures['load']}\n",
        "## notes.md\n",
    ]


def test_the_parts_have_the_tokens_of_the_whole() -> None:
    snapshot = snapshot_of(large_graph(functions=200, calls=10).nodes)
    whole = "".join(static_map(snapshot))
    assert static_map_tokens(snapshot, COUNTER) == COUNTER.count(whole)
    assert whole.count("\n") == 200 + 10
