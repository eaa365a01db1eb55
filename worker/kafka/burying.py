"""How a record is settled that was tried in vain: one way for every kind of record.

It was met by a defect, or the process died of it; so nothing that has to do with its meaning may be needed to
get rid of it. Where the way of its own kind fails too, dead letter and reply are made from the record alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from worker.errors import InternalError, Rejected, StoreUnavailable, WorkerDied
from worker.kafka.headers import RequestHeaders
from worker.kafka.received import Received, defect
from worker.kafka.records import Handled, InboundRecord
from worker.logs import bind_ids

_log = structlog.get_logger(__name__)

R = TypeVar("R", bound=Received)

NOT_DEFECTS: Final = (
    StoreUnavailable,
    asyncio.CancelledError,
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
)
"""What is never an answer: a dependency that is away is no dead letter, and an order to stop no error."""


async def bury(
    record: InboundRecord,
    headers: RequestHeaders,
    kind: type[R],
    *,
    attempts: int,
    cause: BaseException | None,
    settle: Callable[[R, Rejected], Awaitable[Handled]],
    refuse: Callable[[R, Rejected], Awaitable[Handled]],
) -> Handled:
    """Settle a record that was tried `attempts` times in vain; its body is not decoded.

    It is an `internal_error` where `cause`, a defect of the handler, was met, else the process died:
    `worker_died`. The body is only searched for its two ids, which needs none of what it is decoded with, and
    what was found is given to `settle`. A defect of either is answered by `refuse`, without ids. Raises what
    `NOT_DEFECTS` lists, StoreUnavailable before anything was published.
    """
    error, trace_text = _in_vain(attempts, cause)
    try:
        received = await kind.undecoded(record, headers, error, trace_text=trace_text)
        bind_ids(received.project_id, **{kind.ID_FIELD: received.request_id})
        return await settle(received, error)
    except NOT_DEFECTS:
        raise
    except BaseException as another:  # noqa: BLE001 - whatever it is, the bytes must be kept
        found = defect(another)
        _log.error("record.not_buried", topic=record.topic, kind=type(another).__name__, place=found.place)
        bare = kind.without_ids(record, headers, error, trace_text=trace_text or found.traceback)
        return await refuse(bare, error)


def _in_vain(attempts: int, cause: BaseException | None) -> tuple[Rejected, str | None]:
    """Why a record is buried that was tried `attempts` times, and the traceback of the defect that did it."""
    if cause is None:
        return WorkerDied(f"the worker died {attempts} times on this record", attempts=attempts), None
    found = defect(cause)
    return InternalError(found.refusal.message, attempts=attempts), found.traceback
