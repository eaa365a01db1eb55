"""What answers a request: a bundle, a reference to one that is too large for a record, or a rejection."""

from __future__ import annotations

from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, Literal

from schemas.citations import Citations
from schemas.codes import BundleStatus, LayerReason, LayerStatus, PartName, RejectionCode, TaskType
from schemas.fragments import ContextPayload
from schemas.receipt import Receipt
from schemas.usage import OverheadTokens, UsageTotals
from schemas.wire import (
    SCHEMA_VERSION,
    Count,
    Flag,
    OpaqueId,
    ProjectId,
    Sha256Hex,
    Timestamp,
    WireModel,
    sha256_hex,
)


class Message(WireModel):
    """One chat message, ready to send."""

    role: Literal["system", "user"]
    content: str


class LayerReport(WireModel):
    """How one of the ten parts fared."""

    status: LayerStatus
    reason: LayerReason | None = None
    tokens: Count
    """Charged to the layer: its heading, fence, text and separator."""
    budget_tokens: Count
    """Its reservation in the effective budget."""
    reserved_tokens: Count
    """Its reservation as requested."""
    fragments: Count


class BundleUsage(UsageTotals):
    """The ledger, and what a recount of the messages must add to it."""

    overhead: OverheadTokens
    exact: Flag
    """False where the count is a certified upper bound or carries a safety factor."""


class ContextBundle(WireModel):
    """One prompt's context. Parts that `include` did not ask for are absent."""

    schema_version: str = SCHEMA_VERSION
    kind: Literal["bundle"] = "bundle"
    request_id: OpaqueId
    parent_request_id: OpaqueId | None = None
    """Of a retry: the request whose bundle was answered before."""
    project_id: ProjectId
    thread_id: OpaqueId | None = None
    volk: str
    subject: str
    task_type: TaskType
    status: BundleStatus
    messages: tuple[Message, ...] | None = None
    layers: dict[PartName, LayerReport] | None = None
    usage: BundleUsage | None = None
    parts: dict[PartName, str] | None = None
    """The text of each part; joined in order they are the messages."""
    graph_context: str | None = None
    """The content layers joined, for consumers of the older payload's field of that name."""
    payload: ContextPayload | None = None
    citations: Citations | None = None
    """What answers may cite; short ids stand in the messages."""
    receipt: Receipt
    context_hash: Sha256Hex
    assembled_at: Timestamp


class BundleRef(WireModel):
    """Stands for a bundle that exceeds a record; the bytes at `url` have the SHA-256 `digest`."""

    schema_version: str = SCHEMA_VERSION
    kind: Literal["bundle_ref"] = "bundle_ref"
    request_id: OpaqueId
    project_id: ProjectId
    digest: Sha256Hex
    size_bytes: Count
    status: BundleStatus
    url: str


class Rejection(WireModel):
    """Why there is no bundle. Ids are null where the record did not yield them."""

    schema_version: str = SCHEMA_VERSION
    kind: Literal["rejection"] = "rejection"
    request_id: OpaqueId | None
    project_id: ProjectId | None
    code: RejectionCode
    message: str
    details: dict[str, Any]
    retryable: Flag


def context_hash(messages: tuple[Message, ...]) -> str:
    """SHA-256 of the canonical JSON of the messages."""
    # Spelled out: a prompt of a megabyte would else be looked through once more for what is not plain.
    spelled = ",".join(
        [
            f'{{"content":{encode_basestring(message.content)},"role":"{message.role}"}}'
            for message in messages
        ]
    )
    return sha256_hex(f"[{spelled}]".encode())


def to_wire(model: WireModel) -> bytes:
    """The one encoding of an outgoing model: compact UTF-8 JSON in field order.

    Absent parts are left out, at any depth. A top-level field without a default is always written: where it
    is null, as null behind the others.
    """
    written = model.__pydantic_serializer__.to_json(model, exclude_none=True)
    values = model.__dict__
    nulls = [name for name in _required_fields(type(model)) if values[name] is None]
    return written[:-1] + "".join([f',"{name}":null' for name in nulls]).encode() + b"}" if nulls else written


@lru_cache(maxsize=64)
def _required_fields(model: type[WireModel]) -> tuple[str, ...]:
    return tuple(name for name, field in model.model_fields.items() if field.is_required())
