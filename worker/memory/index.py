"""The facts of one thread, kept so that a request finds those that bear on it in milliseconds.

Two measures of likeness, each between 0 and 1, are added up. Words: the cosine between the terms of the
request, each weighted by how rare it is among the facts, and the terms of a fact, with a little added to the
length of short ones so that a single word does not win. Spelling: the cosine of their embeddings, above what
unrelated texts have in common by chance. All sums are of whole numbers, so they are the same on every machine
and do not depend on how the index came about.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from schemas.session import MemoryItem
from worker.memory.embedding import DIMENSIONS, NORM, Vector, dot_products, embed_terms
from worker.memory.supersession import Age, age_of, by_id, is_blank, micros_of, subject_key
from worker.memory.words import terms_of

INDEXED_CHARS: Final = 20_000
"""How much of a fact is searched. What is longer is a document, and its beginning tells what it is about."""

MAX_QUERY_TERMS: Final = 64
"""The rarest terms of a long request decide; the others would cost more time than they tell."""

_WORDS_SHARE, _SPELLING_SHARE = 0.75, 0.25
_CHANCE: Final = 0.2
"""Nine of ten pairs of unrelated sentences (words of one README, drawn at random) have a smaller cosine."""

_SHORT_TERMS: Final = 8
_FINE: Final = 1_000
_LEAST_CAPACITY: Final = 64
_MAX_KEPT_TEXTS: Final = 4_096
_KEPT_TEXT_CHARS: Final = 1_000


Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, slots=True)
class RankedItem:
    """A fact that holds, and how much it has in common with the request: 0 to 1, rounded to six decimals."""

    item: MemoryItem
    score: float


class MemoryIndex:
    """Facts by id, subject and content. Not safe between threads: one owner at a time.

    A fact is searched while it holds; one that was superseded is kept, and holds again when its successor is
    removed. Two indexes that hold the same facts answer alike, whatever was added to them and in what order.
    Takes some 2 kB for a fact of a few lines.
    """

    __slots__ = ("_by_subject", "_frequencies", "_id_of", "_items", "_postings", "_slot_of", "_table")

    def __init__(self, items: Iterable[MemoryItem] = ()) -> None:
        """Hold these facts; several with one id are one, as `supersession.current` says."""
        self._items: dict[str, MemoryItem] = {}
        self._by_subject: dict[str, list[Age]] = {}
        self._id_of: dict[int, str] = {}
        self._slot_of: dict[str, int] = {}
        self._frequencies = Counter[str]()
        self._postings: dict[str, array[int]] = {}
        self._table = _Table()
        for item in by_id(items):
            self.add(item)

    def __len__(self) -> int:
        """How many facts hold."""
        return len(self._slot_of)

    def add(self, item: MemoryItem) -> None:
        """Hold the fact, in place of one with its id; a blank one only takes the other away.

        O(length of the text), amortised.
        """
        self.remove(item.id)
        if is_blank(item):
            return
        self._items[item.id] = item
        key = subject_key(item.subject)
        if key is None:
            self._search(item)
            return
        ages = self._by_subject.setdefault(key, [])
        before = ages[-1] if ages else None
        insort(ages, age_of(item))
        if ages[-1] != before:
            if before is not None:
                self._withdraw(before[1])
            self._search(item)

    def remove(self, item_id: str) -> bool:
        """Forget the fact; what it had superseded last holds again. Whether there was one. O(its length)."""
        item = self._items.pop(item_id, None)
        if item is None:
            return False
        is_searched = item_id in self._slot_of
        if is_searched:
            self._withdraw(item_id, item)
        key = subject_key(item.subject)
        if key is not None:
            ages = self._by_subject[key]
            del ages[bisect_left(ages, age_of(item))]
            if not ages:
                del self._by_subject[key]
            elif is_searched:
                self._search(self._items[ages[-1][1]])
        return True

    def current(self) -> list[MemoryItem]:
        """The facts that hold, by id."""
        return [self._items[item_id] for item_id in sorted(self._slot_of)]

    def history(self, subject: str) -> list[MemoryItem]:
        """All facts about the subject, the latest first."""
        ages = self._by_subject.get(subject_key(subject) or "", [])
        return [self._items[item_id] for _, item_id in reversed(ages)]

    def rank(self, query: str, *, limit: int) -> list[RankedItem]:
        """The `limit` best facts that hold: by score, then the latest, then by id.

        An undated fact is older than any. O(facts + postings of the query's terms + length of the query).
        """
        slots = np.flatnonzero(self._table.is_alive[: self._table.size])
        if limit <= 0 or not len(slots):
            return []
        scores = self._scores(query)[slots]
        times = self._table.times[slots]
        if limit < len(slots):
            # Whatever ties with the last one in score and time may come before it by its id.
            near = np.flatnonzero(scores >= np.partition(scores, -limit)[-limit])
            near = near[np.lexsort((-times[near], -scores[near]))]
            last = near[limit - 1]
            is_within = (scores[near] > scores[last]) | (times[near] >= times[last])
            slots, scores, times = (values[near[is_within]] for values in (slots, scores, times))
        ranked = sorted(
            (-score, -time, self._id_of[slot])
            for slot, score, time in zip(slots.tolist(), scores.tolist(), times.tolist(), strict=True)
        )
        return [RankedItem(self._items[item_id], -score) for score, _, item_id in ranked[:limit]]

    def _scores(self, query: str) -> NDArray[np.float64]:
        """The score of every slot, rounded: `(n_slots,)`."""
        table, query_terms = self._table, terms_of(query)
        shared = np.zeros(table.size, dtype=np.int64)
        square = 0
        for term, weight in self._weights(query_terms):
            square += weight * weight
            shared[np.frombuffer(self._postings[term], dtype=np.uint32).astype(np.intp)] += weight
        lengths = table.lengths[: table.size] + _SHORT_TERMS
        words = shared / np.sqrt(lengths * max(square, 1))
        cosines = dot_products(table.vectors[: table.size], embed_terms(query_terms)) / float(NORM**2)
        spelling = np.clip((cosines - _CHANCE) / (1 - _CHANCE), 0.0, 1.0)
        return np.round(_WORDS_SHARE * words + _SPELLING_SHARE * spelling, 6)

    def _weights(self, query_terms: Iterable[str]) -> list[tuple[str, int]]:
        """The query's terms that some fact holds: rarity times the binary digits of their count."""
        held = len(self._slot_of)
        weights = [
            (term, count.bit_length() * round(_FINE * math.log(1 + held / frequency)))
            for term, count in Counter(query_terms).items()
            if (frequency := self._frequencies.get(term, 0))
        ]
        weights.sort(key=lambda pair: (-pair[1], pair[0]))
        return weights[:MAX_QUERY_TERMS]

    def _search(self, item: MemoryItem) -> None:
        terms, vector = _content(item)
        slot = self._table.append(len(terms), micros_of(item.occurred_at), vector)
        self._slot_of[item.id] = slot
        self._id_of[slot] = item.id
        for term in terms:
            self._frequencies[term] += 1
            known = self._postings.get(term)
            if known is None:
                known = self._postings[term] = array("I")
            known.append(slot)

    def _withdraw(self, item_id: str, item: MemoryItem | None = None) -> None:
        slot = self._slot_of.pop(item_id)
        del self._id_of[slot]
        self._table.is_alive[slot] = False
        for term in _content(item or self._items[item_id])[0]:
            self._frequencies[term] -= 1
            if not self._frequencies[term]:
                del self._frequencies[term]
        # Its postings stay until as many slots are dead as alive, which keeps the cost of a change constant.
        if self._table.size > 2 * len(self._id_of) + _LEAST_CAPACITY:
            self._compact()

    def _compact(self) -> None:
        alive = np.flatnonzero(self._table.is_alive[: self._table.size])
        renumbered = np.full(self._table.size, -1, dtype=np.int64)
        renumbered[alive] = np.arange(len(alive))
        self._table.keep(alive)
        self._id_of = {number: self._id_of[slot] for number, slot in enumerate(alive.tolist())}
        self._slot_of = {item_id: slot for slot, item_id in self._id_of.items()}
        postings: dict[str, array[int]] = {}
        for term, slots in self._postings.items():
            moved = renumbered[np.frombuffer(slots, dtype=np.uint32).astype(np.intp)]
            if len(kept := moved[moved >= 0]):
                postings[term] = array("I", kept.astype(np.uint32).tobytes())
        self._postings = postings


class _Table:
    """Numbers of the searched facts by slot, in arrays that double when they are full."""

    __slots__ = ("is_alive", "lengths", "size", "times", "vectors")

    def __init__(self) -> None:
        self.size = 0
        self.is_alive = np.zeros(_LEAST_CAPACITY, dtype=np.bool_)
        self.lengths = np.zeros(_LEAST_CAPACITY, dtype=np.int64)
        self.times = np.zeros(_LEAST_CAPACITY, dtype=np.int64)
        self.vectors = np.zeros((_LEAST_CAPACITY, DIMENSIONS), dtype=np.int16)

    def append(self, length: int, time: int, vector: Vector) -> int:
        slot = self.size
        if slot == len(self.lengths):
            self._resize(np.arange(slot), 2 * slot)
        self.is_alive[slot] = True
        self.lengths[slot], self.times[slot], self.vectors[slot] = length, time, vector
        self.size += 1
        return slot

    def keep(self, slots: NDArray[np.intp]) -> None:
        """Only these, renumbered in their order."""
        self._resize(slots, max(_LEAST_CAPACITY, 2 * len(slots)))
        self.size = len(slots)

    def _resize(self, slots: NDArray[np.intp], capacity: int) -> None:
        self.is_alive = _moved(self.is_alive, slots, capacity)
        self.lengths = _moved(self.lengths, slots, capacity)
        self.times = _moved(self.times, slots, capacity)
        self.vectors = _moved(self.vectors, slots, capacity)


def _moved(old: NDArray[Number], slots: NDArray[np.intp], capacity: int) -> NDArray[Number]:
    new = np.zeros((capacity, *old.shape[1:]), dtype=old.dtype)
    new[: len(slots)] = old[slots]
    return new


def _content(item: MemoryItem) -> tuple[tuple[str, ...], Vector]:
    """The distinct terms of a fact and its subject, and their embedding."""
    text = f"{item.subject or ''}\n{item.text}"[:INDEXED_CHARS]
    # Threads repeat what they remember from request to request; long texts would fill the memory.
    return _kept_content(text) if len(text) <= _KEPT_TEXT_CHARS else _text_content(text)


def _text_content(text: str) -> tuple[tuple[str, ...], Vector]:
    terms = terms_of(text)
    return tuple(dict.fromkeys(terms)), embed_terms(terms)


@lru_cache(maxsize=_MAX_KEPT_TEXTS)
def _kept_content(text: str) -> tuple[tuple[str, ...], Vector]:
    return _text_content(text)
