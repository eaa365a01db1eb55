from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import ContextVar

import pytest
from structlog.testing import capture_logs

from worker.loop_thread import LoopThread


class Closing:
    """What is awaited at the end: counts how often, and on which event loop."""

    def __init__(self, error: Exception | None = None) -> None:
        self.loops: list[asyncio.AbstractEventLoop] = []
        self._error = error

    async def __call__(self) -> None:
        self.loops.append(asyncio.get_running_loop())
        if self._error is not None:
            raise self._error


async def running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_all_calls_of_all_threads_run_on_one_loop_and_what_closes_too() -> None:
    closing = Closing()
    loop = LoopThread(closing, name="test")

    def ask(_: int) -> asyncio.AbstractEventLoop:
        return loop.submit(running_loop()).result()

    with ThreadPoolExecutor(4) as pool:
        seen = set(pool.map(ask, range(20)))
    loop.close()
    assert seen == set(closing.loops)
    assert len(closing.loops) == 1
    assert closing.loops[0].is_closed()


def test_a_call_gives_back_and_raises_what_the_work_does_in_the_caller_s_context() -> None:
    name: ContextVar[str] = ContextVar("name", default="nobody")
    loop = LoopThread(Closing(), name="test")

    async def named() -> str:
        await asyncio.sleep(0)
        return name.get()

    async def failing() -> None:
        raise ZeroDivisionError

    token = name.set("smith")
    assert loop.submit(named()).result() == "smith"
    name.reset(token)
    assert loop.submit(named()).result() == "nobody"
    with pytest.raises(ZeroDivisionError):
        loop.submit(failing()).result()
    loop.close()


def test_closing_waits_for_the_calls_under_way_and_ends_what_they_left_running() -> None:
    order: list[str] = []
    begun, release = threading.Event(), threading.Event()

    async def left() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            order.append("left ended")

    async def work() -> None:
        tasks.append(asyncio.create_task(left()))
        begun.set()
        await asyncio.to_thread(release.wait)
        order.append("work")

    async def closing() -> None:
        order.append("closed")

    tasks: list[asyncio.Task[None]] = []
    loop = LoopThread(closing, name="test")
    call = loop.submit(work())
    assert begun.wait(5)
    loop.stop()
    with pytest.raises(RuntimeError, match="closed"):
        loop.submit(running_loop())
    release.set()
    loop.close()
    assert call.done()
    assert tasks[0].cancelled()
    assert order == ["work", "closed", "left ended"]


def test_closing_happens_once_used_or_not() -> None:
    for uses in (0, 2):
        closing = Closing()
        loop = LoopThread(closing, name="test")
        for _ in range(uses):
            loop.submit(running_loop()).result()
        for _ in range(3):
            loop.close()
        assert len(closing.loops) == 1
    closing = Closing()
    loop = LoopThread(closing, name="test")
    loop.stop()
    loop.close()
    assert closing.loops == []  # nothing was opened, and nobody waits


def test_what_closing_raises_is_raised_where_somebody_waits_for_it() -> None:
    loop = LoopThread(Closing(OSError("disk")), name="test")
    loop.submit(running_loop()).result()
    with pytest.raises(OSError, match="disk"):
        loop.close()


def test_a_cancelled_call_cancels_its_work() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    loop = LoopThread(Closing(), name="test")
    call = loop.submit(work())
    assert begun.wait(5)
    assert call.cancel()
    assert ended.wait(5)
    with pytest.raises(CancelledError):
        call.result()
    loop.close()


def test_what_swallows_its_cancellation_is_left_behind_aloud() -> None:
    release = threading.Event()

    async def work() -> None:
        await asyncio.to_thread(release.wait)

    loop = LoopThread(Closing(), name="stubborn")
    loop.submit(work())
    with capture_logs() as lines:
        loop.close(timeout_seconds=0.01)
    assert [(line["event"], line["thread"]) for line in lines] == [("loop.left_behind", "stubborn")]
    release.set()
    loop.close()


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(RuntimeError) as caught:
        call()
    return str(caught.value)


def test_a_call_that_would_wait_for_itself_is_refused() -> None:
    loop = LoopThread(Closing(), name="test")

    async def work() -> str:
        return refused(lambda: loop.submit(running_loop()))

    assert "from the event loop" in loop.submit(work()).result()
    loop.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused_and_does_not_wait_for_ever() -> None:
    loop = LoopThread(Closing(), name="test")
    loop.submit(running_loop()).result()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            loop.submit(running_loop())
        except RuntimeError as error:
            loop.close()
            code = 0 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loop.submit(running_loop()).result().is_running()
    loop.close()
