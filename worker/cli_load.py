"""The commands that capture traffic, make some up, and hold a worker against it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer
from rich.console import Console
from rich.live import Live

from schemas.times import parse_time
from worker.terminal import AsJson, fail, fail_reading, load_settings, talk

if TYPE_CHECKING:
    from worker.load.recorder import Captured, Recorder
    from worker.load.replayer import Replayer, Survey
    from worker.load.report import ReplayReport
    from worker.wiring import Settings
    from worker.wiring_load import RecordCall, ReplayCall

INVARIANT_BROKEN = 5
"""Exit code of a replay that ran, and found something that must not be."""

RecordingFile = Annotated[Path, typer.Argument(metavar="FILE", help="The recording.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there under that name.")]


def record(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; it must not be there yet.")],
    since: Annotated[
        str | None,
        typer.Option(
            help="Begin with what is kept since this instant, RFC 3339; with what comes where absent."
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(help="Seconds of capturing what comes; with --since, 0 takes what is there.", min=0),
    ] = None,
    max_records: Annotated[int | None, typer.Option(help="End after so many.", min=1)] = None,
    synthetic: Annotated[
        bool,
        typer.Option("--synthetic", help="Replace texts by made-up ones of the same length, and all ids."),
    ] = False,
    force: Force = False,
) -> None:
    """Capture request traffic to a compressed file, for `replay`.

    Joins no group and commits nothing: the worker does not notice. Ends at the limits given, or with Ctrl-C;
    until then the file is `FILE.partial`, which can be replayed, too, if a crash leaves it behind.

    With `--synthetic` nothing of the texts is left: words give way to words of the same length, digits to
    digits; ids become pseudonyms. The secret that they depend on is forgotten, so guesses cannot be tried.
    Times stay, and numbers where the contract has them.

    Example: `context-worker record monday.rec --since 2026-01-05T08:00:00Z --duration 0 --synthetic`
    """
    from worker.load.recorder import RecordPlan  # noqa: PLC0415  # brokers load only where they are used
    from worker.wiring_load import RecordCall, build_recorder  # noqa: PLC0415  # as above

    if duration == 0 and since is None:
        fail("--duration 0 takes what is there already, so it needs --since")
    plan = RecordPlan(since=_instant(since), duration_seconds=duration, max_records=max_records)
    call = RecordCall(path=file, plan=plan, is_synthetic=synthetic, force=force)
    with Live(console=talk, transient=True, refresh_per_second=4) as live:
        recorder = build_recorder(
            load_settings(),
            is_synthetic=synthetic,
            on_progress=lambda captured: live.update(f"recording: {_captured(captured)}"),
        )
        captured = asyncio.run(_recorded(recorder, call))
    talk.print(f"{file}: {_captured(captured)}", markup=False)


async def _recorded(recorder: Recorder, call: RecordCall) -> Captured:
    from worker.wiring_load import run_record  # noqa: PLC0415  # as above

    _on_signals(recorder.stop)
    return await run_record(recorder, call)


def _captured(captured: Captured) -> str:
    kilobytes = captured.size_bytes / 1_000
    return f"{captured.records:,} records, {kilobytes:,.1f} kB, {captured.seconds:,.1f} s"


def generate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; it must not be there yet.")],
    requests: Annotated[int, typer.Option(help="How many.", min=1)] = 1_000,
    seed: Annotated[int, typer.Option(help="The same one makes the same requests.")] = 0,
    projects: Annotated[int, typer.Option(help="Among how many projects.", min=1)] = 4,
    threads: Annotated[int, typer.Option(help="How many threads each project has.", min=1)] = 3,
    rate: Annotated[float, typer.Option(help="Requests a second, at the file's own pace.", min=0.001)] = 50.0,
    total: Annotated[int, typer.Option(help="Token budget of each request.", min=1)] = 8_000,
    force: Force = False,
) -> None:
    """Make up traffic for `replay`, where none was recorded: distinct requests with everything inline.

    Every project's texts carry its canary, so that the replay would see a text that strays.

    Example: `context-worker generate load.rec --requests 5000 --projects 8`
    """
    from worker.load.generator import Traffic  # noqa: PLC0415  # as above
    from worker.load.generator import generate as made_up  # noqa: PLC0415  # as above
    from worker.load.recording import RecordingHeader, RecordingWriter  # noqa: PLC0415  # as above

    traffic = Traffic(
        requests=requests,
        seed=seed,
        projects=projects,
        threads=threads,
        rate_per_second=rate,
        total_tokens=total,
    )
    # Made at a fixed time: the same arguments give the same file.
    header = RecordingHeader(origin="generated", created_at=datetime(2026, 1, 2, tzinfo=UTC))
    with RecordingWriter(file, header, force=force) as writer:
        for item in made_up(traffic):
            writer.add(item)
    talk.print(f"{file}: {writer.records:,} requests", markup=False, soft_wrap=True)
    talk.print(
        f"hold a worker against it: context-worker replay {quote(str(file))}", markup=False, soft_wrap=True
    )


def replay(
    file: RecordingFile,
    speed: Annotated[
        str, typer.Option(help="How many times the recorded pace, such as 1, 10 or 0.5; or `max`.")
    ] = "1",
    rate: Annotated[
        float | None, typer.Option(help="Requests a second, evenly, instead of a recorded pace.", min=0.001)
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="Send nothing that is due after so many seconds.", min=0)
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Send no more than so many.", min=1)] = None,
    keep_ids: Annotated[
        bool,
        typer.Option("--keep-ids", help="Change nothing but `expires_at`: tests that outcomes are repeated."),
    ] = False,
    wait: Annotated[
        float, typer.Option(help="Seconds that answers are waited for after the last request.", min=0)
    ] = 30.0,
    canary: Annotated[
        list[str] | None,
        typer.Option(metavar="PROJECT=TEXT", help="A text that is this project's alone; may be repeated."),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report as JSON there, too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Publish a recording again, follow every answer, check the invariants, and say how long it took.

    Open loop: a request is sent when it is due, whether or not those before it were answered, and its latency
    runs from then. Ids become `<run>:<id>`, so everything is worked on anew. Ctrl-C ends the sending; what
    was sent is still followed and judged.

    The settings must be those of the workers: broker, topics, group and model table. Exit code 5 where an
    invariant is broken, a record could not be published, or none was sent.

    Example: `context-worker replay monday.rec --rate 200 --duration 60 --report report.json`
    """
    from worker.load.pacing import Pace  # noqa: PLC0415  # as above
    from worker.load.recording import Recording  # noqa: PLC0415  # as above
    from worker.load.replayer import ReplayPlan, survey  # noqa: PLC0415  # as above
    from worker.load.report import render_report  # noqa: PLC0415  # as above
    from worker.wiring_load import ReplayCall  # noqa: PLC0415  # as above

    pace = Pace(rate_per_second=rate) if rate is not None else Pace(speed=_speed(speed))
    if rate is not None and speed != "1":
        fail("--speed and --rate are two ways to say one thing: give one")
    settings = load_settings()
    try:
        surveyed = survey(Recording(file))
    except OSError as error:
        fail_reading(file, error)
    if not surveyed.records:
        fail(f"{file} holds no request, so there is nothing to judge a worker by")
    plan = ReplayPlan(
        run=f"replay-{uuid4().hex[:8]}",
        pace=pace,
        keep_ids=keep_ids,
        max_records=limit,
        duration_seconds=duration,
        wait_seconds=wait,
    )
    call = ReplayCall(path=file, plan=plan, canaries=_canaries(canary or []))
    done = _shown(settings, call, surveyed)
    document = json.dumps(done.as_dict(), indent=2) + "\n"
    if report is not None:
        report.write_text(document)
    if as_json:
        sys.stdout.write(document)
    else:
        Console(highlight=False).print(render_report(done))
    if not done.holds:
        raise typer.Exit(INVARIANT_BROKEN)


def _shown(settings: Settings, call: ReplayCall, surveyed: Survey) -> ReplayReport:
    """Run it, with its progress on standard error."""
    from worker.load.report import render_progress  # noqa: PLC0415  # as above
    from worker.wiring_load import run_replay  # noqa: PLC0415  # as above

    total = min(surveyed.records, call.plan.max_records or surveyed.records)
    running: list[Replayer] = []
    began = time.monotonic()

    async def run() -> ReplayReport:
        return await run_replay(settings, call, surveyed=surveyed, on_start=start, on_tick=tick)

    def start(replayer: Replayer) -> None:
        running.append(replayer)
        _on_signals(replayer.stop)

    def tick() -> None:
        measures = running[0].measures
        live.update(render_progress(measures, total=total, seconds=time.monotonic() - began))

    with Live(console=talk, transient=True, refresh_per_second=4) as live:
        return asyncio.run(run())


def _on_signals(stop: Callable[[], None]) -> None:
    """Let SIGINT and SIGTERM end it in order, once; the second one ends it at once."""
    loop = asyncio.get_running_loop()

    def stop_once(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop_once, number)


def _speed(text: str) -> float | None:
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        fail(f"--speed {text!r} is neither a number above zero nor `max`")
    return speed


def _canaries(pairs: list[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        project, mark, text = pair.partition("=")
        if not (project and mark and text):
            fail(f"--canary {pair!r} is not PROJECT=TEXT")
        found[text] = project
    return found


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return parse_time(text)[0]
    except ValueError as error:
        fail(f"--since {text!r}: {error}")
