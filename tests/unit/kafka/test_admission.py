from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.kafka.admission import Slots, project_of

LIMITS = {"a": 3, "b": 2}
SHARES = {"a": 2}


@dataclass
class Floor:
    """Asks for records by name, and notes which are in work."""

    slots: Slots
    begun: list[str] = field(default_factory=list[str])
    unwanted: set[str] = field(default_factory=set[str])

    def ask(self, topic: str, project: str, name: str) -> None:
        def start() -> bool:
            if name in self.unwanted:
                return False
            self.begun.append(name)
            return True

        self.slots.ask(topic, project.encode(), start)

    def open(self) -> None:
        self.slots.is_exclusive = False

    def release(self, topic: str, project: str) -> None:
        self.slots.release(topic, project.encode())


@pytest.mark.parametrize(
    ("key", "project"),
    [
        (b"shop", b"shop"),
        (b"shop#t-1", b"shop"),
        (b"shop#a#b", b"shop"),
        (b"", b""),
        (None, b""),
        (b"#t", b""),
    ],
)
def test_a_project_is_known_by_the_key_also_where_it_names_a_thread(key: bytes | None, project: bytes):
    assert project_of(key) == project


def test_a_topic_without_a_limit_is_refused():
    with pytest.raises(KeyError):
        Floor(Slots({"a": 1})).ask("b", "p", "r")


def test_a_flood_is_held_to_its_share_and_others_begin_at_once():
    floor = Floor(Slots({"a": 4}, shares={"a": 2}))
    for number in range(100):
        floor.ask("a", "flood", f"f{number}")
    floor.ask("a", "other", "o")
    assert floor.begun == ["f0", "f1", "o"]
    floor.release("a", "flood")
    assert floor.begun == ["f0", "f1", "o", "f2"]


def test_where_the_topic_is_full_projects_take_turns():
    floor = Floor(Slots({"a": 1}, shares={"a": 1}))
    for name in ("x1", "x2", "x3", "y1", "y2", "z1"):
        floor.ask("a", name[0], name)
    for name in ("x", "y", "z", "x", "y"):
        floor.release("a", name)
    assert floor.begun == ["x1", "y1", "z1", "x2", "y2", "x3"]


def test_a_topic_without_a_share_is_served_in_the_order_in_which_records_come():
    floor = Floor(Slots({"a": 1}))
    for name in ("x1", "x2", "y1", "x3"):
        floor.ask("a", name[0], name)
    for name in ("x", "x", "y"):
        floor.release("a", name)
    assert floor.begun == ["x1", "x2", "y1", "x3"]


def test_in_exclusive_the_topics_take_turns_too():
    floor = Floor(Slots({"a": 4, "b": 4}))
    floor.slots.is_exclusive = True
    for name in ("a1", "a2", "a3", "b1", "b2"):
        floor.ask(name[0], "p", name)
    for topic in ("a", "b", "a", "b"):
        floor.release(topic, "p")
    assert floor.begun == ["a1", "b1", "a2", "b2", "a3"]


def test_what_nobody_wants_any_more_takes_no_slot():
    floor = Floor(Slots({"a": 1}))
    for name in ("1", "2", "3"):
        floor.ask("a", "p", name)
    floor.unwanted = {"2"}
    floor.release("a", "p")
    assert floor.begun == ["1", "3"]
    assert floor.slots.total == 1


async def test_in_exclusive_who_steps_aside_lets_other_topics_work_and_comes_back_before_who_has_not_begun():
    floor = Floor(Slots({"a": 2, "b": 4}))
    floor.slots.is_exclusive = True
    for name in ("a1", "a2", "b1", "b2", "b3"):
        floor.ask(name[0], "p", name)
    async with floor.slots.aside("a"):
        assert floor.begun == ["a1", "b1"]
        floor.release("b", "p")
        assert floor.begun == ["a1", "b1", "b2"]
        asyncio.get_running_loop().call_soon(floor.release, "b", "p")
    assert (floor.begun, floor.slots.total) == (["a1", "b1", "b2"], 1)
    floor.release("a", "p")
    assert floor.begun[-1] == "b3"


async def test_who_waits_to_come_back_does_when_exclusive_ends():
    floor = Floor(Slots({"a": 1, "b": 1}))
    floor.slots.is_exclusive = True
    for name in ("a1", "b1"):
        floor.ask(name[0], "p", name)
    async with floor.slots.aside("a"):
        asyncio.get_running_loop().call_soon(floor.open)
    assert (floor.begun, floor.slots.total, floor.slots.aside_of("a")) == (["a1", "b1"], 2, 0)


STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "aside", "back", "end", "cut off", "exclusive"]), st.integers(0, 9)),
    max_size=60,
)


@settings(max_examples=60)
@given(STEPS)
def test_whoever_steps_aside_and_however_it_ends_one_works_at_once_and_nobody_is_forgotten(
    steps: list[tuple[str, int]],
):
    asyncio.run(play(steps))


async def play(steps: list[tuple[str, int]]) -> None:
    slots = Slots({"a": 1, "b": 3})
    house: list[Guest] = []
    asked = 0

    def arrive(topic: str) -> bool:
        guest = Guest(topic)
        guest.task = asyncio.create_task(guest.stay(slots))
        guest.task.add_done_callback(lambda _: slots.release(topic, b""))
        house.append(guest)
        return True

    for kind, number in steps:
        topic = "ab"[number % 2]
        guests = [one for one in house if not one.task.done()]
        one = guests[number % len(guests)] if guests else None
        if kind == "ask":
            asked += 1
            slots.ask(topic, b"", partial(arrive, topic))
        elif kind == "exclusive":
            slots.is_exclusive = number % 2 == 0
        elif one is not None and kind == "cut off":
            one.task.cancel()
        elif one is not None:
            one.orders.put_nowait(kind)
        was_alone = sum(one.is_working for one in house) <= 1
        for _ in range(6):
            await asyncio.sleep(0)
        working = sum(one.is_working for one in house)
        assert not slots.is_exclusive or not was_alone or working <= 1
        assert slots.total == sum(not one.task.done() for one in house)
        assert slots.total - slots.aside_of("a") - slots.aside_of("b") == working
        if slots.is_exclusive and not working:
            assert not any(one.wants_back for one in house)
    slots.is_exclusive = False
    while len(house) < asked or not all(one.task.done() for one in house):
        for one in house:
            for order in ("back", "end"):
                one.orders.put_nowait(order)
        await asyncio.sleep(0)
    await asyncio.gather(*(one.task for one in house), return_exceptions=True)
    assert (slots.total, slots.aside_of("a"), slots.aside_of("b")) == (0, 0, 0)


class Guest:
    """A record that has begun: works, steps aside and comes back as it is told."""

    task: asyncio.Task[None]

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.orders: asyncio.Queue[str] = asyncio.Queue()
        self.is_working = True
        self.wants_back = False

    async def stay(self, slots: Slots) -> None:
        try:
            while (order := await self.orders.get()) != "end":
                if order == "aside":
                    async with slots.aside(self.topic):
                        self.is_working = False
                        while await self.orders.get() != "back":
                            pass
                        self.wants_back = True
                    self.is_working, self.wants_back = True, False
        finally:
            self.is_working = self.wants_back = False


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("ab"), st.sampled_from("xyz")),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.sampled_from([("exclusive", True), ("exclusive", False)]),
    ),
    max_size=80,
)


@settings(max_examples=150)
@given(EVENTS)
def test_whatever_happens_limits_hold_none_waits_without_cause_and_none_is_passed_by_twice(
    events: list[tuple[str, str | int | bool]],
):
    floor = Floor(Slots(LIMITS, shares=SHARES))
    waiting: list[tuple[str, str, str]] = []
    working: list[tuple[str, str]] = []
    passed: dict[str, list[str]] = {}
    for number, (kind, what) in enumerate(events):
        already = len(floor.begun)
        if kind == "release":
            if working:
                floor.release(*working.pop(int(what) % len(working)))
        elif kind == "exclusive":
            floor.slots.is_exclusive = bool(what)
        else:
            # Topic b has no share: all its records are as of one project.
            waiting.append((kind, str(what) if kind in SHARES else "", f"{kind}{what}{number}"))
            floor.ask(kind, str(what), waiting[-1][2])
        for name in floor.begun[already:]:
            (found,) = [one for one in waiting if one[2] == name]
            topic, project, _ = found
            assert found == next(one for one in waiting if one[:2] == found[:2]), "in order within a project"
            waiting.remove(found)
            working.append((topic, project))
            firsts = {one[1]: one[2] for one in reversed(waiting) if one[0] == topic and one[1] != project}
            for other, first in firsts.items():
                if working.count((topic, other)) < SHARES.get(topic, LIMITS[topic]):
                    assert project not in passed.setdefault(first, []), "passed by twice"
                    passed[first].append(project)
        assert floor.slots.total == len(working)
        for topic, limit in LIMITS.items():
            assert sum(one[0] == topic for one in working) <= limit
        for topic, project, _ in waiting:
            of_project = working.count((topic, project))
            assert of_project <= SHARES.get(topic, LIMITS[topic])
            is_full = sum(one[0] == topic for one in working) == LIMITS[topic]
            has_share = of_project < SHARES.get(topic, LIMITS[topic])
            assert is_full or not has_share or (floor.slots.is_exclusive and working)
