"""The decisions of all files as nodes, and who supersedes whom, whichever side says so."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from worker.code.documents.decision_words import number_of
from worker.code.documents.results import Decision, DocumentFacts, DocumentReference, Note
from worker.graph.model import Edge, Node, NodeRef

_PARTS: Final = re.compile(
    r"(?P<word>[A-Za-z]+)[ _-]?#?0*(?P<number>(?!0)\d++|0)(?P<letter>[a-z]?)\Z", re.IGNORECASE
)
_NAMES_A_RECORD: Final = re.compile(
    r"(?:[A-Za-z]+[ _-]?)?\d+[a-z]?\Z|.*\.md(?:#.*)?\Z", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class JoinedDecisions:
    """Nodes and edges of decisions, and what they speak of."""

    nodes: Sequence[Node]
    edges: Sequence[Edge]
    references: Sequence[DocumentReference]


@dataclass(frozen=True, slots=True)
class _Placed:
    facts: DocumentFacts
    decision: Decision
    ref: NodeRef


def join_decisions(facts: Sequence[DocumentFacts], notes: list[Note]) -> JoinedDecisions:
    """The decisions of `facts`, sorted by path. Adds a `dangling_link` for each record that is not there.

    A decision is named by its id where that is the project's only one; else a record by its path, one of a
    list by `<path>/<id>`; one of a list that has no id, by a digest of its title. O(n).
    """
    placed = _placed(facts)
    finder = _Finder(placed)
    pairs: dict[tuple[NodeRef, NodeRef], None] = {}
    unknown: defaultdict[NodeRef, dict[str, list[str]]] = defaultdict(dict)
    for one in placed:
        for side in ("supersedes", "superseded_by"):
            for target in getattr(one.decision, side):
                other = finder.find(target, one)
                if other is None:
                    unknown[one.ref].setdefault(side, []).append(target)
                    if _NAMES_A_RECORD.match(target):
                        line = one.decision.start_line
                        notes.append(
                            Note(code="dangling_link", line=line, detail=target, path=one.facts.path)
                        )
                elif other != one.ref:
                    pairs[(one.ref, other) if side == "supersedes" else (other, one.ref)] = None
    for newer, older in pairs:
        unknown[newer].setdefault("supersedes", []).append(older.id)
        unknown[older].setdefault("superseded_by", []).append(newer.id)
    edges = [Edge(newer, "SUPERSEDES", older) for newer, older in pairs]
    edges += [
        Edge(one.ref, "APPLIES_TO", NodeRef("Spec", one.facts.spec_id))
        for one in placed
        if one.decision.applies_to_spec and one.facts.spec_id
    ]
    references = [
        DocumentReference(source=one.ref, path=one.facts.path, relation="APPLIES_TO", reference=reference)
        for one in placed
        for reference in one.decision.applies_to
    ]
    return JoinedDecisions([_node(one, unknown[one.ref]) for one in placed], edges, references)


def _placed(facts: Iterable[DocumentFacts]) -> list[_Placed]:
    found = [(one, decision) for one in facts if not one.is_archived for decision in one.decisions]
    users = Counter(decision.id for _, decision in found)
    taken: Counter[str] = Counter()
    placed: list[_Placed] = []
    for one, decision in found:
        name = decision.id
        if not name or users[name] > 1:
            own = name or f"d_{hashlib.sha256(decision.title.encode()).hexdigest()[:10]}"
            name = one.path if one.format == "adr" else f"{one.path}/{own}"
        unique = name
        while unique in taken:
            taken[name] += 1
            unique = f"{name}#{taken[name]}"
        taken[unique] = 1
        placed.append(_Placed(one, decision, NodeRef("Decision", unique)))
    return placed


class _Finder:
    """Finds what a record means by a number, an id or a file: one near it first."""

    def __init__(self, placed: Iterable[_Placed]) -> None:
        self._by_path: dict[str, NodeRef] = {}
        self._near: dict[tuple[str, str], NodeRef] = {}
        self._by_id: defaultdict[str, list[NodeRef]] = defaultdict(list)
        for one in placed:
            folder = posixpath.dirname(one.facts.path)
            if one.facts.format == "adr":
                self._by_path.setdefault(one.facts.path, one.ref)
                if one.decision.number:
                    self._near.setdefault((folder, one.decision.number), one.ref)
            if one.decision.id:
                key = _key(one.decision.id)
                self._near.setdefault((one.facts.path, key), one.ref)
                self._near.setdefault((folder, key), one.ref)
                self._by_id[key].append(one.ref)

    def find(self, target: str, source: _Placed) -> NodeRef | None:
        """The decision, or None where there is none, or several that are equally far."""
        path = source.facts.path
        folder = posixpath.dirname(path)
        file = target.split("#", 1)[0]
        if file.lower().endswith(".md"):
            names = (posixpath.normpath(posixpath.join(folder, file)), posixpath.normpath(file.lstrip("/")))
            return next((self._by_path[name] for name in names if name in self._by_path), None)
        if target.startswith("#"):
            return None
        key = _key(target)
        for place in ((path, key), (folder, key), (folder, _record_number(target))):
            if place in self._near:
                return self._near[place]
        everywhere = self._by_id.get(key, [])
        return everywhere[0] if len(everywhere) == 1 else None


def _key(literal: str) -> str:
    """An id folded for finding alone: `ADR 9`, `adr-0009` and `ADR-9` are one."""
    match = _PARTS.match(literal.strip())
    return f"{match['word'].upper()}-{match['number']}{match['letter']}" if match else literal.strip()


def _record_number(target: str) -> str:
    """The number of a record that is named by number, or as ADR; of other ids none."""
    match = re.fullmatch(r"(?:M?ADR|RFC|DEC)?[ _-]?0*(\d+)", target.strip(), re.IGNORECASE)
    return number_of(target) if match else ""


def _node(one: _Placed, links: dict[str, list[str]]) -> Node:
    decision = one.decision
    properties = {
        "status": decision.status,
        "raw_status": decision.raw_status if decision.raw_status.lower() != decision.status else "",
        "date": decision.date,
        "number": decision.number,
        "literal": decision.id if decision.id != one.ref.id else "",
        **{side: ", ".join(sorted(ids)) for side, ids in links.items()},
    }
    return Node(
        label="Decision",
        id=one.ref.id,
        name=decision.title,
        path=one.facts.path,
        start_line=decision.start_line,
        end_line=decision.end_line,
        text=decision.text,
        language="markdown",
        properties=tuple(sorted((key, value) for key, value in properties.items() if value)),
    )
