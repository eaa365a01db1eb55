"""Erasing a project's or a thread's lines from the usage log, beside writers that go on writing."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from worker.usage.log import is_still_log, lock_log, old_logs, parsed_line, usage_log_path

_LOCK_SECONDS: Final = 10.0
_PIECE_BYTES: Final = 16 * 1024 * 1024


def purge_usage_records(
    project_id: str,
    path: Path | str | None = None,
    *,
    thread_id: str | None = None,
    env: Mapping[str, str] = os.environ,
) -> int:
    """Rewrite the log and its rotated files without the lines of a project, or of one of its threads.

    Gives the number of lines that went. Every other line stays byte for byte, in its order. A line that is no
    JSON (a writer died in it) goes where it names the project at all, since nobody can tell more of it. Lines
    that a running worker has not written yet come after; a worker holds them for some 20 ms.

    Blocks on the disk. Raises OSError where a file cannot be read or replaced; then it is as it was.
    """
    log = usage_log_path(path, env=env)
    if not log.parent.is_dir():
        return 0
    meant = _Meant(project_id, thread_id)
    deadline = time.monotonic() + _LOCK_SECONDS
    while (removed := _purge_once(log, meant, deadline=deadline)) is None:
        pass  # the file was rotated away between opening and locking it
    return removed


class _Meant:
    """Which lines go."""

    def __init__(self, project_id: str, thread_id: str | None) -> None:
        self._project_id = project_id
        self._thread_id = thread_id
        self._hint = project_id.encode()

    def holds(self, line: bytes) -> bool:
        if self._hint not in line:  # project ids need no escaping, so no line of the project lacks it
            return False
        record = parsed_line(line)
        if record is None:
            return b'"project_id":"' + self._hint + b'"' in line.replace(b'": "', b'":"')
        if record.get("project_id") != self._project_id:
            return False
        return self._thread_id is None or record.get("thread_id") == self._thread_id


def _purge_once(log: Path, meant: _Meant, *, deadline: float) -> int | None:
    """Under the lock that every writer and every rotation takes; None where the log is another file now."""
    # Not created: a log that nobody writes needs no lock, but its rotated files may be there.
    try:
        descriptor = os.open(log, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return sum(_rewrite(old, meant) for _, old in old_logs(log))
    try:
        lock_log(descriptor, log, deadline=deadline)
        if not is_still_log(log, os.fstat(descriptor)):
            return None
        removed = sum(_rewrite(old, meant) for _, old in old_logs(log))
        # The log itself last: from then on its name means a file that is not locked.
        return removed + (_rewrite(log, meant) if log.is_file() else 0)
    finally:
        os.close(descriptor)


def _rewrite(path: Path, meant: _Meant) -> int:
    """Put a file without the lines that are meant in the place of this one; it stays where there are none."""
    path = path.resolve()  # a link stays one
    status = path.stat()
    descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        removed = 0
        with path.open("rb") as source, os.fdopen(descriptor, "wb") as target:
            os.fchmod(target.fileno(), status.st_mode & 0o777)
            is_start, is_dropped = True, False
            while piece := source.readline(_PIECE_BYTES):
                if is_start:
                    is_dropped = meant.holds(piece)
                    removed += is_dropped
                if not is_dropped:
                    target.write(piece)
                is_start = piece.endswith(b"\n")
            target.flush()
            os.fsync(target.fileno())
        if removed:
            Path(made).replace(path)
        return removed
    finally:
        with suppress(FileNotFoundError):
            Path(made).unlink()
