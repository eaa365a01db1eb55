"""Each signal against its definition, written out plainly, on real source: this package's own."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import worker.graph
from tests.unit.graph.graphs import HEAD
from worker.code.assembling import IndexedFile, assemble
from worker.code.history import Commit, History
from worker.code.linking import Linker
from worker.code.reading import FileReaders, read_file
from worker.graph.adjacency import GUESS_WEIGHT, kind
from worker.graph.documents import FIELDS, fields_of
from worker.graph.lexical import Query
from worker.graph.links import RequestLinks, link_request
from worker.graph.model import GraphContents, Node, NodeRef
from worker.graph.signals import Signals, link_strengths, measure
from worker.graph.snapshot import Snapshot, build_snapshot
from worker.graph.templates import TEMPLATES
from worker.graph.terms import terms_of, words_of

REQUEST = """Names in `write_pack` cost more tokens than the budget

The list of names below the sections is counted by TextSizes, see worker/graph/packing.py. A path that stands
for several names should cost once, and the front matter of the file not at all.
"""
MESSAGES = {
    "a" * 40: ("Count names of packs once", ("packing.py", "pack_writer.py")),
    "b" * 40: ("Rank by hops", ("hop.py", "packing.py")),
    "c" * 40: ("Read the front matter of a file", ("pack_file.py",)),
}


@pytest.fixture(scope="module")
def contents() -> GraphContents:
    root = Path(worker.graph.__file__).parent
    files: dict[str, IndexedFile] = {}
    for path in sorted(root.glob("*.py")):
        content = path.read_bytes()
        name = f"worker/graph/{path.name}"
        reading = read_file(name, content, FileReaders())
        files[name] = IndexedFile(reading=reading, sha256=path.name, size_bytes=len(content), kept=b"")
    linker = Linker({path: file.reading for path, file in files.items()})
    commits = tuple(
        Commit(
            hash=commit,
            committed_at="2026-01-01T00:00:00Z",
            message=message,
            paths=tuple(f"worker/graph/{name}" for name in names),
        )
        for commit, (message, names) in MESSAGES.items()
    )
    links = {path: linker.link(path) for path in files}
    return assemble("p", files, links, history=History(head="a" * 40, commits=commits), rules="r")


@pytest.fixture(scope="module")
def snapshot(contents: GraphContents) -> Snapshot:
    return build_snapshot(HEAD, contents)


@pytest.fixture(scope="module")
def links(snapshot: Snapshot) -> RequestLinks:
    return link_request(REQUEST, (), snapshot)


@pytest.fixture(scope="module")
def signals(snapshot: Snapshot, links: RequestLinks) -> Signals:
    return measure(snapshot, links, edge_weights=TEMPLATES["DEBUG"].edge_weights())


class Plain:
    """The definitions, over plain lists: as slow as they are short."""

    def __init__(self, snapshot: Snapshot, query: Query) -> None:
        self.query = dict(query.weights)
        self.nodes: list[Node] = [snapshot.nodes[n] for n in snapshot.documents.nodes.tolist()]
        texts = [fields_of(node) for node in self.nodes]
        self.counts = [{name: _terms(text) for name, text in fields.items()} for fields in texts]
        self.lengths = [{name: len(words_of(text)) for name, text in fields.items()} for fields in texts]

    def bm25(self, fields: Mapping[str, tuple[float, float]]) -> list[float]:
        """By document, for fields with weight and length penalty b; k1 is 1.2."""
        means = {f: sum(lengths[f] for lengths in self.lengths) / len(self.lengths) for f in fields}
        idf = self.idf(fields)
        scores: list[float] = []
        for counts, lengths in zip(self.counts, self.lengths, strict=True):
            total = 0.0
            for term, weight in self.query.items():
                frequency = sum(
                    w * counts[f][term] / (1 - b + b * lengths[f] / means[f]) for f, (w, b) in fields.items()
                )
                total += weight * idf[term] * frequency / (1.2 + frequency)
            scores.append(total)
        return scores

    def idf(self, fields: Iterable[str]) -> dict[str, float]:
        names = list(fields)
        found = {t: sum(any(c[f][t] for f in names) for c in self.counts) for t in self.query}
        return {t: math.log(1 + (len(self.counts) - n + 0.5) / (n + 0.5)) for t, n in found.items()}

    def rarest(self) -> list[float]:
        idf = self.idf(FIELDS)
        held = [{t for t in self.query if any(c[f][t] for f in FIELDS)} for c in self.counts]
        return [max((idf[t] for t in terms), default=0.0) for terms in held]


def _terms(text: str) -> Counter[str]:
    return Counter(term for word in words_of(text) for term in terms_of(word))


def _over_maximum(values: Sequence[float]) -> list[float]:
    return [value / max(values) for value in values]


@pytest.fixture(scope="module")
def plain(snapshot: Snapshot, links: RequestLinks) -> Plain:
    return Plain(snapshot, links.query)


@pytest.fixture(scope="module")
def evidence(snapshot: Snapshot, links: RequestLinks, plain: Plain) -> list[float]:
    """lex + 1.3 link of every document."""
    lex = _over_maximum(plain.bm25({name: (field.weight, 0.8) for name, field in FIELDS.items()}))
    return [a + 1.3 * b for a, b in zip(lex, link_strengths(snapshot, links).tolist(), strict=True)]


def by_file(plain: Plain, evidence: Sequence[float]) -> list[float]:
    """The three best documents of each file, weights 1, .5, .25, over the maximum."""
    files: defaultdict[str, list[float]] = defaultdict(list)
    for node, value in zip(plain.nodes, evidence, strict=True):
        files[node.path].append(value)
    sums = {
        path: sum(w * v for w, v in zip((1.0, 0.5, 0.25), sorted(values, reverse=True), strict=False))
        for path, values in files.items()
    }
    return [sums[node.path] / max(sums.values()) for node in plain.nodes]


def test_the_words_of_a_request_weigh_as_defined(links: RequestLinks) -> None:
    first, _, rest = REQUEST.strip().partition("\n")
    counts = _terms(first) + _terms(first) + _terms(rest)
    assert dict(links.query.weights) == {term: 1 + math.log(count) for term, count in counts.items()}


def test_words_names_and_paths_are_bm25_over_the_maximum(signals: Signals, plain: Plain) -> None:
    fields = {"name": 4.0, "path": 2.0, "signature": 1.5, "docstring": 1.0, "comments": 0.7, "body": 1.0}
    whole = plain.bm25({name: (weight, 0.8) for name, weight in fields.items()})
    expected = {
        "lex": whole,
        "path": plain.bm25({"path": (1.0, 0.5)}),
        "name": plain.bm25({"name": (1.0, 0.5)}),
        "rarest": plain.rarest(),
    }
    for name, values in expected.items():
        found = getattr(signals, name)
        np.testing.assert_allclose(found, np.array(_over_maximum(values))[signals.places], atol=2e-6)


def test_a_file_is_worth_its_best_documents(signals: Signals, plain: Plain, evidence: list[float]) -> None:
    expected = np.array(by_file(plain, evidence))[signals.places]
    np.testing.assert_allclose(signals.file, expected, atol=2e-6)


def test_a_file_is_worth_its_best_message(signals: Signals, plain: Plain, links: RequestLinks) -> None:
    counts = [_terms(message) for message, _ in MESSAGES.values()]
    lengths = [len(words_of(message)) for message, _ in MESSAGES.values()]
    mean = sum(lengths) / len(lengths)
    best: defaultdict[str, float] = defaultdict(float)
    for (_, names), held, length in zip(MESSAGES.values(), counts, lengths, strict=True):
        score = 0.0
        for term, weight in links.query.weights:
            n = sum(term in other for other in counts)
            frequency = held[term] / (0.2 + 0.8 * length / mean)
            score += (
                weight * math.log(1 + (len(counts) - n + 0.5) / (n + 0.5)) * frequency / (1.2 + frequency)
            )
        for name in names:
            best[f"worker/graph/{name}"] = max(best[f"worker/graph/{name}"], score)
    expected = np.array([best[node.path] / max(best.values()) for node in plain.nodes])[signals.places]
    np.testing.assert_allclose(signals.msg, expected, atol=2e-6)


def test_a_caller_or_callee_lends_its_evidence(
    signals: Signals, plain: Plain, evidence: list[float], contents: GraphContents
) -> None:
    worth = {node.ref: value for node, value in zip(plain.nodes, evidence, strict=True)}
    best: defaultdict[NodeRef, float] = defaultdict(float)
    for edge in contents.edges:
        if edge.relation == "CALLS":
            weight = 1.0 if edge.resolution == "exact" else GUESS_WEIGHT / edge.candidates
            for near, far in ((edge.source, edge.target), (edge.target, edge.source)):
                best[near] = max(best[near], weight * worth.get(far, 0.0))
    expected = np.array(_over_maximum([best[node.ref] for node in plain.nodes]))[signals.places]
    assert np.count_nonzero(expected) > len(expected) / 4
    np.testing.assert_allclose(signals.nbr, expected, atol=2e-6)


def test_propagation_is_personalised_page_rank_of_the_best_documents(
    snapshot: Snapshot, signals: Signals, plain: Plain, evidence: list[float], contents: GraphContents
) -> None:
    seeds = np.array(evidence) + 0.3 * np.array(by_file(plain, evidence))
    chosen = sorted(range(len(seeds)), key=lambda n: (-round(seeds[n], 6), plain.nodes[n].id))[:25]
    numbers = {node.ref: n for n, node in enumerate(snapshot.nodes)}
    edge_weights = TEMPLATES["DEBUG"].edge_weights()
    walk = np.zeros((len(numbers), len(numbers)))
    for edge in contents.edges:
        source, target = numbers.get(edge.source), numbers.get(edge.target)
        if source is None or target is None:
            continue
        share = 1.0 if edge.resolution == "exact" else GUESS_WEIGHT / edge.candidates
        walk[source, target] += share * edge_weights.get(kind(edge.relation), 0.0)
        walk[target, source] += share * edge_weights.get(kind(edge.relation, backward=True), 0.0)
    sums = walk.sum(axis=1, keepdims=True)
    walk = np.divide(walk, sums, out=np.zeros_like(walk), where=sums > 0)
    mass = np.zeros(len(numbers))
    mass[snapshot.documents.nodes[chosen]] = seeds[chosen] ** 2
    mass /= mass.sum()
    ranks = np.zeros(len(numbers))
    for _ in range(12):
        ranks += 0.5 * mass
        mass = 0.5 * mass @ walk
    expected = ranks[snapshot.documents.nodes]
    expected = (expected / expected.max())[signals.places]
    # Mass is dropped on its way where a ten-thousandth is left, or would come to each neighbour of a hub.
    np.testing.assert_allclose(signals.ppr**2, expected, atol=2e-2)


def test_shares_and_lengths_are_of_all_words(snapshot: Snapshot, plain: Plain) -> None:
    totals = np.array([max(1, sum(lengths.values())) for lengths in plain.lengths])
    docstrings = np.array([lengths["docstring"] for lengths in plain.lengths])
    np.testing.assert_allclose(snapshot.documents.docstring_shares, docstrings / totals)
    np.testing.assert_allclose(snapshot.documents.log_words, np.log(1 + totals))
