"""How the stores talk to Neo4j: managed transactions with an end to all patience, and one kind of error.

The driver's defaults wait a minute for a connection and half a minute for retries, longer than any request
lives. Here a lost server is known within `retry_seconds`, one that hangs within the caller's own timeout.
A transaction that met a deadlock or a lost connection runs again until `retry_seconds` have passed, and once
more where the connection was lost at the commit, which may have succeeded, or where a node went away while
its lock was waited for: so its work must be fit to run twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
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
        connect_timeout_seconds: float = 0.5,
        acquire_timeout_seconds: float = 1.0,
        retry_seconds: float = 0.8,
    ) -> None:
        """Touch nothing yet."""
        self._url = url
        self._auth = (user, password)
        self._database = database
        self._connect_timeout_seconds = connect_timeout_seconds
        self._acquire_timeout_seconds = acquire_timeout_seconds
        self._retry_seconds = retry_seconds
        self._driver: AsyncDriver | None = None
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
        loop = asyncio.get_running_loop()
        is_over_at = loop.time() + self._retry_seconds
        async with self._session(WRITE_ACCESS, timeout_seconds) as session:
            while True:
                try:
                    result = await session.run(query, dict(parameters))
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
            )
        except (ConfigurationError, ValueError):
            # Its own message shows the address, which may hold a password.
            raise StoreUnavailable(STORE, "the address is none that a Neo4j could have") from None

    async def _run(self, access: str, work: Work[T], timeout_seconds: float) -> T:
        # The server ends the transaction too, a little later, should nobody be left to roll it back.
        bounded = unit_of_work(timeout=timeout_seconds + _SERVER_SECONDS_MORE)(work)
        async with self._session(access, timeout_seconds) as session:
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
    async def _session(self, access: str, timeout_seconds: float) -> AsyncGenerator[AsyncSession]:
        driver = self.driver()
        try:
            async with (
                asyncio.timeout(timeout_seconds),
                driver.session(  # pyright: ignore[reportUnknownMemberType]  # as above
                    database=self._database,
                    default_access_mode=access,
                    initial_retry_delay=_RETRY_PAUSE_SECONDS,
                ) as session,
            ):
                yield session
        except TimeoutError as error:
            raise StoreUnavailable(STORE, f"no answer within {timeout_seconds} s") from error
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
    text = getattr(error, "message", None) or str(error) or type(error).__name__
    return f"{type(error).__name__}: {str(text).splitlines()[0]}"
