"""What words find, by the same ranking that bundles are selected with."""

from __future__ import annotations

from typing import Final

from schemas.codes import TaskType
from schemas.tools import SearchCodeArguments
from worker.graph.links import link_request
from worker.graph.request import classify_task
from worker.graph.selection import select
from worker.graph.snapshot import Snapshot
from worker.retrieval.found import Found, Piece, source_piece

DEFAULT_TASK_TYPE: Final[TaskType] = "DEBUG"
"""Of a query that asks for nothing in particular, as in the evaluation that the ranking was fitted by."""

_SOURCE: Final = frozenset({"Function", "Class", "Module", "Chunk"})
"""Requirements and decisions have a tool of their own."""


def search_code(snapshot: Snapshot, arguments: SearchCodeArguments) -> Found:
    """The best `limit` pieces of source, each with its source. Some 10 ms at 50,000 functions."""
    numbers = best_nodes(snapshot, arguments.query, limit=arguments.limit)
    if not numbers:
        return Found(pieces=(Piece(text="Nothing in the project speaks of that."),))
    return Found(
        pieces=tuple(source_piece(snapshot.nodes[number]) for number in numbers),
    )


def best_nodes(snapshot: Snapshot, query: str, *, limit: int) -> list[int]:
    """Numbers of the nodes that selection ranks first for the query, of source and of pieces of documents."""
    task_type = classify_task(query) or DEFAULT_TASK_TYPE
    selection = select(link_request(query, (), snapshot), snapshot, task_type=task_type)
    found = (number for number, _ in selection.ranked if snapshot.nodes[number].label in _SOURCE)
    return [number for number, _ in zip(found, range(limit), strict=False)]
