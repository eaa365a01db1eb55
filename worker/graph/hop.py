"""The plain ranking of SPEC-106, as it words it: a fixed linear score over independent graph signals.

The signals are hop distance from the linked entities, degree in trace links, whether a TESTED_BY edge is
there, recency, and a penalty for ambiguous links; equal scores are ordered by node id. What a node was
updated at is the time of the last commit that touched its file, else the epoch; recency is its place among
the files of the snapshot, never an age.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from worker.graph.expansion import expand
from worker.graph.links import RequestLinks
from worker.graph.snapshot import Snapshot
from worker.graph.templates import Template

HOP_WEIGHT: Final = 10.0
"""Taken off a hop; more than all else together can add, so a nearer node always comes first."""
TRACE_WEIGHT: Final = 2.0
MAX_TRACES: Final = 5
TESTED_WEIGHT: Final = 1.0
RECENCY_WEIGHT: Final = 1.0
AMBIGUITY_WEIGHT: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedByHops:
    """The best nodes, and how far each is."""

    ranked: tuple[tuple[int, float], ...] = ()
    """Node numbers and scores, best first."""
    hops: Mapping[int, int] = field(default_factory=dict[int, int])
    """Distances by node number."""
    truncated: int = 0
    """How much the caps on expansion left out."""


def rank_by_hops(
    links: RequestLinks, snapshot: Snapshot, template: Template, *, max_ranked: int
) -> RankedByHops:
    """The nodes within reach, at most `max_ranked`.

    A root among several readings of one mention loses up to three points, the more the readings. Nodes that
    nothing links to are not ranked at all. O(half-edges of what is reached).
    """
    penalties = _root_penalties(links, snapshot)
    if not penalties:
        return RankedByHops()
    reached = expand(snapshot, penalties, template.edge_weights(), max_hops=template.max_hops)
    places = snapshot.document_of_node[reached.nodes]
    is_document = places >= 0
    places, numbers = places[is_document], reached.nodes[is_document]
    documents = snapshot.documents
    recency = snapshot.history.recency
    newest = max(1, int(recency.max(initial=0)))
    # Roots are reached first of all, so each has its place among what was.
    doubts = np.zeros(len(reached.nodes))
    doubts[np.searchsorted(reached.nodes, list(penalties))] = list(penalties.values())
    hops = reached.hops[is_document]
    scores = np.round(
        -HOP_WEIGHT * hops
        + TRACE_WEIGHT * np.minimum(documents.trace_degrees[places], MAX_TRACES) / MAX_TRACES
        + TESTED_WEIGHT * documents.is_tested[places]
        + RECENCY_WEIGHT * recency[documents.files[places]] / newest
        - AMBIGUITY_WEIGHT * doubts[is_document],
        6,
    )
    order = np.lexsort((documents.tie_ranks[places], -scores))[:max_ranked]
    best = numbers[order].tolist()
    return RankedByHops(
        ranked=tuple(zip(best, scores[order].tolist(), strict=True)),
        hops=dict(zip(best, hops[order].tolist(), strict=True)),
        truncated=reached.truncated,
    )


def _root_penalties(links: RequestLinks, snapshot: Snapshot) -> dict[int, float]:
    """By root: 0 where some mention can mean nothing else, nearly 1 where it is one of very many readings."""
    penalties: dict[int, float] = {}
    for link in links.entities:
        penalty = 1.0 - 1.0 / len(link.nodes)
        for ref in link.nodes:
            number = snapshot.find(ref)
            if number is not None:
                penalties[number] = min(penalty, penalties.get(number, penalty))
    return penalties
