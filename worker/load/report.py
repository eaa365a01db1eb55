"""What a replay came to: for people, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from schemas.times import format_time
from worker.load.invariants import Verdict
from worker.load.measures import PERCENTILES, Measures
from worker.load.observations import Progress

_LATE_MS: Final = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """One finished replay."""

    run: str
    recording: str
    origin: str
    is_complete: bool
    """Whether the recording was finished by who wrote it."""
    pace: str
    keep_ids: bool
    started_at: datetime
    measures: Measures
    progress: tuple[Progress, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def holds(self) -> bool:
        """Whether there were records, every one was published, and no invariant is broken."""
        is_published = self.measures.sent > 0 and not self.measures.failed
        return is_published and all(verdict.holds for verdict in self.verdicts)

    @property
    def sent_per_second(self) -> float:
        """The rate at which records were published."""
        return _rate(self.measures.sent, self.measures.sending_seconds)

    @property
    def answered_per_second(self) -> float:
        """The rate at which they were answered, from the start to the last answer."""
        return _rate(self.measures.answered, self.measures.answering_seconds)

    def as_dict(self) -> dict[str, Any]:
        """The whole of it, for `--json` and `--report`."""
        measures = self.measures
        return {
            "run": self.run,
            "recording": self.recording,
            "origin": self.origin,
            "recording_is_complete": self.is_complete,
            "pace": self.pace,
            "keep_ids": self.keep_ids,
            "started_at": format_time(self.started_at),
            "holds": self.holds,
            "sent": measures.sent,
            "acknowledged": measures.acknowledged,
            "not_published": dict(sorted(measures.failed.items())),
            "answered": measures.answered,
            "unanswered": measures.in_flight,
            "answered_again": measures.repeated,
            "lost": measures.lost,
            "doubled": measures.doubled,
            "sending_seconds": round(measures.sending_seconds, 3),
            "answering_seconds": round(measures.answering_seconds, 3),
            "sent_per_second": round(self.sent_per_second, 2),
            "answered_per_second": round(self.answered_per_second, 2),
            "latency_ms": measures.latencies.as_dict(),
            "send_lateness_ms": measures.lateness.as_dict(),
            "outcomes": dict(sorted(measures.outcomes.items())),
            "rejections": dict(sorted(measures.codes.items())),
            "degraded_layers": dict(sorted(measures.layers.items())),
            "lag_records": sum(item.lag for item in self.progress),
            "invariants": [
                {
                    "name": verdict.name,
                    "claim": verdict.claim,
                    "holds": verdict.holds,
                    "broken": verdict.broken,
                    "examples": verdict.examples,
                    "not_judged": verdict.not_judged,
                }
                for verdict in self.verdicts
            ],
        }


def render_report(report: ReplayReport) -> RenderableType:
    """The same for a terminal."""
    measures = report.measures
    head = Text.assemble(
        ("holds  " if report.holds else "BROKEN ", "bold green" if report.holds else "bold red"),
        f" run {report.run} of {report.recording} ({report.origin}), {report.pace}"
        f"{', ids kept' if report.keep_ids else ''}",
    )
    notes: list[Text] = []
    if not report.is_complete:
        notes.append(Text("the recording was cut off; its whole records were replayed", style="yellow"))
    if not measures.sent:
        notes.append(Text("nothing was sent, so nothing was judged", style="bold red"))
    if measures.failed:
        said = ", ".join(f"{count} {why}" for why, count in sorted(measures.failed.items()))
        notes.append(Text(f"not published: {said}", style="bold red"))
    late_ms = measures.lateness.percentile_ms(99.0)
    if late_ms > _LATE_MS:
        notes.append(
            Text(
                f"the pace was not kept: p99 of the sends was {late_ms:,.0f} ms late (within the latencies)",
                style="yellow",
            )
        )
    return Group(head, *notes, _figures(report), _outcomes(measures), _verdicts(report.verdicts))


def render_progress(measures: Measures, *, total: int, seconds: float) -> RenderableType:
    """How a running replay stands, in one small table."""
    table = _plain_table(
        "sent", "answered", "complete", "degraded", "rejected", "in flight", "p50 ms", "p99 ms"
    )
    table.add_row(
        f"{measures.sent:,} of {total:,}",
        f"{measures.answered:,}",
        *(f"{measures.outcomes[outcome]:,}" for outcome in ("complete", "degraded", "rejected")),
        f"{measures.in_flight:,}",
        f"{measures.latencies.percentile_ms(50.0):,.1f}",
        f"{measures.latencies.percentile_ms(99.0):,.1f}",
    )
    table.caption = f"{seconds:,.0f} s, {_rate(measures.sent, measures.sending_seconds):,.1f} sent a second"
    table.caption_justify = "left"
    return table


def _figures(report: ReplayReport) -> RenderableType:
    measures = report.measures
    counts = _plain_table("sent", "answered", "unanswered", "sent/s", "answered/s", "seconds")
    counts.add_row(
        f"{measures.sent:,}",
        f"{measures.answered:,}",
        f"{measures.in_flight:,}",
        f"{report.sent_per_second:,.1f}",
        f"{report.answered_per_second:,.1f}",
        f"{max(measures.sending_seconds, measures.answering_seconds):,.1f}",
    )
    headings = [*(f"p{percentile:g}" for percentile in PERCENTILES), "max"]
    latencies = _plain_table("latency ms", *headings)
    latency = measures.latencies.as_dict()
    latencies.add_row("", *(f"{latency[heading]:,.1f}" for heading in headings))
    latencies.caption = "from the instant at which a request was due; unanswered ones included"
    latencies.caption_justify = "left"
    return Group(counts, latencies)


def _outcomes(measures: Measures) -> Text:
    lines = [
        f"outcomes: {_counts(measures.outcomes)}",
        f"lost: {measures.lost:,}, doubled with other bytes: {measures.doubled:,}",
    ]
    if measures.codes:
        lines.append(f"rejections: {_counts(measures.codes)}")
    if measures.layers:
        lines.append(f"degraded layers: {_counts(measures.layers)}")
    if measures.repeated:
        lines.append(
            f"answered again: {measures.repeated:,} (a redelivery, or a request that was sent twice)"
        )
    return Text("\n".join(lines))


def _verdicts(verdicts: tuple[Verdict, ...]) -> Table:
    table = _plain_table("", "invariant", "", "")
    for column in table.columns:
        column.justify = "left"
        column.no_wrap = False
    for verdict in verdicts:
        said = [f"{count:,} not judged: {why}" for why, count in sorted(verdict.not_judged.items())]
        said = [*verdict.examples, *said]
        more = verdict.broken - len(verdict.examples)
        if more > 0:
            said.insert(len(verdict.examples), f"and {more:,} more")
        table.add_row(
            verdict.name,
            verdict.claim,
            Text("holds", style="green") if verdict.holds else Text("BROKEN", style="bold red"),
            Text("\n".join(said)),
        )
    return table


def _plain_table(*headings: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
