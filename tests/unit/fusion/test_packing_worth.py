"""What a filled room is worth, against the exact optimum of the multiple-choice knapsack."""

from __future__ import annotations

import random
from statistics import mean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from schemas.fragments import FragmentProvenance
from worker.budget.tokens import BytesCounter
from worker.fusion.packer import WorthBudgetPacker, section_text
from worker.fusion.protocols import Frame, LayerSpace, Placed, ScoredFragment
from worker.fusion.worth import paying_steps, worth
from worker.ports import Fragment, Rendering

BARE = Frame(opening="", heading="", closing="")
COUNTER = BytesCounter()
FRAME_TOKENS = COUNTER.count(section_text(BARE, ()))
INSTANCES = 500


def fragment(number: int, renderings: list[Rendering], score: float) -> ScoredFragment:
    return ScoredFragment(
        fragment=Fragment(
            layer="artifacts",
            node=f"n{number:03}",
            renderings=tuple(renderings),
            provenance=(FragmentProvenance(resource_uri=f"u{number}"),),
            position=number,
        ),
        score=score,
    )


def instance(rng: random.Random) -> tuple[list[ScoredFragment], int]:
    """Up to 14 fragments with up to 4 renderings, a name mostly among them, and room for a part of it."""
    scored: list[ScoredFragment] = []
    for number in range(rng.randint(2, 14)):
        depths = sorted(rng.sample(range(1, 10), rng.randint(1, 3)), reverse=True)
        depths += [0] if rng.random() < 0.7 else []
        sizes = sorted((rng.randint(4, 200) for _ in depths), reverse=True)
        sizes[-1] = rng.randint(3, 12) if depths[-1] == 0 else sizes[-1]
        renderings = [Rendering(depth=d, text="x" * s) for d, s in zip(depths, sizes, strict=True)]
        scored.append(fragment(number, renderings, round(rng.random(), 6)))
    whole = sum(len(s.fragment.renderings[0].text) + 1 for s in scored)
    return scored, int(whole * rng.uniform(0.1, 0.9))


def pack(scored: list[ScoredFragment], room: int) -> list[Placed]:
    space = LayerSpace(budget_tokens=room + FRAME_TOKENS, counter=COUNTER, frame=BARE)
    return WorthBudgetPacker().pack(scored, space, {s.fragment.key: s.fragment.renderings for s in scored})


def worth_of(placed: list[Placed]) -> float:
    return sum(worth(p.score, p.depth) for p in placed if not p.is_cut)


def optimum(scored: list[ScoredFragment], room: int) -> float:
    """By dynamic programming over the tokens of the room."""
    best = np.zeros(room + 1)
    for item in scored:
        grown = best.copy()
        for rendering in item.fragment.renderings:
            cost = len(rendering.text) + 1
            if cost <= room:
                value = worth(item.score, rendering.depth)
                grown[cost:] = np.maximum(grown[cost:], best[: room + 1 - cost] + value)
        best = grown
    return float(best[room])


def solved(scored: list[ScoredFragment], room: int) -> float:
    """By a solver that knows nothing of the other way."""
    model = cp_model.CpModel()
    chosen = [
        (model.new_bool_var(f"{n}/{r.depth}"), len(r.text) + 1, worth(item.score, r.depth), n)
        for n, item in enumerate(scored)
        for r in item.fragment.renderings
    ]
    for n in range(len(scored)):
        model.add(sum(var for var, *_, of in chosen if of == n) <= 1)
    model.add(sum(var * cost for var, cost, *_ in chosen) <= room)
    model.maximize(sum(var * round(value * 1e9) for var, _, value, _ in chosen))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return solver.objective_value / 1e9


def test_a_filled_room_is_worth_nearly_what_the_best_filling_is() -> None:
    rng = random.Random(17)
    shares: list[float] = []
    for number in range(INSTANCES):
        scored, room = instance(rng)
        best = optimum(scored, room)
        if number < 25:
            assert solved(scored, room) == pytest.approx(best, abs=1e-7)
        if best > 0:
            shares.append(worth_of(pack(scored, room)) / best)
    print(f"mean {mean(shares):.4f}, worst {min(shares):.4f}, of {len(shares)}")  # noqa: T201 - the figures are the result
    assert len(shares) > INSTANCES * 0.95
    assert mean(shares) >= 0.97
    assert min(shares) >= 0.85


@settings(max_examples=60)
@given(st.tuples(*[st.integers(0, 9)] * 2), st.tuples(*[st.integers(1, 30)] * 2), st.floats(0, 1))
def test_a_text_and_a_name_have_the_steps_that_any_renderings_have(
    depths: tuple[int, int], costs: tuple[int, int], score: float
) -> None:
    worths = [worth(score, depth) for depth in depths]
    short = paying_steps(0, worths, costs)
    # A rendering that costs more than the one above it, and says no more, is no step of any way.
    long = paying_steps(0, [*worths, worths[1]], [*costs, costs[1]])
    assert [(s.gain, s.cost) for s in short] == [(s.gain, s.cost) for s in long]
