"""What the graph stores share: the size of a node, its free properties as text, and a graph put together."""

from __future__ import annotations

import gc
import json
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Final

from schemas.graph import RELATIONS, Relation
from worker.graph.model import Edge, GraphContents, Node, Resolution

NODE_BYTES: Final = 200
"""What a node takes beside its text, about."""

# Made once: `json.dumps` makes one for each call that wants anything special, which takes most of its time.
_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

EdgeRow = tuple[int, Relation, int, Resolution, int]
"""Number of the source, relation, number of the target, resolution, candidates."""


def size_bytes(node: Node) -> int:
    """About how much a node adds to a graph; a character counts as a byte, as in nearly all code."""
    return NODE_BYTES + len(node.text) + len(node.signature) + len(node.id)


def own_name(name: str) -> str:
    """What the node itself is called that a name means: of `Job.run` the last part."""
    return name.rpartition(".")[2]


def id_ends(name: str) -> tuple[str, ...]:
    """With what the id of a node ends that a name of several parts means; empty for a name of one."""
    return (f"::{name}", f".{name}") if "." in name else ()


def encode_properties(properties: Iterable[tuple[str, str]]) -> str:
    """One line of JSON, or the empty string without any."""
    pairs = list(properties)
    return _ENCODE(pairs) if pairs else ""


def decode_properties(text: str) -> tuple[tuple[str, str], ...]:
    """What was encoded, as it was."""
    return tuple((name, value) for name, value in json.loads(text)) if text else ()


def assembled(nodes: Mapping[int, Node], edges: Iterable[EdgeRow]) -> GraphContents:
    """The graph of these nodes, by whichever numbers a store has for them, and the edges among them.

    O(n log n). Edges with an end outside are left out.
    """
    numbers = sorted(nodes, key=lambda number: nodes[number].ref)
    refs = [nodes[number].ref for number in numbers]
    place = {number: index for index, number in enumerate(numbers)}
    relation_place = {relation: index for index, relation in enumerate(sorted(RELATIONS))}
    inside = [row for row in edges if row[0] in place and row[2] in place]
    # One number an edge, in the order of edges: sorting 200,000 of them takes a tenth of sorting the tuples.
    keys = [
        (place[source] * len(relation_place) + relation_place[relation]) * len(refs) + place[target]
        for source, relation, target, _, _ in inside
    ]
    order = sorted(range(len(inside)), key=keys.__getitem__)
    return GraphContents(
        nodes=tuple(nodes[number] for number in numbers),
        edges=tuple(
            Edge(refs[place[source]], relation, refs[place[target]], resolution, candidates)
            for source, relation, target, resolution, candidates in (inside[index] for index in order)
        ),
    )


@contextmanager
def collection_paused() -> Generator[None]:
    """No cyclic garbage collection while many small tuples are made, of which none is garbage.

    Each pass would look at all that is there already: a graph of 200,000 edges was put together in 3.5
    seconds of processor time with them and in 1.2 without. For the whole process, so for short work only.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
