"""Kept in memory between requests, bounded by bytes: what was extracted once need not be again.

Values are pure functions of their keys, so a hit and a miss give the same bytes, and nothing is ever stale.
Every key begins with the project: what one project's files gave is never another's, though it be the same.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from worker.code.extractor import extract
from worker.code.facts import ModuleFacts
from worker.code.sources import SourceFile

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# Measured with tracemalloc on CPython 3.11, rounded up.
_MODULE_BYTES: Final = 2_000
_DEFINITION_BYTES: Final = 800
_ITEM_BYTES: Final = 140


class BoundedCache(Generic[K, V]):
    """Least recently used goes first. Safe between threads; O(1)."""

    def __init__(self, *, max_bytes: int) -> None:
        """Hold at most `max_bytes`, by the sizes that are given; a single larger value is not kept."""
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._lock = threading.Lock()
        self._items: OrderedDict[K, tuple[V, int]] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        """What it holds now."""
        return self._size_bytes

    def get(self, key: K) -> V | None:
        """The value, which becomes the most recently used; None where it is not kept (any more)."""
        with self._lock:
            item = self._items.get(key)
            if item is None:
                return None
            self._items.move_to_end(key)
            return item[0]

    def put(self, key: K, value: V, *, size_bytes: int) -> None:
        """Keep the value, in place of one with the same key."""
        with self._lock:
            previous = self._items.pop(key, None)
            if previous is not None:
                self._size_bytes -= previous[1]
            if size_bytes > self._max_bytes:
                return
            self._items[key] = (value, size_bytes)
            self._size_bytes += size_bytes
            while self._size_bytes > self._max_bytes:
                _, (_, evicted_bytes) = self._items.popitem(last=False)
                self._size_bytes -= evicted_bytes


class FactsCache:
    """Facts of modules by project, path and content. Safe between threads."""

    def __init__(self, *, max_bytes: int) -> None:
        """Hold facts of about `max_bytes`: source of a quarter of that."""
        self._cache = BoundedCache[tuple[str, str, bytes], ModuleFacts](max_bytes=max_bytes)

    def facts(self, project_id: str, file: SourceFile) -> ModuleFacts:
        """The file's facts, extracted where they are not kept."""
        key = (project_id, file.path, file.sha256)
        facts = self._cache.get(key)
        if facts is None:
            facts = extract(file.path, file.content)
            self._cache.put(key, facts, size_bytes=memory_bytes(facts))
        return facts


def memory_bytes(facts: ModuleFacts) -> int:
    """About what the facts take in memory; rather more than less."""
    definitions = [*facts.functions, *facts.classes]
    items = len(facts.calls) + len(facts.imports) + len(facts.traces) + len(facts.bound_names)
    items += sum(len(d.calls) + len(d.traces) + len(d.bound_names) for d in definitions)
    items += sum(len(function.branch_points) for function in facts.functions)
    texts = sum(len(d.id) + len(d.signature) + len(d.docstring_head) for d in definitions)
    return _MODULE_BYTES + _DEFINITION_BYTES * len(definitions) + _ITEM_BYTES * items + texts
