from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.kafka.admission import Slots


def test_each_topic_has_slots_of_its_own():
    slots = Slots({"a": 1, "b": 2})
    assert [slots.try_take("a"), slots.try_take("a")] == [True, False]
    assert [slots.try_take("b"), slots.try_take("b"), slots.try_take("b")] == [True, True, False]
    assert slots.total == 3


def test_a_topic_without_a_limit_is_refused():
    with pytest.raises(KeyError):
        Slots({"a": 1}).try_take("b")


def test_exclusive_waits_for_all_that_is_in_work_and_then_lets_in_one():
    slots = Slots({"a": 2, "b": 2})
    slots.try_take("a")
    slots.is_exclusive = True
    assert not slots.try_take("b")
    slots.release("a")
    assert slots.try_take("b")
    assert not slots.try_take("a")
    slots.is_exclusive = False
    assert slots.try_take("a")


@pytest.mark.parametrize("wake", ["release", "notify", "exclusive"])
async def test_whoever_waits_looks_again_after_any_change(wake: str):
    slots = Slots({"a": 1})
    slots.try_take("a")
    waiting = [asyncio.create_task(slots.changed()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    if wake == "release":
        slots.release("a")
    elif wake == "notify":
        slots.notify()
    else:
        slots.is_exclusive = True
    await asyncio.wait_for(asyncio.gather(*waiting), 1)


async def test_a_waiter_that_was_cancelled_harms_no_other():
    slots = Slots({"a": 1})
    cancelled, waiting = (asyncio.create_task(slots.changed()) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.sleep(0)
    slots.notify()
    await asyncio.wait_for(waiting, 1)


@settings(max_examples=100)
@given(st.lists(st.sampled_from(["take a", "take b", "release", "exclusive", "shared"]), max_size=60))
def test_no_order_of_events_lets_in_more_than_is_allowed(events: list[str]):
    slots = Slots({"a": 2, "b": 3})
    held: list[str] = []
    for event in events:
        if event.startswith("take"):
            topic = event[-1]
            free = not held if slots.is_exclusive else held.count(topic) < {"a": 2, "b": 3}[topic]
            assert slots.try_take(topic) is free
            if free:
                held.append(topic)
        elif event == "release" and held:
            slots.release(held.pop())
        elif event in ("exclusive", "shared"):
            slots.is_exclusive = event == "exclusive"
        assert slots.total == len(held)
