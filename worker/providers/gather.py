"""All sources at once, each under its own timeout, all under one deadline.

What a source does can cost its own layer and nothing else. One that fails, or is too slow, gives a `failed`
layer with a reason. One that swallows its cancellation cannot be ended from outside, so it is left behind,
counted, and capped: while a layer has as many of those as the cap allows, its source is not called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import structlog

from schemas.codes import PARTS, LayerReason, PartName
from worker.errors import GraphBehind, Rejected, StateBehind, StateUnavailable, Unavailable
from worker.ports import LayerBudget, LayerContribution, Provider, RequestFrame, Scope
from worker.providers.eager import EagerStarter
from worker.telemetry import SourceRun, Telemetry

log = structlog.get_logger()

GRACE_SECONDS: Final = 0.02
"""How long a cancelled source may take to tidy up before it counts as left behind."""

_UNAVAILABLE: Final[Mapping[PartName, LayerReason]] = {
    "mission": "state_unavailable",
    "plan": "state_unavailable",
    "memory": "memory_unavailable",
    "artifacts": "state_unavailable",
    "graph": "graph_unavailable",
    "ast": "graph_unavailable",
    "semantic": "graph_unavailable",
    "task": "graph_unavailable",
}

_Task = asyncio.Task[LayerContribution]
_Outcome = LayerContribution | Rejected


class Abandonment:
    """The source calls of one worker that swallowed their cancellation and still run."""

    def __init__(self, *, cap: int) -> None:
        """Allow `cap` (at least 1) of them per layer."""
        self._cap = cap
        self._running: dict[PartName, int] = {}
        self._tasks: set[_Task] = set()  # the event loop itself holds tasks only weakly

    def is_full(self, layer: PartName) -> bool:
        """Whether the layer's source must not be called now."""
        return self._running.get(layer, 0) >= self._cap

    def running(self, layer: PartName) -> int:
        """How many of the layer's calls still run."""
        return self._running.get(layer, 0)

    def leave(self, layer: PartName, task: _Task, telemetry: Telemetry) -> None:
        """Count a call that goes on without anybody waiting for it, until it ends by itself."""
        self._running[layer] = self.running(layer) + 1
        self._tasks.add(task)
        telemetry.abandoned.labels(layer).inc()
        telemetry.abandoned_now.inc()
        log.warning("source.abandoned", layer=layer, running=self._running[layer])

        def ended(task: _Task) -> None:
            self._running[layer] -= 1
            self._tasks.discard(task)
            telemetry.abandoned_now.dec()
            _mark_retrieved(task)

        task.add_done_callback(ended)


async def gather(
    providers: Sequence[Provider],
    frame: RequestFrame,
    scope: Scope,
    budgets: Mapping[PartName, LayerBudget],
    *,
    timeouts_seconds: Mapping[PartName, float],
    deadline_seconds: float,
    telemetry: Telemetry,
    abandonment: Abandonment,
) -> dict[PartName, LayerContribution]:
    """What each source gave, in the order of the layers whatever the order of arrival.

    `deadline_seconds` is what is left for all of them; a layer without a timeout of its own has as long.
    Returns `GRACE_SECONDS` after the deadline at the latest. A source that never waits costs no task.
    Raises the first Rejected in layer order, once all sources have ended. CancelledError cancels the
    sources and passes.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + deadline_seconds
    starter = EagerStarter[LayerContribution]()
    runs: list[SourceRun] = []
    waiting = _Waiting(abandonment, telemetry, runs)
    outcomes: dict[PartName, _Outcome] = {}
    try:
        for provider in providers:
            layer = provider.layer
            if abandonment.is_full(layer):
                outcomes[layer] = _failed(layer, "abandoned")
                continue
            budget = budgets[layer]
            asked_at = loop.time()
            try:
                started = starter.start(provider.provide(frame, scope, budget))
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 - whatever a source raises is its own layer's loss
                started = _read_error(layer, error)
            if isinstance(started, asyncio.Task):
                expires_at = asked_at + timeouts_seconds.get(layer, deadline_seconds)
                waiting.add(layer, started, asked_at=asked_at, expires_at=min(ends_at, expires_at))
            else:
                outcomes[layer] = started
                runs.append(_run(layer, started, started_at=asked_at, ended_at=loop.time(), waited=False))
        outcomes |= await waiting.finish()
    except BaseException:
        await waiting.cancel()
        raise
    telemetry.count_sources(runs)
    return _in_layer_order(outcomes)


@dataclass(slots=True)
class _Call:
    """One source that is being waited for."""

    layer: PartName
    asked_at: float
    wake_at: float
    """When it is cancelled; once it was cancelled, when it is left behind."""
    is_cancelled: bool = False
    ended_at: float | None = None
    """When it ended, as the event loop saw it."""


class _Waiting:
    """The calls of one gathering that did not end at once."""

    def __init__(self, abandonment: Abandonment, telemetry: Telemetry, runs: list[SourceRun]) -> None:
        self._abandonment = abandonment
        self._telemetry = telemetry
        self._runs = runs
        self._calls: dict[_Task, _Call] = {}
        self._time = asyncio.get_running_loop().time

    def add(self, layer: PartName, task: _Task, *, asked_at: float, expires_at: float) -> None:
        call = self._calls[task] = _Call(layer, asked_at, expires_at)

        def ended(_: _Task) -> None:
            call.ended_at = self._time()

        task.add_done_callback(ended)

    async def finish(self) -> dict[PartName, _Outcome]:
        """Wait for each call until its time has come, then cancel it, then leave it behind."""
        outcomes: dict[PartName, _Outcome] = {}
        while self._calls:
            wake_at = min(call.wake_at for call in self._calls.values())
            # Not asyncio.timeout: that waits for the cancelled source, which may never end.
            await asyncio.wait(self._calls, timeout=max(0.0, wake_at - self._time()))
            now = self._time()
            for task, call in list(self._calls.items()):
                outcome = self._look_at(task, call, now)
                if outcome is not None:
                    outcomes[call.layer] = outcome
                    del self._calls[task]
                    ended_at = now if call.ended_at is None else call.ended_at
                    self._runs.append(
                        _run(call.layer, outcome, started_at=call.asked_at, ended_at=ended_at, waited=True)
                    )
        return outcomes

    def _look_at(self, task: _Task, call: _Call, now: float) -> _Outcome | None:
        """The call's outcome, or None where it is still waited for."""
        if task.done():
            if not call.is_cancelled:
                return _read_outcome(call.layer, task)
            # What it says after its time came too late, whatever it is: a timeout is a timeout.
            _mark_retrieved(task)
            return _failed(call.layer, "timeout")
        if now < call.wake_at:
            return None
        if call.is_cancelled:
            self._abandonment.leave(call.layer, task, self._telemetry)
            return _failed(call.layer, "abandoned")
        task.cancel()
        call.is_cancelled = True
        call.wake_at = now + GRACE_SECONDS
        return None

    async def cancel(self) -> None:
        """Cancel every call once, wait for them a moment, and leave behind those that swallow it."""
        if not self._calls:
            return
        for task, call in self._calls.items():
            # A second cancellation would end a task whose thread goes on, and hide that it does.
            if not call.is_cancelled:
                task.cancel()
        try:
            await asyncio.wait(self._calls, timeout=GRACE_SECONDS)
        finally:
            for task, call in self._calls.items():
                if task.done():
                    _mark_retrieved(task)
                else:
                    self._abandonment.leave(call.layer, task, self._telemetry)


def _run(
    layer: PartName, outcome: _Outcome, *, started_at: float, ended_at: float, waited: bool
) -> SourceRun:
    if isinstance(outcome, Rejected):
        return SourceRun(layer, started_at, ended_at, "rejected", outcome.code, 0, waited)
    count = len(outcome.fragments)
    return SourceRun(layer, started_at, ended_at, outcome.status, outcome.reason, count, waited)


def _read_outcome(layer: PartName, task: _Task) -> _Outcome:
    if task.cancelled():
        return _read_error(layer, asyncio.CancelledError())
    error = task.exception()
    return task.result() if error is None else _read_error(layer, error)


def _read_error(layer: PartName, error: BaseException) -> _Outcome:
    if isinstance(error, Rejected):
        return error
    if isinstance(error, Unavailable):
        log.warning("source.unavailable", layer=layer, cause=str(error))
        return _failed(layer, _reason_of(layer, error))
    # Its message may quote the prompt, so only the kind and the place are said.
    log.error("source.failed", layer=layer, error=type(error).__name__, where=_place(error.__traceback__))
    return _failed(layer, "error")


def _reason_of(layer: PartName, error: Unavailable) -> LayerReason:
    match error:
        case GraphBehind():
            return "graph_behind"
        case StateBehind():
            return "state_behind"
        case StateUnavailable() if layer == "task":
            return "state_unavailable"
        case _:
            return _UNAVAILABLE.get(layer, "error")


def _place(traceback: TracebackType | None) -> str:
    """`module:line` where the error was raised."""
    if traceback is None:
        return "unknown"
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    module: object = traceback.tb_frame.f_globals.get("__name__", "unknown")
    return f"{module}:{traceback.tb_lineno}"


def _mark_retrieved(task: _Task) -> None:
    """Read the exception of a task nobody waits for, so that asyncio does not complain about it."""
    if not task.cancelled():
        task.exception()


def _failed(layer: PartName, reason: LayerReason) -> LayerContribution:
    return LayerContribution(layer=layer, status="failed", reason=reason)


def _in_layer_order(outcomes: Mapping[PartName, _Outcome]) -> dict[PartName, LayerContribution]:
    contributions: dict[PartName, LayerContribution] = {}
    for layer in PARTS:
        outcome = outcomes.get(layer)
        if isinstance(outcome, Rejected):
            raise outcome
        if outcome is not None:
            contributions[layer] = _checked(outcome)
    return contributions


def _checked(contribution: LayerContribution) -> LayerContribution:
    """The contribution, or a failed layer where a fragment says nothing or comes from nowhere."""
    if all(fragment.renderings and fragment.provenance for fragment in contribution.fragments):
        return contribution
    log.error("source.failed", layer=contribution.layer, error="fragment without rendering or provenance")
    return _failed(contribution.layer, "error")
