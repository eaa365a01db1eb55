"""Who calls a definition and whom it calls, as a graph has it: what is certain before what is guessed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from worker.graph.adjacency import kind
from worker.graph.model import NodeRef, Resolution
from worker.graph.snapshot import Snapshot

MAX_NEIGHBOURS: Final = 50


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One that calls, or is called."""

    ref: NodeRef
    resolution: Resolution
    place: str
    """`path:line` of its first line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallNeighbours:
    """Those around one definition: exact ones first, then guesses, each by node."""

    callers: tuple[Neighbour, ...]
    more_callers: int
    callees: tuple[Neighbour, ...]
    more_callees: int


def call_neighbours(snapshot: Snapshot, ref: NodeRef, *, most: int = MAX_NEIGHBOURS) -> CallNeighbours | None:
    """The callers and callees of a function, class or module, at most `most` of each; None of no such node.

    Of a class those of its methods too, but for what it calls of its own. O(its edges).
    """
    number = snapshot.find(ref)
    if number is None:
        return None
    own = [number]
    if ref.label == "Class":
        own += snapshot.edges.of(number, (kind("DEFINES"),))
    callers = _around(snapshot, own, kind("CALLS", backward=True))
    callees = _around(snapshot, own, kind("CALLS"))
    return CallNeighbours(
        callers=tuple(callers[:most]),
        more_callers=len(callers[most:]),
        callees=tuple(callees[:most]),
        more_callees=len(callees[most:]),
    )


def _around(snapshot: Snapshot, own: Iterable[int], wanted: int) -> list[Neighbour]:
    owned = set(own)
    calls = snapshot.calls
    certain: dict[int, bool] = {}
    for number in sorted(owned):
        start, end = int(calls.starts[number]), int(calls.starts[number + 1])
        rows = zip(
            calls.kinds[start:end].tolist(),
            calls.targets[start:end].tolist(),
            calls.weights[start:end].tolist(),
            strict=True,
        )
        for found, target, weight in rows:
            if found == wanted and (target not in owned or len(owned) == 1):
                certain[target] = certain.get(target, False) or weight >= 1.0
    order = sorted(certain, key=lambda target: (not certain[target], target))
    return [_neighbour(snapshot, target, is_exact=certain[target]) for target in order]


def _neighbour(snapshot: Snapshot, number: int, *, is_exact: bool) -> Neighbour:
    node = snapshot.nodes[number]
    return Neighbour(
        ref=node.ref,
        resolution="exact" if is_exact else "guess",
        place=f"{node.path}:{node.start_line}",
    )
