"""A record that ends the process must not end it for ever.

For each partition the ledger holds how many lives have begun on it, this one included, since it was last
caught up with or left in order. At the third the whole process goes into quarantine: one record in work in
all, each attempt written down before the work, and a record that left three attempts behind is buried
instead of tried. So a record costs at most two deaths before quarantine and three in it, five in all.
Outside quarantine no record costs anything; a partition costs a write or two each time it is assigned and
when it is first caught up with.

Only deaths count. A partition that was left while a record of it was cut off in its work is no death: the
process lives. But that record may have been on its way to end it, so what was counted is taken back only
when the process has outlived it for some seconds, or begins on the same partition again, or has drained.

The count is by partition and not by committed offset: the commit moves up to such a record, in quarantine
above all, and a count that began anew at each step would cost deaths at each step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from worker.errors import StoreUnavailable
from worker.ports import CrashLedger, RecordRef

_log = structlog.get_logger(__name__)

LIVES_BEFORE_QUARANTINE: Final = 3
ATTEMPTS_BEFORE_BURIAL: Final = 3
SURVIVED_AFTER_SECONDS: Final = 10.0
"""Since a cut-off: what still runs of the record, in a thread, has ended the process by then, or will not."""

_WHOLE_PARTITION: Final = 0
"""The offset under which a partition's lives are counted in the ledger."""

Position = tuple[str, str, int]
"""Consumer group, topic, partition."""

_Counted = tuple[str | None, RecordRef]
"""A life, by its group and partition; without a group, an attempt."""


class Quarantine:
    """Decides, for one process, whether records are tried one at a time, and which are not tried again."""

    def __init__(
        self,
        ledger: CrashLedger,
        *,
        span: int,
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`span`: how far behind the commit a life may begin records.

        `on_change` is called when `is_active` has changed; `clock` gives seconds.
        """
        self._ledger = ledger
        self._span = span
        self._on_change = on_change
        self._clock = clock
        self._cut_off: dict[_Counted, float] = {}
        self._caught_up_at: dict[Position, int] = {}
        self._suspect_until: dict[Position, int] = {}

    @property
    def is_active(self) -> bool:
        """Whether one record at a time is tried."""
        return bool(self._suspect_until)

    async def started(self, group: str, committed: RecordRef, *, end_offset: int) -> None:
        """A partition was assigned. Must end before any of its records is tried.

        Raises StoreUnavailable; then nothing was decided, and the call must be repeated.
        """
        position = (group, committed.topic, committed.partition)
        await self._take_back((group, replace(committed, offset=_WHOLE_PARTITION)))
        if end_offset <= committed.offset:
            await self._count_anew(position, scope=committed.scope)
            return
        lives = await self._ledger.raise_start(group, replace(committed, offset=_WHOLE_PARTITION))
        self._caught_up_at[position] = end_offset
        if lives < LIVES_BEFORE_QUARANTINE:
            return
        # An earlier life can have begun nothing that lies further behind the commit. Without this bound
        # a long backlog would be worked off one by one because a machine was switched off three times.
        until = min(end_offset, committed.offset + 2 * self._span)
        _log.warning(
            "quarantine.entered",
            topic=committed.topic,
            partition=committed.partition,
            offset=committed.offset,
            until_offset=until,
            lives=lives,
        )
        was_active = self.is_active
        self._suspect_until[position] = until
        if not was_active:
            self._on_change()

    async def note(self, position: Position, *, scope: str, committed: int) -> None:
        """Everything before `committed` has ended. Cheap unless something follows from it.

        A partition holds the process in quarantine no more when its commit has passed all that earlier
        lives can have begun, or the end seen at its start, whichever comes first. It is caught up with at
        that end, and the count begins anew with this life; where the ledger is away, at the next call.
        """
        if committed >= self._suspect_until.get(position, committed + 1):
            self._release(position)
        if committed >= self._caught_up_at.get(position, committed + 1):
            try:
                await self._count_anew(position, scope=scope)
            except StoreUnavailable as error:
                _log.warning(
                    "quarantine.lives_kept", topic=position[1], partition=position[2], error=str(error)
                )
            else:
                self._caught_up_at.pop(position, None)

    def forget(self, position: Position) -> None:
        """The partition was revoked, or the process stops: it holds the process in quarantine no more."""
        self._caught_up_at.pop(position, None)
        self._release(position)

    async def clear(self, position: Position, *, scope: str) -> None:
        """Count no lives of the partition, for it was left in order.

        In order means that no record of it was cut off in its work: one that was may have been on its way
        to end the process, and the rebalance that another worker's death causes must not clear it of that,
        or of the deaths before. Where the ledger is away the count is kept: at worst a quarantine comes
        early.
        """
        group, topic, partition = position
        try:
            await self._ledger.clear_starts(group, scope=scope, topic=topic, partition=partition)
        except StoreUnavailable as error:
            _log.warning("quarantine.lives_kept", topic=topic, partition=partition, error=str(error))

    def cut_off(self, record: RecordRef, *, group: str | None = None) -> None:
        """A record was cancelled in its work, and the process lives; it costs nothing yet.

        Counted was its attempt; with `group`, the life on the partition of `record` instead.
        """
        counted = (None, record) if group is None else (group, replace(record, offset=_WHOLE_PARTITION))
        self._cut_off[counted] = self._clock()

    async def take_back(self, *, at_once: bool = False) -> None:
        """Take back what was counted for records that were cut off, and that the process has outlived.

        `at_once` where it ends in order now. Cheap where there is nothing; where the ledger is away it is
        done at the next call.
        """
        until = float("inf") if at_once else self._clock() - SURVIVED_AFTER_SECONDS
        for counted in [one for one, since in self._cut_off.items() if since <= until]:
            try:
                await self._take_back(counted)
            except StoreUnavailable as error:
                _log.warning("quarantine.lives_kept", topic=counted[1].topic, error=str(error))

    async def begin(self, record: RecordRef) -> int:
        """Write down that the record is tried; give how often it was tried before and never ended.

        Raises StoreUnavailable, with nothing tried.
        """
        await self._take_back((None, record))
        return await self._ledger.begin_attempt(record)

    async def end(self, record: RecordRef) -> None:
        """The record has ended, or waits for a store with nothing done. Raises StoreUnavailable."""
        await self._ledger.end_attempt(record)

    async def _take_back(self, counted: _Counted) -> None:
        since = self._cut_off.pop(counted, None)
        if since is None:
            return
        group, ref = counted
        try:
            if group is None:
                await self._ledger.withdraw_attempt(ref)
            else:
                await self._ledger.withdraw_start(group, ref)
        except StoreUnavailable:
            self._cut_off[counted] = since
            raise

    async def _count_anew(self, position: Position, *, scope: str) -> None:
        group, topic, partition = position
        await self._ledger.clear_starts(group, scope=scope, topic=topic, partition=partition)
        whole = RecordRef(scope=scope, topic=topic, partition=partition, offset=_WHOLE_PARTITION)
        await self._ledger.raise_start(group, whole)

    def _release(self, position: Position) -> None:
        if self._suspect_until.pop(position, None) is not None and not self._suspect_until:
            _log.info("quarantine.left")
            self._on_change()


def must_be_buried(*, earlier_attempts: int) -> bool:
    """Whether a record has ended the process too often to be tried once more."""
    return earlier_attempts >= ATTEMPTS_BEFORE_BURIAL
