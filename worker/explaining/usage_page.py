"""The usage report as one page for a browser, made as those that explain a bundle are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from worker.explaining.page import Bar, bar_length, render_page
from worker.usage.aggregate import LayerTotals, SpendTotals, UseTotals
from worker.usage.picture import OUTCOMES, STATUSES, Span, StepTimes, UsagePicture

ROWS: Final = 20
"""Of volks, subjects and causes; the rest is one line."""
_COLUMN: Final = 10.0
_GAP: Final = 1.5
_HEIGHT: Final = 100.0
_DAY_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of a stacked bar or column, in hundredths of the whole."""

    kind: str
    begins: float
    length: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One stretch of time."""

    left: float
    width: float
    pieces: tuple[Piece, ...]
    spent: float
    """Height of its tokens, in hundredths of the highest."""
    span: Span
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """A layer's tokens, all calls together, on one scale for all layers."""

    name: str
    totals: LayerTotals
    reserved: int | None
    bar: Bar


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRow:
    """What became of one layer."""

    name: str
    calls: int
    counts: Mapping[str, int]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRow:
    """One step: from the median to the 95th percentile, and the longest."""

    name: str
    times: StepTimes
    p50: float
    p95: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRow:
    """A volk, subject or cause; `spent` is None where only calls count."""

    name: str
    calls: int
    spent: int | None
    length: float
    is_rest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedRow:
    """What answers cited of a layer or source, in hundredths of what their prompts showed of it."""

    name: str
    totals: UseTotals
    length: float


def usage_page(picture: UsagePicture) -> str:
    """The page; the same for the same records."""
    totals = picture.totals
    return render_page(
        "usage",
        p=picture,
        t=totals,
        has_data=bool(totals.total_calls),
        period=_period(picture),
        width=_width(picture.span_seconds),
        columns=list(_columns(picture.spans)),
        most_calls=max([span.calls for span in picture.spans], default=0),
        most_spent=max([span.spent for span in picture.spans], default=0),
        ticks=_ticks(picture.spans),
        layers=_layer_rows(picture),
        fates=[_status_row(layer, counts) for layer, counts in picture.statuses.items()],
        times=_time_rows(picture.times),
        volks=_spend_rows(totals.per_volk),
        subjects=_spend_rows(totals.per_subject),
        sources=_spend_rows(totals.per_source),
        used_layers=_used_rows(totals.used_per_layer),
        used_sources=_used_rows(totals.used_per_source),
        reasons=_count_rows(totals.degraded_reasons),
        codes=_count_rows(totals.rejection_codes),
        outcomes=[(name, totals.outcomes.get(name, 0)) for name in OUTCOMES],
        outcome_names=OUTCOMES,
        status_names=STATUSES,
    )


# --- Over time -------------------------------------------------------------------------------------------


def _columns(spans: Sequence[Span]) -> Iterator[Column]:
    most_calls = max([span.calls for span in spans], default=0)
    most_spent = max([span.spent for span in spans], default=0)
    for number, span in enumerate(spans):
        yield Column(
            left=number * _COLUMN + _GAP / 2,
            width=_COLUMN - _GAP,
            pieces=_stacked(span.outcomes, whole=most_calls, order=OUTCOMES),
            spent=bar_length(span.spent, most_spent),
            span=span,
            label=_moment(span.begins),
        )


def _ticks(spans: Sequence[Span]) -> list[str]:
    """The first, the middle and the last stretch."""
    places = sorted({0, len(spans) // 2, len(spans) - 1}) if spans else []
    return [_moment(spans[place].begins) for place in places]


def _period(picture: UsagePicture) -> tuple[str, str] | None:
    if not picture.spans:
        return None
    end = picture.spans[-1].begins + timedelta(seconds=picture.span_seconds)
    return _moment(picture.spans[0].begins), _moment(end)


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"


def _width(seconds: int) -> str:
    """A length of time in words."""
    for size, name in ((_DAY_SECONDS, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size:
            count = seconds / size
            return f"{count:.3g} {name}{'' if count == 1 else 's'}"
    return f"{seconds} seconds"


# --- Bars ------------------------------------------------------------------------------------------------


def _stacked(counts: Mapping[str, int], *, whole: int, order: Sequence[str]) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    begins = 0.0
    for kind in order:
        count = counts.get(kind, 0)
        if count:
            length = _HEIGHT * count / whole
            pieces.append(Piece(kind=kind, begins=round(begins, 3), length=round(length, 3), count=count))
            begins += length
    return tuple(pieces)


def _layer_rows(picture: UsagePicture) -> list[LayerRow]:
    layers = picture.totals.per_layer
    reserved = {name: picture.reserved.get(name) for name in layers}
    numbers = [n for name, layer in layers.items() for n in (layer.budget, layer.spent, reserved[name] or 0)]
    longest = max(numbers, default=0)
    rows: list[LayerRow] = []
    for name, layer in layers.items():
        asked = reserved[name]
        bar = Bar(
            budget=bar_length(layer.budget, longest),
            spent=bar_length(layer.spent, longest),
            mark=None if asked is None else bar_length(asked, longest),
        )
        rows.append(LayerRow(name=name, totals=layer, reserved=asked, bar=bar))
    return rows


def _status_row(layer: str, counts: Mapping[str, int]) -> StatusRow:
    calls = sum(counts.values())
    pieces = _stacked(counts, whole=calls, order=STATUSES)
    return StatusRow(name=layer, calls=calls, counts=counts, pieces=pieces)


def _time_rows(times: Mapping[str, StepTimes]) -> list[TimeRow]:
    """On one scale, which the longest 95th percentile fills; the very longest may be far beyond it."""
    scale = max([step.p95 for step in times.values()], default=0.0)
    return [
        TimeRow(
            name=name,
            times=step,
            p50=round(_HEIGHT * step.p50 / scale, 2),
            p95=round(_HEIGHT * step.p95 / scale, 2),
            longest=min(_HEIGHT, round(_HEIGHT * step.longest / scale, 2)),
        )
        for name, step in times.items()
    ]


def _spend_rows(totals: Mapping[str, SpendTotals]) -> list[NamedRow]:
    """Those that spent most; of several that spent nothing, the first names."""
    rows = [(name, total.calls, total.spent) for name, total in totals.items()]
    most = max([spent for _, _, spent in rows], default=0)
    shown = [
        NamedRow(name=name, calls=calls, spent=spent, length=bar_length(spent, most))
        for name, calls, spent in rows[:ROWS]
    ]
    rest = rows[ROWS:]
    if rest:
        calls, spent = sum([calls for _, calls, _ in rest]), sum([spent for _, _, spent in rest])
        shown.append(NamedRow(name=f"{len(rest):,} more", calls=calls, spent=spent, length=0, is_rest=True))
    return shown


def _used_rows(totals: Mapping[str, UseTotals]) -> list[UsedRow]:
    return [
        UsedRow(name=name, totals=use, length=bar_length(use.cited_tokens, use.tokens))
        for name, use in list(totals.items())[:ROWS]
    ]


def _count_rows(counts: Mapping[str, int]) -> list[NamedRow]:
    most = max(counts.values(), default=0)
    shown = [
        NamedRow(name=name, calls=count, spent=None, length=bar_length(count, most))
        for name, count in list(counts.items())[:ROWS]
    ]
    rest = list(counts.values())[ROWS:]
    if rest:
        calls = sum(rest)
        shown.append(NamedRow(name=f"{len(rest):,} more", calls=calls, spent=None, length=0, is_rest=True))
    return shown
