"""The declared topics: what they are called, how they are cut and kept, their keys, and what they carry.

One table for everything that needs it: the worker creates the topics from it, and the AsyncAPI document
describes them from it. Topics of parts that are not built yet are not in it, and so are not created.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel

from schemas.answers import AgentAnswer, Escalation, Verdict
from schemas.bundle import BundleRef, ContextBundle, Rejection
from schemas.request import AssemblyRequest
from schemas.state import StateEvent
from schemas.sync import SyncRequest, SyncResult
from schemas.tools import ToolRequest, ToolResult
from schemas.usage import UsageEvent

DEFAULT_PREFIX: Final = "context."

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_MIB: Final = 1_048_576
_HEADER_BYTES: Final = 65_536

TopicRole = Literal[
    "requests",
    "bundles",
    "usage",
    "responses",
    "verdicts",
    "escalations",
    "state",
    "sync",
    "sync-results",
    "tools",
    "tool-results",
    "dead-letters",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """One topic. All delete and none compact: the stores are the truth, topics only carry."""

    role: TopicRole
    """Its name without the prefix."""
    partitions: int
    retention_ms: int
    max_message_bytes: int
    key: str
    """What the records are keyed by, for people."""
    carries: tuple[type[BaseModel], ...]
    """Message types; empty where records are kept as they came."""
    summary: str

    def name(self, prefix: str = DEFAULT_PREFIX) -> str:
        """Its name on a broker."""
        return prefix + self.role

    @property
    def configs(self) -> dict[str, str]:
        """Its configuration, in Kafka's own terms."""
        return {
            "cleanup.policy": "delete",
            "max.message.bytes": str(self.max_message_bytes),
            "retention.ms": str(self.retention_ms),
            # Retention deletes whole segments: a day-long one would double what a 24-hour topic keeps.
            "segment.ms": str(_HOUR_MS),
        }


TOPICS: Final = (
    TopicSpec(
        role="requests",
        partitions=12,
        retention_ms=_DAY_MS,
        # A body over the worker's own limit should reach it, to be answered `too_large` and not to vanish.
        max_message_bytes=10 * _MIB,
        key="project_id, or project_id#thread_id for heavy projects",
        carries=(AssemblyRequest,),
        summary="Requests for one prompt's context each.",
    ),
    TopicSpec(
        role="bundles",
        partitions=12,
        retention_ms=_DAY_MS,
        max_message_bytes=_MIB,
        key="the request's key",
        carries=(ContextBundle, Rejection, BundleRef),
        summary="The answer to each request, unless it named another reply topic.",
    ),
    TopicSpec(
        role="usage",
        partitions=12,
        retention_ms=7 * _DAY_MS,
        max_message_bytes=_MIB,
        key="project_id",
        carries=(UsageEvent,),
        summary="What each outcome spent.",
    ),
    TopicSpec(
        role="responses",
        partitions=12,
        retention_ms=_DAY_MS,
        max_message_bytes=10 * _MIB,
        key="project_id",
        carries=(AgentAnswer,),
        summary="Agents' answers to bundles, each judged once.",
    ),
    TopicSpec(
        role="verdicts",
        partitions=12,
        retention_ms=_DAY_MS,
        max_message_bytes=_MIB,
        key="the answer's key",
        carries=(Verdict, Rejection),
        summary="What is said of each answer; the `request_id` of a rejection is the `answer_id`.",
    ),
    TopicSpec(
        role="escalations",
        partitions=12,
        retention_ms=_DAY_MS,
        max_message_bytes=_MIB,
        key="project_id",
        carries=(Escalation,),
        summary="Requests whose answers never complied, for people to look at.",
    ),
    TopicSpec(
        role="state",
        partitions=12,
        retention_ms=7 * _DAY_MS,
        max_message_bytes=10 * _MIB,
        key="project_id",
        carries=(StateEvent,),
        summary="Events that make up the state of projects and threads, in any order, any number of times.",
    ),
    TopicSpec(
        role="sync",
        partitions=3,
        retention_ms=_DAY_MS,
        max_message_bytes=10 * _MIB,
        # One partition for all that concerns a project: syncs are carried out in their order.
        key="project_id",
        carries=(SyncRequest,),
        summary="Source trees, or files of them, to be indexed.",
    ),
    TopicSpec(
        role="sync-results",
        partitions=3,
        retention_ms=_DAY_MS,
        max_message_bytes=_MIB,
        key="the sync's key",
        carries=(SyncResult, Rejection),
        summary="The answer to each sync; the `request_id` of a rejection is the `sync_id`.",
    ),
    TopicSpec(
        role="tools",
        partitions=12,
        retention_ms=_DAY_MS,
        max_message_bytes=10 * _MIB,
        key="project_id",
        carries=(ToolRequest,),
        summary="Calls of tools by agents, answered in any order.",
    ),
    TopicSpec(
        role="tool-results",
        partitions=12,
        retention_ms=_DAY_MS,
        max_message_bytes=_MIB,
        key="the call's key",
        carries=(ToolResult, Rejection),
        summary="The answer to each call; the `request_id` of a rejection is the `call_id`.",
    ),
    TopicSpec(
        role="dead-letters",
        partitions=3,
        retention_ms=30 * _DAY_MS,
        # Whatever fits the requests topic fits here, with the headers that say why it is here.
        max_message_bytes=10 * _MIB + _HEADER_BYTES,
        key="the original key",
        carries=(),
        summary="Records that cannot succeed as they are: original key, bytes and headers.",
    ),
)


def topic_name(role: TopicRole, *, prefix: str = DEFAULT_PREFIX) -> str:
    """The name of a declared topic on a broker."""
    return prefix + role
