"""The usage log: one JSON line per outcome, appended by several processes, read whatever else is in it.

Every writer holds a lock on the file itself while it writes, so lines of any length stay whole and rotation
loses none: whoever gets the lock first sees whether the name still means the file it opened. Unix only.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import math
import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

import structlog
from pydantic_core import from_json

from schemas.bundle import to_wire
from schemas.usage import UsageEvent
from worker.usage.aggregate import aggregate_usage

_log = structlog.get_logger(__name__)

__all__ = [
    "USAGE_LOG_VARIABLE",
    "Rotation",
    "UsageLog",
    "aggregate_usage",
    "read_usage_records",
    "tell_of_losses",
    "usage_log_path",
    "write_usage_record",
]

USAGE_LOG_VARIABLE: Final = "ORCHESTRATA_CONTEXT_USAGE_LOG"
_DEFAULT_PATH: Final = Path("logs/context_usage.jsonl")
_TELL_AGAIN_SECONDS: Final = 60.0
"""A disk stays full for hours, and each write would say so."""
_LOCK_SECONDS: Final = 2.0
_LOCK_POLL_SECONDS: Final = 0.002
_GATHER_SECONDS: Final = 0.02
"""How long a worker's lines gather: one write takes 180 us of CPU, each further line in it 3 us."""

_WRITE_BYTES: Final = 1024 * 1024
_LINE_BYTES: Final = 16 * 1024 * 1024
"""Longer lines are nothing that this program wrote; they are skipped without being held in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """When the log starts anew, and how many old files (`<name>.1` is the youngest) are kept."""

    max_bytes: int = 64 * 1024 * 1024
    max_old_files: int = 5

    def __post_init__(self) -> None:
        """Raises ValueError where a line would have nowhere to go."""
        if self.max_bytes < 1 or self.max_old_files < 1:
            raise ValueError("max_bytes and max_old_files must be positive")


_ROTATION: Final = Rotation()


def usage_log_path(path: Path | str | None = None, *, env: Mapping[str, str] = os.environ) -> Path:
    """`path`, else what ORCHESTRATA_CONTEXT_USAGE_LOG says now, else `logs/context_usage.jsonl`."""
    return Path(path or env.get(USAGE_LOG_VARIABLE) or _DEFAULT_PATH)


def write_usage_record(
    event: bytes | UsageEvent,
    path: Path | str | None = None,
    env: Mapping[str, str] = os.environ,
    *,
    rotation: Rotation = _ROTATION,
) -> None:
    """Append one event as one line; bytes are taken as the JSON object that they are.

    Blocks on the disk, and for at most two seconds on other writers. Makes the directories it needs.
    Raises OSError where the line could not be written as a whole; then nothing of it is in the file.
    """
    line = to_wire(event) if isinstance(event, UsageEvent) else event
    _append(usage_log_path(path, env=env), [line], rotation=rotation)


def read_usage_records(
    path: Path | str | None = None,
    *,
    env: Mapping[str, str] = os.environ,
    include_rotated: bool = False,
) -> Iterator[dict[str, object]]:
    """Every line that is a JSON object, oldest first, one in memory at a time.

    Blank, malformed, cut off, over-long and non-UTF-8 lines are skipped silently; a log that does not exist
    holds nothing. With `include_rotated` the old files come first; a rotation meanwhile loses and repeats
    nothing that is still on disk. Raises OSError where a file is there and cannot be read.
    """
    with ExitStack() as opened:
        for file in _open_logs(usage_log_path(path, env=env), opened, include_rotated=include_rotated):
            for line in _lines(file):
                record = parsed_line(line)
                if record is not None:
                    yield record


def tell_of_losses(
    count: Callable[[int], None], *, clock: Callable[[], float] = time.monotonic
) -> Callable[[int, OSError], None]:
    """What a `UsageLog` calls on failure: counts all lines lost, logs why at once and then once a minute."""
    quiet_until = -math.inf

    def tell(lines: int, error: OSError) -> None:
        nonlocal quiet_until
        count(lines)
        if clock() >= quiet_until:
            quiet_until = clock() + _TELL_AGAIN_SECONDS
            _log.warning("usage_log.failed", lines=lines, error=str(error))

    return tell


class UsageLog:
    """The log for callers that may neither wait nor fail: lines are written in order, on a thread.

    `on_failure(lines, error)` hears of lines that are lost; it is called on the writing thread or on the
    caller's, and must not raise. Beyond `max_waiting_lines` further lines are lost: a stuck disk costs
    telemetry and never memory. The path is settled anew for each write, as `usage_log_path` says.
    """

    def __init__(
        self,
        path: Path | str | None = None,
        *,
        env: Mapping[str, str] = os.environ,
        rotation: Rotation = _ROTATION,
        max_waiting_lines: int = 10_000,
        on_failure: Callable[[int, OSError], None] = lambda _lines, _error: None,
    ) -> None:
        """Touch nothing yet; the thread starts with the first line."""
        self._path = path
        self._env = env
        self._rotation = rotation
        self._max_waiting_lines = max_waiting_lines
        self._on_failure = on_failure
        self._waiting: deque[bytes] = deque()
        self._is_drain_due = False
        self._is_closed = False
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="usage log")

    def append(self, line: bytes) -> None:
        """Take one event, without its line break, and return at once; never raises."""
        if self._is_closed:
            self._on_failure(1, OSError(errno.EBADF, "the usage log is closed"))
        elif len(self._waiting) >= self._max_waiting_lines:
            self._on_failure(1, OSError(errno.EAGAIN, "too many lines wait to be written"))
        else:
            self._waiting.append(line)
            if not self._is_drain_due:
                self._is_drain_due = True
                # Refused only while the interpreter shuts down, when the line stays where it is.
                with suppress(RuntimeError):
                    self._executor.submit(self._drain_soon)

    async def flush(self) -> None:
        """Return when every line appended so far is in the file, or was reported as lost."""
        if not self._is_closed:
            await asyncio.wrap_future(self._executor.submit(self._drain))

    async def close(self, *, timeout_seconds: float = 5.0) -> None:
        """Flush for at most `timeout_seconds`, then report what is left as lost. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        drained = asyncio.wrap_future(self._executor.submit(self._drain))
        try:
            async with asyncio.timeout(timeout_seconds):
                await drained
        except TimeoutError:
            lost = self._take(max_bytes=None)
            if lost:
                self._on_failure(len(lost), OSError(errno.ETIMEDOUT, "the usage log was closed before"))
            # The thread ends when its write does; nobody waits for that here.
            self._executor.shutdown(wait=False, cancel_futures=True)
        else:
            await asyncio.to_thread(self._executor.shutdown)

    def _drain_soon(self) -> None:
        time.sleep(_GATHER_SECONDS)
        self._drain()

    def _drain(self) -> None:
        # Before the lines are taken: whoever appends from now on orders a drain of their own.
        self._is_drain_due = False
        while lines := self._take(max_bytes=_WRITE_BYTES):
            try:
                _append(usage_log_path(self._path, env=self._env), lines, rotation=self._rotation)
            except OSError as error:
                self._on_failure(len(lines), error)

    def _take(self, *, max_bytes: int | None) -> list[bytes]:
        """The next lines in order; safe beside another taker, which is why it does not ask first."""
        lines: list[bytes] = []
        size_bytes = 0
        with suppress(IndexError):
            while max_bytes is None or size_bytes < max_bytes:
                lines.append(self._waiting.popleft())
                size_bytes += len(lines[-1])
        return lines


# --- Writing -----------------------------------------------------------------------------------------


def _append(path: Path, lines: Sequence[bytes], *, rotation: Rotation) -> None:
    # In valid JSON a line break is white space between tokens, so a space says the same.
    data = b"".join(line.strip().replace(b"\n", b" ") + b"\n" for line in lines if line.strip())
    deadline = time.monotonic() + _LOCK_SECONDS
    path.parent.mkdir(parents=True, exist_ok=True)
    while not _append_once(path, data, rotation=rotation, deadline=deadline):
        pass  # the file was rotated away meanwhile, by another writer or by this one


def _append_once(path: Path, data: bytes, *, rotation: Rotation, deadline: float) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        lock_log(descriptor, path, deadline=deadline)
        status = os.fstat(descriptor)
        if not is_still_log(path, status):
            return False
        if not stat.S_ISREG(status.st_mode):  # /dev/null, /dev/stdout: nothing to rotate or mend
            _write(descriptor, data)
            return True
        if status.st_size and status.st_size + len(data) > rotation.max_bytes:
            _rotate(path, max_old_files=rotation.max_old_files)
            return False
        if status.st_size and os.pread(descriptor, 1, status.st_size - 1) != b"\n":
            data = b"\n" + data  # a writer died in its line; it shall not swallow this one
        try:
            _write(descriptor, data)
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, status.st_size)
            raise
        return True
    finally:
        os.close(descriptor)  # and with it the lock


def lock_log(descriptor: int, path: Path, *, deadline: float) -> None:
    """Wait for the lock, but not for ever: the process that holds it may have been stopped."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, "locked by another process", str(path)) from None
            time.sleep(_LOCK_POLL_SECONDS)
        else:
            return


def is_still_log(path: Path, status: os.stat_result) -> bool:
    """Whether the name still means the file that was opened."""
    try:
        return os.path.samestat(path.stat(), status)
    except FileNotFoundError:
        return False


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _rotate(path: Path, *, max_old_files: int) -> None:
    """Move each file one number up. Only under the lock, the log itself last: so nobody else can start."""
    for number, old in sorted(old_logs(path), reverse=True):
        if number >= max_old_files:
            old.unlink(missing_ok=True)
        else:
            old.replace(path.with_name(f"{path.name}.{number + 1}"))
    path.replace(path.with_name(f"{path.name}.1"))


def old_logs(path: Path) -> list[tuple[int, Path]]:
    """The rotated files by their number, in no order."""
    pattern = re.compile(re.escape(path.name) + r"\.([1-9][0-9]{0,8})")
    found = ((pattern.fullmatch(sibling.name), sibling) for sibling in path.parent.iterdir())
    return [(int(match[1]), sibling) for match, sibling in found if match]


# --- Reading -----------------------------------------------------------------------------------------


def _open_logs(path: Path, opened: ExitStack, *, include_rotated: bool) -> list[IO[bytes]]:
    """The log's files, oldest first.

    Opened youngest first: a file that is rotated meanwhile is met again under its next number, and then
    known by its inode, while the other order could miss one.
    """
    files: list[IO[bytes]] = []
    seen: set[tuple[int, int]] = set()

    def open_one(candidate: Path) -> None:
        try:
            file = opened.enter_context(candidate.open("rb"))
        except FileNotFoundError:
            return
        status = os.fstat(file.fileno())
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            files.append(file)

    open_one(path)
    if include_rotated and path.parent.is_dir():
        for _, old in sorted(old_logs(path)):
            open_one(old)
    return files[::-1]


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    is_start = True
    while line := file.readline(_LINE_BYTES):
        is_whole = line.endswith(b"\n") or len(line) < _LINE_BYTES
        if is_start and is_whole:
            yield line
        is_start = is_whole


def parsed_line(line: bytes) -> dict[str, object] | None:
    """The JSON object that a line is; None where it is none."""
    try:
        value: Any = from_json(line.removeprefix(b"\xef\xbb\xbf"), allow_inf_nan=False)
    except ValueError:
        return None
    return cast("dict[str, object]", value) if isinstance(value, dict) else None
