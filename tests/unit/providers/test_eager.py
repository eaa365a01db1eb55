from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any, cast

import pytest

from worker.providers.eager import EagerStarter

VARIABLE: ContextVar[str] = ContextVar("variable", default="unset")


async def _task_of(starter: EagerStarter[Any], coroutine: Any) -> asyncio.Task[Any]:
    started: Any = starter.start(coroutine)
    assert isinstance(started, asyncio.Task)
    return cast("asyncio.Task[Any]", started)


async def test_a_coroutine_that_never_waits_gives_its_result_at_once() -> None:
    async def answer() -> int:
        return 42

    assert EagerStarter[int]().start(answer()) == 42


async def test_one_that_waits_goes_on_in_a_task() -> None:
    gate = asyncio.Event()
    steps: list[str] = []

    async def answer() -> str:
        steps.append("first")
        await gate.wait()
        steps.append("second")
        await asyncio.sleep(0)
        return "done"

    task = await _task_of(EagerStarter[str](), answer())
    assert steps == ["first"]
    gate.set()
    assert await task == "done"
    assert steps == ["first", "second"]


async def test_what_is_raised_before_the_first_wait_is_raised_by_start() -> None:
    async def fail() -> int:
        raise LookupError

    starter = EagerStarter[int]()
    with pytest.raises(LookupError):
        starter.start(fail())
    current = asyncio.current_task()
    assert current is not None
    assert await asyncio.wait_for(asyncio.sleep(0, "still works"), 5) == "still works"


async def test_what_is_raised_later_is_raised_by_the_task() -> None:
    async def fail() -> int:
        await asyncio.sleep(0)
        raise LookupError

    with pytest.raises(LookupError):
        await (await _task_of(EagerStarter[int](), fail()))


async def test_the_first_step_and_the_later_ones_see_the_same_task_and_not_the_owner() -> None:
    async def look() -> tuple[Any, Any]:
        before = asyncio.current_task()
        await asyncio.sleep(0)
        return before, asyncio.current_task()

    starter = EagerStarter[Any]()
    first, second = await _task_of(starter, look()), await _task_of(starter, look())
    assert await first == (first, first)
    assert await second == (second, second)
    assert asyncio.current_task() not in {first, second}


async def test_a_timeout_opened_in_the_first_step_ends_the_source_and_not_the_owner() -> None:
    async def slow() -> str:
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed out"
        return "ended"

    assert await (await _task_of(EagerStarter[str](), slow())) == "timed out"
    current = asyncio.current_task()
    assert current is not None
    assert not current.cancelling()


async def test_a_task_group_opened_in_the_first_step_works() -> None:
    async def child(value: int) -> int:
        await asyncio.sleep(0)
        return value

    async def parent() -> int:
        async with asyncio.TaskGroup() as group:
            children = [group.create_task(child(n)) for n in (1, 2)]
        return sum(task.result() for task in children)

    assert await (await _task_of(EagerStarter[int](), parent())) == 3


async def test_context_variables_of_a_source_are_its_own() -> None:
    seen: list[str] = []

    async def change(value: str, *, waits: bool) -> str:
        seen.append(VARIABLE.get())
        VARIABLE.set(value)
        if waits:
            await asyncio.sleep(0)
        return VARIABLE.get()

    VARIABLE.set("owner")
    starter = EagerStarter[str]()
    assert starter.start(change("a", waits=False)) == "a"
    first = await _task_of(starter, change("b", waits=True))
    second = await _task_of(starter, change("c", waits=True))
    assert [await first, await second] == ["b", "c"]
    assert seen == ["owner", "owner", "owner"]
    assert VARIABLE.get() == "owner"


async def test_cancelling_the_task_reaches_the_source_where_it_waits() -> None:
    seen: list[str] = []
    gate = asyncio.Event()

    async def wait() -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = await _task_of(EagerStarter[None](), wait())
    task.cancel()  # before the task has taken a step of its own
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_a_source_that_cancels_itself_does_not_cancel_the_next_one() -> None:
    async def cancel_myself() -> str:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        return "cancelled myself"

    async def wait() -> str:
        await asyncio.sleep(0)
        return "undisturbed"

    starter = EagerStarter[str]()
    assert starter.start(cancel_myself()) == "cancelled myself"
    assert await (await _task_of(starter, wait())) == "undisturbed"


async def test_the_spare_task_ends_by_itself() -> None:
    async def answer() -> int:
        return 1

    before = asyncio.all_tasks()
    starter = EagerStarter[int]()
    assert [starter.start(answer()) for _ in range(5)] == [1] * 5
    assert len(asyncio.all_tasks() - before) == 1
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_starters_of_one_turn_of_the_loop_share_the_spare_task_and_wait_in_tasks_of_their_own() -> None:
    async def answer() -> Any:
        return asyncio.current_task()

    async def wait() -> Any:
        await asyncio.sleep(0)
        return asyncio.current_task()

    first, second = EagerStarter[Any](), EagerStarter[Any]()
    assert first.start(answer()) is second.start(answer())
    waiting = [await _task_of(starter, wait()) for starter in (first, second, first)]
    assert len(set(waiting)) == 3
    assert [await task for task in waiting] == waiting


def test_the_spare_task_of_an_event_loop_that_has_ended_is_not_used_by_the_next() -> None:
    async def answer() -> Any:
        return asyncio.current_task()

    async def start() -> Any:
        return EagerStarter[Any]().start(answer())

    loops = asyncio.new_event_loop(), asyncio.new_event_loop()
    used = [loop.run_until_complete(start()) for loop in loops]
    assert [task.get_loop() for task in used] == list(loops)
    for loop in loops:
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def test_a_thread_can_be_waited_for() -> None:
    async def off_loop() -> int:
        return await asyncio.to_thread(lambda: 7)

    assert await (await _task_of(EagerStarter[int](), off_loop())) == 7


def test_outside_a_task_it_says_so() -> None:
    loop = asyncio.new_event_loop()
    raised: list[BaseException] = []

    def make() -> None:
        try:
            EagerStarter[int]()
        except RuntimeError as error:
            raised.append(error)

    loop.call_soon(make)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert [str(error) for error in raised] == ["coroutines are started from within a task"]
