"""A file system of a few megabytes that can be filled to its last byte."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PIECE_BYTES = 65_536


class SmallDisk:
    """What is mounted at `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Leave no room at all: not for one more byte of any file, nor for another file."""
        piece = _PIECE_BYTES
        with self._ballast.open("ab", buffering=0) as file:
            while piece:
                try:
                    file.write(bytes(piece))
                except OSError as error:
                    assert error.errno == errno.ENOSPC  # noqa: PT017 - any other is a mistake of the test
                    piece //= 2

    def free(self) -> None:
        """Take the ballast away again."""
        self._ballast.unlink()


@contextmanager
def small_disk(folder: Path, *, size_bytes: int) -> Generator[SmallDisk]:
    """A file system of its own at `folder`, which only root may mount."""
    # Nothing less is full as a disk is, and CI is root: so it is never left out there.
    if os.geteuid():
        pytest.skip("a file system is mounted, which only root may do")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(folder)], check=True)
    try:
        yield SmallDisk(folder)
    finally:
        # Lazily: what a killed worker had open is closed a moment later.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
