"""The values that were used last, within a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """What was used last; the value used last of all stays, however large. Safe between threads."""

    def __init__(self, max_bytes: int) -> None:
        """Keep what takes about `max_bytes` together."""
        self._max_bytes = max_bytes
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value, which counts as used now."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                return None
            self._held.move_to_end(key)
            return held[0]

    def put(self, key: K, value: V, *, size_bytes: int) -> None:
        """Keep the value in place of the key's former one; what was used longest ago makes room."""
        with self._lock:
            before = self._held.pop(key, None)
            self._bytes += size_bytes - (0 if before is None else before[1])
            self._held[key] = (value, size_bytes)
            while self._bytes > self._max_bytes and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1][1]

    def forget(self, is_meant: Callable[[K], bool]) -> None:
        """Let go of the values whose keys are meant."""
        with self._lock:
            for key in [key for key in self._held if is_meant(key)]:
                self._bytes -= self._held.pop(key)[1]
