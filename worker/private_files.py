"""Files that hold what prompts hold: made so that their owner alone may read them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Literal, overload

_OWNER_ALONE = 0o600


@overload
def open_private(path: Path, mode: Literal["wb", "xb"]) -> IO[bytes]: ...


@overload
def open_private(path: Path, mode: Literal["w", "a"]) -> IO[str]: ...


def open_private(path: Path, mode: Literal["wb", "xb", "w", "a"]) -> IO[bytes] | IO[str]:
    """The file, open; text is UTF-8 with plain line feeds.

    One that is made here has mode 0600 from its first moment on, whatever the umask; one that is there keeps
    its own. Raises OSError as `open` does.
    """
    text = None if mode.endswith("b") else "utf-8"
    end = None if mode.endswith("b") else "\n"
    return open(path, mode, encoding=text, newline=end, opener=_opened)


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags, _OWNER_ALONE)
