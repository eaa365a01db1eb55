"""The evidence for each document of a snapshot: words, names, history, and the graph around both.

Every signal is between 0 and 1, most of them divided by the request's maximum. Sums are formed in one order
and without a linear-algebra library, so machines differ in the last bits at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker.graph.adjacency import Adjacency, kind
from worker.graph.lexical import rarest, score
from worker.graph.links import RequestLinks
from worker.graph.snapshot import Snapshot

Floats = NDArray[np.float64]

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
    """By document: `(n_documents,)` each."""

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
    """Every signal for every document. `edge_weights` by kind of half-edge say what propagation follows."""
    words, count = snapshot.words, snapshot.words.document_count
    terms = words.known(links.query)
    lex = _over_maximum(score(words.together, terms, document_count=count))
    link = link_strengths(snapshot, links)
    evidence = lex + LINK_IN_EVIDENCE * link
    by_file = _over_maximum(file_scores(evidence, snapshot.documents.file_starts))
    file = by_file[snapshot.documents.files]
    return Signals(
        lex=lex,
        link=link,
        file=file,
        msg=snapshot.history.file_scores(links.query)[snapshot.documents.files],
        ppr=_propagated(snapshot, evidence + FILE_IN_SEEDS * file, edge_weights),
        nbr=_over_maximum(best_neighbours(snapshot, evidence)),
        path=_over_maximum(score(words.alone["path"], terms, document_count=count)),
        name=_over_maximum(score(words.alone["name"], terms, document_count=count)),
        rarest=_over_maximum(rarest(words.together, terms, document_count=count)),
    )


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


def file_scores(evidence: Floats, file_starts: NDArray[np.int32]) -> Floats:
    """By file: its three best documents, the second and third counting less. Evidence is not negative."""
    totals = np.zeros(len(file_starts) - 1)
    filled = np.flatnonzero(np.diff(file_starts))
    if not len(filled):
        return totals
    starts = file_starts[filled]
    sizes = np.diff(np.append(starts, len(evidence)))
    left = evidence.copy()
    for weight in _FILE_WEIGHTS:
        best = np.maximum.reduceat(left, starts)
        totals[filled] += weight * np.maximum(best, 0.0)
        # Of equals the first in each file goes, the others compete for the next place.
        is_best = left == np.repeat(best, sizes)
        places = np.flatnonzero(is_best)
        owners = np.searchsorted(starts, places, side="right") - 1
        firsts = places[np.concatenate([np.ones(1, dtype=bool), np.diff(owners) > 0])]
        left[firsts] = -1.0
    return totals


def best_neighbours(snapshot: Snapshot, evidence: Floats) -> Floats:
    """By document: the best evidence among its callers and callees, each times the weight of the call."""
    calls = snapshot.calls
    by_node = np.zeros(calls.node_count)
    by_node[snapshot.documents.nodes] = evidence
    found = np.zeros(calls.node_count)
    filled = np.flatnonzero(np.diff(calls.starts))
    if len(filled):
        reached = by_node.take(calls.targets)
        reached *= calls.weights
        found[filled] = np.maximum.reduceat(reached, calls.starts[filled])
    return found[snapshot.documents.nodes]


def _propagated(snapshot: Snapshot, seeds: Floats, edge_weights: Mapping[int, float]) -> Floats:
    """The square root of personalised PageRank from the best seeds, over its maximum."""
    best = top(seeds, SEEDS, snapshot.documents.tie_ranks)
    restart = np.zeros(len(snapshot.nodes))
    restart[snapshot.documents.nodes[best]] = np.square(seeds[best])
    total = float(restart.sum())
    if total <= 0:
        return np.zeros(len(seeds))
    ranks = page_rank(snapshot, restart / total, edge_weights)
    return _over_maximum(np.sqrt(ranks[snapshot.documents.nodes]))


def page_rank(snapshot: Snapshot, restart: Floats, edge_weights: Mapping[int, float]) -> Floats:
    """Personalised PageRank by node, for a restart distribution that sums to 1.

    Mass is pushed along half-edges in step, and dropped where less than a ten-thousandth is left, so the
    cost is that of the neighbourhood which the mass reaches, not of the graph. Cycles end: mass shrinks.
    """
    by_kind = np.zeros(128)
    for number, weight in edge_weights.items():
        by_kind[number] = weight
    ranks = np.zeros(len(restart))
    reached = _Reached(snapshot.edges, by_kind)
    active = np.flatnonzero(restart)
    mass = restart[active]
    for _ in range(STEPS):
        ranks[active] += RESTART * mass
        pushed = reached.push(active, (1.0 - RESTART) * mass)
        active = np.flatnonzero(pushed > _NEGLIGIBLE)
        mass = pushed[active]
        if not len(active):
            break
    return ranks


class _Reached:
    """The half-edges of the nodes that mass has stood on, each looked up once, in order of first arrival.

    Nodes with very many neighbours keep their mass for several steps, and looking their half-edges up takes
    several times as long as pushing along them.
    """

    def __init__(self, edges: Adjacency, by_kind: Floats) -> None:
        self._edges = edges
        self._by_kind = by_kind
        self._places = np.full(edges.node_count, -1, dtype=np.int64)
        self._degrees = np.zeros(0, dtype=np.int64)
        self._sums = np.zeros(0)
        self._targets = np.zeros(0, dtype=np.intp)
        self._weights = np.zeros(0)

    def push(self, nodes: NDArray[np.int64], mass: Floats) -> Floats:
        """What arrives at each node when the mass of `nodes` is shared out by weight: `(n_nodes,)`."""
        self._add(nodes[self._places[nodes] < 0])
        places = self._places[nodes]
        shares = np.zeros(len(self._sums))
        shares[places] = mass / self._sums[places]
        weights = np.repeat(shares, self._degrees)
        weights *= self._weights
        pushed = np.bincount(self._targets, weights=weights, minlength=self._edges.node_count)
        return pushed.astype(np.float64, copy=False)

    def _add(self, nodes: NDArray[np.int64]) -> None:
        if not len(nodes):
            return
        self._places[nodes] = np.arange(len(self._sums), len(self._sums) + len(nodes))
        targets, kinds, shares, degrees = self._edges.half_edges(nodes)
        weights = self._by_kind.take(kinds)
        weights *= shares
        owners = np.repeat(np.arange(len(nodes)), degrees)
        sums = np.bincount(owners, weights=weights, minlength=len(nodes))
        self._degrees = np.concatenate([self._degrees, degrees])
        self._sums = np.concatenate([self._sums, np.where(sums > 0, sums, 1.0)])
        self._targets = np.concatenate([self._targets, targets.astype(np.intp)])
        self._weights = np.concatenate([self._weights, weights])


def top(scores: Floats, count: int, tie_ranks: NDArray[np.int32]) -> NDArray[np.int64]:
    """The places of the highest scores above 0, best first; equals (to six decimals) in order of node id."""
    rounded = np.round(scores, 6)
    if count < len(rounded):
        threshold = np.partition(rounded, len(rounded) - count)[len(rounded) - count]
        chosen = np.flatnonzero((rounded >= threshold) & (rounded > 0))
    else:
        chosen = np.flatnonzero(rounded > 0)
    order = np.lexsort((tie_ranks[chosen], -rounded[chosen]))
    return chosen[order][:count]


def _over_maximum(values: Floats) -> Floats:
    best = float(values.max()) if len(values) else 0.0
    return values / best if best > 0 else values
