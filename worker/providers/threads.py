"""Threads that belong to one source alone: what hangs in them starves nobody else.

A blocked system call cannot be ended from outside, and neither can its thread. So a source's blocking work
never runs on the event loop's shared executor, where a few dead mounts would stop decoding and fusing too.
The task that waits for a thread says what the thread does: it swallows its first cancellation while the
thread goes on, and is then left behind, counted and capped like every other source that does not end.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

from worker.turns import TURNS

MAX_THREADS: Final = 16
IDLE_SECONDS: Final = 2.0
"""How long a thread waits for more work before it ends."""

T = TypeVar("T")


class SourceThreads:
    """At most so many threads at a time, started as they are needed; more work waits its turn.

    One that has done its work waits a moment for more: whoever starts a thread waits until it runs, and that
    would be the event loop. They are daemons: one that hangs does not keep the process from ending. Used from
    event loops.
    """

    def __init__(self, *, max_threads: int = MAX_THREADS) -> None:
        """Start none yet. As many as calls may be left behind, or the cap on those is never reached."""
        self._max_threads = max_threads
        self._changed = threading.Condition()
        self._waiting: deque[_Work[Any]] = deque()
        self._threads = 0
        self._idle = 0
        """Of the threads, those that wait for work; who was told of some waits until it has it."""

    @property
    def running(self) -> int:
        """Threads that are at work now, hung ones included."""
        with self._changed:
            return self._threads - self._idle

    async def run(self, work: Callable[[], T], *, stop: threading.Event | None = None) -> T:
        """What `work` returns or raises, from a thread in a copy of this context.

        Cancelled before a thread has begun, it never will. Cancelled later, this sets `stop`, which the work
        may look at to end early, and raises CancelledError only when the thread has ended. The second
        cancellation passes at once, so that an event loop that is being closed need not wait.
        """
        mine = _Work(work)
        self._begin_or_queue(mine)
        try:
            await asyncio.wait((mine.outcome,))
        except asyncio.CancelledError:
            if stop is not None:
                stop.set()
            if not self._withdraw(mine):
                await asyncio.wait((mine.outcome,))
            raise
        return mine.outcome.result()

    async def compute(self, work: Callable[[], T]) -> T:
        """The same, for work that waits for nothing but the processor: it takes its turn with others."""
        return await self.run(partial(TURNS.run, work))

    def _begin_or_queue(self, work: _Work[Any]) -> None:
        with self._changed:
            self._waiting.append(work)
            if len(self._waiting) <= self._idle:
                self._changed.notify()
                return
            if self._threads >= self._max_threads:
                return
            self._threads += 1
        try:
            threading.Thread(target=self._work_off, name="source", daemon=True).start()
        except RuntimeError:  # this process may have no more threads
            with self._changed:
                self._threads -= 1
            self._withdraw(work)
            raise

    def _withdraw(self, work: _Work[Any]) -> bool:
        """Take back work that no thread has begun; whether there was any."""
        with self._changed:
            try:
                self._waiting.remove(work)
            except ValueError:
                return False
            return True

    def _work_off(self) -> None:
        while (work := self._next()) is not None:
            work.run()
            # It holds all that it worked on, which a thread without work must not.
            del work

    def _next(self) -> _Work[Any] | None:
        """The next work; None, and one thread less, where there was none for a while."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._waiting, timeout=IDLE_SECONDS)
            self._idle -= 1
            if not self._waiting:
                self._threads -= 1
                return None
            return self._waiting.popleft()


class _Work(Generic[T]):
    """One call, and where its outcome is awaited."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._context: Context = copy_context()
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[T] = self._loop.create_future()
        # Nobody may be left to read it, which is no reason to complain.
        self.outcome.add_done_callback(_mark_retrieved)

    def run(self) -> None:
        """Do the work here and tell the event loop, if that still runs."""
        try:
            result = self._context.run(self._work)
        except StopIteration as error:
            # A future refuses this one, and the task would wait for ever.
            self._tell(_fail, RuntimeError(f"the source raised {type(error).__name__}"))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's to see
            self._tell(_fail, error)
        else:
            self._tell(_succeed, result)

    def _tell(self, settle: Callable[[asyncio.Future[T], Any], None], value: object) -> None:
        # RuntimeError: the loop was closed while the thread was still at work.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(settle, self.outcome, value)


def _succeed(outcome: asyncio.Future[T], result: object) -> None:
    if not outcome.done():
        outcome.set_result(cast("T", result))


def _fail(outcome: asyncio.Future[Any], error: BaseException) -> None:
    if not outcome.done():
        outcome.set_exception(error)


def _mark_retrieved(outcome: asyncio.Future[Any]) -> None:
    if not outcome.cancelled():
        outcome.exception()
