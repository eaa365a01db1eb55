"""Serves calls of tools, whichever door they come through: one function for Kafka and for MCP.

A call reads within its scope alone: the graph and the bundles of one project, the artifacts of one thread and
its project. It is answered by a content or an error, never by an exception, unless there is a defect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

import structlog
from pydantic import ValidationError

from schemas.tools import (
    BranchesArguments,
    BranchTestsArguments,
    ComplexityArguments,
    GetArtifactArguments,
    GetBundleArguments,
    GetCodeArguments,
    GetContextArguments,
    GetRequirementsArguments,
    GetTestsArguments,
    RefsArguments,
    SearchCodeArguments,
    SkeletonArguments,
    SkeletonDiffArguments,
    SymbolsArguments,
    ToolArguments,
    ToolError,
    ToolName,
    ToolReceipt,
    TraceLintArguments,
)
from worker.errors import Unavailable
from worker.fusion.masking import mask_secrets
from worker.graph.links import names_in
from worker.graph.model import NodeRef
from worker.graph.snapshot import Snapshot
from worker.ports import Scope, TokenCounter
from worker.providers.snapshots import Snapshots
from worker.providers.threads import SourceThreads
from worker.retrieval.artifacts import Artifacts
from worker.retrieval.bundles import BundleSource, cut_bundle, read_bundle
from worker.retrieval.entities import entry_names, entry_refs
from worker.retrieval.found import MAX_RECEIPT_NODES, Found, ToolFailed, Written, write
from worker.retrieval.reading import get_code, get_context, get_requirements, get_tests
from worker.retrieval.searching import search_code
from worker.retrieval.short_ids import ShortIds, short_in
from worker.retrieval.structure import (
    branch_tests,
    branches,
    complexity,
    refs,
    skeleton,
    skeleton_diff,
    symbols,
    trace_lint,
)
from worker.telemetry import SPAN_TOOL_READ, SPAN_TOOL_RUN, Telemetry

log = structlog.get_logger()

A = TypeVar("A")

_MAX_PROBLEMS: Final = 5
_NOT_INDEXED: Final = "the project has no index yet; sync or index it first"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTool(Generic[A]):
    """A tool that reads the graph: what it takes, and what it makes of a snapshot."""

    name: ToolName
    arguments: type[A]
    run: Callable[[Snapshot, A], Found]
    entries: Callable[[A], tuple[Sequence[NodeRef], Sequence[str]]]
    """Nodes and names from which a graph is read that is too large to be held."""


def _entity_of(text: str) -> tuple[Sequence[NodeRef], Sequence[str]]:
    return entry_refs(text), entry_names(text)


class _OfEntity(Protocol):
    @property
    def entity_id(self) -> str:
        """Whatever names it."""
        ...


E = TypeVar("E", bound=_OfEntity)


def _around_entity(name: ToolName, arguments: type[E], run: Callable[[Snapshot, E], Found]) -> GraphTool[E]:
    """A tool whose arguments name an entity by its id."""
    return GraphTool(name=name, arguments=arguments, run=run, entries=lambda read: _entity_of(read.entity_id))


GRAPH_TOOLS: Final[tuple[GraphTool[Any], ...]] = (
    GraphTool(
        name="get_context",
        arguments=GetContextArguments,
        run=get_context,
        entries=lambda read: _entity_of(read.entity),
    ),
    GraphTool(
        name="search_code",
        arguments=SearchCodeArguments,
        run=search_code,
        entries=lambda read: ((), names_in(read.query)),
    ),
    _around_entity("get_code", GetCodeArguments, get_code),
    _around_entity("get_tests", GetTestsArguments, get_tests),
    _around_entity("get_requirements", GetRequirementsArguments, get_requirements),
    _around_entity("symbols", SymbolsArguments, symbols),
    _around_entity("branches", BranchesArguments, branches),
    _around_entity("refs", RefsArguments, refs),
    _around_entity("complexity", ComplexityArguments, complexity),
    _around_entity("skeleton", SkeletonArguments, skeleton),
    _around_entity("skeleton_diff", SkeletonDiffArguments, skeleton_diff),
    _around_entity("branch_tests", BranchTestsArguments, branch_tests),
    _around_entity("trace_lint", TraceLintArguments, trace_lint),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicy:
    """What holds for every call."""

    budget_tokens: int
    """Where a call names none."""
    max_budget_tokens: int
    timeout_seconds: float
    unmasked_projects: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """What a call came to: `content`, or `error`."""

    content: str | None = None
    error: ToolError | None = None
    tokens: int = 0
    is_truncated: bool = False
    next_offset: int | None = None
    receipt: ToolReceipt | None = None
    texts: tuple[str, ...] = ()
    """Ids of what more than a line was shown of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as it is offered."""

    name: ToolName
    description: str
    schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON Schema of its arguments."""


class Toolbox:
    """One per process."""

    def __init__(
        self,
        snapshots: Snapshots,
        *,
        artifacts: Artifacts,
        bundles: BundleSource,
        threads: SourceThreads,
        counter: TokenCounter,
        policy: ToolPolicy,
        telemetry: Telemetry,
        short_ids: ShortIds,
        graph_tools: Sequence[GraphTool[Any]] = GRAPH_TOOLS,
    ) -> None:
        """`counter` is the default model's; all work on texts and graphs is done in `threads`."""
        self._snapshots = snapshots
        self._artifacts = artifacts
        self._bundles = bundles
        self._threads = threads
        self._counter = counter
        self._policy = policy
        self._telemetry = telemetry
        self._short_ids = short_ids
        self._graph_tools = {tool.name: tool for tool in graph_tools}
        self._arguments: dict[str, type[Any]] = {
            **{name: tool.arguments for name, tool in self._graph_tools.items()},
            "get_artifact": GetArtifactArguments,
            "get_bundle": GetBundleArguments,
        }

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools that there are, by name."""
        return tuple(_spec(name, self._arguments[name]) for name in sorted(self._arguments))

    async def call(
        self,
        scope: Scope,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        budget_tokens: int | None = None,
        request_id: str | None = None,
    ) -> ToolAnswer:
        """What the tool says. Same call, same state, same answer.

        An entity may be named by the short id that prompts of the thread show; `request_id` says which.
        At most `budget_tokens`, or the default, and never more than the policy's maximum. A store that is
        away, and one that takes too long, is the error `unavailable`.
        """
        budget = min(budget_tokens or self._policy.budget_tokens, self._policy.max_budget_tokens)
        try:
            read = self._validated(tool, arguments)
            async with asyncio.timeout(self._policy.timeout_seconds):
                return await self._answer(scope, tool, read, budget, request_id)
        except ToolFailed as failure:
            error = ToolError(code=failure.code, message=failure.message, near=failure.near)
        except (Unavailable, TimeoutError) as cause:
            log.warning("tool.unavailable", tool=tool, project_id=scope.project_id, cause=str(cause))
            error = ToolError(code="unavailable", message="what the tool reads is away; call again later")
        return ToolAnswer(error=error)

    async def _answer(
        self, scope: Scope, tool: str, read: ToolArguments, budget: int, request_id: str | None
    ) -> ToolAnswer:
        match read:
            case GetArtifactArguments():
                with self._telemetry.step(SPAN_TOOL_READ):
                    found = await self._artifacts.get(scope, read)
                return await self._threads.compute(lambda: self._written(scope, found, budget, None))
            case GetBundleArguments():
                return await self._bundle(scope, read, budget)
            case _:
                read = await self._with_own_id(scope, read, request_id)
                return await self._graph(scope, self._graph_tools[tool], read, budget)  # pyright: ignore[reportArgumentType]  # validated: the name is one of them

    async def _graph(self, scope: Scope, tool: GraphTool[Any], read: object, budget: int) -> ToolAnswer:
        roots, names = tool.entries(read)
        with self._telemetry.step(SPAN_TOOL_READ):
            snapshot = await self._snapshots.latest(scope.project_id, roots=roots, names=names)
        if snapshot is None:
            raise ToolFailed("not_indexed", _NOT_INDEXED)
        with self._telemetry.step(SPAN_TOOL_RUN):
            return await self._threads.compute(
                lambda: self._written(scope, tool.run(snapshot, read), budget, snapshot)
            )

    async def _with_own_id(self, scope: Scope, read: ToolArguments, request_id: str | None) -> ToolArguments:
        """The arguments with an entity's own id in place of a short one. Raises ToolFailed."""
        field = next((name for name in ("entity_id", "entity") if name in type(read).model_fields), None)
        short = None if field is None else short_in(getattr(read, field))
        if field is None or short is None:
            return read
        with self._telemetry.step(SPAN_TOOL_READ):
            own_id = None if request_id is None else await self._short_ids.shown(scope, request_id, short)
            if own_id is None:
                snapshot = await self._snapshots.latest(scope.project_id, roots=())
                if snapshot is None:
                    raise ToolFailed("not_indexed", _NOT_INDEXED)
                own_id = await self._threads.compute(lambda: self._short_ids.in_graph(snapshot, scope, short))
        return read.model_copy(update={field: own_id})

    async def _bundle(self, scope: Scope, read: GetBundleArguments, budget: int) -> ToolAnswer:
        with self._telemetry.step(SPAN_TOOL_READ):
            body = await read_bundle(self._bundles, scope, read.digest)
        piece = await self._threads.compute(
            lambda: cut_bundle(body, read, budget_tokens=budget, counter=self._counter)
        )
        return ToolAnswer(
            content=piece.content,
            tokens=await self._threads.compute(lambda: self._counter.count(piece.content)),
            is_truncated=piece.next_offset is not None,
            next_offset=piece.next_offset,
        )

    def _written(self, scope: Scope, found: Found, budget: int, snapshot: Snapshot | None) -> ToolAnswer:
        is_masking = scope.project_id not in self._policy.unmasked_projects
        written = write(
            found,
            budget_tokens=budget,
            counter=self._counter,
            mask=mask_secrets if is_masking else _as_it_is,
        )
        return ToolAnswer(
            content=written.content,
            tokens=written.tokens,
            is_truncated=written.is_truncated,
            receipt=_receipt(written, snapshot),
            texts=written.texts,
        )

    def _validated(self, tool: str, arguments: Mapping[str, Any]) -> ToolArguments:
        model = self._arguments.get(tool)
        if model is None:
            raise ToolFailed("unknown_tool", f"the tools are {', '.join(sorted(self._arguments))}")
        try:
            return model.model_validate(arguments)
        except ValidationError as error:
            raise ToolFailed("invalid_arguments", problems_of(error)) from None


def _spec(name: str, model: type[Any]) -> ToolSpec:
    schema: dict[str, Any] = model.model_json_schema()
    return ToolSpec(
        name=name,  # pyright: ignore[reportArgumentType]  # of the mapping above
        description=schema.pop("description"),
        schema=schema,
    )


def _receipt(written: Written, snapshot: Snapshot | None) -> ToolReceipt:
    return ToolReceipt(
        snapshot_id=None if snapshot is None else snapshot.head.snapshot_id,
        graph_version=None if snapshot is None else snapshot.head.graph_version,
        is_part=True if snapshot is not None and snapshot.is_part else None,
        nodes=written.nodes[:MAX_RECEIPT_NODES],
        more_nodes=max(0, len(written.nodes) - MAX_RECEIPT_NODES),
        masked_secrets=written.masked,
    )


def problems_of(error: ValidationError) -> str:
    """What is wrong with each argument, without what was given: it may be long."""
    problems = [
        f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}"
        for one in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    more = f"; and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
    return "; ".join(problems[:_MAX_PROBLEMS])[:2_000] + more


def _as_it_is(text: str) -> tuple[str, int]:
    return text, 0
