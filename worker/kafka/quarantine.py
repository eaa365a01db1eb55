"""A record that ends the process must not end it for ever.

A start of a partition is counted, by its committed offset, when records wait behind that offset; an
orderly revoke or stop clears the count. At the third start the whole process goes into quarantine: one
record in work in all, each attempt written down before the work. A record that left three attempts behind
is buried instead of tried. So a partition costs at most two deaths before quarantine and three in it.
Outside quarantine no record costs anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from worker.errors import StoreUnavailable
from worker.ports import CrashLedger, RecordRef

_log = structlog.get_logger(__name__)

STARTS_BEFORE_QUARANTINE: Final = 3
ATTEMPTS_BEFORE_BURIAL: Final = 3

Position = tuple[str, str, int]
"""Consumer group, topic, partition."""


class Quarantine:
    """Decides, for one process, whether records are tried one at a time, and which are not tried again."""

    def __init__(self, ledger: CrashLedger, *, on_change: Callable[[], None]) -> None:
        """`on_change` is called when `is_active` has changed."""
        self._ledger = ledger
        self._on_change = on_change
        self._ends: dict[Position, int] = {}

    @property
    def is_active(self) -> bool:
        """Whether one record at a time is tried."""
        return bool(self._ends)

    async def started(self, group: str, committed: RecordRef, *, end_offset: int) -> None:
        """A partition was assigned. Must end before any of its records is tried.

        Raises StoreUnavailable; then nothing was decided, and the call must be repeated.
        """
        if end_offset <= committed.offset:
            return
        starts = await self._ledger.raise_start(group, committed)
        if starts < STARTS_BEFORE_QUARANTINE:
            return
        _log.warning(
            "quarantine.entered",
            topic=committed.topic,
            partition=committed.partition,
            offset=committed.offset,
            starts=starts,
            until_offset=end_offset,
        )
        was_active = self.is_active
        self._ends[group, committed.topic, committed.partition] = end_offset
        if not was_active:
            self._on_change()

    def committed(self, position: Position, *, offset: int) -> None:
        """Everything before `offset` is committed; the partition is released at the end seen at its start."""
        end_offset = self._ends.get(position)
        if end_offset is not None and offset >= end_offset:
            self.release(position)

    def release(self, position: Position) -> None:
        """The partition was revoked, or its end was reached: it holds the process in quarantine no more."""
        if self._ends.pop(position, None) is not None and not self._ends:
            _log.info("quarantine.left")
            self._on_change()

    async def clear(self, position: Position, *, scope: str) -> None:
        """Forget the partition's starts, for it was left in order.

        In order means that no record of it was cut off in its work: one that was may have been on its way
        to end the process, and the rebalance that another worker's death causes must not clear it of that.
        Where the ledger is away the count is kept: at worst a quarantine comes early.
        """
        group, topic, partition = position
        try:
            await self._ledger.clear_starts(group, scope=scope, topic=topic, partition=partition)
        except StoreUnavailable as error:
            _log.warning("quarantine.starts_kept", topic=topic, partition=partition, error=str(error))

    async def begin(self, record: RecordRef) -> int:
        """Write down that the record is tried; give how often it was tried before and never ended.

        Raises StoreUnavailable, with nothing tried.
        """
        return await self._ledger.begin_attempt(record)

    async def end(self, record: RecordRef) -> None:
        """The record has ended, or waits for a store with nothing done. Raises StoreUnavailable."""
        await self._ledger.end_attempt(record)


def must_be_buried(*, earlier_attempts: int) -> bool:
    """Whether a record has ended the process too often to be tried once more."""
    return earlier_attempts >= ATTEMPTS_BEFORE_BURIAL
