"""The commands about a project's graph: index a tree, print a pack, look after the schema."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self, cast, get_args

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from schemas.codes import TaskType
from worker.terminal import AsJson, ProjectOption, check_project, fail, load_settings, talk

if TYPE_CHECKING:
    from worker.code.indexing import IndexProgress, IndexReport

_PHASES = {
    "load": "looking at what is known",
    "scan": "looking for files",
    "read": "reading files",
    "link": "linking names",
    "store": "storing",
}


def index(
    path: Annotated[Path, typer.Argument(help="The root of the source tree.")],
    project: ProjectOption,
    watch: Annotated[
        bool, typer.Option("--watch", help="Then follow the tree until interrupted, a line for each change.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Name each file that was left out, and by which rule.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a project's graph that of a source tree; a second run reads only what changed.

    Files that `.gitignore` or `.contextignore` name are left out, and so is what is generated, vendored,
    binary or very large; the summary counts them by rule, and `--verbose` or `--json` names them. A file that
    cannot be parsed is reported.

    Example: `context-worker index . --project shop`
    """
    if not path.is_dir():
        fail(f"{path} is not a folder")
    check_project(project)
    from worker.index_commands import follow_tree, index_tree  # noqa: PLC0415  # stores and parsers load only here

    if watch:
        talk.print(f"following {path}; interrupt to end", markup=False)
        asyncio.run(follow_tree(load_settings(), path, project, _say_change))
        return
    with IndexProgressBar() as bar:
        report = asyncio.run(index_tree(load_settings(), path, project, bar.show))
    if as_json:
        # Not `asdict`, which makes a counter of pairs of every counter.
        told = {field.name: getattr(report, field.name) for field in fields(report)}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    else:
        print_report(report, Console(highlight=False), is_verbose=verbose)


def _say_change(outcome: IndexReport | Exception) -> None:
    """One line for each index that a watch made, or could not."""
    if isinstance(outcome, Exception):
        talk.print(f"not indexed: {outcome}", style="red", markup=False, soft_wrap=True)
        return
    state = "changed" if outcome.is_changed else "unchanged"
    seconds = sum(outcome.seconds.values())
    sys.stdout.write(
        f"version {outcome.graph_version} {state}: {sum(outcome.files.values()):,} files,"
        f" {outcome.symbols:,} symbols, {outcome.files_read:,} files read, {seconds:.2f} s\n"
    )
    sys.stdout.flush()


class IndexProgressBar:
    """Shows how far an index is, on standard error; nothing where that is no terminal."""

    def __init__(self) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=talk,
            transient=True,
            disable=not talk.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, progress: IndexProgress) -> None:
        """Take one step; called from another thread."""
        self._progress.update(
            self._task,
            description=_PHASES[progress.phase],
            completed=progress.done,
            total=progress.total or None,
        )


def print_report(report: IndexReport, console: Console, *, is_verbose: bool = False) -> None:
    """The summary of an index as a table, and each file that was not read whole; verbose, those left out."""
    table = Table(title=f"graph of {report.project_id}", show_header=False, title_justify="left")
    table.add_row("files", _counts(report.files))
    table.add_row("nodes", _counts(report.nodes))
    table.add_row("edges", _counts(report.edges, guessed=report.guessed_edges))
    table.add_row(
        "calls",
        f"{report.exact_calls:,} certain, {report.guessed_calls:,} guessed,"
        f" {report.unresolved_calls:,} to elsewhere",
    )
    table.add_row("skipped", _counts(report.skipped) or "none")
    table.add_row("this time", f"{report.files_read:,} files read, {report.files_linked:,} linked")
    if report.history_reason:
        table.add_row("history", report.history_reason)
    table.add_row("seconds", ", ".join(f"{phase} {took:.2f}" for phase, took in report.seconds.items()))
    table.add_row("version", f"{report.graph_version}, snapshot {report.snapshot_id[:16]}")
    console.print(table)
    for path, status, reason in report.not_whole:
        console.print(f"{status}: {path}: {reason}", markup=False, soft_wrap=True)
    for path, rule in report.skipped_paths if is_verbose else ():
        console.print(f"skipped: {path}: {rule}", markup=False, soft_wrap=True)


def _counts(counts: object, *, guessed: object = None) -> str:
    found = cast("dict[str, int]", counts)
    guesses = cast("dict[str, int]", guessed or {})
    parts = [
        f"{name} {number:,}" + (f" ({guesses[name]:,} guessed)" if guesses.get(name) else "")
        for name, number in sorted(found.items(), key=lambda item: (-item[1], item[0]))
        if number
    ]
    return ", ".join(parts)


def pack(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="BUILD, REFACTOR, DEBUG, DOCUMENT, TEST or REVIEW.")
    ],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A name, id, path, or free text.")],
    project: ProjectOption,
    budget: Annotated[int, typer.Option(help="Tokens of the whole pack; never exceeded.", min=1)] = 4_000,
    ranking: Annotated[
        Literal["graph", "hop"] | None, typer.Option(help="How nodes are ordered; the settings' own.")
    ] = None,
    relevance: Annotated[
        Literal["off", "prolog"] | None, typer.Option(help="Whether rules refine the order.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="How tokens are counted.")] = "o200k_base",
) -> None:
    """Print an editable pack: the code, requirements and decisions that a piece of work needs.

    Delete sections as you like: what is left is a valid pack that a request may carry as `pack`. Where the
    graph is away or was never made, the pack is empty and says so, and the exit code is 1.

    Example: `context-worker pack DEBUG "retry loop ignores the deadline" --project shop --budget 4000`
    """
    task_type = task.upper()
    if task_type not in get_args(TaskType):
        fail(f"unknown task {task!r}; known: {', '.join(get_args(TaskType))}")
    check_project(project)
    if not target.strip():
        fail("an empty target says nothing about what to look for")
    from worker.graph_commands import PackOrder, order_pack  # noqa: PLC0415  # as above

    order = PackOrder(
        project_id=project,
        task_type=cast("TaskType", task_type),
        target=target,
        budget_tokens=budget,
        encoding=encoding,
        ranking=ranking,
        relevance=relevance,
    )
    delivery = asyncio.run(order_pack(load_settings(), order))
    sys.stdout.write(delivery.text)
    if delivery.reason == "nothing_found":
        talk.print("nothing in the graph answers to that", markup=False)
    if delivery.unindexed:
        talk.print(f"not indexed: {', '.join(delivery.unindexed)}", markup=False)
    if delivery.is_relevance_missing:
        talk.print("relevance: the rules could not be asked, so the order is the plain one", markup=False)
    if delivery.reason == "not_indexed":
        fail(f"no graph of {project}; make one with `context-worker index PATH --project {project}`")
    if delivery.reason == "graph_unavailable":
        fail("the graph store does not answer")


def schema_check(
    root: Annotated[Path, typer.Argument(help="The code base.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Find every Cypher statement that strays from the canon: another label, relation or key.

    Exits 1 where there is one, naming file and line. Runs in CI.

    Example: `context-worker schema check .`
    """
    from worker.graph.conformance import check_sources  # noqa: PLC0415  # as above

    if not root.is_dir():
        fail(f"{root} is not a folder")
    findings = check_sources(root)
    talk.print(f"{len(findings)} {'stray' if len(findings) == 1 else 'strays'} from the canon below {root}")
    if as_json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=2) + "\n")
    else:
        for found in findings:
            sys.stdout.write(f"{found.path}:{found.line}: {found.kind} {found.name}: {found.message}\n")
    if findings:
        raise typer.Exit(1)


def schema_apply() -> None:
    """Make the constraints and indexes of the canon in the Neo4j that the settings name; idempotent.

    Example: `WORKER_GRAPH__STORE=neo4j WORKER_GRAPH__NEO4J_URL=bolt://127.0.0.1:7687 context-worker schema
    apply`
    """
    from worker.stores.neo4j_schema import apply_ddl  # noqa: PLC0415  # as above
    from worker.wiring_graph import build_neo4j_link  # noqa: PLC0415  # as above

    async def work() -> tuple[str, ...]:
        link = build_neo4j_link(load_settings())
        try:
            return await apply_ddl(link)
        finally:
            await link.close()

    for name in asyncio.run(work()):
        sys.stdout.write(f"made {name}\n")


def schema_migrate(
    project: Annotated[
        str | None, typer.Option("--project", help="Only this project; every one where absent.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, say what would be.")] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Nodes that name no project become the project's.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move a Neo4j graph of an older shape to the canon: relations, labels, keys and requirement items.

    TRACES becomes TRACES_TO, TESTS turns round into TESTED_BY, HAS_METHOD becomes DEFINES and Method a
    Function, a Requirement gets its items, ids by base name get their path where only one file can be meant.
    What cannot be moved without guessing is left and named. A second run changes nothing.

    Example: `context-worker schema migrate --project shop --dry-run`
    """
    from worker.stores.neo4j_migration import MigrationReport, migrate  # noqa: PLC0415  # as above
    from worker.wiring_graph import build_neo4j_link  # noqa: PLC0415  # as above

    settings = load_settings()
    if not dry_run and not yes:
        typer.confirm("Change the graph in the Neo4j that the settings name?", abort=True, err=True)

    async def work() -> tuple[MigrationReport, ...]:
        link = build_neo4j_link(settings)
        try:
            return await migrate(link, project, is_dry_run=dry_run, adopts=adopt)
        finally:
            await link.close()

    reports = asyncio.run(work())
    if as_json:
        sys.stdout.write(json.dumps([asdict(report) for report in reports], indent=2, default=str) + "\n")
        return
    for report in reports:
        moved = _counts(report.counts) or "nothing to move"
        sys.stdout.write(f"{report.project_id or 'no project'}: {moved}\n")
        if report.left:
            sys.stdout.write(f"  no place in the canon, left: {_counts(report.left)}\n")
        for unmoved in report.unmoved:
            sys.stdout.write(f"  needs a person: {unmoved.kind} {unmoved.name}: {unmoved.reason}\n")


def purge(
    project: ProjectOption,
    thread: Annotated[str | None, typer.Option("--thread", help="Only what is this thread's.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase a project, or one of its threads: graph, state, packs, outcomes, usage lines.

    What lies on Kafka topics goes with their retention; what running workers hold in memory goes when they
    notice, at their next request of the project.

    Example: `context-worker purge --project shop --thread t-1 --yes`, without `--thread` all of the project
    """
    from worker.wiring_kafka import purge_once  # noqa: PLC0415  # as above

    check_project(project)
    settings = load_settings()
    if not yes:
        what = f"the thread {thread!r} of {project}" if thread else f"everything of {project}"
        typer.confirm(f"Erase {what} for good?", abort=True, err=True)
    purged = asyncio.run(purge_once(settings, project, thread))
    if as_json:
        sys.stdout.write(json.dumps(asdict(purged), indent=2) + "\n")
        return
    sys.stdout.write(f"erased {_counts(asdict(purged)) or 'nothing: there was nothing'}\n")
