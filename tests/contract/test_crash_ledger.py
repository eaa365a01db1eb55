"""What every CrashLedger promises, on every product."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.backends import Backend
from worker.errors import StoreUnavailable
from worker.ports import CrashLedger, RecordRef

RECORD = RecordRef(scope="cluster-1", topic="context.requests", partition=3, offset=42)
TWO_DAYS_SECONDS = 48 * 3_600

hostile_names = st.text(max_size=8) | st.text("a:{}*%\x00\ud800", max_size=4)
refs = st.builds(
    RecordRef,
    scope=hostile_names,
    topic=hostile_names,
    partition=st.integers(0, 12),
    offset=st.integers(0, 2**62),
)


@pytest.fixture
async def ledger(backend: Backend) -> AsyncGenerator[CrashLedger]:
    opened = backend.ledger()
    yield opened
    await opened.close()


async def test_starts_from_one_position_are_counted(ledger: CrashLedger) -> None:
    assert [await ledger.raise_start("g", RECORD) for _ in range(3)] == [1, 2, 3]


async def test_starts_from_another_position_partition_cluster_or_group_count_apart(
    ledger: CrashLedger,
) -> None:
    await ledger.raise_start("g", RECORD)
    assert await ledger.raise_start("g", replace(RECORD, offset=43)) == 1
    assert await ledger.raise_start("g", replace(RECORD, partition=4)) == 1
    assert await ledger.raise_start("g", replace(RECORD, topic="context.tools")) == 1
    assert await ledger.raise_start("g", replace(RECORD, scope="cluster-2")) == 1
    assert await ledger.raise_start("h", RECORD) == 1
    assert await ledger.raise_start("g", RECORD) == 2


async def test_an_orderly_stop_forgets_the_starts_of_its_partition_only(ledger: CrashLedger) -> None:
    neighbour = replace(RECORD, partition=4)
    for position in (RECORD, replace(RECORD, offset=43), neighbour):
        await ledger.raise_start("g", position)
    await ledger.clear_starts("g", scope=RECORD.scope, topic=RECORD.topic, partition=RECORD.partition)
    assert await ledger.raise_start("g", RECORD) == 1
    assert await ledger.raise_start("g", replace(RECORD, offset=43)) == 1
    assert await ledger.raise_start("g", neighbour) == 2


async def test_an_attempt_learns_how_many_were_left_behind(ledger: CrashLedger) -> None:
    assert [await ledger.begin_attempt(RECORD) for _ in range(3)] == [0, 1, 2]


async def test_a_record_that_ended_in_order_starts_again_from_none(ledger: CrashLedger) -> None:
    neighbour = replace(RECORD, offset=43)
    await ledger.begin_attempt(RECORD)
    await ledger.begin_attempt(neighbour)
    await ledger.end_attempt(RECORD)
    assert await ledger.begin_attempt(RECORD) == 0
    assert await ledger.begin_attempt(neighbour) == 1


async def test_what_is_withdrawn_counts_one_less_of_the_same_and_never_less_than_none(
    ledger: CrashLedger,
) -> None:
    neighbour = replace(RECORD, offset=43)
    for ref in (RECORD, RECORD, neighbour):
        await ledger.raise_start("g", ref)
        await ledger.begin_attempt(ref)
    await ledger.withdraw_start("g", RECORD)
    await ledger.withdraw_start("h", RECORD)
    await ledger.withdraw_attempt(RECORD)
    assert await ledger.raise_start("g", RECORD) == 2
    assert await ledger.begin_attempt(RECORD) == 1
    for _ in range(3):
        await ledger.withdraw_start("g", neighbour)
        await ledger.withdraw_attempt(neighbour)
    assert await ledger.raise_start("g", neighbour) == 1
    assert await ledger.begin_attempt(neighbour) == 0


async def test_starts_and_attempts_do_not_mix(ledger: CrashLedger) -> None:
    await ledger.raise_start("", RECORD)
    assert await ledger.begin_attempt(RECORD) == 0
    await ledger.clear_starts("", scope=RECORD.scope, topic=RECORD.topic, partition=RECORD.partition)
    assert await ledger.begin_attempt(RECORD) == 1


async def test_forgetting_what_was_never_counted_is_no_error(ledger: CrashLedger) -> None:
    await ledger.end_attempt(RECORD)
    await ledger.withdraw_attempt(RECORD)
    await ledger.withdraw_start("g", RECORD)
    await ledger.clear_starts("g", scope="s", topic="t", partition=0)


async def test_counts_live_for_two_days_and_no_longer(backend: Backend, ledger: CrashLedger) -> None:
    await ledger.raise_start("g", RECORD)
    await ledger.begin_attempt(RECORD)
    await backend.age(TWO_DAYS_SECONDS - 60)
    assert await ledger.raise_start("g", RECORD) == 2
    assert await ledger.begin_attempt(RECORD) == 1
    await backend.age(TWO_DAYS_SECONDS + 1)
    assert await ledger.raise_start("g", RECORD) == 1
    assert await ledger.begin_attempt(RECORD) == 0


async def test_workers_that_count_at_once_count_together(backend: Backend, ledger: CrashLedger) -> None:
    other_worker = backend.ledger()
    counts = await asyncio.gather(
        *((ledger, other_worker)[n % 2].raise_start("g", RECORD) for n in range(20))
    )
    await other_worker.close()
    assert sorted(counts) == list(range(1, 21))


async def test_a_count_outlives_the_worker_that_made_it(backend: Backend, ledger: CrashLedger) -> None:
    await ledger.begin_attempt(RECORD)
    await ledger.close()
    successor = backend.ledger()
    assert await successor.begin_attempt(RECORD) == 1
    await successor.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(left=refs, right=refs)
async def test_no_two_records_meet_whatever_is_in_the_names(
    ledger: CrashLedger, left: RecordRef, right: RecordRef
) -> None:
    for ref in {left, right}:
        assert await ledger.begin_attempt(ref) == 0
    for ref in {left, right}:
        await ledger.end_attempt(ref)


async def test_a_closed_ledger_is_unavailable(backend: Backend) -> None:
    ledger = backend.ledger()
    await ledger.close()
    await ledger.close()
    with pytest.raises(StoreUnavailable):
        await ledger.begin_attempt(RECORD)
