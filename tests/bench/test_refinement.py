"""The relevance rules over 200 candidates on the real SWI-Prolog, beside an empty question to it.

Nothing is asserted on time: the table shows processor milliseconds of both processes, a mean since the system
counts the other's in hundredths of a second; milliseconds by the clock; and how many empty questions a
refinement takes, which carries from one machine to another.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import pytest
import pytest_asyncio

from schemas.codes import TaskType
from worker.graph.model import NodeRef
from worker.graph.refining import MAX_REFINED
from worker.graph.relevance import RelevanceFacts
from worker.stores.swipl import SwiPrologRelevance

pytestmark = [
    pytest.mark.bench,
    pytest.mark.services,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]

ROUNDS = 100


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(swipl: Path) -> AsyncGenerator[SwiPrologRelevance]:
    prolog = SwiPrologRelevance(executable=str(swipl), timeout_seconds=20)
    await prolog.check()
    yield prolog
    await prolog.close()


def facts(task_type: TaskType, *, seed: int) -> RelevanceFacts:
    """What a full selection has: members and tests all over, requirements; in reviews owners and calls."""
    rng = random.Random(seed)
    nodes = [NodeRef("Function", f"src/m{n // 10}.py::f{n}") for n in range(MAX_REFINED)]

    is_review = task_type == "REVIEW"

    def some(count: int) -> list[NodeRef]:
        return rng.sample(nodes, count)

    return RelevanceFacts(
        task_type=task_type,
        hops={node: rng.choice((0, 1, 1, 2, 2, 2, 9)) for node in nodes},
        roots=some(5),
        traces=[(node, f"REQ-{rng.randrange(25)}") for node in some(60)],
        tested=some(80),
        failing=some(5),
        defines=list(zip(some(60), some(60), strict=True)),
        ambiguous=some(10),
        owners=[(f"@team{rng.randrange(4)}", node) for node in some(150)] if is_review else (),
        depends=[(rng.choice(nodes), rng.choice(nodes)) for _ in range(400)] if is_review else (),
    )


def processor_milliseconds(process_id: int | None) -> float:
    """Of this process and the other, since they began."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()
    return 1_000 * (process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


async def milliseconds(work: Callable[[], Awaitable[object]]) -> float:
    started = perf_counter()
    await work()
    return 1_000 * (perf_counter() - started)


@pytest.mark.parametrize("task_type", ["DEBUG", "TEST", "REVIEW"])
async def test_refine(engine: SwiPrologRelevance, task_type: TaskType) -> None:
    empty = [await milliseconds(engine.check) for _ in range(ROUNDS)]
    known = [facts(task_type, seed=seed) for seed in range(ROUNDS)]
    before = processor_milliseconds(engine.process_id)
    spent = [await milliseconds(lambda each=each: engine.refine(each)) for each in known]
    processor = (processor_milliseconds(engine.process_id) - before) / ROUNDS
    p50, p99 = np.percentile(spent, [50, 99])
    one = float(np.median(empty))
    line = f"{task_type:8} processor {processor:5.2f} ms  clock p50 {p50:5.2f} ms  p99 {p99:5.2f} ms"
    print(f"\n{line}  = {p50 / one:4.1f} empty questions of {one:.2f} ms")  # noqa: T201 - the figures are the result
