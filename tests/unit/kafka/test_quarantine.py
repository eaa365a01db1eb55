from __future__ import annotations

import pytest

from tests.support.dispatching import MemoryLedger
from worker.errors import StoreUnavailable
from worker.kafka.quarantine import Quarantine, must_be_buried
from worker.ports import RecordRef

POSITION = ("group", "requests", 3)


def at(offset: int, *, partition: int = 3, scope: str = "cluster") -> RecordRef:
    return RecordRef(scope=scope, topic="requests", partition=partition, offset=offset)


def life(ledger: MemoryLedger) -> tuple[Quarantine, list[bool]]:
    """A new process on the same ledger, and what it was told about its quarantine."""
    changes: list[bool] = []
    quarantine = Quarantine(ledger, on_change=lambda: changes.append(quarantine.is_active))
    return quarantine, changes


async def test_the_third_start_with_records_behind_the_same_commit_is_a_quarantine():
    ledger = MemoryLedger()
    active: list[bool] = []
    for _ in range(4):
        quarantine, _ = life(ledger)
        await quarantine.started("group", at(7), end_offset=9)
        active.append(quarantine.is_active)
    assert active == [False, False, True, True]


async def test_a_start_with_nothing_behind_the_commit_is_not_counted():
    ledger = MemoryLedger()
    for _ in range(9):
        quarantine, _ = life(ledger)
        await quarantine.started("group", at(9), end_offset=9)
        assert not quarantine.is_active
    assert not ledger.starts


async def test_a_moving_commit_is_progress_and_no_reason_for_quarantine():
    ledger = MemoryLedger()
    for offset in range(9):
        quarantine, _ = life(ledger)
        await quarantine.started("group", at(offset), end_offset=100)
        assert not quarantine.is_active


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
    quarantine, _ = life(ledger)
    await quarantine.started("group", at(7), end_offset=9)
    assert not quarantine.is_active


async def test_it_ends_when_the_commit_passes_the_end_that_was_seen_at_the_start():
    ledger = MemoryLedger(starts={("group", at(7)): 2})
    quarantine, changes = life(ledger)
    await quarantine.started("group", at(7), end_offset=9)
    quarantine.committed(POSITION, offset=8)
    assert quarantine.is_active
    quarantine.committed(POSITION, offset=9)
    assert changes == [True, False]


async def test_it_lasts_until_the_last_of_several_partitions_is_released():
    ledger = MemoryLedger(starts={("group", at(7, partition=n)): 2 for n in (3, 4)})
    quarantine, changes = life(ledger)
    for number in (3, 4):
        await quarantine.started("group", at(7, partition=number), end_offset=9)
    quarantine.release(POSITION)
    assert changes == [True]
    quarantine.committed(("group", "requests", 4), offset=9)
    assert changes == [True, False]
    quarantine.release(("group", "requests", 4))
    assert changes == [True, False]


async def test_a_record_costs_at_most_five_deaths():
    """Each turn is one life: two before quarantine, three in it, then the record is buried."""
    ledger = MemoryLedger()
    deaths = 0
    while True:
        quarantine, _ = life(ledger)
        await quarantine.started("group", at(7), end_offset=8)
        if quarantine.is_active and must_be_buried(earlier_attempts=await quarantine.begin(at(7))):
            break
        deaths += 1
        assert deaths < 20
    assert deaths == 5


async def test_a_record_that_ended_is_not_held_responsible_for_later_deaths():
    ledger = MemoryLedger()
    quarantine, _ = life(ledger)
    for _ in range(9):
        assert await quarantine.begin(at(7)) == 0
        await quarantine.end(at(7))


async def test_without_the_ledger_a_start_decides_nothing_and_leaving_goes_on():
    ledger = MemoryLedger()
    ledger.is_away = True
    quarantine, changes = life(ledger)
    with pytest.raises(StoreUnavailable):
        await quarantine.started("group", at(7), end_offset=9)
    await quarantine.clear(POSITION, scope="cluster")
    assert changes == []
