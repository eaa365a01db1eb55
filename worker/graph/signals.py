"""The evidence for the documents that a request may speak of: words, names, history, the graph around both.

Words are looked up for every document. All else is worked out for the candidates alone: those that words and
names speak for most, and those that propagation reaches from the best of these. Every signal is between 0 and
1, most of them divided by the request's maximum. Sums are formed in one order and without a linear-algebra
library, so machines differ in the last bits at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker.graph.adjacency import Adjacency, kind
from worker.graph.lexical import LexicalIndex, Query, look_up, rarest, score_frequent, score_rare
from worker.graph.links import RequestLinks
from worker.graph.snapshot import Snapshot

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

MAX_FOUND: Final = 1_200
"""Documents that words and names bring in; far fewer are ever shown."""
MAX_CALLS: Final = 200
"""To and from a function; where there are more, its neighbours say nothing of it."""
LINK_IN_EVIDENCE: Final = 1.3
FILE_IN_SEEDS: Final = 0.3
SEEDS: Final = 25
RESTART: Final = 0.5
STEPS: Final = 12
_FILE_WEIGHTS: Final = (1.0, 0.5, 0.25)
MEMBER_SHARE: Final = 0.25
MODULE_SHARE: Final = 0.5
_NEGLIGIBLE: Final = 1e-4
_MEMBERS: Final = (kind("DEFINES"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """By candidate: `(n_candidates,)` each."""

    places: Places
    """Which documents the candidates are, ascending."""
    lex: Floats
    link: Floats
    file: Floats
    msg: Floats
    ppr: Floats
    nbr: Floats
    path: Floats
    name: Floats
    rarest: Floats


def measure(snapshot: Snapshot, links: RequestLinks, *, edge_weights: Mapping[int, float]) -> Signals:
    """Every signal for every candidate. `edge_weights` by kind of half-edge say what propagation follows."""
    words, documents = snapshot.words, snapshot.documents
    lexical = _Lexical(words, words.known(links.query))
    link = link_strengths(snapshot, links)
    found = lexical.candidates(LINK_IN_EVIDENCE * link, documents.tie_ranks)
    found_lex, found_rarest = lexical.together(found)
    best_lex = float(found_lex.max(initial=0.0)) or 1.0
    evidence = np.zeros(words.document_count)
    evidence[found] = found_lex / best_lex + LINK_IN_EVIDENCE * link[found]
    by_file = _over_maximum(
        file_scores(evidence[found], documents.files[found], file_count=len(snapshot.paths))
    )
    seeds = evidence[found] + FILE_IN_SEEDS * by_file[documents.files[found]]
    reached, ranks = _propagated(snapshot, found, seeds, edge_weights)
    further = np.setdiff1d(reached, found, assume_unique=True)
    further_lex, further_rarest = lexical.together(further)
    places = np.concatenate([found, further])
    order = np.argsort(places)
    places = places[order]
    ppr = np.zeros(len(places))
    ppr[np.searchsorted(places, reached)] = ranks
    files = documents.files[places]
    lex = np.concatenate([found_lex, further_lex])[order]
    return Signals(
        places=places,
        lex=np.minimum(lex / best_lex, 1.0),
        link=link[places],
        file=by_file[files],
        msg=snapshot.history.file_scores(links.query)[files],
        ppr=ppr,
        nbr=_over_maximum(best_neighbours(snapshot, evidence, places)),
        path=_over_maximum(lexical.alone("path", places)),
        name=_over_maximum(lexical.alone("name", places)),
        rarest=_over_maximum(np.concatenate([found_rarest, further_rarest])[order]),
    )


def found_by_words(snapshot: Snapshot, query: Query) -> tuple[Places, Floats]:
    """The documents that a query speaks for most, ascending, and how much beside the best one, 0 to 1."""
    lexical = _Lexical(snapshot.words, snapshot.words.known(query))
    places = lexical.candidates(np.zeros(snapshot.words.document_count), snapshot.documents.tie_ranks)
    return places, _over_maximum(lexical.together(places)[0])


class _Lexical:
    """Words of one request: what the rare ones say of every document, and all of them of some."""

    def __init__(self, words: LexicalIndex, terms: Sequence[tuple[int, float]]) -> None:
        self._words = words
        self._terms = terms
        found = look_up(words.together, terms)
        self._rare = score_rare(found, document_count=words.document_count)
        self._rarest = rarest(found, document_count=words.document_count)

    def candidates(self, boosts: Floats, tie_ranks: NDArray[np.int32]) -> Places:
        """The documents that words and boosts speak for most, ascending.

        Where the rare words find enough, the frequent ones have no say in who is a candidate: they stand
        nearly everywhere. `boosts` count beside the best document that words find.
        """
        evidence = self._rare
        if np.count_nonzero(evidence) < MAX_FOUND:
            evidence, _ = self.together(np.arange(len(evidence)))
        evidence = _over_maximum(evidence) + boosts
        return np.sort(top(evidence, MAX_FOUND, tie_ranks))

    def together(self, places: Places) -> tuple[Floats, Floats]:
        """How similar documents are to the request, and the idf of the rarest of its terms that each has."""
        frequent, best = score_frequent(self._words.together, self._terms, places)
        rarest_held = self._rarest[places]
        return self._rare[places] + frequent, np.where(rarest_held > 0, rarest_held, best)

    def alone(self, field: str, places: Places) -> Floats:
        """How similar one field of documents is to the request."""
        postings = self._words.alone[field]
        rare = score_rare(look_up(postings, self._terms), document_count=self._words.document_count)
        return rare[places] + score_frequent(postings, self._terms, places)[0]


def link_strengths(snapshot: Snapshot, links: RequestLinks) -> Floats:
    """What the request's entities add to each document, at most 2, halved."""
    strengths = np.zeros(snapshot.words.document_count)
    for link in links.entities:
        for ref in link.nodes:
            number = snapshot.find(ref)
            if number is not None:
                _add_link(snapshot, strengths, number, link.strength)
    return np.minimum(strengths, 2.0) / 2.0


def _add_link(snapshot: Snapshot, strengths: Floats, number: int, strength: float) -> None:
    document = int(snapshot.document_of_node[number])
    if document < 0:
        return
    strengths[document] += strength
    node = snapshot.nodes[number]
    if node.label == "Module":
        # What names a file means something in it.
        file = snapshot.documents.files[document]
        start, end = snapshot.documents.file_starts[file : file + 2]
        strengths[start:end] += strength * MODULE_SHARE
    elif node.label == "Class":
        for member in snapshot.edges.of(number, _MEMBERS):
            inner = int(snapshot.document_of_node[member])
            if inner >= 0:
                strengths[inner] += strength * MEMBER_SHARE


def file_scores(evidence: Floats, files: NDArray[np.int32], *, file_count: int) -> Floats:
    """By file: its three best documents, the second and third counting less. O(n log n).

    `evidence` and `files` are those of some documents.
    """
    order = np.lexsort((-evidence, files))
    owners = files[order]
    nth = np.arange(len(order)) - np.searchsorted(owners, owners)
    counted = nth < len(_FILE_WEIGHTS)
    shares = evidence[order][counted] * np.array(_FILE_WEIGHTS)[nth[counted]]
    return np.bincount(owners[counted], weights=shares, minlength=file_count).astype(np.float64, copy=False)


def best_neighbours(snapshot: Snapshot, evidence: Floats, places: Places) -> Floats:
    """By place: the best evidence among its callers and callees, each times the weight of the call.

    `evidence` is that of every document. What very many call is next to everything, which says nothing of it:
    0. O(calls to and from the others).
    """
    calls, document_of_node = snapshot.calls, snapshot.document_of_node
    nodes = snapshot.documents.nodes[places].astype(np.int64)
    degrees = calls.starts[nodes + 1] - calls.starts[nodes]
    asked = np.flatnonzero((degrees > 0) & (degrees <= MAX_CALLS))
    found = np.zeros(len(places))
    if len(asked):
        targets, _, weights, lengths = calls.half_edges(nodes[asked])
        ends = document_of_node.take(targets)
        # What is no document has no words: it takes the evidence of the last place, which is put out below.
        reached = evidence.take(ends, mode="wrap")
        reached *= weights
        reached[ends < 0] = 0.0
        found[asked] = np.maximum.reduceat(reached, np.cumsum(lengths) - lengths)
    return found


def _propagated(
    snapshot: Snapshot, found: Places, seeds: Floats, edge_weights: Mapping[int, float]
) -> tuple[Places, Floats]:
    """Documents that mass reaches from the best seeds, and the square root of their rank over its maximum."""
    documents = snapshot.documents
    best = top(seeds, SEEDS, documents.tie_ranks[found])
    restart = np.square(seeds[best])
    if not len(best):
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    order = np.argsort(documents.nodes[found[best]])
    nodes, ranks = page_rank(
        snapshot.edges,
        documents.nodes[found[best]][order].astype(np.int64),
        (restart / restart.sum())[order],
        edge_weights,
    )
    places = snapshot.document_of_node[nodes].astype(np.int64)
    is_document = places >= 0
    places, ranks = places[is_document], ranks[is_document]
    order = np.argsort(places)
    return places[order], _over_maximum(np.sqrt(ranks[order]))


def page_rank(
    edges: Adjacency, roots: Places, restart: Floats, edge_weights: Mapping[int, float]
) -> tuple[Places, Floats]:
    """Personalised PageRank of the nodes that mass reaches, ascending, for a restart that sums to 1.

    Mass is pushed along half-edges in step (after Andersen, Chung and Lang, "Local graph partitioning using
    PageRank vectors", FOCS 2006) and dropped where less than a ten-thousandth is left, or where so little
    would come to each neighbour: a hub keeps what it has. So the cost of a step is bounded, whatever the
    graph. Cycles end: mass shrinks.
    """
    by_kind = np.zeros(128)
    for number, weight in edge_weights.items():
        by_kind[number] = weight
    scratch = np.zeros(edges.node_count)
    ranks = np.zeros(edges.node_count)
    active, mass = roots, restart
    seen = [active]
    for _ in range(STEPS):
        ranks[active] += RESTART * mass
        targets, shares = _pushed(edges, by_kind, active, (1.0 - RESTART) * mass)
        np.add.at(scratch, targets, shares)
        active = np.unique(targets[scratch[targets] > _NEGLIGIBLE]).astype(np.int64)
        mass = scratch[active]
        scratch[targets] = 0.0
        if not len(active):
            break
        seen.append(active)
    reached = np.unique(np.concatenate(seen))
    return reached, ranks[reached]


def _pushed(
    edges: Adjacency, by_kind: Floats, nodes: Places, mass: Floats
) -> tuple[NDArray[np.intp], Floats]:
    """Where the mass of the nodes goes, shared out by weight, half-edge by half-edge."""
    is_pushing = mass > _NEGLIGIBLE * (edges.starts[nodes + 1] - edges.starts[nodes])
    nodes, mass = nodes[is_pushing], mass[is_pushing]
    if not len(nodes):
        return np.zeros(0, dtype=np.intp), np.zeros(0)
    targets, kinds, shares, degrees = edges.half_edges(nodes)
    weights = by_kind.take(kinds)
    weights *= shares
    owners = np.repeat(np.arange(len(nodes)), degrees)
    sums = np.bincount(owners, weights=weights, minlength=len(nodes))
    weights *= (mass / np.where(sums > 0, sums, 1.0))[owners]
    followed = weights > 0
    return targets[followed].astype(np.intp), weights[followed]


def top(scores: Floats, count: int, tie_ranks: NDArray[np.int32]) -> NDArray[np.int64]:
    """The places of the highest scores above 0, best first; equals (to six decimals) in order of node id."""
    least = 0.0
    if count < len(scores):
        # What rounds to the same as the last one that is taken is less than a millionth below it.
        least = float(np.partition(scores, len(scores) - count)[len(scores) - count]) - 1e-6
    chosen = np.flatnonzero(scores >= max(least, 5e-7))
    rounded = np.round(scores[chosen], 6)
    order = np.lexsort((tie_ranks[chosen], -rounded))
    order = order[rounded[order] > 0][:count]
    return chosen[order]


def _over_maximum(values: Floats) -> Floats:
    best = float(values.max()) if len(values) else 0.0
    return values / best if best > 0 else values
