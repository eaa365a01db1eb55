"""The seams: what has, or will have, more than one implementation, and the values that cross them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.codes import LayerReason, LayerStatus, PartName, TaskType
from schemas.fragments import FragmentProvenance, RelevanceTier, StorageTier
from schemas.request import AssemblyRequest

# --- Tokens ------------------------------------------------------------------------------------------


class TokenCounter(Protocol):
    """Counts the tokens of text for one encoding. Stateless, safe from any thread.

    A count is exact, or a certified upper bound; `is_exact` says which.
    """

    @property
    def name(self) -> str:
        """The encoding, as the model table spells it."""
        ...

    @property
    def exact(self) -> bool:
        """Whether this counter is exact for all ordinary text."""
        ...

    def is_exact(self, text: str) -> bool:
        """Whether `count(text)` is exact; if not, it is an upper bound. Much cheaper than counting."""
        ...

    def count(self, text: str) -> int:
        """Tokens of `text`, exact or an upper bound."""
        ...

    def count_up_to(self, text: str, limit_tokens: int) -> int:
        """`count(text)` if that is at most `limit_tokens`, else some number above the limit, soon."""
        ...

    def fits(self, text: str, budget_tokens: int) -> bool:
        """Whether `count(text) <= budget_tokens`, found the cheapest way."""
        ...

    def token_ends(self, text: str) -> NDArray[np.int64]:
        """UTF-8 byte offsets at which the raw tokens of one encoding of `text` end: `(n_tokens,)`."""
        ...

    def scale(self, raw_tokens: int) -> int:
        """What a number of raw tokens counts as. Never decreasing."""
        ...

    def raw_budget(self, budget_tokens: int) -> int:
        """The most raw tokens that count as at most `budget_tokens`."""
        ...


# --- Sources and fragments ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """A fragment's text at one depth: 0 is a bare name, 9 the full source."""

    depth: int
    text: str


MergeRule = Literal["exact", "contained", "same_node"]
"""Why two fragments were shown as one: equal texts, one text inside the other, or the same thing named."""


Volatility = Literal["constant", "project", "thread", "step", "request"]
"""What has to change before a text does: nothing, the project, the thread's goal, the work's progress, or the
very next message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absorbed:
    """A fragment that another one speaks for, and why."""

    key: str
    layer: PartName
    node: str
    rule: MergeRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """The smallest piece that is kept or dropped whole.

    `renderings` go from the deepest to the shallowest. Neither they nor `provenance` are ever empty: a source
    that gives a fragment without one has failed. Of a pinned fragment the last rendering is its floor, which
    is always in the prompt. `relevance` (0 to 1) ranks within the layer, then
    `rank` (0 first), then `node`: never time, never arrival. `position` is the place in the layer's text.
    """

    layer: PartName
    node: str
    """URI of what the fragment speaks of; unique within the layer and `provenance`."""
    renderings: tuple[Rendering, ...]
    provenance: tuple[FragmentProvenance, ...]
    position: int
    relevance: float = 0.5
    rank: int = 0
    group: str = ""
    """Heading line shown once above the first surviving fragment of a run with the same group."""
    is_pinned: bool = False
    is_divisible: bool = False
    """Whether a prefix of it still makes sense; a function cut in half does not."""
    storage_tier: StorageTier = "warm"
    relevance_tier: RelevanceTier | None = None
    """None where relevance is off, or where the source knows of none."""
    hops: int | None = None
    """Edges between what the request names and this, where the source walked a graph."""
    created_at: datetime | None = None
    """The content's own time, where it has one."""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    about: str = ""
    """Id of the one thing that the text shows, as every source would spell it: of code, a decision, an
    artifact. Empty where the text shows none, or says something about it that is not in it."""
    volatility: Volatility = "request"
    absorbed: tuple[Absorbed, ...] = ()
    """What it speaks for beside itself, in the order in which that was found."""

    @property
    def key(self) -> str:
        """Identifies the fragment within one request."""
        return f"{self.layer}:{self.position}:{self.node}"


def source_of(node: str) -> str:
    """Where what this URI speaks of comes from: its scheme, such as `graph` or `session`."""
    return node.partition("://")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContribution:
    """What one source gives for one layer.

    `status` is `ok`, `empty`, `off`, `partial` or `failed`; fusion turns `ok` into `trimmed` where it had
    to leave something out. `capped` counts the items that the source's own caps left out.
    """

    layer: PartName
    status: LayerStatus
    reason: LayerReason | None = None
    heading: str = ""
    fragments: tuple[Fragment, ...] = ()
    capped: int = 0
    measures: GraphMeasures | None = None
    """What asking the graph took; of the graph layer alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphMeasures:
    """What the usage event says about the question to the graph."""

    is_cache_hit: bool
    tiers: Mapping[RelevanceTier, int] | None = None
    """Candidates by relevance tier; None where relevance is off."""
    snapshot_id: str | None = None
    """Of the graph that was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose data may be read. A required argument of every read, so that nobody can forget it."""

    project_id: str
    thread_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One row of the subjects table: what a kind of work lets in, and its task type."""

    name: str
    inject: bool
    semantic: bool
    task_type: TaskType


@dataclass(frozen=True, slots=True, kw_only=True)
class Widening:
    """How much further the graph is to be asked than a request by itself asks it."""

    hops: int
    """Beyond those of the task's template; what traces to what and what tests it is followed, too."""
    roots: tuple[str, ...]
    """Ids of what is to come first."""
    message: str
    """What is asked about: the caller's message, without what a retry says to the agent behind it."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class RequestFrame:
    """The request as analysed: a pure function of the request, its effective `as_of` and the tables."""

    request: AssemblyRequest
    subject: Subject
    task_type: TaskType
    as_of: datetime
    parent_request_id: str | None = None
    """Of a retry: the request whose bundle was answered before."""
    widening: Widening | None = None
    """Of a retry that lacked context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBudget:
    """What a source should aim for. It may return more; fusion has the last word."""

    tokens: int
    counter: TokenCounter
    graph_tokens: int = 0
    """The graph layer's: what another layer shows beside the pack depends on what the pack had room for."""


class Provider(Protocol):
    """An asynchronous source of one layer's fragments. Stateless between calls."""

    @property
    def layer(self) -> PartName:
        """The layer that it fills."""
        ...

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        """Same frame and state, same contribution.

        Raises Unavailable where its store is away, Rejected where the request's own data for this layer
        contradicts the contract.
        """
        ...


class Preparation(Protocol):
    """Begins what several sources of one request share, before they are asked."""

    async def prepare(self, frame: RequestFrame, scope: Scope) -> None:
        """Return when it is there, or after a moment: each source waits for the rest in its own time.

        Raises nothing; a failure is for the sources to meet.
        """
        ...


# --- Outcomes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeKey:
    """One distinct outcome exists for each."""

    project_id: str
    request_id: str
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRecord:
    """The outcome of one request, as it was and will be published. All bytes are UTF-8 JSON."""

    request_digest: str
    as_of: datetime
    reply: bytes
    """A bundle, a reference to one, or a rejection."""
    usage: bytes | None
    bundle: bytes | None = None
    """The bundle itself where `reply` is a reference; fetched by its SHA-256."""
    receipt: bytes | None = None
    """The receipt's record, of a bundle; of an internal error its traceback."""
    capture: bytes | None = None
    """The inputs that make the bundle again, or one line that says why they were not kept."""
    lineage: bytes | None = None
    """Of a retry: the requests that it follows, as `worker.citations.retries.Lineage` writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """What is left of an outcome whose bytes have expired: enough to tell a repeat from a reuse."""

    request_digest: str
    reply_sha256: str


class OutcomeStore(Protocol):
    """First writer wins; every read is by project. Raises StoreUnavailable, never a driver's own error.

    Bytes live for `keep_seconds`, then a tombstone until `forget_seconds` after the put, then nothing.
    """

    async def get(self, key: OutcomeKey) -> OutcomeRecord | Tombstone | None:
        """What the store holds."""
        ...

    async def put_if_absent(self, key: OutcomeKey, record: OutcomeRecord) -> OutcomeRecord | Tombstone:
        """Store, atomically, unless something is there; return what the store holds then."""
        ...

    async def get_bundle(self, *, project_id: str, digest: str) -> bytes | None:
        """The bundle bytes with that SHA-256 that an outcome of this project refers to."""
        ...

    async def purge(self, project_id: str, *, only: Callable[[OutcomeRecord], bool] | None = None) -> int:
        """Forget the project's outcomes, tombstones as well; returns how many there were.

        With `only`, those whose record it says yes to: what has expired to a tombstone holds no content to be
        judged by, and stays. An outcome that is put meanwhile may stay, too. `only` may be called from
        another thread.
        """
        ...

    async def check(self) -> None:
        """Return when the store can read and write now."""
        ...

    async def close(self) -> None:
        """Release connections; idempotent."""
        ...


# --- Crash bookkeeping -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRef:
    """Where a record lies. `scope` tells clusters apart: offsets start again with a new one."""

    scope: str
    topic: str
    partition: int
    offset: int


class CrashLedger(Protocol):
    """Counts starts and attempts that were not ended in order, to find the record that kills workers.

    Raises StoreUnavailable. Counts never expire before they are cleared or 48 h have passed.
    """

    async def raise_start(self, group: str, position: RecordRef) -> int:
        """Count one more start of `group` from this committed position, and return the count."""
        ...

    async def withdraw_start(self, group: str, position: RecordRef) -> None:
        """Count one start less, where one is counted: it was survived."""
        ...

    async def clear_starts(self, group: str, *, scope: str, topic: str, partition: int) -> None:
        """An orderly revoke or stop: forget the partition's starts."""
        ...

    async def begin_attempt(self, record: RecordRef) -> int:
        """Write down, before the work, that the record is tried; return how often it was tried before."""
        ...

    async def withdraw_attempt(self, record: RecordRef) -> None:
        """Count one attempt less, where one is counted: it was survived, though not ended."""
        ...

    async def end_attempt(self, record: RecordRef) -> None:
        """The record ended in order, whatever its outcome: forget its attempts."""
        ...

    async def close(self) -> None:
        """Release connections; idempotent."""
        ...


# --- Packs -------------------------------------------------------------------------------------------


class PackCache(Protocol):
    """Keeps what the graph said to a request, under a digest of all that it depends on.

    A miss is None. Raises StoreUnavailable; whoever asks can compute the value instead.
    """

    async def get(self, project_id: str, key: str) -> bytes | None:
        """What was kept for the project under `key`, if it still is."""
        ...

    async def put(self, project_id: str, key: str, value: bytes) -> None:
        """Keep the value in place of one that is there."""
        ...

    async def purge(self, project_id: str) -> int:
        """Forget all that is kept for the project; returns how many values that were."""
        ...

    async def close(self) -> None:
        """Release connections; idempotent."""
        ...
