"""One record until it has ended: through outages of the store, quarantine, and defects of the handler."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

import structlog

from worker.errors import HeldBack, StoreUnavailable
from worker.kafka.health import FailureWindow
from worker.kafka.outage import StoreGate
from worker.kafka.quarantine import Quarantine, must_be_buried
from worker.kafka.records import Handled, InboundRecord, RecordHandler
from worker.ports import RecordRef

_log = structlog.get_logger(__name__)

ATTEMPTS_AT_A_DEFECT: Final = 3
BURIALS_AT_A_DEFECT: Final = 3
_FIRST_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 30.0
_LONGEST_LEDGER_PAUSE_SECONDS: Final = 5.0


class Attempts:
    """Tries a record until its offset may advance.

    - StoreUnavailable: waits until the store is back and tries again, as often as it takes. Meanwhile it has
      stepped aside, so that in quarantine the records of other topics, which wait for no such store, go on.
    - HeldBack: the same, for as long as it takes, by itself: the store is there for all others. Where an
      outcome is too new, a newer worker that gets the partition goes on, or this one when it is forgotten.
    - Quarantine: the attempt is written down first; a record that ended the process too often is buried.
      Before a record steps aside its attempt is taken back: what ends the process then is another one.
    - Any other exception is a defect of a handler that promised to deal with everything. The record counts
      as an `internal_error` at once, is tried again after a pause, since the cause may pass, and is then
      buried, so that its partition goes on and its bytes are kept. Where even that fails three times, with
      pauses, the record is given up: it is logged and counted with its place in the topic, which holds it
      for as long as the topic's retention says, and its partition goes on.
    """

    def __init__(
        self,
        handler: RecordHandler,
        *,
        gate: StoreGate,
        quarantine: Quarantine,
        window: FailureWindow,
        on_bad_deploy: Callable[[], None],
        on_given_up: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`on_bad_deploy` is called each time that a record has ended and the window is bad.

        `on_given_up` is called for each record that could not even be buried.
        """
        self._handler = handler
        self._gate = gate
        self._quarantine = quarantine
        self._window = window
        self._on_bad_deploy = on_bad_deploy
        self._on_given_up = on_given_up
        self._sleep = sleep

    async def finish(
        self,
        record: InboundRecord,
        ref: Callable[[], RecordRef],
        *,
        aside: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> None:
        """Return when the record has ended, whatever its outcome; raise only what ends the task itself.

        It waits for stores within `aside()`.
        """
        defects = 0
        cause: BaseException | None = None
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            try:
                handled = await self._try(record, ref, defects=defects, cause=cause)
            except HeldBack as error:
                _log.warning(
                    "record.held_back",
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                    error=str(error),
                )
                async with aside():
                    await self._sleep(_LONGEST_PAUSE_SECONDS)
            except StoreUnavailable as error:
                async with aside():
                    await self._gate.wait(error)
            except (KeyboardInterrupt, SystemExit):
                raise
            # Also what is no Exception: a panic in a Rust extension is a BaseException.
            except BaseException as error:  # the record must not be lost, whatever the defect
                if _is_order_to_end(error):
                    raise
                defects += 1
                cause = cause or error
                # The kind and the place, without the message: it may quote the prompt.
                _log.error(
                    "record.handler_defect",
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                    attempts=defects,
                    error=type(error).__name__,
                    at=_place(error),
                )
                if defects == 1:
                    self._count(is_internal_error=True)
                if defects == ATTEMPTS_AT_A_DEFECT + BURIALS_AT_A_DEFECT:
                    self._give_up(record)
                    return
                await self._sleep(pause_seconds)
                pause_seconds = min(4 * pause_seconds, _LONGEST_PAUSE_SECONDS)
            else:
                if not defects:
                    self._count(is_internal_error=handled.code == "internal_error")
                return

    async def _try(
        self,
        record: InboundRecord,
        ref: Callable[[], RecordRef],
        *,
        defects: int,
        cause: BaseException | None,
    ) -> Handled:
        if defects >= ATTEMPTS_AT_A_DEFECT:
            return await self._handler.bury(record, attempts=ATTEMPTS_AT_A_DEFECT, cause=cause)
        if self._quarantine.is_active:
            return await self._try_alone(record, ref())
        return await self._handler.handle(record)

    async def _try_alone(self, record: InboundRecord, ref: RecordRef) -> Handled:
        earlier = await self._quarantine.begin(ref)
        if must_be_buried(earlier_attempts=earlier):
            _log.error(
                "record.buried",
                topic=ref.topic,
                partition=ref.partition,
                offset=ref.offset,
                attempts=earlier,
            )
            handled = await self._handler.bury(record, attempts=earlier)
            await self._forget(ref)
            return handled
        try:
            handled = await self._handler.handle(record)
        except BaseException as error:
            if _is_order_to_end(error):
                # Cut off in its work: whether it would have ended the process, the next seconds may show.
                self._quarantine.cut_off(ref)
                raise
            # The process lives, so the attempt is not held against the record.
            await self._forget(ref)
            raise
        await self._forget(ref)
        return handled

    async def _forget(self, ref: RecordRef) -> None:
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return await self._quarantine.end(ref)
            except StoreUnavailable as error:
                # Not until the gate opens: it may wait for more than the ledger, which others need as well.
                self._gate.report(error)
                await self._sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _LONGEST_LEDGER_PAUSE_SECONDS)

    def _give_up(self, record: InboundRecord) -> None:
        _log.critical("record.given_up", topic=record.topic, partition=record.partition, offset=record.offset)
        self._on_given_up()

    def _count(self, *, is_internal_error: bool) -> None:
        self._window.count(is_internal_error=is_internal_error)
        if is_internal_error and self._window.is_bad:
            self._on_bad_deploy()


def _is_order_to_end(error: BaseException) -> bool:
    """Whether this task was cancelled. A library that lets a cancellation of its own escape has a defect.

    Taken for an order, it would end the task of a record that nobody then answers or commits.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
