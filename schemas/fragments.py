"""Fragments as they cross the wire: the payload view of a bundle, and its budget."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.codes import PartName
from schemas.wire import Count, OpaqueId, Sha256Hex, Timestamp, WireModel

StorageTier = Literal["hot", "warm", "cold"]
RelevanceTier = Literal["core", "related", "peripheral"]
MAX_CONTENT_CHARS = 1_000_000
MAX_METADATA = 64


class FragmentProvenance(WireModel):
    """Where a fragment comes from."""

    resource_uri: Annotated[str, Field(min_length=1)]
    location: str = ""
    resource_type: str = "unknown"


class FragmentBudget(WireModel):
    """The token budget of a fragment payload; distinct from the eleven-layer `ContextBudget`."""

    max_tokens: Annotated[int, Field(ge=1)] = 4_096
    reserved_tokens: Count = 512

    @property
    def available_tokens(self) -> int:
        """What fragments may spend."""
        return self.max_tokens - self.reserved_tokens

    @model_validator(mode="after")
    def _reserved_below_max(self) -> Self:
        if self.reserved_tokens >= self.max_tokens:
            msg = f"reserved_tokens {self.reserved_tokens} must be below max_tokens {self.max_tokens}"
            raise ValueError(msg)
        return self


class ContextFragment(WireModel):
    """The smallest piece that was kept or dropped whole, as a payload names it."""

    fragment_id: Annotated[str, Field(pattern=r"^[0-7][0-9A-HJKMNP-TV-Z]{25}$")]
    """A ULID derived from project, layer, resource, location, content and `created_at`: reproducible."""
    uko_node: Annotated[str, Field(min_length=1)]
    """URI of the node that the fragment speaks of."""
    layer: PartName
    span: tuple[Count, Count]
    """First and last-plus-one character of the fragment within its layer's part."""
    content: Annotated[str, Field(max_length=MAX_CONTENT_CHARS)] | None = None
    """Only where `payload_content` was asked for."""
    detail_depth: Annotated[int, Field(ge=0, le=9)] = 0
    token_count: Count
    relevance_score: Annotated[float, Field(ge=0, le=1)] = 0.5
    provenance: tuple[FragmentProvenance, ...]
    tier: StorageTier = "warm"
    relevance_tier: RelevanceTier | None = None
    metadata: Annotated[dict[str, str], Field(max_length=MAX_METADATA)] = Field(default_factory=dict)
    created_at: Timestamp


class ContextPayload(WireModel):
    """The fragments of one bundle, in the order in which they stand in the prompt."""

    payload_id: OpaqueId
    """Derived from the context hash."""
    plan_id: OpaqueId | None = None
    fragments: tuple[ContextFragment, ...]
    total_tokens: Count
    budget: FragmentBudget
    budget_used: Annotated[float, Field(ge=0, le=1)]
    strategies_used: tuple[str, ...]
    context_hash: Sha256Hex
    preamble: str | None = None
    provenance_map: dict[str, tuple[FragmentProvenance, ...]]
    assembled_at: Timestamp

    @property
    def is_within_budget(self) -> bool:
        """Whether the fragments fit what the budget leaves them."""
        return self.total_tokens <= self.budget.available_tokens

    @property
    def remaining_tokens(self) -> int:
        """What is left of the budget."""
        return self.budget.available_tokens - self.total_tokens
