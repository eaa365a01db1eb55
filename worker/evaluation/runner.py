"""Runs tasks: index each base commit, select and pack under each budget, compare with what was edited."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from schemas.codes import TaskType
from worker.citations.labels import label_tokens
from worker.evaluation.git import Repository
from worker.evaluation.scoring import Outcome, recall
from worker.evaluation.tasks import Task
from worker.evaluation.tree import PROJECT, TreeIndexer
from worker.graph.links import link_request
from worker.graph.pack_writer import PackHead, WrittenPack, write_pack
from worker.graph.packing import TextSizes
from worker.graph.refining import refine_order, relevance_facts
from worker.graph.relevance import Refinement, RelevanceFacts
from worker.graph.request import classify_task
from worker.graph.selection import Ranking, Selection, select
from worker.graph.snapshot import Snapshot, build_snapshot
from worker.graph.static_map import static_map_tokens
from worker.ports import TokenCounter

BUDGETS: Final = (8_000, 2_000)
DEFAULT_TASK_TYPE: Final[TaskType] = "DEBUG"
"""Of a message whose first line asks for nothing in particular."""

Refine = Callable[[RelevanceFacts], Refinement]
OnProgress = Callable[[int, int], object]
"""Tasks done, and tasks in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """What is evaluated: a ranking, with relevance tiers where `refine` is given, under some budgets."""

    counter: TokenCounter
    budgets_tokens: Sequence[int] = BUDGETS
    ranking: Ranking = "graph"
    refine: Refine | None = None
    is_labelled: bool = True
    """Whether each section has an id to be cited by, as it has in a prompt."""
    clock: Callable[[], float] = field(default=time.perf_counter)


def evaluate(
    repository: Repository,
    indexer: TreeIndexer,
    tasks: Sequence[Task],
    options: EvaluationOptions,
    *,
    on_progress: OnProgress = lambda _done, _total: None,
) -> Iterator[Outcome]:
    """The outcome of each task under each budget, as they come; tasks of one base share its snapshot.

    All tasks are of `repository`. Raises GitFailed where it lacks a base.
    """
    snapshots: dict[str, tuple[Snapshot, int]] = {}
    for done, task in enumerate(sorted(tasks, key=lambda task: task.base)):
        base = repository.resolve(task.base)
        if base not in snapshots:
            snapshot = build_snapshot(*indexer.graph(base))
            snapshots = {base: (snapshot, static_map_tokens(snapshot, options.counter))}
        snapshot, map_tokens = snapshots[base]
        yield from run_task(task, snapshot, options, map_tokens=map_tokens)
        on_progress(done + 1, len(tasks))


def run_task(
    task: Task, snapshot: Snapshot, options: EvaluationOptions, *, map_tokens: int
) -> Iterator[Outcome]:
    """The task's outcome under each budget, on a snapshot of its base, whose static map has `map_tokens`."""
    started = options.clock()
    selection = select_for(task, snapshot, options)
    select_seconds = options.clock() - started
    sizes = TextSizes(options.counter)
    for budget_tokens in options.budgets_tokens:
        head = PackHead(
            project_id=PROJECT,
            requester="human",
            encoding=options.counter.name,
            budget_tokens=budget_tokens,
            layout="prompt",
            label_tokens=label_tokens(options.counter) if options.is_labelled else 0,
        )
        written = write_pack(selection, snapshot, head, sizes=sizes)
        bodies, names = shown(written, snapshot)
        yield Outcome(
            task_id=task.task_id,
            repository=task.repository,
            budget_tokens=budget_tokens,
            spent_tokens=written.spent_tokens,
            bodies=recall(task.gold_symbols, bodies),
            visible=recall(task.gold_symbols, bodies | names),
            map_tokens=map_tokens,
            select_seconds=select_seconds,
        )


def select_for(task: Task, snapshot: Snapshot, options: EvaluationOptions) -> Selection:
    """What is selected for the task's request."""
    task_type = classify_task(task.request) or DEFAULT_TASK_TYPE
    links = link_request(task.request, (), snapshot)
    selection = select(links, snapshot, task_type=task_type, ranking=options.ranking)
    if options.refine is None or not selection.ranked:
        return selection
    facts = relevance_facts(selection, snapshot, task_type=task_type)
    return refine_order(selection, snapshot, options.refine(facts))


def shown(written: WrittenPack, snapshot: Snapshot) -> tuple[set[str], set[str]]:
    """The ids of nodes that the pack shows in full, and of those that it names."""
    if written.packed is None:
        return set(), set()
    bodies = {item.node.id for item in written.packed.bodies if f"node: {item.node.id} |" in written.text}
    names = {snapshot.nodes[number].id for file in written.packed.names for number in file.numbers}
    return bodies, names
