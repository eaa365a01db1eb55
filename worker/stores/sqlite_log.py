"""Keeps the write-ahead log of a SQLite file short without letting a commit wait for the disk.

Left to itself SQLite moves the log into the file (a checkpoint) inside every commit that finds a thousand
pages: measured at 300 commits of 6.5 KB a second, that commit takes 25 ms and holds up all behind it, while
the slowest with a checkpoint beside it takes 3 ms.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import Final

_PAUSE_SECONDS: Final = 5.0
_GROWTH_BYTES: Final = 4 * 1024 * 1024
_LIMIT_BYTES: Final = 64 * 1024 * 1024


class LogKeeper:
    """Called after each commit, on the thread that commits."""

    def __init__(self, path: Path, *, limit_bytes: int = _LIMIT_BYTES) -> None:
        """Keep the log of the database at `path`; touch nothing yet."""
        self._path = path
        self._log = f"{path}-wal"
        self._limit_bytes = limit_bytes
        self._truncate_at_bytes = limit_bytes
        self._seen_bytes = 0
        self._due = 0.0
        self._checkpoint: threading.Thread | None = None

    def committed(self, connection: sqlite3.Connection) -> None:
        """See whether the log needs work, and have it done; costs 2 us where it does not.

        Raises OSError where the log is gone meanwhile, and RuntimeError where no thread can be had.
        """
        try:
            log_bytes = os.stat(self._log).st_size  # noqa: PTH116  # a tenth of the cost, after each commit
        except OSError:
            return
        if log_bytes >= self._truncate_at_bytes:
            self._truncate(connection)
        elif log_bytes - self._seen_bytes >= _GROWTH_BYTES or time.monotonic() >= self._due:
            self._start_checkpoint(log_bytes)

    def finish(self) -> None:
        """Wait for a checkpoint that is under way."""
        if self._checkpoint is not None:
            self._checkpoint.join()
            self._checkpoint = None

    def _truncate(self, connection: sqlite3.Connection) -> None:
        """Start the log anew.

        Beside a steady stream of commits no checkpoint ever meets a moment at which all of the log is in
        the file, so the log grows; most of it is there by now, so this is short. A reader in another
        process may prevent it: then again when the log has grown by as much as makes it worth the wait.
        """
        self.finish()
        with contextlib.suppress(sqlite3.Error):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        log_bytes = os.stat(self._log).st_size  # noqa: PTH116  # as above
        is_short = log_bytes < self._limit_bytes
        self._truncate_at_bytes = self._limit_bytes if is_short else log_bytes + _GROWTH_BYTES
        self._seen_bytes = log_bytes

    def _start_checkpoint(self, log_bytes: int) -> None:
        if self._checkpoint is not None and self._checkpoint.is_alive():
            return
        self._seen_bytes = log_bytes
        self._due = time.monotonic() + _PAUSE_SECONDS
        checkpoint = threading.Thread(
            target=self._run_checkpoint, name=f"sqlite checkpoint {self._path.name}", daemon=True
        )
        checkpoint.start()
        # Only now: nobody can wait for a thread that never began.
        self._checkpoint = checkpoint

    def _run_checkpoint(self) -> None:
        # A checkpoint that fails loses nothing: the log stays, and the next commit that fails says why.
        with contextlib.suppress(sqlite3.Error):
            connection = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=rw", uri=True)
            with contextlib.closing(connection):
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
