"""Packs in this process's own memory, for a worker that shares them with nobody."""

from __future__ import annotations

from collections import OrderedDict


class MemoryPackCache:
    """`PackCache` bounded by bytes; the least recently used goes first. For one event loop."""

    def __init__(self, *, max_bytes: int) -> None:
        """Hold at most `max_bytes` of values; a single larger one is not kept."""
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._values: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    async def get(self, project_id: str, key: str) -> bytes | None:
        """What was kept, which becomes the most recently used."""
        value = self._values.get((project_id, key))
        if value is not None:
            self._values.move_to_end((project_id, key))
        return value

    async def put(self, project_id: str, key: str, value: bytes) -> None:
        """Keep the value, and let others go until there is room."""
        self._drop((project_id, key))
        if len(value) > self._max_bytes:
            return
        self._values[project_id, key] = value
        self._size_bytes += len(value)
        while self._size_bytes > self._max_bytes:
            self._drop(next(iter(self._values)))

    async def purge(self, project_id: str) -> int:
        """Forget the project's values."""
        found = [key for key in self._values if key[0] == project_id]
        for key in found:
            self._drop(key)
        return len(found)

    async def close(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._size_bytes = 0

    def _drop(self, key: tuple[str, str]) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self._size_bytes -= len(value)
