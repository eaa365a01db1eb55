"""Shapes and skeletons of indexed files, kept between calls by what the files hold, bounded by bytes.

Both are pure functions of a text that takes tens of milliseconds to parse where it is long, and agents ask
for the same file again. A hit and a miss give the same answer, and nothing is ever stale. The key holds the
file's path beside its digest, so that what one file gave is not told of another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from worker.code.branches import NotSupported
from worker.code.cache import BoundedCache
from worker.code.shapes import Shape, shape_of
from worker.code.skeletons import Skeleton, skeleton
from worker.code.stored_source import source_of_nodes
from worker.graph.model import Node

MAX_BYTES: Final = 8_000_000
"""Of shapes, and of skeletons: some hundred long files of each."""
# Measured with tracemalloc on CPython 3.11, rounded up.
_ITEM_BYTES: Final = 1_000
_VALUE_BYTES: Final = 500

_shapes: Final = BoundedCache[tuple[str, bytes], Shape](max_bytes=MAX_BYTES)
_skeletons: Final = BoundedCache[tuple[str, bytes, str | None], Skeleton](max_bytes=MAX_BYTES)


def shape_of_file(nodes: Sequence[Node]) -> Shape | NotSupported:
    """The shape of the file whose code nodes these are. O(its length) at first, then that of hashing it."""
    text = source_of_nodes(nodes)
    key = (nodes[0].path, _digest(text))
    kept = _shapes.get(key)
    if kept is not None:
        return kept
    found = shape_of(text)
    if isinstance(found, Shape):
        _shapes.put(key, found, size_bytes=_VALUE_BYTES + _ITEM_BYTES * len(found.items))
    return found


def skeleton_of_file(nodes: Sequence[Node], *, qualname: str | None) -> Skeleton | NotSupported:
    """The skeleton of the file, or of one definition in it; costs as `shape_of_file`."""
    text = source_of_nodes(nodes)
    key = (nodes[0].path, _digest(text), qualname)
    kept = _skeletons.get(key)
    if kept is not None:
        return kept
    found = skeleton(text, language=nodes[0].language, qualname=qualname)
    if isinstance(found, Skeleton):
        # A character may take four bytes.
        _skeletons.put(key, found, size_bytes=_VALUE_BYTES + 4 * len(found.text))
    return found


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
