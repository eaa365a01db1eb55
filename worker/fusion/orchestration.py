"""Phase 1: which strategies run, what share each has, and what they propose together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worker.errors import UnknownStrategy
from worker.fusion.protocols import Allocation, BackendSet, Candidate, ContextStrategy, PlanContext
from worker.ports import Fragment, RequestFrame


class NamedStrategySelector:
    """The strategy that the request names, else the settings' default."""

    def __init__(self, default: str) -> None:
        """Use `default` where a request names none."""
        self._default = default

    def select(
        self, strategies: Mapping[str, ContextStrategy], request: RequestFrame, backends: BackendSet
    ) -> list[Candidate]:
        """One candidate. Raises UnknownStrategy naming the registered ones."""
        name = request.request.strategy or self._default
        strategy = strategies.get(name)
        if strategy is None:
            raise UnknownStrategy(name, known=strategies)
        return [Candidate(strategy=strategy, confidence=strategy.can_handle(request, backends))]


class ProportionalBudgetAllocator:
    """Shares in proportion to confidence, rounded down; the remainder goes to the first."""

    def allocate(
        self, candidates: Sequence[Candidate], total_budget: int, request: RequestFrame
    ) -> list[Allocation]:
        """Sums to `total_budget` exactly. A single candidate gets all of it."""
        del request
        # Integer weights, so that no host's rounding can move a token.
        weights = [max(0, round(candidate.confidence * 1_000_000)) for candidate in candidates]
        whole = sum(weights) or 1
        shares = [total_budget * weight // whole for weight in weights]
        shares[0] += total_budget - sum(shares)
        return [
            Allocation(strategy=candidate.strategy, budget_tokens=share)
            for candidate, share in zip(candidates, shares, strict=True)
        ]


class MergingStrategyExecutor:
    """Runs the built-in strategies in order, in this process: they are pure and do no I/O."""

    def execute(
        self,
        allocations: Sequence[Allocation],
        request: RequestFrame,
        backends: BackendSet,
        plan_context: PlanContext,
    ) -> list[Fragment]:
        """The union of what they propose; a fragment proposed twice keeps its first place."""
        proposed: dict[str, Fragment] = {}
        for allocation in allocations:
            for fragment in allocation.strategy.assemble(
                request, backends, allocation.budget_tokens, plan_context
            ):
                proposed.setdefault(fragment.key, fragment)
        return list(proposed.values())
