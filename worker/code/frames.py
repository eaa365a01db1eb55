"""Bytes in frames, for a pipe between two processes.

A frame is its length in eight bytes, big end first, and then the content.
"""

from __future__ import annotations

from typing import IO, Final

_LENGTH_BYTES: Final = 8


def write_frame(stream: IO[bytes], content: bytes) -> None:
    """Raises OSError where nobody reads any more."""
    stream.write(len(content).to_bytes(_LENGTH_BYTES, "big"))
    stream.write(content)


def read_frame(stream: IO[bytes], *, max_bytes: int | None = None) -> bytes | None:
    """The next frame; None at the end, also where it comes within a frame.

    None, too, for a frame over `max_bytes`, after which nothing more can be read.
    """
    head = stream.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "big")
    if max_bytes is not None and length > max_bytes:
        return None
    content = stream.read(length)
    return content if len(content) == length else None
