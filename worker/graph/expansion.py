"""How far nodes are from the roots, along the edges that a template follows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker.graph.snapshot import Snapshot

MAX_EXPANDED: Final = 4_000
MAX_FAN_OUT: Final = 400
"""Neighbours of one node that are followed; those beyond, in order of kind and node, are counted instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """Nodes near the roots: numbers ascending, and the distance of each in edges, 0 for a root."""

    nodes: NDArray[np.int64]
    hops: NDArray[np.int64]
    truncated: int
    """Edges and nodes that the caps kept from being followed."""

    def by_node(self) -> Mapping[int, int]:
        """Distances by node number."""
        return dict(zip(self.nodes.tolist(), self.hops.tolist(), strict=True))


def expand(
    snapshot: Snapshot,
    roots: Collection[int],
    kinds: Collection[int],
    *,
    max_hops: int,
    max_nodes: int = MAX_EXPANDED,
    max_fan_out: int = MAX_FAN_OUT,
) -> Expansion:
    """Breadth first from the roots along half-edges of those kinds. O(nodes, half-edges followed).

    Where a ring would exceed `max_nodes`, its nodes are taken in order of label and id until the cap; roots
    are never capped. Cycles end: a node is reached once.
    """
    # A byte a node: all of them are looked at in the end.
    hops = np.full(len(snapshot.nodes), -1, dtype=np.int8)
    ring = np.array(sorted(set(roots)), dtype=np.int64)
    hops[ring] = 0
    reached, truncated = len(ring), 0
    for distance in range(1, max_hops + 1):
        targets, left_out = snapshot.edges.near(ring, kinds, at_most=max_fan_out)
        truncated += left_out
        hops[targets[hops[targets] < 0]] = distance
        ring = np.flatnonzero(hops == distance)
        room = max(0, max_nodes - reached)
        truncated += max(0, len(ring) - room)
        hops[ring[room:]] = -1
        ring = ring[:room]
        if not len(ring):
            break
        reached += len(ring)
    nodes = np.flatnonzero(hops >= 0)
    return Expansion(nodes=nodes, hops=hops[nodes].astype(np.int64), truncated=truncated)
