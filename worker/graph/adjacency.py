"""The edges of a graph by node number, both ways, as flat arrays (compressed sparse rows)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.graph import RELATIONS, Relation
from worker.graph.lexical import gather_ranges
from worker.graph.model import Edge, NodeRef

GUESS_WEIGHT: Final = 0.4
"""What an edge counts that is one of several readings, before it is shared among them."""

_MANY: Final = 64

RELATION_NUMBERS: Final[Mapping[Relation, int]] = {relation: n for n, relation in enumerate(RELATIONS)}
BACKWARD: Final = len(RELATIONS)
"""Added to a relation's number where the edge is walked against its direction."""
_KINDS: Final = 2 * len(RELATIONS)


@dataclass(frozen=True, slots=True)
class Adjacency:
    """Half-edges by the node that they start from; every edge is here twice, once for each direction.

    `kinds` are relation numbers, `BACKWARD` added against the direction; `weights` are 1 for an exact edge,
    and for a guess its share of `GUESS_WEIGHT`. Those of one node are ordered by kind, then target.
    """

    starts: NDArray[np.int32]
    targets: NDArray[np.int32]
    kinds: NDArray[np.int8]
    weights: NDArray[np.float32]

    @property
    def size_bytes(self) -> int:
        """Of the arrays."""
        return self.starts.nbytes + self.targets.nbytes + self.kinds.nbytes + self.weights.nbytes

    @property
    def node_count(self) -> int:
        """How many nodes there are, with edges or without."""
        return len(self.starts) - 1

    def near(
        self, nodes: NDArray[np.int64], kinds: Collection[int], *, at_most: int
    ) -> tuple[NDArray[np.int32], int]:
        """The targets of the nodes' half-edges of those kinds, and how many were left out.

        Of one node at most so many, the first by kind and target; a target may come several times, in any
        order. O(half-edges given back, kinds of the nodes that have more).
        """
        starts = self.starts[nodes].astype(np.int64)
        lengths = self.starts[nodes + 1] - starts
        is_hub = lengths > at_most
        places = gather_ranges(starts[~is_hub], lengths[~is_hub])
        is_wanted = np.zeros(_KINDS, dtype=np.bool_)
        is_wanted[sorted(kinds)] = True
        found = [self.targets[places[is_wanted[self.kinds[places]]]]]
        left_out = 0
        for start, length in zip(starts[is_hub].tolist(), lengths[is_hub].tolist(), strict=True):
            room = at_most
            for first, last in self._runs(start, start + length, kinds):
                end = min(last, first + room)
                found.append(self.targets[first:end])
                room -= end - first
                left_out += last - end
        return np.concatenate(found), left_out

    def half_edges(
        self, nodes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int8], NDArray[np.float32], NDArray[np.int64]]:
        """Targets, kinds and weights of the nodes' half-edges, node by node, and how many each node has."""
        starts = self.starts[nodes].astype(np.int64)
        lengths = self.starts[nodes + 1] - starts
        if int(lengths.sum()) <= _MANY * len(nodes):
            places = gather_ranges(starts, lengths)
            return self.targets[places], self.kinds[places], self.weights[places], lengths
        # Few nodes with many neighbours: whole runs are copied ten times as fast as single places.
        runs = [slice(start, start + n) for start, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
        return (
            np.concatenate([self.targets[run] for run in runs]),
            np.concatenate([self.kinds[run] for run in runs]),
            np.concatenate([self.weights[run] for run in runs]),
            lengths,
        )

    def of(self, node: int, kinds: Collection[int]) -> list[int]:
        """The nodes at the other ends of the node's half-edges of those kinds, ordered by kind and node."""
        start, end = self.starts[node], self.starts[node + 1]
        if end - start > _MANY:
            runs = self._runs(int(start), int(end), kinds)
            return [n for first, last in runs for n in self.targets[first:last].tolist()]
        near = zip(self.kinds[start:end].tolist(), self.targets[start:end].tolist(), strict=True)
        return [target for kind, target in near if kind in kinds]

    def _runs(self, start: int, end: int, kinds: Collection[int]) -> list[tuple[int, int]]:
        """Where those of each kind begin and end among one node's half-edges, by kind. O(kinds log edges)."""
        # Ordered by kind, so those of one kind stand together.
        run, wanted = self.kinds[start:end], np.array(sorted(kinds), dtype=np.int8)
        firsts, lasts = start + run.searchsorted(wanted), start + run.searchsorted(wanted, side="right")
        return list(zip(firsts.tolist(), lasts.tolist(), strict=True))

    def degrees(self, nodes: NDArray[np.int64], kinds: Collection[int]) -> NDArray[np.int32]:
        """How many half-edges of those kinds each node has: `(n_nodes,)`."""
        chosen = np.isin(self.kinds, np.array(sorted(kinds), dtype=np.int8))
        passed = np.concatenate([np.zeros(1, dtype=np.int32), np.cumsum(chosen, dtype=np.int32)])
        return passed[self.starts[nodes + 1]] - passed[self.starts[nodes]]

    def only(self, kinds: Collection[int]) -> Adjacency:
        """The half-edges of those kinds alone."""
        chosen = np.isin(self.kinds, np.array(sorted(kinds), dtype=np.int8))
        passed = np.concatenate([np.zeros(1, dtype=np.int32), np.cumsum(chosen, dtype=np.int32)])
        return Adjacency(passed[self.starts], self.targets[chosen], self.kinds[chosen], self.weights[chosen])


def kind(relation: Relation, *, backward: bool = False) -> int:
    """The number of a relation walked in its direction, or against it."""
    return RELATION_NUMBERS[relation] + (BACKWARD if backward else 0)


def build_adjacency(edges: Sequence[Edge], numbers: Mapping[NodeRef, int]) -> Adjacency:
    """Both directions of every edge; the order of `edges` does not matter. O(n log n).

    An edge with an end that has no number is left out.
    """
    rows = [
        (numbers[e.source], RELATION_NUMBERS[e.relation], numbers[e.target], _weight(e))
        for e in edges
        if e.source in numbers and e.target in numbers
    ]
    sources = np.array([row[0] for row in rows], dtype=np.int64)
    relations = np.array([row[1] for row in rows], dtype=np.int64)
    targets = np.array([row[2] for row in rows], dtype=np.int64)
    weights = np.array([row[3] for row in rows], dtype=np.float32)
    starts = np.concatenate([sources, targets])
    ends = np.concatenate([targets, sources])
    kinds = np.concatenate([relations, relations + BACKWARD])
    order = np.lexsort((ends, kinds, starts))
    counts = np.bincount(starts, minlength=len(numbers))
    return Adjacency(
        starts=np.concatenate([np.zeros(1, dtype=np.int32), np.cumsum(counts, dtype=np.int32)]),
        targets=ends[order].astype(np.int32),
        kinds=kinds[order].astype(np.int8),
        weights=np.concatenate([weights, weights])[order],
    )


def _weight(edge: Edge) -> float:
    return 1.0 if edge.resolution == "exact" else GUESS_WEIGHT / max(1, edge.candidates)
