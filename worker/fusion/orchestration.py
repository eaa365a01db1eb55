"""Phase 1: which strategies work on a request, and what share of its tokens each has.

`executing` runs them and merges what they propose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import structlog

from worker.errors import UnknownStrategy
from worker.fusion.protocols import (
    Allocation,
    BackendSet,
    Candidate,
    ContextStrategy,
    StrategyFailed,
    StrategyFailure,
)
from worker.fusion.strategies.layered import LAYERED, LayeredStrategy
from worker.fusion.strategies.registry import strategy_names
from worker.ports import RequestFrame

log = structlog.get_logger()

_WEIGHT_STEPS = 1_000_000
"""Weights are whole numbers, so that no host's rounding can move a token."""


class NamedStrategySelector:
    """The strategies that the request names, one or several joined with `+`, else the settings' default."""

    def __init__(self, default: str) -> None:
        """Use `default` where a request names none."""
        self._default = default

    def select(
        self, strategies: Mapping[str, ContextStrategy], request: RequestFrame, backends: BackendSet
    ) -> list[Candidate]:
        """Each named strategy once, in the order of the names.

        `layered` stands in for those that cannot handle the request: whose `can_handle` says 0, says what is
        no number, or raises. Raises UnknownStrategy naming the registered ones.
        """
        named = request.request.strategy
        names = strategy_names(self._default if named is None else named)
        chosen: dict[str, Candidate] = {}
        for name in names:
            strategy = strategies.get(name)
            if strategy is None:
                raise UnknownStrategy(name, known=strategies)
            try:
                confidence = _confidence(strategy, request, backends)
            except StrategyFailed as failed:
                stand_in = chosen.get(LAYERED) or _layered(strategies, request, backends)
                failures = (*stand_in.failures, StrategyFailure(name=name, code=failed.code))
                candidate = Candidate(
                    strategy=stand_in.strategy, confidence=stand_in.confidence, failures=failures
                )
            else:
                before = chosen.get(name)
                candidate = Candidate(
                    strategy=strategy, confidence=confidence, failures=before.failures if before else ()
                )
            chosen[candidate.strategy.name] = candidate
        return list(chosen.values())


def _layered(
    strategies: Mapping[str, ContextStrategy], request: RequestFrame, backends: BackendSet
) -> Candidate:
    strategy = strategies.get(LAYERED) or LayeredStrategy()
    return Candidate(strategy=strategy, confidence=strategy.can_handle(request, backends))


def _confidence(strategy: ContextStrategy, request: RequestFrame, backends: BackendSet) -> float:
    """What the strategy says, at most 1. Raises StrategyFailed where that is nothing to go by."""
    try:
        said = float(strategy.can_handle(request, backends))
    except Exception as error:
        log.warning("strategy.failed", strategy=strategy.name, error=type(error).__name__)
        raise StrategyFailed("plugin_error") from error
    if math.isnan(said) or said <= 0:
        raise StrategyFailed("cannot_handle")
    return min(1.0, said)


class ProportionalBudgetAllocator:
    """Shares in proportion to how sure a strategy is and how good it is: confidence times quality."""

    def allocate(
        self, candidates: Sequence[Candidate], total_budget: int, request: RequestFrame
    ) -> list[Allocation]:
        """Sums to `total_budget` exactly, which counts as 0 where it is negative.

        By largest remainders: what rounding down leaves goes, a token each, to those that lost most by it,
        the first of equals first. Equal shares where no weight is above 0. A single candidate gets all.
        """
        del request
        total = max(0, total_budget)
        weights = [_weight(candidate) for candidate in candidates]
        if not any(weights):
            weights = [1] * len(weights)
        whole = sum(weights)
        shares = [total * weight // whole for weight in weights]
        by_loss = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
        for i in by_loss[: total - sum(shares)]:
            shares[i] += 1
        return [
            Allocation(strategy=candidate.strategy, budget_tokens=share)
            for candidate, share in zip(candidates, shares, strict=True)
        ]


def _weight(candidate: Candidate) -> int:
    quality = candidate.strategy.capabilities.quality_score
    return max(0, round(candidate.confidence * quality * _WEIGHT_STEPS))
