"""The command that measures how well selection finds what a repository's own commits edited."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from worker.terminal import AsJson, fail, load_settings, talk

if TYPE_CHECKING:
    from worker.evaluation.git import Repository
    from worker.evaluation.runner import Refine
    from worker.evaluation.scoring import Estimate, Outcome, Score
    from worker.evaluation.tasks import Task
    from worker.evaluation.tree import TreeIndexer


def evaluate(
    repositories: Annotated[list[Path], typer.Argument(metavar="REPO...", help="Git repositories.")],
    tasks: Annotated[
        Path | None,
        typer.Option(help="JSON lines with task_id, repo, base, request, gold_symbols; else own commits."),
    ] = None,
    max_tasks: Annotated[int, typer.Option(help="Commits taken of each repository.", min=1)] = 50,
    budget: Annotated[list[int] | None, typer.Option(help="Tokens of a pack; may be repeated.")] = None,
    ranking: Annotated[Literal["graph", "hop"], typer.Option(help="How nodes are ordered.")] = "graph",
    relevance: Annotated[
        Literal["off", "prolog"], typer.Option(help="Whether rules refine the order.")
    ] = "off",
    as_json: AsJson = False,
) -> None:
    """Say how well selection finds what the repositories' own commits edited.

    A commit's message, without what would give the answer away, is the request; the tree before it is
    indexed, without a checkout; and what the commit edited should be in the pack: in full, or at least by
    name. Means over all tasks, with 95 % intervals from a bootstrap within each repository. Beside what a
    pack spent stands what a static map of the tree takes: every file, class and function by its first line.

    Example: `context-worker evaluate . --max-tasks 30`
    """
    from worker.budget.tokens import counter_for  # noqa: PLC0415  # numpy and parsers load only where needed
    from worker.evaluation.runner import BUDGETS, EvaluationOptions  # noqa: PLC0415  # as above
    from worker.evaluation.runner import evaluate as run  # noqa: PLC0415  # as above
    from worker.evaluation.scoring import score  # noqa: PLC0415  # as above

    outcomes: list[Outcome] = []
    with _refiner(relevance) as refine:
        options = EvaluationOptions(
            counter=counter_for("o200k_base", safety_factor="1"),
            budgets_tokens=tuple(budget or BUDGETS),
            ranking=ranking,
            refine=refine,
        )
        for repository, indexer, chosen in _tasks_of(repositories, tasks, max_tasks=max_tasks):
            with _bar(repository.path.name, len(chosen)) as step:
                outcomes += run(repository, indexer, chosen, options, on_progress=step)
    scores = score(outcomes)
    if as_json:
        sys.stdout.write(json.dumps([asdict(item) for item in scores], indent=2) + "\n")
    else:
        Console(highlight=False).print(score_table(scores, ranking=ranking, relevance=relevance))


def score_table(scores: Sequence[Score], *, ranking: str, relevance: str) -> Table:
    """One row a budget, the largest first."""
    title = (
        f"recall of what was edited (ranking {ranking}, relevance {relevance}; tokens spent, and of a static"
        " map of the project; ms: median of selection)"
    )
    # Without padding, so that 80 columns hold it.
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    for heading in ("budget", "tasks", "in full", "or by name", "spent", "map", "over", "ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for item in scores:
        table.add_row(
            f"{item.budget_tokens:,}",
            str(item.tasks),
            _interval(item.bodies),
            _interval(item.visible),
            f"{item.mean_spent_tokens:,.0f}",
            f"{item.mean_map_tokens:,.0f}",
            str(item.over_budget),
            f"{item.median_select_seconds * 1e3:.1f}",
        )
    return table


def _interval(estimate: Estimate) -> str:
    return f"{estimate.mean:.3f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _tasks_of(
    paths: Sequence[Path], tasks_file: Path | None, *, max_tasks: int
) -> Iterator[tuple[Repository, TreeIndexer, list[Task]]]:
    """Each repository with its tasks: its own commits, or those of the file whose base it has."""
    from worker.evaluation.git import Repository  # noqa: PLC0415  # as above
    from worker.evaluation.tasks import derive_tasks, read_tasks  # noqa: PLC0415  # as above
    from worker.evaluation.tree import TreeIndexer  # noqa: PLC0415  # as above

    given = read_tasks(tasks_file) if tasks_file is not None else None
    found = 0
    for path in paths:
        if not path.exists():
            fail(f"{path} is not there")
        with Repository(path) as repository:
            repository.check()
            indexer = TreeIndexer(repository)
            if given is None:
                chosen = derive_tasks(repository, indexer, name=path.resolve().name, max_tasks=max_tasks)
            else:
                chosen = [task for task in given if _has(repository, task.base)]
            found += len(chosen)
            if chosen:
                yield repository, indexer, chosen
    if not found:
        fail("none of the tasks starts from a commit of these repositories")
    if given is not None and found < len(given):
        talk.print(f"{len(given) - found} of {len(given)} tasks are of other repositories", markup=False)


def _has(repository: Repository, commit: str) -> bool:
    from worker.evaluation.git import GitFailed  # noqa: PLC0415  # as above

    try:
        repository.resolve(commit)
    except GitFailed:
        return False
    return True


@contextmanager
def _bar(title: str, total: int) -> Generator[Callable[[int, int], None]]:
    """Progress on standard error; nothing where that is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=talk, transient=True, disable=not talk.is_terminal) as progress:
        task = progress.add_task(title, total=total)

        def step(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield step


@contextmanager
def _refiner(relevance: str) -> Generator[Refine | None]:
    """Asks the Prolog rules, where they are switched on."""
    if relevance == "off":
        yield None
        return
    from worker.wiring_graph import build_relevance  # noqa: PLC0415  # as above

    engine = build_relevance(load_settings())
    with asyncio.Runner() as runner:
        try:
            yield lambda facts: runner.run(engine.refine(facts))
        finally:
            runner.run(engine.close())
