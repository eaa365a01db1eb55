"""Tools that an agent may call on demand, and what they answer: over Kafka and over MCP alike.

A call that can be read is always answered by a result, also where it names no tool, wrong arguments or an
unknown id: the agent reads the error and calls again. Only a body that breaks the contract is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import ConfigDict, Field, StringConstraints

from schemas.wire import (
    SCHEMA_VERSION,
    Count,
    Flag,
    Name,
    OpaqueId,
    PositiveInt,
    ProjectId,
    RequestModel,
    Sha256Hex,
    WireModel,
)

ToolName = Literal[
    "get_context",
    "get_code",
    "get_tests",
    "get_requirements",
    "get_artifact",
    "get_bundle",
    "search_code",
    "symbols",
    "branches",
    "refs",
    "complexity",
    "skeleton",
    "skeleton_diff",
    "branch_tests",
    "trace_lint",
]
TOOL_NAMES: Final[tuple[ToolName, ...]] = get_args(ToolName)
"""All that the contract knows."""

ToolErrorCode = Literal[
    "unknown_tool",
    "invalid_arguments",
    "not_found",
    "not_indexed",
    "not_supported",
    "budget_too_small",
    "unavailable",
]

MAX_DEPTH: Final = 5
"""Hops from an entity. More would be the whole project, and no budget holds that."""
MAX_HITS: Final = 50
MAX_NEAR: Final = 5
MAX_ENTITY_CHARS: Final = 4_096
MAX_QUERY_CHARS: Final = 20_000
MAX_SOURCE_CHARS: Final = 500_000
MAX_EXECUTED_LINES: Final = 50_000

EntityId = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ENTITY_CHARS)]
Depth = Annotated[int, Field(strict=True, ge=1, le=MAX_DEPTH)]


class ToolRequest(RequestModel):
    """Asks for one tool to be run over one project, and what is known of one thread."""

    schema_version: str = SCHEMA_VERSION
    kind: Literal["tool"] = "tool"
    call_id: OpaqueId
    project_id: ProjectId
    thread_id: OpaqueId | None = None
    request_id: OpaqueId | None = None
    """Of the bundle that the agent works from: the call counts as made for it, and short ids are its own."""
    tool: Name
    arguments: dict[str, Any] = Field(default_factory=dict)
    budget_tokens: PositiveInt | None = None
    """What the content may take, by the default model's encoding. Absent: the worker's default. The worker's
    own maximum holds whatever is asked for."""


class ToolError(WireModel):
    """Why there is no content."""

    code: ToolErrorCode
    message: str
    near: tuple[str, ...] = ()
    """Ids of the same project that may have been meant, the nearest first; any of them is valid in a call."""


class ToolReceipt(WireModel):
    """What a content is made of."""

    snapshot_id: str | None = None
    """Of the graph that was read; absent where none was."""
    graph_version: Count | None = None
    is_part: Flag | None = None
    """True where the graph is too large to hold and only what lies around the entity was read."""
    nodes: tuple[str, ...] = ()
    """Ids of what the content shows, in its order, each once; the first two hundred."""
    more_nodes: Count = 0
    """How many it shows beside them."""
    masked_secrets: Count = 0


class ToolResult(WireModel):
    """What one call came to: `content`, or `error`."""

    schema_version: str = SCHEMA_VERSION
    kind: Literal["tool_result"] = "tool_result"
    call_id: OpaqueId
    project_id: ProjectId
    tool: Name
    ok: Flag
    content: str | None = None
    """Markdown; of `get_bundle` a piece of the bundle's JSON as it is."""
    error: ToolError | None = None
    tokens: Count
    """Of the content; never above the budget."""
    truncated: Flag
    """Whether there is more than the content shows: cut at the budget, or at a cap on neighbours."""
    next_offset: Count | None = None
    """Of `get_bundle`: where the next piece begins, in bytes. Absent with the last one."""
    receipt: ToolReceipt | None = None


# --- Arguments ------------------------------------------------------------------------------------------


class _Arguments(RequestModel):
    # A misspelled argument is told, not ignored: an agent would take the default for what it asked for.
    model_config = ConfigDict(extra="forbid")


class GetContextArguments(_Arguments):
    """An entity, and what lies around it in the graph: callers, callees, requirements, tests, decisions."""

    entity: EntityId
    """An id, also the short one of a prompt; a path; or a name that means one thing."""
    depth: Depth = 1
    """Hops from the entity."""


class GetCodeArguments(_Arguments):
    """The source of a function, class or file, whole; on request that of its callers."""

    entity_id: EntityId
    include_callers: Flag = False
    depth: Depth = 1
    """How many calls away callers may be."""


class GetTestsArguments(_Arguments):
    """The tests that exercise an entity, and their source."""

    entity_id: EntityId


class GetRequirementsArguments(_Arguments):
    """The requirements that an entity serves, their specification, and the decisions that apply to it."""

    entity_id: EntityId


class GetArtifactArguments(_Arguments):
    """An artifact of the thread or the project, whole."""

    artifact_id: OpaqueId


class GetBundleArguments(_Arguments):
    """A bundle that was published by reference, piece by piece; the pieces joined are the bundle's JSON."""

    digest: Sha256Hex
    """As the reference names it."""
    offset: Count = 0
    """In bytes: 0, then the `next_offset` of the piece before."""


class SearchCodeArguments(_Arguments):
    """Code and documents that words speak of, the best first; names, paths and tracebacks are understood."""

    query: Annotated[str, StringConstraints(min_length=1, max_length=MAX_QUERY_CHARS)]
    limit: Annotated[int, Field(strict=True, ge=1, le=MAX_HITS)] = 5


class SymbolsArguments(_Arguments):
    """What a file defines: classes and functions with lines, signatures and complexity."""

    entity_id: EntityId
    """A path, or anything that stands in the file."""
    parameters: Annotated[bool, Field(strict=True)] = False
    """Whether to say of each function which parameters have no type, and which are never used."""


class BranchesArguments(_Arguments):
    """The branch points of a function or of a class's methods, by number, each to be answered for."""

    entity_id: EntityId


class RefsArguments(_Arguments):
    """Who calls an entity and whom it calls, with places; guesses say that they are."""

    entity_id: EntityId


class ComplexityArguments(_Arguments):
    """The functions of a file, class or function by cyclomatic complexity, the most complex first."""

    entity_id: EntityId
    at_least: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 1


class SkeletonArguments(_Arguments):
    """A file, class or function without bodies: what others depend on, and a contract to keep to."""

    entity_id: EntityId
    contract: Annotated[str, StringConstraints(max_length=MAX_SOURCE_CHARS)] | None = None
    """A class diagram of Mermaid: given is the skeleton that it asks for, in place of the file's own."""


class SkeletonDiffArguments(_Arguments):
    """Where a new source of a file escapes from the shape that the file has now."""

    entity_id: EntityId
    """The file, or anything that stands in it."""
    source: Annotated[str, StringConstraints(max_length=MAX_SOURCE_CHARS)]
    """The new source of the whole file."""
    contract: Annotated[str, StringConstraints(max_length=MAX_SOURCE_CHARS)] | None = None
    """What it has to keep to, in place of the file as it is: a class diagram of Mermaid, or a skeleton."""


class BranchTestsArguments(_Arguments):
    """A pytest file to fill in: one test for each branch of a function that nothing has run."""

    entity_id: EntityId
    executed_lines: Annotated[
        tuple[Annotated[int, Field(strict=True, ge=1)], ...], Field(max_length=MAX_EXECUTED_LINES)
    ] = ()
    """Of the function's file, as coverage counts them; without any, no branch counts as tested."""


class TraceLintArguments(_Arguments):
    """Requirement tags of a file that name what no document defines, or are not filled in."""

    entity_id: EntityId
    """The file, or anything that stands in it."""
    source: Annotated[str, StringConstraints(max_length=MAX_SOURCE_CHARS)] | None = None
    """Looked at in place of the file as it is indexed: a check before it is written."""


ToolArguments = (
    GetContextArguments
    | GetCodeArguments
    | GetTestsArguments
    | GetRequirementsArguments
    | GetArtifactArguments
    | GetBundleArguments
    | SearchCodeArguments
    | SymbolsArguments
    | BranchesArguments
    | RefsArguments
    | ComplexityArguments
    | SkeletonArguments
    | SkeletonDiffArguments
    | BranchTestsArguments
    | TraceLintArguments
)

ARGUMENTS: Final[Mapping[ToolName, type[_Arguments]]] = {
    "get_context": GetContextArguments,
    "get_code": GetCodeArguments,
    "get_tests": GetTestsArguments,
    "get_requirements": GetRequirementsArguments,
    "get_artifact": GetArtifactArguments,
    "get_bundle": GetBundleArguments,
    "search_code": SearchCodeArguments,
    "symbols": SymbolsArguments,
    "branches": BranchesArguments,
    "refs": RefsArguments,
    "complexity": ComplexityArguments,
    "skeleton": SkeletonArguments,
    "skeleton_diff": SkeletonDiffArguments,
    "branch_tests": BranchTestsArguments,
    "trace_lint": TraceLintArguments,
}
"""What each tool takes."""
