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
        self._spare: tuple[asyncio.Task[T], _Rest[T]] | None = None

    def start(self, coroutine: Coroutine[Any, Any, T]) -> T | asyncio.Task[T]:
        """What the coroutine returned where it never waited, else the task that goes on with it.

        Raises what the coroutine raised before its first wait.
        """
        task, rest = self._take_spare()
        context = copy_context()
        _leave_task(self._loop, self._owner)
        _enter_task(self._loop, task)
        try:
            awaited = context.run(coroutine.send, None)
        except StopIteration as finished:
            return finished.value
        finally:
            _leave_task(self._loop, task)
            _enter_task(self._loop, self._owner)
            if not task.cancelling():
                self._spare = (task, rest)
        self._spare = None
        rest.carry_on(coroutine, context, awaited)
        return task

    def _take_spare(self) -> tuple[asyncio.Task[T], _Rest[T]]:
        """The task that would carry on: one for all coroutines that never wait, it ends by itself."""
        spare, self._spare = self._spare, None
        if spare is None:
            rest = _Rest[T]()
            spare = (self._loop.create_task(rest), rest)
        return spare


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
            raise StopIteration
        if not self._is_handed_over:
            awaited, self._awaited, self._is_handed_over = self._awaited, None, True
            return awaited
        return self._context.run(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        """Raise inside the coroutine, where it waits."""
        if self._coroutine is None or self._context is None:
            raise error[0]
        self._is_handed_over = True
        return self._context.run(self._coroutine.throw, *error)

    def close(self) -> None:
        """End the coroutine where it waits."""
        if self._coroutine is not None:
            self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self
