"""What one requirement or decision file says, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import TypeAdapter

from schemas.graph import Relation
from worker.graph.model import NodeRef

Format = Literal[
    "spec_kit",
    "kiro",
    "openspec",
    "markdown",
    "doorstop",
    "strictdoc",
    "sphinx_needs",
    "adr",
    "decision_list",
]
RequirementKind = Literal["requirement", "criterion", "scenario", "success", "story"]
Modality = Literal["must", "should", "may", "none"]
Change = Literal["", "added", "modified", "removed", "renamed"]
NoteCode = Literal[
    "mark_guess",
    "open_fence",
    "duplicate_id",
    "status_conflict",
    "range_unexpanded",
    "open_question",
    "dangling_link",
    "unknown_format",
]
ReferenceKind = Literal["path", "symbol", "requirement"]

ITEM_KINDS: Final[frozenset[RequirementKind]] = frozenset({"criterion", "scenario"})
"""Kinds that are part of another requirement, where that one is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something odd in a file. It never stops the reading of the rest."""

    code: NoteCode
    line: int
    detail: str = ""
    """What it is about: an id, a status, a few words."""
    path: str = ""
    """Set where files are joined; within one file's facts it is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement, or a criterion, scenario, success measure or story, as its file words it."""

    id: str
    """As written, never folded; the second of an id in one specification has `#2`."""
    kind: RequirementKind = "requirement"
    title: str = ""
    text: str = ""
    parent: str = ""
    """Id of the requirement that it belongs to or derives from."""
    status: str = ""
    """A known word in lower case (`deferred`, `withdrawn`, `done`, …), else as written."""
    modality: Modality = "none"
    negated: bool = False
    change: Change = ""
    """What a delta does to it."""
    renamed_from: str = ""
    aliases: tuple[str, ...] = ()
    """Other ids that name it, such as the one inside its name."""
    start_line: int
    end_line: int
    properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Something that a document names and the graph may hold."""

    kind: ReferenceKind
    value: str
    """A path without its line suffix, a symbol's dotted name without brackets, or an id."""
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision, from a record of its own or from a list."""

    id: str
    """As written; empty where it has none of its own, and is then named after its place."""
    title: str
    text: str = ""
    status: str = ""
    """`proposed`, `accepted`, `rejected`, `deprecated`, `superseded`, `active`, `draft`, `on hold`; `unknown`
    for other words, and empty where nothing is said."""
    raw_status: str = ""
    date: str = ""
    supersedes: tuple[str, ...] = ()
    superseded_by: tuple[str, ...] = ()
    """Also set where only a part is superseded, the status then being another."""
    applies_to: tuple[Reference, ...] = ()
    number: str = ""
    """The record's number without leading zeros, by which others may name it."""
    applies_to_spec: bool = False
    """Whether it concerns the specification of its file as a whole."""
    start_line: int
    end_line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLink:
    """A requirement's own statement that a file serves it."""

    requirement_id: str
    path: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFacts:
    """Everything that one file says. A pure function of its path and text."""

    path: str
    format: Format
    spec_id: str = ""
    """Folder or file that specifies; empty where the file holds decisions alone."""
    title: str = ""
    summary: str = ""
    status: str = ""
    is_archived: bool = False
    """Whether it is history: what it says is true no longer, or is said elsewhere."""
    line_count: int = 0
    requirements: tuple[Requirement, ...] = ()
    decisions: tuple[Decision, ...] = ()
    links: tuple[FileLink, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentReference:
    """A reference from a node of the documents, to be looked up in the whole graph."""

    source: NodeRef
    """The decision that applies to it; or the requirement's item that it serves."""
    path: str
    """Of the file that names it."""
    relation: Relation
    """APPLIES_TO from the source, or TRACES_TO from the file that is named."""
    reference: Reference


_FACTS: Final = TypeAdapter(DocumentFacts)


def facts_to_bytes(facts: DocumentFacts) -> bytes:
    """The facts as JSON, to be kept under the digest of path and content. Equal facts give equal bytes."""
    return _FACTS.dump_json(facts, exclude_defaults=True)


def facts_from_bytes(data: bytes) -> DocumentFacts:
    """What `facts_to_bytes` was given. Raises ValueError for other bytes."""
    return _FACTS.validate_json(data)
