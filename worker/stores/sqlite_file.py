"""One SQLite file, worked by one thread of its own, so that the event loop never waits for a disk.

Operations of one turn of the event loop go to the thread together, and what waits there together shares one
transaction (group commit): a busy worker pays for the lock, the log and the switch between threads once per
group and not once per operation.

What a commit means: the file is in WAL mode with `synchronous=NORMAL`, so a committed transaction is in
the operating system's hands and survives the death of the process (SIGKILL too), and the file is never
torn. Power loss or a kernel crash may undo the last commits, since nothing waits for the disk. FULL would
wait for it at every commit; in the mode that uses this store the broker keeps its records in memory only,
so a host that loses power has lost the requests themselves and the wait would buy nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from worker.errors import StoreUnavailable
from worker.stores.sqlite_log import LogKeeper

_log = structlog.get_logger(__name__)

STORE: Final = "sqlite"
_GROUP_OPERATIONS: Final = 128

T = TypeVar("T")


@dataclass(slots=True)
class _Operation:
    """`prepare` runs before the transaction, so that no lock is held meanwhile; `work` gets its result."""

    prepare: Callable[[], Any]
    work: Callable[[sqlite3.Connection, Any], Any]
    is_write: bool
    future: asyncio.Future[Any]
    prepared: Any = None
    result: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class _Group:
    """What one turn of an event loop asked for, and the end of its patience."""

    loop: asyncio.AbstractEventLoop
    operations: list[_Operation] = field(default_factory=list[_Operation])
    patience: asyncio.TimerHandle | None = None


class SqliteFile:
    """Runs functions of a connection in transactions on its own thread.

    Opened at the first operation, and again after every failure, so a file that comes back is used again.
    `schema` is executed, statement by statement, in a file of version 0. Use it from one event loop.
    """

    def __init__(
        self,
        path: Path,
        *,
        schema: tuple[str, ...],
        schema_version: int,
        busy_timeout_seconds: float = 0.8,
        timeout_seconds: float = 5.0,
    ) -> None:
        """Touch nothing yet.

        `busy_timeout_seconds` is how long another process may hold the lock; a caller waits for at most
        two such times, since the group in front of its own may wait too. `timeout_seconds` is the end of
        a caller's patience with a disk that hangs; what it asked for may still be done later.
        """
        self._path = path
        self._schema = schema
        self._schema_version = schema_version
        self._busy_timeout_seconds = busy_timeout_seconds
        self._timeout_seconds = timeout_seconds
        self._asked: _Group | None = None
        self._inbox: queue.SimpleQueue[_Group | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        # The thread's own:
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._log_keeper = LogKeeper(path)

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` gives back, on one consistent state. Raises StoreUnavailable."""
        return await self._submit(lambda: None, lambda connection, _: work(connection), is_write=False)

    async def write(
        self, work: Callable[[sqlite3.Connection, T], Any], *, prepare: Callable[[], T] = lambda: None
    ) -> Any:
        """What `work` gives back, after its transaction was committed. Raises StoreUnavailable.

        `work` may run again after a rollback. A caller that is cancelled does not undo it.
        """
        return await self._submit(prepare, work, is_write=True)

    async def close(self) -> None:
        """Finish what waits, close the file, end the thread. Idempotent."""
        self._is_closed = True
        thread, self._thread = self._thread, None
        if thread is not None:
            if self._asked is not None:
                self._hand_over(self._asked)
            self._inbox.put(None)
            await asyncio.to_thread(thread.join)

    async def _submit(
        self, prepare: Callable[[], Any], work: Callable[[sqlite3.Connection, Any], Any], *, is_write: bool
    ) -> Any:
        if self._is_closed:
            raise StoreUnavailable(STORE, "it is closed")
        if self._thread is None or not self._thread.is_alive():
            self._thread = self._started()
        loop = asyncio.get_running_loop()
        operation = _Operation(prepare, work, is_write, loop.create_future())
        group = self._asked
        if group is None or group.loop is not loop:
            group = self._asked = _Group(loop)
            loop.call_soon(self._hand_over, group)
        group.operations.append(operation)
        return await operation.future

    def _started(self) -> threading.Thread:
        # A daemon, so that a process which forgot to close still ends; WAL makes that safe.
        thread = threading.Thread(target=self._serve, name=f"sqlite {self._path.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # The host's limit of threads: another time there may be room.
            raise StoreUnavailable(STORE, f"{self._path}: {error}") from error
        return thread

    def _hand_over(self, group: _Group) -> None:
        """Give the thread what was asked in this turn of the loop, unless it has it already."""
        if group is self._asked:
            self._asked = None
            group.patience = group.loop.call_later(self._timeout_seconds, self._give_up, group)
            self._inbox.put(group)

    def _give_up(self, group: _Group) -> None:
        for operation in group.operations:
            if not operation.future.done():
                error = StoreUnavailable(STORE, f"no answer within {self._timeout_seconds} s")
                operation.future.set_exception(error)

    # --- On the thread ---------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while (groups := self._next_groups()) is not None:
                operations = [operation for group in groups for operation in group.operations]
                for operation in operations:
                    self._prepare(operation)
                self._run([operation for operation in operations if operation.error is None])
                _deliver(groups)
                # After the callers went on: the log's upkeep is nobody's latency.
                if any(operation.is_write for operation in operations):
                    self._keep_log()
            self._log_keeper.finish()
        finally:
            # A connection is its thread's own, so the next thread could not even close it.
            self._drop_connection()

    def _keep_log(self) -> None:
        if self._connection is None:
            return
        try:
            self._log_keeper.committed(self._connection)
        except Exception as error:  # noqa: BLE001  # all is committed, and a later commit looks at the log again
            _log.warning("sqlite.upkeep_failed", file=self._path.name, error=str(error))

    def _next_groups(self) -> list[_Group] | None:
        """Everything that waits, at least one group, bounded; None when the thread shall end."""
        item = self._inbox.get()
        groups: list[_Group] = []
        left = _GROUP_OPERATIONS
        while item is not None:
            groups.append(item)
            left -= len(item.operations)
            # Nobody else takes from the inbox, so what is there is there.
            if left <= 0 or self._inbox.empty():
                return groups
            item = self._inbox.get()
        if groups:
            self._inbox.put(None)
        return groups or None

    def _prepare(self, operation: _Operation) -> None:
        try:
            operation.prepared = operation.prepare()
        except BaseException as error:  # noqa: BLE001  # raised again where the caller waits, a panic of an extension too
            operation.error = error

    def _run(self, group: list[_Operation]) -> None:
        """Run the group as one transaction; if that fails inside an operation, each by itself."""
        if not group:
            return
        try:
            connection = self._open()
            connection.execute(
                "BEGIN IMMEDIATE" if any(operation.is_write for operation in group) else "BEGIN"
            )
        except BaseException as error:  # noqa: BLE001  # as in `_prepare`
            for operation in group:
                operation.error = self._translated(error)
            return
        try:
            for operation in group:
                operation.result = operation.work(connection, operation.prepared)
            connection.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001  # as in `_prepare`
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            if len(group) == 1:
                group[0].error = self._translated(error)
            else:
                # One bad operation must not fail its neighbours, nor commit half of itself with them.
                for operation in group:
                    self._run([operation])

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._is_moved():
            # Somebody removed or replaced the file: writing on into the old one would let two processes
            # each believe that they were first.
            self._drop_connection()
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _create_private(self._path)
            connection = sqlite3.connect(self._path, timeout=self._busy_timeout_seconds, isolation_level=None)
            try:
                self._set_up(connection)
                status = self._path.stat()
            except BaseException:
                connection.close()
                raise
            self._connection, self._identity = connection, (status.st_dev, status.st_ino)
        return self._connection

    def _is_moved(self) -> bool:
        try:
            status = os.stat(self._path)  # noqa: PTH116  # a tenth of the cost, and this runs per group
        except OSError:
            return True
        return (status.st_dev, status.st_ino) != self._identity

    def _set_up(self, connection: sqlite3.Connection) -> None:
        self._switch_to_wal(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        if _version(connection) == self._schema_version:
            return
        connection.execute("BEGIN IMMEDIATE")
        found = _version(connection)
        if found not in (0, self._schema_version):
            raise StoreUnavailable(
                STORE, f"the file has schema {found}; this version uses {self._schema_version}"
            )
        if found == 0:
            for statement in self._schema:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {self._schema_version}")
        connection.execute("COMMIT")

    def _switch_to_wal(self, connection: sqlite3.Connection) -> None:
        """Two processes that create the file at once refuse each other here without waiting; so wait."""
        deadline = time.monotonic() + self._busy_timeout_seconds
        while True:
            try:
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
                continue
            if mode != "wal":
                raise StoreUnavailable(STORE, f"the file system refuses a write-ahead log (mode {mode!r})")
            return

    def _drop_connection(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _translated(self, error: BaseException) -> BaseException:
        """The error that the caller sees; a defect of this program stays what it is."""
        if isinstance(error, OSError):
            return _caused(StoreUnavailable(STORE, f"{self._path}: {error.strerror or error}"), error)
        if not isinstance(error, sqlite3.Error) or isinstance(
            error, sqlite3.ProgrammingError | sqlite3.InterfaceError
        ):
            return error
        if not _is_busy(error):
            self._drop_connection()
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        return _caused(StoreUnavailable(STORE, f"{self._path}: {error} ({name})"), error)


def _create_private(path: Path) -> None:
    """Make an empty file that its owner alone may read, unless there is one.

    Prompts go in there, and SQLite gives its log the mode of the file. The file is never
    opened under its own name: the system drops all locks that a process has on a file as soon as the
    process closes any descriptor of it, those of SQLite's other connections included.
    """
    if path.exists():
        return
    descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    os.close(descriptor)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(made, path)
    finally:
        Path(made).unlink()


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return version


def _is_busy(error: sqlite3.Error) -> bool:
    # The low byte is the primary code; the others say which lock it was.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _caused(error: StoreUnavailable, cause: Exception) -> StoreUnavailable:
    error.__cause__ = cause
    return error


def _deliver(groups: list[_Group]) -> None:
    """Wake the callers; one call into each loop for all of its groups."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Group]] = {}
    for group in groups:
        by_loop.setdefault(group.loop, []).append(group)
    for loop, delivered in by_loop.items():
        # A loop that is closed has no callers left.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, delivered)


def _resolve(groups: list[_Group]) -> None:
    for group in groups:
        if group.patience is not None:
            group.patience.cancel()
        for operation in group.operations:
            if operation.future.done():
                continue
            if operation.error is not None:
                operation.future.set_exception(operation.error)
            else:
                operation.future.set_result(operation.result)
