"""A file's source put together again from the nodes that an index made of it.

So a tool reads what the graph was made from, needs no file, and agrees with what the graph says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from worker.graph.model import Node
from worker.graph.snapshot import Snapshot

_CODE: Final = frozenset({"Module", "Class", "Function"})


def nodes_of_file(snapshot: Snapshot, path: str) -> list[Node]:
    """The code of a file as nodes, in order of lines; empty where the graph has no such file. O(log n)."""
    number = snapshot.file_number(path)
    if number is None:
        return []
    documents = snapshot.documents
    first, last = int(documents.file_starts[number]), int(documents.file_starts[number + 1])
    nodes = [snapshot.nodes[int(n)] for n in documents.nodes[first:last]]
    return [node for node in nodes if node.label in _CODE]


def source_of_nodes(nodes: Sequence[Node]) -> str:
    """The text of the file whose code nodes these are, line ends newlines. O(lines times nesting).

    Lines that no node holds are blank.
    """
    order = sorted(nodes, key=lambda node: (node.start_line, -node.end_line, node.label != "Module"))
    count = max((node.end_line for node in nodes), default=0)
    owners = [-1] * (count + 1)
    for index, node in enumerate(order):
        owners[node.start_line : node.end_line + 1] = [index] * (node.end_line + 1 - node.start_line)
    lines = [""] * (count + 1)
    for index, node in enumerate(order):
        span = range(max(1, node.start_line), node.end_line + 1)
        own = span if node.label == "Function" else [n for n in span if owners[n] == index]
        for number, line in zip(own, node.text.split("\n"), strict=False):
            lines[number] = line
    return "\n".join(lines[1:]) + "\n" if count else ""
