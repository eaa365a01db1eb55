from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import structlog

from schemas.codes import PARTS, PartName
from schemas.fragments import FragmentProvenance
from tests.unit.providers.frames import BUDGET, SCOPE, frame
from worker.errors import InvalidRequest, NotSupported, StoreUnavailable
from worker.ports import (
    Fragment,
    LayerBudget,
    LayerContribution,
    Provider,
    Rendering,
    RequestFrame,
    Scope,
)
from worker.providers.gather import Abandonment, gather
from worker.telemetry import Telemetry

BUDGETS: dict[PartName, LayerBudget] = dict.fromkeys(PARTS, BUDGET)


class Source:
    def __init__(self, layer: PartName, act: Callable[[], Awaitable[None]] | None = None) -> None:
        self.layer: PartName = layer
        self.calls = 0
        self._act = act

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        self.calls += 1
        if self._act is not None:
            await self._act()
        return LayerContribution(layer=self.layer, status="ok", heading=f"# {self.layer}")


class Stuck:
    """Swallows its cancellation and goes on until it is let go, then returns or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self._gate = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []
        self._error = error

    async def __call__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        with contextlib.suppress(asyncio.CancelledError):
            await self._gate.wait()
        # The second cancellation ends it, or a failing test would keep the event loop from closing.
        await self._gate.wait()
        if self._error is not None:
            raise self._error

    async def let_go(self) -> None:
        self._gate.set()
        await asyncio.wait(self._tasks)
        await asyncio.sleep(0)


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def raising(error: BaseException, *, after_a_wait: bool) -> Callable[[], Awaitable[None]]:
    async def act() -> None:
        if after_a_wait:
            await asyncio.sleep(0)
        raise error

    return act


async def collect(
    *sources: Provider, abandonment: Abandonment | None = None, **options: Any
) -> dict[PartName, LayerContribution]:
    settings: dict[str, Any] = {
        "timeouts_seconds": {},
        "deadline_seconds": 10.0,
        "telemetry": Telemetry(),
        "abandonment": abandonment or Abandonment(cap=1),
    }
    return await gather(sources, frame(), SCOPE, BUDGETS, **(settings | options))


def failure(contributions: dict[PartName, LayerContribution], layer: PartName) -> tuple[str, str | None]:
    return contributions[layer].status, contributions[layer].reason


async def test_arrival_order_changes_nothing() -> None:
    layers: tuple[PartName, ...] = ("mission", "memory", "task")
    results: list[list[PartName]] = []
    for arrival in permutations(layers):
        gates: dict[PartName, asyncio.Event] = {layer: asyncio.Event() for layer in layers}
        sources = [Source(layer, gates[layer].wait) for layer in reversed(layers)]  # pyright: ignore[reportArgumentType]  # what a gate returns is ignored

        async def open_in_turn(order: tuple[PartName, ...], gates: dict[PartName, asyncio.Event]) -> None:
            for layer in order:
                gates[layer].set()
                await asyncio.sleep(0)

        opener = asyncio.create_task(open_in_turn(arrival, gates))
        results.append(list(await collect(*sources)))
        await opener
    assert results == [list(layers)] * 6


async def test_sources_run_at_the_same_time() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def meet(mine: asyncio.Event, other: asyncio.Event) -> None:
        mine.set()
        await other.wait()

    contributions = await collect(
        Source("mission", lambda: meet(first, second)), Source("plan", lambda: meet(second, first))
    )
    assert [c.status for c in contributions.values()] == ["ok", "ok"]


async def test_a_slow_source_costs_its_own_layer_and_no_other() -> None:
    contributions = await collect(
        Source("mission"), Source("memory", wait_for_ever), timeouts_seconds={"memory": 0.01}
    )
    assert failure(contributions, "mission") == ("ok", None)
    assert failure(contributions, "memory") == ("failed", "timeout")


async def test_the_deadline_ends_sources_whose_own_timeout_is_longer() -> None:
    contributions = await collect(
        Source("graph", wait_for_ever), timeouts_seconds={"graph": 60.0}, deadline_seconds=0.01
    )
    assert failure(contributions, "graph") == ("failed", "timeout")


@pytest.mark.parametrize("deadline_seconds", [0.0, -1.0])
async def test_a_deadline_that_has_passed_still_takes_what_is_there_at_once(deadline_seconds: float) -> None:
    contributions = await collect(
        Source("mission"), Source("graph", wait_for_ever), deadline_seconds=deadline_seconds
    )
    assert failure(contributions, "mission") == ("ok", None)
    assert failure(contributions, "graph") == ("failed", "timeout")


@pytest.mark.parametrize(("cut", "goes_on"), [("plan", "graph"), ("graph", "plan")])
async def test_each_timeout_counts_for_itself(cut: PartName, goes_on: PartName) -> None:
    """Whichever runs out first: the other one is waited for, however long ago the cut was."""
    was_cut = asyncio.Event()

    async def wait_until_cut() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            was_cut.set()

    async def wait_for_the_cut() -> None:
        await was_cut.wait()

    contributions = await collect(
        Source(cut, wait_until_cut),
        Source(goes_on, wait_for_the_cut),
        timeouts_seconds={cut: 0.01, goes_on: 60.0},
    )
    assert failure(contributions, cut) == ("failed", "timeout")
    assert failure(contributions, goes_on) == ("ok", None)


async def test_what_a_source_says_after_its_time_is_a_timeout_all_the_same() -> None:
    async def answer_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    contributions = await collect(Source("graph", answer_when_cancelled), deadline_seconds=0.01)
    assert failure(contributions, "graph") == ("failed", "timeout")


async def test_a_source_that_swallows_cancellation_is_left_behind_and_counted() -> None:
    stuck, telemetry, abandonment = Stuck(), Telemetry(), Abandonment(cap=2)
    contributions = await collect(
        Source("mission"),
        Source("memory", stuck),
        deadline_seconds=0.01,
        telemetry=telemetry,
        abandonment=abandonment,
    )
    assert failure(contributions, "mission") == ("ok", None)
    assert failure(contributions, "memory") == ("failed", "abandoned")
    assert abandonment.running("memory") == 1
    exposition = telemetry.exposition().decode()
    assert 'context_sources_abandoned_total{layer="memory"} 1.0' in exposition
    assert "context_sources_left_behind 1.0" in exposition
    await stuck.let_go()
    assert abandonment.running("memory") == 0
    assert "context_sources_left_behind 0.0" in telemetry.exposition().decode()


async def test_at_the_cap_the_source_is_not_called_until_one_ends() -> None:
    abandonment = Abandonment(cap=2)
    stuck = Stuck()
    hanging = Source("graph", stuck)
    for _ in range(2):
        await collect(hanging, deadline_seconds=0.001, abandonment=abandonment)
    idle = Source("graph")
    contributions = await collect(idle, Source("mission"), abandonment=abandonment)
    assert failure(contributions, "graph") == ("failed", "abandoned")
    assert idle.calls == 0
    assert failure(contributions, "mission") == ("ok", None)

    await stuck.let_go()
    assert failure(await collect(idle, abandonment=abandonment), "graph") == ("ok", None)


async def test_the_cap_counts_per_layer() -> None:
    abandonment = Abandonment(cap=1)
    stuck = Stuck()
    await collect(Source("graph", stuck), deadline_seconds=0.001, abandonment=abandonment)
    assert failure(await collect(Source("memory"), abandonment=abandonment), "memory") == ("ok", None)
    await stuck.let_go()


async def test_a_source_that_fails_after_it_was_left_behind_disturbs_nobody() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    stuck, abandonment = Stuck(ValueError("late")), Abandonment(cap=1)
    await collect(Source("memory", stuck), deadline_seconds=0.001, abandonment=abandonment)
    await stuck.let_go()
    del stuck
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


@pytest.mark.parametrize("after_a_wait", [False, True])
async def test_an_unexpected_error_costs_the_layer_and_is_logged_without_its_text(
    *, after_a_wait: bool
) -> None:
    with structlog.testing.capture_logs() as logs:
        contributions = await collect(
            Source("mission"), Source("ast", raising(KeyError("the prompt"), after_a_wait=after_a_wait))
        )
    assert failure(contributions, "ast") == ("failed", "error")
    assert failure(contributions, "mission") == ("ok", None)
    [line] = logs
    assert line["event"] == "source.failed"
    assert line["layer"] == "ast"
    assert line["error"] == "KeyError"
    assert "test_gather:" in line["where"]
    assert "the prompt" not in str(line)


class Broken:
    """Gives one good fragment and one that lacks what every fragment has."""

    layer: PartName = "memory"

    def __init__(self, *, is_slow: bool, **lacking: Any) -> None:
        self._is_slow = is_slow
        self._lacking = lacking

    async def provide(self, frame: RequestFrame, scope: Scope, budget: LayerBudget) -> LayerContribution:
        if self._is_slow:
            await asyncio.sleep(0)
        good = Fragment(
            layer="memory",
            node="memory:1",
            renderings=(Rendering(depth=9, text="Known."),),
            provenance=(FragmentProvenance(resource_uri="memory:1", location="1", resource_type="memory"),),
            position=0,
        )
        broken = replace(good, position=1, **self._lacking)
        return LayerContribution(layer="memory", status="ok", fragments=(good, broken))


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("lacking", ["renderings", "provenance"])
async def test_a_fragment_that_lacks_what_every_fragment_has_costs_its_layer_alone(
    lacking: str, *, is_slow: bool
) -> None:
    whole = Broken(is_slow=is_slow)
    broken = Broken(is_slow=is_slow, **{lacking: ()})
    assert failure(await collect(Source("mission"), whole), "memory") == ("ok", None)
    with structlog.testing.capture_logs() as logs:
        contributions = await collect(Source("mission"), broken)
    assert failure(contributions, "memory") == ("failed", "error")
    assert contributions["memory"].fragments == ()
    assert failure(contributions, "mission") == ("ok", None)
    assert [line["event"] for line in logs] == ["source.failed"]


@pytest.mark.parametrize("after_a_wait", [False, True])
@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        ("mission", "state_unavailable"),
        ("plan", "state_unavailable"),
        ("artifacts", "state_unavailable"),
        ("memory", "memory_unavailable"),
        ("graph", "graph_unavailable"),
        ("semantic", "graph_unavailable"),
        ("task", "graph_unavailable"),
    ],
)
async def test_a_store_that_is_away_is_named_by_what_it_would_have_given(
    layer: PartName, reason: str, *, after_a_wait: bool
) -> None:
    source = Source(layer, raising(StoreUnavailable("neo4j", "refused"), after_a_wait=after_a_wait))
    assert failure(await collect(source), layer) == ("failed", reason)


class PanicError(BaseException):
    """Like the panic of an extension module: no Exception."""


@pytest.mark.parametrize("after_a_wait", [False, True])
@pytest.mark.parametrize("error", [PanicError(), asyncio.CancelledError()])
async def test_even_what_is_no_exception_costs_only_the_layer(
    error: BaseException, *, after_a_wait: bool
) -> None:
    contributions = await collect(
        Source("mission"), Source("memory", raising(error, after_a_wait=after_a_wait))
    )
    assert failure(contributions, "memory") == ("failed", "error")
    assert failure(contributions, "mission") == ("ok", None)


async def test_the_first_rejection_in_layer_order_wins_whichever_comes_first() -> None:
    early = NotSupported("plan.text", reason="steps only")
    late = InvalidRequest("another project's pack", field="pack")
    for plan_waits in (False, True):
        sources = [
            Source("graph", raising(late, after_a_wait=not plan_waits)),
            Source("plan", raising(early, after_a_wait=plan_waits)),
        ]
        with pytest.raises(NotSupported) as caught:
            await collect(*sources)
        assert caught.value is early


async def test_cancelling_the_request_cancels_its_sources_and_passes() -> None:
    started, seen = asyncio.Event(), list[str]()

    async def act() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    abandonment = Abandonment(cap=1)
    request = asyncio.create_task(collect(Source("graph", act), abandonment=abandonment))
    await started.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert seen == ["cancelled"]
    assert abandonment.running("graph") == 0


async def test_a_cancelled_request_leaves_a_stuck_source_behind_and_counted() -> None:
    stuck, abandonment, telemetry = Stuck(), Abandonment(cap=5), Telemetry()
    request = asyncio.create_task(
        collect(Source("graph", stuck), abandonment=abandonment, telemetry=telemetry)
    )
    await asyncio.sleep(0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert abandonment.running("graph") == 1
    await stuck.let_go()


async def test_a_request_that_is_cancelled_twice_forgets_no_source() -> None:
    stuck, abandonment = Stuck(), Abandonment(cap=5)
    request = asyncio.create_task(collect(Source("graph", stuck), abandonment=abandonment))
    await asyncio.sleep(0)
    request.cancel()
    await asyncio.sleep(0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert abandonment.running("graph") == 1
    await stuck.let_go()


async def test_sources_that_never_wait_leave_no_task() -> None:
    before = asyncio.all_tasks()
    layers: tuple[PartName, ...] = PARTS[1:9]
    contributions = await collect(*(Source(layer) for layer in reversed(layers)))
    assert list(contributions) == list(layers)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_no_sources_give_no_layers() -> None:
    assert await collect() == {}
