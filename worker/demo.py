"""The whole main job on the embedded broker, shown to a person: each outcome, what was spent, and why."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import worker
from schemas.bundle import BundleRef, to_wire
from worker.cli_graph import IndexProgressBar, print_report
from worker.client import ContextClient
from worker.demo_answers import play_answers
from worker.demo_requests import HANG_MARK, PROJECT, demo_requests
from worker.demo_stages import BEFORE, STAGES, STATE_LAYERS, events_of, request_of
from worker.index_commands import index_tree
from worker.kafka.embedded import embedded_broker
from worker.usage.log import aggregate_usage, read_usage_records
from worker.usage.report import render_report
from worker.wiring_kafka import demo_settings
from worker.wiring_worker import start_worker

BAR_CELLS: Final = 24
REPLY_SECONDS: Final = 20.0

_STATUS_STYLE: Final = {
    "ok": "green",
    "trimmed": "yellow",
    "empty": "dim",
    "off": "dim",
    "partial": "magenta",
    "failed": "red",
}


async def run_demo(console: Console) -> int:
    """Broker and worker up, a dozen requests, a run in four stages and two answers through, all shown.

    0 where all is well.
    """
    started = perf_counter()
    root = Path(worker.__file__).parents[1]
    with tempfile.TemporaryDirectory(prefix="context-demo-") as scratch:
        home = Path(scratch)
        console.print("[bold]starting[/] the embedded broker …", end=" ")
        async with embedded_broker() as broker:
            console.print(f"[green]up[/] at {broker.bootstrap_servers}")
            settings = demo_settings(
                roots={PROJECT: (root,)},
                home=home,
                bootstrap_servers=broker.bootstrap_servers,
                failpoints=f"provider.memory=hang@{HANG_MARK}",
            )
            console.print("[bold]indexing[/] this project's own source tree …")
            with IndexProgressBar() as bar:
                report = await index_tree(settings, root, PROJECT, bar.show)
            print_report(report, console)
            console.print(
                "[bold]starting[/] the worker (a new consumer group takes about three seconds) …", end=" "
            )
            async with start_worker(settings, usage_log=home / "usage.jsonl") as health_url:
                console.print(f"[green]ready[/], health and metrics at {health_url}")
                async with ContextClient([broker.bootstrap_servers]) as client:
                    answered = await _play(console, client, root)
                    answered += await _play_stages(console, client)
                    answered += await play_answers(console, client)
            lines = list(read_usage_records(home / "usage.jsonl"))
        console.print(Panel(render_report(aggregate_usage(lines)), title="usage totals", title_align="left"))
    console.print(f"everything stopped; {answered} replies in {perf_counter() - started:.1f} s")
    return 0


async def _play(console: Console, client: ContextClient, root: Path) -> int:
    first: bytes | None = None
    requests = demo_requests(root)
    for number, (note, body) in enumerate(requests, start=1):
        title = f"{number}/{len(requests) + 1}  {note}"
        began = perf_counter()
        if isinstance(body, bytes):
            reply = await _ask(client, body)
        else:
            request = {"request_id": f"demo-{number}", **body}
            reply = await _ask(client, json.dumps(request).encode())
            first = first or reply
        seconds = perf_counter() - began
        console.print(Panel(_outcome(json.loads(reply), body, seconds), title=title, title_align="left"))
    again = await _ask(client, json.dumps({"request_id": "demo-1", **_first_request(requests)}).encode())
    verdict = (
        Text("the identical bundle, byte for byte", style="green")
        if again == first
        else Text("another bundle: this should never happen", style="bold red")
    )
    console.print(
        Panel(
            verdict,
            title=f"{len(requests) + 1}/{len(requests) + 1}  the first request once more",
            title_align="left",
        )
    )
    if again != first:
        raise AssertionError
    return len(requests) + 1


async def _play_stages(console: Console, client: ContextClient) -> int:
    """A run in four stages: each publishes what it did, and asks with ids alone."""
    console.rule("four stages that hand nothing over by hand")
    published: list[str] = []
    tells, prefix = BEFORE, "start"
    seen: set[str] = set()
    for number, stage in enumerate(STAGES, start=1):
        events = events_of(tells, prefix=prefix, minute=number)
        await asyncio.gather(*map(client.publish_event, events))
        published += [event.root.event_id for event in events]
        reply = json.loads(await _ask(client, json.dumps(request_of(stage, published)).encode()))
        console.print(
            Panel(
                _stage(reply, [event.root.event for event in events], seen),
                title=f"stage {number}/{len(STAGES)}  {stage.name}: {stage.message}",
                title_align="left",
            )
        )
        tells, prefix = stage.tells, stage.name
    return len(STAGES)


def _stage(reply: Mapping[str, Any], told: Sequence[str], seen: set[str]) -> RenderableType:
    """What the bundle holds of the state; lines that the stage before did not see are green."""
    if reply["kind"] == "rejection":
        return Text(f"rejected: {reply['message']}", style="bold red")
    lines = [Text.assemble(("published before: ", "dim"), (", ".join(told), "dim"))]
    for layer in STATE_LAYERS:
        for line in reply["parts"].get(layer, "").splitlines():
            if line and not line.startswith("[["):
                lines.append(Text(line, style="" if line in seen else "green"))
                seen.add(line)
    reports = (f"{layer} {reply['layers'][layer]['tokens']}" for layer in STATE_LAYERS)
    lines.append(Text(f"tokens: {', '.join(reports)}", style="dim"))
    return Group(*lines)


async def _ask(client: ContextClient, body: bytes) -> bytes:
    async with asyncio.timeout(REPLY_SECONDS):
        reply = await client.exchange_raw(body, key=PROJECT.encode())
    if json.loads(reply)["kind"] != "bundle_ref":
        return reply
    # Too large for a record: published by reference, and fetched from the worker.
    reference = BundleRef.model_validate_json(reply)
    return to_wire(await client.fetch_bundle(reference, timeout_seconds=REPLY_SECONDS))


def _first_request(requests: list[tuple[str, dict[str, Any] | bytes]]) -> dict[str, Any]:
    return next(body for _, body in requests if isinstance(body, dict))


def _outcome(reply: Mapping[str, Any], body: Mapping[str, Any] | bytes, seconds: float) -> RenderableType:
    if reply["kind"] == "rejection":
        return Group(
            Text.assemble(
                ("rejected  ", "bold red"), (str(reply["code"]), "bold"), f"   {seconds * 1e3:.0f} ms"
            ),
            Text(str(reply["message"])),
        )
    usage = reply["usage"]
    asked: Mapping[str, Any] = {} if isinstance(body, bytes) else body
    head = Text.assemble(
        (str(reply["status"]), "bold green" if reply["status"] == "complete" else "bold yellow"),
        f"   {asked.get('volk')} · {asked.get('subject')} → {reply['task_type']} · "
        f"{asked.get('model', 'default model')}   {seconds * 1e3:.0f} ms\n",
        f"{usage['spent']:,} of {usage['total']:,} tokens"
        f" + overhead {sum(usage['overhead'].values())}"
        f" {'(exact)' if usage['exact'] else '(upper bound)'}",
    )
    return Group(head, _layers(reply["layers"]))


def _layers(layers: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    widest = max(report["budget_tokens"] for report in layers.values())
    for name, report in layers.items():
        style = _STATUS_STYLE[report["status"]]
        table.add_row(
            name,
            _bar(report["tokens"], report["budget_tokens"], widest, style),
            f"{report['tokens']:,} / {report['budget_tokens']:,}",
            Text(report["status"], style=style),
            Text(report.get("reason") or "", style="dim"),
        )
    return table


def _bar(spent: int, budget: int, widest: int, style: str) -> Text:
    """Reserved as a light bar, spent as a solid one within it, all layers on one scale."""
    reserved_cells = max(1, round(BAR_CELLS * budget / widest)) if budget else 0
    spent_cells = min(reserved_cells, max(1, round(BAR_CELLS * spent / widest))) if spent else 0
    return Text.assemble(("█" * spent_cells, style), ("░" * (reserved_cells - spent_cells), "dim"))
