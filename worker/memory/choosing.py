"""Choosing sentences that matter and do not repeat each other.

Maximal marginal relevance (Carbonell and Goldstein, "The use of MMR, diversity-based reranking for reordering
documents and producing summaries", SIGIR 1998), in whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker.memory.embedding import NORM, Vector, dot_products

Ints = NDArray[np.int64]
Vectors = NDArray[np.int16]

FREE_PERCENT: Final = 30
"""Sentences that are less alike do not repeat each other; each per cent above costs a point."""

PATIENCE: Final = 32
"""So many sentences in a row that find no room mean that there is none."""


def choose(
    points: Ints,
    vectors: Vectors,
    take: Callable[[int], bool],
    *,
    least_points: int | None = None,
    repeated_percent: int = 101,
) -> list[int]:
    """The sentences that were taken, in order of choice; equals by their place.

    Sentence n is worth `points[n]`, less what it shares with the closest one chosen so far. The best is
    offered to `take`, which says whether there is room for it; after 32 refusals in a row there is none. With
    `least_points`, those that are worth no more come into question only while nothing is chosen; those that
    resemble a chosen one by at least `repeated_percent` never do. O(sentences x sentences).
    """
    closest = np.zeros(len(points), dtype=np.int64)
    is_open = np.ones(len(points), dtype=np.bool_)
    lowest = np.iinfo(np.int64).min
    chosen: list[int] = []
    misses = 0
    while misses < PATIENCE and is_open.any():
        worth = points - np.maximum(0, closest - FREE_PERCENT)
        best = int(np.argmax(np.where(is_open, worth, lowest)))
        if chosen and least_points is not None and worth[best] <= least_points:
            break
        is_open[best] = False
        misses += 1
        if take(best):
            misses = 0
            chosen.append(best)
            np.maximum(closest, percents(vectors, vectors[best]), out=closest)
            is_open &= closest < repeated_percent
    return chosen


def percents(vectors: Vectors, vector: Vector) -> Ints:
    """The cosines with one vector in per cent, rounded down: `(n_vectors,)`."""
    return dot_products(vectors, vector).astype(np.int64) * 100 // NORM**2
