"""The receipt: what went into a prompt, what stayed out, and by which rule. Immutable once written."""

from __future__ import annotations

from json.encoder import encode_basestring
from typing import Annotated, Final, Literal

from pydantic import Field

from schemas.codes import LayerReason, LayerStatus, PartName
from schemas.wire import (
    SCHEMA_VERSION,
    Count,
    Sha256Hex,
    Timestamp,
    WireModel,
    sha256_hex,
)

MAX_SHOWN_LINES: Final = 1_000
MAX_LEFT_OUT_LINES: Final = 100
"""A layer's; what goes beyond these is counted by layer, fate and rule."""

Fate = Literal["kept", "reduced", "cut", "dropped", "merged", "capped"]
"""Shown whole, shown at a lower depth, shown in part, left out, shown as part of another, or never offered:
its source's own cap left it out."""

FragmentRule = Literal[
    "whole",
    "fits",
    "pinned_floor",
    "shallower",
    "name",
    "cut",
    "no_room",
    "not_proposed",
    "exact",
    "contained",
    "same_node",
    "source_cap",
]
"""Shown because the layer had room for all of it (`whole`), its deepest rendering fitted (`fits`), a
shallower one did (`shallower`), its name did (`name`), its beginning filled what was left (`cut`), or it is a
pin (`pinned_floor`). Not shown because the room was spent on better ones (`no_room`), no strategy wanted it
(`not_proposed`), another says the same (`exact`, `contained`, `same_node`), or its source gives no more
(`source_cap`)."""


class ReceiptCounts(WireModel):
    """Fragments of one bundle; what a source's own caps left out is considered and dropped."""

    considered: Count
    kept: Count
    dropped: Count


class ReceiptSource(WireModel):
    """What one source contributed, by digest."""

    layer: PartName
    status: LayerStatus
    reason: LayerReason | None = None
    digest: Sha256Hex
    """Of the contribution as it was fused, credentials masked; it is the capture's address of it."""
    fragments: Count
    capped: Count
    """Items that the source's own caps left out."""


class ReceiptFragment(WireModel):
    """One fragment, and what became of it."""

    layer: PartName
    node: str
    """URI of what it speaks of."""
    rank: Count
    """The source's own, 0 first."""
    score: Annotated[float, Field(ge=0, le=1)] | None = None
    """As it was packed; absent where it was not scored."""
    size_bytes: Count
    """Of its deepest rendering."""
    tokens: Count | None = None
    """Charged to the text that is shown; absent where none is."""
    depth: Annotated[int, Field(ge=0, le=9)] | None = None
    """At which it is shown: 0 is a name, 9 the whole."""
    fate: Fate
    rule: FragmentRule
    into: str | None = None
    """Of a merged one: the layer and node that speak for it."""
    strategies: tuple[str, ...] | None = None
    """Who proposed it, where several strategies worked."""
    masked: Count = 0
    """Values in it that looked like credentials."""


class ReceiptRest(WireModel):
    """Fragments that have no line of their own, since there are too many."""

    layer: PartName
    fate: Fate
    rule: FragmentRule
    count: Count
    size_bytes: Count


class ReceiptFailure(WireModel):
    """A strategy whose share went to another one, and why."""

    name: str
    code: str


class ReceiptRecord(WireModel):
    """Everything that decided the bytes of one bundle, by digest, and what became of every fragment.

    Lines stand by layer in joined order: first those of fragments that reached packing, in packing order,
    each followed by those that it speaks for; then those that no strategy proposed.
    """

    schema_version: str = SCHEMA_VERSION
    kind: Literal["receipt"] = "receipt"
    request_digest: Sha256Hex
    request_line_digest: Sha256Hex
    """Of the request as the capture holds it: what came with it for the sources is named by digest there."""
    as_of: Timestamp
    snapshot_id: str | None = None
    """Of the graph that was read; absent where none was."""
    settings_digest: str
    code_version: str
    model: str
    encoding: str
    strategies: tuple[str, ...]
    failures: tuple[ReceiptFailure, ...]
    sources: tuple[ReceiptSource, ...]
    fragments: tuple[ReceiptFragment, ...]
    omitted: tuple[ReceiptRest, ...]
    masked_secrets: Count | None = None
    """Absent where masking is off."""


class Receipt(WireModel):
    """What a bundle says of its receipt."""

    receipt_id: Annotated[str, Field(pattern=r"^[0-9a-f]{26}$")]
    counts: ReceiptCounts
    record: ReceiptRecord | None = None
    """Only where `receipt` was asked for."""


def receipt_id(project_id: str, context_hash: str, record: bytes) -> str:
    """26 hex digits: the SHA-256 of the canonical JSON of project, context hash and record.

    `record` is the canonical JSON of a ReceiptRecord.
    """
    head = f"[{encode_basestring(project_id)},{encode_basestring(context_hash)},".encode()
    return sha256_hex(head + record + b"]")[:26]
