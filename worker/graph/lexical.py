"""BM25F over short documents of several fields: which of them speak of the words of a request.

Robertson, Zaragoza and Taylor, "Simple BM25 extension to multiple weighted fields" (CIKM 2004): the counts of
a term in the fields are normalised by length and weighted, summed, and only then saturated. What does not
depend on the request is worked out when the index is built, so that a search adds up one number a posting.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker.graph.terms import terms_of, words_of

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]

DENSE_SHARE: Final = 0.25
"""A term that more of the documents hold is kept as one number a document, which can be read for some of them
alone. There are few such terms, and a row takes about the room of the postings."""

_BLOCK_CHARS: Final = 2_000_000
_MASK: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """How much a word in a field counts, and how far the field's length takes from that (b, 0 to 1)."""

    weight: float
    length_penalty: float = 0.8


@dataclass(frozen=True, slots=True)
class Query:
    """The terms of a request and how much each counts, in order of the terms."""

    weights: tuple[tuple[str, float], ...]


def query_of(text: str) -> Query:
    """The terms of the text; the first line counts twice, and a term n times counts 1 + ln n. O(length)."""
    counts = Counter[str]()
    first, _, rest = text.strip().partition("\n")
    for part in (first, first, rest):
        for word in words_of(part):
            counts.update(terms_of(word))
    return Query(tuple((term, 1.0 + math.log(count)) for term, count in sorted(counts.items())))


@dataclass(frozen=True, slots=True)
class Postings:
    """By term number: the documents that hold it, ascending, and what it adds to each before its idf.

    Frequent terms have no postings but a row: what the term adds to every document.
    """

    starts: NDArray[np.int32]
    documents: Ints
    gains: NDArray[np.float32]
    idf: Floats
    row_of: Mapping[int, int]
    """By frequent term: its row."""
    rows: NDArray[np.float32]
    """`(n_frequent, n_documents)`"""

    @property
    def size_bytes(self) -> int:
        """Of the arrays."""
        arrays = (self.starts, self.documents, self.gains, self.idf, self.rows)
        return sum(array.nbytes for array in arrays)


@dataclass(frozen=True, slots=True)
class LexicalIndex:
    """Documents by the terms they hold, all fields together, and some fields alone."""

    document_count: int
    vocabulary: Mapping[str, int]
    together: Postings
    alone: Mapping[str, Postings]
    lengths: Mapping[str, Ints]
    """Words by field: `(n_documents,)`."""

    @property
    def size_bytes(self) -> int:
        """About what the index takes in memory."""
        words = sum(len(term) + 110 for term in self.vocabulary)
        lengths = sum(counts.nbytes for counts in self.lengths.values())
        alone = sum(postings.size_bytes for postings in self.alone.values())
        return words + lengths + alone + self.together.size_bytes

    def known(self, query: Query) -> list[tuple[int, float]]:
        """The query's terms that some document holds, with their weights; the most frequent first.

        So a loop over them ends with the rarest, and sums are formed in one order everywhere.
        """
        found = [(self.vocabulary[term], weight) for term, weight in query.weights if term in self.vocabulary]
        return sorted(found, key=lambda item: (float(self.together.idf[item[0]]), item[0]))


@dataclass(frozen=True, slots=True)
class Found:
    """Postings of some terms one after the other, the most frequent term's first."""

    documents: NDArray[np.intp]
    gains: NDArray[np.float32]
    lengths: NDArray[np.int64]
    """How many each term has."""
    factors: Floats
    """What each term's gains are multiplied by: its weight and its idf."""
    idf: Floats


def look_up(postings: Postings, terms: Sequence[tuple[int, float]]) -> Found:
    """The postings of those of the terms that have some. O(postings found)."""
    rare = [(term, weight) for term, weight in terms if term not in postings.row_of]
    numbers = np.array([term for term, _ in rare], dtype=np.int64)
    starts, ends = postings.starts[numbers], postings.starts[numbers + 1]
    runs = [slice(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    idf = postings.idf[numbers]
    return Found(
        # Converted at once, indices take half the time of those that numpy converts piece by piece.
        documents=np.concatenate([postings.documents[:0], *(postings.documents[r] for r in runs)]).astype(
            np.intp
        ),
        gains=np.concatenate([postings.gains[:0], *(postings.gains[r] for r in runs)]),
        lengths=(ends - starts).astype(np.int64),
        factors=np.array([weight for _, weight in rare]) * idf,
        idf=idf,
    )


def score(postings: Postings, terms: Sequence[tuple[int, float]], *, document_count: int) -> Floats:
    """The similarity of every document to the weighted terms: `(n_documents,)`.

    O(postings of the rare terms + documents x frequent terms).
    """
    rare = score_rare(look_up(postings, terms), document_count=document_count)
    return rare + score_frequent(postings, terms, np.arange(document_count))[0]


def score_rare(found: Found, *, document_count: int) -> Floats:
    """What the terms add to every document: `(n_documents,)`. Sums are formed in order of the terms."""
    scores = np.zeros(document_count)
    # What is added must have the type of the sum: `add.at` takes ten times as long where it has not.
    np.add.at(scores, found.documents, found.gains * np.repeat(found.factors, found.lengths))
    return scores


def rarest(found: Found, *, document_count: int) -> Floats:
    """The idf of the rarest of the terms that each document holds, 0 where it holds none."""
    best = np.zeros(document_count)
    # Where a document stands several times the last value stays, and that is the rarest term's.
    best[found.documents] = np.repeat(found.idf, found.lengths)
    return best


def score_frequent(
    postings: Postings, terms: Sequence[tuple[int, float]], chosen: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """What the terms with a row add to the chosen documents, and the idf of the rarest that each holds.

    `(n_chosen,)` each, 0 where there is none. O(chosen x terms).
    """
    frequent = [(postings.row_of[term], term, weight) for term, weight in terms if term in postings.row_of]
    scores, best = np.zeros(len(chosen)), np.zeros(len(chosen))
    for row, term, weight in frequent:
        gains = postings.rows[row].take(chosen)
        scores += gains * np.float64(weight * postings.idf[term])
        best[gains > 0] = postings.idf[term]
    return scores, best


def build_index(
    documents: Sequence[Mapping[str, str]],
    *,
    fields: Mapping[str, Field],
    alone: Mapping[str, Field],
    k1: float = 1.2,
) -> LexicalIndex:
    """Index the documents, each a text by field. O(characters), about 8 MB of source a second.

    `alone` are fields that get postings of their own besides. Terms are numbered by first appearance.
    """
    counter = _TermCounter()
    counted: dict[str, list[_Counts]] = {name: [] for name in fields}
    lengths = {name: np.zeros(len(documents), dtype=np.int32) for name in fields}
    for start, end in _blocks(documents):
        for name in fields:
            texts = [document.get(name, "") for document in documents[start:end]]
            lengths[name][start:end], counts = counter.count(texts, first_document=start)
            counted[name].append(counts)
    terms = len(counter.vocabulary)
    together = _weighted(
        [(field, lengths[name], counted[name]) for name, field in fields.items()], terms, len(documents), k1
    )
    return LexicalIndex(
        document_count=len(documents),
        vocabulary=counter.vocabulary,
        together=together,
        alone={
            name: _weighted([(field, lengths[name], counted[name])], terms, len(documents), k1)
            for name, field in alone.items()
        },
        lengths=lengths,
    )


@dataclass(frozen=True, slots=True)
class _Counts:
    """How often terms stand in documents: keys (term << 32 | document) ascending, and counts."""

    keys: NDArray[np.int64]
    counts: NDArray[np.int64]


class _TermCounter:
    """Numbers words and terms as they come, and counts terms a document without a loop over occurrences."""

    def __init__(self) -> None:
        self.vocabulary: dict[str, int] = {}
        self._words: defaultdict[str, int] = defaultdict(self._add_word)
        self._pending: list[str] = []
        self._term_starts = array("q", [0])
        self._terms = array("q")

    def _add_word(self) -> int:
        return len(self._words)

    def count(self, texts: Sequence[str], *, first_document: int) -> tuple[Ints, _Counts]:
        """Words a text, and the terms in them."""
        number = self._words.__getitem__
        found = [list(map(number, words_of(text))) for text in texts]
        sizes = np.array([len(words) for words in found], dtype=np.int32)
        words = np.fromiter((w for ws in found for w in ws), dtype=np.int64, count=int(sizes.sum()))
        self._number_terms()
        documents = np.repeat(np.arange(first_document, first_document + len(texts)), sizes)
        starts = np.frombuffer(self._term_starts, dtype=np.int64)
        terms_a_word = starts[words + 1] - starts[words]
        places = gather_ranges(starts[words], terms_a_word)
        terms = np.frombuffer(self._terms, dtype=np.int64)[places] if len(places) else places
        keys, counts = np.unique((terms << 32) | np.repeat(documents, terms_a_word), return_counts=True)
        return sizes, _Counts(keys, counts)

    def _number_terms(self) -> None:
        """Give terms to the words that came since."""
        # A buffer that numpy looks at cannot grow, so the arrays are replaced.
        starts, terms = array("q", self._term_starts), array("q", self._terms)
        vocabulary = self.vocabulary
        for word in islice(self._words, len(starts) - 1, None):
            terms.extend([vocabulary.setdefault(term, len(vocabulary)) for term in terms_of(word)])
            starts.append(len(terms))
        self._term_starts, self._terms = starts, terms


def gather_ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers from each start on, as many as its length says, one range after the other."""
    total = int(lengths.sum())
    if not total:
        return np.zeros(0, dtype=np.int64)
    ends = np.cumsum(lengths)
    return np.arange(total) + np.repeat(starts - (ends - lengths), lengths)


def _blocks(documents: Sequence[Mapping[str, str]]) -> Iterable[tuple[int, int]]:
    """Ranges of documents with a bounded number of characters each."""
    start = chars = 0
    for number, document in enumerate(documents):
        chars += sum(map(len, document.values()))
        if chars >= _BLOCK_CHARS:
            yield start, number + 1
            start, chars = number + 1, 0
    if start < len(documents):
        yield start, len(documents)


def _weighted(
    fields: Sequence[tuple[Field, Ints, Sequence[_Counts]]], terms: int, document_count: int, k1: float
) -> Postings:
    """Postings of some fields together."""
    keys: list[NDArray[np.int64]] = []
    weights: list[Floats] = []
    for field, lengths, blocks in fields:
        mean = max(1e-9, float(lengths.sum()) / max(1, document_count))
        norms = field.weight / (1.0 - field.length_penalty + field.length_penalty * lengths / mean)
        for block in blocks:
            keys.append(block.keys)
            weights.append(block.counts * norms[block.keys & _MASK])
    all_keys = np.concatenate([np.zeros(0, dtype=np.int64), *keys])
    all_weights = np.concatenate([np.zeros(0), *weights])
    order = np.argsort(all_keys, kind="stable")
    all_keys, all_weights = all_keys[order], all_weights[order]
    firsts = np.flatnonzero(
        np.concatenate([np.ones(min(1, len(all_keys)), dtype=bool), np.diff(all_keys) > 0])
    )
    sums = np.add.reduceat(all_weights, firsts) if len(firsts) else np.zeros(0)
    unique = all_keys[firsts]
    owners = unique >> 32
    frequencies = np.bincount(owners, minlength=terms)
    idf = np.log(1.0 + (document_count - frequencies + 0.5) / (frequencies + 0.5))
    documents = (unique & _MASK).astype(np.int32)
    gains = (sums / (k1 + sums)).astype(np.float32)
    frequent = np.flatnonzero(frequencies > DENSE_SHARE * document_count)
    rows = np.zeros((len(frequent), document_count), dtype=np.float32)
    starts = np.cumsum(frequencies) - frequencies
    for row, term in enumerate(frequent.tolist()):
        run = slice(starts[term], starts[term] + frequencies[term])
        rows[row, documents[run]] = gains[run]
    is_rare = np.ones(terms, dtype=np.bool_)
    is_rare[frequent] = False
    kept = is_rare[owners]
    ends = np.cumsum(np.where(is_rare, frequencies, 0), dtype=np.int32)
    return Postings(
        starts=np.concatenate([np.zeros(1, dtype=np.int32), ends]),
        documents=documents[kept],
        gains=gains[kept],
        idf=idf,
        row_of={term: row for row, term in enumerate(frequent.tolist())},
        rows=rows,
    )
