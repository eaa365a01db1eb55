"""Start a coroutine at once, and pay for a task only if it has to wait.

A source whose state is inline answers without ever waiting. A task for it, with its trips through the event
loop and the bookkeeping around them, costs more than most such sources do. So its first step is run here
and now, and where that ends it nothing else is needed. (Python 3.12 has the same as an option of the event
loop, `asyncio.eager_task_factory`.)

The step runs as it would in a task: in its own copy of the context, and with `asyncio.current_task()` being
the task that carries on if there is more to do. So a timeout, task group or cancel scope that the first
step opens holds the source's own task, never the request's.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio.tasks import (
    _enter_task,  # pyright: ignore[reportPrivateUsage]  # "Extending asyncio" offers both for this use
    _leave_task,  # pyright: ignore[reportPrivateUsage]
)
from collections.abc import Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class EagerStarter(Generic[T]):
    """Starts the coroutines of one gathering; made and used inside one task."""

    def __init__(self) -> None:
        """Raises RuntimeError outside a task."""
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        if task is None:
            msg = "coroutines are started from within a task"
            raise RuntimeError(msg)
        self._owner = task

    def start(self, coroutine: Coroutine[Any, Any, T]) -> T | asyncio.Task[T]:
        """What the coroutine returned where it never waited, else the task that goes on with it.

        Raises what the coroutine raised before its first wait.
        """
        loop, owner = self._loop, self._owner
        if _kept.spare is None or _kept.spare[0].get_loop() is not loop:
            _kept.spare = _make_spare(loop)
        task, rest = _kept.spare
        context = copy_context()
        _leave_task(loop, owner)
        _enter_task(loop, task)
        try:
            awaited = context.run(coroutine.send, None)
        except StopIteration as finished:
            return finished.value
        finally:
            _leave_task(loop, task)
            _enter_task(loop, owner)
            if task.cancelling():
                _kept.spare = None
        _kept.spare = None
        rest.carry_on(coroutine, context, awaited)
        return task


def _make_spare(loop: asyncio.AbstractEventLoop) -> tuple[asyncio.Task[Any], _Rest[Any]]:
    rest = _Rest[Any]()
    return loop.create_task(rest), rest


class _Rest(Coroutine[Any, Any, T], Generator[Any, Any, T]):
    """What a task runs: the steps of a coroutine after the first, or nothing at all."""

    __slots__ = ("_awaited", "_context", "_coroutine", "_is_handed_over")

    def __init__(self) -> None:
        """Nothing to do so far."""
        self._coroutine: Coroutine[Any, Any, T] | None = None
        self._context: Context | None = None
        self._awaited: Any = None
        self._is_handed_over = True

    def carry_on(self, coroutine: Coroutine[Any, Any, T], context: Context, awaited: object) -> None:
        """Take over a coroutine that has just started to wait for `awaited`."""
        self._coroutine, self._context, self._awaited = coroutine, context, awaited
        self._is_handed_over = False

    def send(self, value: Any) -> Any:
        """First what the coroutine already waits for, then its next steps."""
        if self._coroutine is None or self._context is None:
            self._withdraw()
            raise StopIteration
        if not self._is_handed_over:
            awaited, self._awaited, self._is_handed_over = self._awaited, None, True
            return awaited
        return self._context.run(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        """Raise inside the coroutine, where it waits."""
        if self._coroutine is None or self._context is None:
            self._withdraw()
            raise error[0]
        self._is_handed_over = True
        return self._context.run(self._coroutine.throw, *error)

    def _withdraw(self) -> None:
        """Its turn has come and nothing waits: it is the spare no longer."""
        if _kept.spare is not None and _kept.spare[1] is self:
            _kept.spare = None

    def close(self) -> None:
        """End the coroutine where it waits."""
        if self._coroutine is not None:
            self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self


class _Kept(threading.local):
    """The task that would carry on, of the event loop that runs in this thread.

    One for all coroutines of a turn of the loop that never wait, whoever starts them; it ends with the turn.
    """

    spare: tuple[asyncio.Task[Any], _Rest[Any]] | None = None


_kept = _Kept()
