"""The closed vocabularies of the wire: layers, statuses, reasons, rejection codes, include parts."""

from __future__ import annotations

from typing import Final, Literal, get_args

PartName = Literal[
    "system", "mission", "plan", "memory", "artifacts", "graph", "ast", "semantic", "task", "user"
]
LayerName = Literal[
    "system", "mission", "plan", "memory", "artifacts", "graph", "ast", "semantic", "task", "user", "output"
]
PARTS: Final[tuple[PartName, ...]] = get_args(PartName)
"""The ten parts of a prompt, in the order in which they are joined."""

LAYERS: Final[tuple[LayerName, ...]] = get_args(LayerName)
"""The eleven budget slots: the ten parts, then `output`, which is reserved and never a part."""

CONTENT_LAYERS: Final[tuple[PartName, ...]] = PARTS[1:-1]
"""The eight parts that sources fill; `system` and `user` are the caller's own and never trimmed."""

LayerStatus = Literal["ok", "trimmed", "empty", "off", "partial", "failed"]
LayerReason = Literal[
    "no_data",
    "below_heading",
    "subject_gated",
    "not_requested",
    "not_configured",
    "refused_path",
    "section_error",
    "not_indexed",
    "relevance_unavailable",
    "timeout",
    "abandoned",
    "error",
    "graph_unavailable",
    "memory_unavailable",
    "state_unavailable",
    "state_behind",
    "graph_behind",
]
BundleStatus = Literal["complete", "degraded"]
Outcome = Literal["complete", "degraded", "rejected"]

RejectionCode = Literal[
    "invalid_json",
    "invalid_encoding",
    "too_large",
    "invalid_request",
    "unsupported_version",
    "internal_error",
    "worker_died",
    "unknown_layer",
    "unknown_model",
    "unknown_subject",
    "unknown_strategy",
    "not_supported",
    "reply_to_not_allowed",
    "request_id_reused",
    "budget_too_small",
    "pins_exceed_window",
    "expired",
]
DEAD_LETTER_CODES: Final[frozenset[RejectionCode]] = frozenset(
    {
        "invalid_json",
        "invalid_encoding",
        "too_large",
        "invalid_request",
        "unsupported_version",
        "internal_error",
        "worker_died",
    }
)
RETRYABLE_CODES: Final[frozenset[RejectionCode]] = frozenset({"internal_error", "expired"})

TaskType = Literal["BUILD", "REFACTOR", "DEBUG", "DOCUMENT", "TEST", "REVIEW"]
Requester = Literal["volk", "agent", "human"]
Ranking = Literal["graph", "hop"]
Relevance = Literal["off", "prolog"]
IncludePart = Literal[
    "messages",
    "layers",
    "usage",
    "citations",
    "parts",
    "graph_context",
    "payload",
    "payload_content",
    "receipt",
]
StepStatus = Literal["pending", "active", "review", "blocked", "done", "skipped", "deferred", "unknown"]
