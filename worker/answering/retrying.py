"""Making the next bundle of a request whose answer did not comply: stored if absent, and then what is stored.

A retry is made from what its parent's sources gave, which the parent's capture holds: so what came with the
request need not come again, and a warning or a smaller bundle reads no live state. Only where context lacked
is the graph asked anew, further than before. It goes through the assembler like every request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from schemas.citations import Step
from schemas.codes import PartName
from worker.answering.cases import Case
from worker.assembly import Assembled
from worker.citations.retries import (
    Lineage,
    Taken,
    callers_message,
    retry_id,
    retry_request,
    shrink,
    warning_of,
)
from worker.citations.validator import Judgement
from worker.errors import Rejected, WorkerError
from worker.failpoints import Failpoints
from worker.fusion.masking import Admitted
from worker.outcomes import bundle_outcome
from worker.ports import (
    LayerContribution,
    OutcomeKey,
    OutcomeRecord,
    OutcomeStore,
    RequestFrame,
    Tombstone,
    Widening,
)

EXTRA_HOPS: Final = 1
_WIDENED: Final[frozenset[PartName]] = frozenset({"graph", "semantic"})
"""The graph's pack, and the layer that shows what the pack lacks."""
_NONE: Final[frozenset[PartName]] = frozenset()


class RetryRefused(WorkerError):
    """The next bundle cannot be made; the message says why, in words for people."""


class AssembleAgain(Protocol):
    """Assembles a frame of which most sources were asked before."""

    async def __call__(
        self, frame: RequestFrame, *, kept: Admitted, asked: frozenset[PartName], generation: int
    ) -> Assembled:
        """As `worker.assembly.Assembler.assemble_again`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """How a retry's bundle is kept and published."""

    max_record_bytes: int
    """Of a verdict; a bundle that does not fit one goes by reference, under `public_url`."""
    max_capture_bytes: int
    public_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The next bundle, before it is made."""

    key: OutcomeKey
    lineage: Lineage
    frame: RequestFrame
    kept: Admitted
    asked: frozenset[PartName]
    """Layers whose sources are asked anew."""

    @property
    def step(self) -> Step:
        """What it is made for."""
        return self.lineage.taken[-1].step


def plan_retry(
    case: Case, judgement: Judgement, *, step: Step, generation: int, lacked: Sequence[str] = ()
) -> Planned:
    """What the next bundle is to be: a pure function. `step` is expand, warn or shrink.

    `lacked` are the own ids of what was cited and not shown. O(fragments).
    """
    capture, lineage = case.capture, case.lineage
    answered = capture.request.request_id
    taken = (*(lineage.taken if lineage else ()), Taken(request_id=answered, step=step))
    kept = capture.admitted
    shown = None
    if step == "shrink":
        shrunk = shrink(kept.contributions, case.citations)
        kept, shown = replace(kept, contributions=shrunk.contributions), shrunk.shown
    warning = warning_of(judgement, case.citations, shown=shown)
    message = callers_message(capture.request, lineage)
    request = retry_request(
        capture.request,
        request_id=retry_id(taken[0].request_id, len(taken)),
        message=message,
        warning=warning,
    )
    is_wider = step == "expand"
    return Planned(
        key=OutcomeKey(project_id=request.project_id, request_id=request.request_id, generation=generation),
        lineage=Lineage(taken=taken, warning=warning),
        frame=replace(
            capture.frame,
            request=request,
            parent_request_id=answered,
            widening=Widening(hops=EXTRA_HOPS, roots=tuple(lacked), message=message) if is_wider else None,
        ),
        kept=replace(kept, contributions=_as_kept(kept.contributions)),
        asked=_WIDENED if is_wider else _NONE,
    )


def _as_kept(contributions: Mapping[PartName, LayerContribution]) -> dict[PartName, LayerContribution]:
    """The contributions, with nobody asked for them: no question to the graph missed a cache."""
    return {
        layer: replace(one, measures=replace(one.measures, is_cache_hit=True)) if one.measures else one
        for layer, one in contributions.items()
    }


class Retrier:
    """Makes and stores retries; one per worker."""

    def __init__(
        self,
        *,
        assemble: AssembleAgain,
        store: OutcomeStore,
        limits: RetryLimits,
        failpoints: Failpoints,
    ) -> None:
        """Assemble by this, and keep in this store, within the limits."""
        self._assemble = assemble
        self._store = store
        self._limits = limits
        self._failpoints = failpoints

    async def make(
        self, planned: Planned, *, verdict_bytes: int, drill: str
    ) -> tuple[OutcomeRecord, Lineage]:
        """The stored outcome of the planned retry, and the lineage that it was stored with.

        That may be one that another answer to the same bundle, or an earlier try at this one, has come to: a
        bundle is followed by one other. `verdict_bytes` is what the verdict takes around the bundle; `drill`
        is what failpoints look for.

        Raises RetryRefused where the request cannot be served so, or its id is somebody's own request's; and
        StoreUnavailable.
        """
        held = await self._store.get(planned.key)
        if held is None:
            record = await self._assembled(planned, verdict_bytes=verdict_bytes)
            await self._failpoints.reach("answer.before_retry_store", drill)
            held = await self._store.put_if_absent(planned.key, record)
            await self._failpoints.reach("answer.after_retry_store", drill)
        return _own(held, planned)

    async def _assembled(self, planned: Planned, *, verdict_bytes: int) -> OutcomeRecord:
        frame, limits = planned.frame, self._limits
        try:
            assembled = await self._assemble(
                frame, kept=planned.kept, asked=planned.asked, generation=planned.key.generation
            )
        except Rejected as error:
            raise RetryRefused(f"{error.code}: {error.message}") from error
        write = partial(
            bundle_outcome,
            assembled.bundle,
            assembled.usage,
            assembled.trail,
            request_digest=frame.request.digest(),
            as_of=frame.as_of,
            max_record_bytes=max(0, limits.max_record_bytes - verdict_bytes),
            max_capture_bytes=limits.max_capture_bytes,
            public_url=limits.public_url,
        )
        record = await asyncio.to_thread(write)
        return replace(record, lineage=planned.lineage.to_bytes())


def _own(held: OutcomeRecord | Tombstone, planned: Planned) -> tuple[OutcomeRecord, Lineage]:
    """What is held, if it is a retry of the same request after the same steps. Raises RetryRefused."""
    if isinstance(held, OutcomeRecord) and held.lineage is not None:
        lineage = Lineage.from_bytes(held.lineage)
        is_same_parent = lineage.parent_request_id == planned.lineage.parent_request_id
        if is_same_parent and lineage.taken[:-1] == planned.lineage.taken[:-1]:
            return held, lineage
    raise RetryRefused(f"the id {planned.key.request_id!r} is another request's")
