"""What has to change for a graph of an older shape to be one of the canon: a plan, made without a store.

Older graphs say TRACES for TRACES_TO, TESTS (test to code) for TESTED_BY (code to test), HAS_METHOD and
CONTAINS for DEFINES; have Method and Package nodes, requirements that code serves without items, and ids that
are bare file names or carry the project in front. Whatever cannot be moved beyond doubt stays as it is and is
said. The plan of a graph that was migrated is empty.
"""

from __future__ import annotations

import posixpath
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from schemas.graph import (
    LABEL_RULE_OF,
    LEGACY_LABELS,
    LEGACY_RELATION_RULES,
    RELATION_RULE_OF,
    LegacyLabel,
    NodeLabel,
    Relation,
    store_key,
)

MODULE_QUALNAME: Final = "<module>"
_INDEXED: Final[tuple[NodeLabel, ...]] = (
    *("Project", "File", "Module", "Class", "Function", "Chunk", "Commit", "Owner"),
    *("Spec", "Requirement", "RequirementItem"),
)
INDEXED_LABELS: Final = frozenset(_INDEXED)
"""What an index of a source tree writes, and a graph store keeps as a graph. The rest is others' state."""

OLD_PROPERTIES: Final = (
    *(
        "id",
        "slug",
        "alias",
        "session_id",
        "req_id",
        "name",
        "qualname",
        "qualified_name",
        "path",
        "file_path",
    ),
    *("class_id", "class_name", "project", "key", "ref"),
)
"""What the plan is made from."""

_RELATION_NAMED: Final[Mapping[str, Relation]] = {relation: relation for relation in RELATION_RULE_OF}
_CODE: Final[frozenset[NodeLabel]] = frozenset({"Module", "Class", "Function"})
_BY_ID: Final[Mapping[NodeLabel, tuple[str, ...]]] = {
    "Project": ("slug", "id", "name"),
    "Volk": ("alias", "id", "name"),
    "Session": ("session_id", "id"),
    "Spec": ("id", "name"),
    "Requirement": ("id", "req_id", "name"),
    "RequirementItem": ("id", "req_id", "name"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OldNode:
    """A node as it is held. `number` is the store's own."""

    number: int
    labels: tuple[str, ...]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class OldEdge:
    """A relationship as it is held."""

    number: int
    source: int
    type: str
    target: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Unmoved:
    """What should move and cannot without a person's word, and why."""

    kind: Literal["node", "constraint"]
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedNode:
    """What the node shall be. `old_label` is taken off where it is not None."""

    number: int
    label: NodeLabel
    id: str
    old_label: LegacyLabel | None = None
    path: str = ""
    """Where it was not said before."""
    class_id: str = ""
    """Of a method."""


@dataclass(frozen=True, slots=True)
class NewItem:
    """A RequirementItem for a requirement that has none; it says what the requirement says."""

    requirement: int
    id: str


@dataclass(frozen=True, slots=True)
class ItemOf:
    """The new item of a requirement, as an end of an edge."""

    requirement: int


End = int | ItemOf


@dataclass(frozen=True, slots=True)
class MovedEdge:
    """What takes the place of the old edge; None where it is new."""

    old: int | None
    source: End
    relation: Relation
    target: End


@dataclass(slots=True)
class MigrationPlan:
    """Everything to do for one project, in the order of the lists, and what is left."""

    nodes: list[MovedNode] = field(default_factory=list[MovedNode])
    items: list[NewItem] = field(default_factory=list[NewItem])
    edges: list[MovedEdge] = field(default_factory=list[MovedEdge])
    counts: Counter[str] = field(default_factory=Counter[str])
    """How many of each kind are moved."""
    left: Counter[str] = field(default_factory=Counter[str])
    """How many of each kind stay, since the canon has no place for them."""
    unmoved: list[Unmoved] = field(default_factory=list[Unmoved])

    @property
    def is_empty(self) -> bool:
        """Whether the graph is as the canon says, as far as it can be."""
        return not (self.nodes or self.items or self.edges)


def plan_migration(
    project_id: str, nodes: Sequence[OldNode], edges: Sequence[OldEdge], *, is_whole: bool = False
) -> MigrationPlan:
    """The plan for one project's nodes and the edges that begin at them. O(nodes + edges).

    Where the graph `is_whole`, what an index or a migration wrote already is as it should be, requirements
    without items included; otherwise a migration may have ended before it made them.
    The same for the same input in any order, apart from which of two equal nodes keeps its place: the one
    that was migrated already, then the one with the smaller number.
    """
    planner = _Planner(project_id, nodes, edges, is_whole=is_whole)
    planner.place_nodes()
    planner.give_items()
    planner.move_edges()
    planner.plan.unmoved.sort()
    return planner.plan


class _Planner:
    def __init__(
        self, project_id: str, nodes: Sequence[OldNode], edges: Sequence[OldEdge], *, is_whole: bool
    ) -> None:
        self._is_whole = is_whole
        self.plan = MigrationPlan()
        self._project_id = project_id
        self._old = {node.number: node for node in sorted(nodes, key=lambda node: node.number)}
        self._edges = sorted(edges, key=lambda edge: edge.number)
        self._label: dict[int, NodeLabel] = {}
        self._id: dict[int, str] = {}
        self._number: dict[tuple[NodeLabel, str], int] = {}
        self._class_of: dict[int, int] = {}
        self._paths = self._known_paths()
        self._item_of: dict[int, End | None] = {}

    # --- Nodes -----------------------------------------------------------------------------------------

    def place_nodes(self) -> None:
        for node in self._old.values():
            self._set_label(node)
        for edge in self._edges:
            if edge.type in {"HAS_METHOD", "DEFINES", "CONTAINS"} and self._joins(edge, "Class", "Function"):
                self._class_of.setdefault(edge.target, edge.source)
        # Classes before functions, since a method's name may need its class; migrated ones before others.
        order = sorted(
            self._label,
            key=lambda number: (
                self._label[number] == "Function",
                "GraphNode" not in self._old[number].labels,
                number,
            ),
        )
        for number in order:
            self._set_id(self._old[number])
        for number in sorted(self._id):
            self._move_node(self._old[number])

    def _set_label(self, node: OldNode) -> None:
        canonical: list[NodeLabel] = [label for label in LABEL_RULE_OF if _has(node, label)]
        legacy: list[LegacyLabel] = [label for label in LEGACY_LABELS if _has(node, label)]
        wanted: list[NodeLabel] = canonical
        for old in legacy:
            instead = LEGACY_LABELS[old]
            if instead is not None and instead not in wanted:
                wanted.append(instead)
        if len(wanted) == 1:
            self._label[node.number] = wanted[0]
        elif wanted:
            self._leave(node, f"it has several labels of the canon: {', '.join(wanted)}")
        else:
            self.plan.left[_kind(node)] += 1

    def _set_id(self, node: OldNode) -> None:
        label = self._label[node.number]
        found = self._id_of(node, label)
        if isinstance(found, _Doubt):
            self._leave(node, found.reason)
            return
        if (label, found) in self._number:
            self._leave(node, f"another {label} has the id {found!r} already")
            return
        self._number[label, found] = node.number
        self._id[node.number] = found

    def _move_node(self, node: OldNode) -> None:
        number, label = node.number, self._label[node.number]
        old_label: LegacyLabel | None = next((old for old in LEGACY_LABELS if _has(node, old)), None)
        path, _, _ = self._id[number].partition("::") if label in {*_CODE, "File"} else ("", "", "")
        class_id = self._id.get(self._class_of.get(number, -1), "") if label == "Function" else ""
        held = node.properties
        moved = MovedNode(
            number=number,
            label=label,
            id=self._id[number],
            old_label=old_label,
            path="" if held.get("path") == path else path,
            class_id="" if held.get("class_id") == class_id else class_id,
        )
        if self._settled_id(self._old[number], label) and not old_label:
            return
        self.plan.nodes.append(moved)
        self.plan.counts[f"{old_label or label} -> {label}" if old_label else label] += 1

    def _settled_id(self, node: OldNode, label: NodeLabel) -> str:
        """The id of what an index or a migration wrote, which nobody may judge again; else empty."""
        held = node.properties
        node_id = held.get(LABEL_RULE_OF[label].key, "")
        is_kept = label not in INDEXED_LABELS or ("GraphNode" in node.labels and held.get("ref"))
        is_named = held.get("key") == store_key(self._project_id, node_id)
        return node_id if is_kept and is_named and held.get("project") == self._project_id else ""

    def _id_of(self, node: OldNode, label: NodeLabel) -> str | _Doubt:
        if settled := self._settled_id(node, label):
            return settled
        if label == "File":
            return self._path_of(node, self._plain(node.properties.get("id", "")))
        if label in _CODE:
            return self._code_id(node, label)
        names = _BY_ID.get(label, ("id", "name"))
        found = next((node.properties[name] for name in names if node.properties.get(name)), "")
        return self._plain(found) or _Doubt("it has no id")

    def _code_id(self, node: OldNode, label: NodeLabel) -> str | _Doubt:
        before, _, after = self._plain(node.properties.get("id", "")).partition("::")
        path = self._path_of(node, before if after or before.endswith((".py", ".pyi")) else "")
        if isinstance(path, _Doubt):
            return path
        if label == "Module":
            return f"{path}::{MODULE_QUALNAME}"
        qualname = after.replace("::", ".") or self._qualname(node)
        return f"{path}::{qualname}" if qualname else _Doubt("it has no name")

    def _qualname(self, node: OldNode) -> str:
        held = node.properties
        name = held.get("name", "")
        if qualname := held.get("qualname", ""):
            return qualname
        owner = self._id.get(self._class_of.get(node.number, -1), "").partition("::")[2]
        owner = owner or held.get("class_name", "")
        return f"{owner}.{name}" if owner and name and "." not in name else name

    def _path_of(self, node: OldNode, hint: str) -> str | _Doubt:
        """Where the node's file lies below the project's root: by its path, else by its file's name."""
        said = _own_path(node)
        if "Package" in node.labels and said and not said.endswith(".py"):
            said = posixpath.join(said, "__init__.py")
        if said.startswith("/"):
            return _Doubt(f"its path is absolute: {said}")
        if said:
            return said
        if "/" in hint and not hint.startswith("/"):
            return _normal(hint)
        if not hint:
            return _Doubt("nothing says in which file it is")
        candidates = self._paths[hint]
        if len(candidates) == 1:
            return next(iter(candidates))
        if candidates:
            return _Doubt(f"{hint} may be any of {', '.join(sorted(candidates))}")
        return _Doubt(f"nothing says in which folder {hint} lies")

    def _known_paths(self) -> defaultdict[str, set[str]]:
        """Every path that some node tells, by the name of its file."""
        paths: defaultdict[str, set[str]] = defaultdict(set)
        for node in self._old.values():
            before = self._plain(node.properties.get("id", "")).partition("::")[0]
            for path in (_own_path(node), _normal(before) if "/" in before else ""):
                if path and not path.startswith("/") and "." in posixpath.basename(path):
                    paths[posixpath.basename(path)].add(path)
        return paths

    def _plain(self, node_id: str) -> str:
        """The id without the project in front of it."""
        return node_id.removeprefix(f"{self._project_id}:")

    # --- Requirements ----------------------------------------------------------------------------------

    def give_items(self) -> None:
        """See to it that each requirement has an item, which code can serve."""
        items: defaultdict[int, list[int]] = defaultdict(list)
        for edge in self._edges:
            if self._joins(edge, "Requirement", "RequirementItem") and edge.target in self._id:
                items[edge.source].append(edge.target)
        for number in sorted(self._id):
            if self._label[number] != "Requirement":
                continue
            is_settled = bool(self._settled_id(self._old[number], "Requirement"))
            may_make = not (is_settled and self._is_whole)
            own = self._number.get(("RequirementItem", self._id[number]))
            if items[number]:
                same = own if own in items[number] else None
                self._item_of[number] = same or (items[number][0] if len(items[number]) == 1 else None)
            elif not may_make:
                self._item_of[number] = own
            elif own is not None:
                self._item_of[number] = own
                self._add_edge(MovedEdge(None, number, "DEFINES", own))
            else:
                self._item_of[number] = ItemOf(number)
                self.plan.items.append(NewItem(number, self._id[number]))
                self.plan.counts["RequirementItem made"] += 1
                self._add_edge(MovedEdge(None, number, "DEFINES", ItemOf(number)))

    # --- Edges -----------------------------------------------------------------------------------------

    def move_edges(self) -> None:
        for edge in self._edges:
            found = None
            if edge.source in self._id and edge.target in self._id:
                found = next(filter(None, (self._moved(edge, *way) for way in _ways(edge.type))), None)
            if found is None:
                ends = (self._old.get(edge.source), self._old.get(edge.target))
                source, target = (_kind(node) if node else "another project's" for node in ends)
                self.plan.left[f"{source} -{edge.type}-> {target}"] += 1
            elif (found.source, found.relation, found.target) != (edge.source, edge.type, edge.target):
                self._add_edge(found, old_type=edge.type)

    def _moved(self, edge: OldEdge, relation: Relation, way: Literal["same", "reversed"]) -> MovedEdge | None:
        is_reversed = way == "reversed"
        source: End | None = edge.target if is_reversed else edge.source
        target: End | None = edge.source if is_reversed else edge.target
        if relation == "TRACES_TO" and self._label_of(target) == "Requirement":
            target = self._item_of.get(self._held(target))
        if relation == "TESTED_BY" and self._label_of(source) == "Requirement":
            source = self._item_of.get(self._held(source))
        if (
            relation == "DEFINES"
            and self._label_of(source) == "File"
            and self._label_of(target) in _CODE - {"Module"}
        ):
            # A file defines its module, and the module what is in it.
            path = self._id[self._held(source)]
            source = self._number.get(("Module", f"{path}::{MODULE_QUALNAME}"))
        labels = self._label_of(source), self._label_of(target)
        if source is None or target is None or labels not in RELATION_RULE_OF[relation].joins:
            return None
        return MovedEdge(edge.number, source, relation, target)

    def _add_edge(self, edge: MovedEdge, *, old_type: str = "") -> None:
        self.plan.edges.append(edge)
        self.plan.counts[f"{old_type} -> {edge.relation}" if old_type else f"{edge.relation} made"] += 1

    def _held(self, end: End | None) -> int:
        return end if isinstance(end, int) else -1

    def _label_of(self, end: End | None) -> NodeLabel | None:
        if isinstance(end, ItemOf):
            return "RequirementItem"
        return self._label.get(end) if end is not None else None

    def _joins(self, edge: OldEdge, source: NodeLabel, target: NodeLabel) -> bool:
        return self._label.get(edge.source) == source and self._label.get(edge.target) == target

    def _leave(self, node: OldNode, reason: str) -> None:
        self.plan.unmoved.append(Unmoved(kind="node", name=_named(node), reason=reason))


@dataclass(frozen=True, slots=True)
class _Doubt:
    """Why there is no id."""

    reason: str


def _ways(old_type: str) -> Iterable[tuple[Relation, Literal["same", "reversed"]]]:
    """The relations that an old one can have become, and which way each goes."""
    if (relation := _RELATION_NAMED.get(old_type)) is not None:
        yield relation, "same"
    for rule in LEGACY_RELATION_RULES:
        if rule.name == old_type:
            yield rule.relation, "reversed" if rule.is_reversed else "same"


def _has(node: OldNode, label: str) -> bool:
    return label in node.labels


def _own_path(node: OldNode) -> str:
    return _normal(node.properties.get("path") or node.properties.get("file_path") or "")


def _normal(path: str) -> str:
    path = path.replace("\\", "/")
    return posixpath.normpath(path) if path else ""


def _named(node: OldNode) -> str:
    held = node.properties
    name = next((held[key] for key in ("id", "slug", "alias", "session_id", "name") if held.get(key)), "?")
    return f"{_kind(node)} {name!r}"


def _kind(node: OldNode) -> str:
    return ":".join(sorted({*node.labels} - {"GraphNode"}))
