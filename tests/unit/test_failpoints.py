from __future__ import annotations

import asyncio

import pytest

from worker.failpoints import POINTS, FailpointError, Failpoints


async def test_nothing_happens_where_nothing_is_armed() -> None:
    for point in POINTS:
        await Failpoints().reach(point, "text")


async def test_a_point_acts_on_the_requests_that_it_matches_only() -> None:
    failpoints = Failpoints("assemble=raise@poison")
    await failpoints.reach("assemble", "a good one")
    await failpoints.reach("provider.ast", "poison")
    with pytest.raises(FailpointError):
        await failpoints.reach("assemble", "a poisoned one")


def test_a_hang_swallows_cancellation() -> None:
    loop = asyncio.new_event_loop()
    hang = Failpoints("assemble=hang").reach("assemble")
    task = loop.create_task(hang)

    async def cancel_and_wait() -> bool:
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=0.05)
        return task.done()

    assert not loop.run_until_complete(cancel_and_wait())
    hang.close()  # what no cancellation does, the end of the process would
    loop.call_exception_handler = lambda context: None  # nobody waits for the task any more
    loop.close()


@pytest.mark.parametrize("spec", ["nowhere=kill", "assemble=explode", "assemble"])
def test_a_specification_that_is_wrong_names_what_is_known(spec: str) -> None:
    with pytest.raises(ValueError, match=r"points: .*assemble.*; actions: hang, kill, raise"):
        Failpoints(spec)
