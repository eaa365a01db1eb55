"""The canon of the graph: every label, its key, and every relation with what it may join.

One table, from which the constraints of a store, the check of writers and queries, and the migrations of old
shapes are made. A label or relation that does not stand here does not exist. There are no synonyms:
containment is DEFINES, test linkage is TESTED_BY, a requirement that code serves is reached by TRACES_TO.

The state of threads lies in documents that a state store folds, `StateEntity` in Neo4j, and not in nodes of
its own: but for its events, the labels and relations of state are reserved for what others write.

Within a project a node is named by its label and the value of its key; in a store the unique key is
`{project}:{key}`, so two projects never meet. Ids never fold case or underscores.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Literal, get_args

NodeLabel = Literal[
    # code
    "Project",
    "File",
    "Module",
    "Class",
    "Function",
    "Chunk",
    "Commit",
    "Owner",
    # specification
    "Spec",
    "Requirement",
    "RequirementItem",
    "Decision",
    # state
    "Thread",
    "Goal",
    "PlanDocument",
    "PlanStep",
    "WorkItem",
    "HandOff",
    "Memory",
    "TestResult",
    # run time
    "Volk",
    "Session",
    "Intent",
    "PipelineRun",
    "Artifact",
    "Message",
    "GatewayEvent",
    "ToolCall",
    "DecisionEvent",
]
LABELS: Final[tuple[NodeLabel, ...]] = get_args(NodeLabel)

Relation = Literal[
    "DEFINES",
    "IMPORTS",
    "CALLS",
    "INHERITS_FROM",
    "TRACES_TO",
    "TESTED_BY",
    "APPLIES_TO",
    "SUPERSEDES",
    "DEPENDS_ON",
    "OWNS",
    "TOUCHES",
    "HAS",
    "REFERS_TO",
]
RELATIONS: Final[tuple[Relation, ...]] = get_args(Relation)

KeyName = Literal["id", "slug", "alias", "session_id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRule:
    """One label of the canon."""

    label: NodeLabel
    key: KeyName = "id"
    id_form: str
    """What the key's value looks like, for people."""
    expires: bool = False
    """Whether nodes have a time to live: they are events, and compaction forgets those."""
    is_searched: bool = False
    """Whether people and large projects look for it by words: it stands in the full-text index."""
    is_reserved: bool = False
    """Whether nothing here writes it: graphs that were migrated hold it, and what others write beside this
    project. Its key has a constraint all the same, and the check of writers knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationRule:
    """One relation of the canon, and the ends that it may join."""

    relation: Relation
    meaning: str
    joins: frozenset[tuple[NodeLabel, NodeLabel]]
    is_reserved: bool = False
    """Whether nothing here writes it, as of labels."""


def _joins(
    sources: tuple[NodeLabel, ...], targets: tuple[NodeLabel, ...]
) -> frozenset[tuple[NodeLabel, NodeLabel]]:
    return frozenset((source, target) for source in sources for target in targets)


_SCOPES: Final[tuple[NodeLabel, ...]] = ("Module", "Class", "Function")
_DEFINITIONS: Final[tuple[NodeLabel, ...]] = ("Class", "Function")
_IN_FILES: Final[tuple[NodeLabel, ...]] = ("File", "Module", "Class", "Function", "Chunk")
_SPECIFIED: Final[tuple[NodeLabel, ...]] = ("Spec", "Requirement", "RequirementItem")
_RUN_STATE: Final[tuple[NodeLabel, ...]] = (
    *("Goal", "PlanDocument", "WorkItem", "HandOff", "Memory", "TestResult", "Session", "PipelineRun"),
    *("Intent", "Decision", "Artifact", "Message", "GatewayEvent", "ToolCall", "DecisionEvent"),
)

LABEL_RULES: Final[tuple[LabelRule, ...]] = (
    LabelRule(label="Project", key="slug", id_form="the project id"),
    LabelRule(label="File", id_form="path relative to the project's root, with `/`", is_searched=True),
    LabelRule(label="Module", id_form="`<path>::<module>`", is_searched=True),
    LabelRule(
        label="Class", id_form="`<path>::<qualname>`; the second of a name gets `#2`", is_searched=True
    ),
    LabelRule(
        label="Function", id_form="`<path>::<qualname>`; a method also has `class_id`", is_searched=True
    ),
    LabelRule(label="Chunk", id_form="`<path>::L<first line>`", is_searched=True),
    LabelRule(label="Commit", id_form="hash of the commit"),
    LabelRule(label="Owner", id_form="as CODEOWNERS writes it: `@user`, `@org/team`, an address"),
    LabelRule(label="Spec", id_form="folder or file that specifies"),
    LabelRule(label="Requirement", id_form="the requirement's literal id", is_searched=True),
    LabelRule(label="RequirementItem", id_form="literal id of what code can serve", is_searched=True),
    LabelRule(label="Decision", id_form="the decision's id, or path of its record", is_searched=True),
    LabelRule(label="Thread", id_form="thread id", is_reserved=True),
    LabelRule(label="Goal", id_form="goal id", is_reserved=True),
    LabelRule(label="PlanDocument", id_form="plan id", is_reserved=True),
    LabelRule(label="PlanStep", id_form="`<plan id>#<step id>`", is_reserved=True),
    LabelRule(label="WorkItem", id_form="work item id", is_reserved=True),
    LabelRule(label="HandOff", id_form="event id", is_reserved=True),
    LabelRule(label="Memory", id_form="memory id", is_reserved=True),
    LabelRule(label="TestResult", id_form="event id", expires=True),
    LabelRule(label="Volk", key="alias", id_form="the volk's alias", is_reserved=True),
    LabelRule(label="Session", key="session_id", id_form="session id", is_reserved=True),
    LabelRule(label="Intent", id_form="intent id", is_reserved=True),
    LabelRule(label="PipelineRun", id_form="run id", is_reserved=True),
    LabelRule(label="Artifact", id_form="artifact id", is_reserved=True),
    LabelRule(label="Message", id_form="event id", expires=True),
    LabelRule(label="GatewayEvent", id_form="event id", expires=True),
    LabelRule(label="ToolCall", id_form="event id", expires=True),
    # What somebody decided at that moment; a `Decision` is the record that the code base keeps.
    LabelRule(label="DecisionEvent", id_form="event id", expires=True),
)

RELATION_RULES: Final[tuple[RelationRule, ...]] = (
    RelationRule(
        relation="DEFINES",
        meaning="contains",
        joins=_joins(("Project",), ("File", "Spec", "Decision", "Thread"))
        | _joins(("File",), ("Module", "Chunk"))
        | _joins(_SCOPES, _DEFINITIONS)
        | _joins(("Spec",), ("Requirement",))
        | _joins(("Requirement",), ("RequirementItem",))
        | _joins(("PlanDocument", "PlanStep"), ("PlanStep",)),
    ),
    RelationRule(
        relation="IMPORTS",
        meaning="names in an import statement",
        joins=_joins(("Module", "File"), ("Module", "File")),
    ),
    RelationRule(relation="CALLS", meaning="calls", joins=_joins(_SCOPES, _DEFINITIONS)),
    RelationRule(relation="INHERITS_FROM", meaning="has as a base", joins=_joins(("Class",), ("Class",))),
    RelationRule(
        relation="TRACES_TO",
        meaning="serves, as a tag in it says",
        joins=_joins((*_IN_FILES, "PlanStep", "WorkItem"), ("RequirementItem",)),
    ),
    RelationRule(
        relation="TESTED_BY",
        meaning="is exercised by the test",
        joins=_joins(_SCOPES, ("Function", "Class")) | _joins(("RequirementItem",), ("Function", "Class")),
    ),
    RelationRule(
        relation="APPLIES_TO",
        meaning="the decision concerns",
        joins=_joins(("Decision",), (*_IN_FILES, *_SPECIFIED)),
    ),
    RelationRule(
        relation="SUPERSEDES",
        meaning="takes the place of",
        joins=_joins(("Decision",), ("Decision",))
        | _joins(("Memory",), ("Memory",))
        | _joins(("HandOff",), ("HandOff",)),
    ),
    RelationRule(
        relation="DEPENDS_ON",
        meaning="waits for",
        joins=_joins(("PlanStep",), ("PlanStep",)) | _joins(("WorkItem",), ("WorkItem",)),
        is_reserved=True,
    ),
    RelationRule(
        relation="OWNS", meaning="answers for, as CODEOWNERS says", joins=_joins(("Owner",), ("File",))
    ),
    RelationRule(relation="TOUCHES", meaning="the commit changed", joins=_joins(("Commit",), ("File",))),
    RelationRule(
        relation="HAS",
        meaning="holds the state",
        joins=_joins(("Thread", "Session"), _RUN_STATE) | _joins(("PipelineRun",), ("Session", "Volk")),
        is_reserved=True,
    ),
    RelationRule(
        relation="REFERS_TO",
        meaning="speaks of",
        joins=_joins(
            ("Message", "GatewayEvent", "ToolCall", "TestResult", "Artifact", "WorkItem", "HandOff"),
            (*_IN_FILES, *_SPECIFIED, "Decision", "PlanStep"),
        ),
        is_reserved=True,
    ),
)

BookkeepingLabel = Literal[
    "GraphNode",
    "GraphHead",
    "FileFacts",
    "StateProject",
    "StateWriter",
    "StateEvent",
    "StateEntity",
    "StateHead",
    "StateContent",
]
"""What a store keeps for itself. `GraphNode` is a second label of every node that a graph store wrote, so
that it never takes what others keep under the same canonical labels for its own; `StateEvent` is that of
every event that a state store wrote, the signals among them: `Message`, `GatewayEvent`, `ToolCall`,
`TestResult` and `DecisionEvent`."""

BookkeepingKey = Literal["ref", "project", "key"]

BOOKKEEPING_KEYS: Final[dict[BookkeepingLabel, BookkeepingKey]] = {
    "GraphNode": "ref",
    "GraphHead": "project",
    "FileFacts": "key",
    "StateProject": "project",
    "StateWriter": "project",
    "StateEvent": "key",
    "StateEntity": "key",
    "StateHead": "key",
    "StateContent": "key",
}

LegacyLabel = Literal["Method", "Package", "Parameter", "ImportNode", "DecoratorNode"]
LegacyRelation = Literal[
    "TRACES", "TESTS", "HAS_METHOD", "CONTAINS", "DEFINES_REQUIREMENT", "INHERITS", "EXTENDS", "OWNED_BY"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyRelationRule:
    """A relation that older graphs hold, and the one that the canon has in its place."""

    name: LegacyRelation
    relation: Relation
    is_reversed: bool = False
    """Whether the canon's relation goes the other way."""


LEGACY_LABELS: Final[dict[LegacyLabel, NodeLabel | None]] = {
    "Method": "Function",
    "Package": "Module",
    # Parts of a definition, which its signature and text say now; the canon has no node for them.
    "Parameter": None,
    "ImportNode": None,
    "DecoratorNode": None,
}

LEGACY_RELATION_RULES: Final[tuple[LegacyRelationRule, ...]] = (
    LegacyRelationRule(name="TRACES", relation="TRACES_TO"),
    LegacyRelationRule(name="TESTS", relation="TESTED_BY", is_reversed=True),
    LegacyRelationRule(name="HAS_METHOD", relation="DEFINES"),
    LegacyRelationRule(name="CONTAINS", relation="DEFINES"),
    # Of a specification it is containment; of code it says what the code serves.
    LegacyRelationRule(name="DEFINES_REQUIREMENT", relation="DEFINES"),
    LegacyRelationRule(name="DEFINES_REQUIREMENT", relation="TRACES_TO"),
    LegacyRelationRule(name="INHERITS", relation="INHERITS_FROM"),
    LegacyRelationRule(name="EXTENDS", relation="INHERITS_FROM"),
    LegacyRelationRule(name="OWNED_BY", relation="OWNS", is_reversed=True),
)

LABEL_RULE_OF: Final[dict[NodeLabel, LabelRule]] = {rule.label: rule for rule in LABEL_RULES}
RELATION_RULE_OF: Final[dict[Relation, RelationRule]] = {rule.relation: rule for rule in RELATION_RULES}


_KEY_CHARACTERS: Final = 1_500
"""An index of Neo4j holds keys of up to 8 kB; four bytes a character stay below."""


def store_key(project_id: str, node_id: str) -> str:
    """The unique key of a node in a store: `{project}:{id}`. Project ids hold no colon, so no two share one.

    Of a very long one the beginning and the SHA-256 of the whole, which is as unique.
    """
    key = f"{project_id}:{node_id}"
    if len(key) <= _KEY_CHARACTERS:
        return key
    return f"{key[:_KEY_CHARACTERS]}#{hashlib.sha256(key.encode()).hexdigest()}"
