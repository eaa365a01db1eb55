"""Runs the strategies that were chosen and merges what they propose, whatever they do.

A strategy may be anybody's: what it raises, and fragments that it was not given, cost it its share and
nobody else anything. Plug-ins ran before, in processes of their own; here they are what was recorded of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from worker.fusion.plugin_wire import clamped
from worker.fusion.protocols import (
    Allocation,
    BackendSet,
    ContextStrategy,
    Execution,
    PlanContext,
    StrategyFailed,
    StrategyFailure,
)
from worker.fusion.room import MAX_CHARS_A_TOKEN
from worker.fusion.strategies.layered import LAYERED, LayeredStrategy
from worker.ports import Fragment, RequestFrame, TokenCounter

log = structlog.get_logger()

PATIENCE: Final = 32
"""After so many fragments in a row that do not fit, a share counts as spent."""


class MergingStrategyExecutor:
    """Runs strategies one after the other, in this process: they are pure and do no I/O."""

    def __init__(self, counter: TokenCounter) -> None:
        """Measure shares in this counter's tokens."""
        self._counter = counter

    def execute(
        self,
        allocations: Sequence[Allocation],
        request: RequestFrame,
        backends: BackendSet,
        plan_context: PlanContext,
    ) -> Execution:
        """What all of them propose, each fragment once.

        A fragment is within a strategy's share if, by its order, it fits what those before it leave, counted
        at its deepest; one that does not is passed over, and later ones are tried until nothing is left.
        What two propose costs the first one alone. Where several work, their proposals take turns. A pin is
        always within a share. `layered` alone has no share to keep to: its layers have rooms of their own.
        After 32 in a row that do not fit, a share counts as spent. O(n log n), and the tokens of what fits
        counted once.
        """
        offered = {fragment.key: fragment for fragment in backends.fragments()}
        runs, failures = self._run(allocations, request, backends, plan_context, offered)
        names = tuple([run.name for run in runs])
        if len(runs) == 1 and runs[0].strategy.capabilities.competes == "within_layers":
            beyond: frozenset[str] = frozenset()
            granted: dict[str, tuple[bool, int, int]] = {}
        else:
            granted = self._grant(runs)
            beyond = frozenset([key for key, (is_beyond, *_) in granted.items() if is_beyond])
        proposed_by = _proposed_by(runs)
        for key, fragment in offered.items():
            if fragment.is_pinned:
                proposed_by.setdefault(key, ())
        relevances = _relevances(runs)
        ordered = sorted(granted, key=granted.__getitem__) if granted else []
        keys = dict.fromkeys([*ordered, *proposed_by]) if ordered else proposed_by
        return Execution(
            fragments=_with_relevances([offered[key] for key in keys], relevances),
            proposed_by=proposed_by,
            priorities=_priorities(runs, ordered, beyond),
            beyond_share=beyond,
            strategies_used=names,
            failures=tuple(failures),
            clamped_scores=sum(run.clamped for run in runs),
        )

    def _run(
        self,
        allocations: Sequence[Allocation],
        request: RequestFrame,
        backends: BackendSet,
        plan_context: PlanContext,
        offered: dict[str, Fragment],
    ) -> tuple[list[_Run], list[StrategyFailure]]:
        """What each strategy proposes; `layered` has the share of those that failed."""
        runs: list[_Run] = []
        failures: list[StrategyFailure] = []
        orphaned = 0
        for allocation in allocations:
            try:
                runs.append(_run_one(allocation, request, backends, plan_context, offered))
            except StrategyFailed as failed:
                failures.append(StrategyFailure(name=allocation.strategy.name, code=failed.code))
                orphaned += allocation.budget_tokens
        left_alone = _left_alone(runs, offered.values())
        layered = next((run for run in runs if run.name == LAYERED), None)
        if layered is not None:
            layered.budget_tokens += orphaned
        elif failures or left_alone:
            shown = backends if failures else _narrowed(backends, keys=left_alone)
            allocation = Allocation(strategy=LayeredStrategy(), budget_tokens=orphaned)
            run = _run_one(allocation, request, shown, plan_context, offered)
            runs.append(replace(run, is_unmeasured=not failures))
        return runs, failures

    def _grant(self, runs: Sequence[_Run]) -> dict[str, tuple[bool, int, int]]:
        """By key: whether it is beyond all shares, its best place with a strategy, and which one that is.

        Sorted by these, what several strategies propose takes turns.
        """
        is_enough = self._is_enough(runs)
        granted: set[str] = set()
        standings: dict[str, tuple[bool, int, int]] = {}
        for number, run in enumerate(runs):
            left, misses = run.budget_tokens, 0
            is_free = is_enough or run.is_unmeasured
            for place, (key, fragment) in enumerate(run.proposed.items()):
                if key not in granted and (is_free or fragment.is_pinned or left > 0):
                    tokens = 0 if is_free else self._tokens(fragment, max(0, left))
                    if is_free or fragment.is_pinned or tokens <= left:
                        granted.add(key)
                        left, misses = left - tokens, 0
                    else:
                        misses += 1
                        left = left if misses < PATIENCE else 0
                standing = (key not in granted, place, number)
                standings[key] = min(standings.get(key, standing), standing)
        return standings

    def _is_enough(self, runs: Sequence[_Run]) -> bool:
        """Whether every strategy's share surely holds all that it proposes."""
        return all(
            self._fits([f.renderings[0].text for f in run.proposed.values()], run.budget_tokens)
            for run in runs
        )

    def _fits(self, texts: list[str], budget_tokens: int) -> bool:
        if sum(map(len, texts)) > budget_tokens * MAX_CHARS_A_TOKEN:
            # Where that is wrong, one by one they are still found to fit.
            return False
        return self._counter.fits("\n".join(texts), budget_tokens)

    def _tokens(self, fragment: Fragment, limit: int) -> int:
        return self._counter.count_up_to(fragment.renderings[0].text + "\n", limit)


@dataclass(slots=True, kw_only=True)
class _Run:
    """One strategy's proposals, and its share."""

    strategy: ContextStrategy
    budget_tokens: int
    proposed: dict[str, Fragment]
    """The fragments as they were given, by key, best first."""
    relevances: dict[str, float]
    """By key, where the strategy has another one."""
    clamped: int
    is_unmeasured: bool = False
    """Whether it keeps to no share, since it only proposes what others say nothing about."""

    @property
    def name(self) -> str:
        return self.strategy.name


def _run_one(
    allocation: Allocation,
    request: RequestFrame,
    backends: BackendSet,
    plan_context: PlanContext,
    offered: dict[str, Fragment],
) -> _Run:
    """Raises StrategyFailed where the strategy raises, or proposes what it was not given."""
    strategy = allocation.strategy
    types = strategy.capabilities.resource_types
    shown = _narrowed(backends, types=types) if types else backends
    run = _Run(
        strategy=strategy, budget_tokens=allocation.budget_tokens, proposed={}, relevances={}, clamped=0
    )
    try:
        for fragment in strategy.assemble(request, shown, allocation.budget_tokens, plan_context):
            key = fragment.key
            if not types and offered.get(key) is fragment:
                run.proposed.setdefault(key, fragment)
            else:
                _take(run, key, fragment, offered, types)
    except StrategyFailed:
        raise
    except Exception as error:
        # The message may quote what the strategy was given.
        log.warning("strategy.failed", strategy=strategy.name, error=type(error).__name__)
        raise StrategyFailed("plugin_error") from error
    return run


def _take(
    run: _Run, key: str, fragment: Fragment, offered: dict[str, Fragment], types: Sequence[str]
) -> None:
    """Note one proposal; of a fragment that is proposed twice, the first counts."""
    if key in run.proposed:
        return
    given = offered.get(key)
    if given is None or (types and not _is_of(given, types)):
        raise StrategyFailed("plugin_foreign")
    run.proposed[key] = given
    if fragment is not given and fragment.relevance != given.relevance:
        run.relevances[key], is_clamped = clamped(fragment.relevance)
        run.clamped += is_clamped


def _is_of(fragment: Fragment, types: Sequence[str]) -> bool:
    return any(provenance.resource_type in types for provenance in fragment.provenance)


def _narrowed(
    backends: BackendSet, *, types: Sequence[str] = (), keys: frozenset[str] = frozenset()
) -> BackendSet:
    """With the fragments of these types or keys alone."""
    return BackendSet(
        contributions={
            layer: replace(
                contribution,
                fragments=tuple([f for f in contribution.fragments if f.key in keys or _is_of(f, types)]),
            )
            for layer, contribution in backends.contributions.items()
        }
    )


def _left_alone(runs: Sequence[_Run], offered: Iterable[Fragment]) -> frozenset[str]:
    """Keys of what no strategy that runs says anything about."""
    types = [run.strategy.capabilities.resource_types for run in runs]
    if not all(types):
        return frozenset()
    return frozenset([f.key for f in offered if not any(_is_of(f, some) for some in types)])


def _proposed_by(runs: Sequence[_Run]) -> dict[str, tuple[str, ...]]:
    if len(runs) == 1:
        return dict.fromkeys(runs[0].proposed, (runs[0].name,))
    proposed_by: dict[str, tuple[str, ...]] = {}
    for run in runs:
        for key in run.proposed:
            proposed_by[key] = (*proposed_by.get(key, ()), run.name)
    return proposed_by


def _relevances(runs: Sequence[_Run]) -> dict[str, float]:
    """What the first strategy that has one says."""
    relevances: dict[str, float] = {}
    for run in reversed(runs):
        relevances |= run.relevances
    return relevances


def _with_relevances(fragments: list[Fragment], relevances: dict[str, float]) -> list[Fragment]:
    if not relevances:
        return fragments
    return [
        fragment
        if (relevance := relevances.get(fragment.key)) is None
        else replace(fragment, relevance=relevance)
        for fragment in fragments
    ]


def _priorities(runs: Sequence[_Run], ordered: Sequence[str], beyond: frozenset[str]) -> dict[str, int]:
    """Places where strategies rank by themselves or take turns; else what is within the share first."""
    if len(runs) == 1 and runs[0].strategy.capabilities.order == "score":
        return dict.fromkeys(beyond, 1)
    return {key: place for place, key in enumerate(ordered)}
