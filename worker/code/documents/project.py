"""What all requirement and decision files of a project say together, as nodes and edges of the graph.

The id of a requirement is what its file calls it, where one specification alone uses it; else
`<specification>/<id>`, so the same id in two specifications stays two. A delta that modifies, removes or
renames a requirement proposes and defines nothing: its nodes are always named after the delta, and an id
means the requirement as it holds today.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from worker.code.documents.decision_join import join_decisions
from worker.code.documents.openspec import truth_of
from worker.code.documents.reading import read_document
from worker.code.documents.results import (
    ITEM_KINDS,
    DocumentFacts,
    DocumentReference,
    Note,
    NoteCode,
    Reference,
    Requirement,
)
from worker.graph.model import Edge, Node, NodeRef

_LANGUAGES: Final = {"sphinx_needs": "rst", "doorstop": "yaml", "strictdoc": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """The specification and decision part of a graph."""

    paths: tuple[str, ...]
    """Of the files that hold any of it, sorted."""
    nodes: tuple[Node, ...]
    """Spec, Requirement, RequirementItem and Decision nodes, sorted by label and id."""
    edges: tuple[Edge, ...]
    """DEFINES, SUPERSEDES, and what clarifications apply to; sorted, each once."""
    references: tuple[DocumentReference, ...]
    """What decisions and requirements name and `resolve_references` looks up among all nodes of the graph."""
    notes: tuple[Note, ...]
    """Of all files, each with its path, sorted by path, line and code."""
    _items: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]], repr=False)
    _named: Mapping[str, tuple[NodeRef, ...]] = field(
        default_factory=dict[str, tuple[NodeRef, ...]], repr=False
    )
    _spec_of: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def items_for(self, literal: str, *, within: str = "") -> tuple[str, ...]:
        """Ids of the items that a tag naming `literal` may mean, sorted; more than one are guesses.

        A requirement's id stands for all its items, an id inside a requirement's name for that one, and the
        id of a node for itself. `within` is the path of the file that has the tag: specifications whose
        folder it stands in are preferred. O(candidates).
        """
        return self._nearest(self._items.get(literal, ()), within)

    def requirements_for(self, literal: str, *, within: str = "") -> tuple[NodeRef, ...]:
        """The Requirement or RequirementItem nodes that `literal` names, sorted; as `items_for` otherwise."""
        found = self._named.get(literal, ())
        near = set(self._nearest(tuple(ref.id for ref in found), within))
        return tuple(ref for ref in found if ref.id in near)

    def _nearest(self, ids: tuple[str, ...], within: str) -> tuple[str, ...]:
        near = tuple(
            item
            for item in ids
            if within == self._spec_of[item] or within.startswith(f"{self._spec_of[item]}/")
        )
        return near or ids


def read_documents(files: Mapping[str, str]) -> Documents:
    """What the texts of a tree say, by path; files that are no documents are passed over. Never raises.

    The same for every order of the files. Where facts are kept between runs, call `read_document` for the
    changed files and `join_documents` for all.
    """
    read = (read_document(path, text) for path, text in files.items())
    return join_documents(facts for facts in read if facts is not None)


def join_documents(facts: Iterable[DocumentFacts]) -> Documents:
    """The facts of all documents of a project as one. The same for every order. O(n log n)."""
    ordered = sorted(facts, key=lambda one: one.path)
    notes = [replace(note, path=one.path) for one in ordered for note in one.notes]
    join = _RequirementJoin(notes)
    for one in ordered:
        if one.spec_id and not one.is_archived:
            join.add(one)
    join.name()
    nodes, edges = join.graph()
    decisions = join_decisions(ordered, notes)
    references = [*decisions.references, *join.links(ordered)]
    return Documents(
        paths=tuple(dict.fromkeys(one.path for one in ordered)),
        nodes=tuple(sorted((*nodes, *decisions.nodes), key=lambda node: node.ref)),
        edges=tuple(sorted({*edges, *decisions.edges})),
        references=tuple(references),
        notes=tuple(sorted(notes, key=lambda note: (note.path, note.line, note.code, note.detail))),
        _items={literal: tuple(sorted(ids)) for literal, ids in join.items.items()},
        _named={literal: tuple(sorted(refs)) for literal, refs in join.named.items()},
        _spec_of=join.spec_of,
    )


@dataclass(slots=True)
class _Entry:
    """One requirement or item in its specification."""

    spec_id: str
    path: str
    format: str
    requirement: Requirement
    parent: _Entry | None = None
    has_parts: bool = False
    is_proposal: bool = False
    node_id: str = ""


class _RequirementJoin:
    """Names the requirements of all specifications, and makes nodes of them."""

    def __init__(self, notes: list[Note]) -> None:
        self._notes = notes
        self._specs: dict[str, list[DocumentFacts]] = {}
        self._entries: dict[str, dict[str, _Entry]] = {}
        self.items: defaultdict[str, set[str]] = defaultdict(set)
        self.named: defaultdict[str, set[NodeRef]] = defaultdict(set)
        self.spec_of: dict[str, str] = {}
        self._uses: Counter[tuple[str, str]] = Counter()
        self._parts_of: dict[str, dict[str, list[str]]] = {}

    def add(self, facts: DocumentFacts) -> None:
        """Take in a file's requirements; files are added in the order of their paths."""
        self._specs.setdefault(facts.spec_id, []).append(facts)
        entries = self._entries.setdefault(facts.spec_id, {})
        renamed: dict[str, str] = {}
        for requirement in facts.requirements:
            literal = requirement.id
            while literal in entries:
                self._uses[facts.spec_id, requirement.id] += 1
                literal = f"{requirement.id}#{self._uses[facts.spec_id, requirement.id] + 1}"
            if literal != requirement.id:
                renamed[requirement.id] = literal
                self._note("duplicate_id", requirement, facts.path, requirement.id)
            parent = renamed.get(requirement.parent, requirement.parent)
            named = replace(requirement, id=literal, parent=parent)
            entries[literal] = _Entry(facts.spec_id, facts.path, facts.format, named)

    def name(self) -> None:
        """Give every entry its parent and its node's id."""
        for entries in self._entries.values():
            for entry in entries.values():
                self._link(entry, entries)
        for spec_id, entries in self._entries.items():
            self._mark_proposals(spec_id, entries)
        users: defaultdict[str, set[str]] = defaultdict(set)
        for spec_id, entries in self._entries.items():
            for literal, entry in entries.items():
                if not entry.is_proposal:
                    users[literal].add(spec_id)
        taken: set[str] = set()
        every = [entry for _, entries in sorted(self._entries.items()) for entry in entries.values()]
        alone = [entry for entry in every if not entry.is_proposal and len(users[entry.requirement.id]) == 1]
        for entry in alone:
            entry.node_id = entry.requirement.id
            taken.add(entry.node_id)
        for entry in every:
            name = entry.node_id or f"{entry.spec_id}/{entry.requirement.id}"
            count = 2
            while not entry.node_id and name in taken:
                name, count = f"{entry.spec_id}/{entry.requirement.id}#{count}", count + 1
            entry.node_id = name
            taken.add(name)
            self.spec_of[name] = entry.spec_id
        self._index(every)

    def graph(self) -> tuple[list[Node], list[Edge]]:
        """The nodes of specifications, requirements and items, and what contains what."""
        nodes = [_spec_node(spec_id, facts) for spec_id, facts in self._specs.items()]
        edges: list[Edge] = []
        for spec_id, entries in self._entries.items():
            spec = NodeRef("Spec", spec_id)
            for entry in entries.values():
                requirement = NodeRef("Requirement", (entry.parent or entry).node_id)
                item = NodeRef("RequirementItem", entry.node_id)
                if entry.parent is None:
                    nodes.append(_node(entry, requirement))
                    edges.append(Edge(spec, "DEFINES", requirement))
                if entry.parent is not None or not entry.has_parts:
                    nodes.append(_node(entry, item))
                    edges.append(Edge(requirement, "DEFINES", item))
        return nodes, edges

    def links(self, facts: Iterable[DocumentFacts]) -> Iterable[DocumentReference]:
        """What requirements say of the files that serve them."""
        for one in facts:
            for link in one.links:
                reference = Reference(kind="path", value=link.path, line=link.line)
                entry = self._entries.get(one.spec_id, {}).get(link.requirement_id)
                for item_id in self._item_ids(entry) if entry else ():
                    item = NodeRef("RequirementItem", item_id)
                    yield DocumentReference(
                        source=item, path=one.path, relation="TRACES_TO", reference=reference
                    )

    def _link(self, entry: _Entry, entries: Mapping[str, _Entry]) -> None:
        """A criterion or scenario is part of the requirement above it, through others of its kind."""
        if entry.requirement.kind not in ITEM_KINDS:
            return
        seen = {entry.requirement.id}
        parent = entries.get(entry.requirement.parent)
        while parent is not None and parent.requirement.kind in ITEM_KINDS:
            if parent.requirement.id in seen:
                return
            seen.add(parent.requirement.id)
            parent = entries.get(parent.requirement.parent)
        if parent is not None:
            entry.parent = parent
            parent.has_parts = True

    def _mark_proposals(self, spec_id: str, entries: Mapping[str, _Entry]) -> None:
        truth = self._entries.get(truth_of(spec_id), {})
        for entry in entries.values():
            requirement = (entry.parent or entry).requirement
            if requirement.change in {"", "added"}:
                continue
            holds_today = (requirement.renamed_from or requirement.id) in truth
            if not holds_today and entry.parent is None:
                self._note(
                    "dangling_link", requirement, entry.path, requirement.renamed_from or requirement.id
                )
            entry.is_proposal = holds_today or requirement.change != "modified"

    def _index(self, every: Iterable[_Entry]) -> None:
        """What each id may mean; a proposal only where nothing that holds has the id."""
        proposals: list[_Entry] = []
        for entry in every:
            self._mean(entry, entry.node_id)
            if entry.is_proposal:
                proposals.append(entry)
            else:
                for literal in (entry.requirement.id, *entry.requirement.aliases):
                    self._mean(entry, literal)
        held = set(self.items)
        for entry in proposals:
            for literal in (entry.requirement.id, *entry.requirement.aliases):
                if literal not in held:
                    self._mean(entry, literal)

    def _mean(self, entry: _Entry, literal: str) -> None:
        label = "RequirementItem" if entry.parent else "Requirement"
        self.named[literal].add(NodeRef(label, entry.node_id))
        self.items[literal].update(self._item_ids(entry))

    def _item_ids(self, entry: _Entry) -> tuple[str, ...]:
        if not entry.has_parts:
            return (entry.node_id,)
        return tuple(self._parts(entry.spec_id).get(entry.requirement.id, ()))

    def _parts(self, spec_id: str) -> Mapping[str, list[str]]:
        cached = self._parts_of.get(spec_id)
        if cached is None:
            cached = self._parts_of[spec_id] = {}
            for entry in self._entries[spec_id].values():
                if entry.parent is not None:
                    cached.setdefault(entry.parent.requirement.id, []).append(entry.node_id)
        return cached

    def _note(self, code: NoteCode, requirement: Requirement, path: str, detail: str) -> None:
        self._notes.append(Note(code=code, line=requirement.start_line, detail=detail, path=path))


def _spec_node(spec_id: str, facts: Iterable[DocumentFacts]) -> Node:
    """The node of a folder or file that specifies, after the first of its files that has a title."""
    files = list(facts)
    main = next((one for one in files if one.title), files[0])
    properties = {"format": main.format, "status": main.status}
    return Node(
        label="Spec",
        id=spec_id,
        name=main.title or spec_id.rpartition("/")[2],
        path=main.path,
        start_line=1,
        end_line=max(main.line_count, 1),
        text=main.summary,
        language=_LANGUAGES.get(main.format, "markdown"),
        properties=tuple(sorted((key, value) for key, value in properties.items() if value)),
    )


def _node(entry: _Entry, ref: NodeRef) -> Node:
    requirement = entry.requirement
    properties = {
        **dict(requirement.properties),
        "kind": requirement.kind,
        "status": requirement.status,
        "modality": "" if requirement.modality == "none" else requirement.modality,
        "negated": "true" if requirement.negated else "",
        "change": requirement.change,
        "renamed_from": requirement.renamed_from,
        "literal": "" if requirement.id == ref.id else requirement.id,
        "parent": requirement.parent if ref.label == "Requirement" else "",
    }
    return Node(
        label=ref.label,
        id=ref.id,
        name=requirement.title or requirement.id,
        path=entry.path,
        start_line=requirement.start_line,
        end_line=requirement.end_line,
        text=requirement.text,
        language=_LANGUAGES.get(entry.format, "markdown"),
        properties=tuple(sorted((key, value) for key, value in properties.items() if value)),
    )
