"""Turns of threads that compute."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from worker.providers.threads import SourceThreads
from worker.turns import Turns

LONG_SECONDS = 60


def test_no_more_compute_at_once_than_there_are_turns_and_all_of_them_do() -> None:
    turns, changed = Turns(at_once=2, patience_seconds=LONG_SECONDS), threading.Condition()
    running: list[int] = []
    most = 0

    def work(number: int) -> int:
        nonlocal most
        with changed:
            running.append(number)
            most = max(most, len(running))
            # Two come together, or this would wait in vain: turns are given out side by side.
            changed.notify_all()
            changed.wait_for(lambda: most == 2, timeout=LONG_SECONDS)
        with changed:
            running.remove(number)
        return number

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(partial(turns.run, work), range(40))] == [*range(40)]
    assert most == 2


def test_what_never_gives_its_turn_back_holds_others_up_for_their_patience_only() -> None:
    turns, is_over = Turns(at_once=1, patience_seconds=0.01), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(turns.run, is_over.wait, LONG_SECONDS)
        assert [turns.run(int, "7") for _ in range(3)] == [7] * 3
        assert not stuck.done()
        is_over.set()
        assert stuck.result()


def test_a_turn_is_given_back_by_work_that_fails_too() -> None:
    turns = Turns(at_once=1, patience_seconds=LONG_SECONDS)
    for _ in range(3):
        with pytest.raises(ValueError, match="invalid literal"):
            turns.run(int, "seven")


async def test_sources_that_compute_wait_for_their_turn_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = Turns(at_once=1, patience_seconds=LONG_SECONDS)
    monkeypatch.setattr("worker.providers.threads.TURNS", turns)
    threads, begun, is_over = SourceThreads(), threading.Event(), threading.Event()

    def hold() -> bool:
        begun.set()
        return is_over.wait(LONG_SECONDS)

    holder = asyncio.create_task(threads.compute(hold))
    await asyncio.to_thread(begun.wait, LONG_SECONDS)
    waiter = asyncio.create_task(threads.compute(is_over.is_set))
    assert not await threads.run(is_over.is_set)
    assert not waiter.done()
    is_over.set()
    assert await asyncio.gather(holder, waiter) == [True, True]
