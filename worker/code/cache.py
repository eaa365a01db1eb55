"""Kept in memory between requests, bounded by bytes: what was extracted once need not be again.

Values are pure functions of their keys, so a hit and a miss give the same bytes, and nothing is ever stale.
Every key begins with the project: what one project's files gave is never another's, though it be the same.

What is not kept is extracted here where that takes no longer than the event loop may be held up, since the
parser lets no other thread run; else in a process of its own, which can be ended.
"""

from __future__ import annotations

import string
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from worker.code.extracting_pool import ExtractingPool, Stop
from worker.code.extracting_process import extract_at_thread_start
from worker.code.facts import ModuleFacts
from worker.code.sources import SourceFile

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# Measured with tracemalloc on CPython 3.11, rounded up.
_MODULE_BYTES: Final = 2_000
_DEFINITION_BYTES: Final = 800
_ITEM_BYTES: Final = 140

MAX_QUICK_WORK: Final = 40_000
_MARK_WORK: Final = 10
_WORD_BYTES: Final = (string.ascii_letters + string.digits + "_ \t\r\n").encode() + bytes(range(0x80, 0x100))


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

    def __init__(self, *, max_bytes: int, pool: ExtractingPool | None = None) -> None:
        """Hold facts of about `max_bytes`: source of a quarter of that. `pool` extracts from long files."""
        self._cache = BoundedCache[tuple[str, str, bytes], ModuleFacts](max_bytes=max_bytes)
        self._pool = pool or ExtractingPool()

    def facts(self, project_id: str, file: SourceFile, *, stop: Stop) -> ModuleFacts | None:
        """The file's facts, extracted where they are not kept; None where `stop` was set before.

        The same facts either way, those that `extract` gives at the start of a thread. A file that ends the
        process that extracts from it has no facts but a `parse_problem`, and is not kept.
        """
        if stop.is_set():
            return None
        key = (project_id, file.path, file.sha256)
        facts = self._cache.get(key)
        if facts is not None:
            return facts
        if is_quick(file.content):
            return self._keep(key, extract_at_thread_start(file.path, file.content))
        with self._pool.lend(stop) as extract:
            # Somebody else may have asked for the same while this waited.
            facts = self._cache.get(key)
            if facts is not None or extract is None:
                return facts
            facts = extract(file.path, file.content)
            return facts if facts is None or not extract.is_reliable else self._keep(key, facts)

    def prepare(self) -> None:
        """Have a process ready for the first long file. Blocks; raises OSError where none can be started."""
        self._pool.prepare()

    def _keep(self, key: tuple[str, str, bytes], facts: ModuleFacts) -> ModuleFacts:
        self._cache.put(key, facts, size_bytes=memory_bytes(facts))
        return facts


def is_quick(content: bytes) -> bool:
    """Whether extracting holds other threads up for about 25 ms at most, whatever the content is. O(n).

    The parser's time goes by the tokens, and a mark of punctuation is one each: ordinary code passes up to
    about 16 KB, nothing but marks up to 4 KB.
    """
    if len(content) > MAX_QUICK_WORK:
        return False
    return len(content) + _MARK_WORK * len(content.translate(None, _WORD_BYTES)) <= MAX_QUICK_WORK


def memory_bytes(facts: ModuleFacts) -> int:
    """About what the facts take in memory; rather more than less."""
    definitions = [*facts.functions, *facts.classes]
    items = len(facts.calls) + len(facts.imports) + len(facts.traces) + len(facts.bound_names)
    items += sum(len(d.calls) + len(d.traces) + len(d.bound_names) for d in definitions)
    items += sum(len(function.branch_points) for function in facts.functions)
    texts = sum(len(d.id) + len(d.signature) + len(d.docstring_head) for d in definitions)
    return _MODULE_BYTES + _DEFINITION_BYTES * len(definitions) + _ITEM_BYTES * items + texts
