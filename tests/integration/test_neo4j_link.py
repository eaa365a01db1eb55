"""Calls of Neo4j end in time and with one kind of error, whatever the driver does to the task it runs in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from worker.errors import StoreUnavailable
from worker.stores.neo4j_link import Neo4jLink, Transaction, rows


@pytest.fixture
async def link(neo4j_url: str, neo4j_auth: tuple[str, str]) -> AsyncGenerator[Neo4jLink]:
    made = Neo4jLink(neo4j_url, user=neo4j_auth[0], password=neo4j_auth[1])
    assert await made.ask("RETURN 1", {}, timeout_seconds=20) == [[1]]
    yield made
    await made.close()


def own_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def cancelled_by_itself(transaction: Transaction) -> None:
    await rows(transaction, "RETURN 1", {})
    own_task().cancel()
    await asyncio.sleep(0)


async def cancelled_once_more(transaction: Transaction) -> None:
    """As the driver does that is cancelled within a write: it takes that, and asks for another."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        own_task().cancel()
    await rows(transaction, "RETURN 1", {})


@pytest.mark.parametrize("work", [cancelled_by_itself, cancelled_once_more])
@pytest.mark.parametrize("access", ["read", "write"])
async def test_what_the_driver_does_to_its_own_task_ends_no_other(
    link: Neo4jLink, access: str, work: object
) -> None:
    with pytest.raises(StoreUnavailable):
        await getattr(link, access)(work, timeout_seconds=0.5)
    assert own_task().cancelling() == 0
    await asyncio.sleep(0)
    assert await link.ask("RETURN 2", {}, timeout_seconds=20) == [[2]]


async def test_a_driver_that_swallows_its_cancellation_is_not_waited_for(link: Neo4jLink) -> None:
    begun, release, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn(transaction: Transaction) -> None:
        begun.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        ended.set()

    async with asyncio.timeout(20):
        with pytest.raises(StoreUnavailable, match=r"no answer within 0\.2 s"):
            await link.read(stubborn, timeout_seconds=0.2)
        # Who is cancelled is not held up by it either.
        begun.clear()
        calling = asyncio.create_task(link.write(stubborn, timeout_seconds=60))
        await begun.wait()
        calling.cancel()
        await asyncio.wait({calling})
        assert calling.cancelled()
        release.set()
        await ended.wait()
