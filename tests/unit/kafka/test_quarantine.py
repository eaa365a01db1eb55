from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.dispatching import MemoryLedger
from worker.errors import StoreUnavailable
from worker.kafka.quarantine import Quarantine, must_be_buried
from worker.ports import RecordRef

POSITION = ("group", "requests", 3)


def at(offset: int, *, partition: int = 3, scope: str = "cluster") -> RecordRef:
    return RecordRef(scope=scope, topic="requests", partition=partition, offset=offset)


def life(
    ledger: MemoryLedger, *, span: int = 1_000, clock: Callable[[], float] = lambda: 0.0
) -> tuple[Quarantine, list[bool]]:
    """A new process on the same ledger, and what it was told about its quarantine."""
    changes: list[bool] = []
    quarantine = Quarantine(
        ledger, span=span, on_change=lambda: changes.append(quarantine.is_active), clock=clock
    )
    return quarantine, changes


async def third_life(*, end_offset: int = 9, span: int = 1_000) -> tuple[Quarantine, list[bool]]:
    """A process in quarantine, from offset 7 on."""
    ledger = MemoryLedger(starts={("group", at(0)): 2})
    quarantine, changes = life(ledger, span=span)
    await quarantine.started("group", at(7), end_offset=end_offset)
    return quarantine, changes


async def test_the_third_life_that_begins_before_the_backlog_was_caught_up_with_is_a_quarantine():
    ledger = MemoryLedger()
    active: list[bool] = []
    for _ in range(4):
        quarantine, _ = life(ledger)
        await quarantine.started("group", at(7), end_offset=9)
        active.append(quarantine.is_active)
    assert active == [False, False, True, True]


async def test_a_commit_that_only_moves_does_not_begin_the_count_anew():
    ledger = MemoryLedger()
    active: list[bool] = []
    for offset in range(3):
        quarantine, _ = life(ledger)
        await quarantine.started("group", at(offset), end_offset=100)
        await quarantine.note(POSITION, scope="cluster", committed=offset + 1)
        active.append(quarantine.is_active)
    assert active == [False, False, True]


async def test_lives_that_began_with_nothing_to_do_never_add_up():
    ledger = MemoryLedger()
    for _ in range(9):
        quarantine, _ = life(ledger)
        await quarantine.started("group", at(9), end_offset=9)
        assert not quarantine.is_active


async def test_lives_that_caught_up_never_add_up():
    ledger = MemoryLedger()
    for _ in range(9):
        quarantine, _ = life(ledger)
        await quarantine.started("group", at(7), end_offset=9)
        assert not quarantine.is_active
        await quarantine.note(POSITION, scope="cluster", committed=9)


@pytest.mark.parametrize(
    "other",
    [
        ("another", at(7)),
        ("group", at(7, partition=4)),
        ("group", at(7, scope="another cluster")),
    ],
)
async def test_another_group_partition_or_cluster_has_counts_of_its_own(other: tuple[str, RecordRef]):
    ledger = MemoryLedger()
    for _ in range(2):
        await life(ledger)[0].started("group", at(7), end_offset=9)
    quarantine, _ = life(ledger)
    await quarantine.started(*other, end_offset=9)
    assert not quarantine.is_active


async def test_a_partition_that_was_left_in_order_starts_from_zero():
    ledger = MemoryLedger()
    for _ in range(2):
        await life(ledger)[0].started("group", at(7), end_offset=9)
    orderly, _ = life(ledger)
    await orderly.clear(POSITION, scope="cluster")
    assert ledger.starts == {}


async def test_it_ends_when_the_commit_passes_the_end_that_was_seen_at_the_start():
    quarantine, changes = await third_life(end_offset=9)
    await quarantine.note(POSITION, scope="cluster", committed=8)
    assert quarantine.is_active
    await quarantine.note(POSITION, scope="cluster", committed=9)
    assert changes == [True, False]


async def test_it_ends_sooner_where_no_earlier_life_can_have_begun_more():
    quarantine, changes = await third_life(end_offset=1_000_000, span=50)
    await quarantine.note(POSITION, scope="cluster", committed=106)
    assert quarantine.is_active
    await quarantine.note(POSITION, scope="cluster", committed=107)
    assert changes == [True, False]


async def test_a_death_behind_the_early_end_leads_straight_back_into_it():
    ledger = MemoryLedger(starts={("group", at(0)): 2})
    quarantine, _ = life(ledger, span=50)
    await quarantine.started("group", at(7), end_offset=1_000_000)
    await quarantine.note(POSITION, scope="cluster", committed=107)
    assert not quarantine.is_active
    quarantine, _ = life(ledger, span=50)
    await quarantine.started("group", at(107), end_offset=1_000_000)
    assert quarantine.is_active


async def test_it_lasts_until_the_last_of_several_partitions_is_released():
    ledger = MemoryLedger(starts={("group", at(0, partition=n)): 2 for n in (3, 4)})
    quarantine, changes = life(ledger)
    for number in (3, 4):
        await quarantine.started("group", at(7, partition=number), end_offset=9)
    quarantine.forget(POSITION)
    assert changes == [True]
    await quarantine.note(("group", "requests", 4), scope="cluster", committed=9)
    assert changes == [True, False]
    quarantine.forget(("group", "requests", 4))
    assert changes == [True, False]


class Died(BaseException):
    """The process is gone."""


async def play(ledger: MemoryLedger, *, commit: int, end: int, killer: int, at_once: int) -> int:
    """One life on partition 3 until it dies of the killer or has caught up; the commit that it leaves."""
    quarantine, _ = life(ledger, span=5)
    await quarantine.started("group", at(commit), end_offset=end)
    while commit < end:
        if quarantine.is_active:
            window = [commit]
            earlier = await quarantine.begin(at(commit))
            if commit == killer and not must_be_buried(earlier_attempts=earlier):
                raise Died(commit)
            await quarantine.end(at(commit))
        else:
            window = list(range(commit, min(end, commit + at_once)))
            if killer in window:
                raise Died(commit)
        commit = window[-1] + 1
        await quarantine.note(POSITION, scope="cluster", committed=commit)
    return commit


@settings(max_examples=200)
@given(
    first_commit=st.integers(0, 5),
    before=st.integers(0, 20),
    behind=st.integers(0, 20),
    at_once=st.integers(1, 5),
    arrives_late=st.booleans(),
)
def test_a_record_costs_at_most_five_deaths_wherever_it_lies(
    first_commit: int,
    before: int,
    behind: int,
    at_once: int,
    arrives_late: bool,  # noqa: FBT001
):
    async def lives() -> int:
        ledger = MemoryLedger()
        commit, killer = first_commit, first_commit + before
        if arrives_late:  # the partition was caught up with when the record came
            await life(ledger)[0].started("group", at(commit), end_offset=commit)
            deaths = 1
        else:
            deaths = 0
        while True:
            try:
                await play(ledger, commit=commit, end=killer + 1 + behind, killer=killer, at_once=at_once)
            except Died as death:
                commit = death.args[0]
                deaths += 1
                assert deaths <= 5
            else:
                return deaths

    assert asyncio.run(lives()) == 5


async def test_a_record_that_ended_is_not_held_responsible_for_later_deaths():
    ledger = MemoryLedger()
    quarantine, _ = life(ledger)
    for _ in range(9):
        assert await quarantine.begin(at(7)) == 0
        await quarantine.end(at(7))


async def test_a_partition_that_comes_back_to_the_process_that_cut_it_off_is_no_further_life():
    ledger = MemoryLedger()
    quarantine, _ = life(ledger)
    for _ in range(9):
        await quarantine.started("group", at(7), end_offset=9)
        quarantine.cut_off(at(7), group="group")
    assert not quarantine.is_active
    assert ledger.starts == {("group", at(0)): 1}


@pytest.mark.parametrize(("seconds", "left"), [(9.9, 2), (10.0, 1)])
async def test_a_cut_off_is_taken_back_when_it_was_outlived_and_the_deaths_before_it_are_not(
    seconds: float, left: int
):
    ledger = MemoryLedger(starts={("group", at(0)): 1}, attempts={at(8): 1})
    now = 100.0
    quarantine, _ = life(ledger, clock=lambda: now)
    await quarantine.started("group", at(7), end_offset=9)
    assert await quarantine.begin(at(8)) == 1
    quarantine.cut_off(at(7), group="group")
    quarantine.cut_off(at(8))
    now += seconds
    for _ in range(3):
        await quarantine.take_back()
    assert (ledger.starts, ledger.attempts) == ({("group", at(0)): left}, {at(8): left})


async def test_a_process_that_dies_of_what_it_has_cut_off_is_a_death():
    """As of a thread that goes on: three of them, and the next life is in quarantine, or buries."""
    ledger = MemoryLedger()
    for _ in range(2):
        quarantine, _ = life(ledger)
        await quarantine.started("group", at(7), end_offset=9)
        quarantine.cut_off(at(7), group="group")
        await quarantine.take_back()
    quarantine, _ = life(ledger)
    await quarantine.started("group", at(7), end_offset=9)
    assert quarantine.is_active
    for _ in range(3):
        quarantine, _ = life(ledger)
        await quarantine.begin(at(8))
        quarantine.cut_off(at(8))
        await quarantine.take_back()
    assert must_be_buried(earlier_attempts=ledger.attempts[at(8)])


async def test_without_the_ledger_a_cut_off_is_taken_back_at_a_later_call():
    ledger = MemoryLedger()
    quarantine, _ = life(ledger)
    await quarantine.started("group", at(7), end_offset=9)
    quarantine.cut_off(at(7), group="group")
    ledger.is_away = True
    await quarantine.take_back(at_once=True)
    ledger.is_away = False
    assert ledger.starts == {("group", at(0)): 1}
    await quarantine.take_back(at_once=True)
    assert ledger.starts == {}


async def test_without_the_ledger_a_start_decides_nothing_and_leaving_goes_on():
    ledger = MemoryLedger()
    ledger.is_away = True
    quarantine, changes = life(ledger)
    with pytest.raises(StoreUnavailable):
        await quarantine.started("group", at(7), end_offset=9)
    await quarantine.clear(POSITION, scope="cluster")
    assert changes == []


async def test_without_the_ledger_the_count_begins_anew_at_a_later_note():
    ledger = MemoryLedger(starts={("group", at(0)): 1})
    quarantine, _ = life(ledger)
    await quarantine.started("group", at(7), end_offset=9)
    ledger.is_away = True
    await quarantine.note(POSITION, scope="cluster", committed=9)
    ledger.is_away = False
    assert ledger.starts == {("group", at(0)): 2}
    await quarantine.note(POSITION, scope="cluster", committed=9)
    assert ledger.starts == {("group", at(0)): 1}
