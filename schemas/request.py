"""The assembly request: what an orchestrator publishes on `context.requests`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from schemas.codes import IncludePart, PartName, Ranking, Relevance, Requester, TaskType
from schemas.session import (
    After,
    Artifact,
    LegacyPayload,
    Memory,
    ParentRef,
    Plan,
    SessionContext,
    WorkingSet,
)
from schemas.tools import ToolName
from schemas.wire import (
    SCHEMA_VERSION,
    Count,
    Name,
    OpaqueId,
    PositiveInt,
    ProjectId,
    RequestModel,
    Timestamp,
    canonical_json,
    sha256_hex,
)

DEFAULT_INCLUDE: Final[tuple[IncludePart, ...]] = ("messages", "layers", "usage", "citations")
NOT_IN_DIGEST: Final = frozenset({"request_id", "deadline_ms", "layer_timeouts_ms", "expires_at"})
"""What may differ between two requests that mean the same."""


RequestedEncoding = Literal["o200k_base", "cl100k_base", "bytes"]
REQUESTED_ENCODINGS: Final[tuple[RequestedEncoding, ...]] = get_args(RequestedEncoding)
"""What a request may name; `file:` tokenizers are for settings alone."""


class BudgetRequest(RequestModel):
    """The window and its shares; layers not named share the rest in proportion to the defaults."""

    total: PositiveInt | None = None
    """Tokens; the model's window where absent."""
    layers: dict[str, Count] = Field(default_factory=dict)
    """Tokens by layer name. A dict of str on purpose: an unknown layer has a code of its own."""
    client_overhead_tokens: Count = 0
    """What the caller adds to the prompt itself: tool schemas, conversation history."""


class AssemblyRequest(RequestModel):
    """One request for one prompt's context. All but five fields have a default."""

    schema_version: str = SCHEMA_VERSION
    kind: Literal["request"] = "request"
    request_id: OpaqueId
    project_id: ProjectId
    thread_id: OpaqueId | None = None
    plan_id: OpaqueId | None = None
    parent: ParentRef | None = None
    volk: OpaqueId
    subject: Name
    user_message: str
    requester: Requester = "volk"
    task_type: TaskType | None = None
    system_prompt: str = ""
    model: Name | None = None
    encoding: RequestedEncoding | None = None
    budget: BudgetRequest | None = None
    deadline_ms: PositiveInt = 2_000
    layer_timeouts_ms: dict[str, PositiveInt] = Field(default_factory=dict)
    """By layer name; 500 ms where absent."""
    expires_at: Timestamp | None = None
    as_of: Timestamp | None = None
    after: After | None = None
    strategy: Name | None = None
    ranking: Ranking | None = None
    relevance: Relevance | None = None
    include: Annotated[tuple[IncludePart, ...], Field(max_length=32)] = DEFAULT_INCLUDE
    payload: LegacyPayload = LegacyPayload()
    session: SessionContext | None = None
    plan: Plan | None = None
    memory: Memory | None = None
    artifacts: tuple[Artifact, ...] = ()
    pack: str | None = None
    working: WorkingSet | None = None
    must_cite: tuple[OpaqueId, ...] = ()
    required_tools: Annotated[tuple[ToolName, ...], Field(max_length=64)] = ()
    """To be called before the answer, of this service's own: of others no call could be known. Where the
    prompt has no room for a word on how to answer, none is required."""

    def digest(self) -> str:
        """SHA-256 of what the request means: schema defaults filled, absent fields left absent.

        Raises ValueError where the payload holds a number that canonical JSON cannot carry.
        """
        return sha256_hex(self.meaning())

    def meaning(self) -> bytes:
        """What the digest is of, as canonical JSON. Raises as `digest` does."""
        meaning: dict[str, Any] = self.model_dump(mode="json", exclude=set(NOT_IN_DIGEST), exclude_none=True)
        return canonical_json(meaning)


DEFAULT_LAYER_TIMEOUT_MS: Final = 500


def layer_timeout_ms(request: AssemblyRequest, layer: PartName) -> int:
    """The layer's own timeout, never longer than the whole deadline."""
    return min(request.layer_timeouts_ms.get(layer, DEFAULT_LAYER_TIMEOUT_MS), request.deadline_ms)
