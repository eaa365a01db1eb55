"""How many records are in work at once, in all and per topic."""

from __future__ import annotations

import asyncio


class Slots:
    """Counts the records in work against a limit per topic; in quarantine, one in all.

    Taking a free slot costs two comparisons and no lock: everything happens on one event loop.
    """

    __slots__ = ("_changed", "_in_flight", "_is_exclusive", "_limits", "_total")

    def __init__(self, limits: dict[str, int]) -> None:
        """`limits`: topic to records in work at once."""
        self._limits = dict(limits)
        self._in_flight = dict.fromkeys(limits, 0)
        self._total = 0
        self._is_exclusive = False
        self._changed: list[asyncio.Future[None]] = []

    @property
    def total(self) -> int:
        """Records in work now."""
        return self._total

    @property
    def is_exclusive(self) -> bool:
        """Whether only one record in all may be in work. Those already in work are waited for."""
        return self._is_exclusive

    @is_exclusive.setter
    def is_exclusive(self, value: bool) -> None:
        self._is_exclusive = value
        self.notify()

    def try_take(self, topic: str) -> bool:
        """Take a slot unless none is free. Raises KeyError for a topic without a limit."""
        if self._total if self._is_exclusive else self._in_flight[topic] >= self._limits[topic]:
            return False
        self._in_flight[topic] += 1
        self._total += 1
        return True

    def release(self, topic: str) -> None:
        """Give a slot back."""
        self._in_flight[topic] -= 1
        self._total -= 1
        if self._changed:
            self.notify()

    def notify(self) -> None:
        """Wake everybody who waits, so that they look again: at the slots, or at why they wait."""
        for future in self._changed:
            if not future.done():
                future.set_result(None)
        self._changed.clear()

    async def changed(self) -> None:
        """Wait for a release or a notification."""
        future = asyncio.get_running_loop().create_future()
        self._changed.append(future)
        await future
