"""One connection to Redis, shared by all callers: commands that wait together share a round trip.

Why not the driver's own client: it spends 200 to 260 us of CPU on a command (measured with 16 callers and
6 KB values), because each command borrows a connection, arms timers and reads its own reply. Sent together
over one connection a command costs 25 to 50 us, and a lone one about 120. The driver still does what it is
for: addresses, TLS, authentication, the protocol.

Time is bounded: whatever the server does, a call ends within twice `timeout_seconds`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection, ConnectionPool, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MasterDownError, NoScriptError, ReadOnlyError, RedisError, ResponseError

from worker.errors import StoreUnavailable
from worker.tls import client_context, tls_problem

STORE: Final = "redis"
_TRIP_COMMANDS: Final = 64
_TRIP_BYTES: Final = 4 * 1024 * 1024
_RESEND_PAUSE_SECONDS: Final = 0.05

Argument = bytes | str | int


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, which the server runs as one atomic step."""

    text: str
    sha1: str = field(init=False)

    def __post_init__(self) -> None:
        """Compute the name by which the server knows the script."""
        digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha1", digest)


@dataclass(slots=True)
class _Call:
    command: tuple[Argument, ...]
    future: asyncio.Future[Any]

    @property
    def size_bytes(self) -> int:
        return sum(len(argument) for argument in self.command if not isinstance(argument, int))


class RedisLink:
    """Sends commands in the order of their calls. Connects at the first, and again after every failure.

    So it does after the answer of a primary that was made a replica: the address may lead to another by now.
    """

    def __init__(
        self,
        url: str,
        *,
        password: str | None,
        connect_timeout_seconds: float,
        timeout_seconds: float,
        is_resending: bool,
    ) -> None:
        """Touch nothing yet.

        Raises ValueError for an address that is not redis://, rediss:// or unix://, and for files of
        certificates that are none.

        `timeout_seconds` covers one round trip, connecting and resending included. With `is_resending`,
        commands are sent once more when the connection breaks: only where doing them twice is harmless.
        """
        # The driver's own retries multiply (each command retries, and each of its connects again), and
        # its timers cost a task per command; both are off, and one timer per trip stands instead.
        options: dict[str, Any] = {
            "socket_timeout": None,
            "socket_connect_timeout": connect_timeout_seconds,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "driver_info": None,
        }
        if password is not None:
            options["password"] = password
        self._pool = ConnectionPool.from_url(url, **options)  # pyright: ignore[reportUnknownMemberType]  # the driver leaves its options untyped
        self._tls = _tls_of(self._pool)
        self._timeout_seconds = timeout_seconds
        self._is_resending = is_resending
        self._connection: AbstractConnection | None = None
        self._waiting: deque[_Call] = deque()
        self._trips: asyncio.Task[None] | None = None
        self._is_closed = False

    async def call(self, *command: Argument) -> Any:
        """The server's reply: bytes, int, list or None. Raises StoreUnavailable."""
        try:
            return await self._enqueue(command)
        except ResponseError as error:
            raise StoreUnavailable(STORE, str(error)) from error

    async def run(self, script: Script, keys: Sequence[str], *arguments: Argument) -> Any:
        """What the script returns. Raises StoreUnavailable."""
        try:
            return await self._enqueue(("EVALSHA", script.sha1, len(keys), *keys, *arguments))
        except NoScriptError:
            # A server forgets its scripts when it restarts; this teaches it again.
            return await self.call("EVAL", script.text, len(keys), *keys, *arguments)
        except ResponseError as error:
            raise StoreUnavailable(STORE, str(error)) from error

    async def close(self) -> None:
        """Finish what waits, then disconnect. Idempotent."""
        self._is_closed = True
        if self._trips is not None:
            await asyncio.wait({self._trips})
        await self._disconnect()

    async def _enqueue(self, command: tuple[Argument, ...]) -> Any:
        if self._is_closed:
            raise StoreUnavailable(STORE, "the connection is closed")
        call = _Call(command, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if self._trips is None:
            self._trips = asyncio.create_task(self._make_trips(), name="redis trips")
        return await call.future

    async def _make_trips(self) -> None:
        try:
            while self._waiting:
                await self._trip(self._next_calls())
        finally:
            self._trips = None

    def _next_calls(self) -> list[_Call]:
        calls = [self._waiting.popleft()]
        size_bytes = calls[0].size_bytes
        while self._waiting and len(calls) < _TRIP_COMMANDS:
            size_bytes += self._waiting[0].size_bytes
            if size_bytes > _TRIP_BYTES:
                break
            calls.append(self._waiting.popleft())
        return calls

    async def _trip(self, calls: list[_Call]) -> None:
        """Give each call its reply, or fail it and everyone who waits behind it."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                replies = await self._exchange([call.command for call in calls])
        except TimeoutError as error:
            await self._fail(calls, f"no answer within {self._timeout_seconds} s", error)
        except (RedisError, OSError) as error:
            await self._fail(calls, tls_problem(error) or str(error) or type(error).__name__, error)
        except asyncio.CancelledError as error:
            await self._fail(calls, "the event loop is ending", error)
            raise
        except Exception as error:  # noqa: BLE001  # a defect, raised again where the callers wait
            await self._disconnect()
            for call in calls:
                _settle(call, error)
        else:
            for call, reply in zip(calls, replies, strict=True):
                _settle(call, reply)

    async def _fail(self, calls: list[_Call], reason: str, cause: BaseException) -> None:
        # Those behind would find the same, after as long a wait again.
        failed = [*calls, *self._waiting]
        self._waiting.clear()
        for call in failed:
            error = StoreUnavailable(STORE, reason)
            error.__cause__ = cause
            _settle(call, error)
        await self._disconnect()

    async def _exchange(self, commands: list[tuple[Argument, ...]]) -> list[Any]:
        try:
            return await self._send(commands)
        except (RedisError, OSError):
            if not self._is_resending:
                raise
            await self._disconnect()
            await asyncio.sleep(_RESEND_PAUSE_SECONDS)
            return await self._send(commands)

    async def _send(self, commands: list[tuple[Argument, ...]]) -> list[Any]:
        connection = self._connection
        if connection is not None and await connection.can_read():
            # Nothing was asked, so what is there to read is the end: the server closed the connection.
            await self._disconnect()
            connection = None
        if connection is None:
            connection = self._connection = self._pool.make_connection()
            if isinstance(connection, SSLConnection):
                connection.ssl_context.context = self._tls
            await connection.connect()
        await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except ResponseError as error:
                replies.append(error)
        if any(isinstance(reply, ReadOnlyError | MasterDownError) for reply in replies):
            await self._disconnect()
        return replies

    async def _disconnect(self) -> None:
        """Drop the connection at once."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        writer = connection._writer  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # no public way
        if writer is not None:
            # Closing would first wait for what a hung server does not read, and keep it in memory.
            writer.transport.abort()
        with contextlib.suppress(RedisError, OSError):
            await connection.disconnect()


def _tls_of(pool: ConnectionPool) -> ssl.SSLContext | None:
    """One context for all connections of the pool; None without TLS.

    The driver would make one for each connection, which takes 60 ms of the event loop's time, and would let
    the system's authorities in beside those that are named.
    """
    made = pool.make_connection()
    if not isinstance(made, SSLConnection):
        return None
    files = (made.ca_certs, made.certfile, made.keyfile)
    authority, certificate, key = (None if file is None else Path(file) for file in files)
    context = client_context(ca_file=authority, certificate_file=certificate, key_file=key)
    context.check_hostname = made.check_hostname
    context.verify_mode = made.cert_reqs  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]  # typed as it is given, not as it is kept
    return context


def _settle(call: _Call, reply: Any) -> None:
    if call.future.done():
        return  # the caller was cancelled
    if isinstance(reply, Exception):
        call.future.set_exception(reply)
    else:
        call.future.set_result(reply)
