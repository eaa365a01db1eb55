"""Which offset of a partition may be committed while its records end in any order."""

from __future__ import annotations

from collections import deque


class OffsetTracker:
    """The records of one partition that are in work, as one assignment of it sees them.

    Offsets come in rising order and may have gaps: compaction, aborted transactions and transaction markers
    take offsets that no consumer ever sees. What may be committed is the first unfinished offset, so a gap
    is passed as soon as everything before it has ended. Every operation takes amortised constant time.
    """

    __slots__ = ("_next", "_unfinished", "_window")

    def __init__(self) -> None:
        """Nothing is known before the first record."""
        self._unfinished: set[int] = set()
        self._window: deque[int] = deque()  # what was admitted, from the first unfinished offset on
        self._next: int | None = None  # just behind the last offset that was admitted or skipped

    @property
    def next_offset(self) -> int | None:
        """The smallest offset that may come next; None before the first record."""
        return self._next

    @property
    def committable(self) -> int | None:
        """The first unfinished offset, or the next one where all have ended. It never goes back."""
        return self._window[0] if self._window else self._next

    @property
    def span(self) -> int:
        """How many offsets a crash would bring back: from `committable` to the next one."""
        return self._next - self._window[0] if self._window and self._next is not None else 0

    @property
    def unfinished(self) -> int:
        """Records that were admitted and have not ended."""
        return len(self._unfinished)

    @property
    def is_idle(self) -> bool:
        """Whether every admitted record has ended."""
        return not self._unfinished

    def admit(self, offset: int) -> None:
        """Take a record into work. Raises ValueError where the offset is not beyond every earlier one."""
        if self._next is not None and offset < self._next:
            raise ValueError(f"offset {offset} comes after {self._next - 1}")
        self._unfinished.add(offset)
        self._window.append(offset)
        self._next = offset + 1

    def done(self, offset: int) -> None:
        """The record has ended. Raises ValueError where it is not in work."""
        unfinished, window = self._unfinished, self._window
        if offset not in unfinished:
            raise ValueError(f"offset {offset} is not in work")
        unfinished.remove(offset)
        while window and window[0] not in unfinished:
            window.popleft()

    def withdraw(self, offset: int) -> bool:
        """Take the record that was admitted last back out of work; False where it is another.

        The offset may then come again.
        """
        if not self._window or self._window[-1] != offset or offset not in self._unfinished:
            return False
        self._unfinished.remove(offset)
        self._window.pop()
        self._next = offset
        return True

    def skip_to(self, offset: int) -> None:
        """The log holds no further record before `offset`. An offset that was passed already is ignored."""
        if self._next is None or offset > self._next:
            self._next = offset
