"""Ranking and packing fragments: p50 at a thousand, and how it grows to a hundred thousand.

Nothing is asserted on time: the table shows CPU milliseconds of this thread, each request with other texts,
and beside it milliseconds by n log2 n, which must not grow.
"""

from __future__ import annotations

import math
import random
from statistics import median
from time import thread_time

import pytest

from schemas.codes import CONTENT_LAYERS, PartName
from tests.bench.conftest import Report
from tests.support.assembling import wire_request
from worker.budget.tokens import counter_for
from worker.fusion.pipeline import FusionPipeline, default_components
from worker.fusion.sections import Fence
from worker.fusion.strategies.registry import built_in_strategies
from worker.graph.request import analyze_request
from worker.ports import LayerContribution, RequestFrame
from worker.providers.contribution import ContributionBuilder
from worker.settings import Content, Settings
from worker.wiring import content_policy

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

COUNTER = counter_for("o200k_base")
FENCE = Fence("0123456789abcdef")
BUDGET_TOKENS = 8_000
WORDS = [
    "retry",
    "deadline",
    "client",
    "socket",
    "the",
    "a",
    "of",
    "budget",
    "layer",
    "token",
    "fragment",
    "window",
    "order",
    "raises",
    "returns",
    "value",
    "request",
    "state",
    "store",
    "reads",
    "writes",
    "each",
    "where",
    "which",
    "none",
    "error",
    "timeout",
    "project",
    "thread",
    "index",
    "node",
    "edge",
]


def contributions(count: int, rng: random.Random) -> dict[PartName, LayerContribution]:
    """Fragments of all layers: lines and code, one in twenty said twice, one in fifty a pin."""
    blocks: dict[PartName, ContributionBuilder] = {
        layer: ContributionBuilder(layer, heading=f"# {layer.upper()}", resource_type="bench")
        for layer in CONTENT_LAYERS
    }
    said: list[str] = []
    for number in range(count):
        layer = rng.choice(CONTENT_LAYERS)
        lines = [" ".join(rng.choices(WORDS, k=12)) for _ in range(rng.choice((1, 1, 2, 6)))]
        text = rng.choice(said) if said and number % 20 == 0 else f"{number} " + "\n".join(lines)
        said.append(text)
        blocks[layer].add(
            f"bench://{number}",
            text,
            brief=text[:40],
            relevance=rng.random(),
            is_pinned=number % 50 == 0 and number < 2_000,
        )
    return {layer: block.finish() for layer, block in blocks.items()}


def frame() -> RequestFrame:
    request = wire_request()
    assert request.as_of is not None
    return analyze_request(
        request, subjects=content_policy(Settings(content=Content())).subjects, as_of=request.as_of
    )


def fuse_once(given: dict[PartName, LayerContribution]) -> float:
    components = default_components(fence=FENCE, counter=COUNTER, default_strategy="layered")
    pipeline = FusionPipeline(components, built_in_strategies(), FENCE)
    analysed = frame()
    started = thread_time()
    candidates = pipeline.rank(analysed, given, budget_tokens=BUDGET_TOKENS)
    for layer in CONTENT_LAYERS:
        pipeline.pack(candidates, layer, budget_tokens=BUDGET_TOKENS // 8, counter=COUNTER)
    return (thread_time() - started) * 1_000


def test_fuse(report: Report) -> None:
    rng = random.Random(5)
    fuse_once(contributions(100, rng))
    by_size: dict[int, float] = {}
    print("\nfragments  p50 ms  ms / (n log2 n) x 1e6")  # noqa: T201 - the figures are the result
    for count, rounds in ((100, 30), (1_000, 30), (10_000, 5), (100_000, 1)):
        spent = median(fuse_once(contributions(count, rng)) for _ in range(rounds))
        by_size[count] = spent / (count * math.log2(count))
        if count == 1_000:
            report("fusing 1,000 fragments, p50", spent, "ms", at_most=10)
        print(f"{count:>9}  {spent:6.1f}  {spent / (count * math.log2(count)) * 1e6:6.1f}")  # noqa: T201 - the figures are the result
    report(
        "fusing 100,000 fragments, by n log n, over 1,000",
        by_size[100_000] / by_size[1_000],
        "x",
        at_most=1,
    )
