"""Calls of tools at 50,000 functions on a warm snapshot, and how well `search_code` finds what was edited.

What reads source in full is asked of this project's own: the large graph's files are no code.
Nothing is asserted on time: the table shows CPU milliseconds of this thread, and the same as a multiple of
what counting the answer once costs. Recall needs tasks (`RETRIEVAL_TASKS`, JSON lines as `context-worker
evaluate --tasks` reads them) and the repositories that they name (`RETRIEVAL_REPOS`, paths joined by `:`,
each with a folder `owner+name` in it); without tasks, those that the repositories' own commits make.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from time import thread_time

import numpy as np
import pytest

from schemas.tools import (
    BranchesArguments,
    BranchTestsArguments,
    ComplexityArguments,
    GetCodeArguments,
    GetContextArguments,
    GetTestsArguments,
    RefsArguments,
    SearchCodeArguments,
    SkeletonArguments,
    SkeletonDiffArguments,
    SymbolsArguments,
    TraceLintArguments,
)
from tests.unit.graph.graphs import HEAD, large_graph
from worker.budget.tiktoken_counter import TiktokenCounter
from worker.code.stored_source import nodes_of_file, source_of_nodes
from worker.evaluation.git import Repository
from worker.evaluation.tasks import derive_tasks, read_tasks
from worker.evaluation.tree import TreeIndexer
from worker.fusion.masking import mask_secrets
from worker.graph.snapshot import Snapshot, build_snapshot
from worker.retrieval.entities import near_ids
from worker.retrieval.found import Found, write
from worker.retrieval.reading import get_code, get_context, get_tests
from worker.retrieval.searching import best_nodes, search_code
from worker.retrieval.structure import (
    branch_tests,
    branches,
    complexity,
    refs,
    skeleton,
    skeleton_diff,
    symbols,
    trace_lint,
)

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1_200)]

FUNCTIONS, CALLS, REQUESTS = 50_000, 150_000, 40
BUDGET_TOKENS = 4_000
RECALL_AT = 10

TOOLS: dict[str, Callable[[Snapshot, str, str], Found]] = {
    "get_code": lambda s, name, _: get_code(s, GetCodeArguments(entity_id=name)),
    "+callers": lambda s, name, _: get_code(
        s, GetCodeArguments(entity_id=name, include_callers=True, depth=2)
    ),
    "get_context": lambda s, name, _: get_context(s, GetContextArguments(entity=name)),
    "depth 2": lambda s, name, _: get_context(s, GetContextArguments(entity=name, depth=2)),
    "get_tests": lambda s, name, _: get_tests(s, GetTestsArguments(entity_id=name)),
    "branches": lambda s, name, _: branches(s, BranchesArguments(entity_id=name)),
    "search_code": lambda s, _, query: search_code(s, SearchCodeArguments(query=query)),
}
SOURCE_TOOLS: dict[str, Callable[[Snapshot, str, str], Found]] = {
    "symbols": lambda s, name, _: symbols(s, SymbolsArguments(entity_id=name)),
    "parameters": lambda s, name, _: symbols(s, SymbolsArguments(entity_id=name, parameters=True)),
    "refs": lambda s, name, _: refs(s, RefsArguments(entity_id=name)),
    "complexity": lambda s, name, _: complexity(s, ComplexityArguments(entity_id=_path(name))),
    "skeleton": lambda s, name, _: skeleton(s, SkeletonArguments(entity_id=_path(name))),
    "skeleton_diff": lambda s, name, source: skeleton_diff(
        s, SkeletonDiffArguments(entity_id=_path(name), source=source)
    ),
    "branch_tests": lambda s, name, _: branch_tests(s, BranchTestsArguments(entity_id=name)),
    "trace_lint": lambda s, name, _: trace_lint(s, TraceLintArguments(entity_id=_path(name))),
}


def _path(entity_id: str) -> str:
    return entity_id.partition("::")[0]


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return build_snapshot(HEAD, large_graph(functions=FUNCTIONS, calls=CALLS))


def test_calls(snapshot: Snapshot) -> None:
    rng = random.Random(3)
    code = [node for node in snapshot.nodes if node.label == "Function"]
    asked = [(one.id, " ".join(rng.sample(one.text.split(), 8))) for one in rng.sample(code, REQUESTS)]
    measure(snapshot, TOOLS, asked)
    started = thread_time()
    near_ids(snapshot, asked[0][0][:-3] + "zz")
    print(f"near ids     {1_000 * (thread_time() - started):6.2f} ms")  # noqa: T201 - the figures are the result


def test_calls_that_read_source() -> None:
    with Repository(Path()) as repository:
        own = build_snapshot(*TreeIndexer(repository).graph(repository.resolve("HEAD")))
    code = [node for node in own.nodes if node.label == "Function" and "<locals>" not in node.id]
    chosen = random.Random(3).sample(code, REQUESTS)
    # As an agent would send it: the file, with one name changed.
    sources = [source_of_nodes(nodes_of_file(own, one.path)).replace("self", "this", 1) for one in chosen]
    asked = [(one.id, source) for one, source in zip(chosen, sources, strict=True)]
    print()  # noqa: T201 - as above
    for label in ("first", "warm"):
        print(label)  # noqa: T201 - as above
        measure(own, SOURCE_TOOLS, asked)


def measure(
    snapshot: Snapshot,
    tools: dict[str, Callable[[Snapshot, str, str], Found]],
    asked: list[tuple[str, str]],
) -> None:
    # One that remembers nothing: an answer is counted once as it is written, and once for the measure.
    counter = TiktokenCounter("o200k_base", remembered_texts=0)
    for name, run in tools.items():
        spent: list[float] = []
        counted: list[float] = []
        tokens: list[int] = []
        for entity, query in asked:
            started = thread_time()
            found = run(snapshot, entity, query)
            written = write(found, budget_tokens=BUDGET_TOKENS, counter=counter, mask=mask_secrets)
            spent.append(1_000 * (thread_time() - started))
            started = thread_time()
            counter.count(written.content)
            counted.append(1_000 * (thread_time() - started))
            tokens.append(written.tokens)
        p50, p99 = np.percentile(spent, [50, 99])
        ratio = p50 / float(np.median(counted))
        print(  # noqa: T201 - the figures are the result
            f"{name:12} p50 {p50:6.2f} ms  p99 {p99:6.2f} ms  = {ratio:5.1f} counts"
            f" of {int(np.median(tokens))} tokens"
        )


def test_recall_of_search() -> None:
    repositories = [Path(one) for one in os.environ.get("RETRIEVAL_REPOS", ".").split(":")]
    tasks_file = os.environ.get("RETRIEVAL_TASKS")
    tasks = read_tasks(Path(tasks_file)) if tasks_file else None
    most = int(os.environ.get("RETRIEVAL_MAX_TASKS", "12"))
    found: list[float] = []
    first: list[float] = []
    for path in repositories:
        with Repository(path) as repository:
            indexer = TreeIndexer(repository)
            own = [one for one in tasks or () if one.repository.replace("/", "+") in path.resolve().parts]
            for task in (own or derive_tasks(repository, indexer, name=path.name, max_tasks=most))[:most]:
                snapshot = build_snapshot(*indexer.graph(repository.resolve(task.base)))
                numbers = best_nodes(snapshot, task.request, limit=RECALL_AT)
                ids = [snapshot.nodes[number].id for number in numbers]
                gold = set(task.gold_symbols)
                found.append(len(gold.intersection(ids)) / len(gold))
                ranks = [rank for rank, one in enumerate(ids, start=1) if one in gold]
                first.append(1 / ranks[0] if ranks else 0.0)
    print(  # noqa: T201 - the figures are the result
        f"\nsearch_code: recall@{RECALL_AT} {np.mean(found):.3f}, reciprocal rank {np.mean(first):.3f},"
        f" {len(found)} tasks"
    )
    assert found
