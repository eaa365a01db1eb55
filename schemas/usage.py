"""The usage event: what a bundle spent, one per outcome, on `context.usage` and as a JSONL line."""

from __future__ import annotations

from json.encoder import encode_basestring
from typing import Literal

from schemas.codes import LayerName, LayerReason, LayerStatus, Outcome, PartName, RejectionCode
from schemas.fragments import RelevanceTier
from schemas.wire import (
    SCHEMA_VERSION,
    Count,
    Flag,
    OpaqueId,
    ProjectId,
    Timestamp,
    WireModel,
    sha256_hex,
)


def usage_event_id(project_id: str, request_id: str, generation: int) -> str:
    """26 hex digits, the same for every attempt at one outcome, so that consumers can drop repeats."""
    # The canonical JSON of the three, spelled out: every outcome has one.
    spelled = f"[{encode_basestring(project_id)},{encode_basestring(request_id)},{generation}]"
    return sha256_hex(spelled.encode())[:26]


class LayerSpend(WireModel):
    """Tokens of one layer."""

    budget: Count
    """The layer's reservation in the effective budget."""
    spent: Count


class UsageTotals(WireModel):
    """The ledger of one bundle, in tokens."""

    total: Count
    """The effective total: the requested one less the overhead."""
    spent: Count
    remaining: Count
    layers: dict[LayerName, LayerSpend]


class OverheadTokens(WireModel):
    """Tokens of the prompt that belong to no layer."""

    client: Count
    framing: Count
    preamble: Count
    template: Count | None = None


class LayerOutcome(WireModel):
    """How one layer fared, without its text."""

    status: LayerStatus
    reason: LayerReason | None = None


class CacheCounts(WireModel):
    """Questions to the graph that a cache answered, or could not."""

    hits: Count = 0
    misses: Count = 0


class UsageCounts(WireModel):
    """What was forgiven or cut on the way."""

    unknown_fields: Count = 0
    naive_times: Count = 0
    escaped_delimiters: Count = 0
    clamped_scores: Count = 0
    """Relevances that a strategy gave and that are no number, or not between 0 and 1."""
    fragments_considered: Count = 0
    fragments_kept: Count = 0
    fragments_dropped: Count = 0


class UsageEvent(WireModel):
    """One per outcome, stored rejections included (their token and timing parts are null).

    Sum of `usage.layers[*].spent` + `overhead` = the recount of the messages, exactly: every message's
    content encoded once, plus the model's framing, plus what the client said it adds.
    """

    schema_version: str = SCHEMA_VERSION
    kind: Literal["usage"] = "usage"
    event_id: OpaqueId
    timestamp: Timestamp
    project_id: ProjectId
    request_id: OpaqueId
    parent_request_id: OpaqueId | None = None
    """Of a retry: the request whose bundle was answered before."""
    generation: Count
    volk_alias: str | None
    subject: str | None
    thread_id: OpaqueId | None
    model: str | None
    outcome: Outcome
    code: RejectionCode | None = None
    usage: UsageTotals | None
    requested_total: Count | None
    overhead: OverheadTokens | None
    reserved: dict[LayerName, Count] | None
    statuses: dict[PartName, LayerOutcome] | None
    timings_ms: dict[str, float] | None
    exact: Flag | None
    counts: UsageCounts | None
    cache: CacheCounts | None = None
    """Absent where the graph was not asked."""
    tiers: dict[RelevanceTier, Count] | None = None
    """Candidates by relevance tier; absent where relevance is off."""
    reusable_prefix_tokens: Count | None = None
    """Tokens that the thread's next prompt will begin with as well, should nothing but the message change;
    absent where nothing was assembled."""
    masked_secrets: Count | None = None
    """Values in what the sources gave that look like credentials; absent where masking is off."""
    tokens_by_source: dict[str, Count] | None = None
    """Tokens of what was shown by where it comes from (`session`, `graph`, `pack`, …), without the headings
    and marks around it; absent where nothing was assembled."""
