"""What a static map of a project takes: what agents are given where nothing is selected for their task.

Such a map names every file, and below it the first line of every class and function, whatever the request.
It is here to be compared with: a pack says what selection leaves of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from worker.graph.model import Node
from worker.graph.rendering import label_of, one_line
from worker.graph.snapshot import Snapshot
from worker.ports import TokenCounter

_DEFINITIONS: Final = frozenset({"Class", "Function"})


def static_map(snapshot: Snapshot) -> Iterator[str]:
    """The map, file by file in order of path: its path, and what it defines in order of lines."""
    numbers: list[int] = snapshot.documents.nodes.tolist()
    for path, inside in groupby((snapshot.nodes[number] for number in numbers), key=_path):
        if path:
            lines = (
                one_line(node.signature) or label_of(node) for node in inside if node.label in _DEFINITIONS
            )
            yield "\n".join((f"## {one_line(path)}", *lines)) + "\n"


def _path(node: Node) -> str:
    return node.path


def static_map_tokens(snapshot: Snapshot, counter: TokenCounter) -> int:
    """Tokens of the whole map, file by file. About a third of a second at 50,000 functions."""
    return sum(counter.count(text) for text in static_map(snapshot))
