"""The command line. Data goes to standard output, talk to standard error; errors are one line, exit code 1.

Options come from `WORKER_…` environment variables (see `worker.settings`); the commands add what belongs
to one call only.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Coroutine
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from schemas.codes import RejectionCode
from schemas.times import parse_time
from worker import cli_evaluate, cli_graph, cli_load, cli_mcp, cli_receipts, cli_state, cli_strategies
from worker.errors import Rejected, Unavailable, WorkerError
from worker.heap import load_freely
from worker.logs import configure_logs
from worker.terminal import REJECTED, AsJson, fail, fail_reading, load_settings, page_console, talk

if TYPE_CHECKING:
    from worker.wiring import Settings

T = TypeVar("T")

STUBBORN_SECONDS = 1.0

app = typer.Typer(
    name="context-worker",
    help="The right context in every prompt: requests in on Kafka, one exact, budgeted bundle out.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
usage_app = typer.Typer(
    help="What bundles spent.\n\nExample: `context-worker usage report`", no_args_is_help=True
)
dead_letters_app = typer.Typer(
    help="Records that could not be worked on.\n\nExample: `context-worker dead-letters list`",
    no_args_is_help=True,
)
schema_app = typer.Typer(
    help="The wire contracts, and the canon of the graph.\n\nExample: `context-worker schema check .`",
    no_args_is_help=True,
)
app.add_typer(usage_app, name="usage")
app.add_typer(dead_letters_app, name="dead-letters")
app.add_typer(schema_app, name="schema")
app.command()(cli_graph.index)
app.command()(cli_graph.pack)
app.command()(cli_evaluate.evaluate)
app.command()(cli_graph.purge)
app.command()(cli_state.session)
app.command()(cli_strategies.strategies)
app.command()(cli_load.record)
app.command()(cli_load.generate)
app.command()(cli_load.replay)
app.command()(cli_mcp.mcp)
app.command()(cli_receipts.explain)
app.command()(cli_receipts.diff)
app.command()(cli_receipts.what_if)
schema_app.command("check")(cli_graph.schema_check)
schema_app.command("apply")(cli_graph.schema_apply)
schema_app.command("migrate")(cli_graph.schema_migrate)


def main() -> None:
    """Run the command line; expected errors become one line and exit code 1."""
    load_freely()
    try:
        app()
    except (WorkerError, OSError, ValueError) as error:
        fail(str(error))


def run_async(work: Coroutine[Any, Any, int]) -> None:
    """Run one coroutine as the whole command; its number is the exit code.

    A source that swallows its cancellation would keep `asyncio.run` waiting for ever: what does not end
    within a second of being cancelled ends with the process.
    """
    with asyncio.Runner() as runner:
        code = runner.run(work)
        if runner.run(_end_other_tasks()):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    if code:
        raise typer.Exit(code)


async def _end_other_tasks() -> bool:
    """Cancel what still runs; whether something would not end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    return bool(others and (await asyncio.wait(others, timeout=STUBBORN_SECONDS))[1])


@app.command()
def run(
    embedded: Annotated[
        bool,
        typer.Option("--embedded", help="Start the embedded broker too; its records live in memory only."),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(help="Port of the embedded broker; a free one where absent.", min=1, max=65_535),
    ] = None,
) -> None:
    """Consume requests until stopped.

    SIGTERM and SIGINT drain: nothing new is admitted, work in flight is finished and committed.

    Example: `context-worker run --embedded --port 9092`, which needs no Kafka; or
    `WORKER_KAFKA__BOOTSTRAP_SERVERS='["127.0.0.1:9092"]' context-worker run`
    """
    from worker.wiring_worker import run_service  # noqa: PLC0415  # brokers and stores load only where they are used

    if port is not None and not embedded:
        fail("--port belongs to --embedded")
    run_async(run_service(load_settings(is_service=True), embedded=embedded, embedded_port=port))


@app.command()
def demo() -> None:
    """Play the whole main job on the embedded broker, shown to a person.

    Starts a broker and a worker, publishes a dozen requests about this project's own source, shows every
    outcome and the usage totals, stops everything.

    Example: `context-worker demo`, which needs no settings, no Kafka and no network
    """
    from worker.demo import run_demo  # noqa: PLC0415  # as above

    configure_logs(level="error", log_format="console")
    run_async(run_demo(Console(highlight=False)))


@app.command()
def assemble(
    file: Annotated[str, typer.Argument(help="A request as JSON, or - for standard input.")],
    text: Annotated[bool, typer.Option("--text", help="Print the prompt instead of the bundle.")] = False,
    as_of: Annotated[
        str | None, typer.Option(help="The instant to judge by, RFC 3339; the request's own, else now.")
    ] = None,
    receipt_out: Annotated[
        Path | None, typer.Option(help="Write receipt and capture to this file, for `explain --receipt`.")
    ] = None,
) -> None:
    """Assemble one request without a broker: the bundle that the worker would publish, byte for byte.

    Exit code 0 for a bundle, 4 for a rejection.

    Example: `context-worker assemble request.json --as-of 2026-01-02T03:04:05Z --text`
    """
    from worker.wiring import assemble_once  # noqa: PLC0415  # as above

    body = _read(file)
    try:
        assembled = asyncio.run(assemble_once(load_settings(), body, as_of=_instant(as_of), say=_say))
    except Rejected as error:
        fail(f"{error.code}: {error.message}", code=REJECTED)
    bundle = assembled.bundle
    if receipt_out is not None:
        cli_receipts.write_receipt(receipt_out, assembled)
    if text:
        for message in bundle.messages or ():
            sys.stdout.write(f"--- {message.role} ---\n{message.content}\n")
    else:
        from schemas.bundle import to_wire  # noqa: PLC0415  # as above

        sys.stdout.buffer.write(to_wire(bundle) + b"\n")


@app.command()
def send(
    file: Annotated[str, typer.Argument(help="A request as JSON, or - for standard input.")],
    timeout_seconds: Annotated[
        float, typer.Option("--timeout", help="How many seconds to wait for the reply.", min=0.1)
    ] = 30.0,
) -> None:
    """Publish one request as it is and print the reply as JSON: the exchange of an orchestrator.

    Exit code 0 for a bundle, 4 for a rejection, 1 where no reply came.

    Example: `echo '{"request_id": "r1", "project_id": "shop", "volk": "smith", "subject": "chat",
    "user_message": "Hello"}' | context-worker send -`
    """
    from worker.wiring_kafka import send_once  # noqa: PLC0415  # as above

    body = _read(file)
    reply = asyncio.run(send_once(load_settings(), body, timeout_seconds=timeout_seconds))
    sys.stdout.buffer.write(reply + b"\n")
    if json.loads(reply).get("kind") == "rejection":
        raise typer.Exit(REJECTED)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Check each dependency: reachable, which version, what is wrong, how to mend it.

    Exits 1 where something that the present settings need does not work.

    Example: `context-worker doctor --json | jq '.[] | select(.is_ok | not)'`
    """
    from worker.doctor import diagnose, show  # noqa: PLC0415  # as above

    findings = asyncio.run(diagnose(load_settings()))
    if as_json:
        sys.stdout.write(json.dumps([finding.as_dict() for finding in findings], indent=2) + "\n")
    else:
        page_console().print(show(findings))
    if any(not finding.is_ok for finding in findings):
        raise typer.Exit(1)


@usage_app.command("report")
def usage_report(
    path: Annotated[
        Path | None,
        typer.Option(help="The log; else ORCHESTRATA_CONTEXT_USAGE_LOG, else logs/context_usage.jsonl."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page with charts to this file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Totals per layer, volk and subject from the usage log and its rotated files; as a page over time, too.

    Example: `context-worker usage report --json | jq .per_layer`
    """
    from worker.usage.log import aggregate_usage, read_usage_records, usage_log_path  # noqa: PLC0415  # as above
    from worker.usage.report import render_report, to_json  # noqa: PLC0415  # as above

    source = path or usage_log_path()
    if not source.exists():
        fail(f"no usage log at {source}")
    if html is not None:
        if as_json:
            fail("--html and --json exclude each other")
        _write_usage_page(html, source)
        return
    totals = aggregate_usage(read_usage_records(source, include_rotated=True))
    if as_json:
        sys.stdout.write(to_json(totals) + "\n")
    else:
        page_console().print(render_report(totals))


def _write_usage_page(html: Path, source: Path) -> None:
    from worker.explaining.usage_page import usage_page  # noqa: PLC0415  # as above
    from worker.private_files import open_private  # noqa: PLC0415  # as above
    from worker.usage.log import read_usage_records  # noqa: PLC0415  # as above
    from worker.usage.picture import picture_of  # noqa: PLC0415  # as above

    page = usage_page(picture_of(read_usage_records(source, include_rotated=True)))
    with open_private(html, "w") as file:
        file.write(page)
    talk.print(f"wrote {html}", markup=False, soft_wrap=True)


Code = Annotated[RejectionCode | None, typer.Option(help="Only this rejection code.")]
Project = Annotated[str | None, typer.Option(help="Only this project.")]
Since = Annotated[str | None, typer.Option(help="Only records not older than this instant, RFC 3339.")]
Topic = Annotated[str | None, typer.Option(help="Only records of this topic, by its whole name.")]


@dead_letters_app.command("list")
def dead_letters_list(
    code: Code = None,
    project: Project = None,
    topic: Topic = None,
    since: Since = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, oldest first in each partition; a letter's id is `partition:offset`.

    Example: `context-worker dead-letters list --code invalid_json`
    """
    from worker.dead_letter_views import as_row, letter_table  # noqa: PLC0415  # as above
    from worker.kafka.dead_letters import Selection, list_dead_letters  # noqa: PLC0415  # as above
    from worker.wiring_kafka import dead_letter_topic, redrivable_topics  # noqa: PLC0415  # as above

    settings = load_settings()
    _check_topic(topic, redrivable_topics(settings))
    selection = Selection(code=code, project_id=project, topic=topic, since=_instant(since, option="--since"))
    letters = asyncio.run(_reaching(list_dead_letters(dead_letter_topic(settings), selection), settings))
    if as_json:
        sys.stdout.write(json.dumps([as_row(letter) for letter in letters], indent=2) + "\n")
    else:
        page_console().print(letter_table(letters))


@dead_letters_app.command("show")
def dead_letters_show(
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="`partition:offset`, as `list` prints it.")],
    body: Annotated[bool, typer.Option("--body", help="Only the original bytes, as they are.")] = False,
) -> None:
    """Show one dead letter as JSON: why, from where, its headers, its body, its traceback.

    Example: `context-worker dead-letters show 0:17 --body > request.json`
    """
    from worker.dead_letter_views import as_document  # noqa: PLC0415  # as above
    from worker.kafka.dead_letters import show_dead_letter  # noqa: PLC0415  # as above
    from worker.wiring_kafka import dead_letter_topic  # noqa: PLC0415  # as above

    settings = load_settings()
    letter = asyncio.run(_reaching(show_dead_letter(dead_letter_topic(settings), letter_id), settings))
    if letter is None:
        fail(f"no dead letter {letter_id!r}")
    if body:
        sys.stdout.buffer.write(letter.value)
    else:
        sys.stdout.write(json.dumps(as_document(letter), indent=2) + "\n")


@dead_letters_app.command("redrive")
def dead_letters_redrive(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Which ones; all that the filters select where none.")
    ] = None,
    code: Code = None,
    project: Project = None,
    topic: Topic = None,
    since: Since = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Publish nothing, say what would be.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Publish the original records again, each under a new generation, so that it gets a new outcome.

    Example: `context-worker dead-letters redrive --code internal_error --dry-run`
    """
    from worker.dead_letter_views import redriven_table  # noqa: PLC0415  # as above
    from worker.kafka.dead_letters import Selection, redrive  # noqa: PLC0415  # as above
    from worker.wiring_kafka import dead_letter_topic, redrivable_topics  # noqa: PLC0415  # as above

    settings = load_settings()
    topics = redrivable_topics(settings)
    _check_topic(topic, topics)
    selection = Selection(
        code=code,
        project_id=project,
        topic=topic,
        since=_instant(since, option="--since"),
        ids=frozenset(ids or ()),
    )
    if not dry_run and not yes:
        typer.confirm("Publish the selected records again?", abort=True, err=True)
    done = asyncio.run(
        _reaching(
            redrive(dead_letter_topic(settings), selection, allowed_topics=topics, dry_run=dry_run),
            settings,
        )
    )
    if as_json:
        sys.stdout.write(json.dumps([asdict(item) for item in done], indent=2) + "\n")
    else:
        page_console().print(redriven_table(done, dry_run=dry_run))
    if ids and len(done) < len(set(ids)):
        fail(f"not found: {', '.join(sorted(set(ids) - {item.id for item in done}))}")


def _check_topic(topic: str | None, known: frozenset[str]) -> None:
    if topic is not None and topic not in known:
        fail(f"--topic {topic!r}: unknown; dead letters come from {', '.join(sorted(known))}")


async def _reaching(work: Coroutine[Any, Any, T], settings: Settings) -> T:
    """Await work on the broker; its own errors become one line that names where it was looked for."""
    from aiokafka.errors import KafkaConnectionError, KafkaError  # noqa: PLC0415  # as above

    from worker.wiring_kafka import connection_of  # noqa: PLC0415  # as above

    servers = ", ".join(settings.kafka.bootstrap_servers)
    try:
        return await work
    except (KafkaConnectionError, OSError) as error:
        raise Unavailable(await connection_of(settings).refusal()) from error
    except KafkaError as error:
        raise Unavailable(f"the broker at {servers} did not answer: {error}") from error


@schema_app.command("export")
def schema_export(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 where a file differs.")
    ] = False,
) -> None:
    """Write JSON Schema and AsyncAPI documents of the wire contracts into `schemas/`.

    Example: `context-worker schema export --check`
    """
    from schemas.export import export  # noqa: PLC0415  # as above

    drifted = export(check=check)
    for name in drifted:
        talk.print(f"{'differs' if check else 'written'}: {name}", markup=False)
    if check and drifted:
        raise typer.Exit(1)
    if check:
        talk.print("the exported schemas are those of the models", markup=False)


def _instant(text: str | None, *, option: str = "--as-of") -> datetime | None:
    if text is None:
        return None
    try:
        instant, _ = parse_time(text)
    except ValueError as error:
        fail(f"{option} {text!r}: {error}")
    return instant


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        fail_reading(file, error)


def _say(line: str) -> None:
    talk.print(line, markup=False)
