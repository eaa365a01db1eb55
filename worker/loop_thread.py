"""An event loop on a thread of its own, for callers that have none.

Connections, locks and futures belong to the event loop that they were made on. So whoever keeps some of them
from one blocking call to the next keeps that loop, too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

import structlog

log = structlog.get_logger()

T = TypeVar("T")

CLOSE_SECONDS: Final = 10.0


class LoopThread:
    """Runs coroutines for callers that block. Safe from any thread; started by the first call.

    The thread is a daemon: a process that forgets to close it ends all the same.
    """

    def __init__(self, closing: Callable[[], Awaitable[None]], *, name: str) -> None:
        """Start nothing yet. `closing` is awaited on the loop, once, when all calls have ended."""
        self._closing = closing
        self._name = name
        self._lock = threading.Lock()
        self._calls: set[Future[Any]] = set()
        self._thread: threading.Thread | None = None
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._ended: Future[None] = Future()
        self._is_closed = False

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin `work` on the loop, in a copy of the caller's context; what it returns or raises.

        Cancelling that cancels the work. Raises RuntimeError where this was closed, on the loop's own thread,
        which would wait for itself, and where the loop has ended: it does not outlive a fork.
        """
        with self._lock:
            try:
                call = asyncio.run_coroutine_threadsafe(work, self._open())
            except BaseException:
                work.close()
                raise
            self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    def stop(self) -> None:
        """Take no more calls, and end when those under way have ended. Returns at once; idempotent."""
        self._is_closed = True
        if self._thread is not None and self._thread.is_alive():
            loop, stopped = self._started.result()
            with suppress(RuntimeError):  # it has ended meanwhile
                loop.call_soon_threadsafe(stopped.set)

    def close(self, *, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Stop, and wait until loop and thread have ended. Idempotent.

        After `timeout_seconds` they are left behind, which is logged: there is no way to end a call that
        swallows its cancellation. Raises what `closing` raised.
        """
        with self._lock:
            if self._thread is None and not self._is_closed:
                self._open()
            self.stop()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(timeout_seconds)
        if thread.is_alive():
            log.warning("loop.left_behind", thread=self._name, waited_seconds=timeout_seconds)
        elif self._ended.done():
            self._ended.result()

    def _open(self) -> asyncio.AbstractEventLoop:
        """The loop, running."""
        if self._is_closed:
            raise RuntimeError("this was closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        if self._thread is threading.current_thread():
            raise RuntimeError("a call from the event loop that would have to answer it")
        loop, _ = self._started.result()
        if not self._thread.is_alive():
            raise RuntimeError("its event loop has ended, or stayed behind in the process that forked")
        return loop

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  # not swallowed: it is raised again where somebody waits
            if not self._started.done():
                self._started.set_exception(error)
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        stopped = asyncio.Event()
        self._started.set_result((asyncio.get_running_loop(), stopped))
        await stopped.wait()
        await asyncio.gather(*map(asyncio.wrap_future, list(self._calls)), return_exceptions=True)
        await self._closing()
