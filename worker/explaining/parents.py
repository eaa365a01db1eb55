"""What a parent's bundle showed, made again from its capture, for a child to start from."""

from __future__ import annotations

import asyncio

from schemas.codes import PARTS
from worker.assembly import ParentLate
from worker.errors import NotSupported, Rejected
from worker.explaining.replay import fuse_again
from worker.explaining.stored import NotExplainable, stored_of
from worker.fusion.protocols import Placed
from worker.planning import ContentPolicy
from worker.ports import OutcomeKey, OutcomeRecord, OutcomeStore, Scope
from worker.receipts.capture import CaptureUnreadable
from worker.retrieval.newest import newest_outcome
from worker.turns import AT_ONCE, TURNS


class StoredParents:
    """Reads parents from the outcomes of the same project."""

    def __init__(self, store: OutcomeStore, policy: ContentPolicy) -> None:
        """Ask `store`; `policy` has the strategies of this process."""
        self._store = store
        self._policy = policy
        self._free = asyncio.Semaphore(AT_ONCE)

    async def read(self, scope: Scope, request_id: str, *, wait_seconds: float) -> list[Placed]:
        """The fragments of the parent's newest bundle as they were shown, in prompt order.

        Raises NotSupported where the project has no bundle of that request, or none of this thread, or keeps
        its capture no longer: which of them it is stays unsaid, so that nobody learns of another's. Raises
        ParentLate where it is not made again within `wait_seconds`, and StoreUnavailable. Takes what fusing
        the parent took, on another thread, and at most as many of those at once as there are turns.
        """
        until = asyncio.get_running_loop().time() + wait_seconds
        key = OutcomeKey(project_id=scope.project_id, request_id=request_id)
        # Not cut short: a store that is away makes the worker wait, and must not look like one that is slow.
        held = await newest_outcome(self._store, key)
        if isinstance(held, OutcomeRecord):
            placed = await self._in_time(held, scope, until)
            if placed is not None:
                return placed
        raise NotSupported("parent", reason="no context of that request is kept for this project and thread")

    async def _in_time(self, held: OutcomeRecord, scope: Scope, until: float) -> list[Placed] | None:
        try:
            async with asyncio.timeout_at(until):
                await self._free.acquire()
                work = asyncio.create_task(asyncio.to_thread(TURNS.run, self._placed, held, scope))
                # A thread that nobody waits for any longer goes on, and keeps its place until it ends.
                work.add_done_callback(lambda _: self._free.release())
                return await asyncio.shield(work)
        except TimeoutError:
            reason = "no context of that request was made again within its part of the deadline"
            raise ParentLate("parent", reason=reason) from None

    def _placed(self, held: OutcomeRecord, scope: Scope) -> list[Placed] | None:
        try:
            capture = stored_of(held).capture()
            if capture.request.thread_id not in {None, scope.thread_id}:
                return None
            sections = fuse_again(capture, self._policy).finished.sealed.packed
        except (NotExplainable, CaptureUnreadable, Rejected):
            return None
        return [placed for layer in PARTS if layer in sections for placed in sections[layer].placed]
