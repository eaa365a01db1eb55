"""From characters to the UTF-8 bytes that tokenizers work on."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

# Code points from which on UTF-8 needs two, three and four bytes (RFC 3629, section 3).
_WIDER_FROM: Final = np.array([0x80, 0x800, 0x1_0000], dtype=np.uint32)


def well_formed(text: str) -> str:
    """The text as UTF-8 can carry it: surrogate pairs joined, lone surrogates as U+FFFD.

    This is what tiktoken does before it counts such a text.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def byte_length(text: str) -> int:
    """Length in bytes of the well-formed text."""
    return len(text) if text.isascii() else len(well_formed(text).encode())


def byte_offsets(text: str) -> NDArray[np.int64]:
    """Byte offset of each character of a well-formed text, and of its end: `(len(text) + 1,)`."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    widths = 1 + np.searchsorted(_WIDER_FROM, points, side="right")
    return np.concatenate(([0], np.cumsum(widths, dtype=np.int64)))
