"""How the stores talk to Neo4j: managed transactions with an end to all patience, and one kind of error.

The driver's defaults wait a minute for a connection and half a minute for retries, longer than any request
lives. Here a lost server is known within `retry_seconds`, one that hangs within the caller's own timeout.
A transaction that met a deadlock or a lost connection runs again until `retry_seconds` have passed, and once
more where the connection was lost at the commit, which may have succeeded, or where a node went away while
its lock was waited for: so its work must be fit to run twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, LiteralString, TypeVar, cast

from neo4j import (
    READ_ACCESS,
    WRITE_ACCESS,
    AsyncDriver,
    AsyncGraphDatabase,
    AsyncManagedTransaction,
    AsyncSession,
    NotificationMinimumSeverity,
    Query,
    unit_of_work,
)
from neo4j.exceptions import (
    ConfigurationError,
    CypherSyntaxError,
    CypherTypeError,
    DriverError,
    IncompleteCommit,
    Neo4jError,
)

from worker.errors import StoreUnavailable
from worker.tls import client_context, tls_problem

STORE: Final = "neo4j"
_RETRY_PAUSE_SECONDS: Final = 0.05
_SERVER_SECONDS_MORE: Final = 1.0
_GONE: Final = "Neo.ClientError.Statement.EntityNotFound"

T = TypeVar("T")
Transaction = AsyncManagedTransaction
Work = Callable[[Transaction], Awaitable[T]]


class Neo4jLink:
    """Transactions on one database. Use it from one event loop.

    Every method raises StoreUnavailable; a statement that is wrong in itself stays what it is, a defect.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str,
        password: str,
        database: str | None = None,
        ca_file: Path | None = None,
        connect_timeout_seconds: float = 0.5,
        acquire_timeout_seconds: float = 1.0,
        retry_seconds: float = 0.8,
    ) -> None:
        """Touch nothing yet. With `ca_file`, a `+s` address trusts those authorities alone.

        Raises ValueError where that file holds no certificates.
        """
        self._url = url
        self._tls: dict[str, Any] = {}
        if ca_file is not None:
            # The driver takes authorities of one's own only beside an address that does not say `+s`.
            self._url = url.replace("+s://", "://", 1)
            self._tls = {"ssl_context": client_context(ca_file=ca_file)}
        self._auth = (user, password)
        self._database = database
        self._connect_timeout_seconds = connect_timeout_seconds
        self._acquire_timeout_seconds = acquire_timeout_seconds
        self._retry_seconds = retry_seconds
        self._driver: AsyncDriver | None = None
        self._calls: set[asyncio.Task[Any]] = set()  # the event loop itself holds tasks only weakly
        self._is_closed = False

    async def read(self, work: Work[T], *, timeout_seconds: float) -> T:
        """What `work` gives back, from a transaction that only reads."""
        return await self._run(READ_ACCESS, work, timeout_seconds)

    async def write(self, work: Work[T], *, timeout_seconds: float) -> T:
        """What `work` gives back, after its transaction was committed."""
        return await self._run(WRITE_ACCESS, work, timeout_seconds)

    async def execute(self, statement: str, *, timeout_seconds: float) -> list[list[Any]]:
        """The rows of one statement that manages its own transaction, as the schema's do."""

        async def work(transaction: Transaction) -> list[list[Any]]:
            return await rows(transaction, statement, {})

        return await self.write(work, timeout_seconds=timeout_seconds)

    async def ask(
        self, statement: str, parameters: Mapping[str, Any], *, timeout_seconds: float
    ) -> list[list[Any]]:
        """The rows of one statement: a single round trip, where a transaction of several takes two more.

        It may take locks, and run again; its text is made as for `rows`.
        """
        query = Query(cast("LiteralString", statement), timeout=timeout_seconds + _SERVER_SECONDS_MORE)
        return await self._bounded(self._ask(query, dict(parameters)), timeout_seconds)

    async def _ask(self, query: Query, parameters: dict[str, Any]) -> list[list[Any]]:
        loop = asyncio.get_running_loop()
        is_over_at = loop.time() + self._retry_seconds
        async with self._session(WRITE_ACCESS) as session:
            while True:
                try:
                    result = await session.run(query, parameters)
                    return [list(record.values()) async for record in result]
                except (DriverError, Neo4jError) as error:
                    if not (error.is_retryable() or _is_gone(error)) or loop.time() > is_over_at:
                        raise
                await asyncio.sleep(_RETRY_PAUSE_SECONDS)

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        self._is_closed = True
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.close()

    def driver(self) -> AsyncDriver:
        """The driver itself, made at the first use. Raises StoreUnavailable when closed."""
        if self._is_closed:
            raise StoreUnavailable(STORE, "the connection is closed")
        if self._driver is None:
            self._driver = self._made()
        return self._driver

    def _made(self) -> AsyncDriver:
        try:
            return AsyncGraphDatabase.driver(  # pyright: ignore[reportUnknownMemberType]  # its options are untyped
                self._url,
                auth=self._auth,
                connection_timeout=self._connect_timeout_seconds,
                connection_acquisition_timeout=self._acquire_timeout_seconds,
                connection_write_timeout=self._acquire_timeout_seconds,
                max_transaction_retry_time=self._retry_seconds,
                notifications_min_severity=NotificationMinimumSeverity.OFF,
                telemetry_disabled=True,
                **self._tls,
            )
        except (ConfigurationError, ValueError):
            # Its own message shows the address, which may hold a password.
            raise StoreUnavailable(STORE, "the address is none that a Neo4j could have") from None

    async def _run(self, access: str, work: Work[T], timeout_seconds: float) -> T:
        # The server ends the transaction too, a little later, should nobody be left to roll it back.
        bounded = unit_of_work(timeout=timeout_seconds + _SERVER_SECONDS_MORE)(work)
        return await self._bounded(self._transact(access, bounded), timeout_seconds)

    async def _bounded(self, call: Coroutine[Any, Any, T], timeout_seconds: float) -> T:
        """What the call gives. Raises StoreUnavailable after that time, whatever the driver does until then.

        The driver now and then cancels the task that it runs in, and swallows cancellations of others: in a
        task of its own, neither is mistaken for the end of the caller's.
        """
        task = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._on_done)
        try:
            await asyncio.wait({task}, timeout=timeout_seconds)
        finally:
            task.cancel()
        if not task.done():
            raise StoreUnavailable(STORE, f"no answer within {timeout_seconds} s")
        if task.cancelled():
            raise StoreUnavailable(STORE, "the driver has cancelled its own work")
        return task.result()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has raised it; nobody may have

    async def _transact(self, access: str, bounded: Work[T]) -> T:
        async with self._session(access) as session:
            run = session.execute_read if access == READ_ACCESS else session.execute_write
            try:
                return await run(bounded)
            except IncompleteCommit:
                return await run(bounded)
            except Neo4jError as error:
                if not _is_gone(error):
                    raise
                return await run(bounded)

    @asynccontextmanager
    async def _session(self, access: str) -> AsyncGenerator[AsyncSession]:
        driver = self.driver()
        try:
            async with driver.session(  # pyright: ignore[reportUnknownMemberType]  # as above
                database=self._database,
                default_access_mode=access,
                initial_retry_delay=_RETRY_PAUSE_SECONDS,
            ) as session:
                yield session
        except (CypherSyntaxError, CypherTypeError):
            raise
        except (DriverError, Neo4jError, OSError) as error:
            raise StoreUnavailable(STORE, _reason(error)) from error


async def rows(transaction: Transaction, statement: str, parameters: Mapping[str, Any]) -> list[list[Any]]:
    """All rows of a statement. Its text is made from the canon alone, all else are parameters."""
    # The driver's types ask for a literal, which text made from a table of literals is not to a checker.
    result = await transaction.run(cast("LiteralString", statement), dict(parameters))
    return [list(record.values()) async for record in result]


def _is_gone(error: DriverError | Neo4jError) -> bool:
    """Whether somebody deleted a node between the match that found it and the lock on it."""
    return getattr(error, "code", None) == _GONE


def _reason(error: Exception) -> str:
    problem = tls_problem(error)
    if problem is not None:
        return problem
    text = getattr(error, "message", None) or str(error) or type(error).__name__
    return f"{type(error).__name__}: {str(text).splitlines()[0]}"
