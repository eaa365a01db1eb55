"""Scores of selections: recall, and how sure it is, by a bootstrap over tasks within each repository."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

RESAMPLES: Final = 2_000
CONFIDENCE: Final = 0.95
_SEED: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one selection showed of one task's answer, under one budget."""

    task_id: str
    repository: str
    budget_tokens: int
    spent_tokens: int
    bodies: float
    """Share of the answer that is there in full, its docstring perhaps apart."""
    visible: float
    """Share of the answer that is there in full or by name."""
    map_tokens: int
    """What a static map of the same tree takes, which would have been shown without any selection."""
    select_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over tasks and its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """All tasks under one budget."""

    budget_tokens: int
    tasks: int
    bodies: Estimate
    visible: Estimate
    mean_spent_tokens: float
    mean_map_tokens: float
    """Of a static map of the tree, before anything was selected."""
    over_budget: int
    """Selections that took more than their budget; there must be none."""
    median_select_seconds: float


def recall(gold: Collection[str], found: Collection[str]) -> float:
    """The share of `gold` that was found. Raises ValueError where there is nothing to find."""
    if not gold:
        raise ValueError("a task without an answer cannot be scored")
    return len(set(gold) & set(found)) / len(set(gold))


def score(outcomes: Sequence[Outcome]) -> list[Score]:
    """One score a budget, the largest first. Same outcomes in any order, same scores."""
    by_budget: defaultdict[int, list[Outcome]] = defaultdict(list)
    for outcome in sorted(outcomes, key=lambda o: (o.repository, o.task_id)):
        by_budget[outcome.budget_tokens].append(outcome)
    return [_score(budget, by_budget[budget]) for budget in sorted(by_budget, reverse=True)]


def _score(budget_tokens: int, outcomes: Sequence[Outcome]) -> Score:
    strata = [outcome.repository for outcome in outcomes]
    return Score(
        budget_tokens=budget_tokens,
        tasks=len(outcomes),
        bodies=estimate(np.array([o.bodies for o in outcomes]), strata),
        visible=estimate(np.array([o.visible for o in outcomes]), strata),
        mean_spent_tokens=float(np.mean([o.spent_tokens for o in outcomes])),
        mean_map_tokens=float(np.mean([o.map_tokens for o in outcomes])),
        over_budget=sum(o.spent_tokens > budget_tokens for o in outcomes),
        median_select_seconds=float(np.median([o.select_seconds for o in outcomes])),
    )


def estimate(values: NDArray[np.float64], strata: Sequence[str]) -> Estimate:
    """The mean and its percentile bootstrap interval, tasks resampled within their stratum (Efron 1979)."""
    generator = np.random.default_rng(_SEED)
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for place, stratum in enumerate(strata):
        groups[stratum].append(place)
    totals = np.zeros(RESAMPLES)
    for stratum in sorted(groups):
        group = values[groups[stratum]]
        totals += group[generator.integers(0, len(group), (RESAMPLES, len(group)))].sum(axis=1)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(totals / len(values), [tail, 100 - tail])
    return Estimate(mean=float(values.mean()), low=float(low), high=float(high))
