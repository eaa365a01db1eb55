"""Texts as vectors without a model: feature hashing of terms and of their character n-grams.

Weinberger et al., "Feature Hashing for Large Scale Multitask Learning" (ICML 2009): a hash of each feature
says to which component it is added, and with which sign, so that what falls together cancels out on average.
Whole terms tell texts on different things apart; n-grams let misspelt, inflected and compound words meet.

Components are integers, and their products add up to less than 2^24, which float32 holds exactly. So a dot
product is the same number on every machine, in whatever order its numeric library adds.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker.memory.words import terms_of

Vector = NDArray[np.int16]

DIMENSIONS: Final = 256
NORM: Final = 2_000
"""Euclidean length of an embedding, but for the rounding of its components."""

_KEY: Final = b"context-worker memory 1"
_TERM_WEIGHT, _GRAM_WEIGHT = 1, 1
_GRAM_CHARS: Final = 3
_MAX_KEPT_TERMS: Final = 32_768
_FINE_BITS: Final = 20
_BLOCK_ROWS: Final = 1_024


def embed(text: str) -> Vector:
    """The embedding of a text: `(DIMENSIONS,)`; all zero where the text holds no term. O(length)."""
    return embed_terms(terms_of(text))


def embed_terms(terms: Iterable[str]) -> Vector:
    """The embedding of terms that are split already; their order makes no difference.

    A term that stands there n times counts as often as n has binary digits.
    """
    # Some hundred additions: a plain loop takes a third of what arrays of a dozen numbers each take.
    total = array("q", bytes(8 * DIMENSIONS))
    for term, count in Counter(terms).items():
        weight = count.bit_length()
        for place, value in _features(term):
            total[place] += value * weight
    return _scaled(np.frombuffer(total, dtype=np.int64))


def similarity(one: Vector, other: Vector) -> float:
    """The cosine of two embeddings, -1 to 1, rounded to six decimals; 0 where one of them is zero."""
    dot = int(dot_products(one[np.newaxis], other)[0])
    return max(-1.0, min(1.0, round(dot / NORM**2, 6)))


def dot_products(rows: NDArray[np.int16], vector: Vector) -> NDArray[np.float32]:
    """The products of `rows` `(n, DIMENSIONS)` with one vector: `(n,)`, whole numbers."""
    found = np.empty(len(rows), dtype=np.float32)
    wide = vector.astype(np.float32)
    # Blocks stay in the processor's cache while they are widened: half the time of one conversion.
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS]
        np.dot(block.astype(np.float32), wide, out=found[start : start + len(block)])
    return found


def _scaled(total: NDArray[np.int64]) -> Vector:
    square = int(total @ total)
    if square == 0:
        return np.zeros(DIMENSIONS, dtype=np.int16)
    # Whole numbers all the way: the root in fixed point, then each component rounded half up.
    root = math.isqrt(square << (2 * _FINE_BITS))
    size = (2 * np.abs(total) * (NORM << _FINE_BITS) + root) // (2 * root)
    return (np.sign(total) * size).astype(np.int16)


@lru_cache(maxsize=_MAX_KEPT_TERMS)
def _features(term: str) -> tuple[tuple[int, int], ...]:
    """The components that a term touches, each once, ascending, and what it adds to each."""
    sums = Counter[int]()
    for feature, weight in _weighted_features(term):
        # The key keeps the places independent of any other use of the hash.
        digest = hashlib.blake2b(feature.encode("utf-8", "surrogatepass"), digest_size=8, key=_KEY).digest()
        number = int.from_bytes(digest, "little")
        sums[number % DIMENSIONS] += weight if number >> 63 else -weight
    return tuple(sorted(sums.items()))


def _weighted_features(term: str) -> Iterable[tuple[str, int]]:
    yield f"={term}", _TERM_WEIGHT
    marked = f"<{term}>"
    if len(term) > 1:
        for at in range(len(marked) - _GRAM_CHARS + 1):
            yield marked[at : at + _GRAM_CHARS], _GRAM_WEIGHT
