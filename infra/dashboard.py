#!/usr/bin/env python3
"""Draw the dashboard as one page from what a Prometheus holds, where no Grafana is at hand.

python infra/dashboard.py --prometheus http://127.0.0.1:9090 [--minutes 60] [--out dashboard.html]
`make dashboard PROMETHEUS=http://127.0.0.1:9090` does that with the project's own environment.

The panels, their queries and units are those of
`infra/dashboards/context-worker.json`, which Grafana imports.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from jinja2 import FileSystemLoader

CHECKOUT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from worker.explaining.page import render_page  # noqa: E402 - found only now

DASHBOARDS: Final = CHECKOUT / "infra" / "dashboards"
SCHEMES: Final = ("http://", "https://")
TIMEOUT_SECONDS: Final = 30
POINTS: Final = 240
WIDTH, HEIGHT = 600.0, 100.0
COLOURS: Final = 8
KIBI: Final = 1_024
MINUTE: Final = 60


class NotDrawn(Exception):
    """Prometheus did not answer, or refused a query; the text says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What is asked for: Unix seconds, and how wide a rate's window is."""

    start: float
    end: float
    window: str
    instance: str

    @property
    def step_seconds(self) -> float:
        """Between two points of a line."""
        return max(1.0, round((self.end - self.start) / POINTS))

    def expression(self, expr: str) -> str:
        """The expression as Grafana would send it."""
        return expr.replace("$instance", self.instance).replace("$__rate_interval", self.window)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series: finite values by Unix second, oldest first, at least one."""

    name: str
    values: Mapping[float, float]

    @property
    def last(self) -> float:
        """The newest value."""
        return self.values[max(self.values)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A series as the page shows it; `path` is in a box of `WIDTH` by `HEIGHT`."""

    name: str
    colour: int
    path: str
    last: str
    most: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel as the page shows it; a `stat` has a value and no lines."""

    kind: str
    title: str
    description: str
    value: str = ""
    top: str = ""
    is_stacked: bool = False
    lines: Sequence[Drawn] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A heading and the panels under it."""

    title: str
    panels: list[Panel] = field(default_factory=list[Panel])


def main(arguments: Sequence[str]) -> int:
    """Write the page; the exit code."""
    options = _parser().parse_args(arguments)
    end = time.time()
    stretch = Stretch(
        start=end - options.minutes * MINUTE, end=end, window=options.window, instance=options.instance
    )
    try:
        page = draw(options.prometheus, stretch)
    except NotDrawn as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    options.out.write_text(page)
    print(f"wrote {options.out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prometheus", required=True, type=_address, metavar="URL", help="its address")
    parser.add_argument("--minutes", type=_minutes, default=60.0, help="how far back (default 60)")
    parser.add_argument("--window", default="1m", help="what rates are taken over (default 1m)")
    parser.add_argument("--instance", default=".*", help="regular expression of workers (default all)")
    parser.add_argument("--out", type=Path, default=Path("dashboard.html"), help="the file to write")
    return parser


def _address(text: str) -> str:
    if not text.startswith(SCHEMES):
        raise argparse.ArgumentTypeError("an address begins with http:// or https://")
    return text.rstrip("/")


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes < math.inf:
        raise argparse.ArgumentTypeError("more than none")
    return minutes


def draw(prometheus: str, stretch: Stretch) -> str:
    """The page: every panel of the dashboard over that stretch. Raises NotDrawn."""
    dashboard = json.loads((DASHBOARDS / "context-worker.json").read_text())
    rows: list[Row] = []
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            rows.append(Row(title=panel["title"]))
        else:
            rows[-1].panels.append(_panel(panel, ask(prometheus, panel["targets"], stretch), stretch))
    return render_page(
        "dashboard",
        loader=FileSystemLoader(DASHBOARDS),
        title=dashboard["title"],
        description=dashboard["description"],
        rows=rows,
        begins=_moment(stretch.start),
        middle=_moment((stretch.start + stretch.end) / 2),
        ends=_moment(stretch.end),
        window=stretch.window,
        width=WIDTH,
        height=HEIGHT,
    )


# --- What Prometheus says ------------------------------------------------------------------------------


def ask(prometheus: str, targets: Iterable[Mapping[str, Any]], stretch: Stretch) -> list[Line]:
    """Every series of the targets, those of one target by name. Raises NotDrawn."""
    lines: list[Line] = []
    for target in targets:
        query: dict[str, object] = {
            "query": stretch.expression(target["expr"]),
            "start": stretch.start,
            "end": stretch.end,
            "step": stretch.step_seconds,
        }
        found = _get(f"{prometheus}/api/v1/query_range?{urlencode(query)}")
        series: list[Line] = []
        for one in found["result"]:
            # A rate of nothing by nothing is NaN: nothing to show.
            values = {float(at): float(value) for at, value in one["values"] if math.isfinite(float(value))}
            if values:
                series.append(Line(name=_legend(target["legendFormat"], one["metric"]), values=values))
        lines += sorted(series, key=lambda line: line.name)
    return lines


def _get(url: str) -> dict[str, Any]:
    try:
        with urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - `_address` lets web addresses alone pass
            return json.load(answer)["data"]
    except HTTPError as error:
        raise NotDrawn(f"Prometheus refused a query ({error.code}): {error.read().decode()}") from error
    except (URLError, OSError, ValueError, KeyError) as error:
        raise NotDrawn(f"no Prometheus answers at {url.partition('/api/')[0]}: {error}") from error


def _legend(pattern: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), pattern) or "value"


# --- How it is drawn -----------------------------------------------------------------------------------


def _panel(panel: Mapping[str, Any], lines: Sequence[Line], stretch: Stretch) -> Panel:
    spelled = UNITS[panel["fieldConfig"]["defaults"].get("unit", "short")]
    if panel["type"] != "stat":
        return _chart(panel, lines, stretch, spelled)
    value = spelled(lines[0].last) if lines else ""
    return Panel(kind="stat", title=panel["title"], description=panel["description"], value=value)


def _chart(
    panel: Mapping[str, Any], lines: Sequence[Line], stretch: Stretch, spelled: Callable[[float], str]
) -> Panel:
    custom = panel["fieldConfig"]["defaults"].get("custom", {})
    is_stacked = custom.get("stacking", {}).get("mode") == "normal"
    bases = _stacked(lines) if is_stacked else [dict[float, float]() for _ in lines]
    top = _rounded_up(max([_highest(*pair) for pair in zip(lines, bases, strict=True)], default=0.0))
    path = _area if is_stacked else _curve
    return Panel(
        kind="timeseries",
        title=panel["title"],
        description=panel["description"],
        top=spelled(top),
        is_stacked=is_stacked,
        lines=[
            Drawn(
                name=line.name,
                colour=number % COLOURS,
                path=path(line, base, stretch, top),
                last=spelled(line.last),
                most=spelled(_highest(line, {})),
            )
            for number, (line, base) in enumerate(zip(lines, bases, strict=True))
        ],
    )


def _highest(line: Line, base: Mapping[float, float]) -> float:
    """The most that the line reaches upon that base."""
    return max([base.get(at, 0.0) + value for at, value in line.values.items()])


def _stacked(lines: Sequence[Line]) -> list[dict[float, float]]:
    """For each line, what lies under it at each moment."""
    under: list[dict[float, float]] = []
    height: dict[float, float] = {}
    for line in lines:
        under.append(dict(height))
        for at, value in line.values.items():
            height[at] = height.get(at, 0.0) + value
    return under


def _curve(line: Line, under: Mapping[float, float], stretch: Stretch, top: float) -> str:
    """Joined where one value follows the other by a step; a gap stays one, a lone value is a dot's width."""
    del under
    parts: list[str] = []
    before = -math.inf
    for at, value in line.values.items():
        x, y = _place(at, value, stretch, top)
        parts.append(f"L{x} {y}" if at - before <= 1.5 * stretch.step_seconds else f"M{x} {y}h1")
        before = at
    return "".join(parts)


def _area(line: Line, under: Mapping[float, float], stretch: Stretch, top: float) -> str:
    """Each value as a column a step wide upon what lies under it."""
    width = round(WIDTH * stretch.step_seconds / (stretch.end - stretch.start), 2)
    parts: list[str] = []
    for at, value in line.values.items():
        x, lower = _place(at, under.get(at, 0.0), stretch, top)
        _, upper = _place(at, under.get(at, 0.0) + value, stretch, top)
        parts.append(f"M{x} {lower}V{upper}h{width}V{lower}z")
    return "".join(parts)


def _place(at: float, value: float, stretch: Stretch, top: float) -> tuple[float, float]:
    x = WIDTH * (at - stretch.start) / (stretch.end - stretch.start)
    return round(x, 1), round(HEIGHT * (1 - value / top), 2)


def _rounded_up(value: float) -> float:
    """To the next 1, 2 or 5 of its power of ten; 1 for nothing."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if value <= step * power * (1 + 1e-9))


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def _short(value: float) -> str:
    for size, name in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if name == 'k' else size):.3g} {name}"
    return f"{value:.3g}" if abs(value) < 1_000 else f"{value:,.0f}"  # noqa: PLR2004 - four digits stay whole


def _seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1_000:.3g} ms"
    hours, minutes = divmod(int(value) // MINUTE, MINUTE)
    return (
        f"{value:.3g} s" if value < MINUTE else f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
    )


def _bytes(value: float) -> str:
    return f"{value / KIBI**2:,.0f} MiB"


UNITS: Final[Mapping[str, Callable[[float], str]]] = {
    "short": _short,
    "reqps": lambda value: f"{_short(value)} req/s",
    "cps": lambda value: f"{_short(value)}/s",
    "s": _seconds,
    "bytes": _bytes,
    "percentunit": lambda value: f"{100 * value:.3g}%",
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
