"""A crash at each point, and what the next attempts make of it: one distinct outcome, nothing missing."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.handling import FIELDS, Bench, open_store, record
from worker.errors import StoreUnavailable
from worker.kafka.records import InboundRecord
from worker.ports import OutcomeKey, OutcomeRecord, Tombstone

BUNDLES, USAGE, DEAD = "context.bundles", "context.usage", "context.dead-letters"
BUNDLE_STEPS = ("get", "assemble", "put", f"publish {BUNDLES}", f"publish {USAGE}", "append")
POISON_STEPS = ("get", "put", f"publish {DEAD}", f"publish {BUNDLES}", f"publish {USAGE}", "append")
POISON = record({**FIELDS, "deadline_ms": "soon"})


class Killed(asyncio.CancelledError):
    """The process ends here: like a cancellation, it must not be turned into an outcome."""


@dataclass(slots=True)
class Crash:
    """Raises at the given steps, each one once, in this order."""

    steps: list[str] = field(default_factory=list[str])
    error: type[BaseException] = Killed

    def __call__(self, name: str) -> None:
        if self.steps and name == self.steps[0]:
            self.steps.pop(0)
            raise self.error("crash") if self.error is not StoreUnavailable else StoreUnavailable("sqlite")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Bench]:
    store = open_store(tmp_path / "outcomes.db")
    yield Bench(store=store)
    await store.close()


async def redeliver(bench: Bench, item: InboundRecord, crash: Crash) -> int:
    """Deliver as Kafka does, until an attempt ends; how often it was delivered."""
    bench.step = crash
    for attempt in itertools.count(1):
        try:
            await bench.handler().handle(item)
        except (Killed, StoreUnavailable):
            continue
        return attempt
    raise AssertionError


def distinct(bench: Bench, topic: str) -> set[tuple[bytes | None, bytes]]:
    return {(item.key, item.value) for item in bench.on(topic)}


def assert_one_outcome(bench: Bench, *, is_poison: bool) -> None:
    assert len(distinct(bench, BUNDLES)) == 1
    assert len(distinct(bench, USAGE)) == 1
    letters = {(item.key, item.value, item.headers) for item in bench.on(DEAD)}
    assert len(letters) == int(is_poison)
    topics = [item.topic for item in bench.published]
    assert topics.index(BUNDLES) < topics.index(USAGE)
    if is_poison:
        assert topics.index(DEAD) < topics.index(BUNDLES)
    # The last attempt published everything, so whoever starts to read at the redelivery misses nothing.
    assert topics[-2:] == [BUNDLES, USAGE]
    assert len(bench.lines) <= 1


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", BUNDLE_STEPS)
async def test_a_crash_anywhere_leaves_one_outcome_of_a_bundle(bench: Bench, step: str, when: str) -> None:
    assert await redeliver(bench, record(), Crash([f"{when} {step}"])) == 2
    assert_one_outcome(bench, is_poison=False)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", POISON_STEPS)
async def test_a_crash_anywhere_leaves_one_outcome_of_poison(bench: Bench, step: str, when: str) -> None:
    assert await redeliver(bench, POISON, Crash([f"{when} {step}"])) == 2
    assert_one_outcome(bench, is_poison=True)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [f"publish {DEAD}", f"publish {BUNDLES}", f"publish {USAGE}", "append"])
async def test_a_crash_anywhere_leaves_one_outcome_of_a_defect_with_its_traceback(
    bench: Bench, step: str, when: str
) -> None:
    bench.assemble_error = RuntimeError("broken")
    bench.step = Crash([f"{when} {step}"])
    with pytest.raises(Killed):
        await bench.handler().handle(record())
    bench.assemble_error = None
    await bench.handler().handle(record())
    assert_one_outcome(bench, is_poison=True)
    assert b"broken" in dict(bench.on(DEAD)[0].headers)["context-dead-traceback"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [f"publish {DEAD}", f"publish {BUNDLES}"])
async def test_a_crash_leaves_one_reply_where_there_is_no_outcome(bench: Bench, step: str, when: str) -> None:
    assert await redeliver(bench, record(b"\xff"), Crash([f"{when} {step}"])) == 2
    assert len(distinct(bench, BUNDLES)) == 1
    assert len({item.headers for item in bench.on(DEAD)}) == 1
    assert not bench.on(USAGE)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["get", "put"])
async def test_a_store_that_goes_away_in_the_middle_makes_it_late_and_not_double(
    bench: Bench, step: str, when: str
) -> None:
    assert await redeliver(bench, record(), Crash([f"{when} {step}"], error=StoreUnavailable)) == 2
    assert_one_outcome(bench, is_poison=False)
    assert len(bench.on(BUNDLES)) == 1


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["put", f"publish {DEAD}", f"publish {BUNDLES}", f"publish {USAGE}"])
async def test_a_crash_while_burying_leaves_one_outcome(bench: Bench, step: str, when: str) -> None:
    bench.step = Crash([f"{when} {step}"])
    with pytest.raises(Killed):
        await bench.handler().bury(record(), attempts=3)
    await bench.handler().bury(record(), attempts=3)
    assert_one_outcome(bench, is_poison=True)


async def test_a_zombie_that_wakes_up_publishes_what_the_other_worker_stored(bench: Bench) -> None:
    asleep, woken = asyncio.Event(), asyncio.Event()

    class Zombie(Bench):
        async def put_if_absent(self, key: OutcomeKey, record: OutcomeRecord) -> OutcomeRecord | Tombstone:
            asleep.set()
            await woken.wait()
            return await bench.put_if_absent(key, record)

    zombie = Zombie(store=bench.store, published=bench.published, lines=bench.lines, assembled=10)
    late = asyncio.create_task(zombie.handler().handle(record()))
    await asleep.wait()
    await bench.handler().handle(record())
    woken.set()
    await late
    assert_one_outcome(bench, is_poison=False)
    assert len(bench.on(BUNDLES)) == 2
    assert b"attempt 1" in bench.on(BUNDLES)[1].value
    assert len(bench.lines) == 1


crashes = st.lists(
    st.tuples(st.sampled_from(["before", "after"]), st.sampled_from(BUNDLE_STEPS)).map(" ".join), max_size=5
)


@given(crashes, crashes)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_run_of_crashes_on_two_workers_leaves_one_outcome(
    tmp_path_factory: pytest.TempPathFactory, one: list[str], other: list[str]
) -> None:
    store = open_store(tmp_path_factory.mktemp("crash") / "outcomes.db")
    bench = Bench(store=store)
    twin = Bench(store=store, published=bench.published, lines=bench.lines, assembled=100)
    await asyncio.gather(
        redeliver(bench, record(), Crash(list(one))), redeliver(twin, record(), Crash(list(other)))
    )
    await store.close()
    assert len(distinct(bench, BUNDLES)) == 1
    assert len(distinct(bench, USAGE)) == 1
    assert len(bench.on(BUNDLES)) >= 2
    assert len(bench.lines) <= 1
