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
    """Breadth first from the roots along half-edges of those kinds. O(half-edges of what is reached).

    Where a ring would exceed `max_nodes`, its nodes are taken in order of label and id until the cap; roots
    are never capped. Cycles end: a node is reached once.
    """
    edges = snapshot.edges
    followed = np.zeros(128, dtype=np.bool_)
    followed[sorted(kinds)] = True
    hops = np.full(len(snapshot.nodes), -1, dtype=np.int64)
    ring = np.array(sorted(set(roots)), dtype=np.int64)
    hops[ring] = 0
    reached, truncated = len(ring), 0
    for distance in range(1, max_hops + 1):
        places, lengths = edges.places(ring)
        owners = np.repeat(np.arange(len(ring)), lengths)
        chosen = followed[edges.kinds[places]]
        places, owners = places[chosen], owners[chosen]
        counts = np.bincount(owners, minlength=len(ring))
        nth = np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]
        truncated += int(np.maximum(counts - max_fan_out, 0).sum())
        targets = edges.targets[places[nth < max_fan_out]]
        ring = np.unique(targets[hops[targets] < 0]).astype(np.int64)
        room = max(0, max_nodes - reached)
        truncated += max(0, len(ring) - room)
        ring = ring[:room]
        if not len(ring):
            break
        hops[ring] = distance
        reached += len(ring)
    nodes = np.flatnonzero(hops >= 0)
    return Expansion(nodes=nodes, hops=hops[nodes], truncated=truncated)
