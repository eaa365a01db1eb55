"""Selection: a request's links and a snapshot to nodes in the order in which they deserve the budget.

A pure function; no model takes part. `graph` ranks every document by words, names, history and the graph, and
`hop` is the plain rule of SPEC-106 (`worker.graph.hop`). Equal scores are ordered by node id.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from schemas.codes import TaskType
from schemas.fragments import RelevanceTier
from schemas.graph import NodeLabel, Relation
from worker.graph.adjacency import kind
from worker.graph.documents import CLASS, PRIVATE, SPECIAL
from worker.graph.hop import rank_by_hops
from worker.graph.links import EntityLink, LinkKind, RequestLinks
from worker.graph.model import NodeRef
from worker.graph.signals import Signals, found_by_words, link_strengths, measure, top
from worker.graph.snapshot import Snapshot
from worker.graph.templates import TEMPLATES, Companion, Template, widened
from worker.graph.terms import SMALL_TALK

Ranking = Literal["graph", "hop"]
EmptyReason = Literal["graph_unavailable", "not_indexed", "nothing_found"]

MAX_RANKED: Final = 2_000
"""Nodes that a selection holds; budgets are full long before."""
LEXICAL_LINKS: Final = 25
MAX_CHANGES: Final = 5
MAX_PATTERNS: Final = 8

WEIGHTS: Final[Mapping[str, float]] = {
    "lex": 3.1,
    "link": 0.9,
    "file": 1.4,
    "msg": 1.4,
    "ppr": 1.7,
    "nbr": 1.0,
    "path": 0.9,
    "name": 0.5,
    "rarest": 2.1,
}
"""Fitted to what 128 commits of eight repositories edited, each fold scored on a repository it lacked."""
DOCSTRING_WEIGHT: Final = -1.9
LENGTH_WEIGHT: Final = 0.55
CLASS_WEIGHT: Final = 0.65
SPECIAL_WEIGHT: Final = 0.4
PRIVATE_WEIGHT: Final = 0.3
"""Classes, special methods and private functions are edited more often than words alone would say."""
NAMING_WEIGHTS: Final[Mapping[int, float]] = {
    CLASS: CLASS_WEIGHT,
    SPECIAL: SPECIAL_WEIGHT,
    PRIVATE: PRIVATE_WEIGHT,
}
_BY_NAMING: Final = np.array([NAMING_WEIGHTS.get(naming, 0.0) for naming in range(max(NAMING_WEIGHTS) + 1)])
TESTED_BONUS: Final = 0.05
SIZE_PENALTY: Final = 0.7
"""The sum behaves like a log-probability, so taking off a share of ln(tokens) orders by gain a token."""

_PLAIN: Final[frozenset[LinkKind]] = frozenset({"word", "module"})
"""Links of words that are spelled as any other word is."""
_PARENTS: Final = 20
_LED: Final[tuple[NodeLabel, ...]] = (
    *("Function", "Class", "Module"),
    *("Requirement", "RequirementItem", "Decision"),
)
_COMPANION_EDGES: Final[Mapping[Companion, tuple[tuple[Relation, bool, float], ...]]] = {
    # Relation, whether against its direction, and what one step takes off the parent's evidence.
    "requirements": (("TRACES_TO", False, 0.3), ("DEFINES", True, 0.5), ("DEFINES", True, 0.5)),
    "decisions": (("APPLIES_TO", True, 0.3),),
    "tests": (("TESTED_BY", False, 0.3),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LexicalLink:
    """A node that the request's words speak of, and how strongly beside the strongest, 0 to 1."""

    node: NodeRef
    strength: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Nodes best first, and what they were selected by."""

    snapshot_id: str
    ranking: Ranking
    template: Template
    links: RequestLinks
    ranked: tuple[tuple[int, float], ...]
    """Node numbers in the snapshot, best first, and the scores that they are ordered by, to six decimals."""
    rules: Mapping[int, str] = field(default_factory=dict[int, str])
    """By node number: the companion rule that brought a node in, where the ranking alone did not."""
    lexical: tuple[LexicalLink, ...] = ()
    changes: tuple[int, ...] = ()
    """Commits that last touched what was selected, the latest first: node numbers."""
    patterns: tuple[int, ...] = ()
    """Classes that share a base with a selected one: node numbers, in order of id."""
    truncated: int = 0
    """Edges and nodes that caps kept from being walked, for the ranking or for distances."""
    relevance: Literal["off", "prolog"] = "off"
    hops: Mapping[int, int] = field(default_factory=dict[int, int])
    """Edges from what the request names, by node number, where they were walked."""
    tiers: Mapping[int, RelevanceTier] = field(default_factory=dict[int, RelevanceTier])
    """By node number; what is ranked and not here is peripheral where relevance is on."""

    @property
    def entities(self) -> tuple[EntityLink, ...]:
        """What the request names."""
        return self.links.entities

    @property
    def reason(self) -> EmptyReason | None:
        """Why there is nothing, where that is so."""
        return None if self.ranked else "nothing_found"

    def tier_of(self, number: int) -> RelevanceTier | None:
        """The relevance tier of a node that is ranked; None where relevance is off."""
        return None if self.relevance == "off" else self.tiers.get(number, "peripheral")

    def template_of(self, number: int) -> str:
        """What selected a node: the template, and after a dot the companion rule where one did."""
        rule = self.rules.get(number)
        return f"{self.template.name}.{rule}" if rule else self.template.name


def select(
    links: RequestLinks,
    snapshot: Snapshot,
    *,
    task_type: TaskType,
    ranking: Ranking = "graph",
    extra_hops: int = 0,
    has_passages: bool = False,
) -> Selection:
    """The nodes that the work is most likely to need. Some 8 ms at 50,000 functions, `hop` 2 ms.

    With `extra_hops` the task's template is widened by so many. `has_passages` says that what words find is
    to be shown: `hop` looks for it then, and either ranking finds what the names of the payload's files say,
    too, for some 2 ms more. It changes neither which nodes are ranked nor their order.
    """
    template = widened(TEMPLATES[task_type], extra_hops)
    if ranking == "hop":
        reached = rank_by_hops(links, snapshot, template, max_ranked=MAX_RANKED)
        return Selection(
            snapshot_id=snapshot.head.snapshot_id,
            ranking=ranking,
            template=template,
            links=links,
            ranked=reached.ranked,
            lexical=_found_by_words(links, snapshot, template) if has_passages else (),
            hops=reached.hops,
            truncated=reached.truncated,
        )
    if says_nothing(links):
        return _nothing_found(links, snapshot, template)
    selection = _select_by_graph(links, snapshot, template)
    if has_passages and links.passage_query != links.query:
        return replace(selection, lexical=_found_by_words(links, snapshot, template))
    return selection


def led_by(selection: Selection, snapshot: Snapshot, ids: Collection[str]) -> Selection:
    """The selection with the documents that have these ids in front, in the order that they have there.

    Those that were not selected come behind the others of them, by id. Scores still fall.
    """
    if not ids:
        return selection
    ranked = dict(selection.ranked)
    wanted = [n for n in _documents_of(snapshot, ids) if n not in ranked]
    first = [(n, score) for n, score in selection.ranked if snapshot.nodes[n].id in ids]
    first += [(n, 0.0) for n in wanted]
    best = max((score for _, score in selection.ranked), default=0.0)
    led = [(n, round(best + len(first) - place, 6)) for place, (n, _) in enumerate(first)]
    leaders = {n for n, _ in first}
    others = tuple(one for one in selection.ranked if one[0] not in leaders)
    return replace(selection, ranked=(*led, *others))


def _documents_of(snapshot: Snapshot, ids: Collection[str]) -> list[int]:
    """The numbers of the documents with these ids, by id."""
    refs = sorted(NodeRef(label, own) for own in ids for label in _LED)
    numbers = [number for ref in refs if (number := snapshot.find(ref)) is not None]
    return [number for number in numbers if snapshot.document_of_node[number] >= 0]


def says_nothing(links: RequestLinks) -> bool:
    """Whether all words of a request are such as speak of no project, as in "Thanks, that is all".

    Such words stand in names, too, and would fill any budget with what they happen to stand in.
    """
    return all(term in SMALL_TALK for term, _ in links.query.weights) and all(
        entity.kind in _PLAIN for entity in links.entities
    )


def _nothing_found(links: RequestLinks, snapshot: Snapshot, template: Template) -> Selection:
    return Selection(
        snapshot_id=snapshot.head.snapshot_id, ranking="graph", template=template, links=links, ranked=()
    )


def _select_by_graph(links: RequestLinks, snapshot: Snapshot, template: Template) -> Selection:
    signals = measure(snapshot, links, edge_weights=template.edge_weights())
    documents = snapshot.documents
    if not len(signals.places):
        return _nothing_found(links, snapshot, template)
    evidence = combine(signals, snapshot)
    unasked_tests = documents.serves_tests[signals.places] & (signals.link <= 0)
    evidence[unasked_tests] -= template.test_penalty
    places, scores = _best(signals.places, evidence, snapshot)
    companions = _Companions(snapshot, template, signals.places, evidence)
    companions.follow(places[:_PARENTS])
    if companions.rules:
        places, scores = _best(*companions.raised(), snapshot)
    numbers = documents.nodes[places].tolist()
    return Selection(
        snapshot_id=snapshot.head.snapshot_id,
        ranking="graph",
        template=template,
        links=links,
        ranked=tuple(zip(numbers, scores.tolist(), strict=True)),
        rules={int(documents.nodes[place]): rule for place, rule in companions.rules.items()},
        lexical=_lexical_links(snapshot, template, signals.places, signals.lex, unasked_tests),
        changes=_changes(snapshot, numbers[:_PARENTS]) if "changes" in template.companions else (),
        patterns=_patterns(snapshot, numbers[:_PARENTS]) if "patterns" in template.companions else (),
    )


def _found_by_words(links: RequestLinks, snapshot: Snapshot, template: Template) -> tuple[LexicalLink, ...]:
    """What passages show, whatever the ranking."""
    places, words = found_by_words(snapshot, links.passage_query)
    is_unnamed = link_strengths(snapshot, links)[places] <= 0
    return _lexical_links(
        snapshot, template, places, words, snapshot.documents.serves_tests[places] & is_unnamed
    )


def _lexical_links(
    snapshot: Snapshot,
    template: Template,
    places: NDArray[np.int64],
    words: NDArray[np.float64],
    unasked_tests: NDArray[np.bool_],
) -> tuple[LexicalLink, ...]:
    """The places that words speak for most, tests that nobody asked for the less, as the template says."""
    documents = snapshot.documents
    weighed = np.where(unasked_tests, words / (1 + template.test_penalty), words)
    strongest = top(weighed, LEXICAL_LINKS, documents.tie_ranks[places])
    numbers: list[int] = documents.nodes[places[strongest]].tolist()
    return tuple(
        LexicalLink(node=snapshot.nodes[number].ref, strength=round(strength, 6))
        for number, strength in zip(numbers, weighed[strongest].tolist(), strict=True)
    )


def combine(signals: Signals, snapshot: Snapshot) -> NDArray[np.float64]:
    """The evidence for each candidate, before its size is looked at: `(n_candidates,)`."""
    documents, places = snapshot.documents, signals.places
    total = DOCSTRING_WEIGHT * documents.docstring_shares[places]
    total += LENGTH_WEIGHT * documents.log_words[places]
    total += _BY_NAMING[documents.namings[places]]
    for name, weight in WEIGHTS.items():
        total += weight * getattr(signals, name)
    total += TESTED_BONUS * documents.is_tested[places]
    return total


def _best(
    places: NDArray[np.int64], evidence: NDArray[np.float64], snapshot: Snapshot
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The best places and the scores that order them, equals in order of node id. O(n log n)."""
    documents = snapshot.documents
    scores = np.round(evidence - SIZE_PENALTY * documents.log_sizes[places], 6)
    order = np.lexsort((documents.tie_ranks[places], -scores))[:MAX_RANKED]
    return places[order], scores[order]


class _Companions:
    """Requirements, decisions and tests of the best documents, each a step below what led to it."""

    def __init__(
        self,
        snapshot: Snapshot,
        template: Template,
        places: NDArray[np.int64],
        evidence: NDArray[np.float64],
    ) -> None:
        """`places` ascend; `evidence` speaks for each of them."""
        self._snapshot = snapshot
        self._template = template
        self._places = places
        self._evidence = evidence
        self._raised: dict[int, float] = {}
        self.rules: dict[int, str] = {}
        """By document: which rule raised it."""

    def follow(self, parents: NDArray[np.int64]) -> None:
        """Raise what the template's rules lead to from the parents, which are candidates."""
        evidence = self._evidence[np.searchsorted(self._places, parents)].tolist()
        from_parents = dict(zip(parents.tolist(), evidence, strict=True))
        for companion, steps in _COMPANION_EDGES.items():
            if companion not in self._template.companions:
                continue
            found = from_parents
            for relation, is_backward, cost in steps:
                found = self._step(found, kind(relation, backward=is_backward), cost)
                self._raise(found, companion)

    def raised(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The candidates and what was raised, ascending, and the evidence for each."""
        raised = np.array(sorted(self._raised), dtype=np.int64)
        places = np.union1d(self._places, raised)
        evidence = np.zeros(len(places))
        evidence[np.searchsorted(places, self._places)] = self._evidence
        evidence[np.searchsorted(places, raised)] = [self._raised[place] for place in raised.tolist()]
        return places, evidence

    def _step(self, places: Mapping[int, float], edge: int, cost: float) -> dict[int, float]:
        found: dict[int, float] = {}
        documents, document_of_node = self._snapshot.documents, self._snapshot.document_of_node
        for place, evidence in places.items():
            for node in self._snapshot.edges.of(int(documents.nodes[place]), (edge,)):
                target = int(document_of_node[node])
                if target >= 0:
                    found[target] = max(found.get(target, -np.inf), evidence - cost)
        return found

    def _raise(self, places: Mapping[int, float], companion: Companion) -> None:
        for place, evidence in places.items():
            if evidence > max(self._evidence_of(place), self._raised.get(place, -np.inf)):
                self._raised[place] = evidence
                self.rules[place] = companion

    def _evidence_of(self, place: int) -> float:
        at = int(np.searchsorted(self._places, place))
        is_candidate = at < len(self._places) and self._places[at] == place
        return float(self._evidence[at]) if is_candidate else -np.inf


def _changes(snapshot: Snapshot, best: Sequence[int]) -> tuple[int, ...]:
    """The latest commits that touched the files of the best nodes."""
    paths = {snapshot.nodes[number].path for number in best} - {""}
    touches = (kind("TOUCHES"),)
    found: list[int] = []
    for commit in snapshot.history.latest:
        if any(snapshot.nodes[n].id in paths for n in snapshot.edges.of(commit, touches)):
            found.append(commit)
            if len(found) == MAX_CHANGES:
                break
    return tuple(found)


def _patterns(snapshot: Snapshot, best: Sequence[int]) -> tuple[int, ...]:
    """Classes that inherit from what the best classes inherit from, or that are such bases themselves."""
    up, down = (kind("INHERITS_FROM"),), (kind("INHERITS_FROM", backward=True),)
    classes = [number for number in best if snapshot.nodes[number].label == "Class"]
    found: dict[int, None] = {}
    for number in classes:
        for base in snapshot.edges.of(number, up):
            found |= dict.fromkeys(snapshot.edges.of(base, down))
    return tuple(sorted(set(found) - set(classes)))[:MAX_PATTERNS]
