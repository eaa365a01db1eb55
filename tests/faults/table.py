"""What became of one fault: a row of the table, and what in it must not be."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tests.support.replaying import broken
from worker.load.report import ReplayReport

MOST_LATE_SHARE = 0.10
"""Of a deadline, what may be spent beyond it."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One fault, judged."""

    fault: str
    requests: int
    lost: int
    """Never answered, or never taken by the broker."""
    doubled: int
    """With two outcomes, or usage events, that differ."""
    again: int = 0
    """Answered once more with the same bytes."""
    lag: int = 0
    """Records that the group is behind, at the end."""
    broken: tuple[str, ...] = ()
    """Invariants, each with an example."""
    p99_ms: float | None = None
    worst_ms: float | None = None
    """From the instant at which a request was due to its answer; None where nobody measured it."""
    seconds: float
    note: str = ""

    @property
    def breaches(self) -> list[str]:
        """Everything that must not be."""
        found = [f"{self.lost} lost"] if self.lost else []
        found += [f"{self.doubled} doubled"] if self.doubled else []
        found += [f"{self.lag} behind"] if self.lag else []
        return [*found, *self.broken]


def row_of(fault: str, *reports: ReplayReport, began: float, note: str = "") -> Row:
    """The row of everything that was published under one fault, since `began` by the monotonic clock."""
    measures = [report.measures for report in reports]
    return Row(
        fault=fault,
        requests=sum(one.sent for one in measures),
        lost=sum(one.lost + sum(one.failed.values()) for one in measures),
        doubled=sum(one.doubled for one in measures),
        again=sum(one.repeated for one in measures),
        lag=sum(item.lag for report in reports for item in report.progress),
        broken=tuple(
            f"{name}: {'; '.join(examples)}"
            for report in reports
            for name, examples in broken(report).items()
        ),
        p99_ms=max((one.latencies.percentile_ms(99.0) for one in measures), default=0.0),
        worst_ms=max((one.latencies.percentile_ms(100.0) for one in measures), default=0.0),
        seconds=time.monotonic() - began,
        note=note,
    )


def as_property(row: Row) -> dict[str, Any]:
    """The row as it travels from the process that judged to the one that prints."""
    return {**asdict(row), "broken": list(row.broken)}


def from_property(fields: dict[str, Any]) -> Row:
    read: dict[str, Any] = {**fields, "broken": tuple(fields["broken"])}
    return Row(**read)


def render(rows: Iterable[Row]) -> Table:
    """The table that an operator reads."""
    rows = list(rows)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    headings: Sequence[str] = (
        "fault",
        "requests",
        "lost",
        "doubled",
        "again",
        "lag",
        "invariants",
        "p99 ms",
        "worst ms",
        "seconds",
        "",
    )
    for heading in headings:
        is_text = heading in {"fault", "invariants", ""}
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
    for row in rows:
        table.add_row(
            row.fault,
            *(f"{count:,}" for count in (row.requests, row.lost, row.doubled, row.again, row.lag)),
            Text("\n".join(row.broken), style="bold red") if row.broken else "hold",
            *("" if value is None else f"{value:,.0f}" for value in (row.p99_ms, row.worst_ms)),
            f"{row.seconds:,.0f}",
            row.note,
        )
    return table
